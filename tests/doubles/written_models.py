"""Models that a user writes: plain modules of torch with `GenerationMixin` of either library."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["VOCABULARY", "make"]

VOCABULARY, WIDTH, HEADS, LAYERS = 29, 16, 2, 2


class Attention(nn.Module):
    """Causal attention that reads and writes a documented cache."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        batch, length, _ = hidden.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.qkv(hidden).chunk(3, dim=-1)
        )
        if cache is not None:
            key, value = cache.update(key, value, self.index)
        total = key.shape[2]
        seen = torch.ones(length, total, dtype=torch.bool).tril(total - length)
        if mask is not None:
            seen = seen & mask[:, None, None, :total].bool()
        seen = seen | torch.eye(length, total, dtype=torch.bool).roll(total - length, 1)
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.out(found.transpose(1, 2).reshape(batch, length, WIDTH))


class Network(nn.Module):
    """Two layers of attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Attention(index) for index in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def logits(self, ids: Tensor, places: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        hidden = self.table(ids) + self.places(places)
        for layer in self.layers:
            hidden = hidden + layer(hidden, mask, cache)
        return 4 * self.head(hidden)


def places_of(mask: Tensor | None, ids: Tensor, past: int) -> Tensor:
    """Count positions of the last ids from the mask, or from what is in the cache."""
    if mask is None:
        return torch.arange(past, past + ids.shape[1])[None].expand(len(ids), -1)
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]


def make(library: Any, kind: str, seed: int = 0) -> Any:
    """Make a model of a kind, with random weights.

    Args:
        library: `asyncgen` or `transformers`.
        kind: ``"plain"`` writes ``forward`` alone, ``"strict"`` without further keywords;
            ``"hooked"`` also ``prepare_inputs_for_generation``; ``"whole"`` reads everything in
            every step and knows no cache; ``"own"`` returns a cache of its own.
        seed: Of the weights.
    """
    bases = (library.GenerationMixin, Network)
    torch.manual_seed(seed)
    model = type(kind.title(), bases, dict(KINDS[kind]))()
    outputs = importlib.import_module(f"{library.__name__}.modeling_outputs")
    model.output = outputs.CausalLMOutputWithPast
    model.config = _config(library)
    model.generation_config = library.GenerationConfig(eos_token_id=3, pad_token_id=0)
    for name, value in NEEDED.items():  # here they have defaults
        setattr(model, name, value)
    model.requires_grad_(True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model


NEEDED = {
    "main_input_name": "input_ids",
    "device": torch.device("cpu"),
    "dtype": torch.float32,
    "_supports_default_dynamic_cache": lambda: True,
    "_can_compile_fullgraph": False,
    "can_generate": lambda: True,
    "is_remote_code": lambda: False,
    "_is_stateful": False,
    "get_experts_implementation": lambda: {},
}
"""Attributes without which a plain module does not work with the reference."""


def _config(library: Any) -> Any:
    values = {"vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, "hidden_size": WIDTH}
    if library.__name__ == "transformers":
        return library.PreTrainedConfig(**values, num_attention_heads=HEADS)
    return SimpleNamespace(**values)


def _forward(
    self: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = None,
    **kwargs: Any,
) -> Any:
    past = 0 if past_key_values is None else past_key_values.get_seq_length()
    places = places_of(attention_mask, input_ids, past)
    logits = self.logits(input_ids, places, attention_mask, past_key_values)
    return self.output(logits=logits, past_key_values=past_key_values)


def _forward_strict(
    self: Any, input_ids: Tensor, attention_mask: Tensor, past_key_values: Any = None
) -> Any:
    return _forward(self, input_ids, attention_mask, past_key_values)


def _hook(
    self: Any,
    input_ids: Tensor,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    if past_key_values is not None:
        input_ids = input_ids[:, past_key_values.get_seq_length() :]
    self.asked = getattr(self, "asked", 0) + 1
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "past_key_values": past_key_values,
    }


def _forward_whole(self: Any, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any) -> Any:
    places = places_of(attention_mask, input_ids, 0)
    return self.output(logits=self.logits(input_ids, places, attention_mask, None))


def _hook_whole(
    self: Any, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any
) -> dict[str, Any]:
    return {"input_ids": input_ids, "attention_mask": attention_mask}


class Sums:
    """Cache of a model of one sum: rows of states."""

    def __init__(self, states: Tensor, length: int) -> None:
        self.states = states
        self.length = length

    def get_seq_length(self) -> int:
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.states = self.states.index_select(0, beam_idx)


def _forward_sums(self: Any, input_ids: Tensor, past_key_values: Any = None, **kwargs: Any) -> Any:
    """Sum the embeddings of all tokens so far, faded."""
    past = past_key_values if isinstance(past_key_values, Sums) else None
    state = torch.zeros(len(input_ids), WIDTH) if past is None else past.states
    found = []
    for token in input_ids.T:
        state = 0.7 * state + self.table(token)
        found.append(state)
    length = input_ids.shape[1] + (0 if past is None else past.length)
    logits = 4 * self.head(torch.stack(found, dim=1))
    return self.output(logits=logits, past_key_values=Sums(state, length))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"forward": _forward},
    "strict": {"forward": _forward_strict},
    "hooked": {"forward": _forward, "prepare_inputs_for_generation": _hook},
    "whole": {"forward": _forward_whole, "prepare_inputs_for_generation": _hook_whole},
    "own": {"forward": _forward_sums, "prepare_inputs_for_generation": _hook},
}
