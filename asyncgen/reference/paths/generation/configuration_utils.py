"""Names of the reference's module `transformers.generation.configuration_utils`."""

# ruff: noqa: I001
from asyncgen import (
    BaseWatermarkingConfig as BaseWatermarkingConfig,
    CompileConfig as CompileConfig,
    ContinuousBatchingConfig as ContinuousBatchingConfig,
    GenerationConfig as GenerationConfig,
    GenerationMode as GenerationMode,
    SynthIDTextWatermarkingConfig as SynthIDTextWatermarkingConfig,
    WatermarkingConfig as WatermarkingConfig,
)
