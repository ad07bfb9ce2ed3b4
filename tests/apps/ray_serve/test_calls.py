"""Test calls through Serve's handles, and their results and errors."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.ray_serve.settings import MESSAGE_ENV
from asyncgen_apps.remote import MessageTooLargeError, ReplicaLostError

if TYPE_CHECKING:
    from tests.apps.ray_serve.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

USUAL = 4 * 2**20
"""Bytes of a message, where nobody says otherwise."""


class Handle:
    """A deployment whose answers are a coroutine's."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.ask = self.read = self

    def options(self, **_: Any) -> Any:
        return self

    def remote(self, *_: Any) -> Any:
        return self

    def __await__(self) -> Any:
        return self._answer().__await__()

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await self

    def cancel(self) -> None:
        pass


WAYS: dict[str, Any] = {
    "ask": lambda calls: calls.ask("count", "a", {}),
    "metrics_by_engine": lambda calls: calls.metrics_by_engine(),
    "stream": lambda calls: calls.stream(None).next(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_cancellation_elsewhere_is_a_lost_replica_and_ones_own_is_not(way: str) -> None:
    from asyncgen_apps.ray_serve.calls import RayCalls

    async def cancelled() -> Any:
        raise asyncio.CancelledError  # as it comes of a pickle

    async def run() -> None:
        there: Any = Handle(cancelled)
        with pytest.raises(ReplicaLostError, match="gave the request up"):
            await WAYS[way](RayCalls(there, there))
        silent: Any = Handle(asyncio.Event().wait)
        waiting = asyncio.ensure_future(WAYS[way](RayCalls(silent, silent)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_a_replica_reports_its_metrics_again_after_the_board_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from asyncgen_apps.ray_serve import replica

    monkeypatch.setattr(replica, "REPORT_SECONDS", 0.0)
    num_reports = 0

    class Board:
        @property
        def report(self) -> Any:
            return self

        async def remote(self, *_: Any) -> None:
            nonlocal num_reports
            num_reports += 1
            if num_reports < 3:
                raise asyncio.CancelledError
            await asyncio.Event().wait()

    class Engine:
        def metrics(self) -> None:
            pass

    async def run() -> None:
        one: Any = object.__new__(replica.Replica)
        one._board, one._name, one._llm = Board(), "one", Engine()
        reporting = asyncio.ensure_future(one._report())
        while num_reports < 3:
            assert not reporting.done()
            await asyncio.sleep(0)
        reporting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reporting

    asyncio.run(run())


def test_only_a_message_that_is_too_large_is_one() -> None:
    from grpc import StatusCode
    from grpc.aio import AioRpcError, Metadata

    from asyncgen_apps.ray_serve.calls import translated

    def rpc(code: StatusCode, details: str) -> Exception:
        return AioRpcError(code, Metadata(), Metadata(), details)

    full = StatusCode.RESOURCE_EXHAUSTED
    large = "CLIENT: Received message larger than max (9 vs. 4)"
    unheard = f"Unexpected error ({full}): SERVER: Received message larger than max (9 vs. 4)."
    for error in (rpc(full, large), RuntimeError(unheard)):
        meant = translated(error)
        assert isinstance(meant, MessageTooLargeError)
        assert str(meant).startswith("message larger than max (9 vs. 4): set RAY_SERVE_")
    for error in (rpc(full, "too many pings"), rpc(StatusCode.UNKNOWN, large)):
        assert isinstance(translated(error), ReplicaLostError)
    own = RuntimeError(large)
    assert translated(own) is own


def test_messages_are_as_large_as_they_come(cluster: Cluster) -> None:
    import httpx
    from ray import serve

    from asyncgen_apps.ray_serve.calls import RayCalls

    cluster.wait("engine", 2)
    engine, board = (serve.get_deployment_handle(name, "default") for name in ("engine", "board"))
    ids = [1] * (USUAL // 2 + 1)
    texts = [f"text {number}" for number in range(5000)]

    async def through_handles() -> tuple[int, Any]:
        calls = RayCalls(engine, board)
        return await calls.ask("count", ids, {}), await calls.ask("embed", texts, {})

    assert len(pickle.dumps(ids)) > USUAL
    count, found = asyncio.run(through_handles())
    assert count == len(ids)
    assert len(found) == len(texts) and len(pickle.dumps(found)) > USUAL
    with httpx.Client(base_url=cluster.url, timeout=300) as client:
        body = {"model": "demo", "input": texts[:2048]}
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200 and len(answer.content) > USUAL
        assert len(answer.json()["data"]) == 2048
        body = {"model": "demo", "input": "long " * (USUAL // 5 + 1)}
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_too_large_message_fails_alone_and_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx
    from ray import serve

    (name,) = MESSAGE_ENV
    monkeypatch.setenv(name, str(64 * 1024))
    cluster.deploy(replicas=1, ingresses=1)
    try:
        cluster.wait("engine", 1)
        cluster.wait("ingress", 1)
        engine = serve.get_deployment_handle("engine", "default")

        def embedded() -> int:
            return int(engine.metrics.remote().result().prompt_tokens)

        with httpx.Client(base_url=cluster.url, timeout=60) as client:

            def ask(inputs: list[str]) -> tuple[int, int]:
                before = embedded()
                body = {"model": "demo", "input": inputs}
                answer = client.post("/v1/embeddings", json=body)
                assert "larger than max" not in answer.text
                return answer.status_code, embedded() - before

            status, tokens = ask(["one"])
            assert status == 200 and tokens > 0
            assert ask(["one"] * 200) == (500, 200 * tokens)  # the answer cannot cross
            assert ask(["one" * 40_000]) == (500, 0)  # the request cannot
            assert ask(["one"]) == (200, tokens)
            long = {"model": "demo", "prompt": "one" * 40_000, "stream": True}
            assert client.post("/v1/completions", json=long).status_code == 500
    finally:
        monkeypatch.undo()
        cluster.deploy()
        cluster.wait("engine", 2)
