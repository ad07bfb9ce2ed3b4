"""Schema of requests: every field with its type.

Only shapes are checked here, so that the documents at ``/openapi.json`` say what is accepted;
values are checked by the engine, which knows the model. Knows no engine and no HTTP.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from asyncgen_apps.openai_http.conversation_schema import ChatMessage, Choice, NamedTool, Tools
from asyncgen_apps.openai_http.fields import (
    Bias,
    Biases,
    Boolean,
    Integer,
    Number,
    Off,
    Schema,
    Sequences,
    Setting,
    StrictModel,
    Text,
    Texts,
    TokenIds,
    Variables,
    Words,
    few,
    first_wrong,
)
from asyncgen_apps.serving.limits import MOST_SAMPLES

NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "include_reasoning": (None, True),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "no_stop_trim": (None, False),
    "prediction": (None,),
    "prompt_cache_retention": (None,),
    "return_hidden_states": (None, False),
    "stream_reasoning": (None, True),
    "suffix": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Fields of the API, and of routers that put theirs into all requests, that are not supported, with
the values that ask for what is done anyway."""

_IDLE = "Taken, and not used: it changes no token."

_BUDGET = "Other name of `max_reasoning_tokens`; -1 is no limit."

MAX_CHOICES = MOST_SAMPLES
MAX_PROMPTS = 1024
MAX_INPUTS = 2048
"""Most texts of one request for embeddings, as in the API."""


class StreamOptions(StrictModel):
    """Outputs of a stream beside its text."""

    include_usage: Boolean | None = Field(None, description="A last chunk with the token counts.")
    continuous_usage_stats: Boolean | None = Field(
        None, description="Token counts so far in every chunk; needs `include_usage`."
    )
    include_obfuscation: Literal[False] | None = Field(None, description="Not supported.")


