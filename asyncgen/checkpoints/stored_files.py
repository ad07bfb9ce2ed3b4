"""Open the files of a checkpoint, which may come from anybody: regular ones only, up to a size.

Every file that is read from a folder of a model passes here: a FIFO would wait for ever, a device
has no end, and a link may show what is none of the folder's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

SAVING = ".saving"
"""File that stands in a folder while the files of a save replace others there."""

_MEBIBYTE = 1024 * 1024
_LARGEST = {".jinja": 4, ".json": 64, ".model": 64, ".txt": 64, ".py": 4}
"""Largest size of a small file in MiB, by suffix."""
_LARGEST_TOKENIZER = 128 * _MEBIBYTE
"""Largest size of ``tokenizer.json``; those of the largest vocabularies have 40 MB."""

_READ_SUFFIXES = (*_LARGEST, ".safetensors", ".gguf")
_MOST_ENTRIES = 100_000
_LONGEST_SHOWN = 1000
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


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

    Raises:
        ModelLoadError: It is missing, or no regular file.
    """
    try:
        number = os.open(file, _OPEN_FLAGS | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{error}"
        raise ModelLoadError(f"{_shown(file)} cannot be read ({reason})") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        kind = _kind(os.fstat(number).st_mode)
        os.close(number)
        raise ModelLoadError(f"{file} is {kind}; a checkpoint has regular files only")
    return open(number, "rb", buffering=0)


def read_stored(file: Path) -> bytes:
    """Read a small file of a checkpoint: settings, a template, a tokenizer, an index.

    Raises:
        ModelLoadError: It is missing, no regular file, or larger than such a file can be.
    """
    with _open_small(file) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)
        except OSError as error:
            raise ModelLoadError(f"{file} cannot be read ({error})") from error


def check_stored(*files: Path) -> None:
    """Look at small files that a library reads by path; errors are those of `read_stored`."""
    for file in files:
        _open_small(file).close()


def _open_small(file: Path) -> BinaryIO:
    most = _LARGEST.get(file.suffix, 64) * _MEBIBYTE
    if file.name == "tokenizer.json":
        most = _LARGEST_TOKENIZER
    stream = open_stored(file)
    size = os.fstat(stream.fileno()).st_size
    if size > most:
        stream.close()
        raise ModelLoadError(f"{file} has {size} bytes; at most {most} are read of such a file")
    return stream


def _shown(file: Path) -> str:
    """Return a path as errors show it: a name in a file may have thousands of characters."""
    text = str(file)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def check_folder(folder: Path, *, follow_links: bool) -> None:
    """Refuse a folder that is half saved, or whose links lead out of it.

    Links inside of it are followed, and those of the hub's cache to its own blobs.

    Args:
        folder: An existing folder; may itself be reached by links.
        follow_links: True if links may lead out of it.

    Raises:
        ModelLoadError: Names the link and where it leads, or the save that was cut off.
    """
    if is_stored(folder / SAVING):
        raise ModelLoadError(
            f"{folder} is half saved: a save into it was cut off (it has the file {SAVING}); "
            "save the model again"
        )
    if follow_links:
        return
    inside = folder.resolve()
    allowed = [inside]
    if inside.parent.name == "snapshots":
        allowed.append((inside.parent.parent / "blobs").resolve())
    for link in _links(inside):
        target = Path(os.path.realpath(link))
        if not any(target.is_relative_to(one) for one in allowed):
            raise ModelLoadError(
                f"{folder / link.relative_to(inside)} is a link to {target}, outside of the "
                "folder; pass follow_links=True if whoever made the folder may show that file"
            )


def _links(folder: Path) -> Iterator[Path]:
    """Yield links of names that could be read, in a folder and in those inside of it.

    Nothing is read from deeper ones.
    """
    folders, seen = [folder], 0
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue  # what is in it cannot be read either
        for entry in entries:
            seen += 1
            if seen > _MOST_ENTRIES:
                raise ModelLoadError(
                    f"{folder} has more than {_MOST_ENTRIES} files; a checkpoint has fewer"
                )
            if entry.is_symlink():
                # One without a suffix may be a folder.
                suffix = Path(entry.name).suffix
                if suffix in _READ_SUFFIXES or Path(entry.path).is_dir():
                    yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False) and Path(entry.path).parent == folder:
                folders.append(Path(entry.path))


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return name
    return "a device"
