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
from typing import TYPE_CHECKING, Final

from asyncgen.checkpoints.packed.stated_settings import UnknownSettingError
from asyncgen.errors import clip, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

_REPEATED: Final = re.compile(r"\)(?:[*+]|\{)")
"""A group that may repeat: with it, a comparison can take as long as a stranger likes."""

_PLAIN: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
"""An escaped character, or a class: what stands in it repeats nothing."""
_CHOICE: Final = re.compile(r"\((?:\?[:=!]|\?<[=!])?|(?:[*+?]|\{[^}]*\})[?+]?")
"""A group, or a repeat."""

_MOST: Final = 10_000
_MOST_CHARACTERS: Final = 200_000
_MOST_CHOICES: Final = 20
_MOST_WAYS: Final = 300_000_000
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
        self._compiled = {text: (_compile(text, key), _choices(text)) for text in texts}
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


def _compile(text: str, key: str) -> re.Pattern[str]:
    if _REPEATED.search(text):
        raise UnknownSettingError(f"`{key}` has {shorten(text)}, a group that repeats")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        reason = f"{shorten(text)}, which is invalid: {clip(str(error), 120)}"
        raise UnknownSettingError(f"`{key}` has {reason}") from error


def _choices(text: str) -> int:
    """Count what has several ways to match: groups and repeats, but for ``.*`` at the end."""
    return len(_CHOICE.findall(_PLAIN.sub("a", text.removesuffix("$").removesuffix(".*"))))
