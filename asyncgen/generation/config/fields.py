"""The fields of `GenerationConfig` as one table: name, default, check, meaning, and who serves it.

Everything that is true of a single field is a row of `FIELDS`; what ties fields together is in
`hard_rules` (combinations that cannot work) and `minor_issues` (flags that have no effect). This
module knows nothing of models, torch or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = [
    "CACHE_IMPLEMENTATIONS",
    "DEFAULTS",
    "DRAFTING",
    "FIELDS",
    "GENERATE_ARGUMENTS",
    "GROWING_CACHES",
    "STATIC_CACHES",
    "Field",
    "Issue",
    "check_supported",
    "hard_rules",
    "minor_issues",
]

STATIC_CACHES = (
    "static",
    "offloaded_static",
    "sliding_window",
    "hybrid",
    "hybrid_chunked",
    "offloaded_hybrid",
    "offloaded_hybrid_chunked",
)
GROWING_CACHES = ("dynamic", "offloaded")
CACHE_IMPLEMENTATIONS = (*STATIC_CACHES, *GROWING_CACHES, "quantized", "paged")

GENERATE_ARGUMENTS = (
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "synced_gpus",
    "assistant_model",
    "streamer",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
)
"""Arguments of `generate` that are refused as configuration fields."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of `GenerationConfig`.

    Attributes:
        name: The documented name.
        doc: What the field does, its range, and its paper where there is one.
        default: What `generate` uses where the field is None; None where it has no default.
        allowed: What `check` accepts, in words; empty where every value is accepted here.
        check: True for an acceptable value. A TypeError inside it means a wrong type.
        needs: The switch without which the field has no effect: "do_sample", "num_beams",
            "use_cache", "return_dict_in_generate", or None.
        neutral: Values that switch the field off; None always does.
        awaits: What the field asks for that is not served yet; None where it is served.
    """

    name: str
    doc: str
    default: Any = None
    allowed: str = ""
    check: Callable[[Any], bool] | None = None
    needs: str | None = None
    neutral: tuple[Any, ...] = ()
    awaits: str | None = None

    def is_neutral(self, value: object) -> bool:
        """Tell whether ``value`` leaves the field switched off."""
        return value is None or any(_same(value, neutral) for neutral in self.neutral)


@dataclass(frozen=True, slots=True)
class Issue:
    """A flag that will have no effect as things stand.

    Attributes:
        name: The field.
        value: Its value.
        reason: Why it has no effect, and the remedy.
    """

    name: str
    value: object
    reason: str

    def __str__(self) -> str:
        """Render as one line of a list."""
        return f"`{self.name}` is {shorten(self.value)}: {self.reason}"


def _same(left: object, right: object) -> bool:
    try:
        return bool(left == right)
    except Exception:  # an array compares to an array, whose truth value is an error
        return False


def _has(attribute: str) -> Callable[[object], bool]:
    return lambda value: callable(getattr(value, attribute, None))


def _is_watermark(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value)
    validate = getattr(value, "validate", None)
    if not callable(validate):
        raise TypeError
    validate()
    return True


def _are_token_ids(value: Any) -> bool:
    return all(hash(token) is not None for token in value)


_SAMPLE, _BEAMS, _CACHE, _DICT = "do_sample", "num_beams", "use_cache", "return_dict_in_generate"
_OFF = (False,)
_ASSISTED = "this kind of speculation"

FIELDS: tuple[Field, ...] = (
    # length of the output
    Field("max_length", "Most tokens of prompt and output together.", 20),
    Field(
        "max_new_tokens",
        "Most new tokens, whatever the prompt's length; wins over `max_length`.",
        allowed="a number greater than 0",
        check=lambda value: value > 0,
    ),
    Field("min_length", "Fewest tokens of prompt and output together.", 0),
    Field("min_new_tokens", "Fewest new tokens; wins over `min_length`."),
    Field(
        "early_stopping",
        "When a beam search ends: True, as soon as `num_beams` candidates are complete; False, when"
        ' a heuristic finds better ones unlikely; "never", when there can be no better one.',
        False,
        allowed="a boolean or 'never'",
        check=lambda value: value in {True, False, "never"},
        needs=_BEAMS,
        neutral=_OFF,
    ),
    Field("max_time", "Seconds after which no further step is begun."),
    Field("stop_strings", "A string or strings that end the generation when they appear."),
    # strategy
    Field("do_sample", "Draw tokens at random; otherwise take the most likely one.", False),
    Field("num_beams", "Beams of a beam search; 1 is none.", 1, neutral=(1,)),
    Field("use_mtp", "Multi-token prediction heads, if the model has them.", awaits=_ASSISTED,
          neutral=_OFF),
    # cache
    Field("use_cache", "Keep keys and values of past tokens.", True),
    Field(
        "cache_implementation",
        "The cache to build, by name; None lets the model choose.",
        allowed=f"one of {', '.join(CACHE_IMPLEMENTATIONS)}",
        check=lambda value: value in CACHE_IMPLEMENTATIONS,
        needs=_CACHE,
        neutral=(*STATIC_CACHES, *GROWING_CACHES, "quantized"),
        awaits="this kind of cache",
    ),
    Field("cache_config", "Arguments of the cache class, a dict.", needs=_CACHE, neutral=({},),
          awaits="a configured cache"),
    Field("max_cache_len", "Tokens that a static cache is sized for; static caches only."),
    # logits
    Field("temperature", "Divides the logits; above 0; 1.0 changes nothing.", 1.0, needs=_SAMPLE,
          neutral=(1.0,)),
    Field("top_k", "Draw from this many most likely tokens; 0 is off.", 50, needs=_SAMPLE,
          neutral=(50,)),
    Field("top_p", "Draw from the smallest set whose probability reaches this; 1.0 is off.", 1.0,
          needs=_SAMPLE, neutral=(1.0,)),
    Field("min_p", "Least probability, relative to the most likely token, in [0, 1].",
          needs=_SAMPLE),
    Field("top_h", "Keep the likeliest tokens up to this share of the entropy, in (0, 1].",
          needs=_SAMPLE),
    Field("typical_p", "Keep the most typical tokens up to this mass (arXiv 2202.00666); 1.0 is"
          " off.", 1.0, needs=_SAMPLE, neutral=(1.0,)),
    Field("epsilon_cutoff", "Least probability of a token (arXiv 2210.15191), in (0, 1); 0 is off.",
          0.0, needs=_SAMPLE, neutral=(0.0,)),
    Field("eta_cutoff", "Entropy-dependent least probability (arXiv 2210.15191), in (0, 1); 0 is"
          " off.", 0.0, needs=_SAMPLE, neutral=(0.0,)),
    Field("repetition_penalty", "Divides positive, multiplies negative logits of tokens already"
          " there (arXiv 1909.05858); 1.0 is off.", 1.0, neutral=(1.0,)),
    Field("encoder_repetition_penalty", "The inverse, for tokens of the prompt; 1.0 is off.", 1.0,
          neutral=(1.0,)),
    Field("length_penalty", "Exponent of the length by which a beam's score is divided; from -30 to"
          " 30.", 1.0,
          needs=_BEAMS, neutral=(1.0,)),
    Field("no_repeat_ngram_size", "No n-gram of this size occurs twice; 0 is off.", 0,
          neutral=(0,)),
    Field("bad_words_ids", "Sequences of token ids that must not be generated."),
    Field("renormalize_logits", "Log-softmax after all processors.", neutral=_OFF),
    Field("forced_bos_token_id", "The first generated token."),
    Field("forced_eos_token_id", "The last token, where `max_length` is reached; id or ids."),
    Field("remove_invalid_values", "Replace NaN and infinities in the logits.", False,
          neutral=_OFF),
    Field("exponential_decay_length_penalty", "(start, factor): raise the end token's score ever"
          " more, from `start` new tokens on."),
    Field("suppress_tokens", "Token ids that are never generated.", allowed="a list of token ids",
          check=_are_token_ids),
    Field("begin_suppress_tokens", "Token ids that are not generated as the first token."),
    Field("sequence_bias", "[[token ids, bias], ...] added to the token that completes each."),
    Field("token_healing", "Choose the prompt's last token again, among those that it begins.",
          neutral=_OFF),
    Field("guidance_scale", "Classifier-free guidance (arXiv 2306.17806); 1.0 is off.",
          neutral=(1.0,)),
    Field("watermarking_config", "A watermark, as a WatermarkingConfig or its dict.",
          allowed="a WatermarkingConfig or a dict of its fields", check=_is_watermark),
    # output
    Field("num_return_sequences", "Sequences returned for each prompt.", 1),
    Field("output_attentions", "Return attention weights.", needs=_DICT, neutral=_OFF),
    Field("output_hidden_states", "Return hidden states.", needs=_DICT, neutral=_OFF),
    Field("output_scores", "Return processed scores of every step.", False, needs=_DICT,
          neutral=_OFF),
    Field("output_logits", "Return unprocessed logits of every step.", needs=_DICT, neutral=_OFF),
    Field("return_dict_in_generate", "Return an output object instead of token ids.", False),
    # special tokens
    Field("pad_token_id", "Id of the padding token."),
    Field("bos_token_id", "Id of the token that begins a sequence."),
    Field("eos_token_id", "Id or ids of tokens that end a sequence."),
    # encoder-decoder
    Field("encoder_no_repeat_ngram_size", "No n-gram of the prompt recurs; 0 is off.", 0,
          neutral=(0,)),
    Field("decoder_start_token_id", "First decoder token of an encoder-decoder model; id or one"
          " per row."),
    # assisted generation
    Field("is_assistant", "The model drafts for another one.", neutral=_OFF),
    Field("num_assistant_tokens", "Tokens drafted before each check.", 20),
    Field("num_assistant_tokens_schedule", "How that number changes: constant, heuristic or"
          " heuristic_transient.", "constant"),
    Field("assistant_confidence_threshold", "Drafting pauses below this confidence"
          " (arXiv 2405.04304).", 0.4),
    Field("prompt_lookup_num_tokens", "Draft tokens looked up in the prompt."),
    Field("max_matching_ngram_size", "Longest n-gram looked up in the prompt; None means 2."),
    Field("assistant_early_exit", "Draft with this many first layers."),
    Field("assistant_lookbehind", "Draft tokens re-read between two tokenizers.", 10),
    Field("target_lookbehind", "Target tokens re-read between two tokenizers.", 10),
    Field(
        "assistant_ensemble_weight",
        "Accept against a mixture of target and draft probabilities; None is lossless.",
        allowed="strictly between 0.0 and 1.0; None for lossless speculative decoding",
        check=lambda value: 0.0 < value < 1.0,
        awaits=_ASSISTED,
    ),
    Field("speculation_type", "The kind of speculation asked for.", awaits=_ASSISTED),
    # performance
    Field("compile_config", "How to compile the forward pass, a CompileConfig.",
          allowed="an instance of CompileConfig", check=_has("to_dict"), awaits="compilation"),
    Field("disable_compile", "Never compile on its own."),
    Field("continuous_batching_config", "Deprecated here; hand it to the continuous batching call.",
          awaits="a continuous batching configuration inside `GenerationConfig`"),
    # strategies that newer references moved out of the library
    Field("low_memory", "Contrastive search one candidate at a time."),
    Field("penalty_alpha", "Degeneration penalty of contrastive search (arXiv 2202.06417).",
          neutral=(0.0,)),
    Field("dola_layers", "Layers that DoLa contrasts (arXiv 2309.03883): low, high or a list."),
    Field("diversity_penalty", "Penalty for a token that another beam group took.", 0.0,
          neutral=(0.0,)),
    Field("num_beam_groups", "Groups of a diverse beam search; 1 is none.", 1, neutral=(1,)),
    Field("constraints", "Constraints on the output, a list of Constraint objects."),
    Field("force_words_ids", "Words that must appear: ids of each, or a list of alternatives."),
    Field("prefill_chunk_size", "Prompt tokens of one forward; None is all at once.",
          allowed="an integer above 0", check=lambda value: value > 0),
)  # fmt: skip

_WITHOUT_DEFAULT = {"bad_words_ids", "forced_bos_token_id", "forced_eos_token_id"} | {
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
}
"""Fields that the reference lists among the defaults although their default is None."""

DEFAULTS: Mapping[str, Any] = {
    field.name: field.default
    for field in FIELDS
    if field.default is not None or field.name in _WITHOUT_DEFAULT
}
"""What `generate` puts in place of None, by field name."""

DRAFTING = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)
"""Fields that are left open, because the draft model's own configuration comes before defaults."""


