"""Test an ingress without news of its replicas."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest
from starlette.responses import PlainTextResponse

from asyncgen_apps.ray_serve import readiness
from asyncgen_apps.remote import ReplicaLostError

pytestmark = pytest.mark.anyio


class Board:
    """Stands for an engine over others."""

    def __init__(self, found: Any) -> None:
        self._found = found

    async def metrics_by_engine(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        if self._found is None:
            await anyio.sleep_forever()
        return self._found


@pytest.mark.parametrize(
    ("found", "status"),
    [({"a": 1}, 200), ({}, 503), (ReplicaLostError("the board is away"), 503), (None, 503)],
    ids=["there", "none", "lost", "silent"],
)
async def test_it_is_ready_where_a_replica_is_known(
    found: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ASKING_SECONDS", 0.05)
    llm: Any = Board(found)
    app = readiness.ReadinessMiddleware(PlainTextResponse("ok\n"), llm)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://localhost"
    ) as client:
        assert (await client.get("/ready")).status_code == status
        assert (await client.get("/health")).status_code == 200
