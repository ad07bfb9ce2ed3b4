"""Serve streams of text: ``AsyncLLM`` for event loops, ``LLM`` for code without one.

All computing happens on the decode thread (``asyncgen.engine.thread``); here are only the two ends
of a request: how it is posted, and how its events are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast, overload

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.checks import check_names
from asyncgen.llm.engine_handle import CLOSE_SECONDS, EngineHandle
from asyncgen.llm.reader_wait import InLoop, InThread, run_blocking
from asyncgen.llm.stream import SyncTextStream, TextStream
from asyncgen.llm.streamer_sink import feeding
from asyncgen.llm.together import answer_all, is_prompts
from asyncgen.types import Completion, check_prompt
from streamers import LoopBell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Unpack

    from asyncgen.engine.metrics import MetricsSnapshot
    from asyncgen.engine.requests.stream_params import PromptParams, StreamParams
    from asyncgen.generation.generate.streamer_feed import Streamer
    from asyncgen.llm.embedding import EmbeddingPrompt, EmbedParams
    from asyncgen.types import Embedding, Message, Prompt

__all__ = ["LLM", "AsyncLLM", "Completion", "SyncTextStream", "TextStream"]


class AsyncLLM(EngineHandle):
    """A language model as a source of async text streams.

    Use it as an async context manager: the model is loaded when the block is entered, and nothing
    survives it. ``AsyncLLM`` may be used by many tasks and by several event loops at once, on
    asyncio and trio.

    Example:
        ```python
        async with AsyncLLM("demo") as llm:
            async for text in llm.stream("Once upon a time"):
                print(text, end="", flush=True)
        ```
    """

    async def __aenter__(self) -> Self:
        """Load the model."""
        try:
            await self.start()
        except BaseException:
            self._thread.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.aclose()

    async def start(self) -> None:
        """Load the model now; otherwise the first stream does. A second call only waits.

        Raises:
            ModelLoadError: The checkpoint or the tokenizer cannot be read.
            EngineClosedError: It was closed, or belongs to another process.
        """
        self._thread.start()
        await self._thread.wait_ready()

    async def aclose(self) -> None:
        """Cancel what runs and end the decode thread; idempotent.

        Open streams end with the finish reason ``"aborted"`` and keep what was generated. Code on
        the decode thread, such as a processor, may call it: the thread ends behind its step.
        """
        self._thread.stop()
        self._preparing.close()
        with LoopBell.current().limit(CLOSE_SECONDS, shield=True):
            await self._thread.wait_finished()

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> TextStream:
        """Answer a prompt as a stream of text. Nothing runs before the first read.

        Args:
            prompt: A text, a list of chat messages, or a list of token ids.
            **params: See :class:`~asyncgen.StreamParams`; ``None`` means not given.

        Returns:
            The stream. Iterate over it, or over its ``events()``; leaving the loop cancels it.

        Raises:
            InvalidRequestError: An unknown parameter, or something that is no prompt. Values are
                checked when the stream starts.
            EngineClosedError: It was closed, or belongs to another process.
            EngineDiedError: The decode thread died.
        """
        check_request(self, prompt, params)
        return TextStream(self._access, prompt, params, InLoop())

    async def generate(
        self, prompt: Prompt, *, streamer: Streamer | None = None, **params: Unpack[StreamParams]
    ) -> Completion:
        """Answer a prompt and return the whole result.

        Args:
            prompt: As in :meth:`stream`.
            streamer: Gets the token ids from the decode thread, as from ``model.generate``: any
                object with `put` and `end`. Its `fail`, if it has one, is told of an error; if its
                readers leave (`cancelled`), the request ends.
            **params: As in :meth:`stream`.

        Returns:
            Text, ids, counts and timings; several samples where asked for.

        Raises:
            AsyncgenError: As in :meth:`stream`.
            Exception: The streamer raised it.
        """
        with feeding(streamer) as connect:
            async with connect(self.stream(prompt, **params)) as stream:
                async for _ in stream.events():
                    pass
        return stream.result

    async def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt, as a stream would: messages by way of the chat template.

        Args:
            prompt: As in :meth:`stream`.
            **params: As in :meth:`stream`: what is said to the chat template.

        Raises:
            InvalidRequestError: Something that is no prompt, variables that the template must not
                be given, or a text that takes too long.
            ContextLengthError: The text is so long that it cannot fit; it was not tokenized.
            ChatTemplateError: The chat template refuses the messages, or there is none.
            OverloadedError: Too many texts hang, and this one is long.
        """
        return len(await self._tokenize(prompt, params, InLoop()))

    async def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Tell the token ids of a prompt, as a stream would have them; see :meth:`count_tokens`."""
        return await self._tokenize(prompt, params, InLoop())

    async def apply_chat_template(
        self, messages: Sequence[Message], **params: Unpack[PromptParams]
    ) -> str:
        """Return the prompt that a stream makes of messages, as one text.

        Args:
            messages: As in :meth:`stream`.
            **params: As in :meth:`count_tokens`.

        Raises:
            InvalidRequestError: Something else than messages, or messages with a control token that
                stays text (`special_tokens_in_content`), as one text could not tell it from the
                template's own.
            AsyncgenError: As in :meth:`count_tokens`.
        """
        return await self._render(messages, params, InLoop())

    @overload
    async def embed(  # type: ignore[overload-overlap]  # a text is no list of texts
        self, prompt: EmbeddingPrompt, **params: Unpack[EmbedParams]
    ) -> Embedding: ...

    @overload
    async def embed(
        self, prompt: Sequence[EmbeddingPrompt], **params: Unpack[EmbedParams]
    ) -> list[Embedding]: ...

    async def embed(
        self, prompt: EmbeddingPrompt | Sequence[EmbeddingPrompt], **params: Unpack[EmbedParams]
    ) -> Embedding | list[Embedding]:
        """Turn a text, or a list of texts, into vectors, in the steps that streams share.

        A vector is made of the hidden states after the model's final norm. Any decoder has them;
        how good they are at telling texts apart is a matter of what it was trained for.

        Args:
            prompt: A text or a list of token ids; or a list of such.
            **params: See :class:`~asyncgen.EmbedParams`; ``None`` means not given.

        Returns:
            An embedding; for a list a list of these, in its order.

        Raises:
            InvalidRequestError: A parameter or a text that cannot be served, or a model without
                embeddings: one that has an encoder, or is not of this library.
            ContextLengthError: A text does not fit the context, or the memory of the engine.
            OverloadedError: The queue is full, or too many texts hang.
            InvalidScoresError: The hidden states hold NaN or infinities.
            TimeoutError: ``max_time`` is over.
            AsyncgenError: As in :meth:`stream`. If one of a list fails, the others are cancelled;
                a note on the error says which it was.
        """
        return await self._embed(prompt, params, InLoop(), progress=False)

    async def measure(self) -> MetricsSnapshot:
        """Return what :meth:`metrics` does, for code that may get an engine of another process.

        Raises:
            EngineClosedError: No model is loaded.
        """
        return self.metrics()


class LLM(EngineHandle):
    """A language model as a source of text streams, for code without an event loop.

    The engine, the parameters and the errors are those of :class:`AsyncLLM`; what waits blocks its
    thread. It may be used by many threads at once, whose requests share the steps of the model. An
    event loop that runs in the same thread, as in a notebook, is not touched, but waits as well.

    Example:
        ```python
        with LLM("demo") as llm:
            for text in llm.stream("Once upon a time"):
                print(text, end="", flush=True)
        ```
    """

    def __enter__(self) -> Self:
        """Load the model."""
        try:
            self.start()
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def start(self) -> None:
        """Load the model now; otherwise the first stream does. A second call only waits.

        Raises:
            ModelLoadError: The checkpoint or the tokenizer cannot be read.
            EngineClosedError: It was closed, or belongs to another process.
        """
        self._thread.start()
        self._thread.wait_ready_in_thread()

    def close(self) -> None:
        """Cancel what runs and end the decode thread; idempotent.

        Open streams end with the finish reason ``"aborted"`` and keep what was generated. Code on
        the decode thread, such as a processor, may call it: the thread ends behind its step.
        """
        self._thread.stop()
        self._preparing.close()
        self._thread.join(CLOSE_SECONDS)

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> SyncTextStream:
        """Answer a prompt as a stream of text. Nothing runs before the first read.

        Args:
            prompt: A text, a list of chat messages, or a list of token ids.
            **params: See :class:`~asyncgen.StreamParams`; ``None`` means not given.

        Returns:
            The stream. Iterate over it, or over its ``events()``; leaving the loop cancels it.

        Raises:
            InvalidRequestError: An unknown parameter, or something that is no prompt. Values are
                checked when the stream starts.
            EngineClosedError: It was closed, or belongs to another process.
            EngineDiedError: The decode thread died.
        """
        return self._stream(prompt, params, InThread())

    def _stream(self, prompt: Prompt, params: StreamParams, waiting: InThread) -> SyncTextStream:
        check_request(self, prompt, params)
        return SyncTextStream(self._access, prompt, params, waiting)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is no list of texts
        self, prompt: Prompt, *, streamer: Streamer | None = None, **params: Unpack[StreamParams]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Sequence[Prompt], **params: Unpack[StreamParams]
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        streamer: Streamer | None = None,
        **params: Unpack[StreamParams],
    ) -> Completion | list[Completion]:
        """Answer a prompt, or a list of prompts together, and return the whole result.

        Args:
            prompt: As in :meth:`stream`; or a list of such, which share the steps of the model.
            streamer: As in :meth:`AsyncLLM.generate`; for a single prompt.
            **params: As in :meth:`stream`, for each of the prompts.

        Returns:
            Text, ids, counts and timings; several samples where asked for. For a list of prompts
            a list of these, in its order; where that takes a while, a bar on the terminal counts
            them.

        Raises:
            AsyncgenError: As in :meth:`stream`. If one of a list fails, the others are cancelled;
                a note on the error says which it was.
        """

        def start(one: Prompt, waiting: InThread) -> SyncTextStream:
            return self._stream(one, params, waiting)

        with feeding(streamer) as connect:
            if is_prompts(prompt):
                if streamer is not None:
                    allowed = (
                        "takes one prompt; call `generate` for each with a streamer of its own"
                    )
                    raise InvalidRequestError("streamer", type(streamer).__name__, allowed)
                most = 2 * self._max_running
                return answer_all(prompt, start, at_once=most, progress=self._progress)
            with connect(start(cast("Prompt", prompt), InThread())) as stream:
                for _ in stream.events():
                    pass
        return stream.result

    def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt, as a stream would; as :meth:`AsyncLLM.count_tokens`."""
        return len(run_blocking(lambda: self._tokenize(prompt, params, InThread())))

    def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Tell the token ids of a prompt; as :meth:`AsyncLLM.tokenize`."""
        return run_blocking(lambda: self._tokenize(prompt, params, InThread()))

    def apply_chat_template(
        self, messages: Sequence[Message], **params: Unpack[PromptParams]
    ) -> str:
        """Return messages as one text; as :meth:`AsyncLLM.apply_chat_template`."""
        return run_blocking(lambda: self._render(messages, params, InThread()))

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, prompt: EmbeddingPrompt, **params: Unpack[EmbedParams]
    ) -> Embedding: ...

    @overload
    def embed(
        self, prompt: Sequence[EmbeddingPrompt], **params: Unpack[EmbedParams]
    ) -> list[Embedding]: ...

    def embed(
        self, prompt: EmbeddingPrompt | Sequence[EmbeddingPrompt], **params: Unpack[EmbedParams]
    ) -> Embedding | list[Embedding]:
        """Turn a text, or a list of texts, into vectors; as :meth:`AsyncLLM.embed`.

        Where a list takes a while, a bar on the terminal counts its texts.
        """
        progress = self._progress
        return run_blocking(lambda: self._embed(prompt, params, InThread(), progress=progress))


def check_request(engine: EngineHandle, prompt: Prompt, params: StreamParams) -> None:
    """Refuse a request whose form is wrong, before its stream exists.

    Args:
        engine: Must be open.
        prompt: Of the request.
        params: Keywords of the request; their names are checked here, their values later.

    Raises:
        InvalidRequestError: An unknown parameter, or something that is no prompt.
        EngineClosedError: The engine was closed, or belongs to another process.
        EngineDiedError: The decode thread died.
        EngineReentryError: Code that the engine is computing with asks it.
    """
    engine._thread.require_open()
    engine._thread.require_answers()
    check_prompt(prompt)
    check_names(params)
