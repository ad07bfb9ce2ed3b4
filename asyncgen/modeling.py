"""A model as code written for the reference documents expects it: called, and asked to generate.

:class:`PreTrainedModel` is a thin face; the computing is done by its ``core``, a plain module of
``asyncgen.models``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.engine.sync.mixin import ContinuousMixin
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.mixin import GenerationMixin
from asyncgen.generation.outputs import CausalLMOutputWithPast
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.config.live import CALL_DEFAULTS, LiveConfig

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM


IGNORED = -100
"""Label of a position that does not count."""


class PreTrainedModel(GenerationMixin, ContinuousMixin, nn.Module):
    """A causal language model that is ready to run.

    It computes no gradients and stays in evaluation mode. Weights are laid out for speed, so
    ``parameters()`` does not show all of them; ``to`` moves and converts them as usual.

    Attributes:
        core: The module that computes.
        config: What ``config.json`` says. Token ids, the defaults of a call and attributes of your
            own can be set; what the network was built from is read-only.
        generation_config: Defaults of :meth:`generate`.
        name_or_path: Where the model came from.
    """

    def __init__(
        self,
        core: DecoderLM,
        generation_config: GenerationConfig | None = None,
        name_or_path: str = "",
    ) -> None:
        """Wrap a module whose weights are there.

        Args:
            core: The module.
            generation_config: Defaults of ``generate``; ``None`` derives them from the model's
                configuration.
            name_or_path: Where the model came from.
        """
        super().__init__()
        self.core = core
        self.config = LiveConfig(core.config)
        if generation_config is None:
            generation_config = GenerationConfig.from_model_config(core.config)
        self.generation_config = generation_config
        self.name_or_path = name_or_path
        super().train(False)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.core.device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.core.dtype

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode.

        Raises:
            InvalidRequestError: Training was asked for.
        """
        if mode:
            raise InvalidRequestError("mode", mode, "these models run and do not train")
        return super().train(False)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        token_type_ids: Tensor | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Run the model once.

        Args:
            input_ids: Token ids ``[B, S]``; or give ``inputs_embeds``.
            attention_mask: ``[B, P + S]`` with P positions in the cache; zero at padding, which
                nothing attends to.
            position_ids: ``[B, S]`` or ``[1, S]``. If left out they count on from the cache, and
                over tokens only where there is a mask, as ``generate`` does.
            past_key_values: Cache to continue; it grows by S positions.
            inputs_embeds: Embeddings ``[B, S, E]`` instead of ids.
            labels: Ids ``[B, S]`` to score the logits by, each against the position before it;
                -100 is left out.
            use_cache: Whether to return a cache, a new one if none was given. Where this and the
                next three are ``None``, ``config`` has the default: yes, no, no, yes.
            output_attentions: Whether to return attention weights; costs the fast kernels.
            output_hidden_states: Whether to return the output of every layer.
            return_dict: ``False`` for a tuple.
            cache_position: ``[S]``; must be the positions that follow the cache.
            logits_to_keep: How many of the last positions to compute logits for, 0 for all; or
                indices of positions.
            token_type_ids: Types ``[B, S]`` of the tokens, in a model that has them: GPT-2 adds
                the embeddings of these ids.

        Returns:
            Logits ``[B, S or fewer, V]`` in the model's dtype, the cache, and what was asked for.

        Raises:
            InvalidRequestError: Arguments that contradict each other, or have the wrong shape.
        """
        use_cache, output_attentions, output_hidden_states, return_dict = call_settings(
            self.config, use_cache, output_attentions, output_hidden_states, return_dict
        )
        embeddings = embeddings_of(self.core, input_ids, inputs_embeds)
        if token_type_ids is not None:
            embeddings = embeddings + self._types(token_type_ids, embeddings)
        past = check_cache(past_key_values)
        start = past.get_seq_length()
        _check_cache_position(cache_position, start, embeddings.shape[1])
        mask = check_mask(attention_mask, embeddings, start)
        positions = self._positions(position_ids, mask, embeddings, start)
        collected: list[Tensor] | None = [] if output_hidden_states else None
        attentions: list[Tensor] | None = [] if output_attentions else None
        attention = DenseAttention(self.core.config, past, mask, collect_attentions=attentions)
        hidden = self.core.hidden(embeddings, positions, attention, collected)
        logits = self.core.project(_keep(hidden, logits_to_keep))
        output = CausalLMOutputWithPast(
            loss=loss_of(logits, labels, shift=1),
            logits=logits,
            past_key_values=past if use_cache else None,
            hidden_states=None if collected is None else tuple(collected),
            attentions=None if attentions is None else tuple(attentions),
        )
        return output if return_dict else output.to_tuple()

    def _types(self, token_type_ids: Tensor, embeddings: Tensor) -> Tensor:
        """What types add to embeddings ``[B, S, E]``, ``[1 or B, S, E]``."""
        batch, length, _ = embeddings.shape
        if not self.core.has_token_types:
            name = self.core.model_type
            allowed = f"a {name} model has no types of tokens; leave it out"
            raise InvalidRequestError("token_type_ids", tuple(token_type_ids.shape), allowed)
        if token_type_ids.shape not in ((batch, length), (1, length)):
            raise _wrong_shape("token_type_ids", token_type_ids, f"[{batch}, {length}]")
        return embeddings_of(self.core, token_type_ids, None)

    def _positions(
        self, position_ids: Tensor | None, mask: Tensor | None, embeddings: Tensor, start: int
    ) -> Tensor:
        """Return positions ``[B or 1, S]``."""
        batch, length, _ = embeddings.shape
        if position_ids is not None:
            positions = position_ids.to(self.device, torch.int64)
            positions = positions[None] if positions.dim() == 1 else positions
            if positions.shape not in ((batch, length), (1, length)):
                allowed = f"[{batch}, {length}] or [1, {length}]"
                raise _wrong_shape("position_ids", position_ids, allowed)
            return positions
        if mask is None:
            return torch.arange(start, start + length, device=self.device)[None]
        counted = mask.cumsum(dim=1) - 1  # [B, P + S]
        return counted[:, start:].clamp(min=0)


def call_settings(config: LiveConfig, *given: bool | None) -> list[bool]:
    """What a call was told of `CALL_DEFAULTS`, in their order; else what ``config`` says."""
    return [
        bool(getattr(config, name)) if value is None else bool(value)
        for name, value in zip(CALL_DEFAULTS, given, strict=True)
    ]


def embeddings_of(
    core: DecoderLM, input_ids: Tensor | None, inputs_embeds: Tensor | None, prefix: str = ""
) -> Tensor:
    """Return embeddings ``[B, S, E]`` of either input, whose names begin with ``prefix``."""
    if (input_ids is None) == (inputs_embeds is None):
        raise InvalidRequestError(
            f"{prefix}input_ids",
            None if input_ids is None else tuple(input_ids.shape),
            f"give exactly one of `{prefix}input_ids` and `{prefix}inputs_embeds`",
        )
    if inputs_embeds is not None:
        width = core.config.hidden_size
        if inputs_embeds.dim() != 3 or inputs_embeds.shape[2] != width:
            raise _wrong_shape(f"{prefix}inputs_embeds", inputs_embeds, f"[B, S, {width}]")
        return inputs_embeds.to(core.device, core.dtype)
    assert input_ids is not None
    if input_ids.dim() != 2 or input_ids.is_floating_point():
        raise InvalidRequestError(
            f"{prefix}input_ids",
            f"{tuple(input_ids.shape)} {input_ids.dtype}",
            "give integers of shape [B, S]",
        )
    ids = input_ids.to(core.device, torch.int64)
    size = core.config.vocab_size
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise InvalidRequestError(
            f"{prefix}input_ids", [int(ids.min()), int(ids.max())], f"ids go from 0 to {size - 1}"
        )
    return core.embed(ids)


def check_cache(past_key_values: object) -> Cache:
    if past_key_values is None:
        return DynamicCache()
    if not isinstance(past_key_values, Cache):
        raise InvalidRequestError(
            "past_key_values",
            type(past_key_values).__name__,
            "give a cache, such as `DynamicCache()`; tuples go through "
            "`DynamicCache.from_legacy_cache`",
        )
    return past_key_values


def _check_cache_position(cache_position: Tensor | None, start: int, length: int) -> None:
    if cache_position is not None and cache_position.tolist() != [*range(start, start + length)]:
        raise InvalidRequestError(
            "cache_position",
            cache_position.tolist(),
            f"tokens are appended to the cache, here at {start} to {start + length - 1}",
        )


def check_mask(
    attention_mask: Tensor | None, embeddings: Tensor, start: int, name: str = "attention_mask"
) -> Tensor | None:
    """Return a boolean mask ``[B, P + S]``."""
    if attention_mask is None:
        return None
    expected = (embeddings.shape[0], start + embeddings.shape[1])
    if attention_mask.shape != expected:
        allowed = f"{list(expected)}: rows, and positions of cache and input together"
        raise _wrong_shape(name, attention_mask, allowed)
    return attention_mask.to(embeddings.device) != 0


def _keep(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the hidden states ``[B, n, E]`` that logits are wanted for."""
    if isinstance(logits_to_keep, Tensor):
        return hidden[:, logits_to_keep.to(hidden.device)]
    if isinstance(logits_to_keep, bool) or logits_to_keep < 0:
        raise InvalidRequestError(
            "logits_to_keep", logits_to_keep, "give a number of positions, 0 for all"
        )
    return hidden[:, -logits_to_keep:] if logits_to_keep else hidden


def loss_of(logits: Tensor, labels: Tensor | None, *, shift: int) -> Tensor | None:
    """Mean negative log-likelihood of each label, told by the logits ``shift`` positions before."""
    if labels is None:
        return None
    if labels.shape != logits.shape[:2]:
        raise _wrong_shape("labels", labels, str(list(logits.shape[:2])))
    predicted = logits[:, : logits.shape[1] - shift].float().flatten(0, 1)
    wanted = labels[:, shift:].to(logits.device).flatten()
    return F.cross_entropy(predicted, wanted, ignore_index=IGNORED)


def _wrong_shape(name: str, given: Tensor, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(name, tuple(given.shape), f"its shape must be {allowed}")
