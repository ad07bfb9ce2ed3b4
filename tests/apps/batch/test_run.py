"""Lines are answered side by side, in bounded memory, in order or as they come."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.batch import run
from asyncgen_apps.batch.answers import AnswersError, AnswersFile, record_id
from asyncgen_apps.batch.requests import Line, read_lines
from asyncgen_apps.batch.run import EngineLostError, RunProgress, answer_lines, answerer
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


def lines(count: int) -> Iterator[Line]:
    return read_lines(io.BytesIO(b"".join(b'"%d"\n' % number for number in range(1, count + 1))))


def record(line: Line) -> dict[str, Any]:
    response = {"status_code": 200, "body": {"usage": {"completion_tokens": 2}}}
    return {"id": record_id(line), "custom_id": "x", "response": response, "error": None}


def numbers(path: Path) -> list[int]:
    return [int(json.loads(text)["id"].split("_")[2]) for text in path.read_text().splitlines()]


class Held:
    """Answers that a test lets go, one by one."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._may: dict[int, anyio.Event] = {}

    def let_go(self, number: int) -> None:
        self._may.setdefault(number, anyio.Event()).set()

    async def __call__(self, line: Line) -> dict[str, Any]:
        self.begun.append(line.number)
        await self._may.setdefault(line.number, anyio.Event()).wait()
        return record(line)


@pytest.mark.parametrize("ordered", [True, False])
async def test_order_and_bounds(tmp_path: Path, ordered: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(run, "AHEAD", 2)
    held, progress, path = Held(), RunProgress(), tmp_path / "a"
    with AnswersFile(path) as answers:
        async with anyio.create_task_group() as group:

            async def work() -> None:
                options: Any = {"at_once": 2, "ordered": ordered}
                await answer_lines(lines(8), answers, held, progress, **options)

            group.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            assert held.begun == [1, 2]
            for number in (2, 3, 4):  # the first one takes long
                held.let_go(number)
                await anyio.wait_all_tasks_blocked()
            # In order, four may be ahead of what is written; else only those under way count.
            assert held.begun == ([1, 2, 3, 4] if ordered else [1, 2, 3, 4, 5])
            assert numbers(path) == ([] if ordered else [2, 3, 4])
            for number in (1, 5, 6, 8, 7):
                held.let_go(number)
                await anyio.wait_all_tasks_blocked()
    assert numbers(path) == (list(range(1, 9)) if ordered else [2, 3, 4, 1, 5, 6, 8, 7])
    assert (progress.answered, progress.tokens, progress.bytes) == (8, 16, 32)


async def test_answered_lines_are_skipped(tmp_path: Path) -> None:
    progress, path = RunProgress(), tmp_path / "a"
    three = list(lines(3))

    async def answer(line: Line) -> dict[str, Any]:
        return record(line)

    with AnswersFile(path) as answers:
        answers.add(record(three[1]))
    for _ in range(2):
        with AnswersFile(path) as answers:
            await answer_lines(lines(3), answers, answer, progress, at_once=1, ordered=True)
    assert numbers(path) == [2, 1, 3]
    assert (progress.answered, progress.skipped_bytes) == (2, 4 + 12)
    changed = read_lines(io.BytesIO(b'"other"\n'))
    with AnswersFile(path) as answers, pytest.raises(AnswersError, match="line 1 has changed"):
        await answer_lines(changed, answers, answer, progress, at_once=1, ordered=True)


async def test_failure_ends_the_run_and_keeps_written_answers(tmp_path: Path) -> None:
    path = tmp_path / "a"

    async def answer(line: Line) -> dict[str, Any]:
        if line.number == 3:
            raise EngineLostError("gone")
        return record(line)

    with AnswersFile(path) as answers, pytest.raises(EngineLostError):
        await answer_lines(lines(9), answers, answer, RunProgress(), at_once=1, ordered=False)
    assert numbers(path) == [1, 2]


def ask(content: object) -> Line:
    return next(read_lines(io.BytesIO(json.dumps(content).encode())))


async def test_answers_are_those_of_the_api() -> None:
    model = TableModel(script="hello", prompt_length=1)
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        answer = answerer(llm, {"max_new_tokens": 5}, ["demo", "other"])
        envelope = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
        given = {"model": "other", "prompt": [1], "n": 2, "temperature": 0}
        good = await answer(ask({**envelope, "body": given}))
        assert good["custom_id"] == "a" and good["error"] is None
        response = good["response"]
        body = response["body"]
        assert response["status_code"] == 200
        assert body["id"] == f"cmpl-{response['request_id']}" and body["model"] == "other"
        assert [choice["text"] for choice in body["choices"]][0] == "hello"
        assert len(body["choices"]) == 2
        for wrong, status, code in (
            ({"model": "third", "prompt": "a"}, 404, "model_not_found"),
            ({"prompt": "a", "temprature": 1}, 400, "unsupported_parameter"),
            ({"prompt": "a", "temperature": -1}, 400, None),
            ({"prompt": "a", "stream": True}, 400, None),
            ({"prompt": ""}, 400, None),
            ({"prompt": "a", "max_new_tokens": 10**6}, 400, "context_length_exceeded"),
        ):
            bad = await answer(ask(wrong))
            assert bad["custom_id"] == "line-1" and bad["error"] is None
            assert bad["response"]["status_code"] == status, bad
            assert bad["response"]["body"]["error"]["code"] == code
        broken = await answer(ask({"custom_id": "b", "url": "/v1/x"}))
        assert (broken["custom_id"], broken["response"]) == ("b", None)
        assert broken["error"]["code"] == "invalid_method"
    with pytest.raises(EngineLostError, match="closed"):
        await answer(ask("a"))


async def test_a_plain_text_is_not_cut_as_the_api_would() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    async with AsyncLLM(
        TableModel(script=text, prompt_length=1), tokenizer=byte_tokenizer()
    ) as llm:
        answer = answerer(llm, {}, ["demo"])
        plain = await answer(ask("a"))
        assert plain["response"]["body"]["choices"][0]["text"] == text
        envelope = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
        of_the_api = await answer(ask({**envelope, "body": {"prompt": "a"}}))
        assert of_the_api["response"]["body"]["choices"][0]["text"] == text[:16]
