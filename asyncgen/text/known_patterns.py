"""List the regular expressions that models of the hub split and change texts with.

They are used as they are. Those whose time is not linear are here because models have them: texts
of servers are bounded in length and time all the same.
"""

from __future__ import annotations

from typing import Final

from asyncgen.checkpoints.gguf.pre_tokenizers import PATTERNS

_ENDINGS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST: Final = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_KIMI: Final = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER[:-1]}&&[^\p{{Han}}]]*{_LOWER[:-1]}&&[^\p{{Han}}]]+{_ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER[:-1]}&&[^\p{{Han}}]]+{_LOWER[:-1]}&&[^\p{{Han}}]]*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}|{_REST}"
)

_SPLITS: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",  # Seed-Coder
    (
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]"
        r"|[^\s\p{L}\p{N}]+"
    ),  # CLIP
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"[\(\)\[\]\{\}]|([!\"#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*",  # Nougat
    _O200K,
    _KIMI,
    "[0-9][0-9][0-9]",  # Falcon
    "\u2581*[^\u2581]*",
    r"\p{N}",
    r"\p{N}{1,3}",
    r"\d{1,3}(?=(?:\d{3})*\b)",  # Cohere: time of a square
    r"(?=(\d{3})+(?!\d))",  # SuperBPE: time of a square
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",  # AFMoE: time of a square
)
SQUARES: Final[dict[object, int]] = {
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))": 1,
    " +\u2581": 3,
    r"\s+$": 6,
    r"(?=(\d{3})+(?!\d))": 12,
    r"\d{1,3}(?=(?:\d{3})*\b)": 20,
}
"""Expressions that take the square of a run of digits or spaces, and how many times as long as the
first, which takes half a nanosecond for each pair."""

_CHANGES: Final = (r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"\n", r"\s+", " +")

SHORTEST_MATCHES: Final[dict[object, int]] = {" {2,}": 2, " +\u2581": 4, "^\u2581+$": 3}
"""Bytes of the shortest text that an expression matches, where it is more than one."""

KNOWN_PATTERNS: Final = frozenset[object]({*PATTERNS, *_SPLITS, *_CHANGES, *SHORTEST_MATCHES})
"""Regular expressions of models that are known; none of them matches nothing in a text but that of
SuperBPE, which only splits."""
