"""Read the lines of a file of requests, in all forms of a line.

`asyncgen_apps.openai_http` reads the body of a request.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from asyncgen_apps.openai_http.bodies import BODIES, CHAT_PATH, TEXT_PATH
from asyncgen_apps.serving.sliced_json import RepeatedKeyError, decoded, unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_LINE_BYTES = 64 * 2**20
"""Longest line; a longer one is an error, and never in memory as a whole."""

ENVELOPE = ("custom_id", "method", "url", "body")
LENGTHS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_length")
DRAWING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


class LineError(Exception):
    """Line that is no request.

    Attributes:
        code: Error code for programs.
    """

    def __init__(self, code: str, message: str) -> None:
        """Keep code and message."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Line:
    """Line that is not blank.

    Attributes:
        number: Number of the line in the file, from 1.
        content: Content; ``None`` if it is too long.
        digest: Digest of the content, never 0; an answer keeps it.
        size: Bytes of the line, and of the blank lines before it.
    """

    number: int
    content: bytes | None
    digest: int
    size: int


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Request of a line.

    Attributes:
        custom_id: Name that its sender gave it, if any.
        path: Path of the API that it is meant for.
        body: Body of the request.
        is_plain: True if the line was a prompt, and no request of the API.
    """

    custom_id: str | None
    path: str
    body: dict[str, Any]
    is_plain: bool


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Read the lines of a file one by one.

    Args:
        file: File, read from its beginning.
    """
    number = size = 0
    while start := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        size += len(start)
        hashed, is_whole, part = hashlib.sha256(start.strip()), len(start) <= MAX_LINE_BYTES, start
        while not part.endswith(b"\n") and (part := file.readline(MAX_LINE_BYTES)):
            hashed.update(part)
            size += len(part)
        content = start.strip() if is_whole else None
        if content == b"":
            continue
        digest = int.from_bytes(hashed.digest()[:4], "big") or 1
        yield Line(number, content, digest, size)
        size = 0


def count_lines(file: BinaryIO) -> int:
    """Count the lines that :func:`read_lines` gives, and go back to the beginning.

    Args:
        file: File that can be read again.
    """
    count, is_blank = 0, True
    while part := file.readline(MAX_LINE_BYTES):
        is_blank = is_blank and not part.strip()
        if part.endswith(b"\n"):
            count += not is_blank
            is_blank = True
    file.seek(0)
    return count + (not is_blank)


def custom_id_of(content: bytes | None) -> str | None:
    """Return the sender's name for a line, if it can be read; never raises."""
    try:
        found = json.loads(decoded(content or b""))
    except (ValueError, RecursionError):
        return None
    name = found.get("custom_id") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def understand(content: bytes | None, defaults: Mapping[str, Any], model: str) -> BatchRequest:
    """Read the request of a line.

    Args:
        content: Content of the line.
        defaults: Parameters that count if the line does not set them.
        model: Name of the model, likewise.

    Raises:
        LineError: It is no request.
    """
    if content is None:
        raise LineError("line_too_long", f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(decoded(content), object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise LineError("invalid_json", error.msg) from None
    except (ValueError, RecursionError) as error:
        raise LineError("invalid_json", f"the line is not JSON ({error})") from None
    if isinstance(found, str):
        found = {"prompt": found}
    if not isinstance(found, dict):
        raise LineError("invalid_line", "the line is neither a JSON object nor a text in quotes")
    request = _request(found) if found.keys() & {"method", "url", "body"} else _prompt(found)
    body = {"model": model, **with_defaults(defaults, request.body)}
    return BatchRequest(request.custom_id, request.path, body, request.is_plain)


def with_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a line, and the defaults that it does not set.

    A default length gives way to a length of any name; defaults of sampling and of greedy decoding
    give way to the other.
    """
    said = {name for name, value in given.items() if value is not None}
    idle = set(LENGTHS) if said & set(LENGTHS) else set()
    if "min_tokens" in said:
        idle.add("min_new_tokens")
    if given.get("do_sample") is False or given.get("temperature") == 0:
        idle |= {*DRAWING, "do_sample"}
    elif said & {*DRAWING}:
        idle.add("do_sample")
    open_ones = {name: value for name, value in defaults.items() if name not in idle}
    return {**open_ones, **given}


def _request(found: dict[str, Any]) -> BatchRequest:
    """Read a request in the API's format for batches."""
    unknown = next((name for name in found if name not in ENVELOPE), None)
    if unknown is not None:
        message = f"`{unknown[:100]}` is unknown beside {', '.join(ENVELOPE)}"
        raise LineError("invalid_request", message)
    custom_id, url, body = found.get("custom_id"), found.get("url"), found.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError("missing_custom_id", "`custom_id` must be a text that is not empty")
    if found.get("method") != "POST":
        raise LineError("invalid_method", '`method` must be "POST"')
    if not isinstance(url, str) or url not in BODIES:
        raise LineError("invalid_url", f"`url` must be one of {', '.join(BODIES)}")
    if not isinstance(body, dict):
        raise LineError("invalid_body", "`body` must be a JSON object")
    return BatchRequest(custom_id, url, body, False)


def _prompt(found: dict[str, Any]) -> BatchRequest:
    """Read a prompt or messages, with parameters beside them."""
    body = {name: value for name, value in found.items() if name != "custom_id"}
    custom_id = found.get("custom_id")
    if custom_id is not None and not isinstance(custom_id, str):
        raise LineError("invalid_custom_id", "`custom_id` must be a text")
    if ("prompt" in body) == ("messages" in body):
        message = "the line has to have one of `prompt`, `messages`, or `method`, `url` and `body`"
        raise LineError("invalid_line", message)
    return BatchRequest(custom_id, TEXT_PATH if "prompt" in body else CHAT_PATH, body, True)
