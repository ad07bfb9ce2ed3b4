"""Checks that need nothing but the call itself: parameter names, and the form of a prompt.

They run in ``AsyncLLM.stream``, before anything is loaded, so that a typo is an error at the call.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asyncgen.engine.requests.stream_params import StreamParams
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.generate.signatures import own_parameters

if TYPE_CHECKING:
    from asyncgen.types import Prompt

__all__ = ["ARGUMENTS", "OWN", "check_names", "check_prompt", "is_messages"]

OWN = frozenset(
    "seed stop logprobs top_logprobs presence_penalty frequency_penalty priority n "
    "skip_special_tokens".split()
)
"""Parameters that are ours: not fields of ``GenerationConfig``."""

ARGUMENTS = frozenset(
    "generation_config logits_processor stopping_criteria prefix_allowed_tokens_fn synced_gpus "
    "assistant_model assistant_tokenizer negative_prompt_ids negative_prompt_attention_mask "
    "custom_generate recipe trust_remote_code".split()
)
"""Documented arguments of ``generate`` that are not fields of ``GenerationConfig``."""

NOT_HERE = {
    "output_scores": "read `logprobs` instead, or call `model.generate`",
    "output_logits": "read `logprobs` instead, or call `model.generate`",
    "output_attentions": "call `model.generate`",
    "output_hidden_states": "call `model.generate`",
    "return_dict_in_generate": "the result of a stream is `stream.result`",
    "streamer": "a stream is its own streamer",
}
"""Arguments that make no sense on a stream, and what to do instead."""

_PROMPT_FORMS = "a non-empty text, list of chat messages, or list of token ids"


def check_names(params: Mapping[str, object]) -> None:
    """Refuse names that are unknown or of no use on a stream.

    Raises:
        InvalidRequestError: Names the parameter, and the nearest known name for a typo.
    """
    known = StreamParams.__annotations__.keys() | _of_method(params)
    for name, value in params.items():
        if name in NOT_HERE:
            raise InvalidRequestError(name, value, f"not a parameter of a stream; {NOT_HERE[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise InvalidRequestError(name, value, f"unknown parameter{hint}")


def _of_method(params: Mapping[str, object]) -> frozenset[str]:
    """Further names that a custom decoding method takes."""
    method = params.get("custom_generate") or params.get("recipe")
    if callable(method):
        return own_parameters(method)
    # What a method takes that was not loaded yet, it says itself.
    return frozenset() if method is None else frozenset(params)


def check_prompt(prompt: Prompt) -> None:
    """Refuse what is no prompt at all.

    Raises:
        InvalidRequestError: Says what a prompt may be.
    """
    if isinstance(prompt, str) and prompt:
        return
    if (
        not isinstance(prompt, Sequence)
        or isinstance(prompt, str | bytes | bytearray)
        or not prompt
    ):
        raise InvalidRequestError("prompt", prompt, _PROMPT_FORMS)
    kind = Mapping if isinstance(prompt[0], Mapping) else int
    if any(not isinstance(item, kind) or isinstance(item, bool) for item in prompt):
        raise InvalidRequestError("prompt", prompt, _PROMPT_FORMS)


def is_messages(prompt: Prompt) -> bool:
    """Whether a checked prompt is a list of chat messages."""
    return not isinstance(prompt, str) and isinstance(prompt[0], Mapping)
