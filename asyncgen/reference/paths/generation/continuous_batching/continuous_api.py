"""Names of the reference's module `transformers.generation.continuous_batching.continuous_api`."""

# ruff: noqa: I001
from asyncgen import (
    ContinuousBatchingConfig as ContinuousBatchingConfig,
    ContinuousBatchingManager as ContinuousBatchingManager,
    ContinuousMixin as ContinuousMixin,
    FIFOScheduler as FIFOScheduler,
    GenerationConfig as GenerationConfig,
    GenerationOutput as GenerationOutput,
    LogitsProcessorList as LogitsProcessorList,
    PrefillFirstScheduler as PrefillFirstScheduler,
    RequestState as RequestState,
    RequestStatus as RequestStatus,
    Scheduler as Scheduler,
    WorkloadHints as WorkloadHints,
)
