"""Names of the reference's module `transformers.generation.candidate_generator`."""

# ruff: noqa: I001
from asyncgen import (
    AssistedCandidateGenerator as AssistedCandidateGenerator,
    CandidateGenerator as CandidateGenerator,
    EarlyExitCandidateGenerator as EarlyExitCandidateGenerator,
    PromptLookupCandidateGenerator as PromptLookupCandidateGenerator,
)
