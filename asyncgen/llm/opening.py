"""What the decode thread does first: load model and tokenizer, build the engine around them.

Torch is imported there as well, and not where an event loop may run: it takes seconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgen.engine.options import EngineOptions, SharedOptions
from asyncgen.errors import InvalidRequestError
from asyncgen.text.tool_calls.format_detection import (
    NO_FORMATS,
    ChatFormats,
    check_formats,
    find_formats,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.engine.core import Engine
    from asyncgen.engine.kv_cache.cache_groups import CacheRoom
    from asyncgen.engine.lane.assistants import Assistants
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.reference.load_model import PreTrainedModel
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.text.tokenizer import Tokenizer


class LLMOptions(SharedOptions, total=False):
    """The keywords of ``AsyncLLM``, for editors and type checkers; see `ModelSource`."""

    tokenizer: str | os.PathLike[str] | Any | None
    """A folder, a hub id or a tokenizer object; ``None`` takes the one beside the model. A model
    object needs one.
    """
    device: str | torch.device | None
    """Where to compute; ``None`` is the CPU, or CUDA where there is one."""
    dtype: str | torch.dtype | None
    """What to compute in; ``None`` or ``"auto"`` is what the checkpoint says."""
    quantize: Packing | None
    """``"int8"`` or ``"int4"`` packs weights while they are read: half, a quarter of the memory
    of bfloat16. ``None`` leaves them as the checkpoint has them.
    """
    num_threads: int | None
    """OpenMP threads that compute, until it is closed; ``None`` leaves torch's choice."""
    revision: str | None
    """Branch, tag or commit on the hub."""
    token: str | bool | None
    """Access token for the hub."""
    max_queue_size: int | None
    """Most requests that wait, at least 1. Beyond it a stream raises :class:`OverloadedError` when
    it starts, before any work; ``None`` for no limit.
    """
    prepare_seconds: float | None
    """How long it may take to make one request ready (to tokenize it, to render its chat template).
    Beyond it the request fails; what cannot be stopped is left alone, and from four such threads
    on, texts of more than 4,096 characters are refused by an :class:`OverloadedError`. ``None`` for
    no limit.
    """
    tool_format: str | None
    """How the model writes calls of tools: the name of a format, or ``"none"`` to leave them in the
    text; ``None`` finds it in the chat template.
    """
    reasoning_format: str | None
    """How it marks reasoning; likewise."""
    prefill_chunk_size: int | None
    """Most prompt tokens of one step, at least 1; ``None`` for 256, and 192 where running streams
    wait for it alone, on CUDA 2048. A running stream waits for one chunk of another's prompt, and
    where many come at once for some more.
    """
    progress: ProgressOption
    """How far long work is. ``None``: bars on the terminal, for downloads, loading and lists of
    prompts that take longer than a second; ``False``: nothing; or what is called on the thread that
    works with what is done, how much of it and how much in all: ``"downloading"`` and ``"loading
    weights"`` in bytes, ``"prefill"`` in tokens for a prompt of more than one chunk, ``"answering
    prompts"`` in prompts, ``"embedding texts"`` in texts. It must be quick.
    """
    prefix_caching: bool
    """Keep the keys and values of prompts and answers while there is space, so that a request that
    begins alike (the next turn of a chat) computes only what is new.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource(EngineOptions):
    """What to load and how; the arguments of ``AsyncLLM``.

    Attributes:
        source: ``"demo"``, a folder, a hub id, or a model object.
        tokenizer: A folder, a hub id or a tokenizer object; ``None`` takes the model's own.
        device: Where to compute.
        dtype: What to compute in; ``None`` or ``"auto"`` is what the checkpoint says.
        quantize: What weights are packed to while they are read; ``None`` leaves them as they are.
        num_threads: OpenMP threads of the decode thread; ``None`` leaves torch's choice.
        revision: Revision on the hub.
        token: Access token for the hub.
        max_queue_size: Most requests that wait; ``None`` for no limit.
        prepare_seconds: How long making one request ready may take; ``None`` for no limit.
        progress: How far long work is: bars, nothing, or what is called.
        tool_format: Name of the format of calls, or ``"none"``; ``None`` finds it.
        reasoning_format: Name of the format of reasoning, or ``"none"``; ``None`` finds it.
    """

    source: str | os.PathLike[str] | Any
    tokenizer: str | os.PathLike[str] | Any | None = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    quantize: Packing | None = None
    num_threads: int | None = None
    revision: str | None = None
    token: str | bool | None = None
    max_queue_size: int | None = None
    prepare_seconds: float | None = 10.0
    progress: ProgressOption = None
    tool_format: str | None = None
    reasoning_format: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before loading.

        Raises:
            InvalidRequestError: A value that is not allowed, or an argument that a model object
                cannot honour.
        """
        EngineOptions.__post_init__(self)
        if self.quantize not in (None, "int8", "int4"):
            raise InvalidRequestError("quantize", self.quantize, "use 'int8', 'int4' or None")
        check_formats(self.tool_format, self.reasoning_format)
        if isinstance(self.source, str | os.PathLike):
            return
        if self.tokenizer is None:
            raise InvalidRequestError(
                "tokenizer", None, "a model object comes without one; pass its tokenizer"
            )
        loaded = ["device", "dtype", "quantize", "revision"]
        if not isinstance(self.tokenizer, str | os.PathLike):
            loaded.append("token")
        for name in loaded:
            if getattr(self, name) is not None:
                raise InvalidRequestError(
                    name, getattr(self, name), "the model object is loaded already; leave it out"
                )


