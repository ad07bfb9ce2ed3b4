"""The page takes no files, no orders from other sites, and no body that is dear to read."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from asyncgen_apps.gradio_chat import guard
from asyncgen_apps.gradio_chat.guard import MAX_BODY_BYTES, MOST_VALUES, GuardPage
from asyncgen_apps.gradio_chat.json_bounds import MOST_DEPTH, too_complex
from asyncgen_apps.serving.get_turns import HAS_LEFT
from asyncgen_apps.serving.limits import SMALL
from tests.apps.serving.test_origins import ask, page
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "http://page.example:81"},
    {"origin": "null"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "origin": "http://page.example"},
]
OWN: list[dict[str, str]] = [
    {},
    {"origin": "http://page.example"},
    {"origin": "https://page.example", "host": "page.example:443"},
    {"sec_fetch_site": "none"},
    # Behind a proxy that writes a host of its own, what the browser says counts.
    {"sec_fetch_site": "same-origin", "origin": "https://page.example", "host": "127.0.0.1:7860"},
    {"origin": "https://friend.example"},
    {"sec_fetch_site": "cross-site", "origin": "https://Friend.example"},
]


@pytest.mark.anyio
async def test_events_are_parsed_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take 10 ms, and as long again in Gradio."""
    parsed: list[int] = []

    def watched(body: bytes, most: int) -> str | None:
        parsed.append(len(body))
        return too_complex(body, most)

    monkeypatch.setattr(guard, "too_complex", watched)
    app, seen = GuardPage(page), 0
    content = b'{"data": []' + b" " * SMALL + b"}"
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask, app, "POST", "/gradio_api/queue/join", content)
        while len(parsed) < 20:
            await anyio.lowlevel.checkpoint()
            assert len(parsed) - seen <= 1
            seen = len(parsed)


