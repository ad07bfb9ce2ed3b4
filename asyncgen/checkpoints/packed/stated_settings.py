"""Read the settings of a scheme key by key, so that none is passed over in silence.

A reader asks for each key that it understands. `Settings.finish` then refuses every other key, but
those that are known to change no number (notes of the program that made the file).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NoReturn

from asyncgen.errors import MOST_NAME, clip, shorten

_BLOCK: Final = re.compile(r"[0-9]{1,9}x[0-9]{1,9}")


class UnknownSettingError(Exception):
    """A setting that is not supported; names the key and its value."""


class Settings:
    """The keys of a part of ``config.json``, each of which somebody must read."""

    def __init__(self, values: object, within: str = "") -> None:
        """Begin with all keys unread.

        Args:
            values: Parsed JSON, an object.
            within: Name of the part, for errors; empty for the whole.

        Raises:
            UnknownSettingError: It is no object.
        """
        self._within = clip(within, MOST_NAME)
        if not isinstance(values, Mapping):
            shown = shorten(values)
            name = self._within or "quantization_config"
            raise UnknownSettingError(f"`{name}` is {shown}; it must be an object")
        self._values: dict[str, Any] = {str(key): value for key, value in values.items()}
        self._unread = dict(self._values)

    def __contains__(self, key: str) -> bool:
        """Return whether a key is there, be it null."""
        return key in self._values

    def all(self) -> dict[str, Any]:
        """Return all keys and values; they stay unread."""
        return dict(self._values)

    def get(self, key: str, default: Any = None, *, also: Sequence[str] = ()) -> Any:
        """Read a key; null counts as missing.

        Args:
            key: Its name.
            default: Value of a missing key.
            also: Other names of the same setting.

        Raises:
            UnknownSettingError: Two of the names have different values.
        """
        found: list[tuple[str, Any]] = []
        for name in (key, *also):
            self._unread.pop(name, None)
            if self._values.get(name) is not None:
                found.append((name, self._values[name]))
        for name, value in found[1:]:
            if not _is_same(value, found[0][1]):
                self.refuse(name, f"`{found[0][0]}` is {shorten(found[0][1])}")
        return found[0][1] if found else default

    def choice(
        self, key: str, allowed: Sequence[Any], default: Any = None, *, also: Sequence[str] = ()
    ) -> Any:
        """Read a key that has one of a few values; texts in lower case.

        Args:
            key: Its name.
            allowed: The values that are supported.
            default: See `get`.
            also: See `get`.

        Raises:
            UnknownSettingError: It has another value.
        """
        value = self.get(key, default, also=also)
        value = value.lower() if isinstance(value, str) else value
        if value is not None and not any(_is_same(value, each) for each in allowed):
            self.refuse(key, f"supported are {list(allowed)}")
        return value

    def size(self, key: str, default: int | None = None, *, also: Sequence[str] = ()) -> Any:
        """Read a number of inputs; -1 stands for all of a row, for which ``None`` is returned.

        Args:
            key: Its name.
            default: See `get`.
            also: See `get`.

        Raises:
            UnknownSettingError: It is no positive integer.
        """
        value = self.get(key, default, also=also)
        if _is_same(value, -1):
            return None
        if not _is_positive(value):
            self.refuse(key, "it must be a positive integer, or -1")
        return value

    def block(self, key: str, *, as_text: bool = False) -> tuple[int, int] | None:
        """Read the rows and columns of a block; ``None``: the key is missing.

        Args:
            key: Its name.
            as_text: True if it may be a text such as ``"128x128"``.

        Raises:
            UnknownSettingError: They are no two positive integers.
        """
        value = self.get(key)
        if value is None:
            return None
        if as_text and isinstance(value, str) and _BLOCK.fullmatch(value):
            value = [int(side) for side in value.split("x")]
        if not isinstance(value, list) or len(value) != 2 or not all(map(_is_positive, value)):
            self.refuse(key, "it must be two positive integers")
        return value[0], value[1]

    def below(self, key: str) -> Settings:
        """Read a key that holds settings itself.

        Raises:
            UnknownSettingError: It is no object.
        """
        return Settings(self.get(key, {}), self._name(key))

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Refuse what nobody has read.

        Args:
            harmless: Keys that change no number.

        Raises:
            UnknownSettingError: Another key has a value that is neither null nor empty.
        """
        for key, value in self._unread.items():
            if key not in harmless and value not in (None, "", [], {}):
                self.refuse(key, "its meaning is not known")

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Refuse a key by its name.

        Args:
            key: Its name.
            reason: What is wrong with it, or what is allowed.

        Raises:
            UnknownSettingError: Always.
        """
        shown = shorten(self._values.get(key), 80)
        raise UnknownSettingError(f"`{self._name(key)}` is {shown}; {reason}")

    def _name(self, key: str) -> str:
        """Return the name of a key with that of its part, for errors."""
        key = clip(key, MOST_NAME)
        return f"{self._within}.{key}" if self._within else key


def _is_same(value: object, other: object) -> bool:
    """Tell whether values are equal and of one type: 1 is neither true nor 1.0."""
    try:
        return type(value) is type(other) and value == other
    except RecursionError:
        return False


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
