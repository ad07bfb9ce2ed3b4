"""What a checkpoint's ``config.json`` says about the network, read once and never changed.

Foreign spellings and defaults end here: every other module reads `ModelConfig`. This module knows
no tensors and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar

from asyncgen.models.config.values import MOST, MOST_LAYERS, ConfigValues, bad, number, present

if TYPE_CHECKING:
    from collections.abc import Collection

    from asyncgen.models.attention.options import AttentionOptions


_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries that grow with the logarithm of their position, so that long texts stay sharp.

    The factor at position p is ``1 + beta * log(1 + floor((p + offset) / length))``.

    Attributes:
        beta: What the logarithm is multiplied by.
        length: Positions that share a factor, at least 1.
        offset: 1 where positions are counted from 1 (Llama 4), 0 otherwise (Ministral).
    """

    beta: float
    length: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding, in one spelling for all the ways it is written down.

    Attributes:
        rope_type: ``none``, ``default``, ``linear``, ``dynamic``, ``llama3``, ``yarn`` or
            ``longrope``.
        theta: Base of the wavelengths, above 0.
        factor: How many times longer the context became, at least 1 in sensible checkpoints.
        original_max_position_embeddings: Context length in tokens before it was stretched.
        low_freq_factor: ``llama3``: wavelengths above original / low are stretched in full.
        high_freq_factor: ``llama3``: wavelengths below original / high are left alone.
        beta_fast: ``yarn``: rotations within the original context above which nothing changes.
        beta_slow: ``yarn``: rotations below which the wavelength is stretched in full.
        attention_factor: ``yarn``: factor on cos and sin; ``None`` derives it from the rest.
        mscale: ``yarn``: numerator's weight in the derived attention factor.
        mscale_all_dim: ``yarn``: denominator's weight in the derived attention factor.
        truncate: ``yarn``: whether the bounds of the ramp are rounded outwards.
        short_factors: ``longrope``: what divides the frequency of each pair that is turned, while
            the longest text in sight is not beyond the original length.
        long_factors: ``longrope``: the same beyond it.
        turned: Part of a head that is turned, above 0 and at most 1: the first pairs; the others
            have frequency 0.
        query_scaling: Factor on the queries by position; ``None``: none.
    """

    rope_type: str = "default"
    theta: float = _DEFAULT_THETA
    factor: float = 1.0
    original_max_position_embeddings: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    turned: float = 1.0
    query_scaling: QueryScaling | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A network, as its checkpoint describes it; where it has two stacks, its decoder.

    Field names keep the checkpoint's spelling; values are complete (defaults filled in).

    Attributes:
        model_type: Architecture, such as ``"llama"``.
        vocab_size: Rows of the embedding table, V.
        hidden_size: Width of the residual stream, E.
        intermediate_size: Width of the feed-forward block.
        num_hidden_layers: Number of decoder layers.
        num_attention_heads: Query heads, H.
        num_key_value_heads: Key and value heads, K; divides H.
        head_dim: Size of a head, D; even where positions are rotary.
        max_position_embeddings: Context length in tokens; ``None`` where nothing limits it.
        rms_norm_eps: Added to the mean square, or the variance, before the root.
        rope: Rotary position embedding; says nothing where positions are of another kind.
        learned_positions: Whether positions are rows of a table, which ends with the context.
        attention: What each layer's attention does.
        ropes: Rotary positions of each layer, where they are not `rope` everywhere; ``None``:
            they are. Layers that turn alike share an equal one.
        sliding_window: Keys that a query of a sliding layer sees, itself included; ``None``: all.
        layer_types: ``"full_attention"`` or ``"sliding_attention"`` for each layer.
        attention_bias: Whether q, k and v projections have biases.
        attention_output_bias: Whether the attention's output projection has a bias.
        mlp_bias: Whether the feed-forward projections have biases.
        tie_word_embeddings: Whether the output head is the embedding table.
        hidden_act: Activation of the feed-forward block.
        bos_token_id: First token of a text.
        eos_token_id: Token or tokens that end a text.
        pad_token_id: Filler for shorter rows of a batch.
        dtype: Name of the dtype the checkpoint asks for, such as ``"bfloat16"``.
        raw: The file as it was.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int | None
    rms_norm_eps: float
    rope: RopeConfig
    learned_positions: bool
    attention: tuple[AttentionOptions, ...]
    ropes: tuple[RopeConfig, ...] | None
    sliding_window: int | None
    layer_types: tuple[str, ...]
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    hidden_act: str
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    dtype: str | None
    raw: Mapping[str, object] = field(repr=False, compare=False)

    @classmethod
    def from_hf(cls, raw: Mapping[str, object]) -> ModelConfig:
        """Read the content of a ``config.json``.

        Args:
            raw: The parsed file. Missing keys get the defaults of its ``model_type``.

        Raises:
            UnsupportedModelError: The ``model_type`` has no implementation.
            ModelLoadError: A value is missing, of the wrong kind, or not supported.
        """
        return _Reader(raw).read()

    def fitted_to(self, stored: Collection[str]) -> ModelConfig:
        """The description that goes with a checkpoint's weights.

        Args:
            stored: Names of the tensors that are stored.
        """
        return self

    is_encoder_decoder: ClassVar[bool] = False
    """Whether there is an encoder as well."""

    @property
    def position_limit(self) -> int | None:
        """Positions that the network has at all; ``None`` where it goes on beyond its context."""
        return self.max_position_embeddings if self.learned_positions else None

    @property
    def rope_theta(self) -> float:
        """Base of the rotary wavelengths."""
        return self.rope.theta

    def window(self, layer: int) -> int | None:
        """Keys that a query of this layer sees, itself included; ``None``: all of them."""
        return self.attention[layer].window

    def to_dict(self) -> dict[str, object]:
        """The file's content with every default filled in, ready for ``json.dump``."""
        names = (field.name for field in fields(self) if field.name not in _NOT_IN_FILE)
        return {**self.raw, **{name: _plain(getattr(self, name)) for name in names}}


