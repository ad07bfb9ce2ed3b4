"""The async face: ``AsyncLLM`` opens a model, ``TextStream`` is one answer on its way.

Runs on asyncio and trio. All computing happens on the decode thread (``asyncgen.engine.loop``);
here are only the two ends of a request: how it is posted, and how its events are read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from asyncgen.engine.loop import DecodeThread
from asyncgen.engine.options import refuse_unknown, spells_out
from asyncgen.engine.requests.admission import Admission
from asyncgen.engine.threads import computing_threads
from asyncgen.errors import EngineClosedError
from asyncgen.generation.config.checks import check_names
from asyncgen.opening import LLMOptions, ModelSource, Opened, open_engine
from asyncgen.preparing import PreparingThreads
from asyncgen.stream import TextStream
from asyncgen.types import Completion, check_prompt, length_of

if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Unpack

    from asyncgen.engine.metrics import MetricsSnapshot
    from asyncgen.engine.requests.stream_params import StreamParams
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.models.config import ModelConfig
    from asyncgen.tokenizer import Tokenizer
    from asyncgen.types import Prompt

__all__ = ["AsyncLLM", "Completion", "TextStream"]

_CLOSE_SECONDS = 60.0


class AsyncLLM:
    """A language model as a source of async text streams.

    Use it as an async context manager: the model is loaded when the block is entered, and nothing
    survives it. ``AsyncLLM`` may be used by many tasks and by several event loops at once.

    Example:
        ```python
        async with AsyncLLM("demo") as llm:
            async for text in llm.stream("Once upon a time"):
                print(text, end="", flush=True)
        ```
    """

    @spells_out(LLMOptions, ModelSource)
    def __init__(self, source: str | os.PathLike[str] | Any, **options: Unpack[LLMOptions]) -> None:
        """Describe what to open; nothing is loaded yet.

        Args:
            source: ``"demo"`` (the bundled model), a folder, a hub id, or a model object that is
                already loaded: ours, or any with a Hugging Face style ``generate``.
            tokenizer: A folder, a hub id or a tokenizer object; ``None`` takes the one beside the
                model. A model object needs one.
            device: Where to compute; ``None`` is the CPU, or CUDA where there is one.
            dtype: What to compute in; ``None`` or ``"auto"`` is what the checkpoint says.
            num_threads: OpenMP threads that compute, until it is closed; ``None`` leaves torch's
                choice.
            revision: Branch, tag or commit on the hub.
            token: Access token for the hub.
            max_running: Most samples that share a step, at least 1; further requests queue. As
                many more may take turns beside the batch.
            max_queue_size: Most requests that wait, at least 1. Beyond it a stream raises
                :class:`OverloadedError` when it starts, before any work; ``None`` for no limit.
            prepare_seconds: How long it may take to make one request ready (to tokenize it, to
                render its chat template). Beyond it the request fails; what cannot be stopped is
                left alone, and from four such threads on, texts of more than 4,096 characters
                are refused by an :class:`OverloadedError`. ``None`` for no limit.
            prefill_chunk_size: Most prompt tokens of one step, at least 1. A running stream waits
                for one chunk of another's prompt at most.
            scheduler: Who goes first: ``"fifo"`` (running streams before new prompts),
                ``"prefill_first"``, or a subclass of :class:`Scheduler`, made with the page pool.
            prefix_caching: Keep the keys and values of prompts and answers while there is space,
                so that a request that begins alike (the next turn of a chat) computes only what
                is new.
            kv_cache_memory: Memory for all keys and values: bytes (``int``), or a fraction of the
                device's memory (``float``). ``None``: on CUDA what 90 % of the device leaves beside
                the model, elsewhere a quarter of the memory that is available after loading, and
                never more than ``max_running`` full contexts take. On a CPU, copies of what running
                streams read may take an eighth beside it.
            page_size: Tokens that a page of that memory holds, at least 1; requests share whole
                pages. ``None`` is 32, or what the attention kernel needs on CUDA.
            use_cuda_graph: Whether steps that only decode are recorded once and then repeated, for
                a few numbers of streams; ``None``: on CUDA, where that is possible.
            use_async_batching: Whether a step begins before the tokens of the last one are read;
                ``None``: on CUDA. It changes no token; on a CPU it gains nothing.

        Raises:
            InvalidRequestError: A value that is not allowed, or an argument that a model object
                cannot honour.
        """
        refuse_unknown(options, LLMOptions)
        described = ModelSource(source=source, **options)
        self._admission = Admission(
            max_running=described.max_running, max_queue_size=described.max_queue_size
        )
        self._preparing = PreparingThreads(described.prepare_seconds)
        self._thread: DecodeThread[Opened] = DecodeThread(
            partial(open_engine, described, admission=self._admission),
            name="asyncgen-decode",
            within=partial(computing_threads, described.num_threads),
        )

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

        Open streams end with the finish reason ``"aborted"`` and keep what was generated.
        """
        self._thread.stop()
        self._preparing.close()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
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
        self._thread.require_open()
        check_prompt(prompt)
        check_names(params)
        return TextStream(self._thread, self._admission, self._preparing, prompt, params)

    async def generate(self, prompt: Prompt, **params: Unpack[StreamParams]) -> Completion:
        """Answer a prompt and return the whole result.

        Args:
            prompt: As in :meth:`stream`.
            **params: As in :meth:`stream`.

        Returns:
            Text, ids, counts and timings; several samples where asked for.

        Raises:
            AsyncgenError: As in :meth:`stream`.
        """
        async with self.stream(prompt, **params) as stream:
            async for _ in stream.events():
                pass
        return stream.result

    async def count_tokens(
        self, prompt: Prompt, *, chat_template_kwargs: dict[str, Any] | None = None
    ) -> int:
        """Count the tokens of a prompt, as a stream would: messages by way of the chat template.

        Args:
            prompt: As in :meth:`stream`.
            chat_template_kwargs: As in :meth:`stream`.

        Raises:
            InvalidRequestError: Something that is no prompt, variables that the template must not
                be given, or a text that takes too long.
            ContextLengthError: The text is so long that it cannot fit; it was not tokenized.
            ChatTemplateError: The chat template refuses the messages, or there is none.
            OverloadedError: Too many texts hang, and this one is long.
        """
        check_prompt(prompt)
        opened = self._opened
        count = partial(_count_tokens, opened, prompt, chat_template_kwargs)
        return await self._preparing.run(count, length=length_of(prompt))

    def metrics(self) -> MetricsSnapshot:
        """Return what the engine has counted since it was loaded; may be called from any thread.

        Raises:
            EngineClosedError: No model is loaded.
        """
        counted = self._opened.metrics.snapshot()
        return replace(counted, threads_abandoned=self._preparing.num_abandoned)

    @property
    def healthy(self) -> bool:
        """Whether the engine is loaded and takes requests."""
        return self._thread.is_alive and self._thread.loaded is not None

    @property
    def degraded(self) -> bool:
        """Whether so many threads hang over texts that take for ever that long ones are refused.

        Everything else is served as ever; only a new process gets rid of the threads.
        """
        return self._preparing.is_degraded

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; needs a loaded model."""
        return self._opened.tokenizer

    @property
    def config(self) -> ModelConfig:
        """The model's configuration; needs a loaded model."""
        return self._opened.model.config

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's own defaults; needs a loaded model."""
        return self._opened.model.generation_config

    @property
    def _opened(self) -> Opened:
        opened = self._thread.loaded
        if opened is None:
            raise EngineClosedError("no model is loaded; enter `async with` or await `start()`")
        return opened


def _count_tokens(opened: Opened, prompt: Prompt, variables: dict[str, Any] | None) -> int:
    """Runs on a worker thread. Imported late, because it brings torch."""
    from asyncgen.engine.requests.prepare import token_ids

    return len(token_ids(opened.model, opened.tokenizer, prompt, variables))
