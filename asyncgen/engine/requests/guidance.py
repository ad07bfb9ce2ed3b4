"""Check the negative prompt of classifier-free guidance, and make its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.generate.plan_parts import make_guidance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import Guidance


def guidance_for(served: ServedModel, params: RequestParams) -> Guidance | None:
    """Make the input of classifier-free guidance.

    Args:
        served: The engine's model.
        params: Of the request, resolved; they ask for guidance.

    Raises:
        InvalidRequestError: An id of the negative prompt that the model does not have.
        ContextLengthError: A negative prompt that does not fit.
    """
    model = served.model
    ids, size = params.negative_prompt_ids, model.config.vocab_size
    if ids is not None and (int(ids.min()) < 0 or int(ids.max()) >= size):
        allowed = f"token ids are from 0 to {size - 1}"
        raise InvalidRequestError("negative_prompt_ids", ids.tolist(), allowed)
    context = served.context_length
    if ids is not None and context is not None and ids.shape[1] >= context:
        allowed = f"it has {ids.shape[1]} tokens, and the context holds {context}; shorten it"
        raise ContextLengthError("negative_prompt_ids", ids.tolist(), allowed)
    return make_guidance(model, ids, params.negative_prompt_attention_mask)


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
        row = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(name, value, allowed) from error
    row = row[None] if row.dim() == 1 else row
    is_row = row.dim() == 2 and row.shape[0] == 1 and row.shape[1] > 0
    wrong = ((row != 0) & (row != 1)).any() if is_mask else row.dtype == torch.bool
    if not is_row or row.is_floating_point() or wrong:
        raise InvalidRequestError(name, value, allowed)
    return row