@dataclass(frozen=True, slots=True)
class T5Config(ModelConfig):
    """An encoder and a decoder with relative positions, as a checkpoint describes them.

    The fields of `ModelConfig` describe the decoder; both stacks are of one width.

    Attributes:
        num_encoder_layers: Number of encoder layers.
        relative_attention_num_buckets: Rows of the table of position biases.
        relative_attention_max_distance: Distance from which all share the last bucket.
        is_gated_act: Whether the feed-forward blocks are gated.
        scale_decoder_outputs: Whether the decoder's output is divided by the root of its width.
        decoder_start_token_id: First token of the decoder.
    """

    num_encoder_layers: int
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    is_gated_act: bool
    scale_decoder_outputs: bool
    decoder_start_token_id: int | None

    is_encoder_decoder: ClassVar[bool] = True
    """Whether there is an encoder as well."""

    def fitted_to(self, stored: Collection[str]) -> ModelConfig:
        """The description that goes with a checkpoint's weights."""
        # Newer files say "tied" of every T5; whether there is a head tells by the weights alone.
        is_tied = self.scale_decoder_outputs or "lm_head.weight" not in stored
        return replace(self, tie_word_embeddings=is_tied)


_NOT_IN_FILE = frozenset(
    {"raw", "rope", "ropes", "attention", "attention_output_bias", "learned_positions"}
)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


