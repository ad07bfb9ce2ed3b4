"""The page: what it has, what it takes, and handlers called as Gradio calls them."""

from __future__ import annotations

import json
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest
from starlette.datastructures import Headers

import asyncgen_apps.gradio_chat
from asyncgen import AsyncLLM
from asyncgen_apps.engine import Engine, EngineStream, EventStream
from asyncgen_apps.gradio_chat import build_chat
from asyncgen_apps.gradio_chat.chat import _ChatPage
from asyncgen_apps.gradio_chat.conversations import KEPT_BYTES, MOST_TURNS
from asyncgen_apps.gradio_chat.fields import FIELDS
from asyncgen_apps.gradio_chat.model import ChatModel
from asyncgen_apps.gradio_chat.sessions import Sessions
from asyncgen_apps.serving.clients import Proxies
from tests.apps.gradio_chat.doubles import ScriptedModel, ScriptedStream

pytestmark = pytest.mark.anyio

CHAT, BOX, STORE, PICKER, ANSWERS, HEAT, RESTORE = range(7)


def _request(key: str = "a") -> gr.Request:
    """A request of a page through a proxy, whose word stands behind what its client wrote."""
    hops = [(b"x-forwarded-for", b"198.51.100.9"), (b"x-forwarded-for", b"203.0.113.7")]
    address, headers = SimpleNamespace(host="10.0.0.1"), Headers(raw=hops)
    made = SimpleNamespace(session_hash=key, client=address, headers=headers)
    return cast("gr.Request", made)


@cache
def _drawn() -> _ChatPage:
    """A page; drawing one takes longer than most tests."""
    return _ChatPage(ScriptedModel(), "demo", (), None, Proxies(("10.0.0.1",)))


def _page(model: ScriptedModel) -> tuple[_ChatPage, list[Any]]:
    page = _drawn()
    page._llm, page._sessions = model, Sessions()
    return page, ["[]", *[page._defaults()[field.name] for field in FIELDS]]


async def _frames(frames: Any) -> list[list[Any]]:
    return [frame async for frame in frames]


async def test_the_page_reports_nothing_and_serves_many_at_once() -> None:
    blocks = build_chat(ScriptedModel(), name="a model")
    assert blocks.analytics_enabled is False
    assert blocks.title == "a model"
    answering = [fn for fn in blocks.fns.values() if fn.queue and fn.types_generator]
    assert len(answering) == 11
    assert {fn.concurrency_limit for fn in answering} == {None}


async def test_an_answer_is_drawn_kept_and_measured() -> None:
    page, values = _page(ScriptedModel())
    frames = await _frames(page._ask(_request(), " Who? ", None, *values))
    first, last = frames[0], frames[-1]
    assert first[BOX]["value"] == ""
    assert last[CHAT][0] == {"role": "user", "content": "Who?"}
    assert last[CHAT][1] == {"role": "assistant", "content": "An answer."}
    assert last[BOX]["submit_btn"] is True
    assert json.loads(last[STORE])["conversations"][0]["turns"][1]["text"] == "An answer."
    assert last[PICKER]["choices"][0][0] == "Who?"
    assert "data-token" in last[HEAT]
    assert page._llm.asked[0][1]["client"] == "203.0.113.7"  # type: ignore[attr-defined]


async def test_while_a_chat_is_answered_no_second_question_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(gr, "Warning", warned.append)
    stream = ScriptedStream(["An "], waits=True)
    page, values = _page(ScriptedModel(streams=[stream]))
    frames = page._ask(_request(), "Who?", None, *values)
    frame = await anext(frames)
    assert (frame[BOX]["submit_btn"], frame[BOX]["stop_btn"]) == (False, True)
    refused = await _frames(page._ask(_request(), "And?", None, *values))
    assert len(refused) == 1
    assert len(warned) == 1
    await page._stop(_request(), None)
    rest = await _frames(frames)
    assert rest[-1][BOX]["submit_btn"] is True
    assert rest[-1][CHAT][1]["content"] == "An "


DOORS: dict[str, Any] = {
    "_ask_example": {"text": "A story!"},
    "_ask_example of an option": "A story!",
    "_retry": None,
    "_edit": "A story!",
}


@pytest.mark.parametrize("door", DOORS)
async def test_stop_and_leaving_end_an_answer_however_it_was_asked_for(door: str) -> None:
    streams = [ScriptedStream(), *(ScriptedStream(["An "], waits=True) for _ in range(2))]
    page, values = _page(ScriptedModel(streams=[*streams]))
    await _frames(page._ask(_request(), "Who?", None, *values))
    event = SimpleNamespace(value=DOORS[door], index=[0])
    handler = getattr(page, door.split()[0])
    frames = handler(_request(), event, None, *values)
    await anext(frames)
    await page._stop(_request(), None)
    assert streams[1].is_cancelled
    assert (await _frames(frames))[-1][BOX]["submit_btn"] is True
    frames = handler(_request(), event, None, *values)
    await anext(frames)
    await frames.aclose()
    assert streams[2].is_cancelled


