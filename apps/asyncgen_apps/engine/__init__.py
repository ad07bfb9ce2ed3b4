"""Describe the engine that the applications need; ``asyncgen.AsyncLLM`` is one."""

from asyncgen_apps.engine.protocol import Engine, EngineStream, EventStream

__all__ = ["Engine", "EngineStream", "EventStream"]
