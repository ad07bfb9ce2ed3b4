"""Open the files of a checkpoint, which may come from anybody: regular ones only, up to a size.

Every file that is read from a folder of a model is opened here: a FIFO would wait for ever, a
device has no end, and a link may show what is none of the folder's. Where a file lies is asked of
what was opened, so a link that is put in its place meanwhile shows nothing.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from asyncgen.errors import ModelLoadError, shorten

if sys.platform == "win32":
    from pathlib import WindowsPath as _SystemPath
else:
    from pathlib import PosixPath as _SystemPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAVING = ".saving"
"""File that stands in a folder while the files of a save replace others there."""

_MEBIBYTE = 1024 * 1024
_LARGEST = {".jinja": 4, ".json": 32, ".model": 24, ".txt": 32, ".py": 4}
"""Largest size of a small file in MiB, by suffix."""
_LARGEST_TOKENIZER = 128 * _MEBIBYTE
"""Largest size of ``tokenizer.json``; those of the largest vocabularies have 40 MB."""

_MOST_ENTRIES = 100_000
_LONGEST_SHOWN = 1000
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN_FLAGS |= getattr(os, "O_BINARY", 0)
_LOOK_FLAGS = getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0)
_DESCRIPTORS = "/proc/self/fd"
"""Folder of Linux with what is open, and where it lies."""
_KNOWS_PLACES = hasattr(os, "O_PATH") and os.path.isdir(_DESCRIPTORS)

_CACHED = re.compile(r"(?:models|datasets|spaces)--.+")
"""Folder of a repository in the hub's cache."""


class StoredPath(_SystemPath):
    """A path in a folder of a model, which knows where its files may lie.

    So do all paths that are made of it (``/``, ``parent``, ``glob``); ``Path(path)`` forgets.

    Attributes:
        places: Real folders and files that may be read; ``None``: links may lead anywhere.
        seen: Which file each path was when it was first opened.
    """

    __slots__ = ()
    places: ClassVar[tuple[str, ...] | None] = None
    seen: ClassVar[dict[str, os.stat_result]] = {}

    def __reduce__(self) -> tuple[type[Path], tuple[str]]:
        """Become a plain path in another process."""
        return Path, (str(self),)


def enter_folder(folder: Path, *, follow_links: bool, named: str = "") -> Path:
    """Return a folder as a path whose files are read where they may lie; refuse a half saved one.

    They lie in it, or for one of the hub's cache in its own blobs.

    Args:
        folder: An existing folder; may itself be reached by links.
        follow_links: True if links may lead out of it.
        named: File in it that the caller has named, which may be a link; empty for none.

    Raises:
        ModelLoadError: A save into it was cut off.
    """
    if not named and is_stored(folder / SAVING):
        raise ModelLoadError(
            f"{folder} is half saved: a save into it was cut off (it has the file {SAVING}); "
            "save the model again"
        )
    places = None if follow_links else _places(folder)
    if places is not None and named:
        places += (os.path.realpath(folder / named),)
    # A class for each folder: paths that are made of a path keep its class, and nothing else.
    own: dict[str, object] = {"__slots__": (), "places": places, "seen": {}}
    entered: StoredPath = type("StoredPath", (StoredPath,), own)(folder)
    return entered


def check_unchanged(place: Path) -> None:
    """Refuse what was read of a folder if files of it were replaced meanwhile.

    They may be of two models, and fit each other all the same.

    Args:
        place: A folder of `enter_folder`, or a file in it; nothing is known of other paths.

    Raises:
        ModelLoadError: Names the file.
    """
    if not isinstance(place, StoredPath):
        return
    for file, known in place.seen.items():
        try:
            now = os.stat(file)
        except OSError as error:
            raise _changed(file) from error
        if not _is_same(now, known):
            raise _changed(file)
    if is_stored(place / SAVING):  # a file cannot have one
        raise ModelLoadError(f"{place} was saved to while it was loaded; load it again")


def as_path(place: str | os.PathLike[str]) -> Path:
    """Return a path, which still knows where its files may lie."""
    return place if isinstance(place, Path) else Path(place)


def is_stored(file: Path) -> bool:
    """Tell whether a folder has an entry of a name, whatever it is: what cannot be read is not
    absent.

    Raises:
        ModelLoadError: The name cannot be that of a file.
    """
    try:
        return os.path.lexists(file)
    except ValueError as error:
        raise ModelLoadError(f"{shorten(str(file))} is no name of a file ({error})") from error


