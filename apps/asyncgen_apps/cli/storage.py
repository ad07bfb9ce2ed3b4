"""Conversations as files: read and written whole, never over somebody else's file.

Knows files and JSON; what a conversation means is the session's business.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from asyncgen_apps.cli.session import FORMAT, ConversationError


def write_conversation(path: str, conversation: dict[str, object]) -> Path:
    """Write a conversation; a file that is no conversation is not overwritten.

    Args:
        path: Where to; ``~`` is the home folder.
        conversation: What ``Session.dump`` returned.

    Returns:
        The file.

    Raises:
        ConversationError: The file exists and holds something else, or cannot be written.
    """
    file = Path(path).expanduser()
    if file.exists() and not _is_conversation(file):
        raise ConversationError(f"{file} holds something else: choose another name")
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(conversation, ensure_ascii=False, indent=1) + "\n", "utf-8")
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConversationError(f"cannot write {file}: {error.strerror}") from None
    return file


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


def _is_conversation(file: Path) -> bool:
    """Whether a file is one that this program wrote."""
    try:
        saved = read_conversation(str(file))
    except ConversationError:
        return False
    return isinstance(saved, dict) and saved.get("format") == FORMAT
