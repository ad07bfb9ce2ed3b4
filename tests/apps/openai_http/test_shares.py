"""One client fills what it can of each budget; another is served at once, whatever it asks."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.openai_http import middleware
from asyncgen_apps.openai_http.middleware import BodyLimitMiddleware
from asyncgen_apps.serving.clients import Keys
from asyncgen_apps.serving.limits import LARGE
from asyncgen_apps.serving.sliced_json import parse
from tests.apps.openai_http.running import PATIENCE, running, wait_for
from tests.apps.openai_http.test_websocket_streams import Wire, wired
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen_apps.serving.shared_budget import SharedBudget
    from tests.apps.openai_http.running import Reply, Running

PLACES = 16
MOST = 14
"""What one client has of them."""

A, B = ({"Authorization": f"Bearer {name}"} for name in "ab")
KEYS = Keys(("a", "b"))
ENDLESS: dict[str, Any] = {"model": "demo", "max_tokens": 900, "ignore_eos": True}
SHORT: dict[str, Any] = {"model": "demo", "max_tokens": 3}
TURNS = [{"role": "user", "content": "Tell me a story."}]

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**SHORT, "messages": TURNS}),
    "stream": ("/v1/completions", {**SHORT, "prompt": "Once", "stream": True}),
    "n=128": ("/v1/completions", {**SHORT, "prompt": "Once", "n": 128, "temperature": 1}),
    "logprobs": ("/v1/completions", {**SHORT, "prompt": ["a", "b"], "n": 2, "logprobs": 2}),
    "embeddings": ("/v1/embeddings", {"model": "demo", "input": ["a fox"] * 8}),
    "tokenize": ("/tokenize", {"prompt": "a fox"}),
    "large body": ("/v1/completions", {**SHORT, "prompt": "Once", "stop": [], "user": "x" * LARGE}),
}
"""What another client asks."""


@pytest.fixture(scope="module")
def two() -> Iterator[Running]:
    """A server of two keys, with few places."""
    make = lambda: AsyncLLM("demo", num_threads=1)  # noqa: E731
    with (
        pytest.MonkeyPatch.context() as patched,
        running(make, api_keys=("a", "b"), max_requests=PLACES) as served,
    ):
        patched.setattr(body_bytes(served), "most", 16 * LARGE)
        yield served


def body_bytes(served: Running) -> Any:
    """The budget of bodies of a server."""
    app: Any = served.server.config.app
    served.request("GET", "/health")  # which builds the application
    app = app.middleware_stack
    while not isinstance(app, BodyLimitMiddleware):
        app = getattr(app, "app", None) or app._app
    return app._bytes


def holds(budget: SharedBudget, used: int) -> bool:
    """Tell whether so much of a budget is used."""
    return budget.used == used


def dialled(served: Running, key: str, path: str, length: int, body: bytes) -> socket.socket:
    """Send a head and some of a body."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    wire = socket.create_connection(("127.0.0.1", served.port), PATIENCE)
    wire.sendall(head.encode() + body)
    return wire


