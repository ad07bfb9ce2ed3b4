"""Conversations as data: turns, titles, and the form in which a browser keeps them.

Knows no model and no screen.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from asyncgen_apps.gradio_chat.json_bounds import too_complex
from asyncgen_apps.gradio_chat.reasoning import split_thinking

Role: TypeAlias = Literal["user", "assistant"]

FORMAT = 1
TITLE_LENGTH = 42
UNTITLED = "New chat"
KEPT_BYTES = 1_500_000
"""Most bytes of all chats in what a browser keeps. It keeps five megabytes for a site, encryption
takes its share, and the page sends all of it with every event."""
KEPT_CHATS = 500
"""Most chats that a browser keeps: the page lists all of them."""
MOST_TURNS = 1000
"""Most turns of a chat: the page draws all of them, ten times a second while an answer grows."""
MOST_FIGURES = 32
MOST_VALUES = 100_000
"""Most values and keys of what a browser keeps; with more it is nothing that the page has saved."""
CUT_OFF = {"ended by": "cut off: the page was left"}
"""What stands below an answer that has no end: the browser kept it while it grew."""
ANOTHER = "begin another chat."
_AROUND_TURN = 500
"""Bytes that a turn takes beside its text, at least, and what it costs to read one."""


@dataclass(slots=True)
class Turn:
    """One message.

    Attributes:
        role: ``user`` or ``assistant``.
        text: The message as the model wrote or read it.
        figures: Name and value of each statistic, as shown; empty for questions.
        error: Error in words.
        key: Tells answers apart, within a session and in saved conversations.
    """

    role: Role
    text: str
    figures: dict[str, str] = field(default_factory=dict)
    error: str = ""
    key: str = field(default_factory=lambda: secrets.token_hex(6))
    _measured: tuple[str, int] = field(default=("", 2), init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """About how many bytes it takes in what the page sends."""
        if self._measured[0] is not self.text:
            self._measured = self.text, sent_bytes(self.text)
        around = sum(len(name) + len(value) for name, value in self.figures.items())
        return self._measured[1] + around + len(self.error) + _AROUND_TURN

    def dump(self) -> dict[str, Any]:
        """Return it as plain values, without what is empty."""
        full = {
            "role": self.role,
            "text": self.text,
            "figures": dict(self.figures),
            "error": self.error,
            "key": self.key,
        }
        return {name: value for name, value in full.items() if value or name == "text"}

    @classmethod
    def restore(cls, saved: Any) -> Self:
        """Read a dumped turn.

        Raises:
            ValueError: It is not a dumped turn.
        """
        if not isinstance(saved, dict) or saved.get("role") not in ("user", "assistant"):
            raise ValueError("not a turn")
        figures = saved.get("figures") or {}
        if not isinstance(saved.get("text"), str) or not isinstance(figures, dict):
            raise ValueError("not a turn")
        if len(figures) > MOST_FIGURES:
            raise ValueError("not a turn")
        turn = cls(saved["role"], saved["text"], error=str(saved.get("error", "")))
        turn.figures = {str(name): str(value) for name, value in figures.items()}
        if turn.role == "assistant" and not turn.figures and not turn.error:
            turn.figures = dict(CUT_OFF)
        turn.key = str(saved.get("key") or turn.key)
        return turn


@dataclass(slots=True)
class Conversation:
    """One conversation, oldest turn first."""

    turns: list[Turn] = field(default_factory=list)
    key: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def title(self) -> str:
        """The beginning of the first question."""
        first = next((turn.text for turn in self.turns if turn.role == "user"), "")
        line = " ".join(first.split())
        if not line:
            return UNTITLED
        return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"

    def ask(self, text: str) -> None:
        """Add a question."""
        self.turns.append(Turn("user", text))

    def fail(self, error: str) -> None:
        """Answer the last question with an error, in words."""
        self.turns.append(Turn("assistant", "", error=error))

    def reword(self, number: int, text: str) -> None:
        """Replace a question and forget what came after it.

        Args:
            number: Index of the turn.
            text: The new question.

        Raises:
            IndexError: There is no such question.
        """
        if not 0 <= number < len(self.turns) or self.turns[number].role != "user":
            raise IndexError(f"turn {number} is no question")
        self.turns[number:] = [Turn("user", text)]

    def take_back(self, number: int | None = None) -> str:
        """Forget a question, by default the last, and everything after it.

        Args:
            number: Index of the question, or of an answer to it.

        Returns:
            The question; empty if there is none.
        """
        last = len(self.turns) - 1 if number is None else min(number, len(self.turns) - 1)
        for index in range(last, -1, -1):
            if self.turns[index].role == "user":
                text = self.turns[index].text
                del self.turns[index:]
                return text
        return ""

    def prompt(self, system: str = "") -> list[dict[str, str]]:
        """Return the messages that the model gets.

        Left out are the reasoning of earlier answers, and questions whose answer has no text: it
        failed, or was stopped before its first word.
        """
        messages: list[dict[str, str]] = []
        for turn in self.turns:
            text = turn.text if turn.role == "user" else split_thinking(turn.text).answer
            if text or turn.role == "user":
                messages.append({"role": turn.role, "content": text})
            elif messages:
                messages.pop()
        head = [{"role": "system", "content": system}] if system.strip() else []
        return [*head, *messages]

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep."""
        return sum(turn.size for turn in self.turns)

    def refuses(self, text: str) -> str | None:
        """Say why a question cannot be added; ``None`` if it can.

        Args:
            text: The question.
        """
        if len(self.turns) + 2 > MOST_TURNS:
            return f"This chat has {len(self.turns)} messages, and {MOST_TURNS} at most: " + ANOTHER
        if self.size + sent_bytes(text) + _AROUND_TURN > KEPT_BYTES:
            most = KEPT_BYTES / 1e6
            return f"This chat would be larger than {most} MB, which is the most of one: " + ANOTHER
        return None

    def last_turns(self, room: int) -> list[Turn]:
        """Return the last turns that fit into so many bytes."""
        first = len(self.turns)
        while first > 0 and self.turns[first - 1].size <= room:
            first -= 1
            room -= self.turns[first].size
        return self.turns[first:]


