"""Results as the protocol has them."""

from __future__ import annotations

from asyncgen import Completion, FinishReason, Sample, Timing, TokenEvent, Usage
from asyncgen_apps.websocket.engine_messages import done_message, piece_of
from asyncgen_apps.websocket.frames import encode
from asyncgen_apps.websocket.messages import SERVER_MESSAGE, Done


def completion(*reasons: FinishReason) -> Completion:
    samples = tuple(
        Sample(index, f"text {index}", (1, 2), reason, ".") for index, reason in enumerate(reasons)
    )
    return Completion(samples, Usage(3, 4, 1), Timing(0.1, 0.2, 0.3, None))


def done(result: Completion, *, aborted: bool = False) -> Done:
    message = {"id": "a", "seq": 1, "type": "done", **done_message(result, aborted=aborted)}
    read = SERVER_MESSAGE.validate_json(encode(message))
    assert isinstance(read, Done)
    return read


def test_one_sample() -> None:
    read = done(completion("stop"))
    assert (read.finish_reason, read.stop_reason, read.choices, read.text) == (
        "stop",
        ".",
        None,
        None,
    )
    assert (read.usage.prompt_tokens, read.usage.cached_tokens) == (3, 1)
    assert (read.timing.first_token, read.timing.tokens_per_second) == (0.2, None)


def test_several_samples() -> None:
    read = done(completion("stop", "length"))
    assert read.choices is not None
    assert [choice.finish_reason for choice in read.choices] == ["stop", "length"]


def test_aborted() -> None:
    read = done(completion("cancelled", "stop"), aborted=True)
    assert (read.finish_reason, read.text) == ("aborted", "text 0")
    assert read.choices is not None
    assert [choice.text for choice in read.choices] == ["text 0", None]
    assert done(completion("cancelled")).text is None
    assert done(completion("aborted")).text == "text 0"  # the engine was closed


def test_pieces() -> None:
    event = TokenEvent(1, (7,), "", time=0.5)
    assert piece_of(event, 1, with_tokens=False) is None
    piece = piece_of(event, 1, with_tokens=True)
    assert piece is not None
    assert (piece.index, piece.token_ids, piece.time) == (1, (7,), 0.5)
    last = TokenEvent(0, (), "", finish_reason="stop")
    assert piece_of(last, 1, with_tokens=True) is None
