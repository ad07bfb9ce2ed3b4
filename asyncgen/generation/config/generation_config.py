"""`GenerationConfig`: every parameter of a generation, its rules, and its JSON file.

The fields themselves are a table in `parameters`; this class holds their values, and `forms` reads
and writes them. It knows nothing of models or tensors.
"""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.checks import hard_rules, minor_issues
from asyncgen.generation.config.forms import CONFIG_FILE, METADATA, NAMES, ConfigForms
from asyncgen.generation.config.modes import GenerationMode, generation_mode
from asyncgen.generation.config.own_parameters import OWN
from asyncgen.generation.config.parameters import (
    DEFAULTS,
    FIELDS,
    GENERATE_ARGUMENTS,
    STATIC_CACHES,
    SWITCHES,
)
from asyncgen.runtime.exact_values import BUILT_IN, exact, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["CONFIG_FILE", "CompileConfig", "GenerationConfig"]

_logger = logging.getLogger("asyncgen.generation")


_LISTED = {each.name: "list[" in each.type or each.type == "Any" for each in (*FIELDS, *OWN)}
"""Parameters that hold values, and whether a tuple in them is as good as a list."""


_LENGTHS = frozenset({"max_length", "max_new_tokens"})
"""Numbers of tokens that the reference takes as 4.0 as well as 4."""


