"""The values of a foreign ``config.json``, checked one by one; every complaint names the key.

Knows the families' spellings and defaults, and nothing of what the values are put together to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import ModelLoadError, UnsupportedModelError, shorten
from asyncgen.models.attention.options import AttentionOptions
from asyncgen.models.config.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_HIDDEN_ACTS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
_DTYPES = ("float32", "float16", "bfloat16", "float64")

_HUGE = 1e300

MOST = 2**31 - 1
"""Greatest whole number that makes sense anywhere in a file."""

MOST_LAYERS = 10_000
"""Layers of a stack, far beyond any that exists: each is an object, however small."""


class ConfigValues:
    """Takes one foreign dictionary apart; every complaint names the key."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        """Take the file.

        Args:
            raw: The parsed file.

        Raises:
            UnsupportedModelError: The ``model_type`` has no implementation.
        """
        model_type = raw.get("model_type")
        if not isinstance(model_type, str) or model_type not in FAMILIES:
            stated = f"says {shorten(model_type)}"
            if model_type is None:
                stated = "has no `model_type`"
            raise UnsupportedModelError(
                f"config.json {stated}: supported are {', '.join(sorted(FAMILIES))}"
            )
        self.model_type = model_type
        self.family = family = FAMILIES[model_type]
        self.file = raw
        self.raw = {key: value for key, value in raw.items() if key not in family.unread}
        for ours, theirs in family.spellings.items():
            if theirs in raw:
                self.raw[ours] = raw[theirs]

    def num_layers(self) -> int:
        """Layers of the decoder."""
        if not self.family.relative_positions:
            return self.count("num_hidden_layers", most=MOST_LAYERS)
        # Null or missing: as many as the encoder has.
        encoder = self.count("num_layers", most=MOST_LAYERS)
        return self.count("num_decoder_layers", default=encoder, most=MOST_LAYERS)

    def buckets(self) -> int:
        """Buckets of relative positions."""
        key = "relative_attention_num_buckets"
        value = self.count(key)
        if value < 4 or value // 2 >= self.count("relative_attention_max_distance"):
            allowed = "must be at least 4 and less than twice the greatest distance"
            raise self.bad(key, value, allowed)
        return value

    def activation(self) -> str:
        """The activation of the feed-forward block."""
        if self.family.relative_positions:
            return self.feed_forward()[1]
        return self.choice("hidden_act", _HIDDEN_ACTS, self.family.hidden_act)

    def feed_forward(self) -> tuple[bool, str]:
        """Whether the block is gated, and its activation, from a name such as ``gated-gelu``."""
        key = "feed_forward_proj"
        stated = self.raw.get(key, "relu")
        name = stated.removeprefix("gated-") if isinstance(stated, str) else ""
        if name not in _HIDDEN_ACTS:
            names = ", ".join(_HIDDEN_ACTS)
            raise self.bad(key, stated, f"supported are {names}, each also after `gated-`")
        is_gated = name != stated
        # The released gated checkpoints were trained with the approximation by tanh.
        return is_gated, "gelu_new" if is_gated and name == "gelu" else name

    def value(self, key: str) -> object:
        """What stands under a key, else the family's default."""
        found = self.raw.get(key)
        return self.family.defaults.get(key) if found is None else found

    def bad(self, key: str, value: object, allowed: str) -> ModelLoadError:
        """A complaint about a key, in the spelling of the file."""
        return bad(self.spelling(key), value, allowed)

    def spelling(self, key: str) -> str:
        """What the file calls a key."""
        theirs = self.family.spellings.get(key, key)
        return theirs if theirs in self.file else key

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        name = self.spelling(key)
        return number({name: self.value(key)}, name, default)

    def epsilon(self) -> float:
        """What keeps the root of a norm from nothing."""
        value = self.number("rms_norm_eps", 1e-6)
        if value < 0:
            raise self.bad("rms_norm_eps", value, "must not be below 0")
        return value

    def width(self, hidden: int) -> int:
        """Width of the feed-forward block."""
        # A null or missing `n_inner` is four times the width of the stream.
        default = 4 * hidden if self.family.learned_positions else None
        return self.count("intermediate_size", default=default)

    def attention(
        self, layers: int, head_dim: int, window: int | None, layer_types: tuple[str, ...]
    ) -> tuple[AttentionOptions, ...]:
        """Window and scale of each layer; nothing else is known of today's families."""
        kinds = (window if kind == "sliding_attention" else None for kind in layer_types)
        scales = self._scales(layers, head_dim)
        return tuple(
            AttentionOptions(window=kind, scale=scale)
            for kind, scale in zip(kinds, scales, strict=True)
        )

    def _scales(self, layers: int, head_dim: int) -> tuple[float | None, ...]:
        """Factors where a file departs from one over the root of the head's size."""
        if self.family.relative_positions:
            return (1.0,) * layers
        if not self.family.learned_positions:
            return (None,) * layers
        is_plain = self.flag("scale_attn_weights")
        is_layered = self.flag("scale_attn_by_inverse_layer_idx")
        if is_plain and not is_layered:
            return (None,) * layers
        root = head_dim**-0.5 if is_plain else 1.0
        return tuple(root / (layer + 1 if is_layered else 1) for layer in range(layers))

    def count(self, key: str, *, default: int | None = None, most: int = MOST) -> int:
        """An integer of at least 1."""
        value = self.value(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.bad(key, value, f"must be a whole number of at least 1, {most} at most")
        return value

    def kv_heads(self, heads: int) -> int:
        """Key and value heads."""
        # Null means one per query head; only a missing key has a default of its own.
        if "num_key_value_heads" in self.raw and self.raw["num_key_value_heads"] is None:
            return heads
        return self.count("num_key_value_heads", default=heads)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.value(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.bad(key, value, "must be true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of several names."""
        value = self.raw.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.bad(key, value, f"supported are {', '.join(allowed)}")
        return value

    def token(self, key: str) -> int | None:
        """A token id, or none."""
        # A key that is present and null means "there is none", unlike a key that is missing.
        value = self.raw[key] if key in self.raw else self.family.defaults.get(key)
        if value is None:
            return None
        if not _is_token(value):
            raise self.bad(key, value, "must be a token id or null")
        assert isinstance(value, int)
        return value

    def tokens(self, key: str) -> int | list[int] | None:
        """A token id or several, or none."""
        value = self.raw.get(key)
        if isinstance(value, (list, tuple)):
            if not value or not all(map(_is_token, value)):
                raise self.bad(key, value, "must be a token id, a list of them, or null")
            return list(value)
        return self.token(key)

    def head_dim(self, hidden: int, heads: int) -> int:
        """Size of a head."""
        if self.value("head_dim") is None and hidden % heads:
            raise self.bad(
                "hidden_size", hidden, f"must be a multiple of num_attention_heads ({heads})"
            )
        size = self.count("head_dim", default=hidden // heads)
        turned = not (self.family.learned_positions or self.family.relative_positions)
        if size % 2 and turned:
            raise self.bad("head_dim", size, "rotary embeddings turn pairs, so it must be even")
        return size

    def windows(self, layers: int) -> tuple[int | None, tuple[str, ...]]:
        """Window and kind of each layer, by the rules of the family."""
        rule = self.family.windows
        off = rule == "none" or (rule == "listed" and not self.flag("use_sliding_window"))
        # Unlike elsewhere, null is not "missing": newer Mistral checkpoints write it for "off".
        stated = self.raw.get("sliding_window", self.family.defaults.get("sliding_window"))
        window = None if off or stated is None else self.count("sliding_window")
        first: object = 0
        if rule == "listed":
            first = self.raw.get("max_window_layers", self.family.defaults["max_window_layers"])
        if not isinstance(first, int) or abs(first) > MOST:
            raise self.bad("max_window_layers", first, "must be a whole number")
        expected = tuple(
            "sliding_attention" if window is not None and layer >= first else "full_attention"
            for layer in range(layers)
        )
        types = self.layer_types(layers, expected, fixed=rule != "listed")
        if window is None and "sliding_attention" in types:
            raise self.bad(
                "layer_types", list(types), "has sliding layers, but no sliding_window is in use"
            )
        return window, types

    def layer_types(
        self, layers: int, expected: tuple[str, ...], *, fixed: bool
    ) -> tuple[str, ...]:
        """Kind of each layer, where the file may say it and where it is ``fixed``."""
        stated = self.raw.get("layer_types")
        if stated is None:
            return expected
        allowed = ("full_attention", "sliding_attention")
        if (
            not isinstance(stated, (list, tuple))
            or len(stated) != layers
            or any(kind not in allowed for kind in stated)
        ):
            raise self.bad(
                "layer_types", stated, f"must list one of {', '.join(allowed)} for {layers} layers"
            )
        if fixed and tuple(stated) != expected:
            raise self.bad("layer_types", stated, f"{self.model_type} layers are all {expected[0]}")
        return tuple(stated)

    def dtype(self) -> str | None:
        """Name of the dtype of the weights, if the file says it."""
        key = "dtype" if self.raw.get("dtype") is not None else "torch_dtype"
        value = self.raw.get(key)
        if value is None or value == "auto":
            return None
        name = value.removeprefix("torch.") if isinstance(value, str) else None
        if name not in _DTYPES:
            raise self.bad(key, value, f"supported are {', '.join(_DTYPES)}")
        return name


def present(source: Mapping[str, object]) -> dict[str, object]:
    """What is not null."""
    return {key: value for key, value in source.items() if value is not None}


def number(source: Mapping[str, object], key: str, default: float) -> float:
    """A finite number of a dictionary."""
    value = source.get(key)
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _HUGE:
        return float(value)
    raise bad(key, value, "must be a finite number")


def _is_token(value: object) -> bool:
    """Whether this is a whole number that a tensor of ids can hold; some files say -1."""
    return type(value) is int and abs(value) <= MOST


def bad(key: str, value: object, allowed: str) -> ModelLoadError:
    """A complaint about a key of ``config.json``."""
    return ModelLoadError(f"config.json: `{key}` is {shorten(value)}: {allowed}")
