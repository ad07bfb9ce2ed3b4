"""Watermarks in generated text: how to put them in, and how to find them again."""

# ruff: noqa: I001
# The modules `greenlist` and `synthid` make their kind of watermark known, and its processor.
from asyncgen.generation.watermarking.bayes import (
    BayesianDetectorConfig as BayesianDetectorConfig,
    BayesianDetectorModel as BayesianDetectorModel,
    BayesianWatermarkDetectorModelOutput as BayesianWatermarkDetectorModelOutput,
)
from asyncgen.generation.watermarking.config import BaseWatermarkingConfig as BaseWatermarkingConfig
from asyncgen.generation.watermarking.detector import (
    SynthIDTextWatermarkDetector as SynthIDTextWatermarkDetector,
    WatermarkDetector as WatermarkDetector,
    WatermarkDetectorOutput as WatermarkDetectorOutput,
)
from asyncgen.generation.watermarking.greenlist import (
    WatermarkingConfig as WatermarkingConfig,
    WatermarkLogitsProcessor as WatermarkLogitsProcessor,
)
from asyncgen.generation.watermarking.synthid import (
    SynthIDTextWatermarkingConfig as SynthIDTextWatermarkingConfig,
    SynthIDTextWatermarkLogitsProcessor as SynthIDTextWatermarkLogitsProcessor,
)
