"""``gradio.load_chat``, Gradio's own client of such servers, as its documentation starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

pytestmark = pytest.mark.clients

LOAD_CHAT = """
import json, sys
import gradio
from gradio_client import Client
chat = gradio.load_chat(sys.argv[1], model="demo", token="none", api_name="chat")
_, local, _ = chat.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
client = Client(local, verbose=False)
job = client.submit({"text": "Tell me a story.", "files": []}, api_name="/chat")
job.result(timeout=120)
print(json.dumps(job.outputs()))
"""


def test_load_chat(demo: Running) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOAD_CHAT, f"{demo.url}/"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=150,
        env={**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"},
    )
    grown = json.loads(ran.stdout)
    assert len(grown) > 1, "it grows"
    assert grown[-1].startswith(grown[0])
    demo.wait_idle()
