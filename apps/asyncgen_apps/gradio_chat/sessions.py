"""Keep the conversations and running answers of each open page.

The browser keeps the conversations; a session is their working copy for as long as the page is
open. It is the only one that is written to, so an answer that runs while another conversation is
looked at loses nothing. All of it lives on one event loop, and needs no locks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from asyncgen_apps.gradio_chat.conversations import ChatHistory
from asyncgen_apps.gradio_chat.reasoning import split_thinking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import gradio as gr
    from starlette.requests import HTTPConnection

    from asyncgen import TokenLogprob
    from asyncgen_apps.engine import EventStream
    from asyncgen_apps.gradio_chat.conversations import Conversation
    from asyncgen_apps.serving.clients import Proxies


MOST_SESSIONS = 512
"""Pages and calls of the API that Gradio keeps the state of at once, 0.15 MB each, the latest ones.
Its own limit is 10,000, and anybody can make them."""

KEPT_ANSWERS = 50
"""Answers whose probabilities are kept, for each page."""

KEPT_LOGPROBS = 60_000
"""Tokens and alternatives of all these answers: 15 MB. The last answer is always kept."""


def client_id(request: gr.Request | HTTPConnection, proxies: Proxies) -> str:
    """Say whom a request of a page belongs to, as every door of the servers does.

    Args:
        request: Of an event, or what brings it.
        proxies: Whose word about an address is taken.
    """
    client, headers = getattr(request, "client", None), getattr(request, "headers", Headers())
    remote = None if client is None else client.host
    # A proxy may add a line of its own behind one that its client wrote.
    return proxies.client(remote, ",".join(headers.getlist("x-forwarded-for")) or None).id


@dataclass(slots=True)
class Session:
    """One open page.

    Pages of one browser share all but their place, so that none overwrites what another wrote.

    Attributes:
        history: Its conversations.
        running: The answer on its way in each conversation, by key.
        statuses: State of that answer before its first word, in words.
        logprobs: Probabilities of answers, by key of the turn; not kept by the browser.
        started: Those of the running answers that this page asked for.
        drawn: State of the page as it was last drawn; a change redraws it.
        has_logprobs: False once the model has refused to tell probabilities.
    """

    history: ChatHistory
    running: dict[str, EventStream] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    logprobs: OrderedDict[str, Sequence[TokenLogprob]] = field(default_factory=OrderedDict)
    started: dict[str, EventStream] = field(default_factory=dict)
    drawn: tuple[object, ...] = ()
    has_logprobs: bool = True

    def beside(self) -> Session:
        """Return the session of a second page of the same browser."""
        return Session(self.history.beside(), self.running, self.statuses, self.logprobs)

    def start(self, conversation: Conversation, stream: EventStream) -> None:
        """Note that a conversation is being answered."""
        self.running[conversation.key] = self.started[conversation.key] = stream

    def end(self, conversation: Conversation) -> None:
        """Note that it is no longer; idempotent."""
        self.statuses.pop(conversation.key, None)
        if self.started.pop(conversation.key, None) is not None:
            self.running.pop(conversation.key, None)

    def is_running(self, conversation: Conversation) -> bool:
        """Tell whether a conversation is being answered, here or on another page."""
        return conversation.key in self.running

    def is_elsewhere(self, conversation: Conversation) -> bool:
        """Tell whether it is being answered on another page."""
        return self.is_running(conversation) and conversation.key not in self.started

    def looks(self) -> tuple[object, ...]:
        """Return what changes with all that a page shows of its conversation."""
        current = self.history.current
        return current.key, len(current.turns), current.size, self.is_running(current)

    def stop(self, conversation: Conversation) -> None:
        """End the answer on its way, if there is one; what is there stays."""
        stream = self.running.get(conversation.key)
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        """End the answers that were asked for here: nobody reads them any more."""
        for stream in self.started.values():
            stream.cancel()

    def record(self, key: str, logprobs: Sequence[TokenLogprob]) -> None:
        """Keep the probabilities of an answer, and forget those of the oldest."""
        if logprobs:
            self.logprobs[key] = logprobs
        while len(self.logprobs) > 1 and (
            len(self.logprobs) > KEPT_ANSWERS or self.num_logprobs > KEPT_LOGPROBS
        ):
            self.logprobs.popitem(last=False)

    @property
    def num_logprobs(self) -> int:
        """Number of tokens whose probabilities are kept, and of their alternatives."""
        return sum(len(each) * (1 + len(each[0].top)) for each in self.logprobs.values())

    def recorded(self, conversation: Conversation) -> list[tuple[str, str]]:
        """Return title and key of each answer of a conversation that has probabilities."""
        answers = [turn for turn in conversation.turns if turn.role == "assistant"]
        return [
            (f"{number}. {_beginning(split_thinking(turn.text).answer or turn.text)}", turn.key)
            for number, turn in enumerate(answers, start=1)
            if turn.key in self.logprobs
        ]


class Sessions:
    """The open pages, by the hash that Gradio gives each."""

    def __init__(self) -> None:
        """Begin with none."""
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        """Return how many pages are open."""
        return len(self._sessions)

    def __iter__(self) -> Iterator[str]:
        """Go through their hashes."""
        return iter(self._sessions)

    def find(self, key: str) -> Session | None:
        """Return the session of a page, if it is there."""
        return self._sessions.get(key)

    def get(self, key: str | None, saved: Any) -> Session:
        """Return the session of a page; if it is not there, it is made.

        It is made beside an open page of the same browser, or else of what the browser kept. A
        page whose connection was interrupted (a telephone that slept) comes back to a new one.
        """
        session = self._sessions.get(key or "")
        if session is None:
            history = ChatHistory.load(saved)
            open_ones = self._sessions.values()
            other = next((each for each in open_ones if each.history.key == history.key), None)
            session = Session(history) if other is None else other.beside()
            self._sessions[key or ""] = session
        if all(each is not session.history.current for each in session.history.conversations):
            session.history.current = session.history.conversations[0]  # removed on another page
        return session

    def close(self, key: str | None) -> None:
        """End what a page that has gone was waiting for, and forget it."""
        session = self._sessions.pop(key or "", None)
        if session is not None:
            session.close()


def _beginning(text: str, length: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip(" .,;:") + "…"
