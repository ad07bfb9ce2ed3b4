"""Names of the reference's module `transformers.utils`."""

# ruff: noqa: I001
from asyncgen import (
    ModelOutput as ModelOutput,
    PushToHubMixin as PushToHubMixin,
)
