"""One client's events leave jobs, and room to wait, to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
from fastapi import FastAPI
from gradio.queueing import Queue

from asyncgen_apps.gradio_chat import build_chat, event_turns, launch_options
from asyncgen_apps.gradio_chat.event_turns import CLIENT, share_jobs
from tests.apps.gradio_chat.doubles import ScriptedModel
from tests.cases import for_each

JOBS = 40


def event(client: str) -> Any:
    return SimpleNamespace(request=SimpleNamespace(scope={CLIENT: client}))


class Page:
    """A page with a queue of events, as far as it is looked at."""

    def __init__(self, events: list[Any]) -> None:
        waiting = SimpleNamespace(queue=events, concurrency_limit=None, current_concurrency=0)
        self.waiting = waiting
        self._queue: Any = SimpleNamespace(
            active_jobs=[None] * JOBS,
            event_queue_per_concurrency_id={"asking": waiting},
            get_events=None,
        )
        share_jobs(self)  # type: ignore[arg-type]

    def start(self) -> list[str]:
        """Start what may start; return whose events they are, in order."""
        started = []
        while None in self._queue.active_jobs and (found := self._queue.get_events()) is not None:
            events, is_batch, name = found
            assert (is_batch, name) == (False, "asking")
            self._queue.active_jobs[self._queue.active_jobs.index(None)] = events
            started.append(events[0].request.scope[CLIENT])
        return started

    def end(self, client: str) -> None:
        """End one job of a client."""
        jobs = self._queue.active_jobs
        place = next(
            i for i, job in enumerate(jobs) if job and job[0].request.scope[CLIENT] == client
        )
        jobs[place] = None


def test_a_client_leaves_jobs_to_others() -> None:
    page = Page([event("many") for _ in range(300)])
    assert page.start() == ["many"] * (JOBS * 7 // 8)
    page.waiting.queue += [event("one"), event("other")]
    assert page.start() == ["one", "other"], "although hundreds have waited longer"
    page.end("many")
    page.end("many")
    assert page.start() == [], "it has more than its share beside them"
    page.end("one")
    page.end("other")
    assert page.start() == ["many"] * 2


def test_a_limit_of_a_function_holds() -> None:
    page = Page([event("a"), event("b")])
    page.waiting.concurrency_limit = page.waiting.current_concurrency = 1
    assert page.start() == []


async def _start(self: Queue) -> None:
    self.take()  # type: ignore[attr-defined]


@for_each(
    ("name", "change"),
    [
        ("start_processing", _start),
        ("get_events", lambda self, most: None),
        ("send_message", lambda self, message: None),
        ("get_events", None),
        ("send_message", None),
    ],
)
def test_a_gradio_with_another_queue_is_refused_at_the_start(
    name: str, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of Gradio's versions does not notice it."""
    if change is None:
        monkeypatch.delattr(Queue, name)
    else:
        monkeypatch.setattr(Queue, name, change)
    with pytest.raises(ImportError, match=rf"another queue .*{name}.* pip install 'gradio=="):
        build_chat(ScriptedModel())


@pytest.mark.anyio
async def test_so_many_events_wait_and_others_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_turns, "MOST_EVENTS", 16)
    page = build_chat(ScriptedModel())
    app = gr.mount_gradio_app(FastAPI(), page, path="/chat", **launch_options())
    found: dict[str, list[int]] = {}
    messages = []
    for address in ("192.0.2.1", "192.0.2.2"):
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(15):
                data = {"data": ["hi", None, None]}
                got = await client.post("/chat/gradio_api/call/chat", json=data)
                found.setdefault(address, []).append(got.status_code)
                if got.status_code == 429:
                    messages.append(got.json()["error"]["message"])
    assert found["192.0.2.1"] == [200] * 14 + [429]
    assert found["192.0.2.2"] == [200] + [429] * 14
    assert messages[0].startswith("14 events of this page run or wait, 14 of them yours, and 16")
