"""Names of the reference's module `transformers.modeling_utils`."""

from asyncgen import (
    PreTrainedModel as PreTrainedModel,
)
