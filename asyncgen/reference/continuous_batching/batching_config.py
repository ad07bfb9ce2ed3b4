"""Translate the documented options of the synchronous methods to options of the engine.

`ContinuousBatchingConfig` is the later spelling of these options. Its fields are those of the
reference, in its order and with its defaults. Each is served, or refused by name; those that only
choose between ways to compute the same are accepted.
"""

from __future__ import annotations

import copy
import functools
import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from asyncgen.engine.options import EngineOptions, SharedOptions, refuse_unknown
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler
from asyncgen.errors import InvalidRequestError
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.generation.config import CompileConfig, GenerationConfig
from asyncgen.generation.config.rules import Range, Rule, has, integer, must_be, require, switch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.engine.scheduling.scheduler import Scheduler

_log = logging.getLogger("asyncgen.engine")
_COUNT, _NATURAL = Range(1, whole=True), Range(0, whole=True)


def _graphs(value: object) -> str | None:
    is_known = value in ((False, False), (False, True), (True, True)) or isinstance(value, bool)
    allowed = "a bool, or a pair for prompts and decode steps; prompts alone are not recorded"
    return None if is_known else must_be(allowed)


def _compiles(value: object) -> str | None:
    return None if has("to_dict")(value) else must_be("a CompileConfig, or a dict of its fields")


def _scheduler(value: object) -> str | None:
    return None if value in ("fifo", "prefill_first") else must_be('"fifo" or "prefill_first"')


def _nothing(value: object) -> str | None:
    return None if value in (None, 0, False) else "there is no such thing here; leave it out"


_RULES: Mapping[str, Rule] = {
    "page_size": _COUNT,
    "num_blocks": _COUNT,
    "max_batch_tokens": _COUNT,
    "max_memory_percent": Range(0, 1, above=True),
    "max_requests_per_batch": _COUNT,
    "max_blocks_per_request": _NATURAL,
    "allow_block_sharing": switch,
    "use_async_batching": switch,
    "use_cuda_graph": _graphs,
    "q_padding_interval_size": _NATURAL,
    "kv_padding_interval_size": _NATURAL,
    "varlen_compile_config": _compiles,
    "decode_compile_config": _compiles,
    "default_compile_level": Range(0, 3, whole=True),
    "scheduler_type": _scheduler,
    "safety_margin": Range(0, 1),
    "return_logprobs": switch,
    "seed": integer,
    "auto_switch_to_flash": switch,
    "cpu_offload_space": _nothing,
    "cpu_offload_space_safety_threshold": Range(0, 1),
    "max_queue_size": _NATURAL,
    "per_request_processors": switch,
    "drop_unsupported_processors": switch,
    "disable_nccl_graph_mixing": switch,
    "cpu_group_timeout": Range(0),
    "use_default_compile_configs": switch,
    "max_cached_graphs": _NATURAL,
    "block_size": _COUNT,
}


