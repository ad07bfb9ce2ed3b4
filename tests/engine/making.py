"""Requests for tests of the engine's parts, prepared as the async face does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.engine.batch.sequence import Sequence
from asyncgen.engine.requests.admission import Seat
from asyncgen.engine.requests.prepare import prepare_request
from asyncgen.engine.requests.served_model import ServedModel
from asyncgen.generation.stopping.cancel import CancelCriteria
from tests.doubles.models import TableModel, byte_tokenizer
from tests.doubles.sinks import RecordingSink

if TYPE_CHECKING:
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.engine.requests.request import Request


def request_for(
    prompt: Any = "abc", *, model: Any = None, tokenizer: Any = None, **given: Any
) -> tuple[Request, RecordingSink]:
    """A request with a sink that records."""
    sink = RecordingSink()
    request = prepare_request(
        ServedModel.of(model or TableModel(), tokenizer or byte_tokenizer()),
        prompt,
        given,
        cancel=CancelCriteria(),
        sink=sink,
    )
    return request, sink


def sequence_of(request: Request, index: int = 0) -> Sequence:
    """A sequence of a request at its first step."""
    sequence = Sequence(request, index)
    sequence.begin_sampling()
    return sequence


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seated(admission: Admission, client: str | None = None) -> Seat:
    """Let a request in, which waits for as long as the result is held."""
    seat = Seat(admission, client)
    seat.enter()
    return seat
