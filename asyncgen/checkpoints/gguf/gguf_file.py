"""Open GGUF files: read metadata and the locations of tensors, but no tensor.

A model may have several files, ``name-00001-of-00003.gguf`` and so on; the first has the metadata
of all.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from asyncgen.checkpoints.gguf.header_reader import LONGEST_KEY, HeaderReader, Numbers, Texts, Value
from asyncgen.checkpoints.gguf.tensor_types import TENSOR_TYPES, UNSUPPORTED_TYPES, TensorType
from asyncgen.checkpoints.hub import refuse_pointer
from asyncgen.checkpoints.stored_files import is_stored, open_stored
from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ValueT = TypeVar("ValueT")

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_KEYS: Final = 65_536
_MOST_TENSORS: Final = 1 << 15
"""The largest models have some thousands."""
_MOST_SIDES: Final = 4
_MOST_ALIGNMENT: Final = 1 << 16
_ALIGNMENT: Final = "general.alignment"
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_SHARDS: Final = 1000


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Location of a tensor in a file.

    Attributes:
        file: The file.
        name: Name in the file.
        kind: Type of its numbers.
        shape: Shape; the last side is that of a row, which consists of blocks.
        offset: First byte, from the start of the file.
    """

    file: Path
    name: str
    kind: TensorType
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Length in bytes."""
        return math.prod(self.shape) // self.kind.numbers * self.kind.num_bytes


class Metadata(dict[str, Value]):
    """Metadata of a file by key; errors name the file and the key.

    The typed methods return ``None`` for a missing key.

    Attributes:
        file: The file.
        prefix: Beginning of all keys in the file, for errors.
    """

    def __init__(self, file: Path, values: Mapping[str, Value], prefix: str = "") -> None:
        """Take the values of a file.

        Args:
            file: The file.
            values: Its metadata; arrays are still bytes.
            prefix: Beginning of all keys in the file, for errors.
        """
        super().__init__(values)
        self.file = file
        self.prefix = prefix

    @cached_property
    def own(self) -> Metadata:
        """Metadata of the file's architecture, by keys without its name."""
        prefix = f"{self.text('general.architecture')}."
        values = {
            key.removeprefix(prefix): value for key, value in self.items() if key.startswith(prefix)
        }
        return Metadata(self.file, values, prefix)

    def bad(self, key: str, allowed: str) -> ModelLoadError:
        """Return the error of a value that is not allowed."""
        value = self.get(key)
        is_array = isinstance(value, Texts | Numbers)
        shown = "an array" if is_array else shorten(value)
        return ModelLoadError(f"{self.file}: `{self.prefix}{key}` is {shown}: {allowed}")

    def text(self, key: str) -> str | None:
        """Return a text."""
        return self._value(key, str, "a text")

    def whole(self, key: str) -> int | None:
        """Return a whole number of at least 0."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise self.bad(key, f"must be a whole number from 0 to {2**31 - 1}")
        return value

    def number(self, key: str) -> float | None:
        """Return a finite number."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(key, "must be a number")
        if not math.isfinite(value):
            raise self.bad(key, "must be finite")
        return value

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        return self._value(key, bool, "true or false")

    def texts(self, key: str) -> list[str] | None:
        """Return the texts of an array."""
        value = self._value(key, Texts, "an array of texts")
        return None if value is None else value.read()

    def numbers(self, key: str) -> list[int] | list[float] | list[bool] | None:
        """Return the numbers of an array."""
        value = self._value(key, Numbers, "an array of numbers")
        return None if value is None else value.read()

    def _value(self, key: str, kind: type[ValueT], name: str) -> ValueT | None:
        value = self.get(key)
        if value is None or isinstance(value, kind):
            return value
        raise self.bad(key, f"must be {name}")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model in GGUF, from one file or several.

    Attributes:
        file: The first file.
        metadata: Its metadata.
        tensors: Locations of all tensors, by name.
    """

    file: Path
    metadata: Metadata
    tensors: Mapping[str, PackedTensor]

    @property
    def own(self) -> Metadata:
        """Metadata of the architecture, by keys without its name."""
        return self.metadata.own


def open_gguf(file: Path) -> GgufModel:
    """Read the headers of a model's files.

    Args:
        file: One of them.

    Raises:
        ModelLoadError: A file is missing or has a wrong format; names the field.
    """
    found = _SHARD.fullmatch(file.name)
    if found is None:
        return _open_one(file)
    count = int(found["count"])
    if not 1 <= count <= _MOST_SHARDS:
        allowed = f"from 1 to {_MOST_SHARDS} are allowed"
        raise ModelLoadError(f"{file} says that it is one of {count} files: {allowed}")
    stem = found["stem"]
    files = [file.with_name(f"{stem}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    absent = [each.name for each in files if not is_stored(each)]
    if absent:
        few = ", ".join(absent[:3])
        raise ModelLoadError(
            f"{len(absent)} of the {count} files of {file} are missing ({few}); download them all"
        )
    models = [_open_one(each) for each in files]
    first, tensors = models[0], dict[str, PackedTensor]()
    for model in models:
        twice = next((name for name in model.tensors if name in tensors), None)
        if twice is not None:
            raise ModelLoadError(
                f"{model.file}: tensor {shorten(twice)} is in another of the files as well; "
                "download them again"
            )
        tensors.update(model.tensors)
    for index, model in enumerate(models):
        for key, meant, said in (
            ("split.count", count, f"its name says that there are {count} files"),
            ("split.no", index, f"its name says that it is file {index}, counted from 0"),
            ("split.tensors.count", len(tensors), f"all files have {len(tensors)} tensors"),
        ):
            stated = model.metadata.whole(key)
            if stated is not None and stated != meant:
                raise model.metadata.bad(key, f"{said}; download all files again")
    return GgufModel(first.file, first.metadata, tensors)


def as_written(value: float) -> float:
    """Return the shortest decimal number with the same float32."""
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        return value
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == bits:
            return short
    return value


def _open_one(file: Path) -> GgufModel:
    try:
        with open_stored(file) as stream:
            refuse_pointer(file, stream)
            size = os.fstat(stream.fileno()).st_size
            return _read_head(file, HeaderReader(file, stream, size), size)
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read ({error})") from error


def _read_head(file: Path, cursor: HeaderReader, size: int) -> GgufModel:
    if cursor.take(4, "its first four bytes") != _MAGIC:
        raise ModelLoadError(f"{file} is no GGUF file: it does not begin with these letters")
    version = cursor.whole("I", "the version")
    if version not in _VERSIONS:
        is_swapped = int.from_bytes(version.to_bytes(4, "big"), "little") in _VERSIONS
        reason = "stores numbers in big-endian order" if is_swapped else f"is of version {version}"
        raise ModelLoadError(
            f"{file} {reason}: versions 2 and 3 in little-endian order are read; convert it anew"
        )
    count = cursor.whole("Q", "the number of tensors")
    keys = cursor.whole("Q", "the number of keys")
    for number, most, what in ((count, _MOST_TENSORS, "tensors"), (keys, _MOST_KEYS, "keys")):
        if number > most:
            raise cursor.bad(f"the number of {what}", f"is {number}, {most} are allowed")
    metadata = Metadata(file, _read_metadata(cursor, keys))
    alignment = 32
    if _ALIGNMENT in metadata:
        alignment = metadata.whole(_ALIGNMENT) or 0
        if alignment & (alignment - 1) or not 1 <= alignment <= _MOST_ALIGNMENT:
            allowed = f"must be a power of two up to {_MOST_ALIGNMENT}"
            raise metadata.bad(_ALIGNMENT, allowed)
    entries = [_read_tensor(file, cursor, index) for index in range(count)]
    start = -(-cursor.place // alignment) * alignment
    return GgufModel(file, metadata, _placed(cursor, entries, start, size, alignment))


def _read_metadata(cursor: HeaderReader, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for index in range(count):
        key = cursor.text(f"key {index}", LONGEST_KEY)
        if key in values:
            raise cursor.bad(f"key {shorten(key)}", "is there twice")
        values[key] = cursor.value(f"`{key[:80]}`")
    return values


def _read_tensor(file: Path, cursor: HeaderReader, index: int) -> PackedTensor:
    """Read one row of the table; its offset is still from the start of the tensors."""
    name = cursor.text(f"the name of tensor {index}", LONGEST_KEY)
    shown = f"tensor {shorten(name)}"
    sides = cursor.whole("I", f"the number of sides of {shown}")
    if not 1 <= sides <= _MOST_SIDES:
        raise cursor.bad(shown, f"has {sides} sides, from 1 to {_MOST_SIDES} are allowed")
    shape = tuple(cursor.whole("Q", f"a side of {shown}") for _ in range(sides))[::-1]
    number = cursor.whole("I", f"the type of {shown}")
    offset = cursor.whole("Q", f"the offset of {shown}")
    if min(shape) < 1:
        raise cursor.bad(shown, f"has a side of 0: {list(shape)}")
    if number not in TENSOR_TYPES:
        stated = UNSUPPORTED_TYPES.get(number, f"number {number}")
        listed = ", ".join(kind.name for kind in TENSOR_TYPES.values())
        raise ModelLoadError(
            f"{file}: {shown} is of type {stated}, which is not read; use a file of {listed}"
        )
    kind = TENSOR_TYPES[number]
    if shape[-1] % kind.numbers:
        reason = f"has rows of {shape[-1]} numbers, blocks of {kind.name} have {kind.numbers}"
        raise cursor.bad(shown, reason)
    return PackedTensor(file, name, kind, shape, offset)


def _placed(
    cursor: HeaderReader, entries: list[PackedTensor], start: int, size: int, alignment: int
) -> dict[str, PackedTensor]:
    """Return the tensors by name, with their offsets from the start of the file."""
    tensors: dict[str, PackedTensor] = {}
    end = start
    for entry in sorted(entries, key=lambda entry: entry.offset):
        shown, offset = f"tensor {shorten(entry.name)}", start + entry.offset
        if entry.offset % alignment:
            raise cursor.bad(shown, f"begins at {entry.offset}, no multiple of {alignment}")
        if offset + entry.num_bytes > size:
            begins = f"begins at byte {offset} and has {shorten(entry.num_bytes)}"
            raise cursor.bad(shown, f"{begins}, but the file has {size}")
        if offset < end:
            raise cursor.bad(shown, f"begins at byte {offset}, inside of another")
        if entry.name in tensors:
            raise cursor.bad(shown, "is there twice")
        end = offset + entry.num_bytes
        tensors[entry.name] = PackedTensor(entry.file, entry.name, entry.kind, entry.shape, offset)
    return {entry.name: tensors[entry.name] for entry in entries}
