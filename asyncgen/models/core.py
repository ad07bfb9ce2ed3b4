"""Make the module of a network: one decoder for all families, and T5 with its encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.models.decoder import DecoderLM
from asyncgen.models.encoder_decoder import T5

if TYPE_CHECKING:
    import torch

    from asyncgen.families.config import ModelConfig


def make_core(config: ModelConfig, *, dtype: torch.dtype | None = None) -> DecoderLM:
    """Make the module that computes a network, on the current default device (``meta`` too).

    Args:
        config: Description of the network.
        dtype: Of the parameters; ``None``: torch's default.
    """
    return (T5 if config.is_encoder_decoder else DecoderLM)(config, dtype=dtype)
