"""Keys and values in pages: one piece of memory for every layer and all requests.

A page holds the layers of one group (`layer_groups`); which group, is decided when it is taken. The
storage knows pages by their numbers alone; the engine's block pool knows their holders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.codes import SCALE_BYTES, decode, encode
from asyncgen.cache.layer_groups import plan_groups
from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


_ALONE = 2**15 - 1
"""Numbers that torch writes on one thread."""


def page_bytes(
    config: ModelConfig, page_size: int, dtype: torch.dtype, *, is_packed: bool = False
) -> int:
    """Compute the bytes of one page: of all layers of a group, and of the model if it has one
    group.

    Args:
        config: The model's.
        page_size: Tokens in a page.
        dtype: Of keys and values.
        is_packed: True if they are kept in 8 bits (`codes`), in any dtype.
    """
    size = config.head_dim
    head = size + SCALE_BYTES if is_packed else size * dtype.itemsize
    per_token = 2 * config.num_key_value_heads * head
    return plan_groups(config).depth * page_size * per_token


class PagedStorage:
    """The keys and values of ``num_pages`` pages.

    The memory is allocated at once and not written: on a CPU a page that was never used takes none.
    Its content before the first write is arbitrary, so a caller that begins a page without filling
    it calls `clear` first (`TorchAttention` does; our own kernel reads only what a text has
    written).

    Attributes:
        device: Device of the pages.
        dtype: Of keys and values, as they are written and read.
        num_pages: Number of pages, P.
        page_size: Tokens in each, at least 1.
        plan: The groups of the model's layers.
        num_kv_heads: Key and value heads, K.
        head_dim: Size of a head, D.
        heads_first: True if a page is ``[K, page_size, D]`` (CPU: each head's keys lie together, so
            that a run of pages is a batch of matrices), false if ``[page_size, K, D]`` (elsewhere,
            as `torch.nn.attention.varlen.varlen_attn` reads it).
        data: ``[depth, 2, P, …page]``, keys and values of the layers of a group; their codes, int8,
            if pages are packed (`codes`).
        scales: Those of packed pages, float32 ``[depth, 2, P, …page]`` without the size of a head;
            ``None``: pages hold keys and values unpacked.
        layers: The same by layer of the model, ``[2, P, …page]``; layers of several groups may be
            the same memory, in which each group has pages of its own.
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
        is_packed: bool = False,
    ) -> None:
        """Allocate the memory.

        Args:
            config: The model's.
            num_pages: Pages, at least 1.
            page_size: Tokens in a page, at least 1.
            device: Device of the model.
            dtype: Dtype that the model computes in.
            heads_first: Layout of a page; ``None``: that of the device's fastest kernel.
            is_packed: True to keep keys and values in 8 bits.

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
        stored, at = (self.plan.depth, 2, num_pages, *page), [at for _, at in self.plan.places()]
        # Tensors made in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            kept = torch.int8 if is_packed else dtype
            self.data = torch.empty(stored, dtype=kept, device=self.device)
            self.scales: Tensor | None = None
            if is_packed:
                self.scales = torch.empty(stored[:-1], dtype=torch.float32, device=self.device)
            self.layers: tuple[Tensor, ...] = _by_layer(self.data, at)
            self._scales = () if self.scales is None else _by_layer(self.scales, at)
            flat = [layer.view(2, -1, *page[1:]) for layer in self.layers]
            self.matrices = [(pair[0], pair[1]) for pair in flat]
            # Views of some layers' keys and values, `[n, P, …page]`: as many layers as one kernel
            # clears on one thread. On memory that is touched for the first time two threads take
            # four times as long. Of packed pages only scales are cleared: codes times a scale of
            # zero are zero.
            cleared = self.data if self.scales is None else self.scales
            most = max(_ALONE // cleared[0, 0, 0].numel(), 1)
            self._cleared = cleared
            self._parts = torch.split(cleared.flatten(0, 1), most)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def scales_of(self, layer: int) -> Tensor | None:
        """Return those of a layer's packed pages, ``[2, P, …page]`` without the size of a head."""
        return self._scales[layer] if self._scales else None

    def write(self, layer: int, slots: Tensor, heads: Tensor) -> Tensor:
        """Write keys and values to their places.

        Args:
            layer: The layer of the model.
            slots: Rows of ``[2 * P * K * page_size, D]``, ``[N, 2K]``.
            heads: Keys, then values, ``[N, 2K, D]``.

        Returns:
            What will be read of them: the same, or the decoded codes.
        """
        if not self._scales:
            self.layers[layer].view(-1, self.head_dim).index_put_((slots,), heads)
            return heads
        codes, scales = encode(heads)
        self.layers[layer].view(-1, self.head_dim).index_put_((slots,), codes)
        self._scales[layer].view(-1).index_put_((slots,), scales)
        return decode(codes, scales, self.dtype)

    def read(self, layer: int, count: int, chosen: Tensor) -> Tensor:
        """Copy parts of a layer's keys and values together.

        Args:
            layer: The layer of the model.
            count: Number of equal parts, the pages of its keys before those of its values.
            chosen: Numbers of the parts, ``[n]``.

        Returns:
            ``[n, numbers of a part]`` in the storage's dtype.
        """
        found = self.layers[layer].view(count, -1).index_select(0, chosen)
        if not self._scales:
            return found
        scales = self._scales[layer].view(count, -1).index_select(0, chosen)
        vectors = found.view(len(found), -1, self.head_dim)
        return decode(vectors, scales, self.dtype).view(found.shape)

    def read_matrices(self, layer: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Read keys and values of pages that lie side by side, with heads first.

        Args:
            layer: The layer of the model.
            first: Number of the first matrix: of its page times K.
            count: Matrices.

        Returns:
            ``[count, page_size, D]`` each: views, of packed pages copies.
        """
        keys, values = self.matrices[layer]
        keys, values = keys.narrow(0, first, count), values.narrow(0, first, count)
        if not self._scales:
            return keys, values
        scales = self._scales[layer].view(2, -1, self.page_size).narrow(1, first, count)
        return decode(keys, scales[0], self.dtype), decode(values, scales[1], self.dtype)

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
            self._cleared.index_fill_(2, to_device(host_ints(pages), self.device), 0)


def _by_layer(memory: Tensor, places: Sequence[int]) -> tuple[Tensor, ...]:
    """Return each layer's part of the memory, by its place in a page."""
    parts = memory.unbind(0)
    return tuple(parts[place] for place in places)
