"""Serve requests on a decode thread, without an event loop, and keep their results until read."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from asyncgen.engine.options import EngineOptions, SharedOptions, spells_out
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.rules import Range, require
from asyncgen.reference.continuous_batching.batching_config import engine_options, take_batching
from asyncgen.reference.continuous_batching.frontend import Frontend, check_inputs
from asyncgen.reference.continuous_batching.lifecycle import ManagedThread
from asyncgen.reference.continuous_batching.positions import takes_newer_positions
from streamers import LoopBell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Unpack

    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.scheduling.state import GenerationOutput
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.reference.continuous_batching.batching_config import (
        ContinuousBatchingConfig,
        WorkloadHints,
    )
    from asyncgen.text.tokenizer import Tokenizer


class ContinuousBatchingManager(ManagedThread):
    """Queue of requests, thread that serves them together, and their results.

    Requests may be added before :meth:`start`, at any time while it runs, from any thread.
    Each of them gets a last result: its ``status`` is ``FINISHED``, or ``FAILED`` with an
    ``error`` if it raised, was cancelled, or was cut off by a hard stop.
    Iterating over the manager gives results as they come, until it is stopped and all are read.
    A manager that is dropped ends its thread.
    """

    @takes_newer_positions(3, "continuous_batching_config", "workload_hints")
    @spells_out(SharedOptions, EngineOptions)
    def __init__(
        self,
        model: Any,
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
    ) -> None:
        """Plan; nothing is allocated or computed before :meth:`start`.

        Args:
            model: A model of this library.
            generation_config: Defaults of requests; ``None`` for the model's own.
            manual_eviction: Whether the pages of a finished request stay its own until
                :meth:`evict_request_from_cache`, or until their space is needed. A new request of
                the same id goes on in them. In this position and the next,
                ``continuous_batching_config`` and ``workload_hints`` may stand instead.
            max_queue_size: Most requests that wait, beyond those that find a place at once; 0 for
                no limit.
            num_q_padding_intervals: Into how many the numbers of rows up to ``max_running`` are
                divided for CUDA graphs: a decode step is padded to the next. 0 is a choice of
                ours: 1, 2, 4, 8 and so on. Elsewhere nothing is padded.
            num_kv_padding_intervals: The same for the lengths up to the end of the context; 0 is
                1024, 2048 and so on.
            allow_block_sharing: Whether requests share the pages of equal beginnings.
            tokenizer: For parameters that look at text, such as ``stop_strings``.
            continuous_batching_config: The later spelling of these options, in place of them.
            workload_hints: What is known of the requests to come.
            **options: ``scheduler``, ``max_running``, ``kv_cache_memory``, ``page_size``,
                ``use_cuda_graph`` and ``use_async_batching``, as in :class:`AsyncLLM`.

        Raises:
            InvalidRequestError: A value that is not allowed.
        """
        require("max_queue_size", max_queue_size, Range(0, whole=True))
        generation_config, batching = take_batching(
            model.generation_config, generation_config, continuous_batching_config
        )
        chosen = engine_options(
            allow_block_sharing,
            options,
            batching=batching,
            model=model,
            manual_eviction=manual_eviction,
            hints=workload_hints,
            num_q_padding_intervals=num_q_padding_intervals,
            num_kv_padding_intervals=num_kv_padding_intervals,
        )
        frontend = Frontend(
            model,
            generation_config,
            chosen,
            tokenizer=tokenizer,
            max_queue_size=queue_size(max_queue_size, batching),
            batching=batching,
        )
        super().__init__(model, frontend)
        self._numbers = itertools.count()

    def add_request(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        eos_token_id: int | list[int] | None = None,
        **kwargs: Any,
    ) -> str:
        """Add a request to the queue; never waits.

        Args:
            input_ids: The prompt, token ids.
            request_id: Its name; ``None`` makes one up.
            max_new_tokens: Most tokens to generate; ``None`` is what the configuration says, which
                may be to the end of the context.
            streaming: Whether there is a result for each step, each with all tokens so far.
            record_timestamps: Whether results say when each token came.
            eos_token_id: Ids that end it; ``None`` is what the configuration says.
            **kwargs: Parameters of this request alone, as those of ``AsyncLLM.stream``: fields of
                ``GenerationConfig``, ``seed``, ``logprobs``, ``logits_processor``, ``priority`` and
                so on. A sampling parameter asks for sampling. Further samples
                (``num_return_sequences``) are called ``"<request_id>__child#0"`` and so on.

        Returns:
            The request's name.

        Raises:
            InvalidRequestError: A parameter is unknown or cannot be served, or the name is in use.
            ContextLengthError: The prompt and the tokens asked for exceed the context or the
                memory.
            OverloadedError: Too many requests wait.
            EngineClosedError: It was stopped.
            EngineDiedError: The thread died.
        """
        params = {**kwargs, "max_new_tokens": max_new_tokens, "eos_token_id": eos_token_id}
        request = self._prepare(
            "input_ids", input_ids, request_id, params, streaming, record_timestamps
        )
        self._post([request])
        return request.id

    def add_requests(
        self,
        inputs: list[list[int]],
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Add several requests to the queue, all or none; never waits.

        Args:
            inputs: The prompts, token ids.
            max_new_tokens: As in :meth:`add_request`, like all that follow.
            streaming: Whether there is a result for each step.
            record_timestamps: Whether results say when each token came.
            **kwargs: Parameters of each of these requests.

        Returns:
            The requests' names, in the order of the prompts.

        Raises:
            AsyncgenError: As in :meth:`add_request`.
        """
        params = {**kwargs, "max_new_tokens": max_new_tokens}
        check_inputs(inputs)
        requests: list[Request] = []
        try:
            for number, input_ids in enumerate(inputs):
                name = f"inputs[{number}]"
                requests.append(
                    self._prepare(name, input_ids, None, params, streaming, record_timestamps)
                )
        except BaseException:
            self.frontend.withdraw(requests)
            raise
        self._post(requests)
        return [request.id for request in requests]

    def cancel_request(self, request_id: str) -> None:
        """End a request, with all its samples, within one step; one that has ended is fine.

        Its last result has the status ``FAILED`` and the tokens so far.

        Args:
            request_id: Its name.
        """
        request = self.frontend.results.request(request_id)
        if request is None:
            return
        request.cancel.set()
        thread = self._thread
        if thread is not None:
            thread.cancel(request)

    def evict_request_from_cache(self, request_id: str) -> None:
        """Free the pages of a finished request; one that has none is fine.

        Args:
            request_id: Its name, or that of one of its further samples.

        Raises:
            InvalidRequestError: It is not finished.
        """
        if self.frontend.results.request(request_id) is not None:
            raise InvalidRequestError(
                "request_id", request_id, "is not finished; `cancel_request` ends it"
            )
        thread = self._thread
        if thread is not None:
            thread.evict(request_id)

    def get_result(
        self, request_id: str | None = None, timeout: float | None = None
    ) -> GenerationOutput | None:
        """Take the oldest result that was not read.

        Args:
            request_id: Of this request only; ``None`` for any.
            timeout: Most seconds to wait; ``None`` waits until there is one.

        Returns:
            The result, with all tokens so far. ``None`` at the timeout, if the manager does not
            run, or if the request is not known or all its results were read.

        Raises:
            EngineDiedError: The thread died, and all results were read.
            EngineReentryError: Code that the manager is computing with would wait for it.
        """
        results, thread = self.frontend.results, self._thread
        output = results.take(request_id, 0.0, self._is_serving)
        if output is None and timeout != 0.0:
            if thread is not None:
                thread.require_answers()
            output = results.take(request_id, timeout, self._is_serving)
        if output is None and thread is not None and thread.is_over and thread.death is not None:
            raise thread.death
        return output

    def __iter__(self) -> Iterator[GenerationOutput]:
        """Yield results as they come, until the manager is stopped and all are read.

        Raises:
            EngineDiedError: The thread died, and all results were read.
        """
        while (output := self.get_result()) is not None:
            yield output

    def request_id_iter(self, request_id: str) -> Iterator[GenerationOutput]:
        """Yield results of one request as they come, until its last.

        Args:
            request_id: Its name; one that is not known has no results.

        Raises:
            EngineDiedError: The thread died, and all results were read.
        """
        while (output := self.get_result(request_id)) is not None:
            yield output
            if output.is_finished():
                return

    def register_result_handler(
        self, request_id: str, callback: Callable[[GenerationOutput], object]
    ) -> None:
        """Have a function called with the results of a request, in the running event loop.

        It is called after each step of a streaming request, otherwise once; results that came
        before and were not read come first. ``get_result`` does not see these results. After the
        last one the function is dropped.

        Args:
            request_id: Name of the request, which may be added later.
            callback: Called with each result. If it raises, the log says so.

        Raises:
            InvalidRequestError: The callback cannot be called.
            RuntimeError: No event loop runs in this thread.
        """
        if not callable(callback):
            raise InvalidRequestError("callback", callback, "a function of a result")
        self.frontend.results.hand_over(request_id, callback, LoopBell.current())

    def _prepare(
        self,
        parameter: str,
        input_ids: list[int],
        request_id: str | None,
        params: Mapping[str, Any],
        streaming: bool,
        record_timestamps: bool,
    ) -> Request:
        self._require_undestroyed()
        if self._thread is not None:
            self._thread.require_open()
        if request_id is None:
            request_id = self.new_name()
        elif not isinstance(request_id, str) or not request_id:
            raise InvalidRequestError("request_id", request_id, "a non-empty text, or None")
        return self.frontend.prepare(
            parameter,
            input_ids,
            request_id,
            params,
            streaming=streaming,
            record_timestamps=record_timestamps,
        )

    def _post(self, requests: list[Request]) -> None:
        with self._lock:
            if self._thread is None:
                self._early += requests
                return
            for number, request in enumerate(requests):
                try:
                    self._thread.post(request)
                except BaseException:
                    self.frontend.withdraw(requests[number:])
                    raise

    def name_of(self, number: int) -> str:
        """Return a name for a request of a batch, with its number unless that is in use."""
        name = f"req_{number}"
        return self.new_name() if self.frontend.results.is_known(name) else name

    def new_name(self) -> str:
        """Return a name that no request has."""
        names = (f"req_{number}" for number in self._numbers)
        return next(name for name in names if not self.frontend.results.is_known(name))


def queue_size(given: Any, batching: ContinuousBatchingConfig | None) -> int | None:
    """Return the most requests that may wait; ``None`` for no limit."""
    stated = 0 if batching is None else batching.max_queue_size
    if given and batching is not None:
        allowed = "`continuous_batching_config` says it already; give one of them"
        raise InvalidRequestError("max_queue_size", given, allowed)
    return given or stated or None
