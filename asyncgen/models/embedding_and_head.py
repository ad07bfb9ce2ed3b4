"""The two ends of a language model: the embedding table and the head.

A tied head is made of the table, and may have a copy of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from asyncgen.models.kernels.linear import Embedding, Linear, half_head_pays
from asyncgen.models.kernels.parameter import Weight, num_writes
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.kernels.products import needs_other_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.families.config import ModelConfig


HEAD_COPY_SHARE: Final = 0.15
"""A tied head gets its own prepared copy if that is at most this share of all weights.

The copy exists beside the table, and loading may take 1.2 times the checkpoint in all.
"""

HEAD_COPY_BYTES: Final = 8 << 20
"""A tied head also gets its own copy if it is no larger than this."""


class EmbeddingAndHead(Prepared):
    """The table and the head of a model.

    Attributes:
        config: Description of the network.
        embed_tokens: The table, ``[V, E]``.
        row_scale: Factor on its rows where they are looked up; a tied head is without.
        lm_head: The head; a tied one has no weight of its own.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        """Make the table, uninitialised, on the current default device.

        Args:
            config: Description of the network.
            dtype: Of the parameters.
        """
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.row_scale = config.stream.embedding_scale if config.stream.scales_rows else 1.0
        # A tuple, so that it does not become a parameter of this module as well.
        self._head_made_of: tuple[nn.Parameter, int] | tuple[()] = ()

    def _make_head(self, dtype: torch.dtype) -> None:
        """Make the head; called after all modules before it."""
        config = self.config
        has_bias = config.stream.has_head_bias
        self.lm_head = Linear(config.hidden_size, config.vocab_size, has_bias, dtype=dtype)
        if config.tie_word_embeddings:
            self.lm_head.weight = None

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, V."""
        return self.config.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that the model computes in."""
        return self.embed_tokens.dtype

    @property
    def device(self) -> torch.device:
        """Device that the model computes on."""
        return self.embed_tokens.device

    def look_up(self, input_ids: Tensor) -> Tensor:
        """Look ids of any shape ``[...]`` up, as ``[..., E]``: what layers take for embeddings."""
        return self._make_lookup()(input_ids.reshape(-1)).view(*input_ids.shape, -1)

    def _make_lookup(self) -> Callable[[Tensor], Tensor]:
        """Make the function that looks up scaled rows ``[N, E]`` of ids ``[N]``."""
        lookup, scale = self.embed_tokens.lookup, self._scale(self.row_scale)
        return lookup if scale == 1 else lambda ids: lookup(ids).mul_(scale)

    def _scale(self, scale: float) -> float:
        """Round a factor on embeddings as its family does."""
        if not self.config.stream.rounds_scale:
            return scale
        return float(torch.tensor(scale, dtype=torch.float32, device="cpu").to(self.dtype))

    def prepare_head(self, *, own_copy: bool) -> None:
        """Make the tied output head from the embedding table as it is now.

        Args:
            own_copy: True to lay out a copy for the fastest kernel; otherwise the head reads the
                table itself, which must stay in place.
        """
        table = self.embed_tokens.weight
        self._head_made_of = table, num_writes(table)
        if self.embed_tokens.kernel is not None:
            self.lm_head.share(self.embed_tokens.kernel)
            return
        self.lm_head.tie(table.detach(), own_copy=own_copy)

    def computes_in_place(self) -> bool:
        """Return whether the head computes with a weight that may be written to."""
        return self.lm_head.is_in_place

    def compute_in_place(self) -> None:
        """Let the head read its weight, or the embedding table, in place, so that it may be written
        to.

        From now on also after `prepare`. A table that stayed in the dtype of its file is converted.
        """
        self.lm_head.compute_in_place()
        self.embed_tokens.unpack()
        self.embed_tokens.weight = Weight(self.embed_tokens.weight.detach().to(self.dtype))
        self.prepare()

    def stays_as_stored(self, kinds: Mapping[str, torch.dtype | None]) -> str | None:
        """Name the table of a tied head if a kernel of the head's own is faster: look-ups read
        little.

        Args:
            kinds: Dtypes in which parameters are stored.
        """
        name, sizes = "embed_tokens.weight", (self.config.vocab_size, self.config.hidden_size)
        is_short = kinds.get(name) in (torch.bfloat16, torch.float16)
        is_copied = needs_other_layout(self.dtype, *sizes) or (is_short and half_head_pays(self))
        return name if self.config.tie_word_embeddings and is_copied else None

    def use_stored(self, stored: Tensor) -> None:
        """Give the head its own copy of the embedding table, and look rows up in another one.

        The copy is laid out for the fastest kernel. From then on the table is read a few rows a
        step, so it may stay in the dtype of the file.

        Args:
            stored: ``[V, E]``, of the same content as the table, or the table itself.
        """
        self.embed_tokens.weight = Weight(stored)
        self.embed_tokens.prepare()
        self.prepare_head(own_copy=True)

    def _tie_head(self) -> None:
        """Let the head compute with the embedding table, on a copy of its own if that is small."""
        table = self.embed_tokens.weight
        made_of, written = self._head_made_of or (None, 0)
        if self.lm_head.kernel is not None and made_of is table and num_writes(table) == written:
            return
        others = sum(
            module.in_features * module.out_features
            for module in self.modules()
            if isinstance(module, Linear) and module is not self.lm_head
        )
        share = table.numel() / (table.numel() + others)
        small = share <= HEAD_COPY_SHARE or table.nbytes <= HEAD_COPY_BYTES
        is_copied = not self.lm_head.is_in_place and (small or table.dtype != self.dtype)
        self.prepare_head(own_copy=is_copied)
