"""Combinations of beam parameters that cannot work, found before any work."""

from __future__ import annotations

from typing import Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.constraints import (
    Constraint,
    DisjunctiveConstraint,
    constraints_of,
)
from asyncgen.generation.watermarking import SynthIDTextWatermarkingConfig, watermark_from

__all__ = ["check_beams"]

_MOST_CONSTRAINTS = 64
"""Each is looked at for every beam and candidate of a step."""

_MOST_CANDIDATES = 2**13
"""Forms of words, times beams: each may be a candidate of a step."""

_STEEPEST = 30
"""Power of a length that a float can hold, whatever the length."""


def check_beams(config: Any) -> None:
    """Refuse what diverse and constrained beam search do not allow.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
    """
    beams = 1 if config.num_beams is None else config.num_beams
    groups = 1 if config.num_beam_groups is None else config.num_beam_groups
    if not isinstance(beams, int) or beams < 1:
        raise InvalidRequestError("num_beams", config.num_beams, "an integer of at least 1")
    if not isinstance(groups, int) or not 1 <= groups <= beams or beams % groups:
        raise InvalidRequestError(
            "num_beam_groups", groups, f"an integer that divides `num_beams` ({beams})"
        )
    penalty = config.diversity_penalty or 0.0
    if groups == 1 and penalty != 0.0:
        raise InvalidRequestError(
            "diversity_penalty", penalty, "needs several groups; set `num_beam_groups` above 1"
        )
    if groups > 1:
        if config.do_sample:
            raise InvalidRequestError(
                "do_sample", True, "must be False for diverse beam search (`num_beam_groups`)"
            )
        if not penalty > 0.0:
            raise InvalidRequestError(
                "diversity_penalty", penalty, "must be above 0, or all groups would be the same"
            )
        _refuse_memory(config)
    penalty = config.length_penalty
    if penalty is not None and (isinstance(penalty, bool) or not isinstance(penalty, int | float)):
        raise InvalidRequestError("length_penalty", penalty, "a number")
    if penalty is not None and not -_STEEPEST <= penalty <= _STEEPEST:
        allowed = f"a number from {-_STEEPEST} to {_STEEPEST}"
        raise InvalidRequestError("length_penalty", penalty, allowed)
    _check_constraints(config, beams, groups)


def _refuse_memory(config: Any) -> None:
    """Refuse processors that remember their last call: groups are processed in turn."""
    if config.guidance_scale not in (None, 1):
        raise InvalidRequestError(
            "guidance_scale", config.guidance_scale, "not together with `num_beam_groups`"
        )
    watermark = config.watermarking_config
    if watermark is not None and isinstance(
        watermark_from(watermark), SynthIDTextWatermarkingConfig
    ):
        raise InvalidRequestError(
            "watermarking_config",
            watermark,
            "a tournament watermark does not go with `num_beam_groups`; use a green list",
        )


def _check_constraints(config: Any, beams: int, groups: int) -> None:
    constraints = constraints_of(config)
    if not constraints:
        return
    if len(constraints) > _MOST_CONSTRAINTS:
        name = "force_words_ids" if config.force_words_ids is not None else "constraints"
        allowed = f"{len(constraints)} constraints; at most {_MOST_CONSTRAINTS}"
        raise InvalidRequestError(name, getattr(config, name), allowed)
    if beams == 1:
        raise InvalidRequestError("num_beams", beams, "must be above 1 for constraints")
    forms = sum(map(_num_forms, constraints))
    if forms * beams > _MOST_CANDIDATES:
        name = "force_words_ids" if config.force_words_ids is not None else "constraints"
        allowed = f"{forms} words and forms for {beams} beams; at most {_MOST_CANDIDATES // beams}"
        raise InvalidRequestError(name, getattr(config, name), allowed)
    if config.do_sample:
        raise InvalidRequestError("do_sample", True, "must be False for constraints")
    if groups > 1:
        raise InvalidRequestError("num_beam_groups", groups, "must be 1 for constraints")


def _num_forms(constraint: Constraint) -> int:
    """How many tokens a constraint may want at once."""
    return len(constraint.token_ids) if isinstance(constraint, DisjunctiveConstraint) else 1