@dataclass(slots=True)
class ContinuousBatchingConfig:
    """Sharing of steps and memory between requests.

    Attributes:
        page_size: Tokens of a page.
        num_blocks: Pages of the cache; ``None`` leaves it to the memory.
        max_batch_tokens: Most tokens of a step, decoded ones included.
        max_memory_percent: Share of the memory that is free beside the model for keys and values.
        max_requests_per_batch: Most samples that share a step; ``None`` is 64.
        max_blocks_per_request: Accepted: tables of pages grow with their texts.
        allow_block_sharing: Whether requests share the pages of equal beginnings.
        use_async_batching: Whether a step begins before the tokens of the last one are read.
        use_cuda_graph: Whether decode steps are recorded; of a pair the second says so. Steps
            with prompts never are.
        q_padding_interval_size: Rows between two recorded sizes; 0 for a choice of ours.
        kv_padding_interval_size: Positions between two recorded lengths; 0 likewise.
        varlen_compile_config: Accepted: steps run on kernels of our own, or on those of torch,
            and are not compiled. The log says so once.
        decode_compile_config: Likewise; decode steps are recorded instead, where they can be.
        default_compile_level: Likewise, from 0 to 3.
        scheduler_type: ``"fifo"`` or ``"prefill_first"``.
        safety_margin: Share of the pages that must be free for a new request to begin beside
            others; ``None`` is 0.2 with ``"fifo"`` and 0 with ``"prefill_first"``.
        return_logprobs: Whether results have ``logprobs``.
        seed: The i-th request that samples without a seed of its own draws with ``seed + i``.
        auto_switch_to_flash: Accepted: the kernel is chosen by what the device has.
        cpu_offload_space: Nothing is offloaded, so 0: a request that loses its pages is computed
            again, with the same tokens. ``None`` asks for as much as the next field allows.
        cpu_offload_space_safety_threshold: Share of the memory that limits it; 0 turns it off.
        max_queue_size: Most requests that wait; 0 for no limit.
        per_request_processors: Accepted: every request has its own.
        drop_unsupported_processors: Accepted: there are none.
        disable_nccl_graph_mixing: Accepted: one device computes.
        cpu_group_timeout: Likewise.
        use_default_compile_configs: As ``default_compile_level``.
        max_cached_graphs: Accepted: an older field, which the reference does not read any more.
        block_size: The older name of ``page_size``.
    """

    page_size: int = 256
    num_blocks: int | None = None
    max_batch_tokens: int | None = None
    max_memory_percent: float | None = None
    max_requests_per_batch: int | None = None
    max_blocks_per_request: int | None = None
    allow_block_sharing: bool = True
    use_async_batching: bool | None = None
    use_cuda_graph: bool | tuple[bool, bool] | None = None
    q_padding_interval_size: int = 0
    kv_padding_interval_size: int = 0
    varlen_compile_config: CompileConfig | None = None
    decode_compile_config: CompileConfig | None = None
    default_compile_level: int = 0
    scheduler_type: str = "fifo"
    safety_margin: float | None = None
    return_logprobs: bool = False
    seed: int | None = None
    auto_switch_to_flash: bool = True
    cpu_offload_space: float | None = 0.0
    cpu_offload_space_safety_threshold: float = 0.8
    max_queue_size: int = 0
    per_request_processors: bool = False
    drop_unsupported_processors: bool = True
    disable_nccl_graph_mixing: bool = True
    cpu_group_timeout: float | None = 300.0
    use_default_compile_configs: bool | None = None
    max_cached_graphs: int | None = None
    block_size: int | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: A value that is not allowed, or two page sizes.
        """
        for name in ("varlen_compile_config", "decode_compile_config"):
            if isinstance(value := getattr(self, name), dict):
                setattr(self, name, CompileConfig(**value))
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None or not (each.default is None or each.name in _OR_NONE):
                require(each.name, value, _RULES[each.name])
        if self.block_size is not None:
            if self.page_size not in (256, self.block_size):
                allowed = f"`page_size` is {self.page_size}; give one"
                raise InvalidRequestError("block_size", self.block_size, allowed)
            self.page_size = self.block_size
        if self.use_default_compile_configs is not None:
            self.default_compile_level = 3 if self.use_default_compile_configs else 0
        if self.cpu_offload_space is None and self.cpu_offload_space_safety_threshold:
            allowed = "nothing is offloaded here; leave it at 0"
            raise InvalidRequestError("cpu_offload_space", None, allowed)

    @property
    def compiles(self) -> bool:
        """True if a compilation is asked for."""
        return bool(
            self.varlen_compile_config or self.decode_compile_config or self.default_compile_level
        )


@dataclass(slots=True)
class WorkloadHints:
    """Sizes of the requests to come; 0 for what is not known.

    They choose defaults and limit nothing: other requests are served as well.

    Attributes:
        max_prompt_length: Tokens of the longest prompt.
        max_generated_length: Most tokens to generate.
        num_requests: Number of samples. So many share a step, up to 64, and pages are planned for
            so many.
    """

    max_prompt_length: int = 0
    max_generated_length: int = 0
    num_requests: int = 0

    def check(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: A value that is no count.
        """
        for each in fields(self):
            require(each.name, getattr(self, each.name), _NATURAL)


_OR_NONE = frozenset({"cpu_offload_space", "cpu_group_timeout"})
_MOST_ROWS = 64
"""Default of the samples that share a step."""


def engine_options(
    allow_block_sharing: bool,
    shared: SharedOptions,
    *,
    batching: ContinuousBatchingConfig | None = None,
    model: Any = None,
    manual_eviction: Any = False,
    hints: WorkloadHints | None = None,
    **documented: Any,
) -> EngineOptions:
    """Return engine options for the documented arguments of the synchronous methods.

    Args:
        allow_block_sharing: Whether requests share the pages of equal beginnings.
        shared: The method's ``**options``.
        batching: The later spelling of all of these.
        model: The loaded model, for ``batching``.
        manual_eviction: Whether finished requests keep their pages.
        hints: What is known of the requests to come.
        **documented: Fields of `EngineOptions` that are arguments of the method.

    Raises:
        InvalidRequestError: A value that is not allowed.
        TypeError: A keyword that is not known.
    """
    refuse_unknown(shared, SharedOptions.__annotations__)
    require("allow_block_sharing", allow_block_sharing, switch)
    chosen: dict[str, Any] = {**documented, **shared}
    if batching is not None:
        given = {**shared, **{name: value for name, value in documented.items() if value}}
        if not allow_block_sharing:
            given["allow_block_sharing"] = False
        # The configuration has no word for the type of the cache.
        cache_dtype = given.pop("kv_cache_dtype", "auto")
        chosen = {**_translated(batching, model, given, cache_dtype), "kv_cache_dtype": cache_dtype}
        allow_block_sharing = batching.allow_block_sharing
    if hints is not None:
        chosen["max_running"] = _hinted_rows(hints, chosen.get("max_running"), batching)
    return EngineOptions(
        prefix_caching=allow_block_sharing,
        page_sharing=allow_block_sharing,
        manual_eviction=manual_eviction,
        **chosen,
    )


