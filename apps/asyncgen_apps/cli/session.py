"""Chat as data: messages, settings and statistics; without terminal, files and model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncgen_apps.cli.settings import SettingError, Settings

if TYPE_CHECKING:
    from asyncgen import Completion, StreamParams


FORMAT = "asyncgen.chat"
VERSION = 1
ROLES = ("system", "user", "assistant", "tool")


class ConversationError(ValueError):
    """Saved conversation that cannot be read or written."""


@dataclass(slots=True)
class Totals:
    """Statistics of all answers of a session."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, completion: Completion) -> None:
        """Count one answer."""
        self.answers += 1
        self.prompt_tokens += completion.usage.prompt_tokens
        self.completion_tokens += completion.usage.completion_tokens
        self.seconds += completion.timing.total


@dataclass(slots=True)
class Session:
    """Conversation with one model.

    Attributes:
        model: Name of the model, which saved conversations record.
        settings: Generation parameters of the answers to come.
        system: The system message, if any.
        messages: The turns so far, without the system message.
        last: The latest answer.
        totals: Statistics of all answers.
        json_schema: Schema of every answer; ``None``: answers are free.
    """

    model: str
    settings: Settings = field(default_factory=Settings)
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    last: Completion | None = None
    totals: Totals = field(default_factory=Totals)
    json_schema: dict[str, Any] | None = None

    def params(self) -> StreamParams:
        """Return the parameters of the next answer."""
        params = self.settings.params()
        if self.json_schema is not None:
            params["json_schema"] = self.json_schema
        return params

    def prompt(self, question: str) -> list[dict[str, Any]]:
        """Return the prompt of the next answer: all turns so far, and ``question``.

        The session itself does not change: a question that fails leaves no trace.
        """
        return [*self.transcript(), {"role": "user", "content": question}]

    def keep(self, question: str, completion: Completion) -> None:
        """Add a question and its answer, complete or stopped early."""
        self.messages.append({"role": "user", "content": question})
        self.messages.append({"role": "assistant", "content": completion.text})
        self.last = completion
        self.totals.add(completion)

    def clear(self) -> None:
        """Remove all turns; system message, settings and statistics stay."""
        self.messages.clear()

    def undo(self) -> str | None:
        """Remove the last question and all after it.

        Returns:
            The question; ``None`` if there is none.
        """
        turns = range(len(self.messages) - 1, -1, -1)
        last = next((turn for turn in turns if self.messages[turn]["role"] == "user"), None)
        if last is None:
            return None
        question: str = self.messages[last]["content"]
        del self.messages[last:]
        return question

    def transcript(self) -> list[dict[str, Any]]:
        """Return the messages, the system message first."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *self.messages]

    def dump(self) -> dict[str, Any]:
        """Return the conversation as an object for a JSON file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "messages": self.transcript(),
            "settings": dict(self.settings.values),
        }

    def restore(self, saved: object) -> None:
        """Replace messages and settings by those of a saved conversation.

        The model stays the one that is loaded.

        Raises:
            ConversationError: The object is not a saved conversation; nothing has changed.
        """
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise ConversationError('not a saved conversation: "format" is not asyncgen.chat')
        if saved.get("version") != VERSION:
            raise ConversationError(
                f"saved in version {saved.get('version')}, this program reads {VERSION}"
            )
        messages = _checked_messages(saved.get("messages"))
        settings = _checked_settings(saved.get("settings"))
        has_system = bool(messages) and messages[0]["role"] == "system"
        self.system = messages[0]["content"] if has_system else None
        self.messages = messages[1:] if has_system else messages
        settings.model = self.settings.model
        self.settings = settings

    def go_on(self, saved: object) -> None:
        """Continue a saved conversation; the choices of this session count more.

        Raises:
            ConversationError: The object is not a saved conversation; nothing has changed.
        """
        chosen, system = self.settings, self.system
        self.restore(saved)
        for name, value in chosen.values.items():
            self.settings.set(name, value, chosen.sources[name])
        if system is not None:
            self.system = system


def model_of(saved: object, default: str) -> tuple[str, str | None]:
    """Return the model of a saved conversation, and its address if it is a server's."""
    name = saved.get("model") if isinstance(saved, dict) else None
    if not isinstance(name, str):
        return default, None
    return (default, name) if name.startswith(("ws://", "wss://")) else (name, None)


def _checked_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages of a file, each with a known role and a text."""
    if not isinstance(messages, list):
        raise ConversationError('"messages" must be a list')
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ConversationError(f'message {number}: "role" must be one of {", ".join(ROLES)}')
        if not isinstance(message.get("content"), str):
            raise ConversationError(f'message {number}: "content" must be a string')
    return messages


def _checked_settings(values: object) -> Settings:
    """Return the settings of a file, each known and in range."""
    if not isinstance(values, dict):
        raise ConversationError('"settings" must be an object')
    settings = Settings()
    for name, value in values.items():
        try:
            settings.set(name, value, "saved chat")
        except SettingError as error:
            raise ConversationError(str(error)) from None
    return settings
