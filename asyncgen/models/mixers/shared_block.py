"""Transformer blocks that layers share, before their mixers (Zamba2).

Glorioso et al., "Zamba: A Compact 7B SSM Hybrid Model" (2024), section 2, and "The Zamba2 Suite"
(2024), section 2. A block reads the stream beside the embeddings. Its result goes through a matrix
of the layer and is added to what the mixer reads, not to the stream. Each use of a block has
adapters of its own: products of low rank that are added to those of the block. They stay apart: as
part of the weights each use would need a block of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from asyncgen.models.activations import ACTIVATIONS
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.mixers.mixer_layer import MixerLayer
from asyncgen.models.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.layer_plan import SharedBlockPlan
    from asyncgen.models.decoder_layer import Workspace
    from asyncgen.models.kernels.products import Kernel
    from asyncgen.models.latent import HeadsMaker


def num_blocks(config: ModelConfig) -> int:
    """Count the blocks of a model."""
    return len(_first_uses(config))


def _first_uses(config: ModelConfig) -> list[int]:
    """List the layer of each block that has it first."""
    shared = (plan.shared_block for plan in config.layer_plans)
    return sorted({each.first for each in shared if each is not None})


def _heads_rows(config: ModelConfig) -> list[int]:
    """List the rows of queries, keys and values."""
    counts = (config.num_attention_heads, *2 * (config.num_key_value_heads,))
    return [count * config.head_dim for count in counts]


class SharedBlock(nn.Module):
    """Weights of a block: attention and a gated feed-forward, without residuals."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised, on the current default device."""
        super().__init__()
        plan, hidden, width = config.layer_plans[-1], config.hidden_size, config.intermediate_size
        rows, eps, bias = _heads_rows(config), config.rms_norm_eps, plan.has_up_bias
        self.input_norm = Norm(2 * hidden, eps, plan.norm, dtype=dtype)
        self.qkv = Linear(2 * hidden, sum(rows), dtype=dtype)
        self.output = Linear(rows[0], hidden, dtype=dtype)
        self.post_norm = Norm(hidden, eps, plan.norm, dtype=dtype)
        self.gate_up = Linear(hidden, 2 * width, bias, dtype=dtype)
        self.down = Linear(width, hidden, bias, dtype=dtype)


class Adapted(Prepared):
    """Product of a block, with the adapters of one use added.

    Attributes:
        parts: Outputs of each adapter.
        low: First products of all adapters side by side, ``[parts * R, in]``.
        high: Last product of each, ``[out, R]``.
    """

    def __init__(
        self, columns: int, parts: Sequence[int], rank: int, *, dtype: torch.dtype
    ) -> None:
        """Make the parameters, uninitialised; of rank 0 there are none."""
        super().__init__()
        self.parts, self.rank = list(parts), rank
        self._shared: tuple[Linear, ...] = ()
        if rank:
            self.low = Linear(columns, rank * len(parts), dtype=dtype)
            self.high = nn.ModuleList(Linear(rank, rows, dtype=dtype) for rows in parts)

    def use(self, shared: Linear) -> None:
        """Take the block's product, in a tuple: it is a part of the block alone."""
        self._shared = (shared,)

    def prepare(self) -> None:
        """Gather the products; call it again after weights were replaced or moved."""
        (shared,) = self._shared
        low, high = None, []
        if self.rank:
            low = self.low.ready().product
            high = [each.ready().product for each in self.high]  # type: ignore[operator]
        self._plan = (shared.ready(), low, high)

    def ready(self) -> HeadsMaker:
        """Return what computes with the weights as they are now."""
        self.prepare()
        return self

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the products of rows ``[N, in]`` to ``out`` (returned), or return a new tensor."""
        shared, low, high = self._plan or self._ready()
        kernel: Kernel = shared
        found = kernel.into(x, out)
        if low is not None:
            lows = torch.split(low(x), self.rank, dim=-1)
            for part, product, rows in zip(
                torch.split(found, self.parts, dim=-1), high, lows, strict=True
            ):
                part.add_(product(rows.contiguous()))
        return found


class SharedBlockLayer(MixerLayer):
    """Layer with a mixer, and before it a block that it shares with other layers.

    Attributes:
        leave: Matrix of the block's result.
    """

    def use(self, blocks: nn.ModuleList) -> None:
        """Take the layer's block, in a tuple: its weights are the model's, not the layer's."""
        assert self.plan.shared_block is not None
        block: Any = blocks[self.plan.shared_block.block]
        self._block: tuple[SharedBlock] = (block,)
        self.qkv.use(block.qkv)
        self.gate_up.use(block.gate_up)

    def prepare(self) -> None:
        """Gather what `run` uses; call it again after weights were replaced or moved."""
        (block,) = self._block
        self.mixer.prepare()
        assert self.input_norm is not None
        self._plan = (
            block.input_norm.scaler.into,
            self._attention(),
            block.output.ready().product,
            block.post_norm.scaler.into,
            self.gate_up.ready().into,
            block.down.ready().product,
            self.leave.ready().product,
            self.input_norm.scaler.into,
        )

    def compiled(self) -> None:
        """Return ``None``: no kernel of ours computes all of it."""

    def run(
        self, x: Tensor, placed: Sequence[tuple[Tensor, ...]], attention: Any, space: Workspace
    ) -> None:
        """Add this layer's output to the stream ``x`` ``[N, E]`` in place, as `MixerLayer` does."""
        pair_norm, attend, output, post_norm, gate_up, down, leave, input_norm = (
            self._plan or self._ready()
        )
        pair = space.pair
        assert pair is not None
        pair[:, : x.shape[1]] = x
        attended = attend(pair_norm(pair, torch.empty_like(pair)), placed, attention, space)
        made = output(attended)
        wide = gate_up(post_norm(made, made), space.wide)
        gate, up = torch.split(wide, self.width, dim=-1)
        entering = leave(down(self.activate(gate).mul(up))).add_(x)
        self._mix(x, input_norm(entering, entering), attention)

    def _make_attention(self, config: ModelConfig, dtype: torch.dtype) -> None:
        """Make what the layer has of its own beside the block and the mixer."""
        shared, hidden, width = self.plan.shared_block, config.hidden_size, config.intermediate_size
        assert shared is not None
        rows, rank = _heads_rows(config), shared.attention_rank
        self.qkv: Any = Adapted(2 * hidden, rows, rank, dtype=dtype)
        self.gate_up: Any = Adapted(hidden, [2 * width], shared.rank, dtype=dtype)
        self.leave = Linear(hidden, hidden, dtype=dtype)
        self.activate = ACTIVATIONS[self.plan.activation]
        self.attention_gate = self.sinks = None


