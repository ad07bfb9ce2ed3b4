"""Texts as vectors: what `AsyncLLM.embed` and `LLM.embed` have in common.

Each text is a request of its own in the shared batch, read as a stream is read. A list is a window
of such requests that moves along.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from asyncgen.errors import EngineClosedError, InvalidRequestError, OverloadedError
from asyncgen.generation.config.checks import check_values
from asyncgen.generation.config.rules import Range, label, must_be, require, switch
from asyncgen.llm.answer import Answer
from asyncgen.llm.together import noted
from asyncgen.runtime.progress import Progress
from asyncgen.types import Embedding, check_prompt, is_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.request import Request
    from asyncgen.generation.config.rules import Rule
    from asyncgen.generation.stopping.cancel import CancelCriteria
    from asyncgen.llm.opening import Opened
    from asyncgen.llm.reader_wait import Inbox
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.types import Pooling, Prompt

EmbeddingPrompt: TypeAlias = "str | Sequence[int]"
"""What is embedded: a text, or a list of token ids."""


class EmbedParams(TypedDict, total=False):
    """Keyword parameters of ``AsyncLLM.embed`` and ``LLM.embed``; ``None`` means not given."""

    pooling: Pooling | None
    """Which hidden states make the vector: the last token's, or the mean of all tokens'. Not given:
    what the model's own files say, else the last token's.
    """
    normalize: bool | None
    """Whether the vector is divided by its Euclidean length. Not given: what the model's own files
    say, else yes.
    """
    dimensions: int | None
    """How many of the first components stay, before it is normalised; for a model that was trained
    so.
    """
    prompt_name: str | None
    """Which of the model's own prompts stands before a text, such as ``"query"``; ``""`` for none.
    Not given: the model's default.
    """
    priority: int | None
    """Requests of a higher one go first; 0 where none is given."""
    client: str | None
    """Whom the request belongs to: clients share the engine evenly."""
    cache_salt: str | None
    """Requests share what was computed of equal beginnings only under the same salt."""
    max_time: float | None
    """Seconds after which a text that is not embedded raises a ``TimeoutError``."""


def _pooling(value: object) -> str | None:
    return None if value in ("last", "mean") else must_be("'last' or 'mean'")


def _name(value: object) -> str | None:
    return None if value == "" else label(value)


_RULES: Mapping[str, Rule] = {
    "pooling": _pooling,
    "normalize": switch,
    "dimensions": Range(1, whole=True),
    "prompt_name": _name,
}


def check_embed_params(params: Mapping[str, Any]) -> None:
    """Hold the parameters of ``embed`` to their rules.

    Raises:
        InvalidRequestError: An unknown parameter, or a value that is not allowed.
    """
    known = EmbedParams.__annotations__
    for name, value in params.items():
        if name not in known:
            raise InvalidRequestError(name, value, f"no parameter; `embed` has {', '.join(known)}")
        if value is not None and name in _RULES:
            require(name, value, _RULES[name])
    check_values(params)


def check_text(prompt: Prompt) -> None:
    """Refuse what cannot be embedded.

    Raises:
        InvalidRequestError: It is no prompt, or a list of messages.
    """
    check_prompt(prompt)
    if is_messages(prompt):
        raise InvalidRequestError(
            "prompt", prompt, "a text or a list of token ids; messages have no embedding"
        )


def _prepare(
    opened: Opened,
    prompt: Prompt,
    params: Mapping[str, Any],
    cancel: CancelCriteria,
    sink: Inbox,
    place: Seat,
) -> Request:
    """Runs on a worker thread. Imported late, because it brings torch."""
    from asyncgen.engine.requests.embedding import prepare_embedding

    return prepare_embedding(opened.served, prompt, params, cancel=cancel, sink=sink, place=place)


class EmbeddingAnswer(Answer):
    """One text on its way to a vector."""

    prepare: Callable[..., Request] = staticmethod(_prepare)

    async def begin(self) -> None:
        """Post the request: tokenize, check."""
        await self._begin()

    async def read(self, index: int = 0) -> Embedding:
        """Wait for the vector.

        Args:
            index: Place of the text in its list.

        Raises:
            TimeoutError: ``max_time`` is over.
            EngineClosedError: The engine was closed meanwhile.
            Exception: What the request raised.
        """
        with suppress(StopAsyncIteration):
            while True:
                await self._next_event()
        completion = self.result
        reason = completion.finish_reason
        if reason == "time":
            raise TimeoutError(
                f"the text was not embedded within {self._params['max_time']:g} s (`max_time`)"
            )
        pool = self._begun.pool
        if reason != "stop" or pool is None or pool.vector is None:
            raise EngineClosedError("the engine was closed before the text was embedded")
        return Embedding(index, pool.vector, completion.usage, completion.timing)

    def leave(self) -> None:
        """Cancel what still runs."""
        self._leave()


async def embed_all(
    prompts: Sequence[EmbeddingPrompt],
    start: Callable[[EmbeddingPrompt], EmbeddingAnswer],
    *,
    at_once: int,
    progress: ProgressOption,
) -> list[Embedding]:
    """Embed texts together.

    Args:
        prompts: At least one.
        start: Makes a request that waits as its caller does.
        at_once: Most requests that are open at a time, at least 1.
        progress: How many have ended: a bar, nothing, or what is called.

    Returns:
        Their embeddings, in order.

    Raises:
        Exception: What the first raised that failed, noted with its place; the others are
            cancelled.
    """
    for place, prompt in enumerate(prompts):
        with noted(place):
            check_text(prompt)
    running: deque[tuple[int, EmbeddingAnswer]] = deque()
    found: list[Embedding] = []
    begun = 0
    try:
        with Progress(len(prompts), "embedding texts", unit="text", progress=progress) as bar:
            while len(found) < len(prompts):
                while begun < len(prompts) and len(running) < at_once:
                    answer = start(prompts[begun])
                    try:
                        with noted(begun):
                            await answer.begin()
                    except OverloadedError:
                        if not running:
                            raise
                        at_once = len(running)  # there is no room for more
                        break
                    running.append((begun, answer))
                    begun += 1
                place, answer = running[0]
                with noted(place):
                    found.append(await answer.read(place))
                running.popleft()
                bar.advance(1)
    finally:
        for _, answer in running:
            answer.leave()
    return found


async def embed_one(answer: EmbeddingAnswer) -> Embedding:
    """Embed one text; leaving it in any way cancels it."""
    try:
        return await answer.read()
    finally:
        answer.leave()
