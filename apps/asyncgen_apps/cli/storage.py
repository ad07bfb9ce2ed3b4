"""Read and write conversations as JSON files; never overwrite a file of another kind."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from asyncgen_apps.cli.session import FORMAT, ConversationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen_apps.cli.session import Session


def write_conversation(path: str, conversation: dict[str, object]) -> Path:
    """Write a conversation; a file that is no conversation is not overwritten.

    Args:
        path: File to write; ``~`` is the home folder.
        conversation: Result of ``Session.dump``.

    Returns:
        The file.

    Raises:
        ConversationError: The file exists and holds something else, or cannot be written.
    """
    file = Path(path).expanduser()
    if file.exists() and not _is_conversation(file):
        raise ConversationError(f"{file} holds something else: choose another name")
    _replace(file, conversation, 0o666)
    return file


def _replace(file: Path, conversation: dict[str, object], mode: int) -> None:
    """Replace a file as a whole."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    # A character that UTF-8 does not have becomes the escape that JSON has for it.
    text = json.dumps(conversation, ensure_ascii=False, indent=1) + "\n"
    data = text.encode("utf-8", "backslashreplace")
    with _in_words(file):
        try:
            partial.unlink(missing_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
                out.write(data)
            partial.replace(file)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def _in_words(file: Path) -> Iterator[None]:
    """Describe in a line the reason that a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConversationError(f"cannot write {file}: {error.strerror}") from None


def read_conversation(path: str) -> object:
    """Read a JSON file.

    Raises:
        ConversationError: It cannot be read, or is not JSON.
    """
    file = Path(path).expanduser()
    try:
        return json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConversationError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise ConversationError(f"{file} is not JSON: /load reads what /save wrote") from None


def state_folder() -> Path:
    """Return the folder of this program's data of the user; it may not exist yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "asyncgen"


class LastConversation:
    """File of the user's latest conversation, readable by its owner only.

    One file serves all chats: the one that changed last is the last one.

    Args:
        is_continued: True if this chat continues the conversation in the file.
    """

    def __init__(self, *, is_continued: bool = False) -> None:
        self.file = state_folder() / "last_chat.json"
        self._is_ours = is_continued
        self._kept: dict[str, object] | None = None

    def read(self) -> object:
        """Read it.

        Raises:
            ConversationError: There is none, or it cannot be read.
        """
        if not self.file.exists():
            raise ConversationError(
                f"there is no conversation to go on with: {self.file} is missing"
            )
        return read_conversation(str(self.file))

    def keep(self, session: Session) -> bool:
        """Bring the file up to date, if anything has changed.

        A cleared conversation is not kept; a chat without turns leaves an older one as it is.

        Returns:
            True if there is a conversation to continue.

        Raises:
            ConversationError: It cannot be written.
        """
        if not session.messages:
            if self._is_ours:
                self._is_ours, self._kept = False, None
                with _in_words(self.file):
                    self.file.unlink(missing_ok=True)
            return False
        conversation = session.dump()
        if conversation != self._kept:
            self._is_ours, self._kept = True, conversation
            with _in_words(self.file):
                self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self.file, conversation, 0o600)
        return True


def _is_conversation(file: Path) -> bool:
    """Tell whether this program wrote a file."""
    try:
        saved = read_conversation(str(file))
    except ConversationError:
        return False
    return isinstance(saved, dict) and saved.get("format") == FORMAT
