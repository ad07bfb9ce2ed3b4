"""From the arguments of the synchronous doors to requests of the engine.

A prompt is token ids, an answer is token ids, and a tokenizer is needed only by what looks at
text. What cannot be honoured is refused here, by name, before any work.
"""

from __future__ import annotations

import itertools
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.lane.assistants import Assistants
from asyncgen.engine.options import EngineOptions, SharedOptions, refuse_unknown
from asyncgen.engine.requests.admission import Admission
from asyncgen.engine.requests.prepare import prepare_request
from asyncgen.engine.requests.request import clock, sample_name
from asyncgen.engine.setup.assembly import assemble, plan_room
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.checks import check_names
from asyncgen.generation.config.parameters import FIELDS, SAMPLING
from asyncgen.generation.config.rules import integer, require, switch
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.reference.continuous_batching.batching_config import translated
from asyncgen.reference.continuous_batching.outbox import Collector, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.engine.core import Engine
    from asyncgen.engine.requests.request import Request
    from asyncgen.reference.continuous_batching.batching_config import ContinuousBatchingConfig
    from asyncgen.text.tokenizer import Tokenizer


_NEED_TEXT = dict.fromkeys(
    ("stop", "stop_strings", "assistant_tokenizer"),
    "needs the model's tokenizer; pass `tokenizer=`",
)
_NO_ROOM = {
    "streamer": "a request has none; add it with `streaming=True` and read its results",
    "skip_special_tokens": "results are token ids",
    "prompt_logprobs": "results do not hold them; read `llm.stream(…).result.prompt_logprobs`",
    "token_healing": "it changes the prompt, which results show as it was; call `model.generate`",
}


class Frontend:
    """Makes requests for one model, and the engine that serves them.

    Attributes:
        results: Where the results of all requests come.
        admission: Counts who waits.
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
            generation_config: What requests are based on; ``None`` is the model's own.
            options: How requests share steps and memory.
            tokenizer: For what looks at text.
            max_queue_size: Most requests that wait; ``None`` for no limit.
            batching: May give requests a seed, and ask for their logprobs.

        Raises:
            InvalidRequestError: A configuration that asks for what results do not hold, or a
                memory budget that does not work.
        """
        if generation_config is not None:
            _check_config(generation_config)
        self.results = Results()
        self.admission = Admission(
            max_running=options.max_running, max_queue_size=max_queue_size, clock=clock
        )
        self._model = model
        self._config = generation_config
        self._options = options
        self._tokenizer = tokenizer
        seed = None if batching is None else batching.seed
        self._seeds = None if seed is None else itertools.count(seed)
        self._with_logprobs = batching is not None and batching.return_logprobs
        self._room = plan_room(model, options)

    def open_engine(self) -> Engine:
        """Allocate the memory and make the engine; call it on the thread that will compute."""
        return assemble(
            self._model,
            self._tokenizer,
            self._options,
            self._room,
            assistants=Assistants(_refuse_to_load, _refuse_to_load),
            admission=self.admission,
        )

    def load(self, is_closing: Callable[[], bool]) -> tuple[Engine, Engine]:
        """What a decode thread does first; see `asyncgen.engine.thread.Load`."""
        engine = self.open_engine()
        engine.warm()
        return engine, engine

    def prepare(
        self,
        place: str,
        input_ids: list[int],
        request_id: str,
        params: Mapping[str, Any],
        *,
        streaming: bool,
        record_timestamps: bool,
    ) -> Request:
        """Check everything and make a request, whose samples have their names from now on.

        Args:
            place: What the prompt is called in an error.
            input_ids: The prompt, token ids.
            request_id: Name of the request, and of its first sample.
            params: Keyword parameters; ``None`` is not given.
            streaming: Whether there is a result for each step.
            record_timestamps: Whether to note when each token came.

        Returns:
            A request that is ready to be posted.

        Raises:
            InvalidRequestError: Something that cannot be served.
            OverloadedError: As many wait as may.
        """
        prompt = _check_ids(place, input_ids)
        require("streaming", streaming, switch)
        require("record_timestamps", record_timestamps, switch)
        given = self._complete(params)
        cancel, seat = CancelCriteria(), self.admission.enter(given.get("client"))
        try:
            request = prepare_request(
                self._model,
                self._tokenizer,
                prompt,
                given,
                cancel=cancel,
                sink=SimpleQueue(),  # its own comes below: its samples have no names yet
                room=self._room,
                place=seat,
            )
            request.id = request_id
            self.results.expect(names_of(request), request)
        except BaseException:
            seat.left()
            raise
        request.sink = Collector(
            self.results,
            names_of(request),
            prompt,
            created=request.accepted_at,
            place=seat,
            streaming=streaming,
            record_timestamps=record_timestamps,
        )
        return request

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Take requests back that were prepared and not posted."""
        for request in requests:
            self.results.forget(names_of(request))
            if request.place is not None:
                request.place.left()

    def _complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword parameters, checked by name, and what they are based on."""
        given = {name: value for name, value in params.items() if value is not None}
        _refuse(given, _NO_ROOM)
        check_names(given)
        if self._tokenizer is None:
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
            # Else from the generator that `set_seed` seeds, as in `model.generate`.
            seeds = self._seeds
            given["seed"] = int(torch.randint(2**62, ())) if seeds is None else next(seeds)
        return given


