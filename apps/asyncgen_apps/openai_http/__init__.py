"""An OpenAI-compatible HTTP server over an ``AsyncLLM``."""

from asyncgen_apps.openai_http.app import create_app
from asyncgen_apps.openai_http.gate import Gate
from asyncgen_apps.openai_http.settings import ServerSettings

__all__ = ["Gate", "ServerSettings", "create_app"]
