"""Names of the reference's module `transformers.generation.beam_search`."""

# ruff: noqa: I001
from asyncgen import (
    BeamHypotheses as BeamHypotheses,
    BeamScorer as BeamScorer,
    BeamSearchScorer as BeamSearchScorer,
    ConstrainedBeamSearchScorer as ConstrainedBeamSearchScorer,
)
