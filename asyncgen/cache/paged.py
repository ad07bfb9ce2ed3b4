"""Keys and values in pages: one piece of memory for every layer and all requests.

A page holds the layers of one group (`groups`); which group that is, is settled when it is taken.
It knows pages by their numbers alone; who holds which page is the business of the engine's pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.groups import plan_groups
from asyncgen.errors import InvalidRequestError
from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.models.config import ModelConfig


_ALONE = 2**15 - 1
"""Numbers that torch writes on one thread."""


def page_bytes(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page: of all layers of a group, and of the model where it has one group.

    Args:
        config: The model's.
        page_size: Tokens in a page.
        dtype: Of keys and values.
    """
    per_token = 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
    return plan_groups(config).depth * page_size * per_token


class PagedStorage:
    """The keys and values of ``num_pages`` pages.

    The memory is asked for at once and not written: on a CPU a page that was never used takes
    none. What it holds before the first write is arbitrary, so a caller that begins a page without
    filling it calls `clear` first (`TorchAttention` does; our own kernel reads no further than a
    text).

    Attributes:
        device: Where the pages lie.
        dtype: Of keys and values.
        num_pages: How many there are, P.
        page_size: Tokens in each, at least 1.
        plan: The groups of the model's layers.
        num_kv_heads: Key and value heads, K.
        head_dim: Size of a head, D.
        heads_first: Whether a page is ``[K, page_size, D]`` (CPU: each head's keys lie together,
            so that a run of pages is a batch of matrices) or ``[page_size, K, D]`` (elsewhere, as
            `torch.nn.attention.varlen.varlen_attn` reads it).
        data: ``[depth, 2, P, …page]``, keys and values of the layers of a group.
        layers: The same by layer of the model, ``[2, P, …page]``; layers of several groups may
            be the same memory, in which each group has pages of its own.
        matrices: Keys and values by layer of the model with the first two dimensions joined, on a
            CPU ``[P * K, page_size, D]`` each.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        heads_first: bool | None = None,
    ) -> None:
        """Ask for the memory.

        Args:
            config: The model's.
            num_pages: Pages, at least 1.
            page_size: Tokens in a page, at least 1.
            device: Where the model computes.
            dtype: What the model computes in.
            heads_first: Layout of a page; ``None``: as the device's fastest kernel wants it.

        Raises:
            InvalidRequestError: A size is below 1.
        """
        for name, value in (("num_pages", num_pages), ("page_size", page_size)):
            if value < 1:
                raise InvalidRequestError(name, value, "at least 1 is needed")
        self.device = torch.device(device)
        self.dtype = dtype
        self.num_pages = num_pages
        self.page_size = page_size
        self.plan = plan_groups(config)
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.heads_first = self.device.type == "cpu" if heads_first is None else heads_first
        heads, size = self.num_kv_heads, self.head_dim
        page = (heads, page_size, size) if self.heads_first else (page_size, heads, size)
        # Memory made in inference mode could not be written to outside of it later on.
        with torch.inference_mode(False):
            self.data = torch.empty(
                (self.plan.depth, 2, num_pages, *page), dtype=dtype, device=self.device
            )
            places = self.data.unbind(0)
            self.layers: tuple[Tensor, ...] = tuple(places[at] for _, at in self.plan.places())
            flat = [layer.view(2, -1, *page[1:]) for layer in self.layers]
            self.matrices = [(pair[0], pair[1]) for pair in flat]
            # Keys and values of some layers each, `[n, P, …page]`: of a page so many that one
            # kernel clears them on one thread. Where they touch memory for the first time, two
            # threads take four times as long.
            most = max(_ALONE // self.data[0, 0, 0].numel(), 1)
            self._parts = torch.split(self.data.flatten(0, 1), most)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.data.nbytes

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages in every layer.

        Args:
            pages: Their numbers.
        """
        if not pages:
            return
        if self.device.type == "cpu":
            for page in pages:
                for part in self._parts:
                    part[:, page].zero_()
        else:
            self.data.index_fill_(2, to_device(torch.tensor(pages), self.device), 0)
