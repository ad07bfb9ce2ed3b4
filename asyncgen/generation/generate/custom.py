"""A decoding method that a user wrote, run as a strategy.

The method gets the prepared inputs. Written as a generator it yields the ids of each step and
takes turns with everything else; a plain function owns its loop and runs in one turn.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast, get_args

import torch

from asyncgen.cache.no_cache import NoCache
from asyncgen.errors import InvalidRequestError, InWords, class_name, shorten
from asyncgen.generation.custom_methods import accepted_arguments, load_recipe, parameter_names
from asyncgen.generation.generate.defaults import fill_config
from asyncgen.generation.outputs import BaseModelOutput
from asyncgen.generation.strategies.forward import encoder_embeddings
from asyncgen.generation.strategies.step import Outcome, Step
from asyncgen.generation.strategies.token_by_token import Sequences
from asyncgen.runtime.transfer import given_ints, host_ints, plain_tensor
from asyncgen.runtime.user_code import UserGenerator, run_user_code
from asyncgen.types import FinishReason

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.criteria import StoppingCriteriaList
    from asyncgen.generation.strategies.step import Plan, Steps, Strategy


@dataclass(slots=True)
class CustomMethod:
    """Custom method, and its arguments beside the plan.

    Attributes:
        function: ``(model, input_ids, logits_processor=…, stopping_criteria=…,
            generation_config=…, **model_kwargs)``; it may be a generator function.
        model: The model, as a user knows it.
        logits_processor: Built-in and user processors.
        stopping_criteria: Built-in and user criteria; a method that asks them can be cancelled.
        extras: The caller's own arguments, for the parameters that the function names.
        emit: Takes the steps that a plain function reports through a ``streamer`` it asked for.
        needs_ids: Whether the result has to be token ids, or may be anything.
        is_recipe: Whether it wants the documented arguments of ``generate`` instead of prepared
            inputs, as methods loaded from a folder do.
    """

    function: Callable[..., Any]
    model: Any
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    extras: dict[str, Any] = field(default_factory=dict)
    emit: Callable[[Step], object] | None = None
    needs_ids: bool = False
    is_recipe: bool = False


def custom_strategy(method: CustomMethod) -> Strategy:
    """The method as a strategy: a generator of steps over a plan.

    A generator method yields one of these for each step: ids of all rows, an int64 tensor ``[B]``
    or ``[B, 1]`` or a list of B integers; or a :class:`Step`. A row ends with an end-of-sequence
    id, the length, or any other criterion; the generator is closed when all have. What it returns
    is the result of the call, or the sequences if it returns nothing.
    """
    return partial(_steps, method)


@torch.no_grad()
def _steps(method: CustomMethod, plan: Plan) -> Steps:
    rows = _CustomSequences(plan)
    try:
        result = run_user_code(_call, method, plan, rows)
    except _InterruptedError:
        result = None
    if inspect.isgenerator(result):
        result = yield from _run_generator(cast("Generator[Any, None, Any]", result), rows)
        ids = run_user_code(_ids_of, result)
    else:
        ids = run_user_code(_ids_of, result)
        if method.needs_ids:
            _check_result(method, result, ids, rows)
        step = rows.rest(ids)
        if method.needs_ids:
            rows.check_ids(step.token_ids)
        yield step
    return Outcome(rows.ids.clone() if ids is None else ids, result=result)


def _check_result(
    method: CustomMethod, result: object, ids: Tensor | None, rows: _CustomSequences
) -> None:
    """Check that a stream can be made of what a plain function returned.

    Raises:
        InvalidRequestError: It is no token ids of these rows; nothing is fine where it put ids.
    """
    if ids is not None and len(ids) == len(rows.live):
        return
    if result is None and (any(rows.counts) or rows.plan.stop_checks.interrupted()):
        return
    found = class_name(result) if ids is None else f"ids of shape {[*ids.shape]}"
    allowed = f"returned {found}; a stream needs token ids [B, T] of {len(rows.live)} rows"
    raise InvalidRequestError("custom_generate", method.function, allowed)


def helper_arguments(function: Callable[..., Any], assistant_model: Any) -> dict[str, Any]:
    """The draft model as an argument of a method that takes one.

    Raises:
        InvalidRequestError: There is a draft model, and the method has no parameter for it.
    """
    if assistant_model is None:
        return {}
    if "assistant_model" not in parameter_names(function):
        raise InvalidRequestError(
            "assistant_model",
            type(assistant_model).__name__,
            "`custom_generate` decodes here and has no parameter of that name; leave one of them "
            "out",
        )
    return {"assistant_model": assistant_model}


def run_recipe(
    source: str | os.PathLike[str],
    model: Any,
    documented: dict[str, Any],
    given: dict[str, Any],
    *,
    trust_remote_code: bool | None,
) -> Any:
    """Load a method from a folder or the hub, and let it replace ``generate``.

    Args:
        source: A folder, or the id of a repository.
        model: What ``generate`` was called on.
        documented: The documented arguments of the call by name, left out ones as ``None``. In
            place of its configuration the method gets a complete one.
        given: All other keywords of the call; the method must know them.
        trust_remote_code: Must be true for a repository on the hub, and not false for a folder.

    Returns:
        What the method returns; or the method itself where it is a generator function, which
        wants to be driven step by step.

    Raises:
        AsyncgenError: As :func:`~asyncgen.generation.custom_methods.load_recipe` does; or an
            argument was given that the method does not take.
    """
    function = load_recipe(source, trust_remote_code=trust_remote_code)
    if inspect.isgeneratorfunction(function):
        return function
    names = parameter_names(function)
    if "input_ids" in names and "inputs" not in names and "input_ids" not in given:
        given = given | {"input_ids": documented["inputs"]}
        documented = {name: value for name, value in documented.items() if name != "inputs"}
    taken = accepted_arguments(function, documented)
    for name, value in documented.items():
        if value is not None and name not in taken:
            raise InvalidRequestError(
                name, value, "the custom method has no parameter of that name; leave it out"
            )
    if "generation_config" in taken:
        call = given | {"inputs": documented.get("inputs")}
        taken["generation_config"] = fill_config(model, taken["generation_config"], call)
    with torch.no_grad():
        return function(model, **(taken | given))


def _call(method: CustomMethod, plan: Plan, rows: _CustomSequences) -> Any:
    """Call the function with what it wants."""
    named = parameter_names(method.function)
    tap = None if method.emit is None else _TokenReceiver(rows, method)
    if method.is_recipe:
        documented = _documented_arguments(method, plan) | {"streamer": tap}
        return method.function(
            method.model, **(accepted_arguments(method.function, documented) | method.extras)
        )
    arguments = (
        accepted_arguments(method.function, _prepared_arguments(method, plan)) | method.extras
    )
    if "draw" in named:
        arguments["draw"] = plan.draw
    if "streamer" in named:
        arguments["streamer"] = tap
    return method.function(method.model, plan.input_ids, **arguments)


def _documented_arguments(method: CustomMethod, plan: Plan) -> dict[str, Any]:
    """The documented arguments of ``generate``."""
    encoder = plan.encoder
    ids = plan.input_ids if encoder is None else encoder.input_ids
    assert ids is not None
    nothing = (
        "inputs prefix_allowed_tokens_fn synced_gpus assistant_model negative_prompt_ids "
        "negative_prompt_attention_mask"
    )
    return dict.fromkeys(nothing.split()) | {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "generation_config": _config_of(method, plan),
        "logits_processor": method.logits_processor,
        "stopping_criteria": method.stopping_criteria,
    }


def _config_of(method: CustomMethod, plan: Plan) -> GenerationConfig:
    """Return the configuration; in a stream, which counts positions, also with new tokens."""
    config, end = plan.config, plan.config.max_length
    if not method.needs_ids or end is None:
        return config
    config = copy.copy(config)
    config.max_new_tokens = end - plan.input_ids.shape[1]
    return config


def _prepared_arguments(method: CustomMethod, plan: Plan) -> dict[str, Any]:
    """Prepared inputs, as the reference hands them to a callable."""
    mask = plan.attention_mask
    arguments: dict[str, Any] = {
        "logits_processor": method.logits_processor,
        "stopping_criteria": method.stopping_criteria,
        "generation_config": _config_of(method, plan),
        "past_key_values": None if isinstance(plan.cache, NoCache) else plan.cache,
        "use_cache": plan.config.use_cache is not False,
    }
    if plan.encoder is None:
        ones = torch.ones(len(plan.input_ids), plan.num_positions, dtype=torch.int64, device="cpu")
        ones = ones.to(plan.input_ids.device)
        arguments["attention_mask"] = ones if mask is None else mask.to(torch.int64)
        arguments |= _prompt_inputs(plan)
    else:
        arguments |= _encoder_arguments(plan)
        if mask is not None:
            arguments["decoder_attention_mask"] = mask.to(torch.int64)
    return arguments


def _prompt_inputs(plan: Plan) -> dict[str, Any]:
    """Return the caller's inputs beside the ids of the prompts."""
    given = plan.inputs
    if given is None:
        return {}
    stated = {
        "inputs_embeds": given.embeddings,
        "position_ids": given.position_ids,
        "token_type_ids": given.token_type_ids,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _encoder_arguments(plan: Plan) -> dict[str, Any]:
    """The encoder's output and mask, one row for each of the decoder's."""
    given: Any = plan.encoder
    core: Any = plan.core
    if given.encoded is None or given.encoded.states is None:
        given.encoded = core.encode(encoder_embeddings(core, given), given.attention_mask)
    states, mask = given.encoded.states, given.encoded.mask
    copies = plan.input_ids.shape[0] // states.shape[0]
    if mask is None:
        mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return {
        "encoder_outputs": BaseModelOutput(states.repeat_interleave(copies, dim=0)),
        "attention_mask": mask.repeat_interleave(copies, dim=0).to(torch.int64),
    }


def _run_generator(
    generator: Generator[Any, None, Any], rows: _CustomSequences
) -> Generator[Step, None, Any]:
    """Pass the steps of a generator method on, until it or every row has ended."""
    with contextlib.closing(UserGenerator(generator, rows.read)) as guarded:
        while True:
            try:
                found = next(guarded)
            except StopIteration as end:
                if any(rows.live):
                    yield rows.end()
                return end.value
            if not any(rows.live):
                return None  # it was told by its criteria, and goes on all the same
            yield rows.take(found)


_MOST_OF_STEP = 2**20
"""Most ids of a row in one step: far more than any context has."""

_TENSORS = ("tokens", "logits", "scores", "prompt")


class _CustomSequences(Sequences):
    """Sequences in progress, and how many ids of each were settled."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan = plan
        self.counts = [0] * len(self.live)

    def read(self, given: Any) -> Step | list[int]:
        """Read what a generator yielded, or a function put; its objects may be code of a user.

        Returns:
            A step, or one id of each row.

        Raises:
            InvalidRequestError: It is no step of these rows, or holds an id that there is not.
        """
        if not isinstance(given, Step):
            listed = given_ints(given, most=len(self.live))
            if listed is None or len(listed) != len(self.live):
                raise self._refuse(given)
            alive = [[each] if on else [] for each, on in zip(listed, self.live, strict=True)]
            self.check_ids(alive)
            return listed
        rows, reasons = (
            [given_ints(row, _MOST_OF_STEP) for row in given.token_ids],
            [*given.reasons],
        )
        known = [row for row in rows if row is not None]
        if len(known) != len(self.live) or len(reasons) not in (0, len(known)):
            raise self._refuse(given)
        if not {*reasons} <= {None, *get_args(FinishReason)}:
            raise self._refuse(reasons)
        self.check_ids(known)
        tensors = {name: plain_tensor(getattr(given, name)) for name in _TENSORS}
        return Step(known, reasons, positions=given.positions, **tensors)

    def take(self, found: Step | list[int]) -> Step:
        """A step of what was read."""
        if isinstance(found, Step):
            step = found
            for row, reason in enumerate(step.reasons):
                self.live[row] = self.live[row] and reason is None
        else:
            tokens = host_ints(found).to(self.ids.device)
            step = self.settle(
                tokens, torch.empty(len(tokens), 0, dtype=torch.float32, device=tokens.device)
            )
        for row, token_ids in enumerate(step.token_ids):
            self.counts[row] += len(token_ids)
        return step

    def rest(self, sequences: Tensor | None) -> Step:
        """The last step of a plain function: what its result has beyond what it put."""
        start, length = self.plan.input_ids.shape[1], 0
        settled: list[list[int]] = [[] for _ in self.live]
        if sequences is not None and len(sequences) == len(self.live):
            length = sequences.shape[1]
            for row, ids in enumerate(sequences[:, start:].tolist()):
                settled[row] = self._until_end(ids)[self.counts[row] :] if self.live[row] else []
        reasons = [self._reason(ids, length) if self.live[row] else None
                   for row, ids in enumerate(settled)]  # fmt: skip
        self.live = [False] * len(self.live)
        return Step(settled, reasons)

    def end(self) -> Step:
        """The last step of a generator that returned before its rows had ended."""
        reason = self.plan.stop_checks.interrupted() or "stop"
        reasons = [reason if alive else None for alive in self.live]
        self.live = [False] * len(self.live)
        return Step([[] for _ in reasons], reasons)

    def check_ids(self, rows: list[list[int]]) -> None:
        """Check that the model has all ids.

        Raises:
            InvalidRequestError: It does not have one.
        """
        size = self.plan.core.config.vocab_size
        for each in chain.from_iterable(rows):
            if not 0 <= each < size:
                allowed = f"token ids are from 0 to {size - 1}"
                raise InvalidRequestError(
                    "custom_generate", InWords(f"a method that gives {each}"), allowed
                )

    def _refuse(self, given: object) -> InvalidRequestError:
        reasons = ", ".join(get_args(FinishReason))
        allowed = (
            f"it yields one id a row, {len(self.live)}: an integer tensor [B] or [B, 1], or a list"
            f" of integers; or a `Step` of these rows, whose reasons are None, {reasons}"
        )
        what = f"a method that gives {shorten(given, 60)}"
        return InvalidRequestError("custom_generate", what, allowed)

    def _until_end(self, ids: list[int]) -> list[int]:
        """Ids up to the first that ends a sequence; what follows is padding."""
        for place, token in enumerate(ids):
            if token in self.plan.stop_checks.eos_token_ids:
                return ids[: place + 1]
        return ids

    def _reason(self, ids: list[int], length: int) -> str:
        if ids and ids[-1] in self.plan.stop_checks.eos_token_ids:
            return "stop"
        longest = self.plan.stop_checks.max_length
        is_full = longest is not None and length >= longest
        return self.plan.stop_checks.interrupted() or ("length" if is_full else "stop")


class _InterruptedError(Exception):
    """Ends a plain function that puts ids after its reader has left."""


class _TokenReceiver:
    """The ``streamer`` of a plain function."""

    def __init__(self, rows: _CustomSequences, method: CustomMethod) -> None:
        self._rows = rows
        self._method = method
        # A `generate` that a recipe calls puts the prompt first; here it is there already.
        self._skips_prompt = method.is_recipe

    def put(self, value: Tensor) -> None:
        """Take the ids ``[B]`` of a step."""
        skips, self._skips_prompt = self._skips_prompt, False
        if skips and getattr(value, "ndim", 1) == 2:
            return
        if self._method.needs_ids and self._rows.plan.stop_checks.interrupted() is not None:
            raise _InterruptedError
        assert self._method.emit is not None
        if any(self._rows.live):
            self._method.emit(self._rows.take(self._rows.read(value)))

    def end(self) -> None:
        """The end is told where the method is run."""


def _ids_of(result: Any) -> Tensor | None:
    """Sequences ``[B, T]`` in a result, if that is what it is."""
    found = plain_tensor(getattr(result, "sequences", result))
    if isinstance(found, torch.Tensor) and found.dim() == 2 and not found.is_floating_point():
        return found
    return None
