"""Every parameter of a generation as one table: a row says all that is true of it alone.

The table has the fields of `GenerationConfig`, the documented arguments of `generate`, and our own
parameters of a stream. Defaults and checks are read from it; what must be spelled out elsewhere
(`StreamParams` and the attributes of `GenerationConfig` for editors, the HTTP fields, the names
that a WebSocket takes, the options of the command line, the settings of the chat page) is tested
against it. To add a parameter is to add a row, and to follow the tests that fail.

What ties parameters together is in `checks`. Knows nothing of models, torch or files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncgen.generation.config import rules, tool_rules
from asyncgen.generation.config.rules import (
    MOST_PROMPT_LOGPROBS,
    MOST_ROWS,
    MOST_TOP_LOGPROBS,
    Documented,
    Range,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.generation.config.rules import Rule


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


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Kind of the token ids in a parameter.

    Attributes:
        several: Whether there may be a list of them.
        is_set: Whether the order of the list, and an id named twice, mean nothing.
        is_written: Whether they are put into the output, wherever they were asked for.
        words: Whether they are sequences, whose form is checked by those who use them.
    """

    several: bool = True
    is_set: bool = False
    is_written: bool = False
    words: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        name: The documented name.
        type: Its type as an annotation; ``None``, which means not given, aside.
        doc: What it does, its range, and its paper where there is one.
        default: What `generate` uses where it is None; None where it has no default.
        rule: The values that a request may give; None where those who use it check it.
        needs: The switch without which it has no effect: "do_sample", "num_beams",
            "use_cache", "return_dict_in_generate", a parameter of `SAMPLERS`, or None.
        neutral: Values that switch it off; None always does.
        awaits: What it asks for that is not served yet; None where it is served.
        ids: What token ids are in it; None for none.
        elsewhere: Why it is no parameter of a stream, and what to do instead; empty if it is one.
        is_local: Whether it stays with the process, because it runs code, opens files, or is no
            JSON: servers refuse it.
        group: What it belongs to.
    """

    name: str
    type: str
    doc: str
    default: Any = None
    rule: Rule | None = None
    needs: str | None = None
    neutral: tuple[Any, ...] = ()
    awaits: str | None = None
    ids: TokenIds | None = None
    elsewhere: str = ""
    is_local: bool = False
    group: str = ""

    def is_neutral(self, value: object) -> bool:
        """Tell whether ``value`` leaves the parameter switched off."""
        return value is None or any(_same(value, neutral) for neutral in self.neutral)


def _group(name: str, *rows: Parameter) -> tuple[Parameter, ...]:
    return tuple(replace(row, group=name) for row in rows)


def _same(left: object, right: object) -> bool:
    try:
        return bool(left == right)
    except Exception:  # an array compares to an array, whose truth value is an error
        return False


_SAMPLE, _BEAMS, _CACHE, _DICT = "do_sample", "num_beams", "use_cache", "return_dict_in_generate"
_OFF = (False,)
_ASSISTED = "this kind of speculation"
_COUNT, _NATURAL = Range(1, whole=True), Range(0, whole=True)
_ROWS = Range(1, MOST_ROWS, whole=True)
_SHARE, _CUTOFF = Range(0, 1), Range(0, 1, below=True)
_POSITIVE, _FINITE, _FROM_ZERO = Range(0, above=True), Range(), Range(0)
_BY_COUNT = Range(-2, 2, note="0 is off")
_LAST = Range(-1, whole=True, note="0 is off, -1 is the whole text")
_BUDGET = Range(-1, whole=True, note="-1 is no limit")
_SET, _WRITTEN_ID = TokenIds(is_set=True), TokenIds(several=False, is_written=True)
_WORDS, _ONE_ID = TokenIds(words=True), TokenIds(several=False)
_IN_RESULT = "read `logprobs` instead, or call `model.generate`"
_BY_GENERATE = "call `model.generate`"
_P = Parameter

FIELDS: tuple[Parameter, ...] = (
    *_group("length",
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
    *_group("strategy",
        _P("do_sample", "bool", "Draw tokens at random; otherwise take the most likely one.",
           False, rules.switch),
        _P("num_beams", "int", "Beams of a beam search; 1 is none.", 1, _ROWS, neutral=(1,)),
        _P("use_mtp", "bool", "Multi-token prediction heads, if the model has them.",
           awaits=_ASSISTED, neutral=_OFF, is_local=True),
    ),
    *_group("cache",
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
    *_group("logits",
        _P("temperature", "float", "Divides the logits; 0 takes the most probable token; 1.0"
           " changes nothing.", 1.0, Range(0, note="0 takes the most probable token"),
           _SAMPLE, (1.0,)),
        _P("top_k", "int", "Draw from this many most likely tokens; 0 is off.", 50,
           Range(0, whole=True, note="0 is off"), _SAMPLE, (50,)),
        _P("top_p", "float", "Draw from the smallest set whose probability reaches this; 1.0 is"
           " off.", 1.0, _SHARE, _SAMPLE, (1.0,)),
        _P("min_p", "float", "Least probability, relative to the most likely token, in [0, 1].",
           None, _FINITE, _SAMPLE),
        _P("top_h", "float", "Keep the likeliest tokens up to this share of the entropy, in"
           " (0, 1].", None, _FINITE, _SAMPLE),
        _P("typical_p", "float", "Keep the most typical tokens up to this mass"
           " (arXiv 2202.00666); 1.0 is off.", 1.0, _SHARE, _SAMPLE, (1.0,)),
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
    *_group("output",
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
    *_group("special tokens",
        _P("pad_token_id", "int", "Id of the padding token.", rule=rules.one_id, ids=_ONE_ID),
        _P("bos_token_id", "int", "Id of the token that begins a sequence.", ids=_ONE_ID),
        _P("eos_token_id", "int | list[int]", "Id or ids of tokens that end a sequence.",
           rule=rules.end_ids, ids=_SET),
    ),
    *_group("encoder",
        _P("encoder_no_repeat_ngram_size", "int", "No n-gram of the prompt recurs; 0 is off.", 0,
           _NATURAL, neutral=(0,)),
        _P("decoder_start_token_id", "int | list[int]", "First decoder token of an encoder-decoder"
           " model; id or one per row.", ids=TokenIds()),
    ),
    *_group("drafts",
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
    *_group("performance",
        _P("compile_config", "Any", "How to compile the forward pass, a CompileConfig.",
           rule=Documented("an instance of CompileConfig", rules.has("to_dict")), is_local=True),
        _P("disable_compile", "bool", "Never compile on its own.", is_local=True),
        _P("continuous_batching_config", "Any", "Deprecated here; hand it to the continuous"
           " batching call.", awaits="a continuous batching configuration inside"
           " `GenerationConfig`", is_local=True),
    ),
    # Newer references moved these out of the library.
    *_group("strategy",
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

GENERATE_ARGUMENTS = _group("arguments",
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
       elsewhere="a stream is its own streamer"),
    _P("negative_prompt_ids", "Any", "The prompt that `guidance_scale` leads away from."),
    _P("negative_prompt_attention_mask", "Any", "Its mask, zero at padding."),
)  # fmt: skip
"""Documented arguments of `generate` that are no fields of `GenerationConfig`."""

CALL = _group("call",
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

_BUDGETS = {
    "thinking_token_budget": "vLLM's",
    "thinking_budget": "Qwen's",
    "thinking_budget_tokens": "llama.cpp's",
    "reasoning_budget": "llama.cpp's",
    "reasoning_budget_tokens": "llama.cpp's",
}
"""Names of `max_reasoning_tokens` in other engines, and whose they are."""

SAMPLERS = _group("samplers",
    _P("xtc_probability", "float", "How often the likeliest tokens but the last above"
       " `xtc_threshold` are left out (XTC); 0 is off.", rule=_SHARE, needs=_SAMPLE,
       neutral=(0.0,)),
    _P("xtc_threshold", "float", "Probability from which a token is a top choice; above 0.5 XTC is"
       " off.", 0.1, _SHARE, "xtc_probability"),
    _P("dry_multiplier", "float", "Penalty on a token that would go on with a repetition (DRY); 0"
       " is off.", rule=_FROM_ZERO, neutral=(0.0,)),
    _P("dry_base", "float", "Factor of that penalty for each token of the repetition beyond"
       " `dry_allowed_length`.", 1.75, Range(1), "dry_multiplier"),
    _P("dry_allowed_length", "int", "Longest repetition without a penalty.", 2, _COUNT,
       "dry_multiplier"),
    _P("dry_penalty_last_n", "int", "Tokens in which repetitions are looked for; 0 is off, -1 is"
       " the whole text.", -1, _LAST, "dry_multiplier"),
    _P("dry_sequence_breakers", "list[str]", "Texts that no repetition runs across.",
       ("\n", ":", '"', "*"), rules.breakers, "dry_multiplier"),
    _P("top_n_sigma", "float", "Keep scores within so many standard deviations of the highest"
       " (arXiv 2411.07641); 0 and -1 are off.", rule=Range(-1, note="0 and -1 are off"),
       needs=_SAMPLE, neutral=(0.0, -1.0)),
    _P("dynatemp_range", "float", "How far the temperature moves down and up with the entropy; 0"
       " is off.", rule=_FROM_ZERO, needs=_SAMPLE, neutral=(0.0,)),
    _P("dynatemp_exponent", "float", "Power of the entropy in that temperature.", 1.0, _FROM_ZERO,
       "dynatemp_range"),
    _P("mirostat", "int", "Hold the surprise of the text at `mirostat_tau` (arXiv 2007.14966):"
       " version 1 or 2; 0 is off.", rule=Range(0, 2, whole=True, note="0 is off"),
       needs=_SAMPLE, neutral=(0,)),
    _P("mirostat_tau", "float", "Surprise to hold, in bits a token.", 5.0, _FROM_ZERO, "mirostat"),
    _P("mirostat_eta", "float", "How fast it is followed.", 0.1, _FROM_ZERO, "mirostat"),
    _P("repeat_last_n", "int", "Tokens, prompt included, that `repetition_penalty`,"
       " `presence_penalty` and `frequency_penalty` look at; 0 is none, -1 is the whole text.",
       rule=_LAST),
)  # fmt: skip
"""Samplers of llama.cpp, under its names."""

OWN = _group("stream",
    _P("seed", "int", "Same seed, same draws; None draws one.", rule=rules.integer),
    _P("stop", "str | Sequence[str]", "A string or strings that end the text before themselves.",
       rule=rules.stops),
    _P("logprobs", "bool", "Tell the log-probability of each token.", rule=rules.switch),
    _P("top_logprobs", "int", "Alternatives told with each token.",
       rule=Range(0, MOST_TOP_LOGPROBS, whole=True)),
    _P("prompt_logprobs", "int", "Tell the log-probability of each token of the prompt, with so"
       " many alternatives.", rule=Range(0, MOST_PROMPT_LOGPROBS, whole=True)),
    _P("presence_penalty", "float", "Subtracted from the logits of generated tokens; 0.0 is off.",
       rule=_BY_COUNT, neutral=(0.0,)),
    _P("frequency_penalty", "float", "The same, each time a token was generated; 0.0 is off.",
       rule=_BY_COUNT, neutral=(0.0,)),
    *SAMPLERS,
    _P("priority", "int", "Requests of a higher one go first; 0 where none is given.",
       rule=rules.integer, neutral=(0,)),
    _P("client", "str", "Whom the request belongs to: clients share the engine evenly; one client"
       " where none is given.", rule=rules.label, is_local=True),
    _P("cache_salt", "str", "Requests share what was computed of equal beginnings only under the"
       " same salt.", rule=rules.label),
    _P("chat_template_kwargs", "dict[str, Any]", "Variables of the model's chat template, such as"
       " `enable_thinking`; for messages alone.", rule=rules.template_variables, neutral=({},)),
    _P("tools", "Sequence[dict[str, Any]]", "Functions that the model may call, with the JSON"
       " schemas of their arguments, as OpenAI has them; for messages alone.",
       rule=tool_rules.tools, neutral=([], ())),
    _P("tool_choice", "str | dict[str, Any]", 'Whether it calls one: "auto", as it likes, which is'
       ' so where none is given; "none"; "required"; or one by its name.',
       rule=tool_rules.tool_choice),
    _P("parallel_tool_calls", "bool", "Whether an answer may call several tools; it may unless"
       " this is False: then it ends behind the first call.", rule=rules.switch),
    _P("separate_reasoning", "bool", "Tell reasoning apart from the text, where the model marks it;"
       " it is unless this is False.", rule=rules.switch),
    _P("enable_thinking", "bool", "Whether the model is asked to think first: a variable of its"
       " chat template.", rule=rules.switch),
    _P("reasoning_effort", "str", "How much it is asked to think: a variable of its chat template;"
       ' where that only knows on and off, "none" is off.', rule=tool_rules.effort),
    _P("max_reasoning_tokens", "int", "Most tokens of reasoning; behind them its end is written.",
       rule=_NATURAL),
    _P("stop_token_ids", "Sequence[int]", "Token ids that end the generation, beside"
       " `eos_token_id`.", rule=tool_rules.stop_ids, neutral=([], ())),
    _P("continue_final_message", "bool", "Go on with the last message, in place of answering it.",
       rule=rules.switch, neutral=_OFF),
    _P("generated_ids", "Sequence[int] | Sequence[Sequence[int]]", "Tokens that were generated"
       " already, one list a sample: the request goes on behind them as if it had generated them.",
       rule=rules.generated_ids, neutral=([], ())),
    _P("fingerprint", "str", "Of the engine that generated `generated_ids`: whether the tokens"
       " behind them are promised to be its own.", rule=rules.label),
    _P("json_schema", "dict[str, Any] | str", "A JSON schema, or its JSON: the answer is a value"
       " that it allows.", rule=rules.schema),
    _P("json_object", "bool", "The answer is an object of JSON.", rule=rules.switch, neutral=_OFF),
    _P("response_model", "type", "A pydantic model or a dataclass: the answer is one, as JSON, and"
       " `parsed` is one.", is_local=True),
    _P("regex", "str", "A regular expression that the whole answer matches.", rule=rules.grammar),
    _P("grammar", "str", "A grammar of the answer, in Lark or GBNF.", rule=rules.grammar),
    _P("choice", "list[str]", "Texts of which the answer is one.", rule=rules.choice),
    _P("context_overflow", "str", "What becomes of a prompt that is too long for the context:"
       ' "refuse", "truncate_middle" or "rolling".', rule=rules.overflow, neutral=("refuse",)),
    _P("truncation", "str", 'The Responses API\'s name of that: "disabled" or "auto", which is'
       ' "truncate_middle".', rule=rules.truncation, neutral=("disabled",)),
    _P("n", "int", "Short for `num_return_sequences`.", rule=_ROWS),
    _P("repeat_penalty", "float", "llama.cpp's name of `repetition_penalty`.", rule=_POSITIVE),
    *(_P(name, "int", f"{whose} name of `max_reasoning_tokens`; -1 is no limit.", rule=_BUDGET)
      for name, whose in _BUDGETS.items()),
    _P("skip_special_tokens", "bool", "Leave special tokens out of the text; they are unless"
       " this is False.", rule=rules.switch),
)  # fmt: skip
"""What is ours: parameters of a stream that no reference document names."""

PARAMETERS = (*FIELDS, *GENERATE_ARGUMENTS, *CALL, *OWN)
BY_NAME: Mapping[str, Parameter] = {each.name: each for each in PARAMETERS}

SWITCHES = frozenset(each.name for each in FIELDS if each.type == "bool")
"""Fields that are True or False."""

ALIASES: Mapping[str, str] = {
    "repeat_penalty": "repetition_penalty",
    **dict.fromkeys(_BUDGETS, "max_reasoning_tokens"),
    "truncation": "context_overflow",
}
"""Names that other engines give to parameters of ours."""

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
