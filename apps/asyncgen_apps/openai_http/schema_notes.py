"""Write descriptions, ranges and examples into the JSON schemas of requests.

A description is the field's own, or that of the library's table of parameters. The fields that most
requests have come first.
"""

from __future__ import annotations

import re
from typing import Any

from asyncgen_apps.openai_http.ranges import bounds, documentation

Schema = dict[str, Any]

FIRST = (
    "model messages prompt input max_tokens max_completion_tokens temperature top_p stop stream"
    " stream_options seed n tools tool_choice response_format presence_penalty frequency_penalty"
    " logprobs top_logprobs logit_bias"
).split()
"""The common fields, in the order in which they are shown."""

_NUMBERS = ("integer", "number")
_MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
_FUNCTION = {"name": "weather", "parameters": _PARAMETERS}
_TOOL = {"type": "function", "function": _FUNCTION}
_CALL = {"name": "weather", "arguments": '{"city": "Paris"}'}

EXAMPLES: Schema = {
    "add_special_tokens": True,
    "arguments": _CALL["arguments"],
    "assistant_confidence_threshold": 0.4,
    "assistant_early_exit": 4,
    "bad_words_ids": [[42], [7, 8]],
    "begin_suppress_tokens": [42],
    "bos_token_id": 1,
    "cache_salt": "customer-7",
    "chat_template_kwargs": {"enable_thinking": False},
    "choice": ["yes", "no"],
    "content": "Tell me a story about a fox.",
    "context_overflow": "truncate_middle",
    "continue_final_message": True,
    "continuous_usage_stats": True,
    "decoder_start_token_id": 0,
    "description": "How the weather is.",
    "dimensions": 256,
    "diversity_penalty": 0.5,
    "do_sample": True,
    "dola_layers": "high",
    "dry_allowed_length": 2,
    "dry_base": 1.75,
    "dry_multiplier": 0.8,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":"],
    "dynatemp_exponent": 1.0,
    "dynatemp_range": 0.5,
    "early_stopping": True,
    "echo": True,
    "enable_thinking": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.1,
    "encoding_format": "base64",
    "eos_token_id": 2,
    "epsilon_cutoff": 0.0003,
    "eta_cutoff": 0.0003,
    "exponential_decay_length_penalty": [100, 1.01],
    "fingerprint": "5f0c",
    "force_words_ids": [[7, 8]],
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 2,
    "frequency_penalty": 0.5,
    "function": _FUNCTION,
    "generated_ids": [7, 8],
    "grammar": 'start: "yes" | "no"',
    "guidance_scale": 1.5,
    "id": "call_1",
    "ignore_eos": True,
    "include_obfuscation": False,
    "include_usage": True,
    "index": 0,
    "input": "A fox slept.",
    "json_object": True,
    "json_schema": _PARAMETERS,
    "length_penalty": 1.0,
    "logit_bias": {"42": -100},
    "logprobs": True,
    "low_memory": True,
    "max_completion_tokens": 100,
    "max_length": 200,
    "max_matching_ngram_size": 2,
    "max_new_tokens": 100,
    "max_reasoning_tokens": 500,
    "max_time": 30,
    "max_tokens": 100,
    "messages": _MESSAGES,
    "metadata": {"job": "7"},
    "min_length": 10,
    "min_new_tokens": 10,
    "min_p": 0.05,
    "min_tokens": 10,
    "mirostat": 2,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
    "model": "demo",
    "n": 2,
    "name": "weather",
    "negative_prompt_attention_mask": [1, 1],
    "negative_prompt_ids": [7, 8],
    "no_repeat_ngram_size": 3,
    "normalize": True,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "num_beam_groups": 2,
    "num_beams": 4,
    "pad_token_id": 0,
    "parallel_tool_calls": False,
    "parameters": _PARAMETERS,
    "penalty_alpha": 0.6,
    "pooling": "mean",
    "prefill_chunk_size": 512,
    "presence_penalty": 0.5,
    "priority": 1,
    "prompt": "Once upon a time",
    "prompt_cache_key": "story",
    "prompt_lookup_num_tokens": 10,
    "prompt_name": "query",
    "reasoning": "A fox is an animal.",
    "reasoning_budget": 500,
    "reasoning_budget_tokens": 500,
    "reasoning_content": "A fox is an animal.",
    "reasoning_effort": "low",
    "regex": "[0-9]{4}",
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "repeat_last_n": 64,
    "repeat_penalty": 1.1,
    "repetition_penalty": 1.1,
    "response_format": {"type": "json_object"},
    "return_progress": True,
    "return_token_ids": True,
    "role": "user",
    "safety_identifier": "user-7",
    "schema": _PARAMETERS,
    "seed": 1,
    "separate_reasoning": False,
    "sequence_bias": [[[42], -1.5]],
    "service_tier": "auto",
    "skip_special_tokens": False,
    "stop": ["\n\n"],
    "stop_strings": ["\n\n"],
    "stop_token_ids": [2],
    "store": False,
    "stream": True,
    "stream_options": {"include_usage": True},
    "strict": True,
    "suppress_tokens": [42],
    "temperature": 0.7,
    "text": "Tell me a story about a fox.",
    "thinking": "A fox is an animal.",
    "thinking_budget": 500,
    "thinking_budget_tokens": 500,
    "thinking_token_budget": 500,
    "token_healing": True,
    "tokens": [7, 8],
    "tool_call_errors": [],
    "tool_call_id": "call_1",
    "tool_calls": [{"id": "call_1", "type": "function", "function": _CALL}],
    "tool_choice": "auto",
    "tools": [_TOOL],
    "top_h": 0.4,
    "top_k": 40,
    "top_logprobs": 5,
    "top_n_sigma": 1.0,
    "top_p": 0.9,
    "truncation": "auto",
    "typical_p": 0.95,
    "use_cache": True,
    "user": "user-7",
    "watermarking_config": {"bias": 2.5},
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "CalledFunction.name": "weather",
    "CompletionRequest.logprobs": 5,
    "MessageCall.function": _CALL,
    "NamedSchema.description": "A city.",
    "NamedSchema.name": "city",
    "NamedTool.function": {"name": "weather"},
    "ObjectFormat.type": "json_object",
    "SchemaFormat.json_schema": {"name": "city", "schema": _PARAMETERS},
    "SchemaFormat.type": "json_schema",
    "TextFormat.type": "text",
    "TextPart.type": "text",
    "type": "function",
}
"""A value of each field, by its name; where a name has several meanings, with that of its model."""


_JSON = {"None": "null", "True": "true", "False": "false"}
_PYTHON = re.compile(rf"\b({'|'.join(_JSON)})\b")


def note(model: str, schema: Schema) -> None:
    """Complete the schema of a model in place.

    Args:
        model: Name of its class.
        schema: Its JSON schema, in which references are not resolved.
    """
    fields = schema.get("properties", {})
    for name, field in fields.items():
        described = field.pop("description", None) or documentation(name)
        if described:
            field["description"] = _PYTHON.sub(lambda word: _JSON[word[0]], described)
        numbers = [one for one in field.get("anyOf", [field]) if one.get("type") in _NUMBERS]
        for one in numbers:
            for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
                one.pop(word, None)
            one.update(bounds(name))
        example = EXAMPLES.get(f"{model}.{name}", EXAMPLES.get(name))
        if example is not None:
            field["examples"] = [example]
    order = {name: place for place, name in enumerate(FIRST)}
    if fields:
        names = sorted(fields, key=lambda name: order.get(name, len(order)))
        schema["properties"] = {name: fields[name] for name in names}
