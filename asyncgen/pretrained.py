"""Loading: joins a model module with its weights, its generation config and ``generate``.

:class:`PreTrainedModel` is the face that code written for the reference documents expects; the
computing is done by its ``core``, a plain module of ``asyncgen.models``.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asyncgen.cache import Cache, DynamicCache
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.generation.config import CONFIG_FILE, GenerationConfig
from asyncgen.generation.mixin import GenerationMixin
from asyncgen.generation.outputs import CausalLMOutputWithPast
from asyncgen.hub import read_json, resolve
from asyncgen.models import MODELS, DecoderLM, DenseAttention, ModelConfig
from asyncgen.tokenizer import Tokenizer
from asyncgen.weights import load_weights, open_checkpoint, resolve_dtype

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = [
    "PreTrainedModel",
    "load_model",
    "load_tokenizer",
    "set_seed",
]


class PreTrainedModel(GenerationMixin, nn.Module):
    """A causal language model that is ready to run.

    It computes no gradients and stays in evaluation mode. Weights are laid out for speed, so
    ``parameters()`` does not show all of them; ``to`` moves and converts them as usual.

    Attributes:
        core: The module that computes.
        config: What ``config.json`` says.
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
        self.config = core.config
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
            use_cache: Whether to return a cache, a new one if none was given; the default is yes.
            output_attentions: Whether to return attention weights; costs the fast kernels.
            output_hidden_states: Whether to return the output of every layer.
            return_dict: ``False`` for a tuple.
            cache_position: ``[S]``; must be the positions that follow the cache.
            logits_to_keep: How many of the last positions to compute logits for, 0 for all; or
                indices of positions.

        Returns:
            Logits ``[B, S or fewer, V]`` in the model's dtype, the cache, and what was asked for.

        Raises:
            InvalidRequestError: Arguments that contradict each other, or have the wrong shape.
        """
        embeddings = self._embeddings(input_ids, inputs_embeds)
        past = _check_cache(past_key_values)
        start = past.get_seq_length()
        _check_cache_position(cache_position, start, embeddings.shape[1])
        mask = _check_mask(attention_mask, embeddings, start)
        positions = self._positions(position_ids, mask, embeddings, start)
        collected: list[Tensor] | None = [] if output_hidden_states else None
        attentions: list[Tensor] | None = [] if output_attentions else None
        attention = DenseAttention(self.config, past, mask, collect_attentions=attentions)
        hidden = self.core.hidden(embeddings, positions, attention, collected)
        logits = self.core.project(_keep(hidden, logits_to_keep))
        output = CausalLMOutputWithPast(
            loss=None if labels is None else _loss(logits, labels),
            logits=logits,
            past_key_values=None if use_cache is False else past,
            hidden_states=None if collected is None else tuple(collected),
            attentions=None if attentions is None else tuple(attentions),
        )
        return output.to_tuple() if return_dict is False else output

    def _embeddings(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Return embeddings ``[B, S, E]`` of either input."""
        if (input_ids is None) == (inputs_embeds is None):
            raise InvalidRequestError(
                "input_ids", input_ids, "give exactly one of `input_ids` and `inputs_embeds`"
            )
        if inputs_embeds is not None:
            width = self.config.hidden_size
            if inputs_embeds.dim() != 3 or inputs_embeds.shape[2] != width:
                shape = tuple(inputs_embeds.shape)
                raise InvalidRequestError(
                    "inputs_embeds", shape, f"its shape must be [B, S, {width}]"
                )
            return inputs_embeds.to(self.device, self.dtype)
        assert input_ids is not None
        if input_ids.dim() != 2 or input_ids.is_floating_point():
            raise InvalidRequestError(
                "input_ids",
                f"{tuple(input_ids.shape)} {input_ids.dtype}",
                "give integers of shape [B, S]",
            )
        ids = input_ids.to(self.device, torch.int64)
        size = self.config.vocab_size
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):
            raise InvalidRequestError(
                "input_ids", [int(ids.min()), int(ids.max())], f"ids go from 0 to {size - 1}"
            )
        return self.core.embed(ids)

    def _positions(
        self, position_ids: Tensor | None, mask: Tensor | None, embeddings: Tensor, start: int
    ) -> Tensor:
        """Return positions ``[B or 1, S]``."""
        batch, length, _ = embeddings.shape
        if position_ids is not None:
            positions = position_ids.to(self.device, torch.int64)
            positions = positions[None] if positions.dim() == 1 else positions
            if positions.shape not in ((batch, length), (1, length)):
                raise InvalidRequestError(
                    "position_ids",
                    tuple(position_ids.shape),
                    f"its shape must be [{batch}, {length}] or [1, {length}]",
                )
            return positions
        if mask is None:
            return torch.arange(start, start + length, device=self.device)[None]
        counted = mask.cumsum(dim=1) - 1  # [B, P + S]
        return counted[:, start:].clamp(min=0)


