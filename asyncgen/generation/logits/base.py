"""Define logits processors: the base class, and the one definition of each kind.

A class says it in its own file, as its attribute `definition`. `build_logits_processors` makes
from it what a configuration asks for, in the documented order; the engine runs it over many rows
at once. Adding a processor is one class with one definition.
"""

from __future__ import annotations

import bisect
import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.batched import Columns
from asyncgen.runtime.plain_values import runs_user_code
from asyncgen.runtime.transfer import plain_tensor
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.batched import Batched


T = TypeVar("T")


class Stage(IntEnum):
    """Groups of processors, in the order in which they run."""

    PROCESSOR = 0
    """Those of every strategy."""
    USER = 1
    """What the user passes as objects."""
    WARPER = 2
    """Filters of the strategies that draw."""
    LAST = 3
    """Those of every strategy that must see what the filters left."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """Inputs of guidance beside the scale.

    Attributes:
        model: Computes the scores of the other branch.
        negative_prompt_ids: What that branch begins with, int64 [B, S]; None is the last token
            of the prompt.
        negative_prompt_attention_mask: [B, S], zero at padding; None where nothing is padded.
    """

    model: Callable[..., Any]
    negative_prompt_ids: Tensor | None = None
    negative_prompt_attention_mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Values for building a processor beside that of its parameter.

    Attributes:
        config: All fields.
        prompt_length: Length of the prompt, padding included.
        eos_token_ids: Ids that end a sequence, int64 [N], or None.
        device: Where scores will be.
        padding: Left padding of each row, int64 [B], which is no token to penalise; None where
            nothing is padded.
        encoder_input_ids: What the encoder read, or the prompt of a model without one, int64
            [B, T]; None where there are no ids.
        vocab_size: Tokens of the model, which a watermark needs; None where it is not known.
        guidance: What classifier-free guidance computes with; None where it cannot.
        tail_only: Whether rows only ever change at their end, as they do not with beams. Then
            what looks at past tokens costs the same however many there are.
        arguments: Parameters that are no fields of the configuration.
    """

    config: GenerationConfig
    prompt_length: int
    eos_token_ids: Tensor | None
    device: str | torch.device
    padding: Tensor | None = None
    encoder_input_ids: Tensor | None = None
    vocab_size: int | None = None
    guidance: Guidance | None = None
    tail_only: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """Return what was given under this name, as an argument or a field; None if nothing."""
        return self.arguments[name] if name in self.arguments else getattr(self.config, name, None)

    @property
    def beams(self) -> tuple[int, int]:
        """Beams of a prompt, and the groups that they are divided into."""
        return self.config.num_beams or 1, self.config.num_beam_groups or 1

    @property
    def keep(self) -> int:
        """Tokens that a filter must leave: with beams, one that goes on beside every end token."""
        if self.beams[0] <= 1:
            return 1
        return 2 if self.eos_token_ids is None else len(self.eos_token_ids) + 1

    def encoder_ids(self, name: str) -> Tensor:
        """Return the ids that the encoder read, for the parameter of a name.

        Raises:
            InvalidRequestError: There are none.
        """
        return self.needed(self.encoder_input_ids, name, "needs the token ids of the prompt")

    def needed(self, what: T | None, name: str, allowed: str) -> T:
        """Return what the parameter of a name cannot do without.

        Raises:
            InvalidRequestError: It is not there.
        """
        if what is None:
            raise InvalidRequestError(name, self.value(name), allowed)
        return what


def build_filter(kind: Any, value: Any, setting: BuildContext) -> Any:
    """Build a filter that must leave so many tokens."""
    return kind(value, min_tokens_to_keep=setting.keep)


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """One kind of processor.

    Attributes:
        stage: The group it belongs to.
        rank: Its place in the group; kinds with lower numbers run first.
        parameter: The field of the configuration, or the argument, that asks for it; None where
            the field of another kind makes it.
        off: The value that does not ask for it, as None never does.
        is_on: Whether any other value asks for it; None where all do.
        build: Makes one: of the class, the value and the setting.
        needs_eos: Whether it is left out where no token ends a sequence.
        batched: Lays out processors of this kind, one or none a row, to run over all rows at once
            (see `batched`); None where they run one by one.
        fits: Whether ``batched`` can do what a processor does to so many scores.
        listed: The column of the shortlist (`asyncgen.engine.sampling.shortlist`) that a
            processor fills, and with what; None where the largest scores do not decide.
        for_sample: Returns the object for one sample of a request, which has a number: the
            processor itself, or a copy where it keeps something of the sequence.
    """

    stage: Stage
    rank: int
    parameter: str | None = None
    _: KW_ONLY
    off: float | None = None
    is_on: Callable[[Any], bool] | None = None
    build: Callable[[Any, Any, BuildContext], Any] = lambda kind, value, _: kind(value)
    needs_eos: bool = False
    batched: Batched | None = None
    fits: Callable[[Any, int], bool] = lambda *_: True
    listed: tuple[str, Callable[[Any], float]] | None = None
    for_sample: Callable[[Any, int], Any] = lambda own, _: own

    def wants(self, value: Any) -> bool:
        """Return whether a value of its parameter turns it on."""
        if value is None or (self.off is not None and value == self.off):
            return False
        return self.is_on is None or self.is_on(value)

    @property
    def place(self) -> tuple[int, int]:
        """Place among all kinds."""
        return self.stage, self.rank