def hard_rules(config: Any) -> None:
    """Refuse values and combinations that can never work.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
        TypeError: A value is of a type that cannot be compared with the allowed ones.
    """
    for field in FIELDS:
        value = getattr(config, field.name)
        if value is None or field.check is None:
            continue
        try:
            accepted = field.check(value)
        except TypeError as error:
            message = f"`{field.name}` is {shorten(value)}: must be {field.allowed}"
            raise TypeError(message) from error
        if not accepted:
            raise InvalidRequestError(field.name, value, f"must be {field.allowed}")
    _check_returned(config)


def _check_returned(config: Any) -> None:
    count, beams = config.num_return_sequences, config.num_beams
    if count is None:
        return
    if not isinstance(count, int | float):
        raise TypeError(f"`num_return_sequences` is {shorten(count)}: must be a number")
    if count <= 1:
        return
    if beams is None or beams == 1:
        if not config.do_sample:
            raise InvalidRequestError(
                "num_return_sequences",
                count,
                "must be 1 for greedy decoding; set `do_sample=True` or `num_beams` above 1",
            )
    elif count > beams:
        raise InvalidRequestError(
            "num_return_sequences", count, f"must not exceed `num_beams` ({beams})"
        )


def minor_issues(config: Any, user_set: Collection[str] = ()) -> list[Issue]:
    """List the flags that will have no effect.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.
        user_set: Names the user just set; empty means all of them. Someone who switches
            `do_sample` or `num_beams` off is not told about flags that a model's own file set.

    Returns:
        One issue per flag, in a fixed order.
    """
    issues = []
    if config.pad_token_id is not None and config.pad_token_id < 0:
        reason = "should not be negative; padded batches will fail"
        issues.append(Issue("pad_token_id", config.pad_token_id, reason))
    for switch, is_off, reason in _SWITCHES:
        if not is_off(config):
            continue
        silenced = switch in (_SAMPLE, _BEAMS) and switch in user_set
        for field in FIELDS:
            value = getattr(config, field.name)
            if field.needs != switch or _is_idle(field, value):
                continue
            if not silenced or field.name in user_set:
                issues.append(Issue(field.name, value, reason))
    return issues


