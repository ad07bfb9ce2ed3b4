"""A chat in the browser over an ``AsyncLLM``; ``build_chat(llm)`` is a page to launch or mount."""

from asyncgen_apps.gradio_chat.chat import build_chat
from asyncgen_apps.gradio_chat.theme import launch_options

__all__ = ["build_chat", "launch_options"]
