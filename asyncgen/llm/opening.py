"""Open an engine on the decode thread: load model and tokenizer, build the engine.

Torch is imported there as well, and not where an event loop may run: it takes seconds.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgen.checkpoints.hub import check_source
from asyncgen.engine.options import EngineOptions
from asyncgen.engine.requests.served_model import ServedModel
from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.cpu_threads import computing_threads
from asyncgen.runtime.wanted import require_wanted
from asyncgen.text.content_guard import check_special_tokens_in_content
from asyncgen.text.tool_calls.format_detection import check_formats, find_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.engine.core import Engine
    from asyncgen.engine.kv_cache.block_pool import CacheSize
    from asyncgen.engine.lane.assistants import Assistants
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.reference.load_model import PreTrainedModel
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.text.content_guard import SpecialTokensInContent
    from asyncgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource(EngineOptions):
    """Checked options of ``AsyncLLM`` and ``LLM``; `EngineHandle` says what each does."""

    source: str | os.PathLike[str] | Any
    tokenizer: str | os.PathLike[str] | Any | None = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    quantize: Packing | None = None
    num_threads: int | None = None
    revision: str | None = None
    token: str | bool | None = None
    follow_links: bool = False
    trust_template: bool = False
    special_tokens_in_content: SpecialTokensInContent = "allow"
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
        check_special_tokens_in_content(self.special_tokens_in_content)
        is_loaded = not isinstance(self.tokenizer, str | os.PathLike | None)
        of_tokenizer = {
            "trust_template": self.trust_template is not False,
            "special_tokens_in_content": self.special_tokens_in_content != "allow",
        }
        for name, is_given in of_tokenizer.items():
            if is_loaded and is_given:
                allowed = "the tokenizer object is loaded already; set its attribute of this name"
                raise InvalidRequestError(name, getattr(self, name), allowed)
        if isinstance(self.source, str | os.PathLike):
            return
        if self.tokenizer is None:
            raise InvalidRequestError(
                "tokenizer", None, "a model object comes without one; pass its tokenizer"
            )
        loaded = ["device", "dtype", "quantize", "revision"]
        if not isinstance(self.tokenizer, str | os.PathLike):
            loaded += ["token", "follow_links"]
        for name in loaded:
            if getattr(self, name) not in (None, False):
                raise InvalidRequestError(
                    name, getattr(self, name), "the model object is loaded already; leave it out"
                )


@dataclass(frozen=True, slots=True)
class Opened:
    """Part of a loaded engine that event loops read.

    Attributes:
        served: The model, its tokenizer, and the facts that requests need of them.
        metrics: Counts of the engine.
    """

    served: ServedModel
    metrics: EngineMetrics

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        model: PreTrainedModel = self.served.model
        return model

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        assert self.served.tokenizer is not None
        return self.served.tokenizer

    @property
    def room(self) -> CacheSize | None:
        """Memory for keys and values; ``None`` for a foreign model, which has its own."""
        return self.served.room

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the engine; ``None`` where nothing is promised."""
        return self.served.fingerprint


@contextmanager
def computing(source: ModelSource) -> Iterator[None]:
    """Compute on this thread as a source wants it; a model that is not there is refused at once.

    Raises:
        ModelLoadError: There is no such folder.
    """
    if isinstance(source.source, str | os.PathLike):
        check_source(source.source)  # before torch is imported, which takes seconds
    with computing_threads(source.num_threads):
        yield


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
        UnwantedError: The thread was asked to leave meanwhile.
    """
    from asyncgen.engine.setup.assembly import assemble, plan_room

    model = _load_model(source)
    require_wanted()
    tokenizer = _load_tokenizer(source)
    require_wanted()
    if getattr(tokenizer, "special_tokens_in_content", "allow") == "text":
        tokenizer.warm_guards()
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
    require_wanted()
    engine.warm()
    require_wanted()
    fingerprint = _fingerprint(model, tokenizer, source.kv_cache_dtype)
    formats = find_formats(
        getattr(tokenizer, "chat_template", None),
        source.tool_format,
        source.reasoning_format,
        getattr(tokenizer, "response_template", None),
    )
    served = ServedModel.of(model, tokenizer, room, fingerprint=fingerprint, formats=formats)
    return engine, Opened(served, engine.metrics)


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
        follow_links=source.follow_links,
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
            wanted,
            revision=revision,
            token=source.token,
            follow_links=source.follow_links,
            trust_template=source.trust_template,
            special_tokens_in_content=source.special_tokens_in_content,
            progress=source.progress,
        )
    from asyncgen.text.foreign_tokenizer import own_tokenizer

    return own_tokenizer(wanted)


def _assistants(model: PreTrainedModel, source: ModelSource) -> Assistants:
    """Make the loader of draft models, which are loaded like the model itself."""
    from asyncgen.engine.lane.assistants import Assistants
    from asyncgen.reference.load_model import load_model, load_tokenizer

    common: dict[str, Any] = {
        "token": source.token,
        "follow_links": source.follow_links,
        "progress": source.progress,
    }
    return Assistants(
        partial(load_model, device=model.device, dtype=source.dtype, **common),
        partial(load_tokenizer, **common),
    )
