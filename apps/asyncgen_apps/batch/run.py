"""Answer the lines of a file at the same time; only running lines are in memory."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from asyncgen_apps.batch.answers import record_id
from asyncgen_apps.batch.requests import LineError, custom_id_of, understand
from asyncgen_apps.openai_http.bodies import reply_to
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.translate import COMPLETION_TOKENS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from asyncgen import AsyncLLM
    from asyncgen_apps.batch.answers import AnswersFile
    from asyncgen_apps.batch.requests import Line

    Answer = Callable[[Line], Awaitable[dict[str, Any]]]

AHEAD = 16
"""Answers that may wait for an earlier one, as a multiple of the lines at a time."""

_SKIPPED_AT_ONCE = 256


@dataclass(slots=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        num_lines: Number of all requests; ``None`` if not known.
        skipped_bytes: Bytes of the requests that were answered before.
        bytes: Bytes of the requests that this run answered.
        answered: Number of these requests.
        tokens: Tokens that were generated for them.
    """

    num_lines: int | None = None
    skipped_bytes: int = 0
    bytes: int = 0
    answered: int = 0
    tokens: int = 0


class EngineLostError(Exception):
    """Engine that can answer no request any more."""


def answerer(
    llm: AsyncLLM, defaults: Mapping[str, Any], names: Sequence[str]
) -> Callable[[Line], Awaitable[dict[str, Any]]]:
    """Make the function that answers a line.

    Args:
        llm: The engine.
        defaults: Parameters that count if a line does not set them.
        names: Names of the model in bodies; the first one is for bodies without a name.

    Returns:
        A function that returns the record of a line, an error included, and raises `EngineGone`.
    """

    async def answer(line: Line) -> dict[str, Any]:
        record: dict[str, Any] = {
            "id": record_id(line),
            "custom_id": custom_id_of(line.content) or f"line-{line.number}",
            "response": None,
            "error": None,
        }
        try:
            request = understand(line.content, defaults, names[0])
        except LineError as error:
            record["error"] = {"code": error.code, "message": str(error)}
            return record
        request_id = secrets.token_hex(12)
        try:
            reply = await reply_to(
                llm,
                request.path,
                request.body,
                request_id,
                names=names,
                text_tokens=None if request.is_plain else COMPLETION_TOKENS,
            )
            status = 200
        except ApiError as error:
            if error.status == 503:
                raise EngineLostError(error.message) from error
            status, reply = error.status, error.body()
        record["response"] = {"status_code": status, "request_id": request_id, "body": reply}
        return record

    return answer


async def answer_lines(
    lines: Iterable[Line],
    answers: AnswersFile,
    answer: Answer,
    progress: RunProgress,
    *,
    at_once: int,
    ordered: bool,
) -> None:
    """Answer all lines that are not answered yet.

    Args:
        lines: The requests.
        answers: File that the answers go to.
        answer: Function that returns the record of a line.
        progress: Progress, which is updated.
        at_once: Most lines at a time, at least 1.
        ordered: True writes answers in the order of their requests; False as they come.

    Raises:
        Exception: A line failed; all others are cancelled.
    """
    running, room = anyio.Semaphore(at_once), anyio.Semaphore(at_once * (AHEAD if ordered else 1))
    ready: dict[int, tuple[Line, dict[str, Any]]] = {}
    failures: list[Exception] = []
    written = 0

    def write(line: Line, record: dict[str, Any]) -> None:
        answers.add(record)
        progress.answered += 1
        progress.bytes += line.size
        progress.tokens += _num_tokens(record)
        room.release()

    async def run(place: int, line: Line) -> None:
        nonlocal written
        try:
            record = await answer(line)
            if not ordered:
                write(line, record)
            else:
                ready[place] = (line, record)
                while written in ready:
                    write(*ready.pop(written))
                    written += 1
        except Exception as error:
            # Raised after the group, which would wrap it in an exception group.
            failures.append(error)
            group.cancel_scope.cancel()
        finally:
            running.release()

    async with anyio.create_task_group() as group:
        place = 0
        try:
            for count, line in enumerate(lines):
                if answers.has(line):
                    progress.skipped_bytes += line.size
                    if count % _SKIPPED_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
                    continue
                await room.acquire()
                await running.acquire()
                group.start_soon(run, place, line)
                place += 1
        except Exception as error:
            failures.append(error)
            group.cancel_scope.cancel()
    if failures:
        raise failures[0]


def _num_tokens(record: dict[str, Any]) -> int:
    """Return the number of tokens of an answer."""
    response = record["response"]
    if response is None or response["status_code"] != 200:
        return 0
    return int(response["body"]["usage"]["completion_tokens"])
