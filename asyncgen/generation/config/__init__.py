"""`GenerationConfig`: its fields, their rules, and the forms in which it is kept."""

from asyncgen.generation.config.generation_config import (
    CONFIG_FILE,
    CompileConfig,
    GenerationConfig,
)
from asyncgen.generation.config.parameters import STREAM_PARAMETERS

__all__ = ["CONFIG_FILE", "STREAM_PARAMETERS", "CompileConfig", "GenerationConfig"]
