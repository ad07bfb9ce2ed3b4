"""Give a model ``generate_batch``, and managers for requests that come and go.

``generate_batch`` drives the engine of ``AsyncLLM`` on the calling thread, so that only one thread
computes.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncgen.engine.options import EngineOptions, SharedOptions, spells_out
from asyncgen.engine.requests.stream_params import RequestKeywords
from asyncgen.generation.config.rules import require, switch
from asyncgen.reference.continuous_batching.batching_config import engine_options
from asyncgen.reference.continuous_batching.frontend import Frontend, check_inputs, names_of
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.runtime.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.scheduling.state import GenerationOutput
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.reference.continuous_batching.batching_config import ContinuousBatchingConfig
    from asyncgen.text.tokenizer import Tokenizer


_log = logging.getLogger("asyncgen.engine")
_SHARED = frozenset(SharedOptions.__annotations__)


class BatchParams(SharedOptions, RequestKeywords, total=False):
    """Keywords of ``generate_batch``: options of the engine, and parameters of all requests."""


class ContinuousMixin:
    """Methods ``generate_batch`` and ``init_continuous_batching`` of a model."""

    @spells_out(SharedOptions, EngineOptions)
    def generate_batch(
        self,
        inputs: list[list[int]],
        generation_config: GenerationConfig | None = None,
        num_q_padding_intervals: int = 0,
        num_kv_padding_intervals: int = 0,
        allow_block_sharing: bool = True,
        record_timestamps: bool = False,
        progress_bar: bool = True,
        *,
        tokenizer: Tokenizer | None = None,
        **kwargs: Unpack[BatchParams],
    ) -> dict[str, GenerationOutput]:
        """Continue many prompts of any lengths at once, on this thread.

        Args:
            inputs: The prompts, token ids; not padded.
            generation_config: Defaults of requests; ``None`` for the model's own.
            num_q_padding_intervals: Into how many the numbers of rows up to ``max_running`` are
                divided for CUDA graphs: a decode step is padded to the next. 0 is a choice of
                ours: 1, 2, 4, 8 and so on. Elsewhere nothing is padded.
            num_kv_padding_intervals: The same for the lengths up to the end of the context; 0 is
                1024, 2048 and so on.
            allow_block_sharing: Whether requests share the pages of equal beginnings.
            record_timestamps: Whether results say when each token came.
            progress_bar: Whether a bar may be shown, from the second second on.
            tokenizer: For parameters that look at text.
            **kwargs: Options of the engine, as in :class:`ContinuousBatchingManager`, or in their
                place ``continuous_batching_config``, the later spelling of all of them; and
                parameters of all requests, as in :meth:`ContinuousBatchingManager.add_request`.
                With a ``seed`` the i-th prompt draws with ``seed + i``.

        Returns:
            Results by name, ``"req_0"`` for the first prompt and so on, in the order of the
            prompts. A request that raised has the status ``FAILED`` and an ``error``; the others
            are not touched.

        Raises:
            AsyncgenError: A request cannot be served; raised before any work.
        """
        require("progress_bar", progress_bar, switch)
        check_inputs(inputs)
        given: dict[str, Any] = {**kwargs}
        batching: ContinuousBatchingConfig | None = given.pop("continuous_batching_config", None)
        shared: Any = {name: given.pop(name) for name in _SHARED & given.keys()}
        options = engine_options(
            allow_block_sharing,
            shared,
            batching=batching,
            model=self,
            num_q_padding_intervals=num_q_padding_intervals,
            num_kv_padding_intervals=num_kv_padding_intervals,
        )
        frontend = Frontend(
            self,
            generation_config,
            options,
            tokenizer=tokenizer,
            batching=batching,
        )
        requests = [
            frontend.prepare(
                f"inputs[{number}]",
                input_ids,
                f"req_{number}",
                _with_seed(given, number),
                streaming=False,
                record_timestamps=record_timestamps,
            )
            for number, input_ids in enumerate(inputs)
        ]
        outputs = _run(frontend, requests, progress_bar) if requests else {}
        failed = [name for name, output in outputs.items() if output.error is not None]
        if failed:
            _log.warning("%d requests failed, %s first: see `error`", len(failed), failed[0])
        return outputs

    @spells_out(SharedOptions, EngineOptions)
    def init_continuous_batching(
        self,
        generation_config: GenerationConfig | None = None,
        manual_eviction: bool = False,
        max_queue_size: int = 0,
        num_q_padding_intervals: int = 0,
        num_kv_padding_intervals: int = 0,
        allow_block_sharing: bool = True,
        *,
        tokenizer: Tokenizer | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        **options: Unpack[SharedOptions],
    ) -> ContinuousBatchingManager:
        """Make a manager, which is to be started; see :class:`ContinuousBatchingManager`.

        Args:
            generation_config: Defaults of requests; ``None`` for the model's own.
            manual_eviction: Whether finished requests keep their pages.
            max_queue_size: Most requests that wait; 0 for no limit.
            num_q_padding_intervals: Into how many the numbers of rows up to ``max_running`` are
                divided for CUDA graphs: a decode step is padded to the next. 0 is a choice of
                ours: 1, 2, 4, 8 and so on. Elsewhere nothing is padded.
            num_kv_padding_intervals: The same for the lengths up to the end of the context; 0 is
                1024, 2048 and so on.
            allow_block_sharing: Whether requests share the pages of equal beginnings.
            tokenizer: For parameters that look at text.
            continuous_batching_config: The later spelling of these options, in place of them.
            **options: As in :class:`ContinuousBatchingManager`.

        Raises:
            InvalidRequestError: A value that is not allowed.
        """
        return ContinuousBatchingManager(
            self,
            generation_config,
            manual_eviction,
            max_queue_size,
            num_q_padding_intervals,
            num_kv_padding_intervals,
            allow_block_sharing,
            tokenizer=tokenizer,
            continuous_batching_config=continuous_batching_config,
            **options,
        )

    @contextmanager
    def continuous_batching_context_manager(
        self,
        generation_config: GenerationConfig | None = None,
        block: bool = True,
        timeout: float | None = None,
        **options: Any,
    ) -> Iterator[ContinuousBatchingManager]:
        """Start a manager, and stop it when the block is left.

        Args:
            generation_config: Defaults of requests; ``None`` for the model's own.
            block: Whether to wait for the thread to end.
            timeout: Most seconds to wait for it.
            **options: As in :meth:`init_continuous_batching`.

        Yields:
            The manager. Leaving the block with an exception cuts its requests off.
        """
        manager = self.init_continuous_batching(generation_config, **options)
        manager.start()
        try:
            yield manager
        except BaseException:
            manager.stop(block, timeout, hard_stop=True)
            raise
        manager.stop(block, timeout)


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
        shown = 0
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
