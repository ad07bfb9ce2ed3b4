"""The keyword parameters of a stream, as a type for editors and type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.generation.config import GenerationConfig


class PromptParams(TypedDict, total=False):
    """Keyword parameters of ``count_tokens``: what is said to the chat template.

    They are a stream's, and mean the same.
    """

    chat_template_kwargs: dict[str, Any] | None
    tools: Sequence[dict[str, Any]] | None
    tool_choice: str | dict[str, Any] | None
    enable_thinking: bool | None
    reasoning_effort: str | None
    continue_final_message: bool | None


class RequestKeywords(TypedDict, total=False):
    """Keyword parameters of a request, all but the configuration that they are laid over.

    They are those of the table in `asyncgen.generation.config.parameters`, where each is
    explained.
    """

    max_length: int | None
    max_new_tokens: int | None
    min_length: int | None
    min_new_tokens: int | None
    early_stopping: bool | str | None
    max_time: float | None
    stop_strings: str | list[str] | None
    do_sample: bool | None
    num_beams: int | None
    use_cache: bool | None
    cache_implementation: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_h: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    repetition_penalty: float | None
    encoder_repetition_penalty: float | None
    length_penalty: float | None
    no_repeat_ngram_size: int | None
    bad_words_ids: list[list[int]] | None
    renormalize_logits: bool | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | list[int] | None
    remove_invalid_values: bool | None
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: list[int] | None
    begin_suppress_tokens: list[int] | None
    sequence_bias: Any
    token_healing: bool | None
    guidance_scale: float | None
    watermarking_config: Any
    num_return_sequences: int | None
    pad_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    encoder_no_repeat_ngram_size: int | None
    decoder_start_token_id: int | list[int] | None
    num_beam_groups: int | None
    diversity_penalty: float | None
    penalty_alpha: float | None
    low_memory: bool | None
    dola_layers: str | list[int] | None
    constraints: list[Any] | None
    force_words_ids: Any
    prompt_lookup_num_tokens: int | None
    max_matching_ngram_size: int | None
    num_assistant_tokens: int | None
    num_assistant_tokens_schedule: str | None
    assistant_confidence_threshold: float | None
    assistant_early_exit: int | None
    assistant_lookbehind: int | None
    target_lookbehind: int | None
    prefill_chunk_size: int | None

    assistant_ensemble_weight: float | None
    cache_config: dict[str, Any] | None
    compile_config: Any
    continuous_batching_config: Any
    disable_compile: bool | None
    is_assistant: bool | None
    max_cache_len: int | None
    speculation_type: str | None
    use_mtp: bool | None

    logits_processor: list[Any] | None
    stopping_criteria: list[Any] | None
    prefix_allowed_tokens_fn: Callable[[int, Any], list[int]] | None
    synced_gpus: bool | None
    assistant_model: Any
    assistant_tokenizer: Any
    negative_prompt_ids: Any
    negative_prompt_attention_mask: Any
    custom_generate: str | Callable[..., Any] | None
    recipe: str | None
    trust_remote_code: bool | None

    seed: int | None
    stop: str | Sequence[str] | None
    logprobs: bool | None
    top_logprobs: int | None
    prompt_logprobs: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: list[str] | None
    top_n_sigma: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    repeat_last_n: int | None
    priority: int | None
    client: str | None
    cache_salt: str | None
    chat_template_kwargs: dict[str, Any] | None
    tools: Sequence[dict[str, Any]] | None
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool | None
    separate_reasoning: bool | None
    enable_thinking: bool | None
    reasoning_effort: str | None
    max_reasoning_tokens: int | None
    stop_token_ids: Sequence[int] | None
    continue_final_message: bool | None
    generated_ids: Sequence[int] | Sequence[Sequence[int]] | None
    fingerprint: str | None
    json_schema: dict[str, Any] | str | None
    json_object: bool | None
    response_model: type | None
    regex: str | None
    grammar: str | None
    choice: list[str] | None
    context_overflow: str | None
    truncation: str | None
    n: int | None
    repeat_penalty: float | None
    thinking_token_budget: int | None
    thinking_budget: int | None
    thinking_budget_tokens: int | None
    reasoning_budget: int | None
    reasoning_budget_tokens: int | None
    skip_special_tokens: bool | None


class StreamParams(RequestKeywords, total=False):
    """Keyword parameters of ``AsyncLLM.stream`` and ``AsyncLLM.generate``.

    The fields of ``GenerationConfig`` (documented there), the documented arguments of
    ``generate`` except ``streamer``, and our own, at the end.

    A request has at most 4096 samples (``n`` or ``num_return_sequences``) and 4096 beams; its
    ``stop`` and its ``stop_strings`` at most 16,384 characters each, all strings together.
    Numbers are of 64 bits at most.
    """

    generation_config: GenerationConfig | None
