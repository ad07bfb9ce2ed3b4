"""Time a regular expression on texts that are hard for one; run as a process of its own.

Reads the expression from its input, and writes JSON: null, or why it is refused. It imports nothing
but `tokenizers`, from the folder that is its argument. See `pattern_trial`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = 2048
"""Characters of the shortest run."""
STEPS = ((1, 8, 24.0), (8, 32, 8.0))
"""Two lengths of a run, and how much longer the second one takes at most: between what is linear
(8 and 4 times) and the square (64 and 16). Both must be passed, unless it is plain."""
QUICK = 0.004
"""Seconds in which a run is done by any expression that is linear."""
PLAIN = 0.1
"""Seconds after which there is no doubt."""
SLOW = 0.05
"""Seconds of the longer text of the first pair, at most: 3 microseconds for each character."""
MOST_SECONDS = 5
MOST_BYTES = 2 * 1024**3

_CLASSES = "aA1 \n.'_é漢"
_MORE = ("\t", "\r\n", "/", "!", "(", "한", "あ", "ع", "क", "e\u0301", "😀", "\u00a0", "½", "'s")
_ENDS = ("", "!", "a", "\n")
_MOST_WRITTEN = 64
_MOST_STARTS = 8
_ESCAPED = re.compile(r"\\(?:x\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")


def texts(pattern: str) -> Iterator[tuple[str, str, str]]:
    """Yield the beginning of a text, what is repeated in it, and its end.

    Repeated are a character of each class, pairs of these, and what the expression spells out.
    """
    plain = _ESCAPED.sub(lambda found: chr(int(next(filter(None, found.groups())), 16)), pattern)
    words = [*dict.fromkeys(re.findall(r"\w{2,}", plain))][:_MOST_WRITTEN]
    letters = [*dict.fromkeys(plain)][:_MOST_WRITTEN]
    pairs = map("".join, itertools.permutations(_CLASSES, 2))
    for run in dict.fromkeys([*_CLASSES, *_MORE, *words, *letters]):
        for end in _ENDS:
            yield "", run, end
    for run in pairs:
        for end in _ENDS[:2]:
            yield "", run, end
    for start in (*words[:_MOST_STARTS], *letters[:_MOST_STARTS]):
        for run in dict.fromkeys([*_CLASSES, *letters[:_MOST_STARTS]]):
            yield start, run, "!"


def trouble(pattern: str) -> str | None:
    """Say on what text an expression takes more time than one that grows with the text."""
    from tokenizers import Regex
    from tokenizers.normalizers import Replace

    try:
        search = Replace(Regex(pattern), "")  # the same search as any other step
    except Exception as error:
        return f"it is none ({str(error)[:200]})"
    for text in texts(pattern):
        try:
            is_steep = _is_steep(search, *text)
        except _SlowError:
            return f"it takes longer than it may over a long run of {text[1]!r}"
        except BaseException as error:  # a panic of the library
            return f"it gives up over a long run of {text[1]!r} ({str(error)[:200]})"
        if is_steep:
            return f"its time grows faster than a long run of {text[1]!r}"
    return None


class _SlowError(Exception):
    """An expression is linear, and slow all the same."""


def _is_steep(search: Any, start: str, run: str, end: str) -> bool:
    for few, many, most in STEPS:
        short, long = (start + run * (LENGTH * each // len(run)) + end for each in (few, many))
        times: list[float] = []
        while len(times) < 3:
            times.append(_seconds(search, long))
            if times[-1] < QUICK:
                return False
            if times[-1] > PLAIN:
                break
        if min(times) <= most * min(_seconds(search, short) for _ in range(3)):
            if few == 1 and min(times) > SLOW:
                raise _SlowError
            return False
        if min(times) > PLAIN:
            return True
    return True


def _seconds(search: Any, text: str) -> float:
    start = time.process_time()
    search.normalize_str(text)
    return time.process_time() - start


def limit() -> None:
    """Bound the time and the memory of this process, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    limit()
    print(json.dumps(trouble(sys.stdin.buffer.read().decode())))  # noqa: T201
