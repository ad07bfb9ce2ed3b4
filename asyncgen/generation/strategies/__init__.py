"""Decoding strategies: one generator of steps each, and the table that finds them by mode.

A new strategy is one file and one row in :data:`STRATEGIES`.
"""

from __future__ import annotations

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.modes import GenerationMode
from asyncgen.generation.strategies.assisted import assisted
from asyncgen.generation.strategies.contrastive import contrastive
from asyncgen.generation.strategies.dola import dola
from asyncgen.generation.strategies.greedy import greedy
from asyncgen.generation.strategies.sampling import sample
from asyncgen.generation.strategies.step import (
    Draw,
    EncoderInput,
    Outcome,
    Plan,
    Step,
    Steps,
    Strategy,
)

__all__ = [
    "STRATEGIES",
    "TOKEN_BY_TOKEN",
    "Draw",
    "EncoderInput",
    "Outcome",
    "Plan",
    "Step",
    "Steps",
    "Strategy",
    "strategy_for",
]

STRATEGIES: dict[GenerationMode, Strategy] = {
    GenerationMode.GREEDY_SEARCH: greedy,
    GenerationMode.SAMPLE: sample,
    GenerationMode.ASSISTED_GENERATION: assisted,
    GenerationMode.CONTRASTIVE_SEARCH: contrastive,
    GenerationMode.DOLA_GENERATION: dola,
}

TOKEN_BY_TOKEN: tuple[Strategy, ...] = (greedy, sample)
"""Those whose rows only ever grow at their end, by one token a step."""


def strategy_for(mode: GenerationMode) -> Strategy:
    """Find the strategy of a mode.

    Args:
        mode: As resolved by :func:`asyncgen.generation.modes.generation_mode`.

    Returns:
        The generator function.

    Raises:
        InvalidRequestError: The mode has no strategy here yet.
    """
    try:
        return STRATEGIES[mode]
    except KeyError:
        supported = ", ".join(known.value for known in STRATEGIES)
        raise InvalidRequestError(
            "generation mode", mode.value, f"not supported yet; supported are {supported}"
        ) from None
