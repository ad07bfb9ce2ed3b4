"""The chat page: what is on it, and what happens when something is clicked."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import gradio as gr
from gradio.events import api
from gradio.utils import MatplotlibBackendMananger

from asyncgen_apps.gradio_chat.answering import READING, answer
from asyncgen_apps.gradio_chat.api import chat_function
from asyncgen_apps.gradio_chat.conversations import Conversation
from asyncgen_apps.gradio_chat.event_turns import check_queue
from asyncgen_apps.gradio_chat.fields import STRATEGIES
from asyncgen_apps.gradio_chat.messages import as_messages, turn_number
from asyncgen_apps.gradio_chat.model import ChatModel, encoder
from asyncgen_apps.gradio_chat.panel import SettingsPanel
from asyncgen_apps.gradio_chat.probabilities import EMPTY, SCRIPT, STYLE, heat_map
from asyncgen_apps.gradio_chat.session_cleanup import ChatBlocks
from asyncgen_apps.gradio_chat.sessions import MOST_SESSIONS, Session, Sessions, client_id
from asyncgen_apps.gradio_chat.settings import ModelDefaults, check, checked, chosen, stream_params
from asyncgen_apps.gradio_chat.statistics import describe
from asyncgen_apps.gradio_chat.theme import CLOSE_ON_PHONE, ON_LOAD, TOGGLE_THEME
from asyncgen_apps.serving.clients import Proxies

FOLLOWED_EVERY = 0.3
"""Seconds between two looks at an answer that grows on another page."""
SAVED_EVERY = 2.0
"""Seconds between two times that a growing answer is given to the browser to keep."""

LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
"""Without the single dollar, which stands for money as often as for mathematics."""

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def build_chat(
    llm: ChatModel,
    *,
    name: str = "asyncgen",
    examples: Sequence[str] = (),
    assistant_model: object | None = None,
    trusted_proxies: Sequence[str] = (),
) -> gr.Blocks:
    """Make the chat page of a model.

    Args:
        llm: An ``AsyncLLM``, open or to be opened before the page is; it stays the caller's, who
            closes it.
        name: Title of the page.
        examples: Questions that an empty chat offers.
        assistant_model: A draft model, a folder or a hub id, for assisted generation. Users cannot
            name one: it would be loaded from this machine's disk, or the network.
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` says who a user is: users
            share the engine evenly, by their addresses.

    Returns:
        The page. Launch it, or mount it, with ``launch_options()``.

    Raises:
        ImportError: A Gradio is installed whose queue is not known here.
    """
    check_queue()
    return _ChatPage(llm, name, examples, assistant_model, Proxies(trusted_proxies)).blocks


class _ChatPage:
    """The widgets and their handlers. All handlers are async: they share one event loop."""

    def __init__(
        self,
        llm: ChatModel,
        name: str,
        examples: Sequence[str],
        assistant_model: object | None,
        proxies: Proxies,
    ) -> None:
        self._llm = llm
        self._proxies = proxies
        self._examples = examples
        self._assistant = assistant_model
        self._defaults = ModelDefaults(llm)
        self._encode = encoder(llm)
        self._sessions = Sessions()
        look: dict[str, Any] = {"title": name, "fill_height": True, "fill_width": True}
        look["analytics_enabled"] = False
        with ChatBlocks(self._sessions, proxies, **look) as self.blocks:
            self._draw(name)
            self._wire()
        self.blocks.state_session_capacity = MOST_SESSIONS
        with MatplotlibBackendMananger():
            pass  # Gradio's first event would import it, half a second in the event loop

    def _draw(self, name: str) -> None:
        strategies = [s for s in STRATEGIES if s != "assistant" or self._assistant is not None]
        self._store = gr.BrowserState(None, storage_key="asyncgen.chats", secret="asyncgen.chat")
        with gr.Sidebar(width=280, elem_id="conversations"):
            with gr.Row(elem_id="brand"):
                gr.Markdown(f"## {name}")
                self._theme = gr.Button("◐", size="sm", min_width=0, elem_id="theme")
            self._new = gr.Button("New chat", variant="primary", elem_id="new-chat")
            self._picker = gr.Radio(
                [],
                label="Chats",
                show_label=False,
                container=False,
                interactive=True,
                elem_id="picker",
            )
            self._delete = gr.Button("Delete this chat", size="sm", elem_id="delete-chat")
            self._restore = gr.Button(size="sm", visible=False, elem_id="restore-chat")
            # Pressed by the page itself, when another tab has changed what the browser keeps.
            self._changed = gr.Button("Look again", elem_id="changed")
        with gr.Sidebar(width=330, position="right", open=False, elem_id="settings"):
            gr.Markdown("### Settings")
            gr.HTML('<p id="differing" role="status"></p>', padding=False)
            self._panel = SettingsPanel(self._defaults(), strategies)
        with gr.Tabs(elem_id="main"):
            with gr.Tab("Chat", scale=1, id="chat", elem_id="chat-tab"):
                self._draw_chat(name)
            with gr.Tab("Probabilities", id="probabilities"):
                self._draw_probabilities()

    def _draw_chat(self, name: str) -> None:
        self._chatbot = gr.Chatbot(
            label="Conversation",
            show_label=False,
            container=False,
            scale=1,
            height=None,
            editable="user",
            buttons=["copy"],
            placeholder=f"## {name}\nWhat would you like to know?",
            examples=[{"text": text} for text in self._examples],
            latex_delimiters=LATEX,
            elem_id="chat",
        )
        self._box = gr.Textbox(
            label="Message",
            placeholder="Ask something",
            show_label=False,
            container=False,
            lines=1,
            max_lines=10,
            submit_btn=True,
            autofocus=True,
            elem_id="box",
        )

    def _draw_probabilities(self) -> None:
        with gr.Column(elem_id="probabilities"):
            self._answers = gr.Dropdown(
                [], label="Answer", interactive=True, filterable=False, visible=False
            )
            self._heat = gr.HTML(EMPTY, css_template=STYLE, js_on_load=SCRIPT, elem_id="heat")

    @property
    def _views(self) -> list[Any]:
        """Components that a handler may change, in the order of its return values."""
        return [
            self._chatbot,
            self._box,
            self._store,
            self._picker,
            self._answers,
            self._heat,
            self._restore,
        ]

    def _wire(self) -> None:
        settings = self._panel.inputs
        # Gradio would refuse a value without naming its field, and take the chat off the screen.
        asking: dict[str, Any] = {
            "outputs": self._views, "concurrency_limit": None, "trigger_mode": "multiple",
            "preprocess": False, **QUIET,
        }  # fmt: skip
        self._box.submit(self._ask, [self._box, self._store, *settings], **asking)
        self._chatbot.example_select(self._ask_example, [self._store, *settings], **asking)
        self._chatbot.option_select(self._ask_example, [self._store, *settings], **asking)
        self._chatbot.retry(self._retry, [self._store, *settings], **asking)
        self._chatbot.edit(self._edit, [self._store, *settings], **asking)
        acting: dict[str, Any] = {"outputs": self._views, "queue": False, **QUIET}
        self._box.stop(self._stop, self._store, **acting)
        self._chatbot.undo(self._undo, self._store, **acting)
        for chosen_another in (
            self._new.click(self._begin, self._store, **acting),
            self._delete.click(self._remove, self._store, **acting),
            self._restore.click(self._bring_back, self._store, **acting),
            self._picker.input(self._pick, [self._picker, self._store], **acting),
        ):
            chosen_another.then(self._follow, self._store, **asking)
        self._changed.click(self._catch_up, self._store, trigger_mode="always_last", **acting)
        self._answers.input(
            self._draw_answer, [self._answers, self._store], self._heat, queue=False, **QUIET
        )
        self._theme.click(None, js=TOGGLE_THEME, queue=False, **QUIET)
        for event in (self._new.click, self._picker.input):
            event(None, js=CLOSE_ON_PHONE, queue=False, **QUIET)
        self.blocks.load(None, js=ON_LOAD, queue=False, **QUIET)
        loaded = [*self._views, *self._panel.views]
        shown = self.blocks.load(self._load, self._store, loaded, queue=False, **QUIET)
        shown.then(self._follow, self._store, **asking)
        self.blocks.unload(self._unload)
        api(
            chat_function(self._llm, self._defaults, self._assistant, self._proxies),
            api_name="chat",
            concurrency_limit=None,
        )

    async def _ask(
        self, request: gr.Request, text: str, saved: Any, *given: Any
    ) -> AsyncGenerator[list[Any], None]:
        session = self._sessions.get(request.session_hash, saved)
        conversation = session.history.current
        if not isinstance(text, str) or not text.strip() or self._is_busy(session):
            yield self._nothing()
            return
        if reason := conversation.refuses(text.strip()):
            gr.Warning(reason)
            yield self._nothing()
            return
        conversation.ask(text.strip())
        async with aclosing(self._answer(request, session, conversation, given, box="")) as frames:
            async for frame in frames:
                yield frame

    async def _ask_example(
        self, request: gr.Request, event: gr.SelectData, saved: Any, *given: Any
    ) -> AsyncGenerator[list[Any], None]:
        text = event.value["text"] if isinstance(event.value, dict) else str(event.value)
        async with aclosing(self._ask(request, text, saved, *given)) as frames:
            async for frame in frames:
                yield frame

    async def _retry(
        self, request: gr.Request, event: gr.RetryData, saved: Any, *given: Any
    ) -> AsyncGenerator[list[Any], None]:
        session = self._sessions.get(request.session_hash, saved)
        conversation = session.history.current
        if self._is_busy(session):
            yield self._nothing()
            return
        question = conversation.take_back(turn_number(conversation, _first(event.index)))
        conversation.ask(question)
        async with aclosing(self._answer(request, session, conversation, given)) as frames:
            async for frame in frames:
                yield frame

    async def _edit(
        self, request: gr.Request, event: gr.EditData, saved: Any, *given: Any
    ) -> AsyncGenerator[list[Any], None]:
        session = self._sessions.get(request.session_hash, saved)
        conversation = session.history.current
        text = str(event.value).strip()
        if not text or self._is_busy(session):
            yield self._screen(session)
            return
        number = turn_number(conversation, _first(event.index))
        if reason := Conversation(conversation.turns[:number]).refuses(text):
            gr.Warning(reason)
            yield self._screen(session)
            return
        conversation.reword(number, text)
        async with aclosing(self._answer(request, session, conversation, given)) as frames:
            async for frame in frames:
                yield frame

    async def _answer(
        self,
        request: gr.Request,
        session: Session,
        conversation: Conversation,
        given: Sequence[Any],
        box: str | None = None,
    ) -> AsyncGenerator[list[Any], None]:
        """Draw an answer as it grows; in another chat, it grows unseen and is kept."""
        shown = self._defaults()
        try:
            values = self._panel.values(given, session.history.settings)
            check(values, shown)
            session.history.settings = chosen(values, shown)
            params = stream_params(values, shown, self._encode, self._assistant)
        except Exception as error:
            conversation.fail(describe(error))
            yield self._screen(session, box=box)
            return
        params["client"] = client_id(request, self._proxies)
        kept_at: float | None = None
        turns = answer(self._llm, session, conversation, params, values["system"] or "")
        async with aclosing(turns) as grown:
            async for _ in grown:
                is_first, is_last = kept_at is None, not session.is_running(conversation)
                now = time.monotonic()
                keep = is_last or kept_at is None or now - kept_at > SAVED_EVERY
                kept_at = now if keep else kept_at
                if is_first or is_last:
                    frame = self._screen(session, box=box if is_first else None)
                else:
                    frame = self._nothing()
                    frame[0] = self._messages(session)
                    frame[2] = session.history.save() if keep else gr.skip()
                if session.history.current is not conversation:
                    frame[0] = gr.skip()
                yield frame

    async def _stop(self, request: gr.Request, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        current = session.history.current
        if not session.is_running(current):
            return self._screen(session)  # the answer ended before the click arrived
        session.stop(current)
        return self._nothing()

    async def _undo(self, request: gr.Request, event: gr.UndoData, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        conversation = session.history.current
        if self._is_busy(session):
            return self._nothing()
        text = conversation.take_back(turn_number(conversation, _first(event.index)))
        return self._screen(session, box=text)

    async def _begin(self, request: gr.Request, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        session.history.begin()
        return self._screen(session)

    async def _remove(self, request: gr.Request, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        session.stop(session.history.current)
        session.history.remove(session.history.current)
        return self._screen(session)

    async def _bring_back(self, request: gr.Request, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        session.history.bring_back()
        return self._screen(session)

    async def _catch_up(self, request: gr.Request, saved: Any) -> list[Any]:
        """Draw what another tab has changed; never the store, which would tell that tab in turn."""
        session = self._sessions.get(request.session_hash, saved)
        current = session.history.current
        nothing = self._nothing()
        if current.key in session.started or session.drawn == session.looks():
            return [*nothing[:3], self._list(session), *nothing[4:]]
        screen = self._screen(session)
        screen[2] = gr.skip()
        return screen

    async def _pick(self, request: gr.Request, key: str, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        session.history.show(key)
        return self._screen(session)

    async def _draw_answer(self, request: gr.Request, key: str, saved: Any) -> str:
        session = self._sessions.get(request.session_hash, saved)
        return heat_map(session.logprobs.get(key, ()))

    async def _load(self, request: gr.Request, saved: Any) -> list[Any]:
        session = self._sessions.get(request.session_hash, saved)
        self._defaults()
        settings = session.history.settings = checked(session.history.settings)
        return [*self._screen(session), *self._panel.restored(settings)]

    async def _follow(self, request: gr.Request, saved: Any) -> AsyncGenerator[list[Any], None]:
        """Draw all again, then an answer that grows on another page, while its chat is shown.

        What a click draws comes on a connection of its own: it may reach the browser after later
        frames of an answer, or before earlier ones. What is drawn here comes after all of them.
        """
        session = self._sessions.get(request.session_hash, saved)
        conversation = session.history.current
        yield self._screen(session)
        while session.is_elsewhere(conversation):
            yield [self._messages(session), *self._nothing()[1:]]
            await asyncio.sleep(FOLLOWED_EVERY)
            if session.history.current is not conversation:
                return
            if not session.is_running(conversation):
                yield self._screen(session)

    async def _unload(self, request: gr.Request) -> None:
        self._sessions.close(request.session_hash)

    def _is_busy(self, session: Session) -> bool:
        """Tell whether the conversation shown is being answered; if so, notify the user."""
        if not session.is_running(session.history.current):
            return False
        gr.Warning("This chat is being answered: stop the answer first.")
        return True

    def _nothing(self) -> list[Any]:
        return [gr.skip() for _ in self._views]

    def _messages(self, session: Session) -> list[dict[str, Any]]:
        current = session.history.current
        session.drawn = session.looks()
        if not session.is_running(current):
            return as_messages(current)
        return as_messages(current, session.statuses.get(current.key, READING))

    def _screen(self, session: Session, box: str | None = None) -> list[Any]:
        """Return all views of a session as they are now."""
        history = session.history
        if dropped := history.trim():
            more = f", and {len(dropped) - 1} more," if len(dropped) > 1 else ""
            gr.Info(f"Your browser has no room left: the chat “{dropped[0]}”{more} was removed.")
        running = session.is_running(history.current)
        typed: dict[str, Any] = {} if box is None else {"value": box}
        removed = history.removed
        recorded = session.recorded(history.current)
        last = recorded[-1][1] if recorded else None
        return [
            self._messages(session),
            gr.update(submit_btn=not running, stop_btn=running, **typed),
            history.save(),
            self._list(session),
            gr.update(choices=recorded, value=last, visible=bool(recorded)),
            heat_map(session.logprobs[last] if last else ()),
            gr.update(
                visible=removed is not None,
                value="" if removed is None else f"Bring back “{removed[1].title}”",
            ),
        ]

    def _list(self, session: Session) -> Any:
        """Return the conversations to choose from."""
        history = session.history
        listed = [(each.title, each.key) for each in history.conversations]
        return gr.update(choices=listed, value=history.current.key)


def _first(index: int | tuple[int, int] | list[int]) -> int:
    """Return the index of a message, in any form that Gradio sends."""
    return index if isinstance(index, int) else index[0]
