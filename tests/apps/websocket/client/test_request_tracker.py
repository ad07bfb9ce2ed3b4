from __future__ import annotations

import json
import math
from typing import Any

import pytest

from asyncgen import EngineClosedError, InvalidRequestError, OverloadedError
from asyncgen_apps.websocket.client.errors import ConnectionLostError, RemoteError
from asyncgen_apps.websocket.client.request import GapError, Phase, Request
from asyncgen_apps.websocket.client.request_tracker import Ledger, read_message
from asyncgen_apps.websocket.messages import Hello
from tests.apps.websocket.scripted import FIGURES, LIMITS


def request(prompt: str = "x", seed: int | None = None) -> Request:
    params = {} if seed is None else {"seed": seed}
    return Request({"prompt": prompt}, params, lambda: 0.0)


def tell(ledger: Ledger, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Bring a message to the ledger; returns what it wants to say."""
    message = read_message(json.dumps({"type": kind, **fields}))
    assert message is not None
    return [json.loads(frame) for frame in ledger.receive(message)]


def greet(
    ledger: Ledger,
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
    return [json.loads(frame) for frame in ledger.connected(hello, server)]


def attend(ledger: Ledger, one: Request) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in ledger.attend(one)]


def accept(ledger: Ledger, one: Request, token: str = "t") -> list[dict[str, Any]]:
    return tell(ledger, "accepted", id=one.id, resume_token=token, queue_position=None)


def delta(ledger: Ledger, one: Request, seq: int, **fields: Any) -> list[dict[str, Any]]:
    return tell(ledger, "delta", id=one.id, seq=seq, **{"text": "x", **fields})


def done(ledger: Ledger, one: Request, seq: int, **fields: Any) -> list[dict[str, Any]]:
    fields = {"finish_reason": "stop", **FIGURES, **fields}
    return tell(ledger, "done", id=one.id, seq=seq, **fields)


def running(ledger: Ledger, **params: object) -> Request:
    """A request that was accepted."""
    one = Request({"prompt": "x"}, params, lambda: 0.0)
    attend(ledger, one)
    accept(ledger, one)
    return one


def test_a_request_is_sent_once_there_is_a_connection() -> None:
    ledger = Ledger()
    one = request(seed=7)
    assert attend(ledger, one) == []
    assert ledger.busy
    [frame] = greet(ledger)
    assert frame == {
        "type": "generate",
        "id": one.id,
        "prompt": "x",
        "params": {"seed": 7},
        "events": "tokens",
    }
    assert attend(ledger, one) == []
    accept(ledger, one)
    delta(ledger, one, 1, token_ids=[5], time=0.5)
    done(ledger, one, 2, stop_reason=3)
    assert one.phase is Phase.ENDED
    assert one.build_result().stop_reason == 3
    assert not ledger.busy


def test_log_probabilities_arrive_as_they_were() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    top = [{"token_id": 1, "token": "a", "logprob": -0.1}]
    none = {"token_id": 2, "token": "b", "logprob": None, "top": top}
    delta(ledger, one, 1, token_ids=[2], logprobs=[none])
    entries = one.events[0].logprobs
    assert entries is not None
    assert entries[0].logprob == -math.inf
    assert entries[0].top[0].token == "a"


def test_the_next_connection_resumes_what_was_accepted_and_resends_the_rest() -> None:
    ledger = Ledger()
    greet(ledger)
    first, second, third = running(ledger), request("y"), request("z")
    attend(ledger, second)
    delta(ledger, first, 1)
    delta(ledger, first, 4, first_seq=2)
    sent_as = second.id
    ledger.disconnected()
    attend(ledger, third)
    resume, again, new = greet(ledger)
    assert resume == {"type": "resume", "id": first.id, "resume_token": "t", "after": 4}
    assert (again["type"], again["prompt"]) == ("generate", "y")
    assert again["id"] != sent_as
    assert (new["type"], new["prompt"]) == ("generate", "z")
    # A late word about the old name means nobody.
    tell(ledger, "delta", id=sent_as, seq=1, text="late")
    assert not second.events


def test_no_more_requests_than_the_server_allows() -> None:
    ledger = Ledger()
    greet(ledger, max_requests=2)
    requests = [request(str(number)) for number in range(4)]
    sent = [frame["prompt"] for one in requests for frame in attend(ledger, one)]
    assert sent == ["0", "1"]
    accept(ledger, requests[0])
    assert [frame["prompt"] for frame in done(ledger, requests[0], 1)] == ["2"]
    refused = tell(ledger, "error", id=requests[1].id, code="overloaded", message="full")
    assert [frame["prompt"] for frame in refused] == ["3"]
    assert isinstance(requests[1].failure, OverloadedError)


def test_a_waiting_request_that_is_left_is_never_sent() -> None:
    ledger = Ledger()
    greet(ledger, max_requests=1)
    first = running(ledger)
    second, third = request("second"), request("third")
    attend(ledger, second)
    attend(ledger, third)
    second.left = True
    attend(ledger, second)
    assert [frame["prompt"] for frame in done(ledger, first, 1)] == ["third"]
    assert second.build_result().finish_reason == "cancelled"


def test_cancelling_is_said_once_and_the_end_is_the_servers() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    one.cancel_wanted = True
    assert attend(ledger, one) == [{"type": "cancel", "id": one.id}]
    assert attend(ledger, one) == []
    delta(ledger, one, 1)
    done(ledger, one, 2, finish_reason="cancelled")
    assert one.build_result().text == "x"
    assert one.build_result().finish_reason == "cancelled"
    assert attend(ledger, one) == []


def test_a_request_that_is_left_takes_in_nothing_more() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    delta(ledger, one, 1)
    one.left = True
    assert attend(ledger, one) == [{"type": "cancel", "id": one.id}]
    delta(ledger, one, 2)
    done(ledger, one, 9)
    assert one.build_result().text == "x"
    assert attend(ledger, one) == []


def test_cancelled_without_a_connection_it_ends_at_once_and_the_server_is_told_later() -> None:
    ledger = Ledger()
    greet(ledger)
    one, other = running(ledger), request("never accepted")
    attend(ledger, other)
    delta(ledger, one, 1)
    ledger.disconnected()
    for gone in (one, other):
        gone.cancel_wanted = True
        assert attend(ledger, gone) == []
        assert gone.build_result().finish_reason == "cancelled"
    assert not ledger.busy
    told = greet(ledger)
    assert [frame["type"] for frame in told] == ["resume", "cancel"]
    assert {frame["id"] for frame in told} == {one.id}
    accept(ledger, one)
    delta(ledger, one, 2)
    done(ledger, one, 3)
    assert one.build_result().text == "x"
    assert greet(ledger) == []


def test_a_cancellation_that_was_cut_off_ends_the_stream() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    one.cancel_wanted = True
    attend(ledger, one)
    ledger.disconnected()
    assert one.phase is Phase.ENDED
    assert [frame["type"] for frame in greet(ledger)] == ["resume", "cancel"]


def test_an_answer_that_the_server_no_longer_keeps_is_lost() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    delta(ledger, one, 1)
    ledger.disconnected()
    greet(ledger)
    tell(ledger, "error", id=one.id, code="resume_unknown", message="no such request")
    assert isinstance(one.failure, ConnectionLostError)
    assert one.build_result().text == "x"


@pytest.mark.parametrize("code", ["resume_attached", "duplicate_id"])
def test_a_second_resumption_harms_nothing(code: str) -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    tell(ledger, "error", id=one.id, code=code, message="it runs")
    done(ledger, one, 1)
    assert one.build_result().finish_reason == "stop"


def test_an_error_about_some_message_is_about_what_was_just_sent() -> None:
    ledger = Ledger()
    greet(ledger)
    accepted, sent = running(ledger), request("sent")
    attend(ledger, sent)
    tell(ledger, "error", code="slow_reader", message="read faster")
    assert sent.phase is Phase.SENT
    tell(ledger, "error", code="invalid_message", message="what is that?")
    assert isinstance(sent.failure, RemoteError)
    assert accepted.phase is Phase.ACCEPTED


def test_a_request_that_is_too_long_is_not_sent() -> None:
    ledger = Ledger()
    greet(ledger, max_message_bytes=200)
    long, short = request("é" * 100), request("short")
    assert attend(ledger, long) == []
    assert isinstance(long.failure, InvalidRequestError)
    assert "200" in str(long.failure)
    assert len(attend(ledger, short)) == 1


def test_a_gap_is_noticed() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    delta(ledger, one, 1)
    with pytest.raises(GapError):
        delta(ledger, one, 3)
    with pytest.raises(GapError):
        done(ledger, one, 3)


def test_closing_cancels_what_runs_and_ends_everything() -> None:
    ledger = Ledger()
    greet(ledger, max_requests=1)
    one, waiting = running(ledger), request("waiting")
    attend(ledger, waiting)
    assert [json.loads(frame) for frame in ledger.close()] == [{"type": "cancel", "id": one.id}]
    assert one.build_result().finish_reason == "aborted"
    assert waiting.build_result().finish_reason == "aborted"


def test_giving_up_fails_everything() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger)
    ledger.disconnected()
    waiting = request("waiting")
    attend(ledger, waiting)
    error = ConnectionLostError("gone")
    ledger.fail_all(error)
    assert one.failure is error and waiting.failure is error
    assert greet(ledger) == []


def test_several_samples_end_each_in_its_way() -> None:
    ledger = Ledger()
    greet(ledger)
    one = running(ledger, n=2)
    delta(ledger, one, 1, index=1)
    choices = [{"index": 0, "finish_reason": "stop"}, {"index": 1, "finish_reason": "length"}]
    done(ledger, one, 2, choices=choices)
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


def test_what_a_leaving_server_held_back_counts_only_with_its_end() -> None:
    for reason, expected in (("aborted", "abcd"), ("cancelled", "ab?")):
        ledger = Ledger(moves=True)
        greet(ledger)
        one = running(ledger)
        delta(ledger, one, 1, text="ab", token_ids=[1, 2])
        delta(ledger, one, 2, text="?", token_ids=[])
        done(ledger, one, 3, finish_reason=reason)
        if reason == "aborted":
            assert ledger.stranded is not None
            (frame,) = greet(ledger, 1)
            assert frame["params"] == {"generated_ids": [1, 2]}
            accept(ledger, one)
            delta(ledger, one, 1, text="cd", token_ids=[3])
            done(ledger, one, 2)
        assert text_of(one) == one.build_result().text == expected


def test_one_sample_that_was_aborted_is_enough_to_move() -> None:
    ledger = Ledger(moves=True)
    greet(ledger)
    one = running(ledger, n=2)
    delta(ledger, one, 1, token_ids=[1], index=0)
    delta(ledger, one, 2, token_ids=[2], index=1)
    choices = [
        {"index": 0, "finish_reason": "stop", "stop_reason": 1},
        {"index": 1, "finish_reason": "aborted", "text": "x"},
    ]
    done(ledger, one, 3, choices=choices)
    (frame,) = greet(ledger, 1)
    assert frame["params"] == {"n": 2, "generated_ids": [[1], [2]]}


@pytest.mark.parametrize("fingerprint", ["same", None])
def test_a_request_that_is_begun_anew_must_say_the_same(fingerprint: str | None) -> None:
    for again, text in (([1, 2, 3], "abc"), ([1, 9, 3], "ab")):
        ledger = Ledger(moves=True)
        greet(ledger, 0, fingerprint)
        one = running(ledger, num_beams=2)
        delta(ledger, one, 1, text="ab", token_ids=[1, 2])
        greet(ledger, 1, fingerprint)
        (frame,) = tell(
            ledger,
            "error",
            id=one.id,
            code="invalid_request",
            message="beams",
            param="generated_ids",
        )
        assert "generated_ids" not in frame["params"]
        accept(ledger, one)
        delta(ledger, one, 1, text="a", token_ids=again[:1])
        cancels = delta(ledger, one, 2, text="bc", token_ids=again[1:])
        assert text_of(one) == text
        assert isinstance(one.failure, ConnectionLostError) == (text == "ab")
        assert [frame["type"] for frame in cancels] == (["cancel"] if text == "ab" else [])


def test_a_request_is_not_begun_anew_on_another_kind_of_engine() -> None:
    ledger = Ledger(moves=True)
    greet(ledger, 0, "one")
    one = running(ledger, num_beams=2)
    delta(ledger, one, 1, text="ab", token_ids=[1, 2])
    greet(ledger, 1, "two")
    refusal = {"code": "invalid_request", "message": "beams", "param": "generated_ids"}
    assert tell(ledger, "error", id=one.id, **refusal) == []
    assert isinstance(one.failure, ConnectionLostError)


@pytest.mark.parametrize("param", ["generated_ids", "fingerprint"])
def test_an_older_server_that_knows_no_going_on_is_no_fault_of_the_caller(param: str) -> None:
    ledger = Ledger(moves=True)
    greet(ledger, 0, "one")
    one = running(ledger)
    delta(ledger, one, 1, text="ab", token_ids=[1, 2])
    greet(ledger, 1)
    refusal = {"code": "invalid_request", "message": "unknown parameter", "param": param}
    assert tell(ledger, "error", id=one.id, **refusal) == []
    assert isinstance(one.failure, ConnectionLostError)


@pytest.mark.parametrize("moves", [True, False])
def test_a_server_that_drains_keeps_what_it_has_begun(moves: bool) -> None:
    """A refused request waits for the end of the others, and goes to the next server."""
    ledger = Ledger(moves=moves)
    greet(ledger, takes_over=not moves)
    old, new, later = running(ledger), request("new"), request("later")
    attend(ledger, new)
    assert tell(ledger, "error", id=new.id, code="draining", message="leaving") == []
    assert ledger.stranded is None and new.phase is not Phase.ENDED
    assert attend(ledger, later) == []
    delta(ledger, old, 1, token_ids=[5])
    assert ledger.stranded is None
    done(ledger, old, 2)
    assert old.build_result().finish_reason == "stop"
    assert isinstance(ledger.stranded, EngineClosedError)
    sent = greet(ledger, 1 if moves else 0, takes_over=not moves)
    assert [frame["prompt"] for frame in sent] == ["new", "later"]
    assert ledger.stranded is None


@pytest.mark.parametrize("moves", [True, False])
def test_what_a_draining_server_has_refused_can_be_cancelled(moves: bool) -> None:
    ledger = Ledger(moves=moves)
    greet(ledger, takes_over=not moves)
    old, new = running(ledger), request("new")
    attend(ledger, new)
    tell(ledger, "error", id=new.id, code="draining", message="leaving")
    new.cancel_wanted = True
    assert attend(ledger, new) == []
    assert new.build_result().finish_reason == "cancelled"
    assert ledger.stranded is None and old.phase is Phase.ACCEPTED


def test_a_draining_server_with_nothing_under_way_is_left_at_once() -> None:
    ledger = Ledger(moves=True)
    greet(ledger)
    one = request("x")
    attend(ledger, one)
    tell(ledger, "error", id=one.id, code="draining", message="leaving")
    assert ledger.stranded is not None


def test_what_a_full_server_cannot_take_up_is_asked_again_beside_the_others() -> None:
    ledger = Ledger()
    greet(ledger, takes_over=True)
    moved = running(ledger)
    delta(ledger, moved, 1, token_ids=[5], time=0.1)
    ledger.disconnected()
    greet(ledger, takes_over=True)
    tell(ledger, "error", id=moved.id, code="resume_unknown", message="?")
    other = running(ledger)
    full = {"code": "overloaded", "message": "full", "retry_after": 2.5}
    assert tell(ledger, "error", id=moved.id, **full) == []
    assert (ledger.stranded, ledger.pause) == (None, 2.5)
    delta(ledger, other, 1, token_ids=[5], time=0.1)
    [frame] = map(json.loads, ledger.ask_again())
    assert (frame["type"], frame["generated_ids"]) == ("resume", [[5]])
    assert ledger.pause is None
    accept(ledger, moved, "u")
    assert ledger.ask_again() == []
    done(ledger, other, 2)
    assert ledger.stranded is None
