"""Read, write, replace and resize the token embeddings of a model in use.

Weights are laid out for speed, and a tied head computes with a copy of the table. The modules here
hand out the weight that computes; from then on the head reads it in place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.models.kernels.linear import Embedding, Linear
from asyncgen.models.kernels.parameter import Weight

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.models.decoder import DecoderLM


class _View(nn.Module):
    """A weight ``[V, E]`` of a model, as the module that users expect to have it."""

    def __init__(self, core: DecoderLM, before_opening: Callable[[], None]) -> None:
        """View a model; ``before_opening`` may refuse."""
        super().__init__()
        # A tuple, so that its weights do not become parameters of this module as well.
        self._held = (core, before_opening)

    def _open(self) -> DecoderLM:
        core, before_opening = self._held
        if not core.computes_in_place():
            before_opening()
            core.compute_in_place()
        return core

    @property
    def core(self) -> DecoderLM:
        """The model."""
        return self._held[0]


class InputEmbeddings(_View):
    """Embedding table of a model. A call takes ids ``[...]`` and gives ``[..., E]``.

    What it gives is what a model takes as ``inputs_embeds``: families such as Gemma scale the rows
    of their table, and here the result is scaled. ``weight`` is the table itself.
    """

    @property
    def weight(self) -> nn.Parameter:
        """The table ``[V, E]``, in the model's dtype; writes to it take effect at once.

        A tied head reads the table itself from now on, which may be slower than its own copy.
        """
        return self._open().embed_tokens.weight

    @property
    def num_embeddings(self) -> int:
        """Rows, V."""
        return self.core.config.vocab_size

    @property
    def embedding_dim(self) -> int:
        """Columns, E."""
        return self.core.config.hidden_size

    @torch.no_grad()
    def forward(self, input_ids: Tensor) -> Tensor:
        """Look up ids of any shape ``[...]``, as scaled rows ``[..., E]``."""
        return self.core.look_up(input_ids.to(self.core.device, torch.int64))


class OutputEmbeddings(_View):
    """Output head of a model. A call takes states ``[..., E]`` and gives ``[..., V]``."""

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias ``[V]``, if the head has one; writes to it take effect."""
        has_bias = self.core.lm_head.bias is not None
        return self._open().lm_head.bias if has_bias else None

    @property
    def weight(self) -> nn.Parameter:
        """The weight ``[V, E]``, of a tied head the embedding table; writes to it take effect.

        The head reads it in place from now on, which may be slower than its own layout.
        """
        core = self._open()
        tied = core.config.tie_word_embeddings
        weight = core.embed_tokens.weight if tied else core.lm_head.weight
        assert weight is not None
        return weight

    @property
    def out_features(self) -> int:
        """Outputs, V."""
        return self.core.config.vocab_size

    @property
    def in_features(self) -> int:
        """Inputs, E."""
        return self.core.config.hidden_size

    @torch.no_grad()
    def forward(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[..., V]`` of normalised hidden states ``[..., E]``."""
        return self.core.lm_head(hidden)


def refuse_embeddings(core: object, name: str, value: object) -> None:
    """Refuse embeddings in the place of ids if layers read the ids.

    Raises:
        InvalidRequestError: They do.
    """
    if getattr(core, "reads_ids", False):
        allowed = "layers of this model look tokens up in tables of their own; give `input_ids`"
        raise InvalidRequestError(name, type(value).__name__, allowed)


def check_table(module: object, core: DecoderLM) -> Tensor:
    """Return the table of a module that is to become a model's.

    Args:
        module: Given by the user.
        core: The model.

    Returns:
        ``[V, E]``.

    Raises:
        InvalidRequestError: The module has no such table, computes more than rows of it, or its V
            does not fit an untied head.
    """
    config, weight = core.config, getattr(module, "weight", None)
    width, size = config.hidden_size, config.vocab_size
    name = type(module).__name__
    is_plain = getattr(type(module), "forward", None) in (
        nn.Embedding.forward,
        InputEmbeddings.forward,
    )
    if not is_plain or getattr(module, "max_norm", None) is not None:
        allowed = "give an `nn.Embedding` without `max_norm`: rows are looked up as they are"
        raise InvalidRequestError("value", name, allowed)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[1] != width:
        raise InvalidRequestError("value", name, f"its weight must be [V, {width}]")
    if len(weight) != size and not config.tie_word_embeddings:
        allowed = f"the head has {size} rows; call `resize_token_embeddings` first"
        raise InvalidRequestError("value", InWords(f"{name} of {len(weight)} rows"), allowed)
    return weight.detach()


def scale_of(module: nn.Module) -> float:
    """Return the factor on the rows that a module gives, which those of `check_table` are."""
    return module.core.row_scale if isinstance(module, InputEmbeddings) else 1.0


def check_scale(core: DecoderLM) -> None:
    """Refuse to store a table whose rows are scaled otherwise than files of the family say.

    Raises:
        InvalidRequestError: They are.
    """
    config = core.config
    stored = config.stream.embedding_scale if config.stream.scales_rows else 1.0
    if core.row_scale != stored:
        allowed = (
            f"a {config.model_type} file means rows times {stored:g}; instead of setting the "
            "table, write such rows to `get_input_embeddings().weight`"
        )
        raise InvalidRequestError(
            "set_input_embeddings", InWords(f"rows times {core.row_scale:g}"), allowed
        )


def replace_table(
    core: DecoderLM,
    table: Tensor,
    head: Tensor | None = None,
    *,
    has_mean: bool = False,
    row_scale: float | None = None,
) -> None:
    """Give a model another embedding table, and an untied head of as many rows.

    Args:
        core: The model; what it prepared of the old ones is made anew.
        table: ``[V, E]``, of any V; shared if dtype and device are the model's.
        head: ``[V, E]`` of an untied head; ``None`` keeps the old one.
        has_mean: True if new entries of a head's bias are the mean of the old ones.
        row_scale: Factor on the rows where they are looked up; ``None`` keeps the old one.

    Raises:
        InvalidRequestError: V changes, and layers look ids up in tables of their own.
    """
    config, size, bias = core.config, len(table), core.lm_head.bias
    if core.reads_ids and size != config.vocab_size:
        allowed = f"layers of this model have tables of {config.vocab_size} rows of their own"
        raise InvalidRequestError("vocab_size", size, allowed)
    core.embed_tokens.unpack()
    core.embed_tokens.weight = Weight(table.to(core.device, core.dtype))
    core.embed_tokens.prepare()
    core.config = replace(config, vocab_size=size, raw={**config.raw, "vocab_size": size})
    if config.tie_word_embeddings:
        core.lm_head.out_features, core.lm_head.kernel = size, None
    elif head is not None:
        in_place = core.lm_head.is_in_place
        core.lm_head = Linear(config.hidden_size, size, dtype=core.dtype)
        core.lm_head.weight = Weight(head.to(core.device, core.dtype))
        core.lm_head.is_in_place = in_place
    if bias is not None:
        core.lm_head.bias = Weight(_resized_bias(bias, size, has_mean=has_mean))
    if row_scale is not None:
        core.row_scale = row_scale
    core.prepare()


@torch.no_grad()
def resized(weight: Tensor, size: int, *, std: float | None) -> Tensor:
    """Copy a weight with more or fewer rows; the first ones are kept.

    Args:
        weight: ``[V, E]``.
        size: Number of rows wanted.
        std: Standard deviation of new rows, drawn around zero by torch's generator; ``None``: each
            is the mean of the old ones.

    Returns:
        ``[size, E]``, a new tensor.
    """
    kept = weight[:size]
    rows = weight.new_empty(size - len(kept), weight.shape[1])
    if std is None:
        rows.copy_(weight.float().mean(dim=0))
    else:
        rows.normal_(std=std)
    return torch.cat((kept, rows))


def count_parameters(core: DecoderLM, *, exclude_embeddings: bool = False) -> int:
    """Count the numbers of a model's parameters; tied ones count once.

    Args:
        core: The model.
        exclude_embeddings: True to leave tables out: of tokens, of positions, of biases.
    """
    total = 0
    for rule in core.weight_map():
        owner: Any = core.get_submodule(rule.target.rpartition(".")[0])
        if not (exclude_embeddings and isinstance(owner, Embedding)):
            total += sum(map(math.prod, rule.shapes))
    return total


def _resized_bias(bias: Tensor, size: int, *, has_mean: bool) -> Tensor:
    """Copy a bias ``[V]`` with more or fewer entries; new ones are the mean of the old ones, or
    zero."""
    kept = bias[:size]
    new = bias.new_zeros(size - len(kept))
    return torch.cat((kept, new + bias.float().mean().to(bias.dtype) if has_mean else new))
