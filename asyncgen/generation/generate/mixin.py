"""``model.generate``: the synchronous door to the strategies.

The work is done by plain functions in ``call``.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.custom_methods import choose_method
from asyncgen.generation.generate.call import GenerateArguments, prepare_call, run_call
from asyncgen.generation.generate.custom import run_recipe
from asyncgen.generation.generate.overridden_model import model_inputs
from asyncgen.generation.generate.written_model import seen_by_generation
from asyncgen.models.kernels.threads import claimed_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.collect import Result
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.criteria import StoppingCriteriaList
    from streamers import BaseStreamer


class GenerationMixin:
    """Gives a model ``generate``: one of this library, or a module of torch that a user wrote.

    A user's module has a ``forward`` that returns an object with ``logits`` ``[B, S, V]`` and, if
    it caches, ``past_key_values``; and a ``config`` with ``vocab_size``. Where ``forward`` takes
    ``past_key_values``, it gets a `DynamicCache` to `update`. It may override
    `prepare_inputs_for_generation`, have a ``generation_config``, and return a cache of its own
    kind; for beams that cache has ``reorder_cache(beam_idx)``.
    """

    config: Any
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
            assistant_model: A smaller model that drafts tokens for this one to check; see
                :mod:`asyncgen.generation.strategies.assisted`.
            streamer: Gets ``put(input_ids)``, then ``put(tokens)`` with ids ``[B]`` a step, then
                ``end()``; or ``fail(error)``, if it has that.
            negative_prompt_ids: Prompts that ``guidance_scale`` leads away from, int64
                ``[B, S]`` (or ``[1, S]`` for all rows), left-padded; ``None`` is the last token
                of each prompt.
            negative_prompt_attention_mask: ``[B, S]``, zero at padding; ``None`` where nothing
                is padded.
            custom_generate: A decoding method in place of a strategy. A callable gets prepared
                inputs: ``f(model, input_ids, logits_processor=…, stopping_criteria=…,
                generation_config=…, **model_kwargs)``, and keywords that it names; see
                :func:`~asyncgen.generation.generate.custom.custom_strategy` for generators. A
                folder or, with ``trust_remote_code=True``, a repository on the hub: its
                ``custom_generate/generate.py`` gets the call as it is, with a complete
                ``generation_config``: defaults, keywords of the call, lengths of this prompt.
                ``trust_remote_code=False`` refuses both. Also accepted as ``recipe=``.
            **kwargs: Fields of ``GenerationConfig``, and ``attention_mask`` ``[B, S]``,
                ``past_key_values``, ``inputs_embeds`` and the like (see below), ``tokenizer`` (for
                ``stop_strings``, ``token_healing`` and an assistant with another tokenizer) and
                ``assistant_tokenizer`` (that one). For a model that overrides
                `prepare_inputs_for_generation` or `forward` also what these name.
                With an encoder also ``encoder_outputs``, ``decoder_input_ids`` ``[B, S]`` and
                ``decoder_attention_mask`` ``[B, S]``.

        Beside ids, a prompt may have:

        - ``inputs_embeds``, ``[B, S, E]``: what the model reads in the place of the ids; with an
          encoder, what that reads. Returned are the ids that were given, if any, and the new
          ones; processors see the same. ``max_new_tokens`` and ``min_new_tokens`` count new
          tokens; ``max_length`` and ``min_length`` count the embeddings as well, unless there are
          as many ids.
        - ``past_key_values``, a cache of P positions to go on behind: with all ids so far,
          ``[B, P + n]``, or with the n new ones and an ``attention_mask`` ``[B, P + n]`` over
          both. Lengths count the ids that were given, which are those that are returned.
        - ``position_ids``, ``[B, S]`` or ``[1, S]``: counted on from the last. Left out, they
          count what the mask shows. ``token_type_ids``, ``[B, S]``, for a model that has types
          (GPT-2); new tokens are of the last one. Of both, those of a cache may be left out.
        - ``cache_position``, ``[S]``: must be the positions behind the cache.
          ``logits_to_keep``: has no effect here, and is handed on to an override.

        With ``use_cache=False`` every step reads everything anew: its attentions and hidden
        states are of all positions. So it does where ``model.generation_config`` says it, or
        ``model.config`` and the call neither says nor needs otherwise.

        Returns:
            Ids of prompt and continuation, int64 ``[B, T]``, ended rows filled with
            ``pad_token_id``; or, with ``return_dict_in_generate=True``, the documented output
            object. With an encoder the prompt is that of the decoder.

        Raises:
            ValueError: An invalid value or combination, or an unknown keyword.
            MissingRequirementsError: A custom method needs packages that are not installed.
            ModelLoadError: There is no custom method where it is said to be.
            InvalidRequestError: A documented feature that does not exist yet.
        """
        custom = choose_method(custom_generate, kwargs.pop("recipe", None))
        trust_remote_code = kwargs.pop("trust_remote_code", None)
        named: dict[str, Any] = {
            "inputs": inputs,
            "generation_config": generation_config,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
            "assistant_model": assistant_model,
            "streamer": streamer,
            "negative_prompt_ids": negative_prompt_ids,
            "negative_prompt_attention_mask": negative_prompt_attention_mask,
        }
        if isinstance(custom, str | os.PathLike):
            documented = {**named, "synced_gpus": synced_gpus}
            custom = run_recipe(
                custom, self, documented, kwargs, trust_remote_code=trust_remote_code
            )
            if not inspect.isgeneratorfunction(custom):
                return custom
        given = GenerateArguments(**named, kwargs=kwargs, custom=custom)
        call = prepare_call(seen_by_generation(self), given)
        with claimed_thread(getattr(self, "core", None)):
            return run_call(call, streamer)

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Make the arguments of one call of the model, in every step of ``generate``.

        A hook: a subclass overrides it and changes what this returns. A model without an override
        computes the same without asking it. ``cache_position`` (``[S]``) comes to an override
        that names it.

        Args:
            input_ids: All ids so far, int64 ``[B, T]``, of the decoder; beams are rows.
            next_sequence_length: How many of the last are to be read; ``None`` for all, as
                without a cache.
            past_key_values: The cache; ``None`` without one.
            attention_mask: ``[B, T]``, zero at padding, of the encoder where there is one
                (``decoder_attention_mask`` is the other); ``None`` where nothing is padded.
            inputs_embeds: Embeddings of the prompt, ``[B, S, E]``.
            is_first_iteration: Whether the prompt is read, which embeddings stand for.
            **kwargs: Handed on to the model: ``position_ids`` and ``token_type_ids`` ``[B, T]``
                (cut to what is read), ``use_cache``, ``logits_to_keep``, ``encoder_outputs`` and
                whatever ``generate`` was given that an override names.

        Returns:
            Arguments by name.
        """
        return model_inputs(
            input_ids,
            is_encoder_decoder=getattr(self.config, "is_encoder_decoder", False),
            next_sequence_length=next_sequence_length,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            others={"past_key_values": past_key_values, **kwargs},
        )

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
        table = torch.stack(tuple(scores))  # [steps, rows, V]
        if normalize_logits:
            table = torch.log_softmax(table, dim=-1)
        if beam_indices is None:
            rows = torch.arange(table.shape[1], dtype=torch.int64, device=table.device)
            beam_indices = rows[:, None].expand(-1, table.shape[0])
        there = beam_indices >= 0
        size = int(there.sum(dim=1).max())
        there = there[:, :size]
        rows = beam_indices[:, :size].long().clamp(min=0)
        steps = torch.arange(size, dtype=torch.int64, device=table.device)
        tokens = sequences[:, sequences.shape[1] - size :]
        return table[steps, rows, tokens].masked_fill(~there, 0.0)
