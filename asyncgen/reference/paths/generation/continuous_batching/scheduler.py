"""Names of the reference's module `transformers.generation.continuous_batching.scheduler`."""

# ruff: noqa: I001
from asyncgen import (
    FIFOScheduler as FIFOScheduler,
    PrefillFirstScheduler as PrefillFirstScheduler,
    RequestState as RequestState,
    RequestStatus as RequestStatus,
    Scheduler as Scheduler,
)
