"""Write the files of a folder, which may hold anything: each appears whole, under a plain name.

The folder is opened once, and all that follows happens in it: links that lie there are refused, not
followed. A save writes every file beside those that are there, and gives them their names at its
end; a marker stands in the folder for that moment, so that a folder whose save was cut off in it is
known for what it is. Saves into one folder wait for each other, where the system can lock folders:
what is there is whole, and of the last one.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
import threading
import unicodedata
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Self

from asyncgen.checkpoints.stored_files import SAVING
from asyncgen.errors import InvalidRequestError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_NAME = re.compile(r"[^\x00-\x1f/\\:*?\"<>|]{1,200}")
_SHOWN = 80
_ESCAPED = "backslashreplace"
"""Writes a lone surrogate as the escape that JSON has for it."""
_PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_NEW |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd


class _Saves(threading.local):
    """Folders that this thread saves into: a save inside of a save would wait for ever."""

    def __init__(self) -> None:
        self.folders: set[tuple[int, int]] = set()


_saves = _Saves()


def plain_name(parameter: str, name: str) -> str:
    """Return a name that comes from a file or a caller, if it names a file of a folder.

    Args:
        parameter: What it is called, for the error.
        name: The name.

    Raises:
        InvalidRequestError: It is a path, hidden, or has characters that no file's name has
            everywhere.
    """
    if isinstance(name, str) and _NAME.fullmatch(name) and not name.startswith("."):
        with suppress(UnicodeEncodeError):
            if len(name.encode()) <= 200 and name == name.strip():
                return name
    allowed = "a plain name of a file: no path, no leading dot, at most 200 bytes"
    shown = name if not isinstance(name, str) or len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    raise InvalidRequestError(parameter, shown, allowed)


def _folded(inside: str, name: str) -> str:
    """Return a name in which those are equal that are one file on some systems."""
    return unicodedata.normalize("NFKC", f"{inside}/{name}".casefold())


class SavedFolder:
    """A save into a folder: use it as a context manager.

    What was added gets its names when the block ends, in the order in which it was added; if the
    block raises, the folder stays as it was.

    Example:
        ```python
        with SavedFolder(path) as folder:
            folder.add("config.json", text)
        ```
    """

    def __init__(self, path: Path, *, parameter: str = "save_directory") -> None:
        """Begin a save.

        Args:
            path: The folder, given by the caller; it is made where it does not exist.
            parameter: Name of the caller's argument, for errors.
        """
        self._parameter = parameter
        self.path = path
        self._folders: dict[str, _Folder] = {}
        self._parts: list[tuple[str, str, str]] = []  # folder, temporary name, name
        self._drops: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        """Open the folder; wait for other saves; remove what one that was cut off has left.

        Raises:
            InvalidRequestError: It is a file, or this thread saves into it already.
            OSError: It cannot be made or written to.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InvalidRequestError(self._parameter, str(self.path), "a file; pass a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        top = self._folders[""] = _Folder.opened(self.path)
        try:
            top.lock(self._parameter)
            self._remove_parts("")
        except BaseException:
            top.close()
            raise
        return self

    def add(self, name: str, content: str | bytes) -> None:
        """Add a file.

        Args:
            name: Its plain name; or one of a folder inside and that of a file, with a slash.
            content: Its content; texts are written as UTF-8, halves of letters in JSON as escapes.

        Raises:
            InvalidRequestError: The name is none, a link is in its place, or the text is none.
        """
        if isinstance(content, str):
            try:
                content = content.encode(errors=_ESCAPED if name.endswith(".json") else "strict")
            except UnicodeEncodeError as error:
                allowed = f"Unicode text: a lone surrogate at position {error.start} of the file"
                raise InvalidRequestError(self._parameter, name, allowed) from error
        with self.open(name) as stream:
            stream.write(content)

    def open(self, name: str) -> BinaryIO:
        """Add a file whose content is written piece by piece; arguments are those of `add`."""
        inside, name = self._place(name)
        part = f".{name}.{secrets.token_hex(8)}.part"
        folder = self._folders[inside]
        folder.check_place(self._parameter, name)
        twin = next(
            (each for at, _, each in self._parts if _folded(at, each) == _folded(inside, name)),
            name,
        )
        if twin != name:
            allowed = (
                f"another name than {twin!r} where letters have no case, nor accents two forms"
            )
            raise InvalidRequestError(self._parameter, name, allowed)
        stream = folder.create(part)
        self._parts.append((inside, part, name))
        return stream

    def drop(self, name: str) -> None:
        """Remove a file behind the save, if it is there and regular; links stay."""
        self._drops.append(self._place(name))

    def names(self, inside: str = "") -> list[str]:
        """Return the names of all entries that were in the folder, or in one inside of it."""
        if inside and not self._enter(inside, make=False):
            return []
        return self._folders[inside].names()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the files their names, or remove them."""
        try:
            if kind is None:
                self._commit()
        finally:
            for inside, part, _ in self._parts:
                with suppress(OSError):
                    self._folders[inside].unlink(part)
            for folder in self._folders.values():
                folder.close()

    def _commit(self) -> None:
        top = self._folders[""]
        top.check_place(self._parameter, SAVING)
        for inside, _, name in self._parts:
            self._folders[inside].check_place(self._parameter, name)
        written = {_folded(inside, name) for inside, _, name in self._parts}
        drops = [
            place for place in self._drops
            if _folded(*place) not in written and self._folders[place[0]].is_file(place[1])
        ]  # fmt: skip
        if len(written) + len(drops) > 1 or SAVING in top.names():
            with suppress(FileExistsError):
                top.create(SAVING).close()
        for inside, part, name in self._parts:
            self._folders[inside].rename(part, name)
        for inside, name in drops:
            self._folders[inside].unlink(name)
        with suppress(FileNotFoundError):
            top.unlink(SAVING)

    def _place(self, name: str) -> tuple[str, str]:
        inside, _, last = name.rpartition("/")
        if inside:
            self._enter(plain_name(self._parameter, inside), make=True)
        return inside, plain_name(self._parameter, last)

    def _enter(self, inside: str, *, make: bool) -> bool:
        """Open a folder inside; return whether there is one."""
        if inside in self._folders:
            return True
        top = self._folders[""]
        top.check_place(self._parameter, inside, is_folder=True)
        if inside not in top.names():
            if not make:
                return False
            top.mkdir(inside)
        self._folders[inside] = top.sub(inside)
        self._remove_parts(inside)
        return True

    def _remove_parts(self, inside: str) -> None:
        folder = self._folders[inside]
        for name in folder.names():
            if _PART.fullmatch(name) and folder.is_file(name):
                folder.unlink(name)


class _Folder:
    """An open folder: everything happens in it, whatever its path leads to meanwhile.

    Where the system has no such calls (Windows), by its path.
    """

    def __init__(self, path: Path, number: int | None) -> None:
        self._path, self._number = path, number
        self._locked: tuple[int, int] | None = None

    @classmethod
    def opened(cls, path: Path) -> _Folder:
        """Open the caller's own folder, to which links may lead."""
        path = path.resolve()
        return cls(path, os.open(path, _FOLDER) if _HAS_DESCRIPTORS else None)

    def sub(self, name: str) -> _Folder:
        """Open a folder inside."""
        number = os.open(name, _FOLDER, dir_fd=self._number) if _HAS_DESCRIPTORS else None
        return _Folder(self._path / name, number)

    def lock(self, parameter: str) -> None:
        """Wait until no other thread or process saves into it; its end, too, ends a save.

        Windows and some network drives have no such locks; there nothing waits.
        """
        found = os.stat(self._path if self._number is None else self._number)
        place = (found.st_dev, found.st_ino)
        if place in _saves.folders:
            allowed = "a folder that this thread is saving into: end that save first"
            raise InvalidRequestError(parameter, str(self._path), allowed)
        if sys.platform != "win32" and self._number is not None:
            with suppress(OSError):
                fcntl.flock(self._number, fcntl.LOCK_EX)
        _saves.folders.add(place)
        self._locked = place

    def close(self) -> None:
        if self._locked is not None:
            _saves.folders.discard(self._locked)
        if self._number is None:
            return
        if sys.platform != "win32" and self._locked is not None:
            with suppress(OSError):  # a fork may have it open as well
                fcntl.flock(self._number, fcntl.LOCK_UN)
        os.close(self._number)

    def names(self) -> list[str]:
        return os.listdir(self._path if self._number is None else self._number)

    def _at(self, name: str) -> str | Path:
        return self._path / name if self._number is None else name

    def _mode(self, name: str) -> int:
        """Return the kind of an entry; 0 if there is none."""
        try:
            return os.stat(self._at(name), dir_fd=self._number, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0

    def is_file(self, name: str) -> bool:
        return stat.S_ISREG(self._mode(name))

    def check_place(self, parameter: str, name: str, *, is_folder: bool = False) -> None:
        """Refuse to write where a link is, or something else than what is written."""
        mode = self._mode(name)
        if not mode or (stat.S_ISDIR if is_folder else stat.S_ISREG)(mode):
            return
        kind = "a link" if stat.S_ISLNK(mode) else f"no {'folder' if is_folder else 'file'}"
        allowed = f"{name} in it is {kind}, and is not written over: remove it first"
        raise InvalidRequestError(parameter, str(self._path), allowed)

    def create(self, name: str) -> BinaryIO:
        return open(os.open(self._at(name), _NEW, 0o666, dir_fd=self._number), "wb")

    def rename(self, old: str, new: str) -> None:
        ends = {"src_dir_fd": self._number, "dst_dir_fd": self._number}
        os.replace(self._at(old), self._at(new), **ends)

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._number)

    def mkdir(self, name: str) -> None:
        os.mkdir(self._at(name), dir_fd=self._number)
