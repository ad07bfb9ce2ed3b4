"""Prompts as the rows that a strategy decodes: healed if asked for, a copy for every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.generate.plan_parts import rows_per_prompt
from asyncgen.generation.strategies.step import repeat_rows
from asyncgen.generation.strategies.token_healing import Healing, plan_healing

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.prompts import DecoderPrompt
    from asyncgen.generation.strategies.step import PromptInputs


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The rows of a plan, copies of a prompt next to each other.

    Attributes:
        input_ids: int64 ``[R, S]``.
        attention_mask: ``[R, S]``, zero at padding; ``None`` where nothing is padded.
        samples: Rows of each prompt.
        beams: Beams of each row, 1 without beam search.
        together: Rows that processors see of one row of the plan at once: its beams, or those of
            a group of them.
        bias: What token healing adds to the scores of the last tokens, float32 ``[R, V]``.
        inputs: What else was said of the prompts.
    """

    input_ids: Tensor
    attention_mask: Tensor | None
    samples: int
    beams: int = 1
    together: int = 1
    bias: Tensor | None = None
    inputs: PromptInputs | None = None

    @property
    def padding(self) -> Tensor | None:
        """Left padding of each row that processors see."""
        if self.attention_mask is None:
            return None
        first = (self.attention_mask != 0).int().argmax(dim=1)
        return first.repeat_interleave(self.together)


def make_prompt_rows(
    model: Any,
    prompt: DecoderPrompt,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    *,
    has_method: bool,
) -> PromptRows:
    """Lay prompts out.

    Args:
        model: The model that will run.
        prompt: What the call starts from.
        config: Says how many samples and beams there are, and whether prompts are healed.
        model_kwargs: Keywords of the call that are no fields of the configuration.
        has_method: Whether the caller wrote the decoding method. It sees a row for every beam.

    Raises:
        InvalidRequestError: Token healing does not go with what else is asked for.
    """
    samples, beams, groups = rows_per_prompt(config), config.num_beams or 1, config.num_beam_groups
    if has_method:
        samples, beams, groups = max(config.num_return_sequences or 1, beams), 1, 1
    ids, mask, bias = prompt.input_ids, prompt.attention_mask, None
    if config.token_healing:
        healing, ids, mask = _heal(model, model_kwargs, prompt, config)
        bias = healing.bias.repeat_interleave(samples, dim=0)
    return PromptRows(
        ids.repeat_interleave(samples, dim=0),
        repeat_rows(mask, samples),
        samples,
        beams,
        beams // (groups or 1),
        bias,
        None if prompt.inputs is None else prompt.inputs.repeated(samples),
    )


def _heal(
    model: Any, model_kwargs: dict[str, Any], prompt: DecoderPrompt, config: GenerationConfig
) -> tuple[Healing, Tensor, Tensor | None]:
    """Prepare the prompts for token healing: cut, padded again, with the choices for the last
    token.
    """
    has_past = model_kwargs.get("past_key_values") is not None
    if has_past or prompt.inputs is not None or prompt.encoder is not None:
        raise InvalidRequestError(
            "token_healing",
            True,
            "changes the prompt, so it cannot continue `past_key_values`, goes with nothing that "
            "is said of single positions, and an encoder-decoder model has none",
        )
    ids, mask = prompt.input_ids, prompt.attention_mask
    kept = torch.ones_like(ids) if mask is None else mask
    rows = [row[keep].tolist() for row, keep in zip(ids, kept.bool(), strict=True)]
    healing = plan_healing(model_kwargs.get("tokenizer"), rows, model.core.config.vocab_size)
    width = max(map(len, healing.rows))
    pad = 0 if config.pad_token_id is None else config.pad_token_id
    padded = [[pad] * (width - len(row)) + row for row in healing.rows]
    real = [[0] * (width - len(row)) + [1] * len(row) for row in healing.rows]
    found = torch.tensor(real, dtype=torch.int64, device=ids.device)
    return healing, ids.new_tensor(padded), None if bool(found.all()) else found
