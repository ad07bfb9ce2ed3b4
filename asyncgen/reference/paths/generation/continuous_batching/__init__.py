"""Names of the reference's module `transformers.generation.continuous_batching`."""

# ruff: noqa: I001
from asyncgen import (
    ContinuousBatchingManager as ContinuousBatchingManager,
    ContinuousMixin as ContinuousMixin,
    FIFOScheduler as FIFOScheduler,
    GenerationOutput as GenerationOutput,
    PrefillFirstScheduler as PrefillFirstScheduler,
    RequestState as RequestState,
    RequestStatus as RequestStatus,
    Scheduler as Scheduler,
)
