"""Names of the reference's module `transformers.generation.beam_constraints`."""

# ruff: noqa: I001
from asyncgen import (
    Constraint as Constraint,
    ConstraintListState as ConstraintListState,
    DisjunctiveConstraint as DisjunctiveConstraint,
    PhrasalConstraint as PhrasalConstraint,
)
