"""Plan how the last token of a prompt is chosen again (token healing)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.token_healing import Healing, plan_healing
from asyncgen.types import is_messages

if TYPE_CHECKING:
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.types import Prompt


def heal_prompt(served: ServedModel, prompt: Prompt, prompt_ids: list[int]) -> tuple[Healing, str]:
    """Plan token healing, and return the text that is chosen again.

    Args:
        served: The engine's model.
        prompt: Text, messages or token ids.
        prompt_ids: Its ids.

    Raises:
        InvalidRequestError: The model or the form of the prompt cannot be healed.
    """
    model, tokenizer = served.model, served.tokenizer
    if not served.is_ours or served.has_encoder:
        raise InvalidRequestError("token_healing", True, "needs a decoder-only model of ours")
    if is_messages(prompt):
        raise InvalidRequestError(
            "token_healing", True, "heals the end of a text, and messages end with their template"
        )
    if tokenizer is None:
        raise InvalidRequestError("token_healing", True, "needs a tokenizer; pass `tokenizer=`")
    healing = plan_healing(tokenizer, [prompt_ids], model.core.config.vocab_size)
    whole, kept = tokenizer.decode(prompt_ids), tokenizer.decode(healing.rows[0][:-1])
    return healing, whole[len(kept) :] if whole.startswith(kept) else ""
