"""Say which matrices are packed while a model is loaded, and to what codes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncgen.checkpoints.packed.quantise import Codes

_BITS: Final = {"int8": 8, "int4": 4, "nf4": 4, "fp4": 4}

_END: Final = r"(?:(?<=\.)|(?=\.|$))"


@dataclass(frozen=True, slots=True)
class PackingRequest:
    """Request to pack matrices.

    Attributes:
        codes: What numbers become.
        is_reference: Asked in the reference's words: the table of embeddings and the head stay as
            they are stored. Else these two become 8-bit integers.
        skipped: Modules that stay as they are stored, see `skips`; ``None``: the head.
    """

    codes: Codes
    is_reference: bool = False
    skipped: tuple[str, ...] | None = None

    @property
    def argument(self) -> str:
        """Name of the argument that asks it."""
        return "quantization_config" if self.is_reference else "quantize"

    @property
    def kind(self) -> tuple[bool, int]:
        """What two requests must have in common to mean the same: whose words, and bits."""
        return self.is_reference, _BITS[self.codes]

    def skips(self, source: str) -> bool:
        """Tell whether a stored matrix is one of `skipped`.

        As in the reference, an entry is the end of a module's name, or a regular expression of its
        beginning, up to a dot or the end.

        Args:
            source: Its name in the checkpoint.
        """
        module = source.removesuffix(".weight")
        return any(
            module.endswith(entry) or source == entry or re.match(f"(?:{entry}){_END}", module)
            for entry in self.skipped or ()
        )
