"""Give a model ``generate_batch``, and managers for requests that come and go.

``generate_batch`` drives the engine of ``AsyncLLM`` on the calling thread, so that only one thread
computes.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.engine.options import EngineOptions, SharedOptions, spells_out
from asyncgen.engine.requests.stream_params import RequestKeywords
from asyncgen.generation.config.rules import require, switch
from asyncgen.reference.continuous_batching.batching_config import (
    ContinuousBatchingConfig,
    take_batching,
)
from asyncgen.reference.continuous_batching.frontend import check_inputs, names_of
from asyncgen.reference.continuous_batching.lifecycle import KEPT
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.continuous_batching.positions import takes_newer_positions
from asyncgen.reference.continuous_batching.sessions import manager_of
from asyncgen.runtime.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.scheduling.state import GenerationOutput
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.reference.continuous_batching.batching_config import WorkloadHints
    from asyncgen.reference.continuous_batching.frontend import Frontend
    from asyncgen.text.tokenizer import Tokenizer


_log = logging.getLogger("asyncgen.engine")
_SHARED = frozenset(SharedOptions.__annotations__)


class BatchParams(SharedOptions, RequestKeywords, total=False):
    """Keywords of ``generate_batch``: options of the engine, and parameters of all requests."""


class ContinuousMixin:
    """Methods ``generate_batch`` and ``init_continuous_batching`` of a model."""

    generation_config: GenerationConfig

    @takes_newer_positions(
        3,
        "continuous_batching_config",
        "record_timestamps",
        "progress_bar",
        "persistent_manager",
        "warmup",
        progress_bar=False,
    )
    @spells_out(SharedOptions, EngineOptions)
    def generate_batch(  # type: ignore[misc]  # one keyword is a parameter of requests as well
        self,
        inputs: list[list[int]],
        generation_config: GenerationConfig | None = None,
        num_q_padding_intervals: int | ContinuousBatchingConfig | None = 0,
        num_kv_padding_intervals: int = 0,
        allow_block_sharing: bool = True,
        record_timestamps: bool = False,
        progress_bar: bool = True,
        *,
        tokenizer: Tokenizer | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        persistent_manager: bool = False,
        warmup: bool = True,
        **kwargs: Unpack[BatchParams],
    ) -> dict[str, GenerationOutput]:
        """Continue many prompts of any lengths at once, on this thread.

        Args:
            inputs: The prompts, token ids; not padded.
            generation_config: Defaults of requests; ``None`` for the model's own.
            num_q_padding_intervals: Into how many the numbers of rows up to ``max_running`` are
                divided for CUDA graphs: a decode step is padded to the next. 0 is a choice of
                ours: 1, 2, 4, 8 and so on. Elsewhere nothing is padded. With a configuration of
                the shared batch or ``None`` in this position, the order is that of newer
                references: ``continuous_batching_config``, ``record_timestamps``,
                ``progress_bar``, ``persistent_manager``, ``warmup``.
            num_kv_padding_intervals: The same for the lengths up to the end of the context; 0 is
                1024, 2048 and so on.
            allow_block_sharing: Whether requests share the pages of equal beginnings.
            record_timestamps: Whether results say when each token came.
            progress_bar: Whether a bar may be shown, from the second second on. In the newer order,
                or with ``continuous_batching_config``, the default is no.
            tokenizer: For parameters that look at text.
            continuous_batching_config: The later spelling of the options, in place of them.
            persistent_manager: Whether to keep the engine, its memory and its pages for the next
                call, until ``destroy_cached_continuous_batching_manager``. A call with other
                options ends it.
            warmup: Whether decode steps of an engine that is kept are recorded before the first
                one (CUDA). An engine for one call records sizes as they come up.
            **kwargs: Options of the engine, as in :class:`ContinuousBatchingManager`; and
                parameters of all requests, as in :meth:`ContinuousBatchingManager.add_request`.
                With a ``seed`` the i-th prompt draws with ``seed + i``.

        Returns:
            Results by name, ``"req_0"`` for the first prompt and so on, in the order of the
            prompts. A request that raised has the status ``FAILED`` and an ``error``; the others
            are not touched.

        Raises:
            AsyncgenError: A request cannot be served; raised before any work.
        """
        for name, value in (("progress_bar", progress_bar), ("warmup", warmup)):
            require(name, value, switch)
        require("persistent_manager", persistent_manager, switch)
        check_inputs(inputs)
        generation_config, batching = take_batching(
            self.generation_config, generation_config, continuous_batching_config
        )
        if isinstance(batching, ContinuousBatchingConfig):
            batching = replace(batching, max_queue_size=0)  # a batch comes as a whole
        given: dict[str, Any] = {**kwargs}
        shared: Any = {name: given.pop(name) for name in _SHARED & given.keys()}
        manager = manager_of(
            self,
            generation_config,
            tokenizer=tokenizer,
            continuous_batching_config=batching,
            num_q_padding_intervals=num_q_padding_intervals,
            num_kv_padding_intervals=num_kv_padding_intervals,
            allow_block_sharing=allow_block_sharing,
            for_batch=True,
            **shared,
        )
        frontend = manager.frontend
        requests: list[Request] = []
        try:
            for number, input_ids in enumerate(inputs):
                params = _with_seed(given, number)
                requests.append(
                    frontend.prepare(
                        f"inputs[{number}]",
                        input_ids,
                        manager.name_of(number),
                        params,
                        streaming=False,
                        record_timestamps=record_timestamps,
                    )
                )
        except BaseException:
            frontend.withdraw(requests)
            raise
        if not requests:
            return {}
        if persistent_manager and warmup:
            manager.warmup()
        manager.keep(persistent_manager)
        try:
            outputs = _run(frontend, requests, progress_bar)
        except BaseException:
            manager.destroy()
            raise
        if not persistent_manager:
            frontend.close_engine()
        failed = [name for name, output in outputs.items() if output.error is not None]
        if failed:
            _log.warning("%d requests failed, %s first: see `error`", len(failed), failed[0])
        return outputs

    @takes_newer_positions(2, "continuous_batching_config", "workload_hints")
    @spells_out(SharedOptions, EngineOptions)
    def init_continuous_batching(
        self,
        generation_config: GenerationConfig | None = None,
        manual_eviction: bool | ContinuousBatchingConfig | None = False,
        max_queue_size: int | WorkloadHints | None = 0,
        num_q_padding_intervals: int = 0,
        num_kv_padding_intervals: int = 0,
        allow_block_sharing: bool = True,
        *,
        tokenizer: Tokenizer | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: WorkloadHints | None = None,
        **options: Unpack[SharedOptions],
    ) -> ContinuousBatchingManager:
        """Make a manager, which is to be started; see :class:`ContinuousBatchingManager`.

        A manager that was kept for its next session is returned instead, with its memory, if it
        has these options or none are given.

        Args:
            generation_config: Defaults of requests; ``None`` for the model's own.
            manual_eviction: Whether finished requests keep their pages. In this position and the
                next, ``continuous_batching_config`` and ``workload_hints`` may stand instead.
            max_queue_size: Most requests that wait; 0 for no limit.
            num_q_padding_intervals: Into how many the numbers of rows up to ``max_running`` are
                divided for CUDA graphs: a decode step is padded to the next. 0 is a choice of
                ours: 1, 2, 4, 8 and so on. Elsewhere nothing is padded.
            num_kv_padding_intervals: The same for the lengths up to the end of the context; 0 is
                1024, 2048 and so on.
            allow_block_sharing: Whether requests share the pages of equal beginnings.
            tokenizer: For parameters that look at text.
            continuous_batching_config: The later spelling of these options, in place of them.
            workload_hints: What is known of the requests to come.
            **options: As in :class:`ContinuousBatchingManager`.

        Raises:
            InvalidRequestError: A value that is not allowed.
        """
        return manager_of(
            self,
            generation_config,
            manual_eviction=manual_eviction,
            max_queue_size=max_queue_size,
            num_q_padding_intervals=num_q_padding_intervals,
            num_kv_padding_intervals=num_kv_padding_intervals,
            allow_block_sharing=allow_block_sharing,
            tokenizer=tokenizer,
            continuous_batching_config=continuous_batching_config,
            workload_hints=workload_hints,
            **options,
        )

    def destroy_cached_continuous_batching_manager(self) -> None:
        """End the manager that is kept for its next session; fine if there is none."""
        manager = getattr(self, KEPT, None)
        if isinstance(manager, ContinuousBatchingManager):
            manager.destroy()

    @contextmanager
    def continuous_batching_context_manager(
        self,
        generation_config: GenerationConfig | None = None,
        block: bool = True,
        timeout: float | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        persistent_manager: bool = False,
        warmup: bool = True,
        workload_hints: WorkloadHints | None = None,
        **options: Any,
    ) -> Iterator[ContinuousBatchingManager]:
        """Start a manager, and stop it when the block is left.

        Args:
            generation_config: Defaults of requests; ``None`` for the model's own.
            block: Whether to wait for the thread to end.
            timeout: Most seconds to wait for it.
            continuous_batching_config: The later spelling of the options, in place of them.
            persistent_manager: Whether to keep the manager for the next session, with its memory.
            warmup: Whether decode steps are recorded before the first request (CUDA).
            workload_hints: What is known of the requests to come.
            **options: As in :meth:`init_continuous_batching`.

        Yields:
            The manager. Leaving the block with an exception cuts its requests off.
        """
        for name, value in (("persistent_manager", persistent_manager), ("warmup", warmup)):
            require(name, value, switch)
        manager = self.init_continuous_batching(
            generation_config,
            continuous_batching_config=continuous_batching_config,
            workload_hints=workload_hints,
            **options,
        )
        manager.start(warmup=warmup)
        try:
            yield manager
        except BaseException:
            manager.stop(block, timeout, persistent_manager, hard_stop=True)
            raise
        manager.stop(block, timeout, persistent_manager)


def _with_seed(params: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the parameters of one of many requests, so that equal prompts draw differently."""
    seed = params.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        return dict(params)
    return {**params, "seed": seed + number}


def _run(
    frontend: Frontend, requests: Sequence[Request], progress_bar: bool
) -> dict[str, GenerationOutput]:
    """Serve all requests on this thread."""
    engine, results = frontend.open_engine(), frontend.results
    for request in requests:
        engine.add(request)
    names = [name for request in requests for name in names_of(request)]
    with Progress(
        len(names),
        f"Solving {len(names)} requests",
        unit="request",
        progress=None if progress_bar else False,
    ) as bar:
        shown = results.num_ended
        while engine.has_work:
            engine.step()
            if results.num_ended > shown:
                bar.advance(results.num_ended - shown)
                shown = results.num_ended
    outputs = {}
    for name in names:
        output = results.take(name, 0, bool)
        assert output is not None
        outputs[name] = output
    return outputs
