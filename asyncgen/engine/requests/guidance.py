"""Check the negative prompt of classifier-free guidance, and make its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.generate.plan_parts import make_guidance

if TYPE_CHECKING:
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.engine.requests.served_model import ServedModel
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
