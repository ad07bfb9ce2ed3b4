"""schemathesis sends whatever the server's own document allows, and what it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.apps.openai_http.test_fuzz import FEW, MANY, bounded

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

pytestmark = pytest.mark.clients
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def plausible(body: Any) -> Any:
    """Leave few enough fields that nothing may be wrong with them: most exclude each other."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    needed = {name: body.pop(name) for name in ("model", "messages", "prompt") if name in body}
    messages = needed.get("messages")
    for turn in messages if isinstance(messages, list) else []:
        if isinstance(turn, dict) and isinstance(turn.get("role"), str):
            turn["role"] = "user"
            if turn.get("content") is None:
                turn["content"] = "Hello."  # only who calls a tool says nothing
            for name in turn.keys() - {"role", "content"}:
                del turn[name]  # users call no tools, and answer none
    return {**dict(list(body.items())[: len(body) % 4]), **needed}


def send_cases(demo: Running, cases: Any, statuses: set[int], examples: int) -> None:
    """Send what a strategy gives; keep the statuses."""

    @given(case=cases)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=QUIET,
        phases=[Phase.generate],
    )
    def send(case: Any) -> None:
        case.body = bounded(plausible(case.body))
        got = case.call(base_url=f"http://127.0.0.1:{demo.port}", timeout=60)
        assert got.status_code < 500, got.content
        statuses.add(got.status_code)

    send()


@pytest.mark.parametrize("examples", [pytest.param(15, marks=FEW), pytest.param(1000, marks=MANY)])
def test_the_document_holds(demo: Running, examples: int) -> None:
    schema = schemathesis.openapi.from_dict(json.loads(demo.request("GET", "/openapi.json").body))
    statuses: dict[str, set[int]] = {}
    modes = schemathesis.GenerationMode
    for result in schema.get_all_operations():
        operation = result.ok()
        # A route without parameters has nothing to get wrong.
        wrong = [modes.NEGATIVE] if operation.method == "post" else []
        for mode in (modes.POSITIVE, *wrong):
            cases = operation.as_strategy(generation_mode=mode)
            seen = statuses.setdefault(operation.label, set())
            send_cases(demo, cases, seen, examples)
    assert {200, 400} <= statuses["POST /v1/chat/completions"]
    assert {200, 400} <= statuses["POST /v1/completions"]
    assert demo.llm.is_healthy
    demo.wait_idle()
