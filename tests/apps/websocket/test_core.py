"""The protocol's core: single rules first, then any order of everything, against a simple model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgen_apps.serving.clients import Keys
from asyncgen_apps.websocket.core import Action, Channel, CloseConnection, StartRequest, StopRequest
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.frames import encode
from asyncgen_apps.websocket.messages import SERVER_MESSAGE, Auth, Cancel, Generate, Ping, Resume
from asyncgen_apps.websocket.replay import LONGEST, Piece
from asyncgen_apps.websocket.resumable_requests import Answer, Registry
from asyncgen_apps.websocket.settings import StreamSettings

DONE: dict[str, Any] = {
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0},
    "timing": {"queue": 0.0, "first_token": None, "total": 1.0, "tokens_per_second": None},
}


class Side:
    """A registry with channels on it, and a clock that a test moves."""

    def __init__(self, **settings: Any) -> None:
        self.settings = StreamSettings(**settings)
        self.registry = Registry(self.settings)
        self.now = 0.0

    def channel(self, **options: Any) -> Channel:
        channel = Channel(self.settings, self.registry, **options)
        if channel.is_authenticated:
            assert self.sent(channel)[0]["type"] == "hello"
        return channel

    def sent(self, channel: Channel) -> list[dict[str, Any]]:
        """Return the sent messages, read back as a client does."""
        frames = [encode(message) for message in channel.flush(self.now)]
        for frame in frames:
            SERVER_MESSAGE.validate_json(frame)
        return [json.loads(frame) for frame in frames]

    def begin(self, channel: Channel, request_id: str = "a", **fields: Any) -> Answer:
        request = Generate(id=request_id, prompt="Once", **fields)
        [action] = channel.receive(request, self.now)
        assert isinstance(action, StartRequest)
        assert action.request is request
        action.answer.accepted(None)
        return action.answer

    def told(self, channel: Channel, message: Any) -> dict[str, Any]:
        """The one message that another gets."""
        assert channel.receive(message, self.now) == []
        [answer] = self.sent(channel)
        return answer


def test_a_request_from_its_begin_to_its_end() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    answer.add(Piece(0, "Once"))
    assert [message["type"] for message in side.sent(channel)] == ["accepted", "delta"]
    for text in (" upon", " a"):  # merged: nobody took the first yet
        answer.add(Piece(0, text))
    answer.finish(DONE)
    delta, done = side.sent(channel)
    assert delta == {"type": "delta", "id": "a", "seq": 2, "text": " upon a", "index": 0}
    assert done == {"type": "done", "id": "a", "seq": 3, **DONE}
    assert side.sent(channel) == []
    assert channel.num_requests == 0


def test_samples_do_not_merge_with_each_other() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    for index, text in ((0, "a"), (1, "b"), (1, "c"), (0, "d")):
        answer.add(Piece(index, text, (7,), None, 0.5))
    pieces = [(m["seq"], m["index"], m["text"]) for m in side.sent(channel)[1:]]
    assert pieces == [(1, 0, "a"), (2, 1, "bc"), (3, 0, "d")]


def test_on_ready_is_called_when_there_is_something() -> None:
    side = Side()
    channel = side.channel()
    calls: list[int] = []
    channel.on_ready = lambda: calls.append(1)
    answer = side.begin(channel)
    assert len(calls) == 1
    answer.add(Piece(0, "x"))
    answer.add(Piece(0, "y"))
    assert len(calls) == 2  # the second one rides along
    side.sent(channel)
    answer.fail(Fault("internal", "broken"))
    assert len(calls) == 3


def test_names_are_free_again_after_the_end() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    side.sent(channel)
    again = Generate(id="a", prompt="Once")
    assert side.told(channel, again)["code"] == "duplicate_id"
    answer.finish(DONE)
    assert side.sent(channel)[-1]["type"] == "done"
    side.begin(channel)


def test_cancel() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    assert channel.receive(Cancel(id="a"), 0) == [StopRequest(answer)]
    answer.finish({**DONE, "finish_reason": "cancelled"})
    assert channel.receive(Cancel(id="a"), 0) == []  # its end is on its way
    side.sent(channel)
    assert channel.receive(Cancel(id="a"), 0) == []  # nobody knew
    assert side.sent(channel) == []
    assert side.told(channel, Cancel(id="b"))["code"] == "unknown_id"


def test_limits_and_parameters() -> None:
    side = Side(max_requests=2)
    channel = side.channel()
    side.begin(channel, "a")
    side.begin(channel, "b")
    side.sent(channel)
    refused = side.told(channel, Generate(id="c", prompt="x"))
    assert (refused["id"], refused["code"]) == ("c", "too_many_requests")
    assert refused["retry_after"] > 0
    other = side.channel()
    cases: tuple[tuple[str, Any], ...] = (
        ("custom_generate", "evil"),
        ("seed", 2**64),
        ("x", [{"y": 10**400}]),
    )
    for name, value in cases:
        refused = side.told(other, Generate(id="c", prompt="x", params={name: value}))
        assert (refused["code"], refused["param"]) == ("invalid_request", name)


def test_a_ping_gets_its_nonce() -> None:
    side = Side()
    for nonce in ("x", 7):
        assert side.told(side.channel(), Ping(nonce=nonce)) == {"type": "pong", "nonce": nonce}


@pytest.mark.parametrize("message", [Ping(nonce=1), Generate(id="a", prompt="x"), Auth(token="no")])
def test_first_message_without_valid_token_closes_the_connection(message: Any) -> None:
    side = Side(tokens=("yes",))
    channel = side.channel(find=Keys(("yes",)).find, client=None)
    assert side.sent(channel) == []
    [action] = channel.receive(message, 0)
    assert isinstance(action, CloseConnection)
    assert action.code == 1008
    [error] = side.sent(channel)
    wrong = isinstance(message, Auth)
    assert error["code"] == ("unauthorized" if wrong else "not_authenticated")
    assert len(side.registry) == 0


def test_a_good_token() -> None:
    side = Side(tokens=("yes",))
    channel = side.channel(find=Keys(("yes",)).find, client=None)
    assert channel.receive(Auth(token="yes"), 0) == []
    assert side.sent(channel)[0]["authenticated"] is True
    assert channel.receive(Auth(token="yes"), 0) == []
    assert side.told(channel, Auth(token="no"))["code"] == "unauthorized"


def test_a_fault_names_a_request_only_where_it_is_its_end() -> None:
    side = Side()
    channel = side.channel()
    side.begin(channel, "a")
    side.sent(channel)
    assert "id" not in side.told(channel, Fault("invalid_message", "what", id="a"))
    assert side.told(channel, Fault("invalid_message", "what", id="b"))["id"] == "b"


def lost(side: Side, seen: int = 1) -> tuple[Answer, Channel]:
    """A request that has said three pieces and has lost its connection."""
    first = side.channel()
    answer = side.begin(first)
    for text in "abc":
        answer.add(Piece(0, text))
        side.sent(first)
    assert first.leave(side.now, for_good=False) == []
    return answer, side.channel()


def test_resume_gives_exactly_the_rest() -> None:
    side = Side()
    answer, channel = lost(side)
    answer.add(Piece(0, "d"))
    answer.add(Piece(0, "e"))
    assert channel.receive(Resume(id="z", resume_token=answer.token, after=1), 0) == []
    accepted, again, new = side.sent(channel)
    assert accepted == {
        "type": "accepted",
        "id": "z",
        "resume_token": answer.token,
        "queue_position": None,
    }
    assert again == {
        "type": "delta",
        "id": "z",
        "seq": 3,
        "first_seq": 2,
        "text": "bc",
        "index": 0,
    }
    assert new == {"type": "delta", "id": "z", "seq": 4, "text": "de", "index": 0}


def test_resume_after_the_end_repeats_the_end() -> None:
    side = Side()
    answer, channel = lost(side)
    answer.finish(DONE)
    for after in (0, 3, 4):
        channel.receive(Resume(id="a", resume_token=answer.token, after=after), 0)
        accepted, *deltas, done = side.sent(channel)
        assert accepted["type"] == "accepted"
        assert "".join(delta["text"] for delta in deltas) == "abc"[after:]
        assert (done["type"], done["seq"]) == ("done", 4)


def test_a_resume_is_answered_in_full_where_all_goes_out_at_once() -> None:
    side = Side()
    answer, channel = lost(side)
    answer.finish(DONE)
    told: list[dict[str, Any]] = []
    channel.on_ready = lambda: told.extend(side.sent(channel))
    channel.receive(Resume(id="z", resume_token=answer.token, after=2), 0)
    assert [message["type"] for message in told] == ["accepted", "delta", "done"]


def test_a_request_is_taken_over_where_all_goes_out_at_once() -> None:
    side = Side()
    old, new = side.channel(), side.channel()
    answer = side.begin(old)
    side.sent(old)
    answer.finish(DONE)  # nobody has flushed it yet
    told: list[dict[str, Any]] = []
    old.on_ready = lambda: told.extend(side.sent(old))
    new.receive(Resume(id="z", resume_token=answer.token, after=0), 0)
    assert [message.get("code") for message in told] == ["resume_moved"]
    assert [message["type"] for message in side.sent(new)] == ["accepted", "done"]


def test_a_failure_is_kept_as_well() -> None:
    side = Side()
    answer, channel = lost(side)
    answer.fail(Fault("engine_dead", "gone", retry_after=5.0))
    channel.receive(Resume(id="b", resume_token=answer.token, after=3), 0)
    assert side.sent(channel)[1:] == [
        {"type": "error", "id": "b", "code": "engine_dead", "message": "gone", "retry_after": 5.0}
    ]


def test_resumes_that_cannot_be() -> None:
    side = Side(replay_bytes=400)
    answer, channel = lost(side)
    token = answer.token

    def code(**fields: Any) -> str:
        resume = Resume(**{"id": "b", "resume_token": token, "after": 3, **fields})
        told = side.told(channel, resume)
        assert told["id"] == "b"
        return str(told["code"])

    assert code(resume_token="wrong") == "resume_unknown"
    assert code(after=4) == "resume_ahead"
    assert code(after=0) == "resume_gone"  # 400 bytes hold two pieces
    side.begin(channel, "b")
    side.sent(channel)
    assert code() == "duplicate_id"
    channel.receive(Resume(id="c", resume_token=token, after=3), 0)
    side.sent(channel)
    assert code() == "resume_attached"


def test_a_newer_connection_takes_over() -> None:
    side = Side()
    old, new = side.channel(), side.channel()
    answer = side.begin(old)
    answer.add(Piece(0, "x"))
    side.sent(old)
    new.receive(Resume(id="a", resume_token=answer.token, after=1), 0)
    [moved] = side.sent(old)
    assert (moved["id"], moved["code"]) == ("a", "resume_moved")
    assert old.leave(0, for_good=True) == []  # no business of it any more
    answer.add(Piece(0, "y"))
    assert side.sent(new)[-1]["text"] == "y"


def test_leaving_for_good_stops_and_forgets() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    assert channel.leave(0, for_good=True) == [StopRequest(answer)]
    assert len(side.registry) == 0
    answer.finish(DONE)  # the engine's answer to the stop finds nobody
    assert side.registry.num_running == 0


def test_one_that_was_not_accepted_is_stopped() -> None:
    side = Side()
    channel = side.channel()
    [action] = channel.receive(Generate(id="a", prompt="x"), 0)
    assert isinstance(action, StartRequest)
    assert channel.leave(0, for_good=False) == [StopRequest(action.answer)]


def test_grace_ends() -> None:
    side = Side(grace_seconds=10)
    answer, channel = lost(side)
    assert side.registry.next_expiry == 10
    assert side.registry.expire(9.9) == []
    assert side.registry.expire(10) == [answer]
    assert side.registry.next_expiry is None
    resume = Resume(id="a", resume_token=answer.token, after=3)
    assert side.told(channel, resume)["code"] == "resume_unknown"


def test_a_resumed_request_does_not_expire() -> None:
    side = Side(grace_seconds=10)
    answer, channel = lost(side)
    channel.receive(Resume(id="a", resume_token=answer.token, after=3), 5)
    assert side.registry.expire(100) == []


def test_an_unread_request_is_bounded() -> None:
    side = Side(replay_bytes=10_000)
    channel = side.channel()
    answer = side.begin(channel)
    pieces = 0
    while answer.add(Piece(0, "word ")):
        pieces += 1
        assert pieces < 1000
    assert pieces > 10
    assert not answer.add(Piece(0, "more"))
    *_, last = side.sent(channel)
    assert (last["type"], last["code"]) == ("error", "slow_reader")


def test_a_flush_of_few_bytes_leaves_the_rest_in_order() -> None:
    side = Side()
    channel = side.channel()
    answers = [side.begin(channel, name) for name in "ab"]
    side.sent(channel)
    for number in range(40):
        for answer in answers:
            answer.add(Piece(0, f"{number:04}" * 1000))
    for answer in answers:
        answer.finish(DONE)
    told: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    flushes = 0
    while channel.has_more or not flushes:
        found = channel.flush(side.now, 30_000)
        assert 0 < sum(len(each.get("text", "")) for each in found) <= 30_000 + 2 * LONGEST
        flushes += 1
        for each in found:
            told[each["id"]].append(each)
    assert flushes > 5 and channel.num_requests == 0
    for *deltas, done in told.values():
        assert done["type"] == "done" and {each["type"] for each in deltas} == {"delta"}
        assert [each["seq"] for each in deltas] == list(range(1, len(deltas) + 1))
        text = "".join(each["text"] for each in deltas)
        assert text == "".join(f"{number:04}" * 1000 for number in range(40))


def test_a_resume_in_few_bytes_gives_all() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    sent = ""
    for number in range(30):
        answer.add(Piece(0, f"{number:04}" * 1000))
        sent += "".join(each.get("text", "") for each in side.sent(channel))
    channel.leave(side.now, for_good=False)
    other = side.channel()
    assert other.receive(Resume(id="b", resume_token=answer.token, after=0), 1.0) == []
    answer.add(Piece(0, "new"))
    answer.finish(DONE)
    again, flushes = [], 0
    while other.has_more or not flushes:
        again += other.flush(side.now, 20_000)
        flushes += 1
    assert flushes > 3 and again[0]["type"] == "accepted" and again[-1]["type"] == "done"
    assert "".join(each.get("text", "") for each in again) == sent + "new"


def test_ended_answers_share_one_memory_bound() -> None:
    side = Side(kept_bytes=1000)
    channel = side.channel()
    answers = []
    for number in range(10):
        answer = side.begin(channel, str(number))
        answer.add(Piece(0, "x" * 100))
        answer.finish(DONE)
        side.sent(channel)
        answers.append(answer)
        assert side.registry.kept_bytes <= 1000
    assert side.registry.find(answers[0].token) is None
    assert side.registry.find(answers[-1].token) is answers[-1]


def test_draining() -> None:
    side = Side()
    channel = side.channel()
    answer = side.begin(channel)
    side.sent(channel)
    channel.is_draining = True
    refused = side.told(channel, Generate(id="b", prompt="x"))
    assert refused["code"] == "draining"
    answer.add(Piece(0, "x"))
    assert side.sent(channel)[0]["text"] == "x"
    assert channel.leave(0, for_good=False) == [StopRequest(answer)]  # nobody could come back


@dataclass
class Request:
    """Request as the client knows it, with the engine's events."""

    answer: Answer
    said: str = ""
    seen: str = ""
    seq: int = 0
    ended: bool = False
    closed: bool = False
    channel: Channel | None = None
    end: str | None = None
    history: list[str] = field(default_factory=list)


