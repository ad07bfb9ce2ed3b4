"""The load tester guidellm runs unmodified; ``GUIDELLM`` names one installed elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import asyncgen

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

pytestmark = pytest.mark.clients
REQUESTS, TOKENS = 24, 32


@pytest.mark.timeout(300)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "profile",
    ["kind=synchronous", "kind=concurrent,streams=4", "kind=throughput,max_concurrency=16"],
)
def test_guidellm(demo: Running, tmp_path: Path, route: str, profile: str) -> None:
    program = os.environ.get("GUIDELLM") or f"{sysconfig.get_path('scripts')}/guidellm"
    folder = Path(asyncgen.__file__).parent / "demo"
    out = tmp_path / "out.json"
    options = {
        "backend": f"kind=openai_http,target=http://127.0.0.1:{demo.port},request_format={route}",
        "profile": profile,
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={folder}",
        "data": f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}",
        "output": f"kind=json,path={out}",
    }
    command = [program, "run", "--disable-console"]
    for name, value in options.items():
        command += [f"--{name}", value]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environ
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    assert metrics["output_token_count"]["successful"]["mean"] == TOKENS
    demo.wait_idle()