def _is_idle(field: Field, value: object) -> bool:
    """Tell whether an ineffective field is nothing to warn of."""
    if field.needs == _DICT:
        return value is not True
    if field.needs == _CACHE:
        return value is None
    return field.is_neutral(value)


_SWITCHES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        _SAMPLE,
        lambda config: config.do_sample is not True,
        "only used when sampling; set `do_sample=True` or unset it",
    ),
    (
        _BEAMS,
        lambda config: config.num_beams is None or config.num_beams == 1,
        "only used with beams; set `num_beams` above 1 or unset it",
    ),
    (
        _CACHE,
        lambda config: config.use_cache is False,
        "has no effect without a cache; set `use_cache=True` or unset it",
    ),
    (
        _DICT,
        lambda config: config.return_dict_in_generate is not True,
        "ignored unless `return_dict_in_generate=True`",
    ),
)


def check_supported(config: Any) -> None:
    """Refuse every field that asks for something that is not served yet.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.

    Raises:
        InvalidRequestError: Names the field, its value and what is missing.
    """
    for field in FIELDS:
        value = getattr(config, field.name)
        if field.awaits is not None and not field.is_neutral(value):
            raise InvalidRequestError(
                field.name, value, f"not supported yet; {field.awaits} is not implemented, unset it"
            )
