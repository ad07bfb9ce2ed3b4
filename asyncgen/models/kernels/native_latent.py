"""Heads of latent attention by our own kernels, in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen import native
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.native_packed import PackedLinearKernel
from asyncgen.models.kernels.norm import NativeScaler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.families.plans.layer_plan import LatentPlan


class NativeLatentHeads:
    """Queries, keys and values of rows; see ``LatentHeads``.

    Attributes:
        compiled: The kernel itself.
        into: Makes heads of the stream ``[N, E]`` in ``[N, 3 H D]``, and returns that.
    """

    __slots__ = ("compiled", "into")

    def __init__(
        self,
        latents: NativeKernel | PackedLinearKernel,
        query_norm: NativeScaler | None,
        queries: NativeKernel | PackedLinearKernel,
        latent_norm: NativeScaler,
        keys_values: NativeKernel | PackedLinearKernel,
        *,
        heads: int,
        plan: LatentPlan,
    ) -> None:
        """Join the parts.

        Args:
            latents: Product of the latent rows of queries, of those of keys and values, and of the
                rotated part of a key.
            query_norm: Norm of the first; ``None``: queries are made of the stream.
            queries: Product of all queries.
            latent_norm: Norm of the rows that keys and values are made of.
            keys_values: Product of those: for each head the part that is not rotated, then its
                value.
            heads: Number of heads.
            plan: The sizes.
        """
        assert native.kernels is not None
        self.compiled = native.kernels.Latent(
            latents.compiled,
            None if query_norm is None else query_norm.compiled,
            queries.compiled,
            latent_norm.compiled,
            keys_values.compiled,
            heads=heads,
            turned=plan.rope_dim,
            unturned=plan.nope_dim,
            values=plan.values,
            head_dim=plan.head_dim,
        )
        # A step calls it directly, without a Python function around it.
        self.into: Callable[[Tensor, Tensor], Tensor] = self.compiled.into


def native_latent_heads(*parts: object, heads: int, plan: LatentPlan) -> NativeLatentHeads | None:
    """Join the parts of `NativeLatentHeads` in one call if our kernels compute all of them."""
    latents, query_norm, queries, latent_norm, keys_values = parts
    if (
        isinstance(latents, NativeKernel | PackedLinearKernel)
        and (query_norm is None or isinstance(query_norm, NativeScaler))
        and isinstance(queries, NativeKernel | PackedLinearKernel)
        and isinstance(latent_norm, NativeScaler)
        and isinstance(keys_values, NativeKernel | PackedLinearKernel)
    ):
        return NativeLatentHeads(
            latents, query_norm, queries, latent_norm, keys_values, heads=heads, plan=plan
        )
    return None
