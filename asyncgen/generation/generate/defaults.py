"""Resolve the parameters of a call: defaults in order of precedence, and lengths.

The reference's rules; an unknown keyword is an error.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from asyncgen.errors import DefaultLengthWarning, InvalidRequestError, did_you_mean
from asyncgen.families.config import EditableConfig
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.checks import check_numbers, check_supported, check_values
from asyncgen.generation.config.combinations import BEAMS, Parameters, check_combinations
from asyncgen.generation.config.generation_config import own_copy
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.config.parameters import DEFAULTS, DRAFTING, FIELDS
from asyncgen.generation.logits.build import eos_ids
from asyncgen.generation.stopping.criteria import MaxLengthCriteria, StoppingCriteriaList
from asyncgen.generation.strategies.constraints import check_constraints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("asyncgen.generation")
_FIELDS = frozenset(each.name for each in FIELDS)
_MODEL_KWARGS = frozenset(
    "assistant_tokenizer attention_mask input_ids inputs_embeds past_key_values tokenizer".split()
)
_ENCODER_KWARGS = frozenset({"encoder_outputs", "decoder_input_ids", "decoder_attention_mask"})
_DECODER_KWARGS = frozenset({"position_ids", "cache_position", "logits_to_keep"})

_CALLER = 4
"""Whoever calls `generate` stands above it, `prepare_call` and `resolve_length`."""


def resolve_config(
    model: Any,
    generation_config: GenerationConfig | None,
    kwargs: dict[str, Any],
    own_names: frozenset[str] = frozenset(),
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Keywords over the given config over the model's over the documented defaults.

    Args:
        model: Has ``config`` and ``generation_config``.
        generation_config: Base configuration or ``None``.
        kwargs: The caller's keywords.
        own_names: Further keywords that a method of the caller's takes.

    Returns:
        The complete configuration but for lengths and padding, and the keywords that are no
        fields of it.

    Raises:
        ValueError: An invalid value or combination, or an unknown keyword.
    """
    if generation_config is None:
        check_model_config(model.config)
    own = model.generation_config
    config = own_copy(own if generation_config is None else generation_config)
    rest = config.update(**kwargs)
    check_numbers(config)
    config.update(defaults_only=True, **own.to_dict())
    defaults = GenerationConfig._get_default_generation_params()
    for name in ("max_length", *DRAFTING):  # see resolve_length, and make_drafter
        del defaults[name]
    config.update(defaults_only=True, **defaults)
    # A keyword that is None says that there is none, whatever the model's own configuration has.
    for name in kwargs.keys() - rest.keys():
        if kwargs[name] is None:
            setattr(config, name, None)
    config.validate(user_set_attributes=kwargs.keys())
    check_supported(config)
    check_combinations(BEAMS, Parameters(config))
    check_values({"length_penalty": config.length_penalty})
    if config.get_generation_mode() is GenerationMode.CONSTRAINED_BEAM_SEARCH:
        check_constraints(config)
    if config.prefill_chunk_size is not None and config.use_cache is False:
        allowed = "needs a cache to be read in chunks; set `use_cache=True` or unset it"
        raise InvalidRequestError("prefill_chunk_size", config.prefill_chunk_size, allowed)
    known = _MODEL_KWARGS | own_names
    known |= _ENCODER_KWARGS if model.config.is_encoder_decoder else _DECODER_KWARGS
    if getattr(getattr(model.core, "family", None), "has_token_types", False):
        known |= {"token_type_ids"}
    unknown = sorted(rest.keys() - known)
    if "decoder_inputs_embeds" in unknown:
        raise InvalidRequestError(
            "decoder_inputs_embeds",
            type(rest["decoder_inputs_embeds"]).__name__,
            "generation begins with ids of the decoder; give `decoder_input_ids`",
        )
    if unknown:
        hint = did_you_mean(unknown[0], known | {field.name for field in FIELDS})
        raise ValueError(
            f"the following `model_kwargs` are not used by the model: {unknown} (a typo in the "
            f"generate arguments shows up here as well){hint}"
        )
    return config, rest


def fill_config(
    model: Any, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
) -> GenerationConfig:
    """Complete the configuration of a call for a method that replaces ``generate``.

    Args:
        model: Has ``config`` and ``generation_config``.
        generation_config: As the call has it.
        kwargs: Keywords of the call, and its ``inputs``; only fields and prompts are read.

    Returns:
        A configuration of its own, with the keywords merged, and with lengths where the length of
        the prompt is known.

    Raises:
        ValueError: An invalid value or combination.
    """
    fields = {name: value for name, value in kwargs.items() if name in _FIELDS}
    config, _ = resolve_config(model, generation_config, fields)
    names: tuple[str, ...] = ("inputs", "input_ids", "inputs_embeds")
    if model.config.is_encoder_decoder:
        names = ("decoder_input_ids",)
    prompt = next((kwargs[name] for name in names if kwargs.get(name) is not None), None)
    if prompt is not None or model.config.is_encoder_decoder:
        length = 1 if prompt is None else prompt.shape[1]
        resolve_length(config, length, model.config, warns=False)
    return config


def check_direction(model: Any) -> None:
    """Refuse a model whose tokens see later ones.

    Args:
        model: What shall generate.

    Raises:
        InvalidRequestError: It generates nothing.
    """
    if getattr(getattr(getattr(model, "core", None), "config", None), "is_bidirectional", False):
        raise InvalidRequestError(
            "model",
            type(model).__name__,
            "its tokens see later ones (`use_bidirectional_attention`), so it generates none; "
            "`embed` turns texts into vectors with it",
        )


