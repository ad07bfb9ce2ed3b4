"""Description of a network, read once from a checkpoint's ``config.json`` and never changed.

Foreign spellings and defaults end here: every other module reads `ModelConfig`. This module knows
no tensors and imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from asyncgen.errors import UnsupportedModelError, shorten
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.plans.attention_options import AttentionOptions
from asyncgen.families.plans.config_values import MOST_HEADS, MOST_LAYERS, ConfigValues
from asyncgen.families.plans.declaration import Family, settled
from asyncgen.families.plans.layer_kinds import ATTENDING, MIXING, SLIDING
from asyncgen.families.plans.layer_plan import LayerPlan, Positions, StreamPlan
from asyncgen.families.plans.rope_config import RopeConfig, part_of_head
from asyncgen.families.plans.rope_values import require_pairs, rope_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.families.plans.config_values import Kinds
    from asyncgen.families.plans.layer_plan import VariedLayerPlan


_FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A network, as its checkpoint describes it; of an encoder-decoder model the decoder.

    Field names keep the checkpoint's spelling; values are complete (defaults filled in).

    Attributes:
        model_type: Architecture, such as ``"llama"``.
        vocab_size: Rows of the embedding table, V.
        hidden_size: Width of the residual stream, E.
        intermediate_size: Width of the feed-forward.
        num_hidden_layers: Number of decoder layers.
        num_attention_heads: Query heads, H.
        num_key_value_heads: Key and value heads, K; divides H.
        head_dim: Size of a head, D; even if positions are rotary. If layers differ, this and the
            number of key heads are the greatest, for which keys and values are stored.
        max_position_embeddings: Context length in tokens; ``None`` if nothing limits it.
        rms_norm_eps: Added to the mean square, or the variance, before the root.
        rope: Rotary position embedding; unused if positions are of another kind.
        attention: Options of each layer's attention.
        ropes: Rotary positions of each layer, if they are not `rope` everywhere; ``None``: they
            are. Layers that rotate alike share an equal one.
        sliding_window: Keys that a query of a sliding layer sees, itself included; ``None``: all.
        layer_types: ``"full_attention"``, ``"sliding_attention"`` or ``"chunked_attention"`` for
            each layer; if not all attend, also one of `layer_kinds`.
        layer_plans: Plan of each layer.
        stream: Steps before the first layer and after the last.
        names: The files' names of each module, see `Family`.
        names_by_kind: The same for layers of some kinds, if they are named otherwise.
        tie_word_embeddings: True if the output head is the embedding table.
        bos_token_id: First token of a text.
        eos_token_id: Token or tokens that end a text.
        pad_token_id: Filler for shorter rows of a batch.
        dtype: Name of the dtype the checkpoint asks for, such as ``"bfloat16"``.
        raw: The file as it was.
        extra_layers: Layers that the files may have behind the last one, and that are not needed.
        built_from: Keys of the file, in either spelling, that the network was built from.
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
    attention: tuple[AttentionOptions, ...] = field(repr=False)
    ropes: tuple[RopeConfig, ...] | None
    sliding_window: int | None
    layer_types: tuple[str, ...]
    layer_plans: tuple[LayerPlan, ...] = field(repr=False)
    stream: StreamPlan
    names: Mapping[str, str] = field(repr=False)
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    dtype: str | None
    raw: Mapping[str, object] = field(repr=False, compare=False)
    names_by_kind: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict, repr=False, kw_only=True
    )
    extra_layers: int = field(default=0, repr=False, kw_only=True)
    built_from: frozenset[str] = field(default=frozenset(), repr=False, compare=False, kw_only=True)

    @classmethod
    def from_hf(cls, raw: Mapping[str, object]) -> ModelConfig:
        """Read the content of a ``config.json``.

        Args:
            raw: The parsed file. Missing keys get the defaults of its ``model_type``.

        Raises:
            UnsupportedModelError: The ``model_type`` has no implementation.
            ModelLoadError: A value is missing, of the wrong kind, or not supported.
        """
        model_type = raw.get("model_type")
        if not isinstance(model_type, str) or model_type not in FAMILIES:
            stated = "has no `model_type`" if model_type is None else f"says {shorten(model_type)}"
            raise UnsupportedModelError(
                f"config.json {stated}: supported are {', '.join(sorted(FAMILIES))}"
            )
        return _read(raw, FAMILIES[model_type])

    def names_of(self, layer: int) -> Mapping[str, str]:
        """Return the files' names of the modules of a layer."""
        return self.names_by_kind.get(self.layer_types[layer], self.names)

    is_encoder_decoder: ClassVar[bool] = False
    """True if there is an encoder as well."""

    @property
    def position_limit(self) -> int | None:
        """Positions that the network has at all; ``None`` if it goes on beyond its context."""
        return self.max_position_embeddings if self.stream.positions == "table" else None

    @property
    def has_states(self) -> bool:
        """True if layers keep states of texts in the place of keys and values."""
        return any(plan.mixer is not None for plan in self.layer_plans)

    @property
    def attending(self) -> tuple[int, ...]:
        """Numbers of the layers that attend."""
        return tuple(layer for layer, plan in enumerate(self.layer_plans) if plan.has_attention)

    @property
    def mixing(self) -> tuple[int, ...]:
        """Numbers of the layers that keep states."""
        return tuple(layer for layer, plan in enumerate(self.layer_plans) if plan.mixer is not None)

    @property
    def attention_bias(self) -> bool:
        """True if queries, keys and values have biases."""
        return self.layer_plans[0].has_qkv_bias

    @property
    def mlp_bias(self) -> bool:
        """True if the feed-forward projections have biases."""
        return self.layer_plans[0].has_up_bias

    @property
    def hidden_act(self) -> str:
        """Activation of the feed-forward block."""
        return self.layer_plans[0].activation

    @property
    def rope_theta(self) -> float:
        """Base of the rotary wavelengths."""
        return self.rope.theta

    def window(self, layer: int) -> int | None:
        """Return the number of last keys that this layer still needs, the newest included;
        ``None``: all."""
        options = self.attention[layer]
        return None if options.is_bidirectional else options.window

    def keys_of(self, layer: int) -> int:
        """Return the layer whose keys and values a layer reads, usually itself."""
        varied = self.layer_plans[layer].varied
        return layer if varied is None or varied.keys_of is None else varied.keys_of

    @property
    def is_bidirectional(self) -> bool:
        """True if tokens see later ones: such a model embeds texts, and generates none."""
        return any(options.is_bidirectional for options in self.attention)

    def to_dict(self) -> dict[str, object]:
        """Return the file's content with every default filled in, ready for ``json.dump``."""
        left_out = _NOT_IN_FILE
        if self.layer_plans[0].latent is not None or self.layer_plans[0].is_differential:
            left_out |= {"head_dim"}  # such files use it for another size, or do not have it
        if any(plan.heads is not None for plan in self.layer_plans):
            left_out |= {"num_key_value_heads"}  # files give those of some layers
        if self.layer_plans[0].varied is not None:  # files mean other sizes by these
            left_out |= {"head_dim", "num_key_value_heads", "intermediate_size"}
        if self.has_states:  # each such family has its own list of layers
            left_out |= {"layer_types"}
        names = [field.name for field in fields(self) if field.name not in left_out]
        return {
            **self.raw,
            **{name: _plain(getattr(self, name)) for name in (*names, *_OF_FIRST_LAYER)},
        }