class GenerationFields(StrictModel):
    """Parameters of this library beyond the API: fields of ``GenerationConfig``, and our own.

    Their meaning is that of ``asyncgen.StreamParams``. Python objects, draft models and code
    cannot be sent over the wire.
    """

    max_length: Integer | None = None
    max_new_tokens: Integer | None = None
    min_length: Integer | None = None
    min_new_tokens: Integer | None = None
    early_stopping: Boolean | Literal["never"] | None = None
    max_time: Number | None = None
    stop_strings: Text | Texts | None = None
    do_sample: Boolean | None = None
    num_beams: Annotated[Integer, Field(le=MAX_CHOICES)] | None = None
    num_beam_groups: Integer | None = None
    diversity_penalty: Number | None = None
    force_words_ids: Words | None = None
    use_cache: Boolean | None = None
    prefill_chunk_size: Integer | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    top_h: Number | None = None
    typical_p: Number | None = None
    epsilon_cutoff: Number | None = None
    eta_cutoff: Number | None = None
    repetition_penalty: Number | None = None
    encoder_repetition_penalty: Number | None = None
    length_penalty: Number | None = None
    no_repeat_ngram_size: Integer | None = None
    encoder_no_repeat_ngram_size: Integer | None = None
    bad_words_ids: Sequences | None = None
    renormalize_logits: Boolean | None = None
    forced_bos_token_id: Integer | None = None
    forced_eos_token_id: Integer | TokenIds | None = None
    remove_invalid_values: Boolean | None = None
    exponential_decay_length_penalty: tuple[Integer, Number] | None = None
    suppress_tokens: TokenIds | None = None
    begin_suppress_tokens: TokenIds | None = None
    sequence_bias: Biases | None = None
    token_healing: Boolean | None = None
    guidance_scale: Number | None = None
    negative_prompt_ids: TokenIds | None = None
    negative_prompt_attention_mask: TokenIds | None = None
    watermarking_config: Annotated[dict[str, Setting], BeforeValidator(few)] | None = None
    bos_token_id: Integer | None = None
    pad_token_id: Integer | None = None
    decoder_start_token_id: Integer | TokenIds | None = None
    eos_token_id: Integer | TokenIds | None = None
    penalty_alpha: Number | None = None
    low_memory: Boolean | None = None
    dola_layers: Literal["high", "low"] | TokenIds | None = None
    prompt_lookup_num_tokens: Integer | None = None
    max_matching_ngram_size: Integer | None = None
    assistant_early_exit: Integer | None = None
    num_assistant_tokens: Integer | None = None
    num_assistant_tokens_schedule: Text | None = None
    assistant_confidence_threshold: Number | None = None
    xtc_probability: Number | None = Field(
        None, description="How often XTC leaves out the likeliest tokens; llama.cpp's names."
    )
    xtc_threshold: Number | None = None
    dry_multiplier: Number | None = Field(
        None, description="Penalty of DRY on tokens that go on with a repetition."
    )
    dry_base: Number | None = None
    dry_allowed_length: Integer | None = None
    dry_penalty_last_n: Integer | None = None
    dry_sequence_breakers: Texts | None = None
    top_n_sigma: Number | None = None
    dynatemp_range: Number | None = None
    dynatemp_exponent: Number | None = None
    mirostat: Integer | None = None
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    repeat_last_n: Integer | None = Field(None, description="Tokens that penalties look at.")
    repeat_penalty: Number | None = Field(None, description="Other name of `repetition_penalty`.")
    priority: Integer | None = None
    cache_salt: Text | None = None
    chat_template_kwargs: Variables | None = Field(
        None, description="Variables of the chat template, such as `enable_thinking`."
    )
    tools: Tools | None = Field(None, description="Functions that the model may call.")
    tool_choice: Choice | NamedTool | None = Field(
        None, description="Whether it calls one; not given: as it likes."
    )
    parallel_tool_calls: Boolean | None = Field(
        None, description="Whether an answer may have several calls; not given: it may."
    )
    separate_reasoning: Boolean | None = Field(
        None, description="Tell `reasoning_content` apart; not given: where the model marks it."
    )
    enable_thinking: Boolean | None = None
    reasoning_effort: Text | None = Field(
        None, description="none, minimal, low, medium, high or xhigh: of the chat template."
    )
    max_reasoning_tokens: Integer | None = Field(
        None, description="Behind so many tokens the end of the reasoning is written."
    )
    thinking_token_budget: Integer | None = Field(None, description=_BUDGET)
    thinking_budget: Integer | None = Field(None, description=_BUDGET)
    thinking_budget_tokens: Integer | None = Field(None, description=_BUDGET)
    reasoning_budget: Integer | None = Field(None, description=_BUDGET)
    reasoning_budget_tokens: Integer | None = Field(None, description=_BUDGET)
    context_overflow: Text | None = Field(
        None, description="A prompt too long: `refuse`, `truncate_middle` or `rolling`."
    )
    truncation: Text | None = Field(
        None, description="The same: `disabled`, or `auto` for `truncate_middle`."
    )
    stop_token_ids: TokenIds | None = Field(
        None, description="End the text, beside the model's own end of sequence."
    )
    continue_final_message: Boolean | None = Field(
        None, description="Go on with the last message, in place of answering it."
    )
    skip_special_tokens: Boolean | None = None
    json_schema: Schema | None = Field(None, description="The answer is a value that it allows.")
    json_object: Boolean | None = Field(None, description="The answer is an object of JSON.")
    regex: Text | None = Field(None, description="The whole answer matches it.")
    grammar: Text | None = Field(None, description="Of the answer, in Lark or GBNF.")
    choice: Texts | None = Field(None, description="The answer is one of these.")
    generated_ids: TokenIds | Sequences | None = Field(
        None,
        description="Tokens that were generated already, one list a choice: goes on behind them.",
    )
    fingerprint: Text | None = Field(
        None, description="Of the engine that generated `generated_ids`."
    )

    min_tokens: Integer | None = Field(None, description="Other name of `min_new_tokens`.")
    ignore_eos: Boolean | None = Field(
        None, description="Go on beyond the end of sequence, to the length asked for."
    )


class RequestFields(GenerationFields):
    """Fields that both routes share."""

    model: Text = Field(description="Id of a model of `/v1/models`.")
    stream: Boolean | None = Field(None, description="Events as they come, not one reply.")
    stream_options: StreamOptions | None = Field(
        None, description="Outputs of a stream beside its text; needs `stream`."
    )
    return_progress: Boolean | None = Field(
        None, description="Chunks with `prompt_progress` while the prompt is read; needs `stream`."
    )
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="Choices for each prompt."
    )
    seed: Integer | None = None
    user: Text | None = Field(None, description=_IDLE)
    metadata: dict[Text, JsonValue] | None = Field(None, description=_IDLE)
    safety_identifier: Text | None = Field(None, description=_IDLE)
    prompt_cache_key: Text | None = Field(None, description=_IDLE)
    store: Off | None = Field(None, description="Nothing is stored.")
    service_tier: Literal["auto", "default"] | None = Field(None, description=_IDLE)
    return_token_ids: Boolean | None = Field(
        None, description="Token ids in every choice, and those of the prompts."
    )
    stop: Text | Texts | None = Field(None, description="Ends the text before itself.")
    max_tokens: Integer | None = None
    temperature: Number | None = Field(
        None, description="0 takes the most probable token; not given: the model's default."
    )
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(first_wrong)] | None = Field(
        None, description="Added to the score of a token id, -100 to 100."
    )

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Compare by type as well: JSON's 1 and true are not the same."""
        wanted = NEUTRAL.get(name, ()) if isinstance(name, str) else ()
        return any(type(value) is type(one) and value == one for one in wanted)


