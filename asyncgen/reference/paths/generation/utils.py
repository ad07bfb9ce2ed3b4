"""Names of the reference's module `transformers.generation.utils`."""

# ruff: noqa: I001
from asyncgen import (
    BaseStreamer as BaseStreamer,
    GenerateBeamDecoderOnlyOutput as GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput as GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput as GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput as GenerateEncoderDecoderOutput,
    GenerationConfig as GenerationConfig,
    GenerationMixin as GenerationMixin,
    GenerationMode as GenerationMode,
    LogitsProcessorList as LogitsProcessorList,
    ModelOutput as ModelOutput,
    StoppingCriteriaList as StoppingCriteriaList,
)
from asyncgen.generation.outputs import (
    GenerateBeamOutput as GenerateBeamOutput,
    GenerateNonBeamOutput as GenerateNonBeamOutput,
    GenerateOutput as GenerateOutput,
)
