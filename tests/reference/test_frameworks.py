"""Each documented class for TensorFlow or JAX has the right one in its place."""

from __future__ import annotations

from asyncgen.reference.frameworks import replacement
from tests.cases import for_each

PAIRS = [
    ("TFGreedySearchDecoderOnlyOutput", "GenerateDecoderOnlyOutput"),
    ("TFSampleEncoderDecoderOutput", "GenerateEncoderDecoderOutput"),
    ("TFContrastiveSearchEncoderDecoderOutput", "GenerateEncoderDecoderOutput"),
    ("TFBeamSampleDecoderOnlyOutput", "GenerateBeamDecoderOnlyOutput"),
    ("FlaxBeamSearchOutput", "GenerateBeamDecoderOnlyOutput"),
    ("FlaxSampleOutput", "GenerateDecoderOnlyOutput"),
    ("TFLogitsWarper", "LogitsProcessor"),
    ("FlaxForceTokensLogitsProcessor", "PrefixConstrainedLogitsProcessor"),
    ("FlaxTopKLogitsWarper", "TopKLogitsWarper"),
    ("TFT5ForConditionalGeneration", "T5ForConditionalGeneration"),
]


@for_each(("name", "other"), PAIRS)
def test_the_class_to_use_instead(name: str, other: str) -> None:
    assert replacement(name) == other