@dataclass(frozen=True, slots=True)
class T5Config(ModelConfig):
    """An encoder and a decoder with relative positions, as a checkpoint describes them.

    The fields of `ModelConfig` describe the decoder; both stacks are of one width.

    Attributes:
        num_encoder_layers: Number of encoder layers.
        relative_attention_num_buckets: Rows of the table of position biases.
        relative_attention_max_distance: Distance from which all share the last bucket.
        is_gated_act: True if the feed-forwards are gated.
        scale_decoder_outputs: True if the decoder's output is divided by the root of its width.
        decoder_start_token_id: First token of the decoder.
    """

    num_encoder_layers: int
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    is_gated_act: bool
    scale_decoder_outputs: bool
    decoder_start_token_id: int | None

    is_encoder_decoder: ClassVar[bool] = True
    """True if there is an encoder as well."""


_NOT_IN_FILE = frozenset(
    {
        "raw",
        "rope",
        "ropes",
        "attention",
        "layer_plans",
        "stream",
        "names",
        "names_by_kind",
        "extra_layers",
        "built_from",
    }
)

_BY_LAYER = frozenset(
    {
        "heads",
        "experts",
        "varied",
        "mixer",
        "shared_block",
        "has_attention",
        "has_feed_forward",
        "normed_residual",
    }
)
"""Fields of a `LayerPlan` that a family gives for each layer, not for all."""