def _refuse(given: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        if name in given:
            raise InvalidRequestError(name, given[name], reason)


def names_of(request: Request) -> list[str]:
    """What the samples of a request are called."""
    return [sample_name(request.id, index) for index in range(request.params.num_samples)]


def _check_ids(place: str, input_ids: Any) -> list[int]:
    is_list = isinstance(input_ids, list | tuple) and len(input_ids) > 0
    if not is_list or any(integer(token_id) is not None for token_id in input_ids):
        raise InvalidRequestError(place, input_ids, "a non-empty list of token ids")
    return list(input_ids)


def _check_config(config: object) -> None:
    """Refuse a configuration that asks for what a result does not hold."""
    if not isinstance(config, GenerationConfig):
        raise InvalidRequestError("generation_config", config, "a GenerationConfig")
    for field in FIELDS:
        if field.name == "return_dict_in_generate" or not getattr(config, field.name, None):
            continue
        reason = f"results do not hold it; {field.elsewhere}" if field.elsewhere else ""
        reason = _NO_ROOM.get(field.name, reason)
        if reason:
            raise InvalidRequestError(field.name, getattr(config, field.name), reason)


def _is_disabled(eos: object) -> bool:
    """Whether no token ends a request: a negative id, as the reference has it."""
    ids = eos if isinstance(eos, list | tuple) else [eos]
    return bool(ids) and all(isinstance(one, int) and one < 0 for one in ids)


def _draws(base: GenerationConfig, given: Mapping[str, Any]) -> bool:
    """Whether a request may sample."""
    return bool(given.get("do_sample", base.do_sample)) or bool(SAMPLING & given.keys())


def _refuse_to_load(source: object) -> Any:
    raise InvalidRequestError("assistant_model", source, "an object that is loaded already")


def engine_options(
    allow_block_sharing: bool,
    shared: SharedOptions,
    *,
    batching: ContinuousBatchingConfig | None = None,
    model: Any = None,
    manual_eviction: bool = False,
    **documented: Any,
) -> EngineOptions:
    """The options of an engine, as the documented doors name them.

    Args:
        allow_block_sharing: Whether requests share the pages of equal beginnings.
        shared: What the door got as ``**options``.
        batching: The later spelling of all of these.
        model: The loaded model, for that.
        manual_eviction: Whether finished requests keep their pages.
        **documented: Fields of `EngineOptions` that are documented arguments of the door.

    Raises:
        InvalidRequestError: A value that is not allowed.
        TypeError: A keyword that is none.
    """
    refuse_unknown(shared, SharedOptions)
    require("allow_block_sharing", allow_block_sharing, switch)
    chosen: dict[str, Any] = {**documented, **shared}
    if batching is not None:
        given = {**shared, **{name: value for name, value in documented.items() if value}}
        if not allow_block_sharing:
            given["allow_block_sharing"] = False
        # What the configuration has no word for.
        cache_dtype = given.pop("kv_cache_dtype", "auto")
        chosen = translated(batching, model, given, cache_dtype)
        allow_block_sharing = chosen.pop("allow_block_sharing")
    return EngineOptions(
        prefix_caching=allow_block_sharing,
        page_sharing=allow_block_sharing,
        manual_eviction=manual_eviction,
        **chosen,
    )


def check_inputs(inputs: object) -> None:
    """Refuse prompts that are not in a list.

    Raises:
        InvalidRequestError: They are not.
    """
    if not isinstance(inputs, list | tuple):
        raise InvalidRequestError("inputs", inputs, "a list of lists of token ids")
