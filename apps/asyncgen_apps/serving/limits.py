"""Limit the size of a request to what the model can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen import EngineClosedError, Tokenizer

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine


MOST_BODY = 8 * 2**20
"""Bytes of a body over HTTP by default, if the model can use as many."""
MOST_MESSAGE = 2**20
"""Bytes of a message over WebSocket by default, the same."""

LARGE = 64 * 1024
"""Bytes of a body, characters of a message. What is larger is parsed and checked on a worker
thread, in slices: 4 MB of numbers take a second, in which no stream would get a word."""
LARGE_AT_ONCE = 1
"""A single text of megabytes is parsed in one call, which holds the interpreter for 8 ms: several
at once hold it one behind the other, before a stream gets its turn."""

MOST_SAMPLES = 128
"""Rows of one request: each costs the engine memory and a place, whether it gets to run or not."""

_ESCAPED = 6
"""Bytes of JSON for one of a text: ``\\u0041``."""
_AROUND_MESSAGE = 160
"""Bytes around the text of a message: its role, its name, its empty fields."""
_AROUND_BIAS = 32
"""Bytes around a token id in a table: the bias, and spaces."""
_AROUND_ID = 2
_OTHER_FIELDS = 256 * 1024


def longest_request(llm: Engine, most: int, *, prompts: int = 1) -> int:
    """Tell how many bytes of JSON a request to a model may have.

    Room is for a context full of the longest tokens, each character escaped and each token a
    message of its own; for `MOST_SAMPLES` continuations of the length of the context, as ids; for
    a bias and four ids for each token of the vocabulary; and for 256 KiB of other fields.

    Args:
        llm: An open engine.
        most: What it is at most, and where the model sets no limit.
        prompts: How many a request may have.

    Returns:
        A number of bytes.
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
    # To look for the longest token takes long in a large vocabulary.
    if fields >= most or not isinstance(tokenizer, Tokenizer):
        return most
    longest = tokenizer.longest_token
    if longest is None:
        return most
    return min(most, fields + prompts * context * (_ESCAPED * longest + _AROUND_MESSAGE))
