from __future__ import annotations

import json
import math
from typing import Any

import pytest

from asyncgen import EngineClosedError, InvalidRequestError, OverloadedError
from asyncgen_apps.websocket.client.errors import ConnectionLostError, RemoteError
from asyncgen_apps.websocket.client.request import GapError, Phase, Request
from asyncgen_apps.websocket.client.request_tracker import RequestTracker, read_message
from asyncgen_apps.websocket.messages import Hello
from tests.apps.websocket.scripted import FIGURES, LIMITS


def request(prompt: str = "x", seed: int | None = None) -> Request:
    params = {} if seed is None else {"seed": seed}
    return Request({"prompt": prompt}, params, lambda: 0.0)


def tell(tracker: RequestTracker, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Bring a message to the tracker; returns what it wants to say."""
    message = read_message(json.dumps({"type": kind, **fields}))
    assert message is not None
    return [json.loads(frame) for frame in tracker.receive(message)]


def greet(
    tracker: RequestTracker,
    server: int = 0,
    fingerprint: str | None = None,
    takes_over: bool = False,
    **limits: Any,
) -> list[dict[str, Any]]:
    hello = read_message(
        json.dumps(
            {
                "type": "hello",
                "model": "m",
                "limits": {**LIMITS, **limits},
                "heartbeat_seconds": 20.0,
                "authenticated": False,
                "fingerprint": fingerprint,
                "takes_over": takes_over,
            }
        )
    )
    assert isinstance(hello, Hello)
    return [json.loads(frame) for frame in tracker.connected(hello, server)]


def update(tracker: RequestTracker, one: Request) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in tracker.update(one)]


def accept(tracker: RequestTracker, one: Request, token: str = "t") -> list[dict[str, Any]]:
    return tell(tracker, "accepted", id=one.id, resume_token=token, queue_position=None)


def delta(tracker: RequestTracker, one: Request, seq: int, **fields: Any) -> list[dict[str, Any]]:
    return tell(tracker, "delta", id=one.id, seq=seq, **{"text": "x", **fields})


def done(tracker: RequestTracker, one: Request, seq: int, **fields: Any) -> list[dict[str, Any]]:
    fields = {"finish_reason": "stop", **FIGURES, **fields}
    return tell(tracker, "done", id=one.id, seq=seq, **fields)


def running(tracker: RequestTracker, **params: object) -> Request:
    """A request that was accepted."""
    one = Request({"prompt": "x"}, params, lambda: 0.0)
    update(tracker, one)
    accept(tracker, one)
    return one


def test_a_request_is_sent_once_there_is_a_connection() -> None:
    tracker = RequestTracker()
    one = request(seed=7)
    assert update(tracker, one) == []
    assert tracker.busy
    [frame] = greet(tracker)
    assert frame == {
        "type": "generate",
        "id": one.id,
        "prompt": "x",
        "params": {"seed": 7},
        "events": "tokens",
    }
    assert update(tracker, one) == []
    accept(tracker, one)
    delta(tracker, one, 1, token_ids=[5], time=0.5)
    done(tracker, one, 2, stop_reason=3)
    assert one.phase is Phase.ENDED
    assert one.build_result().stop_reason == 3
    assert not tracker.busy


def test_log_probabilities_arrive_as_they_were() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    top = [{"token_id": 1, "token": "a", "logprob": -0.1}]
    none = {"token_id": 2, "token": "b", "logprob": None, "top": top}
    delta(tracker, one, 1, token_ids=[2], logprobs=[none])
    entries = one.events[0].logprobs
    assert entries is not None
    assert entries[0].logprob == -math.inf
    assert entries[0].top[0].token == "a"


def test_the_next_connection_resumes_what_was_accepted_and_resends_the_rest() -> None:
    tracker = RequestTracker()
    greet(tracker)
    first, second, third = running(tracker), request("y"), request("z")
    update(tracker, second)
    delta(tracker, first, 1)
    delta(tracker, first, 4, first_seq=2)
    sent_as = second.id
    tracker.disconnected()
    update(tracker, third)
    resume, again, new = greet(tracker)
    assert resume == {"type": "resume", "id": first.id, "resume_token": "t", "after": 4}
    assert (again["type"], again["prompt"]) == ("generate", "y")
    assert again["id"] != sent_as
    assert (new["type"], new["prompt"]) == ("generate", "z")
    # A late word about the old name means nobody.
    tell(tracker, "delta", id=sent_as, seq=1, text="late")
    assert not second.events


def test_no_more_requests_than_the_server_allows() -> None:
    tracker = RequestTracker()
    greet(tracker, max_requests=2)
    requests = [request(str(number)) for number in range(4)]
    sent = [frame["prompt"] for one in requests for frame in update(tracker, one)]
    assert sent == ["0", "1"]
    accept(tracker, requests[0])
    assert [frame["prompt"] for frame in done(tracker, requests[0], 1)] == ["2"]
    refused = tell(tracker, "error", id=requests[1].id, code="overloaded", message="full")
    assert [frame["prompt"] for frame in refused] == ["3"]
    assert isinstance(requests[1].failure, OverloadedError)


def test_a_waiting_request_that_is_left_is_never_sent() -> None:
    tracker = RequestTracker()
    greet(tracker, max_requests=1)
    first = running(tracker)
    second, third = request("second"), request("third")
    update(tracker, second)
    update(tracker, third)
    second.left = True
    update(tracker, second)
    assert [frame["prompt"] for frame in done(tracker, first, 1)] == ["third"]
    assert second.build_result().finish_reason == "cancelled"


def test_cancel_is_sent_once_and_the_server_sends_the_end() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    one.cancel_wanted = True
    assert update(tracker, one) == [{"type": "cancel", "id": one.id}]
    assert update(tracker, one) == []
    delta(tracker, one, 1)
    done(tracker, one, 2, finish_reason="cancelled")
    assert one.build_result().text == "x"
    assert one.build_result().finish_reason == "cancelled"
    assert update(tracker, one) == []


def test_a_request_that_is_left_takes_in_nothing_more() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    delta(tracker, one, 1)
    one.left = True
    assert update(tracker, one) == [{"type": "cancel", "id": one.id}]
    delta(tracker, one, 2)
    done(tracker, one, 9)
    assert one.build_result().text == "x"
    assert update(tracker, one) == []


def test_cancel_without_a_connection_ends_at_once_and_reaches_the_server_later() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one, other = running(tracker), request("never accepted")
    update(tracker, other)
    delta(tracker, one, 1)
    tracker.disconnected()
    for gone in (one, other):
        gone.cancel_wanted = True
        assert update(tracker, gone) == []
        assert gone.build_result().finish_reason == "cancelled"
    assert not tracker.busy
    told = greet(tracker)
    assert [frame["type"] for frame in told] == ["resume", "cancel"]
    assert {frame["id"] for frame in told} == {one.id}
    accept(tracker, one)
    delta(tracker, one, 2)
    done(tracker, one, 3)
    assert one.build_result().text == "x"
    assert greet(tracker) == []


def test_a_cancellation_that_was_cut_off_ends_the_stream() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    one.cancel_wanted = True
    update(tracker, one)
    tracker.disconnected()
    assert one.phase is Phase.ENDED
    assert [frame["type"] for frame in greet(tracker)] == ["resume", "cancel"]


def test_an_answer_that_the_server_no_longer_keeps_is_lost() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    delta(tracker, one, 1)
    tracker.disconnected()
    greet(tracker)
    tell(tracker, "error", id=one.id, code="resume_unknown", message="no such request")
    assert isinstance(one.failure, ConnectionLostError)
    assert one.build_result().text == "x"


@pytest.mark.parametrize("code", ["resume_attached", "duplicate_id"])
def test_a_second_resumption_harms_nothing(code: str) -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    tell(tracker, "error", id=one.id, code=code, message="it runs")
    done(tracker, one, 1)
    assert one.build_result().finish_reason == "stop"


def test_an_error_about_some_message_is_about_what_was_just_sent() -> None:
    tracker = RequestTracker()
    greet(tracker)
    accepted, sent = running(tracker), request("sent")
    update(tracker, sent)
    tell(tracker, "error", code="slow_reader", message="read faster")
    assert sent.phase is Phase.SENT
    tell(tracker, "error", code="invalid_message", message="what is that?")
    assert isinstance(sent.failure, RemoteError)
    assert accepted.phase is Phase.ACCEPTED


def test_a_request_that_is_too_long_is_not_sent() -> None:
    tracker = RequestTracker()
    greet(tracker, max_message_bytes=200)
    long, short = request("é" * 100), request("short")
    assert update(tracker, long) == []
    assert isinstance(long.failure, InvalidRequestError)
    assert "200" in str(long.failure)
    assert len(update(tracker, short)) == 1


def test_a_gap_is_noticed() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    delta(tracker, one, 1)
    with pytest.raises(GapError):
        delta(tracker, one, 3)
    with pytest.raises(GapError):
        done(tracker, one, 3)


def test_closing_cancels_running_requests_and_ends_all() -> None:
    tracker = RequestTracker()
    greet(tracker, max_requests=1)
    one, waiting = running(tracker), request("waiting")
    update(tracker, waiting)
    assert [json.loads(frame) for frame in tracker.close()] == [{"type": "cancel", "id": one.id}]
    assert one.build_result().finish_reason == "aborted"
    assert waiting.build_result().finish_reason == "aborted"


def test_giving_up_fails_everything() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker)
    tracker.disconnected()
    waiting = request("waiting")
    update(tracker, waiting)
    error = ConnectionLostError("gone")
    tracker.fail_all(error)
    assert one.failure is error and waiting.failure is error
    assert greet(tracker) == []


def test_several_samples_end_each_in_its_way() -> None:
    tracker = RequestTracker()
    greet(tracker)
    one = running(tracker, n=2)
    delta(tracker, one, 1, index=1)
    choices = [{"index": 0, "finish_reason": "stop"}, {"index": 1, "finish_reason": "length"}]
    done(tracker, one, 2, choices=choices)
    reasons = [sample.finish_reason for sample in one.build_result().samples]
    assert reasons == ["stop", "length"]


def test_a_message_of_an_unknown_type_is_none_and_any_other_is_an_error() -> None:
    assert read_message('{"type": "weather", "id": "1"}') is None
    for text in ("", "[]", '{"type": "delta"}', '{"id": "1"}', "{", b"{}"):
        with pytest.raises(ValueError):
            read_message(text)


# Several servers.


def text_of(one: Request) -> str:
    return "".join(event.text for event in one.events)


def test_held_back_text_counts_only_if_the_request_ends() -> None:
    for reason, expected in (("aborted", "abcd"), ("cancelled", "ab?")):
        tracker = RequestTracker(moves=True)
        greet(tracker)
        one = running(tracker)
        delta(tracker, one, 1, text="ab", token_ids=[1, 2])
        delta(tracker, one, 2, text="?", token_ids=[])
        done(tracker, one, 3, finish_reason=reason)
        if reason == "aborted":
            assert tracker.move_reason is not None
            (frame,) = greet(tracker, 1)
            assert frame["params"] == {"generated_ids": [1, 2]}
            accept(tracker, one)
            delta(tracker, one, 1, text="cd", token_ids=[3])
            done(tracker, one, 2)
        assert text_of(one) == one.build_result().text == expected


def test_one_sample_that_was_aborted_is_enough_to_move() -> None:
    tracker = RequestTracker(moves=True)
    greet(tracker)
    one = running(tracker, n=2)
    delta(tracker, one, 1, token_ids=[1], index=0)
    delta(tracker, one, 2, token_ids=[2], index=1)
    choices = [
        {"index": 0, "finish_reason": "stop", "stop_reason": 1},
        {"index": 1, "finish_reason": "aborted", "text": "x"},
    ]
    done(tracker, one, 3, choices=choices)
    (frame,) = greet(tracker, 1)
    assert frame["params"] == {"n": 2, "generated_ids": [[1], [2]]}


@pytest.mark.parametrize("fingerprint", ["same", None])
def test_a_request_that_is_begun_anew_must_say_the_same(fingerprint: str | None) -> None:
    for again, text in (([1, 2, 3], "abc"), ([1, 9, 3], "ab")):
        tracker = RequestTracker(moves=True)
        greet(tracker, 0, fingerprint)
        one = running(tracker, num_beams=2)
        delta(tracker, one, 1, text="ab", token_ids=[1, 2])
        greet(tracker, 1, fingerprint)
        (frame,) = tell(
            tracker,
            "error",
            id=one.id,
            code="invalid_request",
            message="beams",
            param="generated_ids",
        )
        assert "generated_ids" not in frame["params"]
        accept(tracker, one)
        delta(tracker, one, 1, text="a", token_ids=again[:1])
        cancels = delta(tracker, one, 2, text="bc", token_ids=again[1:])
        assert text_of(one) == text
        assert isinstance(one.failure, ConnectionLostError) == (text == "ab")
        assert [frame["type"] for frame in cancels] == (["cancel"] if text == "ab" else [])


def test_a_request_is_not_begun_anew_on_another_kind_of_engine() -> None:
    tracker = RequestTracker(moves=True)
    greet(tracker, 0, "one")
    one = running(tracker, num_beams=2)
    delta(tracker, one, 1, text="ab", token_ids=[1, 2])
    greet(tracker, 1, "two")
    refusal = {"code": "invalid_request", "message": "beams", "param": "generated_ids"}
    assert tell(tracker, "error", id=one.id, **refusal) == []
    assert isinstance(one.failure, ConnectionLostError)


@pytest.mark.parametrize("param", ["generated_ids", "fingerprint"])
def test_an_older_server_that_knows_no_going_on_is_no_fault_of_the_caller(param: str) -> None:
    tracker = RequestTracker(moves=True)
    greet(tracker, 0, "one")
    one = running(tracker)
    delta(tracker, one, 1, text="ab", token_ids=[1, 2])
    greet(tracker, 1)
    refusal = {"code": "invalid_request", "message": "unknown parameter", "param": param}
    assert tell(tracker, "error", id=one.id, **refusal) == []
    assert isinstance(one.failure, ConnectionLostError)


@pytest.mark.parametrize("moves", [True, False])
def test_draining_server_keeps_its_running_requests(moves: bool) -> None:
    """A refused request waits for the end of the others, and goes to the next server."""
    tracker = RequestTracker(moves=moves)
    greet(tracker, takes_over=not moves)
    old, new, later = running(tracker), request("new"), request("later")
    update(tracker, new)
    assert tell(tracker, "error", id=new.id, code="draining", message="leaving") == []
    assert tracker.move_reason is None and new.phase is not Phase.ENDED
    assert update(tracker, later) == []
    delta(tracker, old, 1, token_ids=[5])
    assert tracker.move_reason is None
    done(tracker, old, 2)
    assert old.build_result().finish_reason == "stop"
    assert isinstance(tracker.move_reason, EngineClosedError)
    sent = greet(tracker, 1 if moves else 0, takes_over=not moves)
    assert [frame["prompt"] for frame in sent] == ["new", "later"]
    assert tracker.move_reason is None


@pytest.mark.parametrize("moves", [True, False])
def test_request_refused_by_draining_server_can_be_cancelled(moves: bool) -> None:
    tracker = RequestTracker(moves=moves)
    greet(tracker, takes_over=not moves)
    old, new = running(tracker), request("new")
    update(tracker, new)
    tell(tracker, "error", id=new.id, code="draining", message="leaving")
    new.cancel_wanted = True
    assert update(tracker, new) == []
    assert new.build_result().finish_reason == "cancelled"
    assert tracker.move_reason is None and old.phase is Phase.ACCEPTED


def test_a_draining_server_with_nothing_under_way_is_left_at_once() -> None:
    tracker = RequestTracker(moves=True)
    greet(tracker)
    one = request("x")
    update(tracker, one)
    tell(tracker, "error", id=one.id, code="draining", message="leaving")
    assert tracker.move_reason is not None


def test_refused_takeover_is_retried_beside_other_requests() -> None:
    tracker = RequestTracker()
    greet(tracker, takes_over=True)
    moved = running(tracker)
    delta(tracker, moved, 1, token_ids=[5], time=0.1)
    tracker.disconnected()
    greet(tracker, takes_over=True)
    tell(tracker, "error", id=moved.id, code="resume_unknown", message="?")
    other = running(tracker)
    full = {"code": "overloaded", "message": "full", "retry_after": 2.5}
    assert tell(tracker, "error", id=moved.id, **full) == []
    assert (tracker.move_reason, tracker.pause) == (None, 2.5)
    delta(tracker, other, 1, token_ids=[5], time=0.1)
    [frame] = map(json.loads, tracker.ask_again())
    assert (frame["type"], frame["generated_ids"]) == ("resume", [[5]])
    assert tracker.pause is None
    accept(tracker, moved, "u")
    assert tracker.ask_again() == []
    done(tracker, other, 2)
    assert tracker.move_reason is None
