"""Read a ``config.json`` into the description of a network."""

from asyncgen.families.config.editable_config import EditableConfig
from asyncgen.families.config.model_config import ModelConfig, T5Config
from asyncgen.families.plans.rope_config import QueryScaling, RopeConfig

PretrainedConfig = PreTrainedConfig = ModelConfig
"""The reference's two names of the class of `model.config`."""

__all__ = [
    "EditableConfig",
    "ModelConfig",
    "PreTrainedConfig",
    "PretrainedConfig",
    "QueryScaling",
    "RopeConfig",
    "T5Config",
]