def block_rules(config: ModelConfig) -> list[WeightRule]:
    """Give the rules of all blocks."""
    hidden, width, rows = config.hidden_size, config.intermediate_size, _heads_rows(config)
    sizes: dict[str, tuple[list[int], int | None]] = {
        "input_norm": ([2 * hidden], None),
        "qkv": (rows, 2 * hidden),
        "output": ([hidden], rows[0]),
        "post_norm": ([hidden], None),
        "gate_up": ([2 * width], hidden),
        "down": ([hidden], width),
    }
    rules = []
    for block, first in enumerate(_first_uses(config)):
        names, has_bias = config.names_of(first), config.layer_plans[first].has_up_bias
        for ours, (parts, columns) in sizes.items():
            stored = [
                f"{names['layers']}.{first}.{name}" for name in names[f"block_{ours}"].split()
            ]
            bias = has_bias and ours in ("gate_up", "down")
            rules += module_rules(f"blocks.{block}.{ours}", stored, parts, columns, bias=bias)
    return rules


def unused_adapters(config: ModelConfig) -> tuple[str, ...]:
    """List regular expressions of names of adapters that files have and no layer uses.

    Where each layer has a block of its own, it still has the adapters of all that could share it.
    """
    uses = [
        (index, plan.shared_block)
        for index, plan in enumerate(config.layer_plans)
        if plan.shared_block is not None
    ]
    found: list[str] = []
    for index, plan in uses if len(uses) == num_blocks(config) else []:
        names = config.names_of(index)
        for name in f"{names['block_qkv_adapters']} {names['block_gate_up_adapters']}".split():
            above = re.escape(f"{names['layers']}.{index}.{name}.")
            found.append(rf"^{above}(?!{plan.use}\.)\d+\.")
    return tuple(found)


def shared_layer_rules(config: ModelConfig, index: int, plan: SharedBlockPlan) -> list[WeightRule]:
    """Give the rules of a layer's adapters and of its matrix.

    Args:
        config: Description of the network.
        index: Number of the layer.
        plan: Use of its block.
    """
    names, hidden = config.names_of(index), config.hidden_size
    target = f"layers.{index}"

    def adapters(ours: str, columns: int, parts: Sequence[int], rank: int) -> list[WeightRule]:
        above = f"{names['layers']}.{plan.first}"
        stored = [f"{above}.{name}.{plan.use}" for name in names[f"block_{ours}_adapters"].split()]
        low, every = [f"{name}.0" for name in stored], [rank] * len(parts)
        rules = module_rules(f"{target}.{ours}.low", low, every, columns)
        for number, (name, rows) in enumerate(zip(stored, parts, strict=True)):
            rules += module_rules(f"{target}.{ours}.high.{number}", [f"{name}.1"], [rows], rank)
        return rules

    rules: list[WeightRule] = []
    if plan.attention_rank:
        rules += adapters("qkv", 2 * hidden, _heads_rows(config), plan.attention_rank)
    rules += adapters("gate_up", hidden, [2 * config.intermediate_size], plan.rank)
    stored = [f"{names['layers']}.{index}.{names['leave']}"]
    return rules + module_rules(f"{target}.leave", stored, [hidden], hidden)