def load_model(
    source: str | os.PathLike[str],
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    progress: bool = True,
) -> PreTrainedModel:
    """Load a model.

    Load it on the thread that will compute: a second computing thread costs speed.

    Args:
        source: ``"demo"``, a folder, or the id of a repository on the hub.
        device: Where to compute; ``None`` is CUDA where there is one, else the CPU.
        dtype: What to compute in; ``None`` or ``"auto"`` is what the checkpoint says.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Never download.
        progress: Whether a bar may be shown for a load of more than a second.

    Raises:
        ModelLoadError: There is no such checkpoint, or it cannot be read.
        UnsupportedModelError: Its ``model_type`` has no implementation.
        InvalidRequestError: The device or the dtype is none.
    """
    chosen = _check_device(device)
    folder = resolve(
        source,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    raw = _read_config(folder)
    config = ModelConfig.from_hf(raw)
    generation_config = _read_generation_config(folder, config)
    checkpoint = open_checkpoint(folder)
    kind = resolve_dtype(dtype, raw, checkpoint)
    with torch.device("meta"):
        core = MODELS[config.model_type](config, dtype=kind)
    load_weights(
        core,
        checkpoint.below(core.stack_prefix),
        dtype=kind,
        device=chosen,
        # Some checkpoints store a tied head all the same.
        ignored=(r"^lm_head\.weight$",) if config.tie_word_embeddings else (),
        progress=progress,
    )
    return PreTrainedModel(core, generation_config, str(source))


def load_tokenizer(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    add_prefix_space: bool | None = None,
) -> Tokenizer:
    """Load a tokenizer; parameters as in :func:`load_model`.

    Args:
        source: ``"demo"``, a folder, or the id of a repository on the hub.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Never download.
        add_prefix_space: Whether a text is split as if a space stood before it; ``None`` leaves it
            to the files.

    Raises:
        ModelLoadError: There is no such tokenizer, or it cannot be read.
    """
    folder = resolve(
        source,
        weights=False,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    tokenizer = Tokenizer.from_folder(folder, add_prefix_space=add_prefix_space)
    tokenizer.name_or_path = str(source)
    return tokenizer


def set_seed(seed: int) -> None:
    """Seed the generators of Python, torch, and numpy if it is in use.

    Args:
        seed: From 0 to 2**32 - 1.

    Raises:
        InvalidRequestError: The seed is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidRequestError("seed", seed, "give an integer from 0 to 2**32 - 1")
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelLoadError(
            f"{folder} has no config.json, so it is no checkpoint; give the folder that has one"
        )
    raw = read_json(file)
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown method")
        raise ModelLoadError(
            f"{folder} is quantised ({method}), which is not supported; "
            "use the model that it was made of"
        )
    return raw


def _read_generation_config(folder: Path, config: ModelConfig) -> GenerationConfig:
    if (folder / CONFIG_FILE).is_file():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(config)


def _check_device(device: str | int | torch.device | None) -> torch.device:
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidRequestError(
            "device", device, f"it cannot be used ({reason}); use 'cpu'"
        ) from error
    return chosen


def _check_cache(past_key_values: object) -> Cache:
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
    if cache_position is None:
        return
    if cache_position.tolist() != list(range(start, start + length)):
        raise InvalidRequestError(
            "cache_position",
            cache_position.tolist(),
            f"tokens are appended to the cache, here at {start} to {start + length - 1}",
        )


def _check_mask(attention_mask: Tensor | None, embeddings: Tensor, start: int) -> Tensor | None:
    """Return a boolean mask ``[B, P + S]``."""
    if attention_mask is None:
        return None
    expected = (embeddings.shape[0], start + embeddings.shape[1])
    if attention_mask.shape != expected:
        raise InvalidRequestError(
            "attention_mask",
            tuple(attention_mask.shape),
            f"its shape must be {list(expected)}: rows, and positions of cache and input together",
        )
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


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood of each label after the position before it."""
    if labels.shape != logits.shape[:2]:
        raise InvalidRequestError(
            "labels", tuple(labels.shape), f"its shape must be {list(logits.shape[:2])}"
        )
    predicted = logits[:, :-1].float().flatten(0, 1)  # [B * (S - 1), V]
    return F.cross_entropy(predicted, labels[:, 1:].to(logits.device).flatten(), ignore_index=-100)
