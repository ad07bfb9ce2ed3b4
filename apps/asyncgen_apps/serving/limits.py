"""Compute the largest request that a model can use, and define limits of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen import EngineClosedError, Tokenizer

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine


MOST_BODY = 8 * 2**20
"""Default limit of an HTTP body in bytes, if the model can use as many."""
MOST_MESSAGE = 2**20
"""Default limit of a WebSocket message in bytes, if the model can use as many."""

LARGE = 64 * 1024
"""Bytes of a body, or characters of a message, above which it is parsed and checked on a worker
thread in time slices: 4 MB of numbers take a second, which would block all streams."""
SMALL = 4 * 1024
"""Bytes of a body, or characters of a message, up to which it is parsed as soon as it is there.
Between this and `LARGE` one is parsed in a turn of the event loop: it may take 10 ms."""
LARGE_AT_ONCE = 1
"""Worker threads for large requests. Parsing a text of megabytes holds the interpreter for 8 ms;
several threads would do so one after another before a stream can run."""

MOST_REPLY = 2**27
"""Most bytes of log-probabilities of a reply in one piece, which are kept until its end."""

MOST_REPLIES = 2**29
"""Most bytes of log-probabilities of all such replies together."""

MOST_LARGE = 2**28
"""Most bytes of all bodies, or messages, above `LARGE`, from their first bytes to the end of what
they ask for: parsed, lists of small numbers take twenty times as many."""
MOST_OF_LARGE = 4
"""So many of the largest ones fit in any case."""

MOST_SAMPLES = 128
"""Most rows of one request: each costs the engine memory, also while it waits."""

MOST_ROWS = 2**13
"""Most rows of all requests together, beside the first one of each. A row has about twenty objects
and 12 kB from its first moment to its last, and the collector looks at all of them in one go."""

_ESCAPED = 6
"""Bytes of JSON for one byte of text: ``\\u0041``."""
_AROUND_MESSAGE = 160
"""Bytes of a message besides its text: role, name, empty fields."""
_AROUND_BIAS = 32
"""Bytes of an entry of a bias table besides its token id: the bias, and spaces."""
_AROUND_ID = 2
_OTHER_FIELDS = 256 * 1024


def longest_request(llm: Engine, most: int, *, prompts: int = 1) -> int:
    """Return the most bytes of JSON that a request to a model can need.

    That is the sum of: a context full of the longest tokens, each character escaped and each token
    in its own message; `MOST_SAMPLES` continuations of the length of the context, as ids; a bias
    and four ids for each token of the vocabulary; and 256 KiB of other fields.

    Args:
        llm: An open engine.
        most: Largest result, also used if the model has no limit.
        prompts: Most prompts of a request.
    """
    try:
        config, tokenizer = llm.config, llm.tokenizer
    except EngineClosedError:
        return most
    context = getattr(config, "max_position_embeddings", None)
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(context, int) or not isinstance(vocabulary, int):
        return most
    digits = len(str(vocabulary))
    fields = (
        MOST_SAMPLES * context * (digits + _AROUND_ID)
        + vocabulary * (5 * digits + 4 * _AROUND_ID + _AROUND_BIAS)
        + _OTHER_FIELDS
    )
    # Finding the longest token takes long in a large vocabulary.
    if fields >= most or not isinstance(tokenizer, Tokenizer):
        return most
    longest = tokenizer.longest_token
    if longest is None:
        return most
    return min(most, fields + prompts * context * (_ESCAPED * longest + _AROUND_MESSAGE))
