"""Refuse combinations of parameters that cannot work: one table for each part of decoding.

A row names the parameter that is refused, the case in which it is, and what is said then. Rows are
held to in order, so the first one that fits is the one that a user reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.config.parameters import DRAFTING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a call, as the tables read them.

    Attributes:
        config: An object with the fields of `GenerationConfig` as attributes.
        given: Parameters that the call itself gave.
        mode: Its strategy; ``None`` where the rows do not depend on it.
    """

    config: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    mode: GenerationMode | None = None

    def value(self, name: str) -> Any:
        """Return the value of a parameter; ``None`` where it is not set."""
        return self.given.get(name, getattr(self.config, name, None))

    @property
    def beams(self) -> Any:
        """Number of beams."""
        return 1 if self.config.num_beams is None else self.config.num_beams

    @property
    def groups(self) -> Any:
        """Number of groups of beams."""
        return 1 if self.config.num_beam_groups is None else self.config.num_beam_groups


@dataclass(frozen=True, slots=True)
class Combination:
    """One case that is refused.

    Attributes:
        name: The parameter that the error names.
        is_wrong: Tells whether the case is there.
        allowed: Words of the error; ``{mode}`` and ``{beams}`` are filled in.
    """

    name: str
    is_wrong: Callable[[Parameters], object]
    allowed: str


def check_combinations(table: Iterable[Combination], parameters: Parameters) -> None:
    """Hold parameters to the rows of a table.

    Raises:
        InvalidRequestError: Names the parameter of the first row that fits, its value and what is
            allowed.
    """
    for row in table:
        if row.is_wrong(parameters):
            mode = parameters.mode
            allowed = row.allowed.format(mode=mode and mode.value, beams=parameters.beams)
            raise InvalidRequestError(row.name, parameters.value(row.name), allowed)


SAMPLES = (
    Combination(
        "num_return_sequences",
        lambda of: of.beams == 1 and not of.config.do_sample,
        "must be 1 for greedy decoding; set `do_sample=True` or `num_beams` above 1",
    ),
    Combination(
        "num_return_sequences",
        lambda of: of.beams != 1 and of.config.num_return_sequences > of.beams,
        "must not exceed `num_beams` ({beams})",
    ),
)
"""Several samples of a prompt: drawn, or the best of its beams."""


def _remembers(watermark: Any) -> bool:
    """Tell whether a watermark remembers what a row has generated."""
    if watermark is None:
        return False
    from asyncgen.generation.watermarking.config import watermark_from

    return watermark_from(watermark).remembers


BEAMS = (
    Combination(
        "num_beams",
        lambda of: not isinstance(of.beams, int) or of.beams < 1,
        "an integer of at least 1",
    ),
    Combination(
        "num_beam_groups",
        lambda of: (
            not isinstance(of.groups, int) or not 1 <= of.groups <= of.beams or of.beams % of.groups
        ),
        "an integer that divides `num_beams` ({beams})",
    ),
    Combination(
        "diversity_penalty",
        lambda of: of.groups == 1 and (of.config.diversity_penalty or 0.0) != 0.0,
        "needs several groups; set `num_beam_groups` above 1",
    ),
    Combination(
        "do_sample",
        lambda of: of.groups > 1 and of.config.do_sample,
        "must be False for diverse beam search (`num_beam_groups`)",
    ),
    Combination(
        "diversity_penalty",
        lambda of: of.groups > 1 and not (of.config.diversity_penalty or 0.0) > 0.0,
        "must be above 0, or all groups would be the same",
    ),
    # Groups are processed in turn: what remembers what it has seen does not go with them.
    Combination(
        "guidance_scale",
        lambda of: of.groups > 1 and of.config.guidance_scale not in (None, 1),
        "not together with `num_beam_groups`",
    ),
    Combination(
        "watermarking_config",
        lambda of: of.groups > 1 and _remembers(of.config.watermarking_config),
        "a tournament watermark does not go with `num_beam_groups`; use a green list",
    ),
)
"""Beams, and the groups that they are divided into."""


_DRAFTERS = ("assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens")
"""Ways to draft tokens, of which a call takes one."""


def _useless(name: str, mode: GenerationMode) -> Combination:
    """Refuse a parameter that a call gives to another strategy than its own."""
    return Combination(
        name,
        lambda of: of.mode is not mode and of.given.get(name) not in (None, False, 0),
        "has no effect in {mode}",
    )


def _drafts(name: str) -> Combination:
    """Refuse drafts where the strategy takes none."""
    return Combination(
        name,
        lambda of: of.mode is not GenerationMode.ASSISTED_GENERATION and of.value(name) is not None,
        "has no effect in {mode}; leave it out",
    )


def _second(name: str, first: str) -> Combination:
    """Refuse a second way to draft."""
    return Combination(
        name,
        lambda of: of.value(name) is not None and of.value(first) is not None,
        f"`{first}` drafts already; give one of them",
    )


def _needs_model(name: str) -> Combination:
    """Refuse a parameter of draft models without one."""
    model, early_exit, lookup = _DRAFTERS
    return Combination(
        name,
        lambda of: (
            name in of.given
            and (
                of.value(lookup) is not None
                or of.value(model) is None
                and of.value(early_exit) is None
            )
        ),
        "needs `assistant_model` or `assistant_early_exit`",
    )


STRATEGIES = (
    _useless("penalty_alpha", GenerationMode.CONTRASTIVE_SEARCH),
    _useless("low_memory", GenerationMode.CONTRASTIVE_SEARCH),
    _useless("dola_layers", GenerationMode.DOLA_GENERATION),
    *(_drafts(name) for name in _DRAFTERS),
    _second(_DRAFTERS[1], _DRAFTERS[0]),
    _second(_DRAFTERS[2], _DRAFTERS[0]),
    _second(_DRAFTERS[2], _DRAFTERS[1]),
    Combination(
        "assistant_tokenizer",
        lambda of: "assistant_tokenizer" in of.given and of.value("assistant_model") is None,
        "needs `assistant_model`",
    ),
    *(_needs_model(name) for name in DRAFTING),
)
"""Parameters of one strategy, in a request for another; and help of two kinds."""

COMBINATIONS = BEAMS + STRATEGIES
"""All that a stream is held to, once its strategy is known."""
