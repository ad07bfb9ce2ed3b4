"""Time a regular expression on texts that are hard for one; run as a process of its own.

Reads the expression from its input, and writes JSON: null, or why it is refused; and on another
line the seconds that it took. It imports nothing but `tokenizers`, from the folder that is its
argument. See `pattern_trial`.
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
FIRST = 256
"""Characters of a run that is tried before the others, which a cube would not end."""
QUICK = 0.004
"""Seconds in which a run is done by any expression that is linear."""
PLAIN = 0.1
"""Seconds after which there is no doubt."""
SLOW = 0.05
"""Seconds of the longer text of the first pair, at most: 3 microseconds for each character."""
MOST_SECONDS = 3
MOST_BYTES = 2 * 1024**3

_CLASSES = "aA1 \n.'_é漢"
_MORE = ("\t", "\r\n", "/", "!", "(", "한", "あ", "ع", "क", "e\u0301", "😀", "\u00a0", "½", "'s")
_ENDS = ("", "!", "a", "\n")
_MOST_WRITTEN = 64
_MOST_STARTS = 8
_MOST_LETTERS = 24
"""Letters of the alphabet that is made of the classes of an expression."""
_CLASS = re.compile(r"\\[pP]\{[^}]*\}|\\[dDwWsShH]|\[")
_POOL = (
    range(0x20, 0x3400),
    range(0x3400, 0x10000, 61),
    range(0x10000, 0x12400, 5),
    range(0x12400, 0x30000, 61),
    range(0x1F300, 0x1F680),
)
"""Where members of classes are looked for: all scripts, and some letters of the large ones."""
_ESCAPED = re.compile(r"\\(?:x\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")


def classes(pattern: str) -> Iterator[str]:
    """Yield the classes that an expression names: those by name, and those in brackets."""
    place = 0
    while found := _CLASS.search(pattern, place):
        place = found.end()
        if pattern[found.start() - 1 : found.start()] == "\\" and found.group() == "[":
            continue  # a bracket of the text
        if found.group() == "[":
            place = _end(pattern, place)
        yield pattern[found.start() : place]


def _end(pattern: str, place: int) -> int:
    """Return the place behind the bracket that closes a class, which may hold others."""
    depth, first = 1, True
    while place < len(pattern) and depth:
        letter = pattern[place]
        if letter == "]" and not first:
            depth -= 1
        depth += letter == "["
        first = letter == "[" or (first and letter == "^")
        place += 2 if letter == "\\" else 1
    return place


def letters(pattern: str, plain: str) -> tuple[list[str], str]:
    """Return a letter for each way to lie in some of an expression's classes and not in others.

    Args:
        pattern: The expression.
        plain: The same with its letters written out, which are tried as members.

    Returns:
        The letters, and one that lies in none of the classes.
    """
    from tokenizers import Regex
    from tokenizers.normalizers import Replace

    written = {each for letter in plain for each in (letter, letter.swapcase()) if len(each) == 1}
    near = {chr(ord(each) + 1) for each in written if ord(each) + 1 not in range(0xD800, 0xE000)}
    pool = (chr(code) for part in _POOL for code in part if not 0xD800 <= code < 0xE000)
    text = "".join(dict.fromkeys([*sorted(written | near), *pool]))
    lies_in: dict[str, int] = dict.fromkeys(text, 0)
    for number, each in enumerate([*dict.fromkeys(classes(pattern))][:_MOST_LETTERS]):
        try:
            members = Replace(Regex(f"[^{each}]"), "").normalize_str(text)
        except Exception:  # it is none by itself
            continue
        for letter in members:
            lies_in[letter] |= 1 << number
    found = {ways: letter for letter, ways in reversed(lies_in.items())}
    outsider = found.pop(0, "!")
    return [*found.values()][:_MOST_LETTERS], outsider


def texts(pattern: str) -> Iterator[tuple[str, str, str]]:
    """Yield the beginning of a text, what is repeated in it, and its end.

    Repeated are a character of each class, pairs of these, what the expression spells out, and
    members of the classes that it names.
    """
    plain = _ESCAPED.sub(lambda found: chr(int(next(filter(None, found.groups())), 16)), pattern)
    words = [*dict.fromkeys(re.findall(r"\w{2,}", plain))][:_MOST_WRITTEN]
    spelled = [*dict.fromkeys(plain)][:_MOST_WRITTEN]
    members, outsider = letters(pattern, plain)
    # The search gives up at once where a letter that it needs is nowhere in the text.
    far = outsider + outsider.join(dict.fromkeys([*members, *spelled]))
    pairs = map("".join, itertools.permutations(_CLASSES, 2))
    for run in dict.fromkeys([*_CLASSES, *_MORE, *words, *spelled, *members]):
        for end in (*_ENDS, far):
            yield "", run, end
    own = map("".join, itertools.permutations(members[:_MOST_STARTS], 2))
    for run in (*pairs, *own):
        for end in (*_ENDS[:2], far):
            yield "", run, end
    for start in (*words[:_MOST_STARTS], *spelled[:_MOST_STARTS]):
        for run in dict.fromkeys([*_CLASSES, *spelled[:_MOST_STARTS]]):
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
    first = start + run * (FIRST // len(run)) + end
    if min(_seconds(search, first) for _ in range(2)) > QUICK:
        return True
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
    print(time.process_time())  # noqa: T201
