"""List each documented name or parameter that differs here, with the reason.

Written by hand, and held to: a name that is here, or a call that is no longer refused, fails a test
until its line is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.generation.config.parameters import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ABSENT", "DIFFERENT", "NOT_YET", "REFUSED", "differences"]

ABSENT = {
    "AutoProcessor": "images and sound are not read: text in, text out",
    "MusicgenForConditionalGeneration": "no models of sound",
    "WhisperForConditionalGeneration": "no models of sound; its logits processors are here",
}
"""Names that examples import, and that are not here."""

DIFFERENT = {
    "GenerationMixin.generate(synced_gpus)": "accepted without effect: there is one device",
    "GenerationConfig.compile_config": "accepted without effect, which is logged once: a decode "
    "step runs in compiled kernels, and on CUDA in a recorded graph",
    "GenerationConfig.continuous_batching_config": "read by `generate_batch` and managers alone",
    "GenerationConfig.disable_compile": "accepted without effect: nothing is compiled by itself",
    "GenerationConfig.is_assistant": "accepted without effect: a draft is known by its argument",
    "GenerationConfig.assistant_confidence_threshold": "adapts to what was right, as documented; "
    "transformers does so only where scikit-learn is installed",
    "SinkCache": "positions are those in the cache also beyond the first window, see "
    "[caches](caches.md#attention-sinks)",
    "WatermarkDetector": "padding on the left is no text; transformers counts it, or refuses it",
    "StoppingCriteriaList": "a criterion that the configuration makes as well is an error, as "
    "documented; newer releases of transformers warn. A `MaxLengthCriteria` alone sets the length",
    "TextStreamer": "beam search is shown once it is complete; transformers refuses it",
    "BitsAndBytesConfig": "8 bits have a scale for each 32 inputs, not for each row; "
    "`bnb_4bit_use_double_quant` is accepted without effect",
    "pipeline": 'the task is `"text-generation"`',
}
"""What is here and does something else; a parameter of a method stands in parentheses."""


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {}
"""What is here and is refused where it is used, with a call that shows it."""

NOT_YET: dict[str, tuple[str, str]] = {}
"""Code blocks of the documents that do not run yet: the name that fails, and how.

One that runs leaves this list, or a test fails.
"""


def differences() -> dict[str, str]:
    """Every difference by place: ``Class``, ``Class.method``, ``Class.method(parameter)``."""
    refused = {
        f"GenerationConfig.{field.name}": f"some values are refused: {field.awaits}"
        for field in FIELDS
        if field.awaits is not None
    }
    shown = {name: why for name, (why, _) in REFUSED.items()}
    return {**ABSENT, **DIFFERENT, **refused, **dict(NOT_YET.values()), **shown}
