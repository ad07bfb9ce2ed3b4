"""Names of the reference's module `transformers.generation.stopping_criteria`."""

# ruff: noqa: I001
from asyncgen import (
    ConfidenceCriteria as ConfidenceCriteria,
    EosTokenCriteria as EosTokenCriteria,
    MaxLengthCriteria as MaxLengthCriteria,
    MaxTimeCriteria as MaxTimeCriteria,
    StoppingCriteria as StoppingCriteria,
    StoppingCriteriaList as StoppingCriteriaList,
    StopStringCriteria as StopStringCriteria,
)
