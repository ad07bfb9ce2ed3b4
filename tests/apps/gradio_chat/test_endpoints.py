"""What calls no function of the page, or brings other arguments, is refused without a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.gradio_chat.test_session_bytes import event, served

if TYPE_CHECKING:
    import httpx

pytestmark = [
    pytest.mark.anyio,
    # Of pandas, which Gradio uses to count its calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LONG = "x" * 50_000
THREE = ["Who?", [], {}]

WRONG: list[tuple[str, object, int, str]] = [
    ("call/nnn", {"data": []}, 404, "no function `nnn`"),
    ("call/nnn/", {"data": []}, 404, "no function `nnn`"),
    (f"call/{LONG[:2000]}", {"data": []}, 404, "no function `xxx"),
    ("call/chat", {"data": []}, 400, "`data` has 0 entries: `chat` takes 3"),
    ("call/chat", {"data": ["Who?"]}, 400, "has 1 entries"),
    ("call/chat", {"data": [*THREE, 4]}, 400, "has 4 entries"),
    ("call/chat", {"data": LONG}, 422, "list"),
    ("call/chat", {"data": THREE, "session_hash": [LONG]}, 422, "string"),
    ("call/chat", [LONG], 422, "dict"),
    ("call/v2/nnn", {}, 404, "no function `nnn`"),
    ("call/v2/chat", {}, 400, "`message` is missing"),
    ("call/v2/chat", {"message": "Who?", "junk": LONG}, 400, "`junk` is unknown"),
    ("call/v2/chat", {"message": "Who?", LONG: 1}, 400, "is unknown"),
    ("run/nnn", {"data": []}, 404, "no function `nnn`"),
    ("api/nnn", {"data": []}, 404, "no function `nnn`"),
    ("run/predict", {"data": [], "fn_index": 999}, 404, "no function 999"),
    ("run/predict", {"data": [], "fn_index": -1}, 404, "no function -1"),
    ("queue/join", {"data": [], "fn_index": 999, "session_hash": "a"}, 404, "no function 999"),
    ("queue/join", {"data": [], "fn_index": LONG, "session_hash": "a"}, 400, "`fn_index` is not"),
    ("queue/join", {"data": [], "session_hash": "a"}, 400, "`fn_index` is missing"),
    ("cancel", {"session_hash": "a", "fn_index": LONG, "event_id": "b"}, 422, "integer"),
]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("queue/data?session_hash=nobody", '"session_not_found":true'),
        ("call/chat/nothing", "event: error"),
        ("call/v2/chat/nothing", "event: error"),
    ],
)
async def test_who_listens_to_nothing_is_told(
    capfd: pytest.CaptureFixture[str], path: str, words: str
) -> None:
    async with served() as (_, client):
        got = await client.get(f"/gradio_api/{path}")
        assert (got.status_code, words in got.text) == (200, True), got.text
    assert "Traceback" not in "".join(capfd.readouterr())


async def ask(client: httpx.AsyncClient, path: str, body: object) -> httpx.Response:
    return await client.post(f"/gradio_api/{path}", json=body)


async def test_what_no_function_takes_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    async with served() as (page, client):
        for path, body, status, words in WRONG:
            got = await ask(client, path, body)
            assert (got.status_code, words in got.text) == (status, True), (path, got.text[:300])
            assert len(got.text) < 1000
        follow: dict[str, Any] = event(page, "_load", "a", None)
        others: list[dict[str, Any]] = [{"batched": True}, {"data": []}, {"data": [None, None]}]
        for wrong in others:
            got = await ask(client, "run/predict", {**follow, **wrong})
            assert (got.status_code, got.json()["error"]["code"]) == (400, "bad_event")
        assert (await ask(client, "run/predict", follow)).status_code == 200
        assert (await ask(client, "call/chat", {"data": THREE})).status_code == 200
        assert (await ask(client, "call/v2/chat", {"message": "Who?"})).status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())
