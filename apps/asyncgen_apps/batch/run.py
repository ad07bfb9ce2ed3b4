"""Answers the lines of a file side by side, in the memory of as many as are under way."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from asyncgen_apps.batch.answers import record_id
from asyncgen_apps.batch.requests import LineError, custom_id_of, understand
from asyncgen_apps.openai_http.bodies import reply_to
from asyncgen_apps.openai_http.failures import ApiError
from asyncgen_apps.openai_http.translate import COMPLETION_TOKENS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from asyncgen import AsyncLLM
    from asyncgen_apps.batch.answers import AnswersFile
    from asyncgen_apps.batch.requests import Line

    Answer = Callable[[Line], Awaitable[dict[str, Any]]]

AHEAD = 16
"""Where the order is kept, answers that wait for an earlier one: so many times those under way."""

_SKIPPED_AT_ONCE = 256


@dataclass(slots=True)
class Tally:
    """How far it is.

    Attributes:
        skipped_bytes: Bytes of the requests that had been answered before.
        bytes: Bytes of those that were answered now.
        answered: How many were.
        tokens: Tokens that were generated for them.
    """

    skipped_bytes: int = 0
    bytes: int = 0
    answered: int = 0
    tokens: int = 0


class EngineGone(Exception):
    """The engine answers nobody any more."""


def answerer(
    llm: AsyncLLM, defaults: Mapping[str, Any], names: Sequence[str]
) -> Callable[[Line], Awaitable[dict[str, Any]]]:
    """What answers a line.

    Args:
        llm: The engine.
        defaults: Parameters for what a line leaves open.
        names: What the model is called in bodies; the first one is for those that name none.

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
            asked = understand(line.content, defaults, names[0])
        except LineError as error:
            record["error"] = {"code": error.code, "message": str(error)}
            return record
        request_id = secrets.token_hex(12)
        try:
            reply = await reply_to(
                llm,
                asked.path,
                asked.body,
                request_id,
                names=names,
                text_tokens=None if asked.is_plain else COMPLETION_TOKENS,
            )
            status = 200
        except ApiError as error:
            if error.status == 503:
                raise EngineGone(error.message) from error
            status, reply = error.status, error.body()
        record["response"] = {"status_code": status, "request_id": request_id, "body": reply}
        return record

    return answer


async def answer_lines(
    lines: Iterable[Line],
    answers: AnswersFile,
    answer: Answer,
    tally: Tally,
    *,
    at_once: int,
    ordered: bool,
) -> None:
    """Answer what is not answered yet.

    Args:
        lines: The requests.
        answers: Where the answers go.
        answer: Gives the record of a line.
        tally: Is kept up to date.
        at_once: Most lines that are under way, at least 1.
        ordered: Whether answers are written in the order of their requests, each as soon as those
            before it are; else as they come.

    Raises:
        Exception: What the first line to fail raised; the others are cancelled.
    """
    running, room = anyio.Semaphore(at_once), anyio.Semaphore(at_once * (AHEAD if ordered else 1))
    ready: dict[int, tuple[Line, dict[str, Any]]] = {}
    failures: list[Exception] = []
    written = 0

    def write(line: Line, record: dict[str, Any]) -> None:
        answers.add(record)
        tally.answered += 1
        tally.bytes += line.size
        tally.tokens += _num_tokens(record)
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
            # Raised behind the group, which would wrap it in an exception group.
            failures.append(error)
            group.cancel_scope.cancel()
        finally:
            running.release()

    async with anyio.create_task_group() as group:
        place = 0
        try:
            for count, line in enumerate(lines):
                if answers.has(line):
                    tally.skipped_bytes += line.size
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
    """Tokens that were generated for an answer."""
    response = record["response"]
    if response is None or response["status_code"] != 200:
        return 0
    return int(response["body"]["usage"]["completion_tokens"])
