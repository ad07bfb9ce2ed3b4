"""Names of the reference's module `transformers.generation.continuous_batching.requests`."""

# ruff: noqa: I001
from asyncgen import (
    GenerationOutput as GenerationOutput,
    RequestState as RequestState,
    RequestStatus as RequestStatus,
)