@pytest.mark.anyio
@for_each("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_pages_of_other_sites_change_nothing(method: str) -> None:
    app = GuardPage(page, ("https://friend.example/",))
    for headers in FOREIGN:
        got = await ask(app, method, "/gradio_api/queue/join", **headers)
        assert (got.status, got.code) == (403, "bad_origin")
        assert (await ask(app, "GET", "/config", **headers)).status == 200
    for headers in OWN:
        assert (await ask(app, method, "/gradio_api/queue/join", **headers)).status == 200
    everybody = GuardPage(page, ("*",))
    assert (await ask(everybody, method, "/login", **FOREIGN[0])).status == 200


@pytest.mark.anyio
@for_each(
    "path",
    [
        "/gradio_api/upload",
        "/gradio_api/upload/",
        "/chat/gradio_api/upload?upload_id=1",
        "/gradio_api/%75pload",
        "/gradio_api/upload_progress",
        "/gradio_api/component_server",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/x",
        "/gradio_api/proxy=http://10.0.0.1/",
        "/gradio_api/stream/x",
        "/gradio_api/deep_link",
        "/gradio_api/process_recording",
        "/gradio_api/run-history/connect",
        "/gradio_api/whatever-comes-next",
        "/gradio_api",
    ],
)
async def test_file_paths_are_forbidden(path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        got = await ask(GuardPage(page), method, path)
        assert got.status == 403
        assert method == "HEAD" or got.code == "closed"


FILE = {"path": "http://example.org/big", "meta": {"_type": "gradio.FileData"}}


@pytest.mark.anyio
async def test_a_body_names_no_file() -> None:
    """Gradio would fetch it, and keep it."""
    app = GuardPage(page)
    plain = json.dumps({"data": ["hi", [FILE]]})
    escaped = plain.replace("gradio.", "\\u0067radio.")
    spelled = [text.encode(code) for text in (plain, escaped) for code in ("utf-16", "utf-32-le")]
    for content in (plain, escaped):
        got = await ask(app, "POST", "/gradio_api/queue/join", content.encode())
        assert (got.status, got.code) == (403, "closed")
    for encoded in spelled:
        got = await ask(app, "POST", "/gradio_api/queue/join", encoded)
        assert (got.status, got.code) == (400, "invalid_json")
    for harmless in ("what is gradio.FileData?", "\\u0067", {"_type": "x"}):
        body = json.dumps({"data": [harmless]}).encode()
        got = await ask(app, "POST", "/gradio_api/queue/join", body)
        assert got.body == b"took " + body


@pytest.mark.anyio
async def test_a_body_has_an_end() -> None:
    app = GuardPage(page, max_body_bytes=10)
    assert (await ask(app, "POST", "/gradio_api/run/x", b"[1234567]\n")).status == 200
    for named in ({}, {"content_length": "11"}):
        got = await ask(app, "POST", "/gradio_api/run/x", b"[1234567]\n\n", **named)
        assert (got.status, got.code) == (413, "request_too_large")
        assert b"larger than 10 bytes" in got.body and b"--chat-max-body" in got.body
    assert (await ask(app, "POST", "/login", b"x" * 65_537)).status == 413


@pytest.mark.anyio
async def test_a_client_that_leaves_in_its_body_is_not_answered() -> None:
    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/gradio_api/run/x", "headers": []}
    await GuardPage(page)(scope, receive, send)
    assert (messages, sent) == ([], [])


JOIN = "/gradio_api/queue/join"


def event(*data: Any, **fields: Any) -> bytes:
    """The body of an event."""
    whole = {"data": data, "session_hash": "a", "fn_index": 0, **fields}
    return json.dumps(whole, ensure_ascii=False).encode()


TOO_COMPLEX: dict[str, bytes] = {
    "numbers": event([0] * MOST_VALUES),
    "empty lists": event([[]] * MOST_VALUES),
    "empty objects": event([{}] * MOST_VALUES),
    "texts": event(["a, b: [c]"] * MOST_VALUES),
    "keys": event({str(number): 0 for number in range(MOST_VALUES)}),
    "fields": event(**{str(number): 0 for number in range(MOST_VALUES)}),
    "event data": event(event_data=[0] * MOST_VALUES),
    "no object": json.dumps([0] * (MOST_VALUES + 1)).encode(),
    "in texts with escapes": event([['"\\', ""]] * MOST_VALUES),
    "one in the other": b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1),
    "objects in each other": b'{"a":' * (MOST_DEPTH + 1) + b"0" + b"}" * (MOST_DEPTH + 1),
    "brackets that are not closed": b"[" * MAX_BODY_BYTES,
    "brackets that were not opened": b"]" * MAX_BODY_BYTES,
    "quotes": b'"",' * (MAX_BODY_BYTES // 3),
}


@pytest.mark.anyio
@for_each("name", TOO_COMPLEX)
async def test_a_body_of_many_values_is_refused_by_name(name: str) -> None:
    got = await ask(GuardPage(page), "POST", JOIN, TOO_COMPLEX[name])
    assert (got.status, got.code) == (413, "too_complex")
    assert b"than 8192 values" in got.body or b"deeper than 32 levels" in got.body


@pytest.mark.anyio
async def test_a_long_text_is_one_value() -> None:
    long = 'He said: "[a, b]", {c}: \\ \n' * (MAX_BODY_BYTES // 40)
    for body in (event(long), event(["a"] * (MOST_VALUES // 2)), event("é€😀" * 400_000)):
        assert (await ask(GuardPage(page), "POST", JOIN, body)).body == b"took " + body


WRONG: dict[str, tuple[bytes, str]] = {
    "a key twice": (b'{"data": [], "data": []}', "repeated_key"),
    "half a pair": (b'{"data": ["\\ud800"]}', "invalid_json"),
    "half a pair in bytes": (b'{"data": ["\xed\xa0\x80"]}', "invalid_json"),
    "no JSON": (b'{"data": [', "invalid_json"),
    "a number without end": (b'{"data": [' + b"1" * 5000 + b"]}", "invalid_json"),
    "a long session": (event(session_hash="x" * 129), "bad_session"),
}


@pytest.mark.anyio
@for_each("name", WRONG)
async def test_what_is_no_event_is_refused_by_name(name: str) -> None:
    body, code = WRONG[name]
    got = await ask(GuardPage(page), "POST", JOIN, body)
    assert (got.status, got.code) == (400, code)
    assert json.loads(got.body)["detail"]  # the page shows it


@pytest.mark.anyio
async def test_the_session_of_a_heartbeat_has_a_length() -> None:
    app = GuardPage(page)
    assert (await ask(app, "GET", "/gradio_api/heartbeat/" + "x" * 128)).status == 200
    got = await ask(app, "GET", "/gradio_api/heartbeat/" + "x" * 129)
    assert (got.status, got.code) == (400, "bad_session")


@pytest.mark.anyio
async def test_bodies_on_their_way_are_bounded_for_each_client_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "_MOST_READING", 60)
    app = GuardPage(page, max_body_bytes=30)
    statuses: list[tuple[str, int]] = []

    async def read(*addresses: str) -> None:
        """Send 20 bytes, and before the rest let the next client do so."""
        pieces = [b"[" + b"1" * 18, b"]"]

        async def receive() -> Any:
            if len(pieces) == 1 and addresses[1:]:
                await read(*addresses[1:])
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append((addresses[0], message["status"]))

        client = (addresses[0], 1)
        scope = {"type": "http", "method": "POST", "path": JOIN, "headers": [], "client": client}
        await app(scope, receive, send)

    for _ in range(2):  # what was read is given back
        await read("10.0.0.1", "10.0.0.1")
        assert statuses == [("10.0.0.1", 429), ("10.0.0.1", 200)]
        statuses.clear()
        await read("10.0.0.1", "10.0.0.2", "10.0.0.2")
        assert statuses == [("10.0.0.2", 429), ("10.0.0.2", 200), ("10.0.0.1", 200)]
        statuses.clear()
        await read("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
        assert dict(statuses)["10.0.0.4"] == 429
        statuses.clear()
    assert not app._reading


@pytest.mark.anyio
async def test_bodies_that_wait_for_their_turn_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of 4 MiB, of which one is parsed at a time."""
    content = b'{"data": []' + b" " * SMALL + b"}"
    monkeypatch.setattr(guard, "_MOST_READING", 8 * len(content))
    app, refused = GuardPage(page, max_body_bytes=len(content)), 0

    async def ask_one() -> None:
        nonlocal refused
        got = await ask(app, "POST", JOIN, content)
        refused += got.status == 429

    async with app._turns._is_taken, anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(ask_one)
        await anyio.wait_all_tasks_blocked()
        assert refused == 2 and app._reading.total() == 4 * len(content)
        app._turns._is_taken.release()
        await anyio.wait_all_tasks_blocked()
        await app._turns._is_taken.acquire()
    assert refused == 2 and not app._reading


@pytest.mark.anyio
@for_each("has_left", [False, True])
async def test_a_body_of_who_has_left_is_not_parsed(has_left: bool) -> None:
    """It waited for its turn; nobody reads the answer."""
    app, told = GuardPage(page), list[Any]()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"[" * (SMALL + 1)}

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "POST", "path": JOIN, "headers": []}
    await app({**scope, HAS_LEFT: lambda: has_left}, receive, send)
    assert bool(told) is not has_left
    assert not app._reading


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread, the least of three."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


HEAVY = {
    **TOO_COMPLEX,
    "escapes": b'"' + b"\\\\" * (MAX_BODY_BYTES // 2) + b'"',
    "escaped quotes": b'"' + b'\\"' * (MAX_BODY_BYTES // 2) + b'"',
    "a quote, an escape": b'"\\' * (MAX_BODY_BYTES // 2),
}


@for_each("name", HEAVY)
def test_counting_is_fast_whatever_it_counts(name: str) -> None:
    """About 5 ms a megabyte at most; a parser takes a second for the worst of them."""
    assert seconds(lambda: too_complex(HEAVY[name], MOST_VALUES)) < 0.2