@dataclass(frozen=True, slots=True)
class Opened:
    """What the event loop side reads of a loaded engine.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        room: Memory for keys and values; ``None`` where a foreign model sees to its own.
        metrics: What the engine counts.
        fingerprint: Equal ones promise equal tokens; ``None`` where nothing is promised.
        formats: How the model writes calls and reasoning.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    room: CacheRoom | None
    metrics: EngineMetrics
    fingerprint: str | None = None
    formats: ChatFormats = NO_FORMATS


def open_engine(
    source: ModelSource, is_closing: Callable[[], bool], *, admission: Admission | None = None
) -> tuple[Engine, Opened]:
    """Load everything; runs on the decode thread.

    Args:
        source: What to load.
        is_closing: Whether the thread was asked to leave.
        admission: Counts who waits.

    Returns:
        The engine, and what the event loop side reads of it.

    Raises:
        ModelLoadError: The checkpoint or the tokenizer cannot be read.
        InvalidRequestError: An argument is not allowed.
    """
    from asyncgen.engine.setup.assembly import assemble, plan_room

    model, tokenizer = _load_model(source), _load_tokenizer(source)
    is_ours = hasattr(model, "core")
    if source.packs_pages and not is_ours:
        allowed = "a model object that is not ours keeps its own keys and values; use 'auto'"
        raise InvalidRequestError("kv_cache_dtype", source.kv_cache_dtype, allowed)
    room = plan_room(model, source) if is_ours else None
    engine = assemble(
        model,
        tokenizer,
        source,
        room,
        assistants=_assistants(model, source) if is_ours else None,
        is_closing=is_closing,
        admission=admission,
        progress=source.progress,
    )
    engine.warm()
    fingerprint = _fingerprint(model, tokenizer, source.kv_cache_dtype)
    formats = find_formats(
        getattr(tokenizer, "chat_template", None), source.tool_format, source.reasoning_format
    )
    return engine, Opened(model, tokenizer, room, engine.metrics, fingerprint, formats)


def _fingerprint(model: PreTrainedModel, tokenizer: Tokenizer, cache_dtype: str) -> str | None:
    from asyncgen.llm.fingerprint import fingerprint_of

    return fingerprint_of(model, tokenizer, cache_dtype)


def _load_model(source: ModelSource) -> PreTrainedModel:
    if not isinstance(source.source, str | os.PathLike):
        return source.source
    from asyncgen.reference.load_model import load_model

    model = load_model(
        source.source,
        device=source.device,
        dtype=source.dtype,
        quantize=source.quantize,
        revision=source.revision,
        token=source.token,
        progress=source.progress,
    )
    if model.generation_config.use_cache is False:
        # Files say so since they were trained without; a stream would run alone, and ever slower.
        model.generation_config.use_cache = True
    return model


def _load_tokenizer(source: ModelSource) -> Tokenizer:
    wanted: Any = source.tokenizer if source.tokenizer is not None else source.source
    if isinstance(wanted, str | os.PathLike):
        from asyncgen.reference.load_model import load_tokenizer

        # A revision belongs to the model's repository; a tokenizer from elsewhere has its own.
        revision = source.revision if source.tokenizer is None else None
        return load_tokenizer(
            wanted, revision=revision, token=source.token, progress=source.progress
        )
    return wanted


def _assistants(model: PreTrainedModel, source: ModelSource) -> Assistants:
    """Where draft models come from: they are loaded like the model itself."""
    from asyncgen.engine.lane.assistants import Assistants
    from asyncgen.reference.load_model import load_model, load_tokenizer

    common: dict[str, Any] = {"token": source.token, "progress": source.progress}
    return Assistants(
        partial(load_model, device=model.device, dtype=source.dtype, **common),
        partial(load_tokenizer, **common),
    )