class Streams(RuleBasedStateMachine):
    """Clients that begin, lose connections at any message, resume; an engine that talks.

    What a client has joined is at all times the beginning of what the engine has said, without a
    gap or a repetition, whatever was cut; and a request ends exactly once for it.
    """

    @initialize()
    def start(self) -> None:
        self.side = Side(grace_seconds=100, max_requests=4, replay_bytes=100_000)
        self.channels = [self.side.channel()]
        self.requests: list[Request] = []
        self.actions: list[Action] = []

    def live(self) -> list[Request]:
        return [one for one in self.requests if one.end is None]

    @rule()
    def connect(self) -> None:
        if len(self.channels) < 4:
            self.channels.append(self.side.channel())

    @precondition(lambda self: self.channels)
    @rule(where=st.integers(0, 3), tokens=st.booleans())
    def generate(self, where: int, tokens: bool) -> None:
        channel = self.channels[where % len(self.channels)]
        name = f"r{len(self.requests)}"
        message = Generate(id=name, prompt="x", events="tokens" if tokens else "text")
        actions = channel.receive(message, self.side.now)
        if channel.num_requests and actions:
            [action] = actions
            assert isinstance(action, StartRequest)
            action.answer.accepted(None)
            self.requests.append(Request(action.answer, channel=channel))

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 50), text=st.text("ab😀", min_size=1, max_size=3))
    def talk(self, which: int, text: str) -> None:
        request = self.requests[which % len(self.requests)]
        if request.end is None:
            ids = (1,) if request.answer.with_tokens else None
            assert request.answer.add(Piece(0, text, ids))
            request.said += text

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 50), well=st.booleans())
    def end(self, which: int, well: bool) -> None:
        request = self.requests[which % len(self.requests)]
        if request.end is None:
            if well:
                request.answer.finish(DONE)
            else:
                request.answer.fail(Fault("internal", "broken"))
            request.end = "done" if well else "error"

    @precondition(lambda self: self.channels)
    @rule(where=st.integers(0, 3), get=st.integers(0, 20), cut=st.booleans())
    def deliver(self, where: int, get: int, cut: bool) -> None:
        """A client gets what is there, or its connection breaks after some of it."""
        channel = self.channels[where % len(self.channels)]
        messages = self.side.sent(channel)
        for message in messages[:get] if cut else messages:
            self.take(channel, message)
        if cut:
            self.channels.remove(channel)
            assert channel.leave(self.side.now, for_good=False) == []
            for request in self.requests:
                if request.channel is channel:
                    request.channel = None

    def take(self, channel: Channel, message: dict[str, Any]) -> None:
        if message.get("code") in ("resume_moved", "too_many_requests"):
            return
        request = self.requests[int(message["id"][1:])]
        if message["type"] == "accepted":
            return
        assert request.channel is channel
        if message["type"] == "delta":
            assert message.get("first_seq", message["seq"]) == request.seq + 1
            request.seq = message["seq"]
            request.seen += message["text"]
            return
        assert message["type"] == request.end
        if message["type"] == "done":
            assert message["seq"] == request.seq + 1
        assert request.seen == request.said
        request.ended = True
        request.channel = None

    @precondition(lambda self: self.channels and self.requests)
    @rule(where=st.integers(0, 3), which=st.integers(0, 50))
    def resume(self, where: int, which: int) -> None:
        request = self.requests[which % len(self.requests)]
        channel = self.channels[where % len(self.channels)]
        if request.ended or request.channel is channel or channel.num_requests >= 4:
            return
        name = f"r{self.requests.index(request)}"
        if name in channel._answers:
            return
        message = Resume(id=name, resume_token=request.answer.token, after=request.seq)
        assert channel.receive(message, self.side.now) == []
        request.channel = channel

    @precondition(lambda self: self.channels)
    @rule(where=st.integers(0, 3), which=st.integers(0, 50))
    def cancel(self, where: int, which: int) -> None:
        channel = self.channels[where % len(self.channels)]
        actions = channel.receive(Cancel(id=f"r{which % 60}"), self.side.now)
        assert all(isinstance(action, StopRequest) for action in actions)
        # An error for a name that is not there is taken out again, for the simple model.
        channel._outbox = [m for m in channel._outbox if m.get("code") != "unknown_id"]

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "requests"):
            return
        for request in self.requests:
            assert request.said.startswith(request.seen)
        running = sum(one.end is None for one in self.requests)
        assert self.side.registry.num_running == running

    def teardown(self) -> None:
        """Everybody who is not finished resumes in the end, and gets all."""
        if not hasattr(self, "requests"):
            return
        for number, request in enumerate(self.requests):
            if request.ended:
                continue
            channel = self.side.channel()
            name = f"r{number}"
            message = Resume(id=name, resume_token=request.answer.token, after=request.seq)
            channel.receive(message, self.side.now)
            request.channel = channel
            if request.end is None:
                request.answer.finish(DONE)
                request.end = "done"
            for told in self.side.sent(channel):
                self.take(channel, told)
            assert request.ended
        for channel in self.channels:
            channel.leave(self.side.now, for_good=False)
        assert self.side.registry.expire(self.side.now + 1000) == []
        assert len(self.side.registry) == 0
        assert self.side.registry.kept_bytes == 0


TestStreams = Streams.TestCase
TestStreams.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_streams_at_length() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Streams,
        settings=hypothesis_settings(max_examples=3000, stateful_step_count=80, deadline=None),
    )