_KINDS: list[Any] = []


def register(kind: Any) -> None:
    """Take a class in that has a definition, in place of one of its name, as in a notebook."""
    name = kind.__module__, kind.__qualname__
    _KINDS[:] = [each for each in _KINDS if (each.__module__, each.__qualname__) != name]
    bisect.insort(_KINDS, kind, key=lambda each: each.definition.place)


def processor_classes(*stages: Stage) -> list[Any]:
    """Return the classes that are defined, in the documented order; all, or of some stages."""
    return [kind for kind in _KINDS if not stages or kind.definition.stage in stages]


def definition_of(processor: object) -> Definition | None:
    """Return the definition of a processor's own class: one that is derived may do anything."""
    return vars(type(processor)).get("definition")


def as_float(value: Any) -> Any:
    """Let a whole number pass where a float is meant, as JSON writers send them."""
    return float(value) if type(value) is int else value


Parameter: TypeAlias = "float | Tensor"
"""One value for all rows, or a column of one value per row, [B, 1].

A float64 column gives every row bit for bit what its value alone would give as a number.
"""


class LogitsProcessor(ABC):
    """Changes the scores of the next token.

    The built-in ones wrap a pure function and never modify their input; where they have nothing
    to change they may return the very tensor they were given.

    Attributes:
        definition: What the class says of itself; it holds for the class alone, and not for those
            that are derived from it.
    """

    definition: ClassVar[Definition | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make a class known that has a definition."""
        super().__init_subclass__(**kwargs)
        if vars(cls).get("definition") is not None:
            register(cls)

    @abstractmethod
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores to go on with.

        Args:
            input_ids: Token ids so far, prompt included, int64 [B, T].
            scores: Scores of the next token, [B, V]; -inf is banned.

        Returns:
            Scores of the same shape and dtype.
        """


class ColumnsProcessor(LogitsProcessor):
    """Applies the function of its definition's `Columns`, which does the same for many rows."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply the function; scores are [B, V]."""
        assert self.definition is not None and isinstance(self.definition.batched, Columns)
        return self.definition.batched.alone(self, scores)


class FilterWarper(ColumnsProcessor):
    """Bans unlikely tokens, but leaves some in every row.

    Attributes:
        filter_value: Score of a banned token.
        min_tokens_to_keep: Tokens that are left at least.
    """

    def __init__(self, filter_value: float, min_tokens_to_keep: int) -> None:
        """Check the number of tokens.

        Args:
            filter_value: Score of a banned token.
            min_tokens_to_keep: Tokens that are left at least; 1 or more.

        Raises:
            InvalidRequestError: ``filter_value`` is no number, or ``min_tokens_to_keep`` is not a
                positive integer.
        """
        self.filter_value = check_number("filter_value", filter_value)
        self.min_tokens_to_keep = check_count("min_tokens_to_keep", min_tokens_to_keep)


class LogitsProcessorList(list[Callable[..., Any]]):
    """Processors that run one after the other.

    A processor with further parameters beside the two documented ones gets them from the keyword
    arguments of the call.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Run all processors.

        Args:
            input_ids: Token ids so far, int64 [B, T].
            scores: Scores of the next token, [B, V].
            kwargs: Arguments for processors that ask for more.

        Returns:
            Processed scores, [B, V].

        Raises:
            ValueError: A processor needs an argument that ``kwargs`` does not have.
        """
        for processor in self:
            scores = self._run(processor, input_ids, scores, kwargs)
        return scores

    @staticmethod
    def _run(
        processor: Callable[..., Any], input_ids: Tensor, scores: Tensor, kwargs: dict[str, Any]
    ) -> Any:
        """Run one processor with the arguments that it asks for."""
        if runs_user_code(processor):
            return run_user_code(_call, processor, input_ids, scores, kwargs)
        return _call(processor, input_ids, scores, kwargs)


def _call(
    processor: Callable[..., Any], input_ids: Tensor, scores: Tensor, kwargs: dict[str, Any]
) -> Any:
    owner: Any = processor if inspect.isroutine(processor) else type(processor)
    wanted = _extra_parameters(owner)
    given = _select_arguments(processor, wanted, kwargs) if wanted else {}
    return plain_tensor(processor(input_ids, scores, **given))


def _select_arguments(
    processor: object, wanted: list[inspect.Parameter], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Choose the arguments that a processor wants."""
    named = {each.name: each.default for each in wanted if each.kind is not each.VAR_KEYWORD}
    required = [name for name, default in named.items() if default is inspect.Parameter.empty]
    missing = [name for name in required if name not in kwargs]
    if missing:
        raise ValueError(
            f"{type(processor).__name__} needs the arguments {missing}; pass them to the list"
        )
    takes_all = len(named) < len(wanted)
    return kwargs if takes_all else {name: kwargs[name] for name in named if name in kwargs}


@functools.lru_cache(maxsize=1024)
def _extra_parameters(owner: Any) -> list[inspect.Parameter]:
    """Find what a function, or the calls of a class, want beyond the two documented arguments."""
    is_class = isinstance(owner, type)
    # The first parameter of a method is the instance.
    skip = 3 if is_class else 2
    signature = inspect.signature(owner.__call__ if is_class else owner)
    extra = list(signature.parameters.values())[skip:]
    return [each for each in extra if each.kind is not each.VAR_POSITIONAL]


def round_to_dtype(parameter: Parameter, scores: Tensor) -> Parameter:
    """Round a column to the dtype of the scores, as torch does with a number by itself."""
    return parameter.to(scores.dtype) if isinstance(parameter, Tensor) else parameter


def is_finite(value: Any) -> bool:
    """Tell whether a value is a number that a float can be; booleans are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def check_positive(name: str, value: object, note: str = "") -> float:
    """Check a float that a processor is built with, and return it.

    Raises:
        InvalidRequestError: It is no float above 0.
    """
    if not isinstance(value, float) or not value > 0:
        raise InvalidRequestError(name, value, f"must be a float above 0{note}")
    return value


def check_number(name: str, value: Any, allowed: str = "must be a number") -> float:
    """Check a number that a processor is built with, infinite ones included; return it as a float.

    Raises:
        InvalidRequestError: It is none, but perhaps a text that reads like one.
    """
    try:
        number = None if isinstance(value, bool | str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = None
    if number is None or number != number:
        raise InvalidRequestError(name, value, allowed)
    return number


def check_share(name: str, value: Any, *, open_interval: bool = False) -> float:
    """Check a probability that a processor is built with.

    Args:
        name: Name of the parameter.
        value: Given value.
        open_interval: Refuse 0 and 1 as well.

    Returns:
        The value as a float.

    Raises:
        InvalidRequestError: It is out of range.
    """
    allowed = "must be a float " + ("above 0 and below 1" if open_interval else "from 0 to 1")
    share = check_number(name, value, allowed)
    if not 0 <= share <= 1 or (open_interval and share in (0, 1)):
        raise InvalidRequestError(name, value, allowed)
    return share


def check_count(name: str, value: object, least: int = 1) -> int:
    """Check a count that a processor is built with.

    Args:
        name: Name of the parameter.
        value: What was given.
        least: Smallest value allowed.

    Returns:
        The value.

    Raises:
        InvalidRequestError: It is no integer, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequestError(name, value, f"must be an integer of at least {least}")
    return value


def check_ids(name: str, value: Any) -> Tensor:
    """Check token ids of rows, int64 [B, T] or [T], that a processor is built with.

    Returns:
        The tensor.

    Raises:
        InvalidRequestError: It is no tensor of integers.
    """
    is_tensor = isinstance(value, Tensor) and value.dim() in (1, 2)
    if not is_tensor or value.is_floating_point() or value.dtype == torch.bool:
        allowed = "must be a tensor of integers [batch, length]"
        raise InvalidRequestError(name, value, allowed)
    return value
