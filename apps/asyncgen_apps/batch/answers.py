"""File of answers: a line for each request, written as a whole or not at all.

Each line names the request that it answers, so that the file alone is enough to go on. A process
that is killed leaves at most one incomplete line; it is removed when the file is opened again, and
the request is answered again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from array import array
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from asyncgen_apps.batch.requests import Line

_HEAD = b'{"id": "batch_req_'
_ID = re.compile(r"batch_req_(\d{1,12})_([0-9a-f]{8})")


class AnswersError(Exception):
    """File of answers that cannot be continued; with the remedy."""


def record_id(line: Line) -> str:
    """Return the ``id`` of the answer to a line: its number, and the digest of its content."""
    return f"batch_req_{line.number}_{line.digest:08x}"


class AnswersFile:
    """Answers in a file, old and new ones.

    Attributes:
        num_answered: Lines that are there.
        num_failed: Lines with an error among them.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Open or make a file, remove an incomplete line, and read which lines are answered.

        It takes four bytes of memory for each line of the requests.

        Args:
            path: The file.
            overwrite: True begins anew.

        Raises:
            AnswersError: Another process writes it, or it is a file of another kind.
            OSError: It cannot be opened.
        """
        self.num_answered = self.num_failed = 0
        self._path = path
        self._digests = array("I")  # by number, 0 for none
        self._file: BinaryIO = path.open("a+b", buffering=0)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AnswersError(f"{path} is being written by another process") from None
            if overwrite:
                self._file.truncate(0)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self._file.close()

    def has(self, line: Line) -> bool:
        """Tell whether a line was answered.

        Raises:
            AnswersError: Another line was answered in its place.
        """
        digest = self._digests[line.number] if line.number < len(self._digests) else 0
        if digest not in (0, line.digest):
            raise AnswersError(
                f"{self._path} answers another file of requests: line {line.number} has changed "
                "since; choose another --output, or --overwrite it"
            )
        return digest != 0

    def add(self, record: dict[str, Any]) -> None:
        """Write an answer."""
        self.num_answered += 1
        self.num_failed += _has_failed(record)
        left = memoryview(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        while left:  # the system may take a part, as on a full disk; then the next write says so
            left = left[os.write(self._file.fileno(), left) :]

    def _read(self) -> None:
        """Read the answers up to the last whole line, and remove the rest behind it."""
        whole = 0
        with self._path.open("rb") as reader:
            for text in reader:
                if not text.endswith(b"\n"):
                    if text[: len(_HEAD)] != _HEAD[: len(text)]:
                        self._refuse()
                    break
                self._note(text)
                whole += len(text)
        self._file.truncate(whole)

    def _note(self, text: bytes) -> None:
        try:
            record = json.loads(text)
            number, digest = _ID.fullmatch(record["id"]).groups()  # type: ignore[union-attr]
            has_failed = _has_failed(record)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self._refuse()
        place = int(number)
        if place >= len(self._digests):
            self._digests.frombytes(bytes(4 * (place + 1 - len(self._digests))))
        self._digests[place] = int(digest, 16)
        self.num_answered += 1
        self.num_failed += has_failed

    def _refuse(self) -> NoReturn:
        raise AnswersError(
            f"{self._path} holds a line that is no answer of `asyncgen batch`; choose another "
            "--output, or --overwrite it"
        ) from None


def _has_failed(record: dict[str, Any]) -> bool:
    """Tell whether an answer is an error."""
    return record["error"] is not None or record["response"]["status_code"] != 200
