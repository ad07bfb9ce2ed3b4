"""Attention over pages: the tokens of many texts packed into one step.

It knows pages and positions, not requests. The engine decides who may read which page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.models.attention.paged.native_attention import NativeAttention
from asyncgen.models.attention.paged.torch_attention import TorchAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.attention.paged.fused import FusedKernel
    from asyncgen.models.attention.paged.packed_rows import PackedRow


class PagedAttention:
    """The `AttentionContext` of packed rows.

    For every forward pass: `lay_out` with the rows, then ``DecoderLM.decode_packed``.

    Attributes:
        storage: Keys and values.
        fused: The accelerator's kernel, if that computes.
        lay_out: Prepares a forward pass of some rows, at least one, whose tokens lie one row after
            another. Rows are different texts, but their first pages may be the same.
        compiled: See `AttentionContext`.
        begin: See `AttentionContext`; the step's rows are those that were laid out.
        attend: See `AttentionContext`.
    """

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        """Attend over a storage.

        Args:
            config: The model's.
            storage: Its pages; made for the same configuration.
        """
        self.storage = storage
        is_causal = not any(options.is_bidirectional for options in config.attention)
        serves = is_causal and NativeAttention.serves(storage)
        kind = NativeAttention if serves else TorchAttention
        chosen = kind(config, storage)
        self.fused: FusedKernel | None = chosen.fused
        self.compiled: Any | None = chosen.compiled
        # Bind the methods here: a step calls `attend` once a layer.
        self.lay_out: Callable[[Sequence[PackedRow]], None] = chosen.lay_out
        self.begin: Callable[[int, int], None] = chosen.begin
        self.attend: Callable[..., Tensor] = chosen.attend
