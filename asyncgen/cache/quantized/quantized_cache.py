"""The documented quantised caches: growing caches whose older positions take few bits."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.quantized.backends import BACKENDS
from asyncgen.cache.quantized.fp8_layer import Fp8QuantizedLayer
from asyncgen.cache.quantized.quantized_layer import HQQQuantizedLayer, QuantoQuantizedLayer
from asyncgen.cache.quantized.settings import QuantizedCacheConfig, read_settings
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.cache.layers import DynamicLayer
    from asyncgen.families.config import ModelConfig


class QuantizedCache(DynamicCache):
    """A growing cache that keeps all but the newest positions in few bits.

    Each layer has two stores, after KIVI (Liu et al. 2024, arXiv 2402.02750). The first write (the
    prompt) is quantised at once, in groups of ``q_group_size`` numbers. Later positions are kept
    exactly until there are ``residual_length`` of them; then everything is quantised anew. Reading
    gives ``[B, K, T, D]`` in the model's dtype. With 4 bits and groups of 64 that takes 0.28 of
    bfloat16, plus the newest positions.

    If groups reach over rows (along axis -1 with quanto, and with HQQ), a row's numbers depend on
    the rows beside it. `crop` of quantised positions does not make those before it exact again.
    The backend ``fp8`` quantises every position once, with the scale of the first write.

    Example::

        past_key_values = QuantizedCache(QuantizedCacheConfig(nbits=2, residual_length=64))
        outputs = model(**inputs, past_key_values=past_key_values, use_cache=True)
        past_key_values = QuantizedCache("fp8", model.config)
        model.generate(**inputs, cache_implementation="quantized", cache_config={"nbits": 4})
    """

    _backend: ClassVar[str | None] = None
    """Backend of the class, over that of the settings; ``None``: that of the settings."""

    def __init__(
        self,
        cache_config: QuantizedCacheConfig | str | None = None,
        config: ModelConfig | None = None,
        nbits: int | None = None,
        axis_key: int | None = None,
        axis_value: int | None = None,
        q_group_size: int | None = None,
        residual_length: int | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        """Begin empty.

        Args:
            cache_config: The settings; or, in newer code, the backend, with the settings one by
                one.
            config: The model's, for the number of layers; without it they come as they are used.
            nbits: See `QuantizedCacheConfig`, here and below; ``None`` is the default there.
            axis_key: Axis along which keys are grouped.
            axis_value: Axis along which values are grouped.
            q_group_size: Numbers of a group.
            residual_length: Positions at which everything is quantised anew.
            backend: The newer name of the first argument.

        Raises:
            InvalidRequestError: A setting is out of range or there twice, or the model has layers
                with a window.
        """
        single = {
            "nbits": nbits,
            "axis_key": axis_key,
            "axis_value": axis_value,
            "q_group_size": q_group_size,
            "residual_length": residual_length,
        }
        if isinstance(cache_config, QuantizedCacheConfig):
            for name, value in {**single, "backend": backend}.items():
                if value is not None:
                    allowed = "is a setting of `cache_config` as well; give only one of them"
                    raise InvalidRequestError(name, value, allowed)
            settings = cache_config
        else:
            if cache_config is not None and backend is not None:
                raise InvalidRequestError("backend", backend, "is the first argument as well")
            settings = read_settings({**single, "backend": cache_config or backend})
        name = self._backend or settings.backend
        settings.validate_for(name)
        self.settings = settings
        if config is not None:
            check_model(config)
        new_layer = _layer_maker(settings, name)
        depth = 0 if config is None else config.num_hidden_layers
        self._open([new_layer() for _ in range(depth)], new_layer)
        self._name = name.lower()

    @classmethod
    def from_legacy_cache(cls, past_key_values: object = None) -> NoReturn:
        """Refuse tuples, which say nothing of bits.

        Raises:
            InvalidRequestError: Always.
        """
        allowed = f"make a `{cls.__name__}` of settings, and `update` it with keys and values"
        raise InvalidRequestError("past_key_values", type(past_key_values).__name__, allowed)

    def check_prompt(self, rows: int, length: int, config: ModelConfig) -> None:
        """Refuse groups that fit neither the model nor a prompt, before anything is computed.

        Args:
            rows: Rows of the batch, B.
            length: Positions of the prompt.
            config: The model's.

        Raises:
            InvalidRequestError: Names ``q_group_size``.
        """
        if self._name not in BACKENDS:
            return
        settings, heads, size = self.settings, config.num_key_value_heads, config.head_dim
        shape = torch.Size((rows, heads, length, size))
        count, group = BACKENDS[self._name].numbers_of_line, _whole(settings, "q_group_size")
        axes = (_whole(settings, "axis_key"), _whole(settings, "axis_value"))
        lines = {count(shape, axis) for axis in axes}
        widths = {config.hidden_size, heads * size}
        if all(width % group for width in widths) and any(line % group for line in lines):
            raise InvalidRequestError(
                "q_group_size",
                group,
                f"give a divisor of the model's hidden dimension, {config.hidden_size}",
            )


class QuantoQuantizedCache(QuantizedCache):
    """A cache quantised by `quanto`, whatever the settings name; see `QuantizedCache`.

    2 or 4 bits; axes 0 and -1.
    """

    _backend = "quanto"


class HQQQuantizedCache(QuantizedCache):
    """A cache quantised by `HQQ`, whatever the settings name; see `QuantizedCache`.

    1, 2, 3, 4 or 8 bits; axes 0 and 1.
    """

    _backend = "HQQ"


def check_model(config: Any) -> None:
    """Refuse models that quantised caches are not for, as the reference does.

    Args:
        config: The model's.

    Raises:
        InvalidRequestError: The model has an encoder, or layers with a window.
    """
    if getattr(config, "is_encoder_decoder", False):
        reason = "not for models with an encoder"
    elif any(config.window(layer) is not None for layer in range(config.num_hidden_layers)):
        reason = "not for models whose layers have a sliding window"
    else:
        return
    allowed = f"{reason}; use `dynamic`, `offloaded` or `static`"
    raise InvalidRequestError("cache_implementation", "quantized", allowed)


_LAYERS: Final = {"quanto": QuantoQuantizedLayer, "hqq": HQQQuantizedLayer}


def _layer_maker(settings: QuantizedCacheConfig, backend: str) -> Callable[[], DynamicLayer]:
    """Return what makes a layer, from checked settings."""
    device = None if settings.device is None else torch.device(settings.device)
    places: dict[str, Any] = {"compute_dtype": settings.compute_dtype, "storage_device": device}
    if backend.lower() == "fp8":
        return functools.partial(Fp8QuantizedLayer, **places)
    names = ("nbits", "axis_key", "axis_value", "q_group_size", "residual_length")
    groups = [_whole(settings, name) for name in names]
    return functools.partial(_LAYERS[backend.lower()], *groups, **places)


def _whole(settings: QuantizedCacheConfig, name: str) -> int:
    """Return a checked setting as an integer of Python."""
    return operator.index(getattr(settings, name))
