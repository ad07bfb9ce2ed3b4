"""Read the token ids that a request gives beside its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.runtime.transfer import given_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig


def given_ids(params: Mapping[str, Any], num_samples: int) -> tuple[tuple[int, ...], ...]:
    """Return the tokens that each sample has generated; empty where none has.

    Raises:
        InvalidRequestError: The number of lists is not that of the samples.
    """
    value: Sequence[Any] = params.get("generated_ids", ())
    if not value:
        return ()
    if isinstance(value[0], int):
        value = [value]
    if len(value) != num_samples:
        allowed = f"one list of token ids for each sample, and there are {num_samples}"
        raise InvalidRequestError("generated_ids", InWords(f"{len(value)} lists"), allowed)
    return tuple(map(tuple, value)) if any(value) else ()


def negative_prompt(
    params: Mapping[str, Any], name: str, config: GenerationConfig
) -> Tensor | None:
    """Read the ids that guidance leads away from, or their mask, as one row.

    Args:
        params: Parameters of a request.
        name: ``"negative_prompt_ids"`` or ``"negative_prompt_attention_mask"``.
        config: Complete configuration.

    Returns:
        The row, [1, S]; ``None`` where it is not given.

    Raises:
        InvalidRequestError: Another form, or no guidance.
    """
    value = params.get(name)
    if value is None:
        return None
    if config.guidance_scale in (None, 1):
        raise InvalidRequestError(name, value, "needs a `guidance_scale` other than 1")
    is_mask = name == "negative_prompt_attention_mask"
    what = "zeros and ones" if is_mask else "token ids"
    allowed = f"{what} as a list, or as a tensor [1, S] or [S]"
    try:
        row = given_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(name, value, allowed) from error
    row = row[None] if row.dim() == 1 else row
    is_row = row.dim() == 2 and row.shape[0] == 1 and row.shape[1] > 0
    wrong = ((row != 0) & (row != 1)).any() if is_mask else row.dtype == torch.bool
    if not is_row or row.is_floating_point() or wrong:
        raise InvalidRequestError(name, value, allowed)
    return row
