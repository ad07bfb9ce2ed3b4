"""Bound what the expressions of known models take over runs of digits or spaces.

The library of `tokenizers` cannot be stopped, and some of these expressions take the square of a
run. What the steps take is bounded in `text_growth`, what a model takes in `tokenizer_parts`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from asyncgen.errors import InvalidRequestError, InWords, ModelLoadError, shorten
from asyncgen.text.known_patterns import SQUARES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_PAIRS: Final = 4_000_000_000
"""Pairs of characters within runs of digits or spaces: two seconds of the quickest expression."""

_RUN: Final = 1024  # characters of a run that is worth a look
_SLICE: Final = 2**16  # characters between which other threads may run
_NUMBERS: Final = 0x20000  # code behind the last number of Unicode


def squares_of(place: object, steps: Sequence[tuple[str, Mapping[str, Any]]]) -> int:
    """Return how long the expressions take that take the square of a run; 0 if there are none.

    Args:
        place: The file, for messages.
        steps: Steps with the names of their chains.

    Raises:
        ModelLoadError: One would see runs that are not those of the text.
    """
    most, maker = 0, ""
    for chain in ("normalizer", "pre_tokenizer", "decoder"):
        for part in (part for name, part in steps if name == chain):
            pattern = part.get("pattern")
            regex = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(regex, str) and regex in SQUARES:
                if chain == "decoder" or maker:
                    where = f"behind the step {maker[:80]!r}" if maker else "of the decoder"
                    raise ModelLoadError(
                        f"{place}: the regular expression {shorten(regex)} of `{chain}` is "
                        f"refused {where}: it takes the square of a run of digits or spaces, which "
                        "may be made there; it is used as the first step only"
                    )
                most = max(most, SQUARES[regex])
            if _makes_runs(part):
                maker = str(part.get("type", "Replace"))
    return most


def check_runs(texts: Sequence[str], squares: int) -> None:
    """Refuse texts of which one's runs of digits or spaces would take minutes.

    Args:
        texts: The texts.
        squares: Of its tokenizer, from `squares_of`.

    Raises:
        InvalidRequestError: Says how long the longest run is.
    """
    for text in texts if squares else ():
        _check_runs(text, squares)


def _check_runs(text: str, squares: int) -> None:
    pairs, longest = 0, 0
    for run in _runs(text) if len(text) >= _RUN else ():
        pairs, longest = pairs + run * run * squares, max(longest, run)
    if pairs > MOST_PAIRS:
        most = int((MOST_PAIRS / squares) ** 0.5)
        raise InvalidRequestError(
            "text",
            InWords(f"a text of {len(text)} characters"),
            f"the tokenizer takes too long over its runs of digits or spaces, the longest of "
            f"{longest}: at most {most} in one run",
        )


def _runs(text: str) -> Iterator[int]:
    """Yield the lengths of long runs; other threads may run between slices."""
    begun = ended = 0
    for start in range(0, len(text), _SLICE):
        for found in _run_pattern().finditer(text, start, start + _SLICE):
            if found.start() != ended or found.start() != start:
                if ended - begun >= _RUN:
                    yield ended - begun
                begun = found.start()
            ended = found.end()
    if ended - begun >= _RUN:
        yield ended - begun


@cache
def _run_pattern() -> re.Pattern[str]:
    numbers = (code for code in range(_NUMBERS) if unicodedata.category(chr(code))[0] == "N")
    ranges: list[list[int]] = []
    for code in numbers:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    inside = "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
    return re.compile(f"[{inside}]+|\\s+")


def _makes_runs(part: Mapping[str, Any]) -> bool:
    """Tell whether a step puts in digits or spaces."""
    return any(
        isinstance(text, str)
        and any(letter.isspace() or unicodedata.category(letter)[0] == "N" for letter in text)
        for text in (part.get("content"), part.get("prepend"), part.get("replacement"))
    )
