"""Every parameter of a generation as one table: a row says all that is true of it alone.

The table has the fields of `GenerationConfig`, the documented arguments of `generate`, and our own
parameters of a stream (`own_parameters`). Defaults and checks are read from it; what must be
spelled out elsewhere (`StreamParams` and the attributes of `GenerationConfig` for editors, the HTTP
fields, the names that a WebSocket takes, the options of the command line, the settings of the chat
page) is tested against it. To add a parameter is to add a row, and to follow the tests that fail.

What ties parameters together is in `checks`. Knows nothing of models, torch or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.generation.config import rules
from asyncgen.generation.config.own_parameters import OWN
from asyncgen.generation.config.parameter import Parameter, TokenIds, group
from asyncgen.generation.config.rules import MOST_ROWS, Documented, Range

if TYPE_CHECKING:
    from collections.abc import Mapping


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


_SAMPLE, _BEAMS, _CACHE, _DICT = "do_sample", "num_beams", "use_cache", "return_dict_in_generate"
_OFF = (False,)
_ASSISTED = "this kind of speculation"
_COUNT, _NATURAL = Range(1, whole=True), Range(0, whole=True)
_ROWS = Range(1, MOST_ROWS, whole=True)
_SHARE, _CUTOFF = Range(0, 1), Range(0, 1, below=True)
_POSITIVE, _FINITE = Range(0, above=True), Range()
_SET, _WRITTEN_ID = TokenIds(is_set=True), TokenIds(several=False, is_written=True)
_WORDS, _ONE_ID = TokenIds(words=True), TokenIds(several=False)
_IN_RESULT = "read `logprobs` instead, or call `model.generate`"
_BY_GENERATE = "call `model.generate`"
_P = Parameter

FIELDS: tuple[Parameter, ...] = (
    *group("length",
        _P("max_length", "int", "Most tokens of prompt and output together.", 20, _COUNT),
        _P("max_new_tokens", "int", "Most new tokens, whatever the prompt's length; wins over"
           " `max_length`.",
           rule=Documented("a number greater than 0", rules.is_positive, _COUNT)),
        _P("min_length", "int", "Fewest tokens of prompt and output together.", 0, _NATURAL),
        _P("min_new_tokens", "int", "Fewest new tokens; wins over `min_length`.", rule=_NATURAL),
        _P("early_stopping", "bool | str", "When a beam search ends: True, as soon as `num_beams`"
           " candidates are complete; False, when a heuristic finds better ones unlikely;"
           ' "never", when there can be no better one.', False,
           Documented("a boolean or 'never'", rules.is_early_stopping,
                      rules.early_stopping), _BEAMS, _OFF),
        _P("max_time", "float", "Seconds after which no further step is begun.", rule=_POSITIVE),
        _P("stop_strings", "str | list[str]", "A string or strings that end the generation when"
           " they appear.", rule=rules.stops),
    ),
    *group("strategy",
        _P("do_sample", "bool", "Draw tokens at random; otherwise take the most likely one.",
           False, rules.switch),
        _P("num_beams", "int", "Beams of a beam search; 1 is none.", 1, _ROWS, neutral=(1,)),
        _P("use_mtp", "bool", "Multi-token prediction heads, if the model has them.",
           awaits=_ASSISTED, neutral=_OFF, is_local=True),
    ),
    *group("cache",
        _P("use_cache", "bool", "Keep keys and values of past tokens.", True, rules.switch),
        _P("cache_implementation", "str", "The cache to build, by name; None lets the model"
           " choose.", rule=Documented(f"one of {', '.join(CACHE_IMPLEMENTATIONS)}",
                                       lambda value: value in CACHE_IMPLEMENTATIONS),
           needs=_CACHE, neutral=(*STATIC_CACHES, *GROWING_CACHES, "quantized"),
           awaits="this kind of cache", is_local=True),
        _P("cache_config", "dict[str, Any]", "Settings of a quantised cache, by name: those of"
           " `QuantizedCacheConfig`.", needs=_CACHE, neutral=({},), is_local=True),
        _P("max_cache_len", "int", "Tokens that a static cache is sized for; static caches only.",
           rule=_COUNT, is_local=True),
    ),
    *group("logits",
        _P("temperature", "float", "Divides the logits; 0 takes the most probable token; 1.0"
           " changes nothing.", 1.0, Range(0, note="0 takes the most probable token"),
           _SAMPLE, (1.0,)),
        _P("top_k", "int", "Draw from this many most likely tokens; 0 is off.", 50,
           Range(0, whole=True, note="0 is off"), _SAMPLE, (50,)),
        _P("top_p", "float", "Draw from the smallest set whose probability reaches this; 1.0 is"
           " off.", 1.0, _SHARE, _SAMPLE, (1.0,)),
        _P("min_p", "float", "Least probability, relative to the most likely token, in [0, 1].",
           None, _SHARE, _SAMPLE),
        _P("top_h", "float", "Keep the likeliest tokens up to this share of the entropy, in"
           " (0, 1].", None, Range(0, 1, above=True), _SAMPLE),
        _P("typical_p", "float", "Keep the most typical tokens up to this mass"
           " (arXiv 2202.00666); 1.0 is off.", 1.0, Range(0, 1, above=True), _SAMPLE, (1.0,)),
        _P("epsilon_cutoff", "float", "Least probability of a token (arXiv 2210.15191), in (0, 1);"
           " 0 is off.", 0.0, _CUTOFF, _SAMPLE, (0.0,)),
        _P("eta_cutoff", "float", "Entropy-dependent least probability (arXiv 2210.15191), in"
           " (0, 1); 0 is off.", 0.0, _CUTOFF, _SAMPLE, (0.0,)),
        _P("repetition_penalty", "float", "Divides positive, multiplies negative logits of tokens"
           " already there (arXiv 1909.05858); 1.0 is off.", 1.0, _POSITIVE, neutral=(1.0,)),
        _P("encoder_repetition_penalty", "float", "The inverse, for tokens of the prompt; 1.0 is"
           " off.", 1.0, _POSITIVE, neutral=(1.0,)),
        _P("length_penalty", "float", "Exponent of the length by which a beam's score is divided;"
           " from -30 to 30.", 1.0, Range(-30, 30), _BEAMS, (1.0,)),
        _P("no_repeat_ngram_size", "int", "No n-gram of this size occurs twice; 0 is off.", 0,
           _NATURAL, neutral=(0,)),
        _P("bad_words_ids", "list[list[int]]", "Sequences of token ids that must not be"
           " generated.", ids=_WORDS),
        _P("renormalize_logits", "bool", "Log-softmax after all processors.", rule=rules.switch,
           neutral=_OFF),
        _P("forced_bos_token_id", "int", "The first generated token.", ids=_WRITTEN_ID),
        _P("forced_eos_token_id", "int | list[int]", "The last token, where `max_length` is"
           " reached; id or ids.", ids=TokenIds(is_set=True, is_written=True)),
        _P("remove_invalid_values", "bool", "Replace NaN and infinities in the logits.", False,
           rules.switch, neutral=_OFF),
        _P("exponential_decay_length_penalty", "tuple[int, float]", "(start, factor): raise the"
           " end token's score ever more, from `start` new tokens on."),
        _P("suppress_tokens", "list[int]", "Token ids that are never generated.",
           rule=Documented("a list of token ids", rules.are_token_ids), ids=_SET),
        _P("begin_suppress_tokens", "list[int]", "Token ids that are not generated as the first"
           " token.", ids=_SET),
        _P("sequence_bias", "Any", "[[token ids, bias], ...] added to the token that completes"
           " each.", ids=_WORDS),
        _P("token_healing", "bool", "Choose the prompt's last token again, among those that it"
           " begins.", rule=rules.switch, neutral=_OFF),
        _P("guidance_scale", "float", "Classifier-free guidance (arXiv 2306.17806); 1.0 is off.",
           rule=_FINITE, neutral=(1.0,)),
        _P("watermarking_config", "Any", "A watermark, as a WatermarkingConfig or its dict.",
           rule=Documented("a WatermarkingConfig or a dict of its fields", rules.is_watermark)),
    ),
    *group("output",
        _P("num_return_sequences", "int", "Sequences returned for each prompt.", 1, _ROWS),
        _P("output_attentions", "bool", "Return attention weights.", needs=_DICT, neutral=_OFF,
           elsewhere=_BY_GENERATE),
        _P("output_hidden_states", "bool", "Return hidden states.", needs=_DICT, neutral=_OFF,
           elsewhere=_BY_GENERATE),
        _P("output_scores", "bool", "Return processed scores of every step.", False,
           needs=_DICT, neutral=_OFF, elsewhere=_IN_RESULT),
        _P("output_logits", "bool", "Return unprocessed logits of every step.", needs=_DICT,
           neutral=_OFF, elsewhere=_IN_RESULT),
        _P("return_dict_in_generate", "bool", "Return an output object instead of token ids.",
           False, elsewhere="the result of a stream is `stream.result`"),
    ),
    *group("special tokens",
        _P("pad_token_id", "int", "Id of the padding token.", rule=rules.one_id, ids=_ONE_ID),
        _P("bos_token_id", "int", "Id of the token that begins a sequence.", ids=_ONE_ID),
        _P("eos_token_id", "int | list[int]", "Id or ids of tokens that end a sequence.",
           rule=rules.end_ids, ids=_SET),
    ),
    *group("encoder",
        _P("encoder_no_repeat_ngram_size", "int", "No n-gram of the prompt recurs; 0 is off.", 0,
           _NATURAL, neutral=(0,)),
        _P("decoder_start_token_id", "int | list[int]", "First decoder token of an encoder-decoder"
           " model; id or one per row.", ids=TokenIds()),
    ),
    *group("drafts",
        _P("is_assistant", "bool", "The model drafts for another one.", neutral=_OFF,
           is_local=True),
        _P("num_assistant_tokens", "int", "Tokens drafted before each check.", 20),
        _P("num_assistant_tokens_schedule", "str", "How that number changes: constant, heuristic"
           " or heuristic_transient.", "constant"),
        _P("assistant_confidence_threshold", "float", "Drafting pauses below this confidence"
           " (arXiv 2405.04304).", 0.4),
        _P("prompt_lookup_num_tokens", "int", "Draft tokens looked up in the prompt."),
        _P("max_matching_ngram_size", "int", "Longest n-gram looked up in the prompt; None means"
           " 2."),
        _P("assistant_early_exit", "int", "Draft with this many first layers."),
        _P("assistant_lookbehind", "int", "Draft tokens re-read between two tokenizers.", 10,
           is_local=True),
        _P("target_lookbehind", "int", "Target tokens re-read between two tokenizers.", 10,
           is_local=True),
        _P("assistant_ensemble_weight", "float", "Accept against a mixture of target and draft"
           " probabilities; None is lossless.",
           rule=Documented("strictly between 0.0 and 1.0; None for lossless speculative decoding",
                           lambda value: 0.0 < value < 1.0), awaits=_ASSISTED, is_local=True),
        _P("speculation_type", "str", "The kind of speculation asked for.", awaits=_ASSISTED,
           is_local=True),
    ),
    *group("performance",
        _P("compile_config", "Any", "How to compile the forward pass, a CompileConfig.",
           rule=Documented("an instance of CompileConfig", rules.has("to_dict")), is_local=True),
        _P("disable_compile", "bool", "Never compile on its own.", is_local=True),
        _P("continuous_batching_config", "Any", "Deprecated here; hand it to the continuous"
           " batching call, the only one that reads it.", is_local=True),
    ),
    # Newer references moved these out of the library.
    *group("strategy",
        _P("low_memory", "bool", "Contrastive search one candidate at a time.", rule=rules.switch),
        _P("penalty_alpha", "float", "Degeneration penalty of contrastive search"
           " (arXiv 2202.06417).", rule=_FINITE, neutral=(0.0,)),
        _P("dola_layers", "str | list[int]", "Layers that DoLa contrasts (arXiv 2309.03883): low,"
           " high or a list."),
        _P("diversity_penalty", "float", "Penalty for a token that another beam group took.", 0.0,
           _FINITE, neutral=(0.0,)),
        _P("num_beam_groups", "int", "Groups of a diverse beam search; 1 is none.", 1,
           neutral=(1,)),
        _P("constraints", "list[Any]", "Constraints on the output, a list of Constraint objects.",
           is_local=True),
        _P("force_words_ids", "Any", "Words that must appear: ids of each, or a list of"
           " alternatives.", ids=_WORDS),
        _P("prefill_chunk_size", "int", "Prompt tokens of one forward; None is all at once.",
           rule=Documented("an integer above 0", rules.is_positive, _COUNT)),
    ),
)  # fmt: skip
"""The fields of `GenerationConfig`."""

GENERATE_ARGUMENTS = group("arguments",
    _P("logits_processor", "list[Any]", "Processors that complement the built-in ones.",
       rule=rules.callables, is_local=True),
    _P("stopping_criteria", "list[Any]", "Criteria that complement the built-in ones.",
       rule=rules.callables, is_local=True),
    _P("prefix_allowed_tokens_fn", "Callable[[int, Any], list[int]]", "(index of the prompt, ids"
       " so far) -> the ids that may come next.", rule=rules.function, is_local=True),
    _P("synced_gpus", "bool", "Accepted; has no effect on one device.", is_local=True),
    _P("assistant_model", "Any", "A smaller model that drafts tokens for this one to check.",
       is_local=True),
    _P("streamer", "BaseStreamer", "Gets the tokens as they come.", is_local=True,
       elsewhere="a stream is its own streamer; `generate` of `AsyncLLM` and `LLM` takes one"),
    _P("negative_prompt_ids", "Any", "The prompt that `guidance_scale` leads away from."),
    _P("negative_prompt_attention_mask", "Any", "Its mask, zero at padding."),
)  # fmt: skip
"""Documented arguments of `generate` that are no fields of `GenerationConfig`."""

CALL = group("call",
    _P("generation_config", "GenerationConfig", "What the other parameters are laid over.",
       rule=rules.config, is_local=True),
    _P("assistant_tokenizer", "Any", "The tokenizer of `assistant_model`, if it is another one.",
       is_local=True),
    _P("custom_generate", "str | Callable[..., Any]", "A decoding method in place of a strategy.",
       rule=rules.method, is_local=True),
    _P("recipe", "str", "An older name of `custom_generate`.", rule=rules.method, is_local=True),
    _P("trust_remote_code", "bool", "Whether such a method may come from the hub.",
       rule=rules.switch, is_local=True),
)  # fmt: skip
"""What else a call may say: on what it is based, and who decodes."""

PARAMETERS = (*FIELDS, *GENERATE_ARGUMENTS, *CALL, *OWN)
BY_NAME: Mapping[str, Parameter] = {each.name: each for each in PARAMETERS}
STREAM_PARAMETERS: Mapping[str, Parameter] = {
    each.name: each for each in PARAMETERS if not each.elsewhere
}
"""Parameters of a stream by name: for programs that show them, or check values beforehand."""

SWITCHES = frozenset(each.name for each in FIELDS if each.type == "bool")
"""Fields that are True or False."""

SAMPLING = frozenset(each.name for each in FIELDS if each.needs == _SAMPLE)
"""To give one of these asks for sampling."""

DRAFTING = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)
"""Fields that are left open, because the draft model's own configuration comes before defaults."""

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