class NamedSchema(StrictModel):
    """A JSON schema with its name."""

    name: Text = Field(description="Of the schema; the model does not see it.")
    description: Text | None = Field(None, description="For people; the model does not see it.")
    schema_: Schema = Field(alias="schema", description="The JSON schema.")
    strict: Boolean | None = Field(None, description="The schema is kept to in any case.")


class TextFormat(StrictModel):
    """Any text."""

    type: Literal["text"] = Field(description="Any text.")


class ObjectFormat(StrictModel):
    """An object of JSON."""

    type: Literal["json_object"] = Field(description="An object of JSON.")


class SchemaFormat(StrictModel):
    """A value that a JSON schema allows."""

    type: Literal["json_schema"] = Field(description="A value that a schema allows.")
    json_schema: NamedSchema = Field(description="The schema, and its name.")


class ChatCompletionRequest(RequestFields):
    """Body of ``POST /v1/chat/completions``."""

    response_format: (
        Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = Field(None, description="What the answer must look like.")

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)] = Field(
        description="The conversation; the last message is answered."
    )
    max_completion_tokens: Integer | None = None
    logprobs: Boolean | None = None
    top_logprobs: Integer | None = None


class CompletionRequest(RequestFields):
    """Body of ``POST /v1/completions``."""

    prompt: (
        Text
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
    ) = Field(description="A text, a list of token ids, or several of one kind.")
    logprobs: Integer | None = Field(None, description="Alternatives of each token.")
    echo: Boolean | None = Field(
        None, description="Tell the prompt before its continuation; `max_tokens` may be 0 then."
    )


class EmbeddingRequest(StrictModel):
    """Body of ``POST /v1/embeddings``."""

    model: Text = Field(description="Id of a model of `/v1/models`.")
    input: (
        Text
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]
        | Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]
    ) = Field(description="A text, a list of token ids, or several of one kind.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or little-endian float32 in base64."
    )
    dimensions: Integer | None = Field(
        None, description="Components to keep, for a model that was trained to have them cut."
    )
    user: Text | None = Field(None, description="Taken, and not used.")
    pooling: Literal["last", "mean"] | None = Field(
        None, description="Which hidden states make the vector; not given: as the model says."
    )
    normalize: Boolean | None = Field(
        None, description="Divide by the length; not given: as the model says."
    )
    prompt_name: Text | None = Field(
        None, description="Which of the model's own prompts stands before a text."
    )
    priority: Integer | None = None
    cache_salt: Text | None = None


class TemplateFields(StrictModel):
    """What a chat template is told beside the messages."""

    model: Text | None = Field(None, description="Id of a model of `/v1/models`.")
    tools: Tools | None = None
    tool_choice: Choice | NamedTool | None = None
    chat_template_kwargs: Variables | None = None
    enable_thinking: Boolean | None = None
    reasoning_effort: Text | None = None
    continue_final_message: Boolean | None = None


class TokenizeRequest(TemplateFields):
    """Body of ``POST /tokenize``."""

    prompt: Text | None = Field(None, description="A text; or else `messages`.")
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)] | None = Field(
        None, description="A conversation, as a chat would have it; or else `prompt`."
    )

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Return whether a value asks only for what is done in any case."""
        return name in ("add_special_tokens", "add_generation_prompt") and value is True


class ApplyTemplateRequest(TemplateFields):
    """Body of ``POST /apply-template``."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)] = Field(
        description="The conversation."
    )

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Return whether a value asks only for what is done in any case."""
        return name == "add_generation_prompt" and value is True


class DetokenizeRequest(StrictModel):
    """Body of ``POST /detokenize``."""

    model: Text | None = Field(None, description="Id of a model of `/v1/models`.")
    tokens: TokenIds = Field(description="Token ids of the model.")