async def test_an_empty_question_is_none() -> None:
    model = ScriptedModel()
    page, values = _page(model)
    assert len(await _frames(page._ask(_request(), "  ", None, *values))) == 1
    assert model.asked == []


async def test_a_closed_page_stops_its_answer() -> None:
    stream = ScriptedStream(["An "], waits=True)
    page, values = _page(ScriptedModel(streams=[stream]))
    frames = page._ask(_request(), "Who?", None, *values)
    await anext(frames)
    await page._unload(_request())
    assert stream.is_cancelled
    await _frames(frames)


async def test_two_pages_do_not_see_each_other() -> None:
    page, values = _page(ScriptedModel())
    await _frames(page._ask(_request("a"), "Who?", None, *values))
    other = await page._load(_request("b"), None)
    assert other[CHAT] == []


async def test_two_pages_of_one_browser_share_their_chats() -> None:
    stream = ScriptedStream(["An "], waits=True)
    page, values = _page(ScriptedModel(streams=[stream]))
    first = await page._load(_request("a"), None)
    frames = page._ask(_request("a"), "Who?", first[STORE], *values)
    await anext(frames)
    second = await page._load(_request("b"), first[STORE])
    assert second[CHAT][0]["content"] == "Who?"
    following = page._follow(_request("b"), None)
    assert (await anext(following))[BOX]["stop_btn"] is True
    assert (await anext(following))[CHAT][1]["content"] == "An "
    begun = await page._begin(_request("b"), None)
    assert begun[CHAT] == []
    assert len(json.loads(begun[STORE])["conversations"]) == 2
    assert await _frames(following) == []
    await page._pick(_request("b"), first[PICKER]["value"], None)
    await page._unload(_request("b"))  # an answer is ended by the page that asked for it
    assert not stream.is_cancelled
    third = await page._load(
        _request("c"), json.loads(begun[STORE]) | {"current": first[PICKER]["value"]}
    )
    following = page._follow(_request("c"), None)
    assert third[BOX]["stop_btn"] is True
    await page._stop(_request("c"), None)
    await _frames(frames)
    assert (await _frames(following))[-1][BOX]["stop_btn"] is False


async def test_a_chat_removed_on_another_page_is_left() -> None:
    page, values = _page(ScriptedModel())
    first = await page._load(_request("a"), None)
    await _frames(page._ask(_request("a"), "Who?", None, *values))
    await page._load(_request("b"), first[STORE])
    await page._remove(_request("a"), None)
    assert (await page._begin(_request("b"), None))[CHAT] == []


async def test_a_removed_chat_can_be_brought_back_and_other_tabs_follow() -> None:
    page, values = _page(ScriptedModel())
    first = await page._load(_request("a"), None)
    asked = (await _frames(page._ask(_request("a"), "Who?", None, *values)))[-1]
    await page._load(_request("b"), first[STORE])
    removed = await page._remove(_request("a"), None)
    assert removed[CHAT] == [] and removed[RESTORE]["visible"] is True
    assert removed[RESTORE]["value"] == "Bring back “Who?”"
    other = await page._catch_up(_request("b"), None)
    assert other[CHAT] == [] and other[PICKER]["choices"] == removed[PICKER]["choices"]
    assert other[STORE] == gr.skip(), "the tab that wrote it would be told in turn, for ever"
    back = await page._bring_back(_request("a"), None)
    assert back[CHAT] == asked[CHAT] and back[RESTORE]["visible"] is False
    other = await page._catch_up(_request("b"), None)
    assert other[PICKER]["choices"] == back[PICKER]["choices"]
    assert other[CHAT] == gr.skip(), "what it shows is still right"


async def test_an_answer_that_grows_here_is_drawn_by_itself_alone() -> None:
    page, values = _page(ScriptedModel(streams=[ScriptedStream(["An "], waits=True)]))
    frames = page._ask(_request(), "Who?", None, *values)
    await anext(frames)
    await anext(frames)
    assert (await page._catch_up(_request(), None))[CHAT] == gr.skip()
    await page._stop(_request(), None)
    await _frames(frames)


async def test_a_damaged_store_still_opens_the_page() -> None:
    page, _ = _page(ScriptedModel())
    saved = {"format": 1, "conversations": 3, "settings": {"temperature": "hot", "seed": 4}}
    loaded = await page._load(_request(), saved)
    settings = dict(zip((field.name for field in FIELDS), loaded[7:], strict=False))
    assert settings["temperature"]["value"] == 0.6
    assert settings["seed"]["value"] == 4


