"""A client for a model behind a WebSocket: reads like ``asyncgen.AsyncLLM``, and comes back."""
