"""Names of the reference's module `transformers.modeling_outputs`."""

# ruff: noqa: I001
from asyncgen import (
    BaseModelOutput as BaseModelOutput,
    CausalLMOutputWithPast as CausalLMOutputWithPast,
    Seq2SeqLMOutput as Seq2SeqLMOutput,
)
