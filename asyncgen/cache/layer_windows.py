"""Number and windows of the layers of a model, read from its configuration."""

from __future__ import annotations

from typing import Any


def layer_windows(config: Any) -> list[int | None]:
    """Read the window of each layer; ``None`` for a layer that sees everything.

    Args:
        config: The configuration of a model of this library; or any object with
            ``num_hidden_layers`` and, where there are windows, ``sliding_window`` or
            ``attention_chunk_size`` and perhaps ``layer_types``, as in a ``config.json``.
    """
    if hasattr(config, "window"):
        return [config.window(layer) for layer in range(config.num_hidden_layers)]
    sliding = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [chunk if sliding is None else sliding] * config.num_hidden_layers
    sizes = {"sliding_attention": sliding, "chunked_attention": chunk}
    return [sizes.get(kind) for kind in kinds]
