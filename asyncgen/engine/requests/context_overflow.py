"""Cut a prompt that is too long for the context, where a request asks for that.

By default such a prompt is refused. A text, or token ids, loses tokens; a conversation loses whole
turns, from a user's message to the next one, and keeps what its system says. How many tokens were
left out is told in the usage of the request.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, cast

from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config.checks import check_values
from asyncgen.types import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.engine.requests.conversation import Rendered
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.types import Message, Prompt

    Read = Callable[[Prompt], tuple[list[int], Rendered | None]]

MOST_TIMES = 16
"""A prompt that fills the context more often than this is refused in any case, before it is
tokenized: it would take a server long."""

_ANSWER = 4
"""Part of the context that is left for an answer whose length is not given."""


def fit_prompt(
    served: ServedModel, prompt: Prompt, given: Mapping[str, Any], read_prompt: Callable[..., Any]
) -> tuple[list[int], Rendered | None, int]:
    """Read a prompt, and leave out of it what does not fit.

    Args:
        served: The engine's model.
        prompt: Text, messages or token ids, form already checked.
        given: Parameters of the request, ``context_overflow`` among them.
        read_prompt: That of `asyncgen.engine.requests.prepare`.

    Returns:
        Ids that fit, what messages came to, and the number of tokens that were left out.

    Raises:
        InvalidRequestError: An unknown way, or a model whose prompt is not its context.
        ContextLengthError: Too little can be left out.
    """
    policy = given["context_overflow"]
    check_values({"context_overflow": policy})
    if policy == "refuse":
        return (*read_prompt(served, prompt, given), 0)
    if served.has_encoder:
        allowed = "`refuse`: the prompt of this model goes into an encoder, which reads all of it"
        raise InvalidRequestError("context_overflow", policy, allowed)

    def read(some: Prompt) -> tuple[list[int], Rendered | None]:
        return read_prompt(served, some, given, times=MOST_TIMES)

    ids, rendered = read(prompt)
    total, room = len(ids), _room(served, given, len(ids))
    if room is None:
        return ids, rendered, 0
    if rendered is not None and not isinstance(prompt, str):
        ids, rendered = _fewer_turns(cast("Sequence[Message]", prompt), room, policy, read)
    if len(ids) > room and policy == "rolling" and rendered is not None:
        allowed = (
            f"its last turn alone, with what the system says, has {len(ids)} tokens, and there is"
            f" room for {room}; shorten it"
        )
        raise ContextLengthError("prompt", size_of(prompt), allowed)
    if len(ids) > room:
        ids = _cut(ids, room, policy, served)
    return ids, rendered, total - len(ids)


def _room(served: ServedModel, given: Mapping[str, Any], length: int) -> int | None:
    """Return the most tokens of a prompt that is too long; ``None`` for one that is not."""
    limit = _limit(served, given)
    if limit is None or length + _least_answer(given) <= limit:
        return None
    asked = given.get("max_new_tokens")
    room = limit - (asked if type(asked) is int else max(limit // _ANSWER, _least_answer(given)))
    if room < 1:
        allowed = f"the context holds {limit} tokens, prompt included; ask for fewer"
        name = "max_new_tokens" if type(asked) is int else "max_length"
        raise ContextLengthError(name, given.get(name), allowed)
    return room


def _limit(served: ServedModel, given: Mapping[str, Any]) -> int | None:
    """Return the most tokens of prompt and answer; ``None`` where there is no limit."""
    limit, longest = served.context_length, given.get("max_length")
    if limit is not None and served.room is not None:
        limit = min(limit, served.room.longest_text(limit))
    if limit is not None and type(longest) is int:
        limit = min(limit, longest)
    return limit


def _least_answer(given: Mapping[str, Any]) -> int:
    """Return the number of new tokens that there must be room for."""
    lengths = [given.get(name) for name in ("max_new_tokens", "min_new_tokens")]
    return max([length for length in lengths if type(length) is int], default=1)


def _cut(ids: list[int], room: int, policy: str, served: ServedModel) -> list[int]:
    """Leave out the middle of token ids, or their beginning but for its special token."""
    if policy == "truncate_middle":
        head = room // 2
        return ids[:head] + ids[len(ids) - (room - head) :]
    begin = getattr(served.tokenizer, "bos_token_id", None)
    kept = 1 if room > 1 and begin is not None and ids[0] == begin else 0
    return ids[:kept] + ids[len(ids) - (room - kept) :]


def _fewer_turns(
    messages: Sequence[Message], room: int, policy: str, read: Read
) -> tuple[list[int], Rendered | None]:
    """Leave out the fewest turns with which a conversation fits, or all but one or two.

    The system's messages stay, and the last turn; beside it the first one if the middle goes.
    """
    starts = turn_starts(messages)
    head = messages[: starts[0]]
    if policy == "truncate_middle" and len(starts) > 1:
        head, starts = messages[: starts[1]], starts[1:]
    tried: dict[int, tuple[list[int], Rendered | None]] = {}

    def fits(number: int) -> bool:
        tried[number] = read([*head, *messages[starts[number] :]])
        return len(tried[number][0]) <= room

    last = len(starts) - 1  # the turn that stays in any case
    first = bisect_left(range(last), True, key=fits)
    return tried[first] if first in tried else read([*head, *messages[starts[first] :]])


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the places where turns begin: behind the system's messages, and at each user's."""
    first = 0
    while first < len(messages) - 1 and messages[first].get("role") in ("system", "developer"):
        first += 1
    users = [
        place for place in range(first + 1, len(messages)) if messages[place].get("role") == "user"
    ]
    return [first, *users]
