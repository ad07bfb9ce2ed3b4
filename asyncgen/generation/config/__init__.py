"""`GenerationConfig`: its fields, their rules, and the forms in which it is kept."""

from asyncgen.generation.config.generation_config import (
    CONFIG_FILE,
    CompileConfig,
    GenerationConfig,
)

__all__ = ["CONFIG_FILE", "CompileConfig", "GenerationConfig"]
