"""Name the classes to use in the place of those for TensorFlow and JAX."""

from __future__ import annotations

import re

_SEARCHES = re.compile(
    r"(GreedySearch|Sample|ContrastiveSearch|BeamSearch|BeamSample)"
    r"(DecoderOnly|EncoderDecoder)?Output"
)
"""Outputs of a decoding method; those of torch are named by what they hold."""

_OTHER = {
    "LogitsWarper": "LogitsProcessor",
    "ForceTokensLogitsProcessor": "PrefixConstrainedLogitsProcessor",
}
"""Classes that torch has under another name, or whose work another one does."""


def replacement(name: str) -> str:
    """Return the name to use instead; it need not exist.

    Args:
        name: A name that begins with "TF" or "Flax".
    """
    rest = name.removeprefix("TF").removeprefix("Flax")
    if output := _SEARCHES.fullmatch(rest):
        beam = "Beam" if output[1].startswith("Beam") else ""
        return f"Generate{beam}{output[2] or 'DecoderOnly'}Output"
    return _OTHER.get(rest, rest)
