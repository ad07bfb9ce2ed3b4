"""Clients that ask, and hear the answer to its end, at every door of a server."""

from __future__ import annotations

import http.client
import json
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from asyncgen import AsyncgenError
from asyncgen_apps.websocket.client.client import Patience, connect
from tests.apps.chaos.place import ASKS, JSON, PATIENCE, SHORT, TALE, ask, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apps.chaos.place import Ask, Place


def learn(place: Place) -> None:
    """Ask each question while nobody else is there, and keep the answers."""
    asks = list(ASKS)
    for one in asks:
        text = place.answers[one] = in_one_piece(place, one)
        if one is TALE:  # as on a page: what was said is sent along with what comes next
            asks.append(ask(*TALE.prompt, text, "And then?", chat=True, **SHORT, seed=4))


def in_one_piece(place: Place, one: Ask) -> str:
    """Ask over HTTP and wait for the whole answer."""
    status, got = place.post(one.path, one.body())
    if status in (429, 503):
        raise ConnectionRefusedError(status)
    assert status == 200, got
    return text_of(got["choices"][0])


def in_events(place: Place, one: Ask) -> str:
    """Ask over HTTP and read the events as they come."""
    wire = http.client.HTTPConnection("127.0.0.1", place.port, timeout=PATIENCE)
    try:
        wire.request("POST", one.path, json.dumps(one.body(stream=True)), JSON)
        got = wire.getresponse()
        if got.status in (429, 503):
            raise ConnectionRefusedError(got.status)
        assert got.status == 200, got.read()
        text = ""
        for line in got:
            if line == b"data: [DONE]\n":
                return text
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise ConnectionResetError(event["error"]["message"])
                text += "".join(text_of(choice) for choice in event["choices"])
        raise ConnectionResetError("the events have no end")
    finally:
        wire.close()


def over_websocket(url: str, one: Ask) -> str:
    """Ask over a WebSocket, with the client that comes back."""
    patience = Patience(first_delay=0.01, longest_delay=0.2, outage=PATIENCE)

    async def read() -> str:
        async with connect(url, patience=patience) as client:
            return "".join(
                [piece async for piece in client.stream(one.source, **json.loads(one.params))]
            )

    return anyio.run(read)


def on_the_page(place: Place, one: Ask) -> str:
    """Ask the chat page, as its own script does; each event has the text so far."""
    *told, message = one.source
    settings = json.loads(one.params)
    if settings.pop("do_sample", True) is False:
        settings["strategy"] = "greedy"
    data = [message["content"], told, settings]
    status, got = place.post("/gradio_api/call/chat", {"data": data})
    assert status == 200, got
    status, content = place.ask("GET", f"/gradio_api/call/chat/{got['event_id']}")
    assert status == 200, content
    *_, kind, last = content.decode().strip().split("\n")
    assert kind == "event: complete", content[-500:]
    return str(json.loads(last.removeprefix("data: "))[0])


def doors_of(place: Place) -> tuple[Callable[[Ask], str], ...]:
    """Every way to ask a server."""
    streams = f"ws://127.0.0.1:{place.ws_port}", f"ws://127.0.0.1:{place.port}/v1/stream"
    return (
        partial(in_one_piece, place),
        partial(in_events, place),
        *(partial(over_websocket, url) for url in streams),
    )


def insist(doing: Callable[[], str]) -> str:
    """Do it again as often as it fails because the server is not there, or has no room."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return doing()
        except (OSError, http.client.HTTPException, AsyncgenError) as error:
            if time.monotonic() > end:
                raise AssertionError("nobody answers any more") from error
            time.sleep(0.02)
