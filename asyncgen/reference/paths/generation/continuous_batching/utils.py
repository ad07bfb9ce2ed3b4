"""Names of the reference's module `transformers.generation.continuous_batching.utils`."""

from asyncgen import (
    WorkloadHints as WorkloadHints,
)
