"""Names of the reference's module `transformers.configuration_utils`."""

# ruff: noqa: I001
from asyncgen import (
    PreTrainedConfig as PreTrainedConfig,
    PretrainedConfig as PretrainedConfig,
)
