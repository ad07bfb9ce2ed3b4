"""Check and load a decoding method that the user wrote."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.custom_methods import load_recipe
from asyncgen.generation.generate.custom import CustomMethod, helper_arguments
from asyncgen.generation.generate.plan_parts import check_cache
from asyncgen.generation.stopping.criteria import StoppingCriteriaList

if TYPE_CHECKING:
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.cancel import CancelCriteria


def check_method(model: GenerativeModel, params: RequestParams) -> None:
    """Refuse parameters that a decoding method of the user cannot serve.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    if not hasattr(model, "core"):
        raise InvalidRequestError(
            "custom_generate", params.method, "a foreign model object has a `generate` of its own"
        )
    if params.top_logprobs is not None:
        raise InvalidRequestError("logprobs", True, "not available from `custom_generate`")
    check_cache(model, params.config)


def load_method(
    model: GenerativeModel,
    params: RequestParams,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    cancel: CancelCriteria,
) -> CustomMethod:
    """Load the user's method with its arguments; a folder's gets the user's objects only.

    Args:
        model: The engine's model.
        params: Of the request, resolved; they have a method.
        processors: All logits processors of the request.
        criteria: All its stopping criteria.
        cancel: The flag of the stream.

    Raises:
        InvalidRequestError: It cannot be loaded.
    """
    function = params.method
    assert function is not None
    is_recipe = False
    if not callable(function):
        function = load_recipe(function, trust_remote_code=params.trust_remote_code)
        is_recipe = not inspect.isgeneratorfunction(function)
    if is_recipe:
        processors = params.processors
        criteria = StoppingCriteriaList([*params.criteria, cancel])
    return CustomMethod(
        function,
        model,
        processors,
        criteria,
        extras={**helper_arguments(function, params.assistant_model), **params.method_arguments},
        needs_ids=True,
        is_recipe=is_recipe,
    )
