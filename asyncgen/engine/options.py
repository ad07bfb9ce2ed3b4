"""Hold and check the options of an engine.

`EngineOptions` is the one type of all entries to an engine. `SharedOptions` names the keywords of
`ContinuousBatchingManager` and `generate_batch` for editors and type checkers. Imports no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from asyncgen.errors import UnknownOptionError, did_you_mean
from asyncgen.generation.config.rules import Range, Rule, must_be, require, switch
from asyncgen.runtime.progress import progress_option

if TYPE_CHECKING:
    from asyncgen.engine.scheduling.scheduler import Scheduler


Function = TypeVar("Function", bound=Callable[..., Any])


class SharedOptions(TypedDict, total=False):
    """Options that every door takes; `EngineHandle` says what each does."""

    scheduler: str | type[Scheduler]
    max_running: int
    kv_cache_memory: int | float | None
    kv_cache_dtype: str
    page_size: int | None
    state_snapshots: int | None
    snapshot_pages: int | None
    use_cuda_graph: bool | None
    use_async_batching: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Checked options of an engine: its steps and its memory.

    Attributes:
        max_running: Most samples that share a step; the others queue.
        prefill_chunk_size: Most prompt tokens of one step; ``None`` for what suits the device.
        scheduler: Name or class of what picks the rows of a step.
        prefix_caching: Whether requests share the pages of equal beginnings; the samples of one
            request do so in any case.
        page_sharing: Whether anybody shares pages at all.
        manual_eviction: Whether samples that end are left their pages until they are evicted.
        kv_cache_memory: Bytes, or a fraction of the device's memory; ``None`` for the default.
        kv_cache_dtype: What keys and values are kept in: ``"auto"`` is the model's dtype.
        page_size: Tokens of a page; ``None`` for what suits the device.
        state_snapshots: States to set memory aside for, beside those of running samples; ``None``:
            as many as ``max_running``, where there is memory; 0: none is kept.
        snapshot_pages: A text's state is kept every so many pages; ``None`` for what suits the
            device.
        use_cuda_graph: Whether decode steps are recorded; ``None``: on CUDA, where they can be.
        num_q_padding_intervals: Numbers of rows that are recorded, evenly apart; 0 for a choice.
        num_kv_padding_intervals: Lengths that are recorded, likewise.
        use_async_batching: Whether a step begins before the tokens of the last one are read;
            ``None``: on CUDA.
    """

    max_running: int = 64
    prefill_chunk_size: int | None = None
    scheduler: str | type[Scheduler] = "fifo"
    prefix_caching: bool = True
    page_sharing: bool = True
    manual_eviction: bool = False
    kv_cache_memory: int | float | None = None
    kv_cache_dtype: str = "auto"
    page_size: int | None = None
    state_snapshots: int | None = None
    snapshot_pages: int | None = None
    use_cuda_graph: bool | None = None
    num_q_padding_intervals: int = 0
    num_kv_padding_intervals: int = 0
    use_async_batching: bool | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without a model.

        Raises:
            InvalidRequestError: A value that is not allowed.
        """
        for option in fields(self):
            rule, value = _RULES.get(option.name), getattr(self, option.name)
            is_optional = option.default is None or option.name in _OR_NONE
            if rule is None or value is None and is_optional:
                continue
            or_none = ", or None" if is_optional else ""
            require(option.name, value, rule, or_none)

    @property
    def packs_pages(self) -> bool:
        """True if keys and values are kept in 8 bits."""
        return self.kv_cache_dtype == "int8"


def _scheduler(value: object) -> str | None:
    is_known = value in ("fifo", "prefill_first") or isinstance(value, type)
    return None if is_known else must_be('"fifo", "prefill_first" or a subclass of Scheduler')


def _cache_dtype(value: object) -> str | None:
    return None if value in ("auto", "int8") else must_be('"auto" or "int8"')


def _memory(value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and value > 0 and (isinstance(value, int) or value <= 1):
        return None
    return must_be("a number of bytes (int) or a fraction above 0 and at most 1 (float)")


_COUNT, _NATURAL = Range(1, whole=True), Range(0, whole=True)
_RULES: dict[str, Rule] = {
    "max_running": _COUNT,
    "prefill_chunk_size": _COUNT,
    "scheduler": _scheduler,
    "prefix_caching": switch,
    "page_sharing": switch,
    "manual_eviction": switch,
    "kv_cache_memory": _memory,
    "kv_cache_dtype": _cache_dtype,
    "page_size": _COUNT,
    "state_snapshots": _NATURAL,
    "snapshot_pages": _COUNT,
    "use_cuda_graph": switch,
    "num_q_padding_intervals": _NATURAL,
    "num_kv_padding_intervals": _NATURAL,
    "use_async_batching": switch,
    "max_queue_size": _COUNT,
    "prepare_seconds": Range(0, above=True),
    "progress": progress_option,
    "num_threads": _COUNT,
}
_ELSEWHERE = {
    "block_size": "page_size",
    "enable_chunked_prefill": "prefill_chunk_size",
    "enable_prefix_caching": "prefix_caching",
    "gpu_memory_utilization": "kv_cache_memory",
    "max_num_batched_tokens": "prefill_chunk_size",
    "max_num_seqs": "max_running",
    "quantization": "quantize",
    "scheduling_policy": "scheduler",
    "torch_dtype": "dtype",
}
"""Names of options in other engines, and ours."""
_OR_NONE = frozenset({"prepare_seconds"})
"""Options that may be ``None`` though that is not their default."""


def refuse_unknown(given: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse keywords that are no options.

    Args:
        given: Keywords that a signature did not name.
        known: Names of the options.

    Raises:
        UnknownOptionError: Names the keyword, and the option that is meant.
    """
    for name, value in given.items():
        if name not in known:
            meant = _ELSEWHERE.get(name)
            hint = did_you_mean(name, known) if meant not in known else f"; did you mean `{meant}`?"
            raise UnknownOptionError(name, value, f"unknown option{hint}")


def spells_out(keywords: type, options: type[EngineOptions]) -> Callable[[Function], Function]:
    """Show keywords that a function takes as ``**options`` one by one in its signature.

    Type checkers read them from the annotation of ``**options``; this is for ``help``, notebooks
    and whoever asks `inspect`. A function that takes more than these calls them ``**kwargs``,
    which stays.

    Args:
        keywords: The TypedDict of these keywords.
        options: Where their defaults are.
    """
    defaults = {option.name: option.default for option in fields(options)}

    def decorate(function: Function) -> Function:
        own = [
            one for one in inspect.signature(function).parameters.values() if one.name != "options"
        ]
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=hint.__forward_arg__,
            )
            for name, hint in keywords.__annotations__.items()
        ]
        at = len(own) - sum(one.kind is one.VAR_KEYWORD for one in own)
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own[:at], *shown, *own[at:]]
        )
        return function

    return decorate