async def test_full_browser_storage_drops_the_oldest_chat_with_a_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(gr, "Info", told.append)
    page, values = _page(ScriptedModel())
    for letter in "xyz":
        await _frames(page._ask(_request(), letter * 700_000, None, *values))
        await page._begin(_request(), None)
    assert len(told) == 1
    assert "the chat “x" in told[0] and "was removed" in told[0]


async def test_a_chat_that_is_full_takes_no_question_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(gr, "Warning", told.append)
    page, values = _page(ScriptedModel())
    frames = await _frames(page._ask(_request(), "x" * KEPT_BYTES, None, *values))
    assert frames == [page._nothing()]
    assert "larger than 1.5 MB" in told.pop() and page._llm.asked == []  # type: ignore[attr-defined]
    await _frames(page._ask(_request(), "Who?", None, *values))
    event: Any = SimpleNamespace(index=[0], value="x" * KEPT_BYTES)
    await _frames(page._edit(_request(), event, None, *values))
    assert "larger than 1.5 MB" in told.pop()
    current = page._sessions.get("a", None).history.current
    assert [turn.text for turn in current.turns] == ["Who?", "An answer."]
    current.turns *= MOST_TURNS // 2
    await _frames(page._ask(_request(), "And?", None, *values))
    assert f"{MOST_TURNS} at most: begin another chat" in told.pop()
    assert len(current.turns) == MOST_TURNS


def test_exports() -> None:
    assert asyncgen_apps.gradio_chat.__all__ == ["build_chat", "launch_options"]


def test_every_engine_is_a_model_for_the_page() -> None:
    for part, whole in ((ChatModel, Engine), (EventStream, EngineStream)):
        names = {name for name in vars(part) if not name.startswith("_")}
        assert names <= set(dir(whole))

    def as_model(engine: Engine) -> ChatModel:
        return engine  # the types are checked by mypy

    assert as_model(AsyncLLM("demo"))


WRONG = [
    ("max_new_tokens", 0, "`max_new_tokens` is 0: must be a whole number of at least 1"),
    ("max_new_tokens", 1.5, "`max_new_tokens` is 1.5: must be a whole number of at least 1"),
    ("temperature", 9, "`temperature` is 9: must be a number from 0 to 2; 0 takes the most"),
    ("strategy", ["beams"], "`Strategy` is ['beams']: must be one of sampling, greedy"),
    ("stop", 3, "`stop` is 3: must be a text"),
    ("draw", "yes", "`do_sample` is 'yes': must be True or False"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
async def test_a_wrong_setting_is_named_in_the_chat_which_stays(
    name: str, value: object, said: str
) -> None:
    page, values = _page(ScriptedModel())
    await _frames(page._ask(_request(), "Who?", None, *values))
    wrong = [*values]
    wrong[1 + [field.name for field in FIELDS].index(name)] = value
    (frame,) = await _frames(page._ask(_request(), "And?", None, *wrong))
    assert [message["content"] for message in frame[CHAT]][:2] == ["Who?", "An answer."]
    assert frame[CHAT][-2]["content"] == "And?"
    assert said in frame[CHAT][-1]["content"]
    assert (frame[BOX]["submit_btn"], frame[BOX]["value"]) == (True, "")
    assert len(page._llm.asked) == 1  # type: ignore[attr-defined]
    event = cast("gr.RetryData", SimpleNamespace(index=3))
    await _frames(page._retry(_request(), event, None, *values))
    assert page._llm.asked[1][0][-1]["content"] == "And?"  # type: ignore[attr-defined]
    assert len(page._sessions.get("a", None).history.current.turns) == 4


async def test_a_wrong_setting_that_is_not_used_is_no_matter() -> None:
    page, values = _page(ScriptedModel())
    values[1 + [field.name for field in FIELDS].index("num_beams")] = 0
    await _frames(page._ask(_request(), "Who?", None, *values))
    assert len(page._llm.asked) == 1  # type: ignore[attr-defined]


async def test_the_page_is_drawn_before_its_engine_is_open() -> None:
    llm = AsyncLLM("demo", num_threads=1)
    page = _ChatPage(llm, "demo", (), None, Proxies(()))
    async with llm:
        updates = await page._load(_request(), None)
        shown = updates[len(page._views) :][[field.name for field in FIELDS].index("strategy")]
        assert shown["value"] == "sampling"  # the demo's own; without a model it is greedy
        values = [page._defaults()[field.name] for field in FIELDS]
        frames = await _frames(page._ask(_request(), "Who?", None, "[]", *values))
    assert frames[-1][CHAT][1]["content"]
    assert "failure" not in frames[-1][CHAT][1]["content"]
