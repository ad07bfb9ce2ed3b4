"""Rows that each layer gets of a token beside the stream, from a table of its own.

Gemma 3n and 4 look every token up a second time, in a table with a short row for each layer, and
mix these rows with a product of the embedding (Google, "Gemma 3n model overview", on PLE).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from asyncgen.models.kernels.linear import Embedding, Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from asyncgen.families.config import ModelConfig


class LayerInputs(Prepared):
    """The rows of all layers, L layers of P features.

    Attributes:
        table: ``[rows, L * P]``.
        rows: Rows of the table, if there are fewer than ids; else ``None``.
        projection: Product of the embeddings, ``[L * P, E]``.
        norm: Norm of each layer's part of that product.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised, on the current default device."""
        super().__init__()
        assert config.stream.layer_inputs is not None
        rows, self.width = config.stream.layer_inputs
        # Ids without a row of their own have the first.
        self.rows = rows if rows < config.vocab_size else None
        features = config.num_hidden_layers * self.width
        self.table = Embedding(rows, features, dtype=dtype)
        self.projection = Linear(config.hidden_size, features, dtype=dtype)
        self.norm = Norm(self.width, config.rms_norm_eps, config.layer_plans[0].norm, dtype=dtype)

    def prepare(self) -> None:
        """Gather what `mix` uses; call it again after weights were replaced or moved."""
        self._plan = (self.projection.ready().product, self.norm.scaler.into)

    def lookup(self, ids: Tensor) -> Tensor:
        """Look ids ``[N]`` up in the table, ``[N, L * P]``."""
        if self.rows is not None:
            ids = ids.masked_fill(ids >= self.rows, 0)
        return self.table.lookup(ids).mul_(math.sqrt(self.width))

    def mix(self, rows: Tensor, stream: Tensor) -> Any:
        """Compute the inputs of each layer, ``[N, P]`` each.

        Args:
            rows: Result of `lookup`.
            stream: The embeddings, scaled, ``[N, E]``.
        """
        project, normalise = self._ready()
        projected = project(stream).mul_(stream.shape[1] ** -0.5)
        projected = projected.view(-1, self.width)  # [N * L, P]
        normed = normalise(projected, projected)
        mixed = normed.add_(rows.reshape(normed.shape)).mul_(math.sqrt(0.5))
        return mixed.view(len(rows), -1, self.width).transpose(0, 1).contiguous().unbind(0)


def input_rules(config: ModelConfig) -> list[WeightRule]:
    """Give the rules of its parameters."""
    assert config.stream.layer_inputs is not None
    names, (rows, width) = config.names, config.stream.layer_inputs
    features = config.num_hidden_layers * width
    target = "layer_inputs"
    return [
        *module_rules(f"{target}.table", [names["input_table"]], [rows], features),
        *module_rules(
            f"{target}.projection", [names["input_projection"]], [features], config.hidden_size
        ),
        *module_rules(f"{target}.norm", [names["input_row_norm"]], [width]),
    ]
