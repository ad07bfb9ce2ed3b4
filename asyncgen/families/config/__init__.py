"""What a ``config.json`` says about a network."""

from asyncgen.families.config.editable_config import LiveConfig
from asyncgen.families.config.model_config import ModelConfig, T5Config
from asyncgen.families.plans.rope import QueryScaling, RopeConfig

__all__ = ["LiveConfig", "ModelConfig", "QueryScaling", "RopeConfig", "T5Config"]
