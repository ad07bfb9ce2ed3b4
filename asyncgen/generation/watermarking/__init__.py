"""Watermarks in generated text: how to put them in, and how to find them again."""

# Each of these makes its kind of watermark known, and the processor that puts it in.
from asyncgen.generation.watermarking import greenlist, synthid  # noqa: F401
