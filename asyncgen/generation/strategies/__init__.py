"""Decoding strategies: one generator of steps each, and the table that finds them by mode.

A new strategy is one file and one row in :data:`STRATEGIES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.strategies.assisted import assisted
from asyncgen.generation.strategies.beam import beam_sample, beam_search
from asyncgen.generation.strategies.contrastive import contrastive
from asyncgen.generation.strategies.dola import dola
from asyncgen.generation.strategies.scored_beams import (
    constrained_beam_search,
    group_beam_search,
)
from asyncgen.generation.strategies.token_by_token import greedy, sample

if TYPE_CHECKING:
    from asyncgen.generation.strategies.step import Strategy

_GROWING: dict[GenerationMode, Strategy] = {
    GenerationMode.GREEDY_SEARCH: greedy,
    GenerationMode.SAMPLE: sample,
    GenerationMode.ASSISTED_GENERATION: assisted,
    GenerationMode.CONTRASTIVE_SEARCH: contrastive,
    GenerationMode.DOLA_GENERATION: dola,
}
STRATEGIES: dict[GenerationMode, Strategy] = _GROWING | {
    GenerationMode.BEAM_SEARCH: beam_search,
    GenerationMode.BEAM_SAMPLE: beam_sample,
    GenerationMode.GROUP_BEAM_SEARCH: group_beam_search,
    GenerationMode.CONSTRAINED_BEAM_SEARCH: constrained_beam_search,
}

TAIL_ONLY = frozenset(_GROWING)
"""Modes whose rows only ever change at their end.

Between two calls of the processors a row becomes longer, or a draft is taken back and its first
wrong token replaced: all tokens but the last of a call are those of the call before, as far as
that one reached.
"""


def strategy_for(mode: GenerationMode) -> Strategy:
    """Find the strategy of a mode; every mode has one."""
    return STRATEGIES[mode]