def _translated(
    config: ContinuousBatchingConfig, model: Any, given: Mapping[str, Any], cache_dtype: str
) -> dict[str, Any]:
    """Return the arguments of `EngineOptions` for a configuration.

    Args:
        config: The configuration.
        model: The loaded model, whose pages are counted.
        given: Arguments given beside the configuration, which are refused.
        cache_dtype: Type of the numbers in pages.
    """
    if not isinstance(config, ContinuousBatchingConfig):
        allowed = "give a ContinuousBatchingConfig"
        raise InvalidRequestError("continuous_batching_config", config, allowed)
    for name, value in given.items():
        allowed = "`continuous_batching_config` says it already; give one of them"
        raise InvalidRequestError(name, value, allowed)
    if config.compiles:
        _tell_not_compiled()
    graphs = config.use_cuda_graph
    rows, chunk = _rows_and_chunk(config)
    positions = getattr(model.config, "max_position_embeddings", None) or 0
    found: dict[str, Any] = {
        "page_size": config.page_size,
        "max_running": rows,
        "scheduler": _scheduler_of(config.scheduler_type, config.safety_margin),
        "kv_cache_memory": _memory(config, model, is_packed=cache_dtype == "int8"),
        "use_cuda_graph": graphs[1] if isinstance(graphs, tuple) else graphs,
        "use_async_batching": config.use_async_batching,
        "num_q_padding_intervals": _intervals(rows, config.q_padding_interval_size),
        "num_kv_padding_intervals": _intervals(positions, config.kv_padding_interval_size),
    }
    return found if chunk is None else {**found, "prefill_chunk_size": chunk}


def take_batching(
    base: GenerationConfig | None, given: GenerationConfig | None, batching: Any
) -> tuple[GenerationConfig | None, Any]:
    """Find the configuration of the shared batch, which may lie in that of generation.

    Args:
        base: The model's configuration of generation.
        given: The one that was given in its place, if any.
        batching: The configuration of the shared batch that was given, if any.

    Returns:
        ``given``, without what lies in it, and the configuration of the shared batch. One that
        was given wins.
    """
    config = base if given is None else given
    inside = getattr(config, "continuous_batching_config", None)
    if inside is None:
        return given, batching
    config = copy.copy(config)
    assert config is not None
    config.continuous_batching_config = None
    return config, inside if batching is None else batching


def _hinted_rows(
    hints: WorkloadHints, chosen: int | None, batching: ContinuousBatchingConfig | None
) -> int:
    """Return the most samples of a step; what was chosen wins over hints."""
    if not isinstance(hints, WorkloadHints):
        raise InvalidRequestError("workload_hints", hints, "give WorkloadHints")
    hints.check()
    most = _MOST_ROWS if chosen is None else chosen
    is_chosen = chosen is not None if batching is None else batching.max_requests_per_batch
    return most if is_chosen or not hints.num_requests else min(hints.num_requests, most)


@functools.cache
def _scheduler_of(name: str, margin: float | None) -> str | type[Scheduler]:
    """Return a scheduler by name, with a safety margin if one was given."""
    if margin is None:
        return name
    kind = {"fifo": FIFOScheduler, "prefill_first": PrefillFirstScheduler}[name]
    changed = {"__init__": functools.partialmethod(kind.__init__, safety_margin=margin)}
    return type(kind.__name__, (kind,), changed)


@functools.cache
def _tell_not_compiled() -> None:
    """Say once that steps are not compiled."""
    _log.warning(
        "steps of the shared batch run on kernels and, on CUDA, as recordings; compile "
        "configurations change nothing here"
    )


def _rows_and_chunk(config: ContinuousBatchingConfig) -> tuple[int, int | None]:
    """Return the most samples of a step, and the most prompt tokens beside them."""
    rows, most = config.max_requests_per_batch, config.max_batch_tokens
    if most is None:
        return rows or _MOST_ROWS, None
    rows = min(_MOST_ROWS, most // 2) if rows is None else min(rows, most - 1)
    rows = max(rows, 1)
    return rows, max(most - rows, 1)


def _memory(config: ContinuousBatchingConfig, model: Any, *, is_packed: bool) -> int | None:
    """Return the bytes for keys and values; ``None`` for the default."""
    from asyncgen.cache.paged_storage import page_bytes
    from asyncgen.runtime.device_memory import device_memory

    limits = []
    if config.num_blocks is not None:
        if keeps_states(model.core.config):
            allowed = "layers of this model keep states, which share its memory; leave it out"
            raise InvalidRequestError("num_blocks", config.num_blocks, allowed)
        size = config.page_size
        page = page_bytes(model.core.config, size, model.dtype, is_packed=is_packed)
        limits.append(config.num_blocks * page)
    if config.max_memory_percent is not None:
        limits.append(int(device_memory(model.device)[0] * config.max_memory_percent))
    return min(limits, default=None)


def _intervals(most: int, size: int) -> int:
    """Return the number of intervals of a size up to the most."""
    return -(-most // size) if size else 0
