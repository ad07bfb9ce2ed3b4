"""``model.generate``: the synchronous door to the strategies.

The mixin is a few lines; the work is done by plain functions in ``call`` and ``prepare``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.generation.call import prepare_call, run_call
from asyncgen.generation.transitions import transition_scores

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
            prefix_allowed_tokens_fn: (index of the prompt, ids ``[T]`` of a row) -> the ids that
                may come next; works with every strategy.
            synced_gpus: Accepted; this library computes on one device, where it has no effect.
            assistant_model: Not supported yet.
            streamer: Gets ``put(input_ids)``, then ``put(tokens)`` with ids ``[B]`` a step, then
                ``end()``; or ``fail(error)``, if it has that.
            negative_prompt_ids: Not supported yet.
            negative_prompt_attention_mask: Not supported yet.
            custom_generate: Not supported yet.
            **kwargs: Fields of ``GenerationConfig``, and ``attention_mask`` ``[B, S]``,
                ``past_key_values`` (a cache to continue), ``tokenizer`` (for ``stop_strings``).
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
            unsupported={
                "assistant_model": assistant_model,
                "negative_prompt_ids": negative_prompt_ids,
                "negative_prompt_attention_mask": negative_prompt_attention_mask,
                "custom_generate": custom_generate,
            },
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        )
        return run_call(call, streamer)

    def compute_transition_scores(
        self,
        sequences: torch.Tensor,
        scores: tuple[torch.Tensor, ...],
        beam_indices: torch.Tensor | None = None,
        normalize_logits: bool = False,
    ) -> torch.Tensor:
        """Compute the scores of the selected tokens, after any strategy.

        Args:
            sequences: Ids that `generate` returned, int64 ``[R, T]``.
            scores: Its ``scores``: of each step, float32 ``[rows, V]``.
            beam_indices: Its ``beam_indices``, ``[R, G]``; needed with beams.
            normalize_logits: Whether to take the log-softmax of the scores, which greedy search
                and sampling leave as they are.

        Returns:
            float32 ``[R, G]``, 0 behind the end of a shorter sequence of a beam search. Their
            sum over a sequence, divided by its length to the power of ``length_penalty``, is its
            ``sequences_scores``.
        """
        return transition_scores(sequences, scores, beam_indices, normalize_logits)
