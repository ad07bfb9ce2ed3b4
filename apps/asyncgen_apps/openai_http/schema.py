"""What the routes take: every field with its type, and nothing else.

Only shapes are checked here, so that the documents at ``/openapi.json`` say what is accepted;
values are checked by the engine, which knows the model. Knows no engine and no HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from asyncgen_apps.sizes import MOST_SAMPLES
from asyncgen_apps.template_variables import too_large
from asyncgen_apps.turns import give_way

T = TypeVar("T")

NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None, False),
    "prediction": (None,),
    "prompt_cache_key": (None,),
    "prompt_cache_retention": (None,),
    "reasoning_effort": (None,),
    "safety_identifier": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None,),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "user": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Fields of the API that are not supported, with the values that ask for what is done anyway."""

MAX_CHOICES = MOST_SAMPLES
MAX_PROMPTS = 1024
MAX_INPUTS = 2048
"""Most texts of one request for embeddings, as in the API."""
MAX_IDS = 2**18
"""Most token ids in one list: as many as the largest vocabularies have."""
MAX_SEQUENCES = 2**15
"""Most sequences of token ids in one field: laying them out blocks all other requests."""
MAX_SETTINGS = 32
MAX_WORDS = 1024
"""Most forced words, and most forms of one: each takes part in every step of every beam."""


def _encodable(text: str) -> str:
    """JSON can spell half a character; no text holds one."""
    give_way()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not Unicode: a lone surrogate at position {error.start}") from None
    return text


def _same(value: T) -> T:
    """Between two entries of a long field, other threads have their turn."""
    give_way()
    return value


def _small(variables: Any) -> Any:
    """Refuse what is more than settings of a chat template."""
    reason = too_large(variables)
    if reason is not None:
        raise ValueError(reason)
    return variables


Text = Annotated[str, AfterValidator(_encodable)]
Integer = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**64)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Bias = Annotated[Number, AfterValidator(_same)]
Boolean = Annotated[bool, Field(strict=True)]

# Lists end at the first entry that does not fit: only one complaint is told, and a million of them
# would hold up everybody.
TokenIds = Annotated[
    list[Integer], Field(fail_fast=True, max_length=MAX_IDS), AfterValidator(_same)
]
Sequences = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_SEQUENCES)]
Biases = Annotated[list[tuple[TokenIds, Number]], Field(fail_fast=True, max_length=MAX_SEQUENCES)]
Forms = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_WORDS)]
Words = Annotated[list[TokenIds | Forms], Field(fail_fast=True, max_length=MAX_WORDS)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Variables = Annotated[dict[Text, JsonValue], BeforeValidator(_small)]
Schema = dict[Text, JsonValue]
Setting = Boolean | Integer | Number | Text | TokenIds


def _first_wrong(biases: Any) -> Any:
    """Of a table with values that do not fit, leave the first of them: it is all that is told."""
    if isinstance(biases, dict):
        for token, bias in biases.items():
            if type(bias) not in (int, float):
                return {token: bias}
    return biases


def _few(settings: Any) -> Any:
    """Refuse a table that is too long to be one of settings."""
    if isinstance(settings, dict) and len(settings) > MAX_SETTINGS:
        raise ValueError(f"{len(settings)} entries: at most {MAX_SETTINGS}")
    return settings


class Strict(BaseModel):
    """Refuses what it does not know."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_one(cls, data: Any) -> Any:
        """Of the names that are unknown, leave the first: it is all that is told."""
        give_way()
        if not isinstance(data, dict):
            return data
        known = {name: data[name] for name in cls.model_fields if name in data}
        if len(known) == len(data):
            return data
        for name, value in data.items():
            if name not in known and not cls._is_idle(name, value):
                return {**known, name: value}
        return known

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Whether an unknown field asks for nothing, and may be left out."""
        return False


class StreamOptions(Strict):
    """What a stream tells beside its text."""

    include_usage: Boolean | None = Field(None, description="A last chunk with the token counts.")
    continuous_usage_stats: Boolean | None = Field(
        None, description="Token counts so far in every chunk; needs `include_usage`."
    )
    include_obfuscation: Literal[False] | None = Field(None, description="Not supported.")


class GenerationFields(Strict):
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
    watermarking_config: Annotated[dict[str, Setting], BeforeValidator(_few)] | None = None
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
    priority: Integer | None = None
    cache_salt: Text | None = None
    chat_template_kwargs: Variables | None = Field(
        None, description="Variables of the chat template, such as `enable_thinking`."
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
    """What both routes have in common."""

    model: Text = Field(description="Id of a model of `/v1/models`.")
    stream: Boolean | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="Choices for each prompt."
    )
    seed: Integer | None = None
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
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(_first_wrong)] | None = Field(
        None, description="Added to the score of a token id, -100 to 100."
    )

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Compare by type as well: JSON's 1 and true are not the same."""
        wanted = NEUTRAL.get(name, ()) if isinstance(name, str) else ()
        return any(type(value) is type(one) and value == one for one in wanted)


class TextPart(Strict):
    """One text of a message."""

    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]
    name: Text | None = Field(None, description="Read by some chat templates.")

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Clients send back the answers they got, with the empty fields that came along."""
        empty = ("refusal", "tool_calls", "function_call", "audio", "annotations")
        return name in empty and value in (None, [])


class NamedSchema(Strict):
    """A JSON schema with its name."""

    name: Text
    description: Text | None = Field(None, description="For people; the model does not see it.")
    schema_: Schema = Field(alias="schema")
    strict: Boolean | None = Field(None, description="The schema is kept to in any case.")


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Strict):
    """An object of JSON."""

    type: Literal["json_object"]


class SchemaFormat(Strict):
    """A value that a JSON schema allows."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ChatCompletionRequest(RequestFields):
    """Body of ``POST /v1/chat/completions``."""

    response_format: (
        Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = Field(None, description="What the answer must look like.")

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
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


class EmbeddingRequest(Strict):
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
