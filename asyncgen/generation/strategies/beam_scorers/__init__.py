"""The documented beam scorers: they rank candidates and keep what is complete, in plain Python."""

from asyncgen.generation.strategies.beam_scorers.base import BeamHypotheses, BeamScorer
from asyncgen.generation.strategies.beam_scorers.constrained import ConstrainedBeamSearchScorer
from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer

__all__ = ["BeamHypotheses", "BeamScorer", "BeamSearchScorer", "ConstrainedBeamSearchScorer"]
