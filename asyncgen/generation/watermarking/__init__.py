"""Watermarks in generated text: how to put them in, and how to find them again."""

from __future__ import annotations

from asyncgen.generation.watermarking.bayes import (
    BayesianDetectorConfig,
    BayesianDetectorModel,
    BayesianWatermarkDetectorModelOutput,
)
from asyncgen.generation.watermarking.config import BaseWatermarkingConfig, watermark_from
from asyncgen.generation.watermarking.detector import (
    SynthIDTextWatermarkDetector,
    WatermarkDetector,
    WatermarkDetectorOutput,
)
from asyncgen.generation.watermarking.greenlist import WatermarkingConfig, WatermarkLogitsProcessor
from asyncgen.generation.watermarking.synthid import (
    SynthIDTextWatermarkingConfig,
    SynthIDTextWatermarkLogitsProcessor,
)

__all__ = [
    "BaseWatermarkingConfig",
    "BayesianDetectorConfig",
    "BayesianDetectorModel",
    "BayesianWatermarkDetectorModelOutput",
    "SynthIDTextWatermarkDetector",
    "SynthIDTextWatermarkLogitsProcessor",
    "SynthIDTextWatermarkingConfig",
    "WatermarkDetector",
    "WatermarkDetectorOutput",
    "WatermarkLogitsProcessor",
    "WatermarkingConfig",
    "watermark_from",
]
