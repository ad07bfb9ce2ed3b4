"""The chat in somebody's application, whose lifespan opens the engine; and over a foreign model."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import gradio as gr
import httpx
import pytest
from starlette.datastructures import Headers

import asyncgen
from asyncgen_apps.gradio_chat import build_chat, launch_options
from asyncgen_apps.gradio_chat.chat import _ChatPage
from asyncgen_apps.gradio_chat.fields import FIELDS
from asyncgen_apps.serving.clients import Proxies
from tests.pages import ROOT, examples

pytestmark = pytest.mark.anyio

RECIPES = ROOT / "asyncgen" / "docs" / "recipes.md"
DEMO = Path(asyncgen.__file__).parent / "demo"
SHORT = {"strategy": "greedy", "max_new_tokens": 8}


def recipe() -> ModuleType:
    """Return the application of the recipe, as a module of its own; its client is left out."""
    program = next(each for each in examples(RECIPES) if "FastAPI(lifespan=lifespan)" in each.code)
    module = ModuleType("app")
    exec(program.code.partition("import anyio\n")[0], vars(module))
    return module


async def test_the_lifespan_of_the_recipe_opens_the_engine_of_the_page() -> None:
    own = recipe()
    page = build_chat(own.llm, name="mine")
    app = gr.mount_gradio_app(own.app, page, "/", **launch_options())
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        body = {"data": ["Who are you?", [], SHORT]}
        called = await client.post("/gradio_api/call/chat", json=body)
        events = await client.get(f"/gradio_api/call/chat/{called.json()['event_id']}")
        told = await client.get("/tell", params={"question": "Who are you?"})
        assert own.llm.is_healthy
    *_, event, data = events.text.strip().splitlines()
    assert event == "event: complete" and json.loads(data.removeprefix("data: "))[0]
    assert "event: done" in told.text  # the application's own routes come before the page's
    assert not own.llm.is_healthy


@pytest.mark.gate  # it imports transformers
async def test_a_foreign_model_object_answers_and_tells_no_probabilities() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    request = cast("gr.Request", SimpleNamespace(
        session_hash="a", client=SimpleNamespace(host="127.0.0.1"), headers=Headers()
    ))  # fmt: skip
    async with asyncgen.AsyncLLM(model, tokenizer=tokenizer) as llm:
        page = _ChatPage(llm, "foreign", (), None, Proxies(()))
        values: dict[str, Any] = {**page._defaults(), **SHORT}
        assert values["top_logprobs"] == 5
        asked = page._ask(request, "Who are you?", None, "[]", *(values[f.name] for f in FIELDS))
        frames = [frame async for frame in asked]
        expected = await llm.generate(
            [{"role": "user", "content": "Who are you?"}], max_new_tokens=8, do_sample=False
        )
    chat, heat = frames[-1][0], frames[-1][5]
    assert chat[1]["content"] == expected.text.strip()
    assert "failure" not in str(chat) and "data-token" not in str(heat)
