"""Sample from the trained network in plain torch: many conversations at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from asyncgen_apps.demo_model.chat import Message
from asyncgen_apps.demo_model.corpus import render, text_of
from asyncgen_apps.demo_model.export import END_ID, PAD_ID, TEMPERATURE, TOP_P
from asyncgen_apps.demo_model.network import KVCache, Network

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

Answer = Callable[[list[Message]], str]
"""Function that answers one conversation."""
AnswerAll = Callable[[list[list[Message]]], list[str]]
"""Function that answers several conversations."""

CUT_OFF = " [cut off]"
"""Ends an answer that the model did not end by itself."""


def one_by_one(answer: Answer) -> AnswerAll:
    """Make a function that answers several conversations in turn.

    Args:
        answer: Answers one conversation.

    Returns:
        A function that answers them in turn.
    """
    return lambda conversations: [answer(messages) for messages in conversations]


class CachedBatch:
    """Batch of sequences, padded on the left, with their keys and values."""

    def __init__(self, network: Network, padding: Tensor) -> None:
        """Begin an empty batch.

        Args:
            network: The network.
            padding: Number of padding tokens at the beginning of each row.
        """
        self.network = network
        self.padding = padding[:, None]
        self.length = 0
        self.past = [KVCache() for _ in network.model.layers]

    def forward(self, ids: Tensor) -> Tensor:
        """Score the token after the last one of every row.

        Args:
            ids: New token ids of shape (rows, time).

        Returns:
            Logits of shape (rows, vocabulary).
        """
        body, time = self.network.model, ids.shape[1]
        queries = torch.arange(self.length, self.length + time, dtype=torch.int64, device="cpu")
        keys = torch.arange(self.length + time, dtype=torch.int64, device="cpu")
        causal = keys[None, :] <= queries[:, None]
        real = keys[None, None, :] >= self.padding[:, :, None]
        mask = (causal[None] & real) | (keys[None, :] == queries[:, None])[None]
        positions = (queries[None, :] - self.padding).clamp(min=0)
        cos, sin = body.cos[positions][:, None], body.sin[positions][:, None]
        x = body.embed_tokens(ids)
        for layer, past in zip(body.layers, self.past, strict=True):
            x = layer(x, cos, sin, past, mask[:, None])
        self.length += time
        return F.linear(body.norm(x[:, -1]), body.embed_tokens.weight)


def pick(logits: Tensor, temperature: float, top_p: float, chance: torch.Generator) -> Tensor:
    """Choose the next token of every row.

    Args:
        logits: Scores of shape (rows, vocabulary).
        temperature: 0 takes the best token; otherwise scores are divided by it.
        top_p: Only the most probable tokens that together reach this much are drawn from.
        chance: Source of random draws.

    Returns:
        One token id for each row.
    """
    if temperature == 0:
        return logits.argmax(-1)
    weights, order = torch.softmax(logits / temperature, dim=-1).sort(descending=True)
    weights[weights.cumsum(-1) - weights > top_p] = 0.0
    drawn = torch.multinomial(weights, 1, generator=chance)
    return order.gather(-1, drawn)[:, 0]


@torch.inference_mode()
def complete(
    network: Network,
    prompts: list[list[int]],
    chance: torch.Generator,
    temperature: float = TEMPERATURE,
    top_p: float = TOP_P,
    limit: int = 400,
) -> list[list[int]]:
    """Continue prompts until the model ends each by itself.

    Args:
        network: The network.
        prompts: Token ids.
        chance: Source of random draws.
        temperature: See pick.
        top_p: See pick.
        limit: Most tokens to draw for each prompt.

    Returns:
        The new ids; the last one is the end token unless the limit was reached.
    """
    longest = max(map(len, prompts))
    padding = torch.tensor(
        [longest - len(prompt) for prompt in prompts], dtype=torch.int64, device="cpu"
    )
    padded = [[PAD_ID] * (longest - len(prompt)) + prompt for prompt in prompts]
    batch = CachedBatch(network, padding)
    drawn: list[list[int]] = [[] for _ in prompts]
    fresh = torch.tensor(padded, dtype=torch.int64, device="cpu")
    for _ in range(min(limit, network.config.context - longest)):
        chosen = pick(batch.forward(fresh), temperature, top_p, chance)
        for ids, token in zip(drawn, chosen.tolist(), strict=True):
            if ids[-1:] != [END_ID]:
                ids.append(token)
        if all(ids[-1] == END_ID for ids in drawn):
            break
        fresh = chosen[:, None]
    return drawn


def answerer(
    network: Network,
    tokenizer: Tokenizer,
    seed: int,
    temperature: float = TEMPERATURE,
    rows: int = 50,
) -> AnswerAll:
    """Make the function that answers conversations.

    Args:
        network: The network.
        tokenizer: Its tokenizer.
        seed: Seed of the drawing.
        temperature: 0 for the best token every time.
        rows: Most conversations to answer at once.

    Returns:
        The function. An answer that was cut off says so at its end.
    """
    chance = torch.Generator().manual_seed(seed)

    def answer(conversations: list[list[Message]]) -> list[str]:
        texts = [text_of(render(messages)) + "<|assistant|>" for messages in conversations]
        prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        replies: list[str] = []
        for first in range(0, len(prompts), rows):
            for drawn in complete(network, prompts[first : first + rows], chance, temperature):
                ended = drawn[-1:] == [END_ID]
                replies.append(tokenizer.decode(drawn) + ("" if ended else CUT_OFF))
        return replies

    return answer