_OF_FIRST_LAYER = ("attention_bias", "hidden_act", "mlp_bias")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _read(raw: Mapping[str, object], family: Family) -> ModelConfig:
    """Read one file by the declaration of its family."""
    values = ConfigValues(
        raw, defaults=family.defaults, spellings=family.spellings, unread=family.unread
    )
    values.require("add_cross_attention", False)
    for key, supported in family.only.items():
        values.require(key, supported)
    heads = values.count("num_attention_heads", most=MOST_HEADS)
    kv_heads = settled(family.kv_heads, values) or values.kv_heads(heads)
    if heads % kv_heads:
        raise values.bad("num_key_value_heads", kv_heads, f"must divide the {heads} query heads")
    hidden = values.count("hidden_size")
    layers = settled(family.layers, values)
    if layers is None:
        layers = values.count("num_hidden_layers", most=MOST_LAYERS)
    positions: Positions = settled(family.positions, values)
    is_rotary = positions == "rotary"
    has_length = positions not in ("buckets", "none")
    length = values.count("max_position_embeddings") if has_length else None
    latent = settled(family.latent, values)
    if latent is not None:
        size = head_dim = latent.head_dim
    else:
        own = settled(family.head_dim, values)
        size = own or values.head_dim(hidden, heads, is_rotary=is_rotary)
        size = head_dim = 2 * size if family.is_differential else size
    window = settled(family.window, values)
    sliding = "chunked_attention" if family.is_chunked else "sliding_attention"
    expected = tuple(
        sliding if window is not None and family.slides(values, layer) else _FULL
        for layer in range(layers)
    )
    if family.kinds is not None:
        kinds = family.kinds(values)
    else:
        fixed = not family.has_layer_types
        kinds = values.layer_types(window, expected, sliding=sliding, fixed=fixed)
    plans = _layer_plans(values, family, kinds)
    varied = [plan.varied for plan in plans if plan.varied is not None]
    if varied:
        head_dim = max(each.head_dim for each in varied)
        kv_heads = max(each.kv_heads for each in varied)
        _check_varied(values, varied, heads, kv_heads)
    rope, ropes = RopeConfig(rope_type="none"), None
    if is_rotary:
        assert length is not None
        rope, ropes = _ropes(values, family, kinds, positions=length, head_dim=size)
    config = ModelConfig(
        model_type=values.model_type,
        vocab_size=values.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=settled(family.width, values),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=length,
        rms_norm_eps=settled(family.epsilon, values),
        rope=rope,
        ropes=ropes,
        attention=_attention(values, family, kinds, window),
        layer_plans=plans,
        stream=StreamPlan(
            **{
                each.name: settled(getattr(family, each.name), values)
                for each in fields(StreamPlan)
            }
        ),
        names=settled(family.names, values),
        names_by_kind=family.names_by_kind,
        sliding_window=window,
        layer_types=kinds,
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        bos_token_id=values.token("bos_token_id"),
        eos_token_id=values.tokens("eos_token_id"),
        pad_token_id=values.token("pad_token_id"),
        dtype=values.dtype(),
        raw=dict(raw),
        extra_layers=values.whole("num_nextn_predict_layers") if family.guesses_ahead else 0,
    )
    if positions == "buckets":
        config = _with_encoder(config, values)
    spelled = {family.spellings.get(key, key).partition(".")[0] for key in values.read}
    return replace(config, built_from=frozenset(values.read | spelled))


def _ropes(
    values: ConfigValues, family: Family, kinds: Kinds, *, positions: int, head_dim: int
) -> tuple[RopeConfig, tuple[RopeConfig, ...] | None]:
    """Read the rope of layers that do not slide, and that of each layer if they differ."""
    rope, ropes = rope_values(values, family, kinds, positions=positions, head_dim=head_dim)
    latent = settled(family.latent, values)
    if latent is not None:
        rope = replace(rope, partial_rotary_factor=part_of_head(latent.rope_dim, head_dim))

    def fitted(rope: RopeConfig) -> RopeConfig:
        rotated = int(rope.partial_rotary_factor * head_dim)
        found = replace(rope, partial_rotary_factor=part_of_head(rotated, head_dim))
        require_pairs(found, head_dim)
        return found

    return fitted(rope), None if ropes is None else tuple(map(fitted, ropes))


