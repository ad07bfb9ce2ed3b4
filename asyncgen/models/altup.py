"""AltUp: several streams side by side; each layer computes one and corrects the others (Gemma 3n).

Baykal and others, "Alternating Updates for Efficient Transformers" (2023), section 3. Before a
layer each stream is predicted as a mixture of all streams. The layer computes the first one. The
difference between its result and the prediction is added to each stream with a coefficient. Beside
the attention a layer has a branch of low rank (Menghani, Kumar and Kumar, "LAuReL", 2024, section
2).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asyncgen.models.kernels.experts import Exact
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.varied_layer import VariedLayer, varied_rules
from asyncgen.models.weight_map import WeightRule, module_rules, tensor_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.families.config import ModelConfig
    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.varied_layer import VariedSpace

_LEAST_SQUARE = 1e-5
"""Lower bound of a mean square."""


class Streams(Prepared):
    """Products that make the other streams of the first one, and merge all of them at the end.

    Attributes:
        spread: A product for each other stream, ``[E, E]``.
        gather: The same for the end.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised, on the current default device."""
        super().__init__()
        count, hidden = config.stream.streams - 1, config.hidden_size
        self.spread = nn.ModuleList(Linear(hidden, hidden, dtype=dtype) for _ in range(count))
        self.gather = nn.ModuleList(Linear(hidden, hidden, dtype=dtype) for _ in range(count))

    def prepare(self) -> None:
        """Gather the products; call it again after weights were replaced or moved."""
        self._plan = tuple(
            [each.ready().product for each in part]  # type: ignore[operator]
            for part in (self.spread, self.gather)
        )

    def begin(self, stream: Tensor) -> Tensor:
        """Make the other streams ``[S - 1, N, E]`` of embeddings ``[N, E]``."""
        products, _ = self._ready()
        return torch.stack([_as_large_as(stream, each(stream)) for each in products])

    def end(self, stream: Tensor, others: Tensor) -> None:
        """Replace the stream ``[N, E]`` by the mean of all streams, in place."""
        _, products = self._ready()
        found = [
            _as_large_as(stream, each(other)) for each, other in zip(products, others, strict=True)
        ]
        stream.copy_(torch.stack([stream, *found]).mean(0))


def _as_large_as(like: Tensor, rows: Tensor) -> Tensor:
    """Scale rows to the root mean square of other rows."""
    wanted = like.float().square().mean(-1, keepdim=True)
    square = rows.float().square().mean(-1, keepdim=True).clamp(min=_LEAST_SQUARE)
    return rows * (wanted.sqrt() / square.sqrt()).to(rows.dtype)


class AltUpLayer(VariedLayer):
    """Decoder layer of a model with several streams."""

    def __init__(
        self, config: ModelConfig, index: int, *, rope: int | None, dtype: torch.dtype
    ) -> None:
        """Make the parameters; arguments are those of `DecoderLayer`."""
        super().__init__(config, index, rope=rope, dtype=dtype)
        hidden, count, rank = config.hidden_size, config.stream.streams, self.varied.laurel_rank
        self.count = count
        self.modality_norm = Norm(hidden, self.eps, self.plan.norm, dtype=dtype)
        self.modality = Linear(hidden, count, dtype=dtype)
        self.predict = Linear(count, count * count, dtype=dtype)
        self.correct = Linear(count, count, dtype=dtype)
        self.output_scale = Exact(hidden)
        self.laurel_left = Linear(hidden, rank, dtype=dtype)
        self.laurel_right = Linear(rank, hidden, dtype=dtype)
        self.laurel_norm = Norm(hidden, self.eps, self.plan.norm, dtype=dtype)

    def run(
        self,
        x: Tensor,
        placed: Sequence[tuple[Tensor, ...]],
        attention: AttentionContext,
        space: VariedSpace,
    ) -> None:
        """Compute the stream ``x`` ``[N, E]`` and the others in place, as `VariedLayer` does."""
        norms, _, _, product, _ = self._ready()
        assert space.others is not None
        streams = torch.cat((x[None], space.others))  # [S, N, E]
        mixing = product["predict"](self._modalities(x)).view(-1, self.count, self.count)
        streams = streams + torch.einsum("nij,jne->ine", mixing, streams)
        predicted = streams[0].contiguous()
        normed = norms["input_norm"](predicted, torch.empty_like(x))
        laurel = product["laurel_right"](product["laurel_left"](normed))
        laurel = norms["laurel_norm"](laurel, laurel).add_(normed)
        found = self._attended(normed, placed, attention, space).add_(predicted)
        found = found.add_(laurel).mul_(math.sqrt(0.5))
        found = found.add_(self._fed(found))
        coefficients = product["correct"](self._modalities(found)) + 1  # [N, S]
        streams.add_((found - predicted)[None] * coefficients.t()[:, :, None])
        x.copy_(streams[0])
        scaled = x * self.output_scale.weight.to(x.dtype) if self.varied.scales_output else x
        space.others = streams[1:].add_(self._taken(scaled, space))

    def _modalities(self, rows: Tensor) -> Tensor:
        """Compute the inputs of the coefficients, ``[N, S]``."""
        norms, _, _, product, _ = self._ready()
        normed = norms["modality_norm"](rows, torch.empty_like(rows)).mul_(1 / rows.shape[1])
        found: Tensor = product["modality"](normed)
        return found.tanh_()


def stream_rules(config: ModelConfig) -> list[WeightRule]:
    """Give the rules of `Streams`."""
    hidden = [config.hidden_size]
    return [
        rule
        for ours in ("spread", "gather")
        for number in range(config.stream.streams - 1)
        for rule in module_rules(
            f"streams.{ours}.{number}", [f"{config.names[ours]}.{number}"], hidden, hidden[0]
        )
    ]


def altup_rules(config: ModelConfig, index: int) -> list[WeightRule]:
    """Give the rules of a layer.

    Args:
        config: Description of the network.
        index: Number of the layer.
    """
    varied, hidden, count = (
        config.layer_plans[index].varied,
        config.hidden_size,
        config.stream.streams,
    )
    assert varied is not None
    sizes: dict[str, tuple[int, int | None]] = {
        "modality_norm": (hidden, None),
        "modality": (count, hidden),
        "predict": (count * count, count),
        "correct": (count, count),
        "laurel_left": (varied.laurel_rank, hidden),
        "laurel_right": (hidden, varied.laurel_rank),
        "laurel_norm": (hidden, None),
    }
    before, target = f"{config.names['layers']}.{index}", f"layers.{index}"
    rules = varied_rules(config, index)
    for ours, (rows, columns) in sizes.items():
        stored = f"{before}.{config.names[ours]}"
        rules += module_rules(f"{target}.{ours}", [stored], [rows], columns)
    stored = f"{before}.{config.names['output_scale']}"
    return [*rules, tensor_rule(f"{target}.output_scale", stored, hidden)]
