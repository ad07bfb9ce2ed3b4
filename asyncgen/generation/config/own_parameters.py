"""Parameters of a stream that no reference document names: rows of the table in `parameters`.

Some have the names of another engine, for its clients: the samplers of llama.cpp, and the aliases
of parameters of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.generation.config import rules, tool_rules
from asyncgen.generation.config.parameter import Parameter, group
from asyncgen.generation.config.rules import (
    MOST_PROMPT_LOGPROBS,
    MOST_ROWS,
    MOST_TOP_LOGPROBS,
    Range,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_SAMPLE, _OFF = "do_sample", (False,)
_COUNT, _NATURAL = Range(1, whole=True), Range(0, whole=True)
_ROWS, _SHARE = Range(1, MOST_ROWS, whole=True), Range(0, 1)
_POSITIVE, _FROM_ZERO = Range(0, above=True), Range(0)
_BY_COUNT = Range(-2, 2, note="0 is off")
_LAST = Range(-1, whole=True, note="0 is off, -1 is the whole text")
_BUDGET = Range(-1, whole=True, note="-1 is no limit")
_P = Parameter

_BUDGETS = {
    "thinking_token_budget": "vLLM's",
    "thinking_budget": "Qwen's",
    "thinking_budget_tokens": "llama.cpp's",
    "reasoning_budget": "llama.cpp's",
    "reasoning_budget_tokens": "llama.cpp's",
}
"""Names of `max_reasoning_tokens` in other engines, and whose they are."""

SAMPLERS = group("samplers",
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

OWN = group("stream",
    _P("seed", "int", "Same seed, same draws; None draws one. From -2**63 to 2**64 - 1, as"
       " `torch.manual_seed` takes it.", rule=rules.seed),
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

ALIASES: Mapping[str, str] = {
    "repeat_penalty": "repetition_penalty",
    **dict.fromkeys(_BUDGETS, "max_reasoning_tokens"),
    "truncation": "context_overflow",
}
"""Names that other engines give to parameters of ours."""
