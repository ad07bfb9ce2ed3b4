"""Streams through a cluster of Ray: they outlive the replicas that they run on."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.ray_serve import RaySettings, read_settings
from tests.apps.ray_serve.test_ingress import WORDS, say

if TYPE_CHECKING:
    from tests.apps.ray_serve.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

PROMPT = "Once upon a time"
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.1, "seed": 5},
    {"seed": 3, "frequency_penalty": 0.7, "presence_penalty": 0.2},
    {"seed": 8, "repetition_penalty": 1.3, "top_p": 0.9},
    {"temperature": 0, "stop": ["sea"]},
    {"seed": 9, "n": 3},
    {"seed": 11, "min_p": 0.05},
    {"seed": 12, "logprobs": 2},
    {"temperature": 0, "regex": WORDS},
    {"seed": 4, "temperature": 1.1, "regex": WORDS},
]
LONG = {"max_tokens": 400, "min_tokens": 380}


def body(number: int) -> dict[str, Any]:
    kind = KINDS[number % len(KINDS)]
    return {"model": "demo", "prompt": f"{PROMPT} number {number % 16},", **LONG, **kind}


async def read(client: Any, number: int) -> tuple[dict[int, str], dict[int, str], float]:
    """Texts and finish reasons by choice, and the longest pause in seconds."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    last, pause = time.monotonic(), 0.0
    async with client.stream("POST", "/v1/completions", json={**body(number), "stream": True}) as r:
        assert r.status_code == 200, await r.aread()
        async for line in r.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            last, pause = now, max(pause, now - last)
            message = json.loads(line[6:])
            assert "error" not in message, message
            for choice in message["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + choice["text"]
                if choice["finish_reason"]:
                    reasons[index] = choice["finish_reason"]
    return texts, reasons, pause


async def undisturbed(count: int) -> list[tuple[dict[int, str], dict[int, str]]]:
    """Return the answers of one local engine to the same requests."""
    import httpx

    from asyncgen_apps.openai_http import ServerSettings, create_app

    async with AsyncLLM("demo", num_threads=1) as llm:
        app = create_app(llm, ServerSettings(model_names=("demo",)))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=120
        ) as client:
            return [(await read(client, number))[:2] for number in range(count)]


async def kills(cluster: Cluster, count: int, seed: int = 4) -> list[float]:
    """Kill replicas at random moments, eight streams under way; returns the pauses."""
    import httpx

    expected = await undisturbed(16)
    chooser = random.Random(seed)
    pauses: list[float] = []
    done = 0
    async with httpx.AsyncClient(base_url=cluster.url, timeout=180) as client:
        while done < count:
            # What was killed counts as running until Serve asks how it is: look for its successor.
            await asyncio.to_thread(cluster.wait_processes, "engine", 2)
            await asyncio.to_thread(cluster.wait, "engine", 2)
            numbers = [chooser.randrange(16) for _ in range(8)]
            streams = [asyncio.ensure_future(read(client, number)) for number in numbers]
            await asyncio.sleep(chooser.uniform(0.05, 0.8))
            cluster.kill("engine", chooser)
            done += 1
            for number, told in zip(numbers, await asyncio.gather(*streams), strict=True):
                assert told[:2] == expected[number], (number, body(number))
                pauses.append(told[2])
    return sorted(pauses)


def test_streams_outlive_killed_replicas(cluster: Cluster) -> None:
    pauses = asyncio.run(kills(cluster, 5))
    say("kills of a replica", 5, pauses)
    assert pauses[-1] < 10


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_two_hundred_kills(cluster: Cluster, part: int) -> None:
    pauses = asyncio.run(kills(cluster, 25, seed=part))
    say("kills of a replica", 25, pauses)
    assert pauses[int(0.95 * len(pauses))] < 1.0


def test_ingress_serves_metrics_health_and_errors(cluster: Cluster) -> None:
    import httpx

    cluster.wait("engine", 2)
    with httpx.Client(base_url=cluster.url, timeout=60) as client:
        end = time.monotonic() + 20
        while client.get("/metrics").text.count("vllm:cache_config_info{") < 2:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert client.get("/health").text == "ok\n" and client.get("/ready").text == "ok\n"
        refused = client.post("/v1/completions", json={"model": "demo", "prompt": "a", "top_p": 7})
        assert refused.status_code == 400 and "top_p" in refused.json()["error"]["message"]
        counted = client.post(
            "/v1/embeddings", json={"model": "demo", "input": ["one", "two"]}
        ).json()
        assert len(counted["data"]) == 2


def test_a_client_that_leaves_frees_the_replica(cluster: Cluster) -> None:
    import httpx

    cluster.wait("engine", 2)
    chooser = random.Random(2)
    with httpx.Client(base_url=cluster.url, timeout=60) as client:
        for _ in range(10):
            asked = {**body(0), "max_tokens": 900, "min_tokens": 900, "stream": True}
            with client.stream("POST", "/v1/completions", json=asked) as reply:
                lines = reply.iter_lines()
                for _ in range(chooser.randint(1, 4)):
                    next(lines)
        end = time.monotonic() + 10
        while _running(client.get("/metrics").text):
            assert time.monotonic() < end
            time.sleep(0.1)


def test_the_files_of_the_documentation_are_what_ray_takes() -> None:
    import yaml
    from ray.serve.schema import ServeDeploySchema

    page = Path(__file__).parents[3] / "apps/asyncgen_apps/ray_serve/README.md"
    blocks = page.read_text(encoding="utf-8").split("```yaml\n")[1:]
    files = [one for block in blocks for one in yaml.safe_load_all(block.split("```")[0])]
    settings, ray = files
    assert (settings.get("kind"), ray["kind"]) == (None, "RayService")
    RaySettings(**settings)
    told = ServeDeploySchema.model_validate(yaml.safe_load(ray["spec"]["serveConfigV2"]))
    (application,) = told.applications
    assert application.import_path == "asyncgen_apps.ray_serve:build_app"
    read_settings(application.args)


def _running(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