def _check_varied(
    values: ConfigValues, varied: Sequence[VariedLayerPlan], heads: int, kv_heads: int
) -> None:
    """Refuse shapes of layers that do not go together."""
    for each in varied:
        if heads % kv_heads or kv_heads % each.kv_heads:
            allowed = f"the {heads} query heads and the most key heads, {kv_heads}, are multiples"
            raise values.bad("num_key_value_heads", each.kv_heads, allowed)
        if each.head_dim % 2:
            allowed = "rotary embeddings rotate pairs, so it must be even"
            raise values.bad("head_dim", each.head_dim, allowed)


def _layer_plans(values: ConfigValues, family: Family, kinds: Kinds) -> tuple[LayerPlan, ...]:
    """Plan each layer; most differ in heads, norms, experts and mixers, and equal ones are one."""
    names = [field.name for field in fields(LayerPlan) if field.name not in _BY_LAYER]
    given: dict[str, Any] = {name: settled(getattr(family, name), values) for name in names}
    for name, other in (("has_output_bias", "has_qkv_bias"), ("has_down_bias", "has_up_bias")):
        given[name] = given[other] if given[name] is None else given[name]
    shared = LayerPlan(**given)
    made: dict[tuple[object, ...], LayerPlan] = {}

    def of(layer: int, kind: str) -> LayerPlan:
        parts: dict[str, Any] = {
            "heads": family.heads(values, layer, kind),
            "experts": family.experts(values, layer),
            "head_norm": shared.head_norm if family.has_head_norm(values, layer, kind) else None,
            "varied": family.varied(values, layer, kinds),
            "mixer": family.mixer(values, layer) if kind in MIXING else None,
            "shared_block": family.shared_block(values, layer, kinds),
            "has_attention": kind in ATTENDING,
            "has_feed_forward": family.has_feed_forward(values, layer, kind),
            "normed_residual": family.normed_residual(values, layer, kind),
        }
        return made.setdefault(tuple(parts.values()), replace(shared, **parts))

    return tuple(of(layer, kind) for layer, kind in enumerate(kinds))


def _attention(
    values: ConfigValues, family: Family, kinds: Kinds, window: int | None
) -> tuple[AttentionOptions, ...]:
    """Settle the options of each layer's attention."""
    scale = settled(family.attention_scale, values)
    scales = scale if isinstance(scale, tuple) else (scale,) * len(kinds)
    cap, slopes = settled(family.attention_cap, values), settled(family.slopes, values)
    both = settled(family.is_bidirectional, values)
    if both and window is not None:
        window = window // 2 + 1  # files count the keys of both sides
    return tuple(
        AttentionOptions(
            window if kind in SLIDING else None,
            each,
            cap,
            family.has_sinks(values, layer, kind),
            slopes,
            family.spans_gaps,
            is_chunked=family.is_chunked and kind in SLIDING,
            is_bidirectional=both,
        )
        for layer, (kind, each) in enumerate(zip(kinds, scales, strict=True))
    )


def _with_encoder(decoder: ModelConfig, values: ConfigValues) -> T5Config:
    """Add the fields of the encoder and of relative positions."""
    is_tied = values.stated("tie_word_embeddings") is None or values.flag("tie_word_embeddings")
    # Null is false, as in the reference; only a missing key is what the tie says.
    key = "scale_decoder_outputs"
    is_stated = key in values.raw or values.stated(key) is not None
    is_scaled = values.flag(key) if is_stated else is_tied
    distance = values.count("relative_attention_max_distance")
    key = "relative_attention_num_buckets"
    buckets = values.count(key)
    if buckets < 4 or buckets // 2 >= distance:
        allowed = "must be at least 4 and less than twice the greatest distance"
        raise values.bad(key, buckets, allowed)
    known = {field.name: getattr(decoder, field.name) for field in fields(decoder)}
    return T5Config(
        **known,
        num_encoder_layers=values.count("num_layers", most=MOST_LAYERS),
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=distance,
        is_gated_act=decoder.layer_plans[0].is_gated,
        scale_decoder_outputs=is_scaled,
        decoder_start_token_id=values.token("decoder_start_token_id"),
    )
