"""Serve applications: `AsyncLLM`, `LLM` and their streams."""
