"""Make requests of the engine from the arguments of the synchronous methods.

Prompts and answers are token ids; only parameters that look at text need a tokenizer. A parameter
that cannot be served is refused here, by name, before any work.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.lane.assistants import Assistants
from asyncgen.engine.requests.admission import Admission, Seat
from asyncgen.engine.requests.prepare import prepare_request
from asyncgen.engine.requests.request import clock, sample_name
from asyncgen.engine.requests.served_model import ServedModel
from asyncgen.engine.setup.assembly import assemble, plan_room
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.checks import check_names
from asyncgen.generation.config.parameters import FIELDS, SAMPLING
from asyncgen.generation.config.rules import integer, require, switch
from asyncgen.generation.config.samplers import DRAWING
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.reference.continuous_batching.results import Collector, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.engine.core import Engine
    from asyncgen.engine.options import EngineOptions
    from asyncgen.engine.requests.request import Request
    from asyncgen.reference.continuous_batching.batching_config import ContinuousBatchingConfig
    from asyncgen.text.tokenizer import Tokenizer


_NEED_TEXT = dict.fromkeys(
    ("stop", "stop_strings", "assistant_tokenizer"),
    "needs the model's tokenizer; pass `tokenizer=`",
)
_UNSUPPORTED = {
    "streamer": "a request has none; add it with `streaming=True` and read its results",
    "skip_special_tokens": "results are token ids",
    "prompt_logprobs": "results do not hold them; read `llm.stream(…).result.prompt_logprobs`",
    "token_healing": "it changes the prompt, which results show as it was; call `model.generate`",
}


class Frontend:
    """Maker of requests for one model, and of the engine that serves them.

    Attributes:
        tokenizer: For parameters that look at text.
        options: Options of the engine.
        max_queue_size: Most requests that wait; ``None`` for no limit.
        results: Results of all requests.
        admission: Counts the requests that wait.
        keeps_engine: Whether the engine outlives the thread that computes.
    """

    def __init__(
        self,
        model: Any,
        generation_config: GenerationConfig | None,
        options: EngineOptions,
        *,
        tokenizer: Tokenizer | None = None,
        max_queue_size: int | None = None,
        batching: ContinuousBatchingConfig | None = None,
    ) -> None:
        """Plan the memory; nothing is allocated yet.

        Args:
            model: The loaded model.
            generation_config: Defaults of requests; ``None`` for the model's own.
            options: Options of the engine.
            tokenizer: For parameters that look at text.
            max_queue_size: Most requests that wait; ``None`` for no limit.
            batching: May give requests a seed, and ask for their logprobs.

        Raises:
            InvalidRequestError: The configuration asks for something that results do not hold, or
                the memory budget does not work.
        """
        self.begin_session(generation_config, batching)
        self.results = Results()
        self.admission = Admission(
            max_running=options.max_running, max_queue_size=max_queue_size, clock=clock
        )
        self._model = model
        self.tokenizer = tokenizer
        self.options, self.max_queue_size = options, max_queue_size
        self.keeps_engine = False
        self._engine: Engine | None = None
        self._room = plan_room(model, options)
        self._served = ServedModel.of(model, tokenizer, self._room)

    def begin_session(
        self,
        generation_config: GenerationConfig | None,
        batching: ContinuousBatchingConfig | None,
    ) -> None:
        """Set the defaults of the requests to come; the parameters are those of the constructor."""
        if generation_config is not None:
            _check_config(generation_config)
        self._config = generation_config
        seed = None if batching is None else batching.seed
        self._seeds = None if seed is None else itertools.count(seed)
        self._with_logprobs = batching is not None and batching.return_logprobs

    def open_engine(self) -> Engine:
        """Return the engine; build it and allocate its memory if there is none."""
        if self._engine is None:
            self._engine = assemble(
                self._model,
                self.tokenizer,
                self.options,
                self._room,
                assistants=Assistants(_refuse_to_load, _refuse_to_load),
                admission=self.admission,
            )
        return self._engine

    def close_engine(self) -> None:
        """Free the memory of the engine, once no thread computes with it any more."""
        self._engine = None

    def load(self, is_closing: Callable[[], bool], *, records: bool) -> tuple[Engine, Engine]:
        """Load as a decode thread does first; see `asyncgen.engine.thread.Load`.

        Args:
            is_closing: Tells whether the thread shall stop.
            records: Whether decode steps are recorded in advance, where they are recorded.
        """
        try:
            engine = self.open_engine()
            engine.warm(records=records)
        except BaseException:
            self.close_engine()
            raise
        return engine, engine

    def finish(self) -> None:
        """Free the engine unless it is kept, and wake the readers: no result will come."""
        if not self.keeps_engine:
            self.close_engine()
        self.results.wake()

    def prepare(
        self,
        parameter: str,
        input_ids: list[int],
        request_id: str,
        params: Mapping[str, Any],
        *,
        streaming: bool,
        record_timestamps: bool,
    ) -> Request:
        """Check everything, make a request, and reserve the names of its sequences.

        Args:
            parameter: Name of the prompt in an error.
            input_ids: The prompt, token ids.
            request_id: Name of the request, and of its first sequence.
            params: Keyword parameters; those that are ``None`` are not given.
            streaming: Whether there is a result for each step.
            record_timestamps: Whether to note the time of each token.

        Returns:
            A request that is ready to be posted.

        Raises:
            InvalidRequestError: A parameter that cannot be served.
            OverloadedError: Too many requests wait.
        """
        prompt = _check_ids(parameter, input_ids)
        require("streaming", streaming, switch)
        require("record_timestamps", record_timestamps, switch)
        given = self._complete(params)
        cancel, seat = CancelCriteria(), Seat(self.admission, given.get("client"))
        try:
            seat.enter()
            request = prepare_request(
                self._served,
                prompt,
                given,
                cancel=cancel,
                sink=SimpleQueue(),  # replaced below, when the number of names is known
                place=seat,
            )
            request = replace(request, id=request_id)
            names = names_of(request)
            collector = Collector(
                self.results,
                names,
                prompt,
                created=request.accepted_at,
                place=seat,
                streaming=streaming,
                record_timestamps=record_timestamps,
            )
            request = replace(request, sink=collector)
            self.results.expect(names, request)
        except BaseException:
            seat.left()
            raise
        return request

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Withdraw requests that were prepared and not posted."""
        for request in requests:
            self.results.forget(names_of(request))
            if request.place is not None:
                request.place.left()

    def _complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword parameters with their defaults; refuse names that are not supported."""
        given = {name: value for name, value in params.items() if value is not None}
        _refuse(given, _UNSUPPORTED)
        check_names(given)
        if self.tokenizer is None:
            _refuse(given, _NEED_TEXT)
        for name in ("assistant_model", "assistant_tokenizer"):
            if isinstance(given.get(name), str):
                raise InvalidRequestError(name, given[name], "an object that is loaded already")
        if "generation_config" in given:
            _check_config(given["generation_config"])
        elif self._config is not None:
            given["generation_config"] = self._config
        base = given.get("generation_config", self._model.generation_config)
        eos = given.get("eos_token_id", base.eos_token_id)
        if _is_disabled(eos):
            given["eos_token_id"] = []
        if self._with_logprobs:
            given.setdefault("logprobs", True)
        if "seed" not in given and _draws(base, given):
            # Without a configured seed, draw one as `model.generate` does, after `set_seed`.
            seeds = self._seeds
            given["seed"] = (
                int(torch.randint(2**62, (), dtype=torch.int64, device="cpu"))
                if seeds is None
                else next(seeds)
            )
        return given


def _refuse(given: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        if name in given:
            raise InvalidRequestError(name, given[name], reason)


def names_of(request: Request) -> list[str]:
    """Return the names of the sequences of a request."""
    return [sample_name(request.id, index) for index in range(request.params.num_samples)]


def _check_ids(parameter: str, input_ids: Any) -> list[int]:
    is_list = isinstance(input_ids, list | tuple) and len(input_ids) > 0
    if not is_list or any(integer(token_id) is not None for token_id in input_ids):
        raise InvalidRequestError(parameter, input_ids, "a non-empty list of token ids")
    return list(input_ids)


def _check_config(config: object) -> None:
    """Refuse a configuration that asks for something that a result does not hold."""
    if not isinstance(config, GenerationConfig):
        raise InvalidRequestError("generation_config", config, "a GenerationConfig")
    for field in FIELDS:
        if field.name == "return_dict_in_generate" or not getattr(config, field.name, None):
            continue
        reason = f"results do not hold it; {field.elsewhere}" if field.elsewhere else ""
        reason = _UNSUPPORTED.get(field.name, reason)
        if reason:
            raise InvalidRequestError(field.name, getattr(config, field.name), reason)


def _is_disabled(eos: object) -> bool:
    """Tell whether no token ends a request: a negative id, as in the reference."""
    ids = eos if isinstance(eos, list | tuple) else [eos]
    return bool(ids) and all(isinstance(one, int) and one < 0 for one in ids)


def _draws(base: GenerationConfig, given: Mapping[str, Any]) -> bool:
    """Tell whether a request may sample."""
    asks = bool(given.get("do_sample", base.do_sample))
    return asks or any(name in given for name in (*SAMPLING, *DRAWING))


def _refuse_to_load(source: object) -> Any:
    raise InvalidRequestError("assistant_model", source, "an object that is loaded already")


def check_inputs(inputs: object) -> None:
    """Check that prompts are in a list.

    Raises:
        InvalidRequestError: They are not.
    """
    if not isinstance(inputs, list | tuple):
        raise InvalidRequestError("inputs", inputs, "a list of lists of token ids")
