"""The recurrence of state-space models and the short convolution before it, in torch.

Both go through a text token by token, or with sums in the order of the text, so that no bit depends
on how a prompt was cut into chunks, on whether a token came alone, or on the rows beside it.
Products and sums are separate operators, each of which rounds once, and activations are made of
exponentials: torch computes the last elements of a tensor by other instructions in operators that
join more.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LINEAR = 20.0


def convolve(
    inputs: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Convolve each channel by itself, causally.

    Args:
        inputs: ``[R, S, C]``, of any floating dtype.
        before: The last W before them, zero before a text begins, ``[R, W, C]`` in that dtype.
        weight: ``[W, C]`` float32; the last row is that of the token itself.
        bias: ``[C]`` float32, or ``None``.

    Returns:
        ``[R, S, C]`` float32, contiguous, and the last W inputs.
    """
    length, width = inputs.shape[1], weight.shape[0]
    every = torch.cat((before[:, 1:], inputs), dim=1)
    found = every[:, :length].float() * weight[0]
    for tap in range(1, width):
        found = found.add_(every[:, tap : tap + length].float() * weight[tap])
    if bias is not None:
        found = found.add_(bias)
    return found, every[:, length - 1 :]


def scan(
    state: Tensor, steps: Tensor, decay: Tensor, inputs: Tensor, enter: Tensor, leave: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence ``h = exp(dt A) h + dt x B``, ``y = C h``.

    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023), equation
    2 with the discretisation of section 3.6; Dao and Gu, "Transformers are SSMs" (2024), equation
    2. All arguments are float32.

    Args:
        state: h before the first token, ``[R, H, P, N]``; not changed.
        steps: dt, ``[R, S, H]``.
        decay: A, negative: ``[H, N]``, or ``[H, 1]`` if a head has one.
        inputs: x, ``[R, S, H, P]``.
        enter: B, ``[R, S, G, N]``, for G groups of heads.
        leave: C, ``[R, S, G, N]``.

    Returns:
        y ``[R, S, H, P]`` and h behind the last token.
    """
    rows, length, heads, size = inputs.shape
    groups, each = enter.shape[2], heads // enter.shape[2]
    scaled = inputs * steps[..., None]
    found = torch.empty_like(inputs)
    behind = torch.empty_like(state)
    split = (rows, groups, each, size, state.shape[-1])
    for token in range(length):
        kept = torch.exp(steps[:, token, :, None] * decay)  # [R, H, N or 1]
        state = torch.mul(state, kept[:, :, None], out=behind)
        by_group = state.view(split)
        new = scaled[:, token].reshape(rows, groups, each, size, 1)
        by_group.add_(new * enter[:, token, :, None, None])
        found[:, token] = (by_group * leave[:, token, :, None, None]).sum(-1).flatten(1, 2)
    return found, state


def silu(x: Tensor) -> Tensor:
    """Compute ``x / (1 + exp(-x))`` of each element, as a new tensor."""
    return x / torch.neg(x).exp_().add_(1)


def softplus(x: Tensor) -> Tensor:
    """Compute ``log(1 + exp(x))`` of each element, and x itself above 20, as a new tensor."""
    return torch.where(x > _LINEAR, x, torch.exp(x).log1p_())