@dataclass
class CompileConfig:
    """Arguments of `torch.compile` for the forward pass.

    Attributes:
        fullgraph: Require a single graph; on, as documented.
        dynamic: Use dynamic shapes; None lets torch decide.
        backend: Name of the backend, or a callable.
        mode: Trade-off between compile time and overhead.
        options: Options of the backend.
    """

    fullgraph: bool = True
    dynamic: bool | None = None
    backend: str | Callable = "inductor"
    mode: str = "reduce-overhead"
    options: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as a new dict."""
        return asdict(self)


class GenerationConfig(ConfigForms):
    """The parameters of one generation.

    A field that was not given is None until `generate` puts its default in place (see
    `_get_default_generation_params`). What each field means is in the table of
    `asyncgen.generation.config.parameters`. Keywords that are no field are kept as attributes of
    the same name, and saved.
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
    use_mtp: bool | None
    use_cache: bool | None
    cache_implementation: str | None
    cache_config: dict[str, Any] | None
    max_cache_len: int | None
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
    output_attentions: bool | None
    output_hidden_states: bool | None
    output_scores: bool | None
    output_logits: bool | None
    return_dict_in_generate: bool | None
    pad_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    encoder_no_repeat_ngram_size: int | None
    decoder_start_token_id: int | list[int] | None
    is_assistant: bool | None
    num_assistant_tokens: int | None
    num_assistant_tokens_schedule: str | None
    assistant_confidence_threshold: float | None
    prompt_lookup_num_tokens: int | None
    max_matching_ngram_size: int | None
    assistant_early_exit: int | None
    assistant_lookbehind: int | None
    target_lookbehind: int | None
    assistant_ensemble_weight: float | None
    speculation_type: str | None
    compile_config: Any
    disable_compile: bool | None
    continuous_batching_config: Any
    low_memory: bool | None
    penalty_alpha: float | None
    dola_layers: str | list[int] | None
    diversity_penalty: float | None
    num_beam_groups: int | None
    constraints: list[Any] | None
    force_words_ids: Any
    prefill_chunk_size: int | None
    _from_model_config: bool | None
    transformers_version: str | None

    def __init__(self, **kwargs: Any) -> None:
        """Take the given fields and check them.

        Args:
            kwargs: Fields by name; other keywords become attributes.

        Raises:
            InvalidRequestError: A value or combination that can never work, or an argument of
                `generate` that is no field.
            TypeError: A value of the wrong type.
        """
        given = set(kwargs)
        for name in NAMES + METADATA:
            setattr(self, name, kwargs.pop(name, None))
        if isinstance(self.watermarking_config, dict):
            # Here, because the processors beside it need torch, which this module does not.
            from asyncgen.generation.watermarking.config import watermark_from

            self.watermarking_config = watermark_from(self.watermarking_config)
        for argument in GENERATE_ARGUMENTS:
            if argument.name in kwargs:
                remedy = "an argument of `generate`, not a configuration field; pass it there"
                raise InvalidRequestError(argument.name, kwargs[argument.name], remedy)
        for name, value in kwargs.items():
            if hasattr(GenerationConfig, name):
                remedy = "a name of `GenerationConfig` itself, and no field; leave it out"
                raise InvalidRequestError(name, value, remedy)
            setattr(self, name, value)
        self.validate(user_set_attributes=given)

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep arrays as plain values, 0 and 1 of a switch as False and True, lengths as whole."""
        value = plain_value(name, value)
        if name in SWITCHES and type(value) in (int, float) and value in (0, 1):
            value = bool(value)
        elif name in _LENGTHS and isinstance(value, float) and value.is_integer():
            value = int(value)
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        """Compare the values of all fields, metadata aside."""
        if not isinstance(other, GenerationConfig):
            return False
        return self._canonical() == other._canonical()

    def __hash__(self) -> int:
        """Hash the values of all fields; it changes when one of them changes."""
        return hash(self._canonical())

    def __repr__(self) -> str:
        """Show the fields that are set."""
        return f"{type(self).__name__} {self.to_json_string(ignore_metadata=True)}"

    def _canonical(self) -> str:
        return self.to_json_string(use_diff=False, ignore_metadata=True)

    def get_generation_mode(self, assistant_model: object | None = None) -> GenerationMode:
        """Resolve the decoding strategy that these fields ask for.

        Args:
            assistant_model: A draft model; it makes the mode assisted generation.

        Returns:
            The strategy.
        """
        return generation_mode(self, assistant_model)

    @staticmethod
    def _get_default_generation_params() -> dict[str, Any]:
        """Return what `generate` uses for fields that are None."""
        return dict(DEFAULTS)

    def validate(
        self, strict: bool = False, user_set_attributes: Collection[str] | None = None
    ) -> None:
        """Check the fields.

        What depends on the prompt or the model, such as lengths, is checked by `generate`.

        Args:
            strict: Raise for flags without effect as well; otherwise they are logged once.
            user_set_attributes: Names the user just set. Someone who switches `do_sample` or
                `num_beams` off is not told about flags that were there before.

        Raises:
            InvalidRequestError: A value or combination that cannot work, or with ``strict`` one
                that has no effect.
            TypeError: A value of the wrong type.
        """
        hard_rules(self)
        if self.continuous_batching_config is not None:
            warnings.warn(
                "`continuous_batching_config` inside a GenerationConfig is deprecated; pass it to"
                " the continuous batching call",
                FutureWarning,
                stacklevel=3,
            )
        if self.max_cache_len is not None and self.cache_implementation not in STATIC_CACHES:
            _warn_once(
                "`max_cache_len` is used by static caches only and ignored with"
                f" `cache_implementation={self.cache_implementation!r}`"
            )
        if self.compile_config is not None and not self.disable_compile:
            _warn_once(
                "`compile_config` has no effect: a decode step runs in kernels that are compiled"
                " already, and on CUDA in a recorded graph"
            )
        issues = minor_issues(self, user_set_attributes or ())
        if not issues:
            return
        listing = "; ".join(map(str, issues))
        if strict:
            first, rest = issues[0], "; ".join(map(str, issues[1:]))
            reason = f"{first.reason}; also {rest}" if rest else first.reason
            raise InvalidRequestError(first.name, first.value, reason)
        names = [issue.name for issue in issues]
        _warn_once(f"these generation flags have no effect: {names}", listing)

    def update(
        self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Set those attributes that exist.

        Args:
            defaults_only: Set only what is None so far.
            allow_custom_entries: Add keywords that are no attribute yet.
            kwargs: New values by name.

        Returns:
            The keywords that were not used.

        Raises:
            InvalidRequestError: The result can never work. The values stay set.
        """
        used = set()
        for name, value in kwargs.items():
            if hasattr(type(self), name):
                continue
            if name in self.__dict__:
                is_wanted = not defaults_only or getattr(self, name) is None
            else:
                is_wanted = allow_custom_entries
            if is_wanted:
                setattr(self, name, value)
                used.add(name)
        self.validate(user_set_attributes=used)
        return {name: value for name, value in kwargs.items() if name not in used}


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str, detail: str = "") -> None:
    """Log a warning that need not be repeated for every request."""
    _logger.warning("%s; log level info has the reasons" if detail else "%s", message)
    if detail:
        _logger.info("%s", detail)


def own_copy(config: Any) -> GenerationConfig:
    """Copy a configuration, and take over the fields of one of another class or library.

    Args:
        config: A `GenerationConfig`, or an object that has fields of the same names.

    Raises:
        InvalidRequestError: A value or combination of a foreign one can never work.
        TypeError: A value of a foreign one is of the wrong type.
    """
    if type(config) is GenerationConfig:
        return copy.deepcopy(config)
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    return GenerationConfig(**copy.deepcopy(fields))


def plain_value(name: str, value: Any) -> Any:
    """Return the value of a parameter as plain numbers and lists; an object stays one."""
    if type(value) in BUILT_IN:
        return value
    return plain(value, listed=_LISTED[name]) if name in _LISTED else exact(value)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by name with plain values."""
    return {name: plain_value(name, value) for name, value in values.items()}
