"""Find the manager that a model keeps for its next session, or make one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from asyncgen.reference.continuous_batching.batching_config import engine_options, take_batching
from asyncgen.reference.continuous_batching.lifecycle import KEPT
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager, queue_size

if TYPE_CHECKING:
    from asyncgen.generation.config import GenerationConfig

_log = logging.getLogger("asyncgen.engine")


def manager_of(
    model: Any,
    generation_config: GenerationConfig | None,
    *,
    for_batch: bool = False,
    **options: Any,
) -> ContinuousBatchingManager:
    """Return the manager that a model keeps, if it has these options or none are given.

    Otherwise make one, and end the other unless it runs.

    Args:
        model: The model.
        generation_config: Defaults of the requests to come.
        for_batch: Whether the caller computes: a manager that runs, or limits its queue, does not
            serve.
        **options: The other parameters of a manager.

    Raises:
        InvalidRequestError: A value that is not allowed.
    """
    kept = getattr(model, KEPT, None)
    if not isinstance(kept, ContinuousBatchingManager):
        return ContinuousBatchingManager(model, generation_config, **options)
    given, batching = take_batching(
        model.generation_config, generation_config, options.get("continuous_batching_config")
    )
    is_other = for_batch and (kept.is_running() or kept.frontend.max_queue_size is not None)
    if not is_other and _serves(kept, batching, options):
        kept.frontend.begin_session(given, batching)
        return kept
    if not kept.is_running():
        _log.info("the manager that was kept has other options; it ends")
        kept.destroy()
    return ContinuousBatchingManager(model, generation_config, **options)


def _serves(kept: ContinuousBatchingManager, batching: Any, options: dict[str, Any]) -> bool:
    """Tell whether a manager has these options."""
    if not kept.is_usable:
        return False
    wanted = {**options, "continuous_batching_config": batching}
    tokenizer, hints = wanted.pop("tokenizer", None), wanted.pop("workload_hints", None)
    frontend = kept.frontend
    if tokenizer is not None and tokenizer is not frontend.tokenizer:
        return False
    if all(value == _DEFAULTS.get(name) for name, value in wanted.items()):
        return True
    most = wanted.pop("max_queue_size", 0)
    shared: Any = {name: wanted.pop(name) for name in list(wanted) if name not in _DEFAULTS}
    chosen = engine_options(
        wanted.pop("allow_block_sharing", True),
        shared,
        batching=wanted.pop("continuous_batching_config"),
        model=kept.model,
        hints=hints,
        **wanted,
    )
    return chosen == frontend.options and queue_size(most, batching) == frontend.max_queue_size


_DEFAULTS = {
    "manual_eviction": False,
    "max_queue_size": 0,
    "num_q_padding_intervals": 0,
    "num_kv_padding_intervals": 0,
    "allow_block_sharing": True,
    "continuous_batching_config": None,
}
"""Options of a manager that ask for nothing."""
