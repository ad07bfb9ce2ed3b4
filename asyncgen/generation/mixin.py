"""``model.generate``: the synchronous door to the strategies.

The mixin is a few lines; the work is done by plain functions in ``call`` and ``prepare``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.generation.call import prepare_call, run_call

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits import LogitsProcessorList
    from asyncgen.generation.results import Result
    from asyncgen.generation.stopping import StoppingCriteriaList
    from streamers import BaseStreamer

__all__ = ["GenerationMixin"]


class GenerationMixin:
    """Gives a model ``generate``. The model has ``core``, ``config`` and ``generation_config``."""

    generation_config: GenerationConfig

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
        synced_gpus: bool | None = None,
        assistant_model: Any | None = None,
        streamer: BaseStreamer | None = None,
        negative_prompt_ids: torch.Tensor | None = None,
        negative_prompt_attention_mask: torch.Tensor | None = None,
        custom_generate: str | Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Result:
        """Generate token ids after a batch of prompts.

        Args:
            inputs: Prompt ids, int64 ``[B, S]``, left-padded; ``None`` starts from
                ``bos_token_id``. Also accepted as ``input_ids=``. With an encoder they are what
                it reads, padded on either side.
            generation_config: Base of the configuration; ``None`` is the model's own.
            logits_processor: Processors that complement the built-in ones.
            stopping_criteria: Criteria that complement the built-in ones; a row ends when one
                of them says so. Any callable ``(input_ids, scores) -> bool [B]``.
            prefix_allowed_tokens_fn: Not supported yet.
            synced_gpus: Accepted; this library computes on one device, where it has no effect.
            assistant_model: A smaller model that drafts tokens for this one to check; see
                :mod:`asyncgen.generation.strategies.assisted`.
            streamer: Gets ``put(input_ids)``, then ``put(tokens)`` with ids ``[B]`` a step, then
                ``end()``; or ``fail(error)``, if it has that.
            negative_prompt_ids: Not supported yet.
            negative_prompt_attention_mask: Not supported yet.
            custom_generate: Not supported yet.
            **kwargs: Fields of ``GenerationConfig``, and ``attention_mask`` ``[B, S]``,
                ``past_key_values`` (a cache to continue), ``tokenizer`` (for ``stop_strings``,
                ``token_healing`` and an assistant with another tokenizer) and
                ``assistant_tokenizer`` (that one).
                With an encoder also ``encoder_outputs``, ``decoder_input_ids`` ``[B, S]`` and
                ``decoder_attention_mask`` ``[B, S]``.

        Returns:
            Ids of prompt and continuation, int64 ``[B, T]``, ended rows filled with
            ``pad_token_id``; or, with ``return_dict_in_generate=True``, the documented output
            object. With an encoder the prompt is that of the decoder.

        Raises:
            ValueError: An invalid value or combination, or an unknown keyword.
            InvalidRequestError: A documented feature that does not exist yet.
        """
        call = prepare_call(
            self,
            inputs,
            generation_config,
            kwargs,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            streamer=streamer,
            assistant_model=assistant_model,
            unsupported={
                "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
                "negative_prompt_ids": negative_prompt_ids,
                "negative_prompt_attention_mask": negative_prompt_attention_mask,
                "custom_generate": custom_generate,
            },
        )
        return run_call(call, streamer)
