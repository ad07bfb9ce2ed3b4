"""The registry forgets what it must, and nothing else. Most of it is tested through the core."""

from __future__ import annotations

from asyncgen_apps.serving.clients import Client
from asyncgen_apps.websocket.core import Channel
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.replay import Piece
from asyncgen_apps.websocket.resumable_requests import Answer, Registry
from asyncgen_apps.websocket.settings import StreamSettings


def start() -> tuple[Registry, Channel]:
    settings = StreamSettings(grace_seconds=10)
    registry = Registry(settings)
    return registry, Channel(settings, registry)


def test_tokens_are_long_and_differ() -> None:
    registry, channel = start()
    tokens = {registry.create(channel, str(number)).token for number in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 24


def test_it_expires_in_the_order_of_leaving() -> None:
    registry, channel = start()
    first, second = registry.create(channel, "a"), registry.create(channel, "b")
    for answer, now in ((first, 0.0), (second, 1.0), (first, 2.0)):
        registry.leave(answer, now)
    assert registry.next_expiry == 11.0
    assert registry.expire(11.5) == [second]
    registry.stay(first)
    assert registry.expire(100.0) == []
    assert registry.find(first.token) is first


def test_one_that_was_refused_leaves_nothing() -> None:
    registry, channel = start()
    answer = registry.create(channel, "a")
    answer.fail(Fault("invalid_request", "no"))
    assert (len(registry), registry.num_running, registry.kept_bytes) == (0, 0, 0)


def test_only_the_first_end_counts() -> None:
    registry, channel = start()
    answer = registry.create(channel, "a")
    answer.is_accepted = True
    answer.fail(Fault("internal", "first"))
    answer.finish({"finish_reason": "stop"})
    assert answer.last_message()["message"] == "first"
    assert not answer.add(Piece(0, "late"))
    assert registry.num_running == 0


def test_dropped_while_it_runs() -> None:
    registry, channel = start()
    answer = registry.create(channel, "a")
    answer.is_accepted = True
    registry.drop(answer)
    answer.finish({"finish_reason": "cancelled"})
    registry.leave(answer, 0.0)
    assert registry.next_expiry is None
    assert (registry.kept_bytes, registry.num_running) == (0, 0)


def test_many_kept_answers_of_one_client_leave_those_of_others() -> None:
    settings = StreamSettings(kept_bytes=64_000)
    registry = Registry(settings)
    channel = Channel(settings, registry)

    def ended(client: str) -> Answer:
        answer = registry.create(channel, "a")
        answer.client, answer.is_accepted = Client(client), True
        answer.add(Piece(0, "x" * 840))  # 1,000 bytes with all else
        answer.finish({"finish_reason": "stop"})
        return answer

    first = ended("b")
    for _ in range(200):
        last = ended("a")
    second = [ended("b") for _ in range(6)]
    kept = (first, last, *second)
    assert all(registry.find(answer.token) is answer for answer in kept)
    assert registry.kept_bytes <= 64_000
    assert len(registry) >= 56
    for answer in registry._answers.copy().values():
        registry.drop(answer)
    assert registry.kept_bytes == 0 and not registry._ended
