"""A model that its user wrote: a module of torch that has `GenerationMixin` as a base.

Nothing is known of its network. Generation asks its ``prepare_inputs_for_generation`` for the
arguments of each step, calls it with these, and reads ``logits`` and ``past_key_values`` of what it
returns.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.cache.layer_windows import layer_windows
from asyncgen.errors import InvalidRequestError, InWords, class_name
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.custom_methods import accepted_arguments, parameter_names
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Mapping


_CONFIG = {
    "is_encoder_decoder": False,
    "max_position_embeddings": None,
    "hidden_size": None,
    "model_type": None,
    "num_hidden_layers": 0,
    "tie_word_embeddings": False,
    "position_limit": None,
}
"""What generation reads of a configuration that may not say it."""


_OFFERED = ("past_key_values", "use_cache", "position_ids", "logits_to_keep", "return_dict")
"""Arguments that generation offers to every model, for those that take them."""

_ASKED_FOR = ("token_type_ids", "inputs_embeds", "output_attentions", "output_hidden_states")
"""Arguments that a model gets where a call asks for them."""


class WrittenConfig:
    """Reads a configuration of any kind, with defaults for what it does not say."""

    def __init__(self, config: object) -> None:
        """Keep the configuration; ``None`` for a model without one."""
        self._config = config

    def __getattr__(self, name: str) -> Any:
        """Look up a value, or its default."""
        if hasattr(self._config, name):
            return getattr(self._config, name)
        if name in _CONFIG:
            return _CONFIG[name]
        heads = getattr(self._config, "num_attention_heads", None)
        width = getattr(self._config, "hidden_size", None)
        if name == "num_key_value_heads" and heads:
            return heads
        if name == "head_dim" and heads and width:
            return width // heads
        raise AttributeError(name)

    def window(self, layer: int) -> int | None:
        """Return the window that the configuration says of a layer; ``None``: it has none."""
        return layer_windows(self._config)[layer]


class WrittenCore:
    """Stands for the network, which generation does not call by itself.

    Attributes:
        config: What is known of it.
    """

    def __init__(self, config: WrittenConfig) -> None:
        """Keep the configuration."""
        self.config = config

    def decode(self, input_ids: Any, positions: Any, attention: Any) -> Any:
        """Refuse to compute: the model is called as it was written."""
        raise NotImplementedError("a model of a user is called, not its network")


class WrittenModel:
    """A user's model as generation sees it.

    Attributes:
        module: The model.
        config: Its configuration, with defaults.
        core: In the place of a network of this library.
        generation_config: Its own, or one made of its configuration.
        device: Where it computes.
        dtype: Of its weights.
    """

    def __init__(self, module: Any) -> None:
        """Read what generation needs.

        Args:
            module: The model.

        Raises:
            InvalidRequestError: It does not say how many tokens there are.
        """
        self.module: Any = module
        self.config = WrittenConfig(getattr(module, "config", None))
        if not isinstance(getattr(self.config, "vocab_size", None), int):
            allowed = "generation needs the number of tokens; set it on the model's `config`"
            value = getattr(self.config, "vocab_size", None)
            raise InvalidRequestError("model.config.vocab_size", value, allowed)
        if self.config.is_encoder_decoder:
            allowed = "a model of your own has no encoder here; use a class of this library"
            raise InvalidRequestError("model.config.is_encoder_decoder", True, allowed)
        self.core = WrittenCore(self.config)
        own = getattr(module, "generation_config", None)
        self.generation_config: Any = _default(self.config) if own is None else own
        first = next(
            iter(getattr(module, "parameters", list)()),
            torch.empty(0, dtype=torch.float32, device="cpu"),
        )
        self.device = device_of(module)
        self.dtype: torch.dtype = getattr(module, "dtype", first.dtype)
        known = dict.fromkeys((*_OFFERED, *_ASKED_FOR))
        self._unasked = known.keys() - accepted_arguments(self.forward, known).keys()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, less what it does not ask for and what changes nothing."""
        for name in self._unasked & kwargs.keys():
            if name in _OFFERED or not kwargs[name]:
                del kwargs[name]
        with torch.no_grad():
            output = run_user_code(self.module, *args, **kwargs)
        if isinstance(output, dict) and not hasattr(output, "logits"):
            output = SimpleNamespace(**output)
        logits = getattr(output, "logits", None)
        allowed = "must return an object or a dict with `logits`, [B, S, V], S of at least 1"
        if not isinstance(logits, torch.Tensor):
            raise InvalidRequestError("forward", class_name(output), allowed)
        if logits.dim() != 3 or 0 in logits.shape:
            raise InvalidRequestError("forward", InWords(f"`logits` of {[*logits.shape]}"), allowed)
        return output

    @property
    def cache_config(self) -> WrittenConfig | None:
        """Number and windows of the layers of a new cache, if the configuration tells."""
        return self.config if self.config.num_hidden_layers else None

    def check(self, config: GenerationConfig, given: Mapping[str, Any]) -> None:
        """Refuse what a call asks of a model that does not take it.

        Args:
            config: Complete but for lengths.
            given: The caller's arguments that are no fields of it.

        Raises:
            InvalidRequestError: Names the parameter.
        """
        wanted = config.cache_implementation
        is_known = self.cache_config is not None and hasattr(self.config, "head_dim")
        if wanted not in (None, "dynamic", "dynamic_full", "offloaded") and not is_known:
            allowed = (
                "the layers of your model are not known; set `num_hidden_layers`, `hidden_size` "
                "and `num_attention_heads` on its `config`, or pass a cache as `past_key_values`"
            )
            raise InvalidRequestError("cache_implementation", wanted, allowed)
        for name in ("position_ids", "token_type_ids", "inputs_embeds"):
            if given.get(name) is not None and name in self._unasked:
                allowed = f"`{type(self.module).__name__}.forward` has no parameter of that name"
                raise InvalidRequestError(name, type(given[name]).__name__, allowed)

    @property
    def takes_cache(self) -> bool:
        """Whether it may be told the newest ids alone: false if only `forward` decides what it
        reads, and that has no ``past_key_values``."""
        names = parameter_names(self.forward)
        hands_on = not names & {"input_ids", "inputs_embeds"}
        is_own = not _is_default(self.prepare_inputs_for_generation)
        return is_own or hands_on or "past_key_values" in names

    @property
    def takes_mask(self) -> bool:
        """Whether it can be given an attention mask where nothing is padded."""
        hook = self.prepare_inputs_for_generation
        asked = self.forward if _is_default(hook) else hook
        return bool(accepted_arguments(asked, {"attention_mask": None}))

    @property
    def forward(self) -> Any:
        """The model's method, which says what it takes."""
        return self.module.forward

    @property
    def prepare_inputs_for_generation(self) -> Any:
        """The model's method, which makes the arguments of each step."""
        return self.module.prepare_inputs_for_generation


def device_of(model: Any) -> torch.device:
    """Return where a model of any kind computes: what it says, or where its first weight lies."""
    first = next(
        iter(getattr(model, "parameters", list)()),
        torch.empty(0, dtype=torch.float32, device="cpu"),
    )
    found: torch.device = getattr(model, "device", first.device)
    return found


def seen_by_generation(module: Any) -> Any:
    """Return a model of this library as it is, and one of a user as generation needs it."""
    return module if hasattr(getattr(module, "core", None), "decode") else WrittenModel(module)


def as_written(model: Any) -> Any:
    """Return the model that methods of a user get: the user's own."""
    return model.module if isinstance(model, WrittenModel) else model


def _is_default(hook: Any) -> bool:
    return getattr(hook, "__module__", "").startswith("asyncgen.")


def _default(config: WrittenConfig) -> GenerationConfig:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return GenerationConfig(**{name: getattr(config, name, None) for name in names})