def check_model_config(config: object) -> None:
    """Refuse parameters of generation that were set on a model's configuration, as the reference.

    Args:
        config: A model's; what its file says of generation was taken over when it was loaded.

    Raises:
        InvalidRequestError: Names one of them, and where it belongs.
    """
    changes = config.changes if isinstance(config, EditableConfig) else {}
    for name, value in changes.items():
        if name in DEFAULTS and name != "use_cache" and value is not None:
            remedy = f"generation does not read it there; set `model.generation_config.{name}`"
            raise InvalidRequestError(f"model.config.{name}", value, remedy)


def resolve_use_cache(
    model_config: object, config: GenerationConfig, mode: GenerationMode, past: object
) -> None:
    """Let ``model.config.use_cache = False`` hold, where a call that is silent needs no cache.

    Args:
        model_config: The model's.
        config: Complete; gets ``use_cache``.
        mode: The strategy.
        past: The cache that it continues.
    """
    changes = model_config.changes if isinstance(model_config, EditableConfig) else {}
    if changes.get("use_cache") is not False:
        return
    modes = (GenerationMode.ASSISTED_GENERATION, GenerationMode.CONTRASTIVE_SEARCH)
    needed = (past, config.cache_implementation, config.prefill_chunk_size)
    if mode not in modes and all(each is None for each in needed):
        config.use_cache = False


def resolve_pad(config: GenerationConfig) -> None:
    """Ended rows need something to be filled with."""
    eos = eos_ids(config)
    if config.pad_token_id is None and eos:
        _log.warning(
            "setting `pad_token_id` to `eos_token_id` (%d) for open-end generation", eos[0]
        )
        config.pad_token_id = eos[0]


def check_pad(config: GenerationConfig, prompts: int, vocab_size: int) -> None:
    """Look at what ended rows are filled with.

    Args:
        config: Complete but for lengths.
        prompts: How many there are; a single one is never filled up, unless it is continued
            several times at once.
        vocab_size: Ids go up to here.

    Raises:
        InvalidRequestError: Rows could not go on beside one that was filled with this id.
    """
    pad = config.pad_token_id
    if not config.num_beams or config.num_beams == 1:
        prompts *= config.num_return_sequences or 1
    if prompts > 1 and pad is not None and not 0 <= int(pad) < vocab_size:
        allowed = f"rows that end are filled with it, so it must be from 0 to {vocab_size - 1}"
        raise InvalidRequestError("pad_token_id", int(pad), allowed)


def take_length(
    config: GenerationConfig, criteria: Sequence[Callable[..., Any]] | None
) -> StoppingCriteriaList | None:
    """Let the length of the caller's own criterion count, where nothing else gives one.

    Args:
        config: Gets ``max_length``, if there is such a criterion and no length yet.
        criteria: What the caller passed.

    Returns:
        The criteria that are left to be asked; ``None`` where none were passed.
    """
    if criteria is None:
        return None
    lengths = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
    if not lengths or config.max_length is not None or config.max_new_tokens is not None:
        return StoppingCriteriaList(criteria)
    config.max_length = min(lengths)
    return StoppingCriteriaList(each for each in criteria if type(each) is not MaxLengthCriteria)


def resolve_length(
    config: GenerationConfig,
    prompt_length: int,
    model_config: Any,
    embedded: int | None = None,
    *,
    warns: bool = True,
) -> None:
    """Count lengths as the reference does: those of new tokens win, 20 are the default.

    Args:
        config: Gets ``max_length`` and ``min_length``.
        prompt_length: Ids of the decoder, padding included.
        model_config: May know a longest context.
        embedded: Positions of the prompt, where it was given as embeddings. If there are not as
            many ids, ``max_length`` and ``min_length`` count these positions as well.
        warns: Whether the default of 20 tokens is worth a warning.

    Raises:
        ValueError: No room is left for a token.
    """
    unwritten = 0 if embedded in (None, prompt_length) else embedded or 0
    if config.max_new_tokens is not None:
        if config.max_length is not None:
            _log.warning(
                "both `max_new_tokens` (=%d) and `max_length` (=%d) are set; `max_new_tokens` "
                "takes precedence",
                config.max_new_tokens,
                config.max_length,
            )
        config.max_length = prompt_length + config.max_new_tokens
    elif config.max_length is not None:
        config.max_length -= unwritten
    else:
        if warns:
            warnings.warn(
                "neither `max_new_tokens` nor `max_length` is set, so this ends after 20 new "
                "tokens; pass `max_new_tokens`, or set it in `model.generation_config`",
                DefaultLengthWarning,
                stacklevel=_CALLER,
            )
        config.max_length = prompt_length + 20
        context = getattr(model_config, "max_position_embeddings", None)
        if context is not None and prompt_length < context:
            config.max_length = min(config.max_length, context)
    if config.min_new_tokens is not None:
        config.min_length = prompt_length + config.min_new_tokens
    elif config.min_length is not None:
        config.min_length = max(config.min_length - unwritten, 0)
    if prompt_length >= config.max_length:
        raise ValueError(
            f"`max_length` is {config.max_length + unwritten}, but the prompt has "
            f"{prompt_length + unwritten} tokens already; increase `max_length` or, better, set "
            "`max_new_tokens`"
        )
