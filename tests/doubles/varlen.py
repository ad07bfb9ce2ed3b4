"""`torch.nn.attention.varlen.varlen_attn` for a CPU: as documented, as older, and as faulty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.attention.varlen import AuxRequest

__all__ = ["before_pages", "varlen_attn", "with_unwritten_rows"]


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """Compute as documented, in float32; FlashAttention 2 wants ``cu_seq_k``."""
    assert cu_seq_q.dtype == torch.int32 and window_size[1] == 0
    if cu_seq_k is None:
        raise RuntimeError("cum_seq_k is needed")
    assert len(cu_seq_k) == len(cu_seq_q) and cu_seq_k.dtype == torch.int32
    if block_table is None:
        first, lengths = cu_seq_k[:-1].long(), cu_seq_k.diff()
        places = first[:, None] + torch.arange(max_k)
        keys, values = (part[places.clamp(max=len(part) - 1)] for part in (key, value))
    else:
        assert seqused_k is not None and block_table.dtype == seqused_k.dtype == torch.int32
        lengths = seqused_k
        tables = block_table.long()
        keys, values = (part[tables].flatten(1, 2)[:, :max_k] for part in (key, value))
    group = query.shape[1] // keys.shape[2]
    if not enable_gqa and group > 1:
        raise ValueError("Expect query and key/value to have the same number of heads")
    if max_q == 1:
        # Without a look at any number, so that it can be recorded. A row may have no query.
        rows = torch.bucketize(torch.arange(len(query)), cu_seq_q[1:], right=True)
        few = (query[:, None], keys[rows], values[rows], lengths[rows])
        results, sums = _attend(*few, scale, window_size[0])
        return _with_sums(results[:, 0], sums[:, 0], return_aux)
    found = []
    for row, (begin, end) in enumerate(zip(cu_seq_q.tolist(), cu_seq_q[1:].tolist(), strict=False)):
        own = slice(row, row + 1)
        assert end - begin <= max_q and int(lengths[row]) <= max_k
        few = (query[None, begin:end], keys[own], values[own], lengths[own])
        found.append(_attend(*few, scale, window_size[0]))
    results = torch.cat([part[0] for part, _ in found])
    return _with_sums(results, torch.cat([part[0] for _, part in found]), return_aux)


def _with_sums(results: Tensor, sums: Tensor, request: AuxRequest | None) -> Any:
    """The results, and the logarithms of sums ``[H, N]`` where they are asked for."""
    return (results, sums.t()) if request is not None and request.lse else results


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float | None, before: int
) -> tuple[Tensor, Tensor]:
    """Queries ``[B, S, H, D]`` over keys ``[B, T, K, D]``, of which so many are in use; and the
    logarithms of the sums of exponentials, ``[B, S, H]``."""
    group = query.shape[2] // keys.shape[2]
    exact = [part.float().transpose(1, 2) for part in (query, keys, values)]
    exact[1:] = [part.repeat_interleave(group, 1) for part in exact[1:]]
    scores = exact[0] @ exact[1].transpose(2, 3) * (query.shape[3] ** -0.5 if not scale else scale)
    at = lengths[:, None] - query.shape[1] + torch.arange(query.shape[1])  # [B, S]
    distance = at[:, :, None] - torch.arange(keys.shape[1])  # [B, S, T]
    hidden = distance < 0
    if before >= 0:
        hidden = hidden | (distance > before)
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    weights = scores.softmax(-1)
    # Behind the keys in use there may be anything.
    unused = torch.arange(keys.shape[1]) >= lengths[:, None]
    attended = weights @ exact[2].masked_fill(unused[:, None, :, None], 0.0)
    return attended.transpose(1, 2).to(query.dtype), scores.logsumexp(-1).transpose(1, 2)


def before_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The function of torch 2.11: no pages, no splits, and groups of heads without a word."""
    grouped = query.shape[1] != key.shape[1]
    lengths = (cu_seq_q, cu_seq_k, max_q, max_k)
    options: Any = {"scale": scale, "window_size": window_size, "enable_gqa": grouped}
    found: Tensor = varlen_attn(query, key, value, *lengths, **options)
    return found


def with_unwritten_rows(*, always: bool = False) -> Callable[..., Tensor]:
    """The function with the fault of pytorch issue 194167.

    Over a table of pages, where long rows are split among blocks, rows after the first keep what
    the memory held.

    Args:
        always: Whether it splits rows also where it is told not to.
    """

    def faulty(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
        num_splits: int | None = None,
    ) -> Tensor:
        found: Tensor = varlen_attn(
            query,
            key,
            value,
            cu_seq_q,
            cu_seq_k,
            max_q,
            max_k,
            scale=scale,
            window_size=window_size,
            enable_gqa=enable_gqa,
            seqused_k=seqused_k,
            block_table=block_table,
        )
        if block_table is not None and max_k > 1024 and (always or num_splits != 1):
            found[int(cu_seq_q[1]) :] = 0.01
        return found

    return faulty