class _Reader(ConfigValues):
    """Takes one foreign dictionary apart."""

    def read(self) -> ModelConfig:
        if self.flag("add_cross_attention"):
            raise self.bad("add_cross_attention", True, "this type is supported as a decoder alone")
        heads = self.count("num_attention_heads")
        kv_heads = self.kv_heads(heads)
        if heads % kv_heads:
            raise self.bad("num_key_value_heads", kv_heads, f"must divide the {heads} query heads")
        hidden = self.count("hidden_size")
        layers = self.num_layers()
        family = self.family
        relative = family.relative_positions
        positions = None if relative else self.count("max_position_embeddings")
        window, layer_types = self.windows(layers)
        bias = {"key": self.flag("attention_bias"), "always": True, "never": False}
        head_dim = self.head_dim(hidden, heads)
        rope = RopeConfig() if positions is None else _read_rope(self.raw, positions)
        if rope.rope_type == "dynamic" and head_dim < 4:
            raise self.bad("head_dim", head_dim, "must be at least 4 for rope type 'dynamic'")
        config = ModelConfig(
            model_type=self.model_type,
            vocab_size=self.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=self.width(hidden),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=positions,
            rms_norm_eps=self.epsilon(),
            rope=rope,
            learned_positions=family.learned_positions,
            attention=self.attention(layers, hidden // heads, window, layer_types),
            ropes=None,
            sliding_window=window,
            layer_types=layer_types,
            attention_bias=bias[self.family.attention_bias],
            attention_output_bias=self.family.output_bias and self.flag("attention_bias"),
            mlp_bias=self.family.mlp_bias and self.flag("mlp_bias"),
            tie_word_embeddings=self.flag("tie_word_embeddings"),
            hidden_act=self.activation(),
            bos_token_id=self.token("bos_token_id"),
            eos_token_id=self.tokens("eos_token_id"),
            pad_token_id=self.token("pad_token_id"),
            dtype=self.dtype(),
            raw=dict(self.file),
        )
        return self.extend(config) if relative else config

    def extend(self, decoder: ModelConfig) -> T5Config:
        """Add what the encoder and relative positions need."""
        is_tied = self.flag("tie_word_embeddings")
        is_scaled = self.file.get("scale_decoder_outputs", is_tied)
        if not isinstance(is_scaled, bool):
            raise self.bad("scale_decoder_outputs", is_scaled, "must be true or false")
        known = {field.name: getattr(decoder, field.name) for field in fields(decoder)}
        return T5Config(
            **known,
            num_encoder_layers=self.count("num_layers", most=MOST_LAYERS),
            relative_attention_num_buckets=self.buckets(),
            relative_attention_max_distance=self.count("relative_attention_max_distance"),
            is_gated_act=self.feed_forward()[0],
            scale_decoder_outputs=is_scaled,
            decoder_start_token_id=self.token("decoder_start_token_id"),
        )


def _read_rope(raw: Mapping[str, object], positions: int) -> RopeConfig:
    """Read ``rope_scaling`` (older files) or ``rope_parameters``, nested or beside the rest."""
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    stated = raw.get(key) or {}
    if not isinstance(stated, Mapping):
        raise bad(key, stated, "must be an object with a rope_type")
    rope_type = stated.get("rope_type", stated.get("type", "default"))
    if rope_type not in _ROPE_TYPES or any(isinstance(part, Mapping) for part in stated.values()):
        raise bad(f"{key}.rope_type", rope_type, f"supported are {', '.join(_ROPE_TYPES)}")
    for source in (stated, raw):
        if source.get("partial_rotary_factor") not in (None, 1, 1.0):
            value = source["partial_rotary_factor"]
            raise bad("partial_rotary_factor", value, "only whole heads can be turned (1.0)")
    theta = number({**raw, **present(stated)}, "rope_theta", _DEFAULT_THETA)
    if theta <= 0:
        raise bad("rope_theta", theta, "must be above 0")
    if rope_type == "default":
        return RopeConfig(theta=theta, original_max_position_embeddings=positions)
    original = positions
    if rope_type in ("llama3", "yarn"):
        # The others are defined by max_position_embeddings, whatever else is written.
        found = {**raw, **present(stated)}.get("original_max_position_embeddings")
        name = "original_max_position_embeddings"
        original = int(number({name: found}, name, positions))
        if not 1 <= original <= MOST:
            raise bad(f"{key}.{name}", original, f"must be a whole number from 1 to {MOST}")
    required = ["factor"]
    if rope_type == "llama3":
        required += ["low_freq_factor", "high_freq_factor"]
    for name in required:
        if stated.get(name) is None:
            raise bad(f"{key}.{name}", None, f"rope type {rope_type!r} needs a number")
    others = ("rope_type", "theta", "original_max_position_embeddings", "truncate")
    numbers = [field.name for field in fields(RopeConfig) if field.name not in others]
    given = {name: number(stated, name, 0.0) for name in numbers if stated.get(name) is not None}
    for name, value in given.items():
        if value <= 0 and not (value == 0 and name.startswith("mscale")):
            raise bad(f"{key}.{name}", value, "must be above 0")
    rope = RopeConfig(
        rope_type=str(rope_type),
        theta=theta,
        original_max_position_embeddings=original,
        truncate=stated.get("truncate") is not False,
        **given,
    )
    if rope_type == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
        low, high = rope.low_freq_factor, rope.high_freq_factor
        raise bad(f"{key}.low_freq_factor", low, f"must be below high_freq_factor ({high})")
    if rope_type == "yarn" and theta <= 1:
        raise bad("rope_theta", theta, "must be above 1 for rope type 'yarn'")
    return rope