def begun(served: Running, key: str, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and leave its reply on the wire."""
    raw = json.dumps(body).encode()
    return dialled(served, key, path, len(raw), raw)


def ask(served: Running, kind: str, key: dict[str, str]) -> Reply:
    """Ask for something small."""
    path, body = SMALL[kind]
    return served.request("POST", path, body, key)


def fill(served: Running, stack: ExitStack, body: dict[str, Any]) -> None:
    """Have a client take places until it has all that it may have."""
    before = served.gate.count
    for count in range(MOST):
        stack.enter_context(begun(served, "a", "/v1/completions", body))
        wait_for(partial(holds, served.gate.places, before + count + 1))


def fill_over(served: Running, wire: Wire) -> None:
    """Start as many streams as a client may have on one connection."""
    wire.hear()
    for count in range(MOST):
        wire.say("generate", id=f"{count}", prompt="Once", params={"min_new_tokens": 900})
    wait_for(partial(holds, served.gate.places, MOST))


def cancel_over(wire: Wire) -> None:
    """Cancel them, and read their ends."""
    for count in range(MOST):
        wire.say("cancel", id=f"{count}")
    ends = 0
    while ends < MOST:
        said = wire.hear()
        assert said["type"] != "error", said
        ends += said["type"] == "done"


@for_each("full_of", ["streams", "n=4", "ws", "ws_port"])
def test_another_client_finds_a_place(two: Running, full_of: str) -> None:
    with ExitStack() as stack:
        if full_of in ("streams", "n=4"):
            many = {"stream": True} if full_of == "streams" else {"n": 4, "temperature": 1}
            fill(two, stack, {**ENDLESS, "prompt": "Once", **many})
        else:
            port = two.port if full_of == "ws" else two.ws_port
            wire = stack.enter_context(wired(two, port, additional_headers=A))
            fill_over(two, wire)
            stack.callback(cancel_over, wire)
        refused = ask(two, "chat", A)
        assert refused.status == 429 and refused.headers["retry-after"] == "1"
        assert refused.error["message"].startswith(
            f"{MOST} of at most {PLACES} requests are being answered, {MOST} of them yours"
        )
        for kind in SMALL:
            assert ask(two, kind, B).status == 200, kind
        with wired(two, additional_headers=B) as other:
            other.hear()
            other.begin(max_new_tokens=3)
            assert other.rest()[1]["type"] == "done"
    two.wait_idle()
    assert two.gate.places.used == 0


@for_each("kind", ["logprobs", "embeddings"])
def test_another_client_finds_memory_for_its_reply(
    two: Running, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    budget, owner = two.gate.reply_bytes, KEYS.find("a")
    assert owner is not None
    wait_for(lambda: budget.used == 0)
    monkeypatch.setattr(budget, "most", 2 * 2**20)
    kept = 0
    while budget.take(owner.id, 4096):
        kept += 4096
    assert kept == 448 * 4096
    refused = ask(two, kind, A)
    assert refused.status == 429 and refused.error["code"] == "overloaded"
    what = "vectors" if kind == "embeddings" else "log-probabilities"
    said = f"1 of at most 2 MiB of {what} are kept, 1 of them yours: one client has at most 7"
    assert refused.error["message"].startswith(said)
    for each in SMALL:
        assert ask(two, each, B).status == 200, each
    budget.give_back(owner.id, kept)
    assert budget.used == 0
    assert ask(two, kind, A).status == 200


def test_another_client_sends_a_large_body(two: Running) -> None:
    budget, piece = body_bytes(two), b" " * (LARGE + 1)
    path, size = "/v1/completions", 2 * LARGE
    with ExitStack() as stack:
        for count in range(13):
            stack.enter_context(dialled(two, "a", path, size, piece))
            wait_for(partial(holds, budget, (count + 1) * (LARGE + 1)))
        with dialled(two, "a", path, size, piece) as wire:
            said = b""
            while not said.endswith(b"}"):
                said += wire.recv(65536)
            assert said.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: 1\r\n" in said
            assert b'"code":"overloaded"' in said and b"rate_limit_error" in said
            assert (
                b"0 of at most 1 MiB of large bodies are read or answered, 0 of them yours" in said
            )
        for kind in SMALL:
            assert ask(two, kind, B).status == 200, kind
        assert ask(two, "chat", A).status == 200, "a small body needs nothing of it"
    wait_for(lambda: budget.used == 0)


def test_a_body_counts_until_it_is_answered(two: Running) -> None:
    budget = body_bytes(two)
    body = {**ENDLESS, "prompt": "Once", "stream": True, "user": "x" * LARGE}
    with begun(two, "a", "/v1/completions", body) as wire:
        assert wire.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert two.gate.count == 1 and budget.used > LARGE
    two.wait_idle()
    wait_for(lambda: budget.used == 0)


@for_each("many", ["prompts", "choices", "texts", "words"])
def test_rows_share_a_budget(two: Running, monkeypatch: pytest.MonkeyPatch, many: str) -> None:
    """Beside the first of each request."""
    rows = two.gate.rows
    monkeypatch.setattr(rows._budget, "most", 16)
    several = {"n": 8, "temperature": 1} if many == "choices" else {"prompt": ["a fox"] * 8}
    with ExitStack() as stack:
        for count in range(2):
            body = {**ENDLESS, "prompt": "Once", **several}
            stack.enter_context(begun(two, "a", "/v1/completions", body))
            wait_for(partial(holds, rows._budget, 7 * (count + 1)))
        if many == "texts":
            body = {"model": "demo", "input": ["a fox"] * 4}
            refused = two.request("POST", "/v1/embeddings", body, A)
        else:
            words = {"prompt": "a", "bad_words_ids": [[5]] * 64} if many == "words" else {}
            refused = two.request("POST", "/v1/completions", {**body, "max_tokens": 3, **words}, A)
        assert refused.status == 429 and refused.headers["retry-after"] == "1"
        assert refused.error["code"] == "overloaded"
        assert refused.error["message"].startswith(
            "14 of at most 16 further choices or texts are being answered, 14 of them yours"
        )
        assert ask(two, "chat", A).status == 200, "one row is none beside the first"
        assert ask(two, "tokenize", A).status == 200
        short = {**SHORT, "prompt": ["a", "b", "c"]}
        assert two.request("POST", "/v1/completions", short, B).status == 200
    two.wait_idle()
    assert rows.used == two.gate.places.used == 0


def test_large_bodies_of_who_has_left_are_not_parsed(
    two: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would keep the bodies waiting that come after them, for seconds each."""
    budget, parsed, go_on = body_bytes(two), list[str](), threading.Event()

    def parse_when_told(content: bytes) -> object:
        found: Any = parse(content)
        parsed.append(found["user"][0])
        assert go_on.wait(PATIENCE)
        return found

    monkeypatch.setattr(middleware, "parse", parse_when_told)
    bodies = [{**SHORT, "prompt": "a", "user": letter * LARGE} for letter in "xyz"]
    size, connections = len(json.dumps(bodies[0])), two.server.server_state.connections
    with begun(two, "a", "/v1/completions", bodies[0]) as wire:
        wait_for(lambda: parsed == ["x"])
        with begun(two, "a", "/v1/completions", bodies[1]):
            wait_for(lambda: budget.used == 2 * size)
        wait_for(lambda: len(connections) == 1)
        with begun(two, "a", "/v1/completions", bodies[2]) as last:
            wait_for(lambda: budget.used == 3 * size)
            go_on.set()
            for each in (wire, last):
                assert each.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert parsed == ["x", "z"]
    wait_for(lambda: budget.used == 0)


def test_threads_are_shared_by_clients(two: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of each client has a thread, and its others wait behind it."""
    began, go_on, decode = list[int](), threading.Event(), two.llm.tokenizer.decode

    def decode_when_told(ids: list[int]) -> str:
        if len(ids) == 7:
            began.append(1)
            assert go_on.wait(PATIENCE)
        return decode(ids)

    monkeypatch.setattr(two.llm.tokenizer, "decode", decode_when_told)
    with ExitStack() as stack:
        wires = [
            stack.enter_context(begun(two, "a", "/detokenize", {"tokens": [5] * 7}))
            for _ in range(6)
        ]
        wait_for(lambda: two.gate.count == 6 and bool(began))
        echoed = {**SHORT, "prompt": ["a", "b"], "n": 2, "logprobs": 2, "echo": True}
        plain = {**SHORT, "prompt": ["a", "b"], "echo": True}
        for body in (echoed, {**echoed, "stream": True}, plain, {**plain, "stream": True}):
            assert two.request("POST", "/v1/completions", body, B).status == 200
        assert ask(two, "embeddings", B).status == 200
        assert two.request("POST", "/detokenize", {"tokens": [5]}, B).status == 200
        assert len(began) == 1
        go_on.set()
        for wire in wires:
            assert wire.recv(4096).startswith(b"HTTP/1.1 200 ")
    two.wait_idle()


def leave_early(served: Running, stack: ExitStack, round_: int) -> None:
    """Fill the places, and leave."""
    fill(served, stack, {**ENDLESS, "prompt": "Once", "stream": bool(round_ % 2)})
    stack.close()


def cancel(served: Running, stack: ExitStack, round_: int) -> None:
    """Fill the places over a WebSocket, and cancel or hang up."""
    wire = stack.enter_context(wired(served, additional_headers=A))
    fill_over(served, wire)
    if round_ % 2:
        cancel_over(wire)
    stack.close()


def fail(served: Running, stack: ExitStack, round_: int) -> None:
    """Ask for what fails: when it is read, when it is prepared, when its reply is too large."""
    served.gate.reply_bytes.most = 1000
    wrong = ({"top_p": 7}, {"prompt": "x" * 9000}, {"logprobs": 5, "n": 2, "temperature": 1})
    wires = [
        stack.enter_context(begun(served, "a", "/v1/completions", {**SHORT, "prompt": "a", **each}))
        for each in wrong * 3
    ]
    for wire in wires:
        assert wire.recv(4096)[9:12] in (b"400", b"429")
    stack.close()


@pytest.mark.gate
@pytest.mark.timeout(300)
@for_each("leave", [leave_early, cancel, fail])
def test_nothing_is_kept_of_who_has_left(
    two: Running, monkeypatch: pytest.MonkeyPatch, leave: Any
) -> None:
    bodies, gate = body_bytes(two), two.gate
    monkeypatch.setattr(gate.reply_bytes, "most", gate.reply_bytes.most)
    for number in range(50):
        with ExitStack() as stack:
            leave(two, stack, number)
        wait_for(lambda: gate.count == gate.places.used == 0)
        assert gate.reply_bytes.used == bodies.used == 0
        assert not gate.places._held and not gate.reply_bytes._held and not bodies._held
    two.wait_idle()
    assert ask(two, "chat", A).status == 200


def test_one_key_has_everything() -> None:
    make = lambda: AsyncLLM("demo", num_threads=1)  # noqa: E731
    with running(make, api_keys=("a",), max_requests=2) as served, ExitStack() as stack:
        for count in range(2):
            stack.enter_context(begun(served, "a", "/v1/completions", {**ENDLESS, "prompt": "a"}))
            wait_for(partial(holds, served.gate.places, count + 1))
        refused = ask(served, "chat", A)
        assert refused.status == 429
        said = "2 of at most 2 requests are being answered; try again"
        assert refused.error["message"] == said
