"""What a ``config.json`` says about a network."""

from asyncgen.models.config.live import LiveConfig
from asyncgen.models.config.model_config import ModelConfig, T5Config
from asyncgen.models.family.rope import QueryScaling, RopeConfig

__all__ = ["LiveConfig", "ModelConfig", "QueryScaling", "RopeConfig", "T5Config"]
