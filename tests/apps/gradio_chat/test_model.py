"""What the chat uses is what an ``AsyncLLM`` has."""

from __future__ import annotations

from asyncgen import AsyncLLM, TextStream
from asyncgen_apps.gradio_chat.model import ChatModel, ChatStream


def test_the_library_has_what_the_chat_uses() -> None:
    for protocol, ours in ((ChatModel, AsyncLLM), (ChatStream, TextStream)):
        names = {name for name in vars(protocol) if not name.startswith("_")}
        assert names <= set(dir(ours))


def test_an_engine_is_a_model() -> None:
    model: ChatModel = AsyncLLM("demo")  # the types are checked by mypy
    assert hasattr(model, "stream")
