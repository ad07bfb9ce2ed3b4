"""Texts that are computed packed, in mixes of chunks and single tokens, and each alone.

Needs no test runner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from asyncgen.cache.layer_groups import plan_groups
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.attention.paged.torch_attention import TorchAttention
from tests.models.build import all_logits, random_config, random_ids, random_model

if TYPE_CHECKING:
    import random

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.models.decoder import DecoderLM

__all__ = ["VARIANTS", "Row", "alone", "make_rows", "model", "num_groups", "packed", "run"]

Attention: TypeAlias = PagedAttention | TorchAttention

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one-head": ("llama", {"num_key_value_heads": 1}),
    "no-groups": ("llama", {"num_key_value_heads": 6}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gpt2": (
        "gpt2",
        {"num_key_value_heads": ..., "head_dim": ..., "scale_attn_by_inverse_layer_idx": True},
    ),
}


@dataclass
class Row:
    """A text on its way through a storage."""

    ids: Tensor
    pages: list[int]
    start: int = 0
    count: int = 0
    more: list[list[int]] = field(default_factory=list)
    slot: int = -1
    turn: int = 0

    @property
    def source(self) -> int:
        """Return the slot that the last step wrote, of two in turn."""
        return 2 * self.slot + (self.turn + 1) % 2 if self.start else -1

    @property
    def target(self) -> int:
        """Return the other slot."""
        return 2 * self.slot + self.turn % 2

    def forget(self, storage: PagedStorage) -> None:
        """Give back the pages that no later token sees, and fill them with NaN."""
        for table, window in zip((self.pages, *self.more), storage.plan.windows, strict=True):
            if window is not None:
                for number in range(max(self.start + 1 - window, 0) // storage.page_size):
                    if table[number] >= 0:
                        storage.data[:, :, table[number]] = torch.nan
                        table[number] = -1


def model(variant: str, dtype: torch.dtype = torch.float32, **more: int) -> DecoderLM:
    model_type, overrides = VARIANTS[variant]
    return random_model(random_config(model_type, **overrides, **more), seed=3, dtype=dtype)


def alone(core: DecoderLM, ids: Tensor) -> Tensor:
    """Logits ``[T, V]`` of a text in a dense cache of its own."""
    return all_logits(core, ids[None])[0]


def block_by_block(plan: Any) -> Any:
    """Return a prepared plan without the one call of all layers."""
    return plan._replace(compiled=None, makes_logits=False)


def packed(core: DecoderLM, attention: Attention, rows: list[Row]) -> list[Tensor]:
    """One step; each row's logits ``[count, V]``."""
    logits = packed_some(core, attention, rows)
    return list(torch.split(logits, [row.count for row in rows]))


def packed_some(
    core: DecoderLM, attention: Attention, rows: list[Row], wanted: slice = slice(None)
) -> Tensor:
    """One step; the logits of some of all rows' tokens, ``[R, V]``."""
    attention.lay_out(rows)
    ids = torch.cat([row.ids[row.start : row.start + row.count] for row in rows])
    positions = torch.cat([torch.arange(row.start, row.start + row.count) for row in rows])
    last = torch.arange(len(ids), device=ids.device)[wanted]
    logits = core.decode_packed(ids, positions.to(ids.device), last, attention)
    for row in rows:
        row.turn += 1
    return logits


def run(
    core: DecoderLM,
    attention: Attention,
    rows: list[Row],
    chooser: random.Random,
    most: int = 9,
    *,
    forgets: bool = False,
) -> list[Tensor]:
    """Bring all rows to their ends in random mixes of chunks and single tokens.

    With ``forgets``, pages behind a window are taken away.
    """
    found: list[list[Tensor]] = [[] for _ in rows]
    while True:
        left = [n for n, row in enumerate(rows) if row.start < len(row.ids)]
        if not left:
            return [torch.cat(pieces) if pieces else torch.empty(0) for pieces in found]
        chosen = chooser.sample(left, chooser.randint(1, len(left)))
        for number in chosen:
            row = rows[number]
            if forgets:
                row.forget(attention.storage)
            room = len(row.ids) - row.start
            row.count = 1 if chooser.random() < 0.6 else chooser.randint(1, min(room, most))
        for number, logits in zip(
            chosen, packed(core, attention, [rows[n] for n in chosen]), strict=True
        ):
            found[number].append(logits)
            rows[number].start += rows[number].count


def num_groups(core: DecoderLM) -> int:
    """Count the block tables of a text."""
    return len(plan_groups(core.config).groups)


def make_rows(
    lengths: list[int], page_size: int, pages: list[int], seed: int = 0, groups: int = 1
) -> list[Row]:
    """Texts of these lengths, each on the next pages of a list, for each group of layers."""
    rows, left = [], iter(pages)
    for number, length in enumerate(lengths):
        need = -(-length // page_size)
        ids = random_ids(1, length, seed + number)[0]
        first, *more = ([next(left) for _ in range(need)] for _ in range(groups))
        rows.append(Row(ids, first, more=more))
    return rows
