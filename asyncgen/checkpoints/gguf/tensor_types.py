"""List the types of tensors in GGUF files: plain numbers, or blocks of packed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TensorType:
    """A type of tensors.

    Attributes:
        name: Name in llama.cpp.
        numbers: Numbers in a block.
        num_bytes: Bytes of a block.
        plain: Dtype of the numbers in the spelling of safetensors; ``None``: they are packed.
    """

    name: str
    numbers: int
    num_bytes: int
    plain: str | None = None


TENSOR_TYPES: Final = {
    0: TensorType("F32", 1, 4, "F32"),
    1: TensorType("F16", 1, 2, "F16"),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1, "I8"),
    25: TensorType("I16", 1, 2, "I16"),
    26: TensorType("I32", 1, 4, "I32"),
    27: TensorType("I64", 1, 8, "I64"),
    28: TensorType("F64", 1, 8, "F64"),
    30: TensorType("BF16", 1, 2, "BF16"),
    39: TensorType("MXFP4", 32, 17),
}
"""Supported types, by their number in the file."""

UNSUPPORTED_TYPES: Final = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}
"""Known types that are not supported."""
