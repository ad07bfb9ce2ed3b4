"""Hold an engine for an application: its options, its thread, and the facts that it tells."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asyncgen.checkpoints.hub import check_source
from asyncgen.engine.options import refuse_unknown
from asyncgen.engine.requests.admission import Admission
from asyncgen.engine.thread import DecodeThread
from asyncgen.errors import EngineClosedError
from asyncgen.llm.answer import EngineAccess
from asyncgen.llm.embedding import (
    EmbeddingAnswer,
    check_embed_params,
    check_text,
    embed_all,
    embed_one,
)
from asyncgen.llm.opening import ModelSource, Opened, computing, open_engine
from asyncgen.llm.preparing import PreparingThreads
from asyncgen.llm.together import is_prompts
from asyncgen.runtime.deprecation import renamed
from asyncgen.text.foreign_tokenizer import given_tokenizer
from asyncgen.types import check_prompt, length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Never, NoReturn

    import torch

    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.engine.metrics import MetricsSnapshot
    from asyncgen.engine.scheduling.scheduler import Scheduler
    from asyncgen.families.config import ModelConfig
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.llm.embedding import EmbeddingPrompt
    from asyncgen.llm.reader_wait import Waiting
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.text.content_guard import SpecialTokensInContent
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import Embedding, Prompt

CLOSE_SECONDS = 60.0

MOST_TEXTS = 32
"""Texts of one call that are embedded at a time: more are no faster, and streams wait for them."""


class EngineHandle:
    """Handle of an engine; `AsyncLLM` and `LLM` add how their callers wait for it."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Any,
        *,
        tokenizer: str | os.PathLike[str] | Any | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        quantize: Packing | None = None,
        num_threads: int | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        follow_links: bool = False,
        trust_template: bool = False,
        special_tokens_in_content: SpecialTokensInContent = "allow",
        max_running: int = 64,
        max_queue_size: int | None = None,
        prepare_seconds: float | None = 10.0,
        progress: ProgressOption = None,
        tool_format: str | None = None,
        reasoning_format: str | None = None,
        prefill_chunk_size: int | None = None,
        prefix_caching: bool = True,
        scheduler: str | type[Scheduler] = "fifo",
        kv_cache_memory: int | float | None = None,
        kv_cache_dtype: str = "auto",
        page_size: int | None = None,
        state_snapshots: int | None = None,
        snapshot_pages: int | None = None,
        use_cuda_graph: bool | None = None,
        use_async_batching: bool | None = None,
        **unknown: Never,
    ) -> None:
        """Describe what to open; nothing is loaded yet.

        Args:
            source: ``"demo"`` (the bundled model), a folder, a hub id, or a model object that is
                already loaded: ours, or any with a Hugging Face style ``generate``.
            tokenizer: A folder, a hub id or a tokenizer object; ``None`` takes the one beside the
                model. A model object needs one.
            device: Where to compute; ``None`` is the CPU, or CUDA where there is one.
            dtype: What to compute in; ``None`` or ``"auto"`` is what the checkpoint says.
            quantize: ``"int8"`` or ``"int4"`` packs weights while they are read: half, a quarter of
                the memory of bfloat16. ``None`` leaves them as the checkpoint has them.
            num_threads: OpenMP threads that compute, until it is closed; ``None`` leaves torch's
                choice.
            revision: Branch, tag or commit on the hub.
            token: Access token for the hub.
            follow_links: Read files outside of a folder to which links in it lead; they are refused
                otherwise, since whoever made the folder chose them.
            trust_template: The model's chat templates are one's own: they may call whatever jinja's
                sandbox allows, without limits. Those of others may call what a table of costs has.
            special_tokens_in_content: ``"text"`` keeps what messages say as text, also where it
                spells a control token, or refuses the message where the chat template cannot keep
                it so; with ``"allow"`` it becomes that token, as in the reference.
            max_running: Most samples that share a step, at least 1; further requests queue. As
                many more may take turns beside the batch.
            max_queue_size: Most requests that wait, at least 1. Beyond it a stream raises
                :class:`OverloadedError` when it starts, before any work; ``None`` for no limit.
            prepare_seconds: How long it may take to make one request ready (to tokenize it, to
                render its chat template). Beyond it the request fails; what cannot be stopped is
                left alone, and from four such threads on, texts of more than 4,096 characters
                are refused by an :class:`OverloadedError`. ``None`` for no limit.
            progress: How far long work is. ``None``: bars on the terminal, for downloads, loading
                and lists of prompts that take longer than a second; ``False``: nothing; or what is
                called on the thread that works with what is done, how much of it and how much in
                all: ``"downloading"`` and ``"loading weights"`` in bytes, ``"prefill"`` in tokens
                for a prompt of more than one chunk, ``"answering prompts"`` in prompts,
                ``"embedding texts"`` in texts. It must be quick.
            tool_format: How the model writes calls of tools: the name of a format, or ``"none"`` to
                leave them in the text; ``None`` finds it in the chat template.
            reasoning_format: How it marks reasoning; likewise.
            prefill_chunk_size: Most prompt tokens of one step, at least 1; ``None`` for 256, and
                192 where running streams wait for it alone, on CUDA 2048. A running stream waits
                for one chunk of another's prompt, and where many come at once for some more.
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
            kv_cache_dtype: What keys and values are kept in: ``"auto"`` is the model's dtype,
                ``"int8"`` packs them to integers of 8 bits with a scale a head and position: for
                heads of 64 to 53 % of bfloat16's memory. A number is then off by at most 1/254 of
                the largest of its head and position.
            page_size: Tokens that a page of that memory holds, at least 1; requests share whole
                pages, and one of them goes on from the last page of a text. ``None`` is 32, or
                what the attention kernel needs on CUDA.
            state_snapshots: Models whose layers keep states: how many of them the memory has room
                for beside two for each running sample, so that later requests go on from them; 0
                keeps none. ``None``: as many as ``max_running``, where the memory pays for them.
            snapshot_pages: Likewise: the state of a text is kept every so many pages, at least
                1, beside those at the end of the last page of prompt and answer. ``None``: every
                1,024 tokens, on CUDA 2,048.
            use_cuda_graph: Whether steps that only decode are recorded once and then repeated, for
                a few numbers of streams; ``None``: on CUDA, where that is possible.
            use_async_batching: Whether a step begins before the tokens of the last one are read;
                ``None``: on CUDA. It changes no token; on a CPU it gains nothing.

        Raises:
            InvalidRequestError: An unknown option, a value that is not allowed, or an option that
                a model object cannot honour.
        """
        options = {name: each for name, each in locals().items() if name not in ("self", "unknown")}
        refuse_unknown(unknown, options.keys() - {"source"})
        described = ModelSource(**options)
        self._source = source
        self._admission = Admission(
            max_running=described.max_running, max_queue_size=described.max_queue_size
        )
        self._max_running, self._progress = described.max_running, described.progress
        self._preparing = PreparingThreads(described.prepare_seconds)
        self._thread: DecodeThread[Opened] = DecodeThread(
            partial(open_engine, described, admission=self._admission),
            name="asyncgen-decode",
            within=partial(computing, described),
        )
        self._access = EngineAccess(self._thread, self._admission, self._preparing)

    async def _embed(
        self,
        prompt: EmbeddingPrompt | Sequence[EmbeddingPrompt],
        params: Mapping[str, Any],
        waiting: Waiting,
        progress: ProgressOption,
    ) -> Embedding | list[Embedding]:
        """Embed a text, or a list of texts."""
        self._thread.require_open()
        self._thread.require_answers()
        check_embed_params(params)

        def start(one: EmbeddingPrompt) -> EmbeddingAnswer:
            return EmbeddingAnswer(self._access, one, params, waiting)

        if is_prompts(cast("Prompt", prompt)):
            texts = cast("Sequence[EmbeddingPrompt]", prompt)
            return await embed_all(
                texts, start, at_once=min(2 * self._max_running, MOST_TEXTS), progress=progress
            )
        text = cast("EmbeddingPrompt", prompt)
        check_text(text)
        return await embed_one(start(text))

    async def _tokenize(
        self, prompt: Prompt, given: Mapping[str, Any], waiting: Waiting
    ) -> list[int]:
        ids: list[int] = await self._prepared(_token_ids, prompt, given, waiting)
        return ids

    async def _render(self, prompt: Prompt, given: Mapping[str, Any], waiting: Waiting) -> str:
        text: str = await self._prepared(_rendered, prompt, given, waiting)
        return text

    async def _prepared(
        self,
        read: Callable[[Opened, Prompt, Mapping[str, Any]], Any],
        prompt: Prompt,
        given: Mapping[str, Any],
        waiting: Waiting,
    ) -> Any:
        """Return what a function makes of a prompt, among the prompts of streams."""
        self._thread.require_own_process()
        check_prompt(prompt)
        return await waiting.prepared(
            self._preparing,
            partial(read, self._opened, prompt, given),
            length=length_of(prompt),
            limited=True,
            client=None,
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, as the thread and its memory cannot be.

        Raises:
            TypeError: Always.
        """
        name = type(self).__name__
        raise TypeError(
            f"an engine cannot be copied or pickled; open another one from the same source, as in"
            f" {name}({_named(self._source)}), in the process that asks it"
        )

    def __repr__(self) -> str:
        """Name the source and the state; never a token of the hub."""
        named = _named(self._source)
        state = "closed" if self._thread.is_stopping else "not loaded"
        state = "loaded" if self.is_healthy else state
        return f"<{type(self).__name__} {named}: {state}>"

    @staticmethod
    def check_source(source: str | os.PathLike[str]) -> None:
        """Refuse at once a model that is not there; opening does so too, as its first step.

        It imports no torch and asks no hub: whether a repository is there, opening shows.

        Args:
            source: As of the engine: ``"demo"``, a folder, a file, or the id of a repository.

        Raises:
            ModelLoadError: It is none of these.
        """
        check_source(source)

    def metrics(self) -> MetricsSnapshot:
        """Return what the engine has counted since it was loaded; may be called from any thread.

        Raises:
            EngineClosedError: No model is loaded.
        """
        counted = self._opened.metrics.snapshot()
        return replace(counted, threads_abandoned=self._preparing.num_abandoned)

    @property
    def is_healthy(self) -> bool:
        """True if the engine is loaded and takes requests."""
        return self._thread.is_alive and self._thread.loaded is not None

    @property
    def is_degraded(self) -> bool:
        """True if long texts are refused, because too many threads hang in tokenizing.

        Everything else is served as ever; only a new process gets rid of the threads.
        """
        return self._preparing.is_degraded

    healthy = renamed("healthy", "is_healthy")
    degraded = renamed("degraded", "is_degraded")

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the engine, 32 hexadecimal digits; needs a loaded model.

        Engines of equal fingerprints give the same request (its seed included) the same tokens,
        also from its middle on, behind ``generated_ids``. ``None`` where that cannot be promised:
        with torch's kernels, on CUDA, and for a foreign model object. It is that of the weights
        with which the engine opened; once they were written to, `Usage` has none.
        """
        return self._opened.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; needs a loaded model."""
        own: Tokenizer = given_tokenizer(self._opened.tokenizer)
        return own

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
            raise EngineClosedError(
                "no model is loaded; enter the `with` or `async with` block, or call `start()`"
            )
        return opened


def _token_ids(opened: Opened, prompt: Prompt, given: Mapping[str, Any]) -> list[int]:
    """Runs on a worker thread. Imported late, because it brings torch."""
    from asyncgen.engine.requests.prepare import read_prompt

    return read_prompt(opened.served, prompt, given)[0]


def _rendered(opened: Opened, prompt: Prompt, given: Mapping[str, Any]) -> str:
    """Runs on a worker thread. Imported late, because it brings torch."""
    from asyncgen.engine.requests.prepare import render_prompt

    return render_prompt(opened.served, prompt, given)


def _named(source: object) -> str:
    return repr(source) if isinstance(source, str | os.PathLike) else type(source).__name__
