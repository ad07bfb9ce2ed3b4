"""The file of answers: whole lines, whatever happened to it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.batch.answers import AnswersError, AnswersFile, record_id
from asyncgen_apps.batch.requests import Line, read_lines

if TYPE_CHECKING:
    from pathlib import Path

LINES = list(read_lines(io.BytesIO(b'"a"\n"b"\n\n"c"\n')))


def record(line: Line, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "body": {"text": "ä\n"}}
    return {"id": record_id(line), "custom_id": "x", "response": response, "error": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two answers, one of which failed."""
    file = tmp_path / "answers.jsonl"
    with AnswersFile(file) as answers:
        answers.add(record(LINES[2]))
        answers.add(record(LINES[0], 400))
    return file


def test_answers_file_counts_answered_and_failed_lines(path: Path) -> None:
    with AnswersFile(path) as answers:
        assert [answers.has(line) for line in LINES] == [True, False, True]
        assert (answers.num_answered, answers.num_failed) == (2, 1)


def test_every_torn_end_is_mended(path: Path) -> None:
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(first, len(content)):
        path.write_bytes(content[:end])
        with AnswersFile(path) as answers:
            assert [answers.has(line) for line in LINES] == [False, False, True]
            answers.add(record(LINES[0], 400))
        assert path.read_bytes() == content


@pytest.mark.parametrize("tail", [b"notes", b"{}", b'{"id": "cmpl-1"}'])
def test_files_of_other_programs_are_refused_without_overwrite(path: Path, tail: bytes) -> None:
    for content in (tail, tail + b"\n", path.read_bytes() + tail):
        path.write_bytes(content)
        with pytest.raises(AnswersError, match="no answer of `asyncgen batch`"):
            AnswersFile(path)
        assert path.read_bytes() == content
    with AnswersFile(path, overwrite=True) as answers:
        assert answers.num_answered == 0
    assert path.read_bytes() == b""


def test_another_file_of_requests_is_noticed(path: Path) -> None:
    changed = Line(LINES[0].number, b'"z"', LINES[0].digest ^ 1, 4)
    with AnswersFile(path) as answers:
        with pytest.raises(AnswersError, match="line 1 has changed"):
            answers.has(changed)


def test_one_process_writes_at_a_time(path: Path) -> None:
    with AnswersFile(path), pytest.raises(AnswersError, match="another process"):
        AnswersFile(path)
    AnswersFile(path).__exit__(None, None, None)
