"""Compare names of modules with regular expressions of a file, which may come from anybody.

An expression of a stranger can take for ever: to be compiled, if it is long, and to be compared,
since every repeat multiplies the ways to try. So all of them together have a largest length; a
comparison is refused if the ways that it may try are too many, and all comparisons together have
some seconds.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.packed.stated_settings import UnknownSettingError
from asyncgen.errors import clip, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

_SINGLE: Final = frozenset(("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY"))
_REPEATS: Final = frozenset(("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"))
"""Operations of Python's own parser: those of one character, and those that repeat."""

_MOST: Final = 10_000
_MOST_CHARACTERS: Final = 200_000
_MOST_CHOICES: Final = 20
_MOST_WAYS: Final = 30_000_000
"""Of one comparison; each takes about a nanosecond."""
_MOST_SECONDS: Final = 5.0


class FileExpressions:
    """Expressions of a setting."""

    def __init__(self, texts: Iterable[str], key: str) -> None:
        """Compile them.

        Args:
            texts: The expressions.
            key: Setting that they stand in, for errors.

        Raises:
            UnknownSettingError: One is invalid, a group of it repeats, or they are too many or too
                long.
        """
        texts = list(dict.fromkeys(texts))
        length = sum(map(len, texts))
        if len(texts) > _MOST or length > _MOST_CHARACTERS:
            most = f"at most {_MOST} of {_MOST_CHARACTERS} are read"
            found = f"{len(texts)} expressions of {length} characters"
            raise UnknownSettingError(f"`{key}` has {found}; {most}")
        self._key = key
        self._compiled = {text: _compile(text, key) for text in texts}
        self._seconds = 0.0

    def match(self, text: str, module: str) -> bool:
        """Tell whether an expression matches the beginning of a module's name.

        Args:
            text: One of the expressions.
            module: The name.

        Raises:
            UnknownSettingError: That takes too long.
        """
        start = time.thread_time()
        expression, choices = self._compiled[text]
        is_long = choices > _MOST_CHOICES
        is_long = is_long or math.comb(len(module) + choices, choices) > _MOST_WAYS
        if is_long or self._seconds > _MOST_SECONDS:
            name = clip(module, 200)
            raise UnknownSettingError(
                f"`{self._key}` has {shorten(text)}, which would take too long to compare with "
                f"`{name}`: it has {choices} groups and repeats"
            )
        found = expression.match(module) is not None
        self._seconds += time.thread_time() - start
        return found


def _compile(text: str, key: str) -> tuple[re.Pattern[str], int]:
    """Return an expression, and how many parts of it have several ways to match."""
    parser: Any = re._parser  # type: ignore[attr-defined]  # reads flags and blanks as `re` does
    try:
        parts = [*parser.parse(text)]
        while parts and str(parts[-1][0]) == "AT":
            parts.pop()
        if parts and _is_rest(parts[-1]):
            parts.pop()
        choices = _choices(parts)
        return re.compile(text), choices
    except _RepeatedGroupError:
        raise UnknownSettingError(f"`{key}` has {shorten(text)}, a group that repeats") from None
    except (re.error, RecursionError, OverflowError) as error:
        reason = f"{shorten(text)}, which is invalid: {clip(str(error), 120)}"
        raise UnknownSettingError(f"`{key}` has {reason}") from error


class _RepeatedGroupError(Exception):
    """With a group that repeats, a comparison can take as long as a stranger likes."""


def _is_rest(part: Any) -> bool:
    """Tell whether a part is ``.*``, which has one way to match at the end."""
    name, arguments = str(part[0]), part[1]
    return name == "MAX_REPEAT" and [str(each[0]) for each in arguments[2]] == ["ANY"]


def _choices(parts: Iterable[Any]) -> int:
    """Count what has several ways to match: groups, alternatives and repeats."""
    found = 0
    for name, arguments in ((str(each[0]), each[1]) for each in parts):
        if name in _REPEATS:
            _, most, inner = arguments
            is_single = len(inner) == 1 and str(inner[0][0]) in _SINGLE
            if not is_single and most > 1:
                raise _RepeatedGroupError
            found += 1 + (0 if is_single else _choices(inner))
        elif name == "BRANCH":
            found += len(arguments[1]) - 1 + sum(map(_choices, arguments[1]))
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            found += 1 + _choices(arguments[-1])
        elif name == "ATOMIC_GROUP":
            found += 1 + _choices(arguments)
        elif name == "GROUPREF_EXISTS":
            found += 1 + sum(_choices(each) for each in arguments[1:] if each is not None)
    return found