def open_stored(file: Path) -> BinaryIO:
    """Open a file of a checkpoint to be read, unbuffered.

    Args:
        file: Its path. One that `enter_folder` did not make is read in its own folder alone.

    Raises:
        ModelLoadError: It is missing, no regular file, a link that leads out of the folder, or
            another file than before, for a path of `enter_folder`.
    """
    number = _opened(file)
    if isinstance(file, StoredPath):
        found = os.fstat(number)
        if not _is_same(found, file.seen.setdefault(str(file), found)):
            os.close(number)
            raise _changed(file)
    return open(file, "rb", buffering=0, opener=lambda *_: number)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Tell whether two looks at a path have met the same content.

    A file's number lasts only on some systems: FAT, drives of a network and of FUSE give it another
    one when it has left the memory, as it does while large weights are read. Its last change of any
    kind stays the same there, and is another one for another file. Where the number stays, such a
    change may be a new link of a backup.
    """
    if (one.st_size, one.st_mtime_ns) != (other.st_size, other.st_mtime_ns):
        return False
    return os.path.samestat(one, other) or one.st_ctime_ns == other.st_ctime_ns


def _changed(file: Path | str) -> ModelLoadError:
    return ModelLoadError(f"{_shown(file)} was changed while it was loaded; load it again")


def library_path(stream: BinaryIO) -> str:
    """Return a path by which a library opens the same file again, whatever lies there meanwhile.

    Args:
        stream: What `open_stored` or `open_small` returned; stays open until the library is done.
    """
    if _KNOWS_PLACES:
        return f"{_DESCRIPTORS}/{stream.fileno()}"
    return os.path.realpath(stream.name)


def read_stored(file: Path) -> bytes:
    """Read a small file of a checkpoint: settings, a template, a tokenizer, an index.

    Raises:
        ModelLoadError: It is missing, no regular file, larger than such a file can be, or a link
            that leads out of the folder.
    """
    with open_small(file) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)
        except OSError as error:
            raise ModelLoadError(f"{file} cannot be read ({error})") from error


def open_small(file: Path) -> BinaryIO:
    """Open a small file of a checkpoint; errors are those of `read_stored`."""
    most = _LARGEST.get(file.suffix, 32) * _MEBIBYTE
    if file.name == "tokenizer.json":
        most = _LARGEST_TOKENIZER
    stream = open_stored(file)
    size = os.fstat(stream.fileno()).st_size
    if size > most:
        stream.close()
        raise ModelLoadError(f"{file} has {size} bytes; at most {most} are read of such a file")
    return stream


def names_in(folder: Path) -> list[str]:
    """Return the names of all entries of a folder of a checkpoint, in order.

    Raises:
        ModelLoadError: It cannot be read, has too many, or is a link that leads out of the folder
            that it lies in.
    """
    with _checked(folder) as place:
        try:
            with os.scandir(place) as entries:
                names = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES + 1)]
        except OSError as error:
            raise ModelLoadError(f"{_shown(folder)} cannot be read ({error.strerror})") from error
    if len(names) > _MOST_ENTRIES:
        raise ModelLoadError(
            f"{folder} has more than {_MOST_ENTRIES} files; a checkpoint has fewer"
        )
    return sorted(names)


@contextmanager
def _checked(folder: Path) -> Iterator[int | str]:
    """Open a folder to be listed."""
    if os.scandir not in os.supports_fd:
        real = os.path.realpath(folder)
        _check_place(folder, real)
        yield real
        return
    number = _opened(folder, stat.S_ISDIR)
    try:
        yield number
    finally:
        os.close(number)


def _opened(file: Path, is_wanted: Callable[[int], bool] = stat.S_ISREG) -> int:
    """Open what a path leads to, if it lies where it may and is of a kind."""
    try:
        if _KNOWS_PLACES:
            number = os.open(file, _LOOK_FLAGS)  # which reads nothing, and wakes no device
            try:
                there = f"{_DESCRIPTORS}/{number}"
                _check_place(file, os.readlink(there))
                _check_kind(file, number, is_wanted)
                return os.open(there, _OPEN_FLAGS)
            finally:
                os.close(number)
        return _opened_by_path(file, is_wanted)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{error}"
        raise ModelLoadError(f"{_shown(file)} cannot be read ({reason})") from error


def _opened_by_path(file: Path, is_wanted: Callable[[int], bool]) -> int:
    """Open a file where the system does not tell where it lies: look before and after."""
    real = os.path.realpath(file)
    _check_place(file, real)
    number = os.open(real, _OPEN_FLAGS | getattr(os, "O_NOFOLLOW", 0))
    try:
        _check_kind(file, number, is_wanted)
        if os.path.realpath(real) == real and os.path.samestat(os.stat(real), os.fstat(number)):
            return number
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    raise ModelLoadError(f"{_shown(file)} was replaced while it was opened; try again")


def _check_kind(file: Path, number: int, is_wanted: Callable[[int], bool]) -> None:
    mode = os.fstat(number).st_mode
    if not is_wanted(mode):
        raise ModelLoadError(
            f"{_shown(file)} is {_kind(mode)}; a checkpoint has regular files only, in folders"
        )


def _check_place(file: Path, real: str) -> None:
    places = file.places if isinstance(file, StoredPath) else _places(file.parent)
    if places is None or any(_is_in(real, place) for place in places):
        return
    link = next((one for one in (file, *file.parents) if one.is_symlink()), file)
    raise ModelLoadError(
        f"{_shown(link)} is a link to {_shown(os.path.realpath(link))}, outside of the folder; "
        "pass follow_links=True if whoever made the folder may show that file"
    )


def _places(folder: Path) -> tuple[str, ...]:
    """Return where files of a folder may lie: in it, and in the blobs of its cached repository."""
    real = Path(os.path.realpath(folder))
    for commit in (real, *real.parents):
        repository = commit.parent.parent
        if commit.parent.name == "snapshots" and _CACHED.fullmatch(repository.name):
            blobs = repository / "blobs"
            if not blobs.is_symlink():  # the rest of the path is real already
                return str(real), str(blobs)
    return (str(real),)


def _is_in(real: str, place: str) -> bool:
    return real == place or real.startswith(place.rstrip(os.sep) + os.sep)


def _shown(path: Path | str) -> str:
    """Return a path as errors show it: a name in a file may have thousands of characters."""
    text = str(path)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return name
    return "a device"