@dataclass(slots=True)
class ChatHistory:
    """All conversations of one browser, newest first, and the settings chosen there.

    Attributes:
        conversations: At least one.
        current: Conversation on the screen.
        settings: Values chosen in the panel, by name; others are the model's defaults.
        key: Secret of this browser, which identifies it.
        removed: Index and conversation that was removed last; not kept by the browser.
    """

    conversations: list[Conversation]
    current: Conversation
    settings: dict[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    removed: tuple[int, Conversation] | None = None

    @classmethod
    def new(cls) -> Self:
        """Begin with one empty conversation."""
        first = Conversation()
        return cls([first], first)

    def beside(self) -> Self:
        """Return the history for a second page: the same conversations, another current one."""
        return type(self)(self.conversations, self.current, dict(self.settings), self.key)

    def begin(self) -> Conversation:
        """Show an empty conversation: the one that is there, or a new one."""
        empty = next((each for each in self.conversations if not each.turns), None)
        if empty is None:
            empty = Conversation()
        else:
            self.conversations.remove(empty)
        self.conversations.insert(0, empty)
        self.current = empty
        return empty

    def show(self, key: str) -> Conversation:
        """Show a conversation; one that is gone leaves the screen as it is."""
        self.current = next((c for c in self.conversations if c.key == key), self.current)
        return self.current

    def remove(self, conversation: Conversation) -> None:
        """Take a conversation out; the next one is shown, or an empty one."""
        if conversation.turns and conversation in self.conversations:
            self.removed = self.conversations.index(conversation), conversation
        self.conversations[:] = [c for c in self.conversations if c is not conversation]
        if not self.conversations:
            self.begin()
        elif self.current is conversation:
            self.current = self.conversations[0]

    def bring_back(self) -> None:
        """Put the conversation that was removed last where it was, and show it."""
        if self.removed is None:
            return
        place, self.current = self.removed
        self.conversations.insert(place, self.current)
        self.removed = None

    def trim(self, limit: int = KEPT_BYTES, chats: int = KEPT_CHATS) -> list[str]:
        """Forget the oldest conversations that a browser has no room for; never the one shown.

        Args:
            limit: Most bytes to keep.
            chats: Most conversations to keep.

        Returns:
            Their titles, the oldest first.
        """
        room, count = limit - self.current.size, 1
        kept: list[Conversation] = []
        dropped: list[str] = []
        for each in self.conversations:
            if each is self.current:
                kept.append(each)
            elif not dropped and count < chats and each.size <= room:
                room, count = room - each.size, count + 1
                kept.append(each)
            else:
                dropped.append(each.title)
        self.conversations[:] = kept
        return dropped[::-1]

    def dump(self) -> dict[str, Any]:
        """Return plain values for the browser; the last turns of a chat that it has no room for."""
        return {
            "format": FORMAT,
            "key": self.key,
            "current": self.current.key,
            "settings": dict(self.settings),
            "conversations": [
                {"key": each.key, "turns": [turn.dump() for turn in each.last_turns(KEPT_BYTES)]}
                for each in self.conversations
                if each.turns or each is self.current
            ],
        }

    def save(self) -> str:
        """Return what the browser keeps: one text, as Gradio walks all other values one by one."""
        return json.dumps(self.dump(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def load(cls, saved: Any) -> Self:
        """Read what `save` returned; of anything else, what can be understood."""
        if not isinstance(saved, str):
            return cls.restore(saved)
        try:
            if too_complex(saved.encode(), MOST_VALUES):
                return cls.new()
            found = json.loads(saved)
            if "\\u" in saved:
                json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except ValueError:
            return cls.new()
        return cls.restore(found)

    @classmethod
    def restore(cls, saved: Any) -> Self:
        """Read what a browser kept; what cannot be understood is left out.

        The browser's storage is the user's: it may hold anything, and must not keep them out.
        """
        history = cls.new()
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            return history
        history.key = str(saved.get("key") or history.key)
        settings, listed = saved.get("settings"), saved.get("conversations")
        history.settings = dict(settings) if isinstance(settings, dict) else {}
        given = listed[:KEPT_CHATS] if isinstance(listed, list) else []
        found = [c for each in given if (c := _read(each))]
        if found:
            history.conversations = found
            history.current = found[0]
            history.show(str(saved.get("current")))
        return history


def _read(saved: Any) -> Conversation | None:
    """Read one conversation, ``None`` if it is none."""
    if not isinstance(saved, dict) or not isinstance(saved.get("turns"), list):
        return None
    try:
        turns = [Turn.restore(each) for each in saved["turns"][-MOST_TURNS:]]
    except ValueError:
        return None
    return Conversation(turns, str(saved.get("key") or secrets.token_hex(6)))


def sent_bytes(text: str) -> int:
    """Count the bytes of a text in an event of the page: in JSON that is itself a text in JSON."""
    kept = json.dumps(text, ensure_ascii=False)
    return len(json.dumps(kept, ensure_ascii=False).encode(errors="replace"))
