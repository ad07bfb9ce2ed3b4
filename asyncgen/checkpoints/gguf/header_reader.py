"""Read the header of a GGUF file forwards.

Every length is checked against the rest of the file, and against bounds far beyond any real file,
before memory is allocated: a malicious file costs no more than its refusal. Texts of an array are
skipped in one tight loop and kept as bytes until they are needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final

from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from pathlib import Path

_STRING: Final = 8
_ARRAY: Final = 9
_FORMATS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Format of `struct` for each type of number."""

_CHUNK: Final = 4 << 20
_MOST_BYTES: Final = 128 << 20
"""Most bytes of a header, tensors excluded; those of large vocabularies have 20 million."""
_MOST_TEXTS: Final = 2_000_000
"""Most texts in all arrays: the largest vocabularies have 0.3 million, and as many merges."""
_MOST_NUMBERS: Final = 4_000_000
"""Most numbers in all arrays: a list of them takes 40 times the bytes of the file."""
_LONGEST_TEXT: Final = 16 << 20
"""Most bytes of one value; chat templates have 20,000."""
LONGEST_KEY: Final = 65_535
"""Most bytes of a key or a name, by the format."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of an array, still as bytes.

    Attributes:
        data: The texts, each after its length of eight bytes.
        count: Number of texts.
    """

    data: bytes = field(repr=False)
    count: int

    def read(self) -> list[str]:
        """Return all texts; invalid UTF-8 becomes replacement characters."""
        texts, data, place = [], self.data, 0
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(self.count):
            start = place + 8
            place = start + unpack(data, place)[0]
            texts.append(data[start:place].decode("utf-8", "replace"))
        return texts


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of an array, still as bytes.

    Attributes:
        data: The numbers in little-endian order.
        format: Their format of `struct`.
    """

    data: bytes = field(repr=False)
    format: str

    @property
    def count(self) -> int:
        """Number of numbers."""
        return len(self.data) // struct.calcsize(f"<{self.format}")

    def read(self) -> list[int] | list[float] | list[bool]:
        """Return all numbers."""
        return list(struct.unpack(f"<{self.count}{self.format}", self.data))


Value = str | int | float | bool | Texts | Numbers
"""Value of a key."""


class HeaderReader:
    """A position in the header of a file.

    Attributes:
        place: Number of bytes before it.
    """

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        """Begin at the first byte.

        Args:
            path: For messages.
            file: Open for reading bytes.
            size: Its length in bytes.
        """
        self._path = path
        self._file = file
        self._size = size
        self._data = bytearray()
        self._texts = 0
        self._numbers = 0
        self.place = 0

    def bad(self, field_name: str, reason: str) -> ModelLoadError:
        """Return the error of a field of the file."""
        return ModelLoadError(f"{self._path}: {field_name} {reason}; download it again")

    def take(self, count: int, field_name: str) -> bytes:
        """Read bytes.

        Args:
            count: Number of bytes.
            field_name: Name of the field, for errors.

        Raises:
            ModelLoadError: The file is too short.
        """
        start = self.place
        self._reach(start + count, field_name)
        self.place = start + count
        return self._copy(start)

    def number(self, format_: str, field_name: str) -> int | float | bool:
        """Read a number of a format of `struct`."""
        size = struct.calcsize(f"<{format_}")
        (found,) = struct.unpack(f"<{format_}", self.take(size, field_name))
        value: int | float | bool = found
        return value

    def whole(self, format_: str, field_name: str) -> int:
        """Read a whole number."""
        return int(self.number(format_, field_name))

    def text(self, field_name: str, longest: int = _LONGEST_TEXT) -> str:
        """Read a text; invalid UTF-8 becomes replacement characters."""
        length = self.whole("Q", field_name)
        if length > longest:
            raise self.bad(field_name, f"is {length} bytes long, {longest} are allowed")
        return self.take(length, field_name).decode("utf-8", "replace")

    def value(self, field_name: str) -> Value:
        """Read the number of a type, and a value of that type."""
        kind = self.whole("I", field_name)
        if kind == _STRING:
            return self.text(field_name)
        if kind == _ARRAY:
            return self._array(field_name)
        return self.number(self._format(kind, field_name), field_name)

    def _format(self, kind: int, field_name: str) -> str:
        if kind not in _FORMATS:
            raise self.bad(field_name, f"is of type {kind}, which there is not")
        return _FORMATS[kind]

    def _array(self, field_name: str) -> Texts | Numbers:
        kind, count = self.whole("I", field_name), self.whole("Q", field_name)
        if kind == _ARRAY:
            raise self.bad(field_name, "is an array of arrays, which is not supported")
        if kind == _STRING:
            return self._text_array(count, field_name)
        format_ = self._format(kind, field_name)
        size = count * struct.calcsize(f"<{format_}")
        self._check_end(self.place + size, field_name)
        self._numbers += count
        if self._numbers > _MOST_NUMBERS:
            allowed = f"{_MOST_NUMBERS} are allowed in a file"
            raise self.bad(field_name, f"is an array of {count} numbers, {allowed}")
        return Numbers(self.take(size, field_name), format_)

    def _text_array(self, count: int, field_name: str) -> Texts:
        self._texts += count
        if self._texts > _MOST_TEXTS:
            allowed = f"{_MOST_TEXTS} are allowed in a file"
            raise self.bad(field_name, f"is an array of {count} texts, {allowed}")
        start = place = self.place
        unpack, data = struct.Struct("<Q").unpack_from, self._data
        for _ in range(count):
            if place + 8 > len(data):
                self._reach(place + 8, field_name)
            place += 8 + unpack(data, place)[0]
        self._reach(place, field_name)
        self.place = place
        return Texts(self._copy(start), count)

    def _copy(self, start: int) -> bytes:
        """Return the bytes from a place to the position; they exist twice and not three times."""
        with memoryview(self._data) as view:
            return bytes(view[start : self.place])

    def _reach(self, end: int, field_name: str) -> None:
        """Read the file into memory up to a byte."""
        self._check_end(end, field_name)
        while len(self._data) < end:
            read = self._file.read(_CHUNK)
            if not read:
                raise self.bad(field_name, "is not there: the file became shorter")
            self._data += read

    def _check_end(self, end: int, field_name: str) -> None:
        """Refuse a byte that is not in the file, or too far from its beginning."""
        if end > self._size:
            has = f"and the file has {self._size} bytes"
            raise self.bad(field_name, f"would end at byte {shorten(end)}, {has}")
        if end > _MOST_BYTES:
            allowed = f"heads of {_MOST_BYTES} bytes are allowed"
            raise self.bad(field_name, f"ends at byte {end}, {allowed}")
