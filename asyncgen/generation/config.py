"""`GenerationConfig`: every parameter of a generation, its rules, and its JSON file.

The fields themselves are a table in `fields`; this class holds their values. It knows how to read
and write ``generation_config.json`` and nothing of models or tensors.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config_files import dtype_to_name, fetch, to_plain, upload
from asyncgen.generation.fields import (
    DEFAULTS,
    FIELDS,
    GENERATE_ARGUMENTS,
    STATIC_CACHES,
    hard_rules,
    minor_issues,
)
from asyncgen.generation.modes import GenerationMode, generation_mode

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection

__all__ = ["CONFIG_FILE", "CompileConfig", "GenerationConfig"]

CONFIG_FILE = "generation_config.json"

_METADATA = ("_from_model_config", "transformers_version")
_NAMES = tuple(field.name for field in FIELDS)
_logger = logging.getLogger("asyncgen.generation")


@dataclass
class CompileConfig:
    """How to compile the forward pass; the arguments of `torch.compile`.

    Attributes:
        fullgraph: Require a single graph.
        dynamic: Use dynamic shapes; None lets torch decide.
        backend: Name of the backend, or a callable.
        mode: Trade-off between compile time and overhead.
        options: Options of the backend.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable = "inductor"
    mode: str = "reduce-overhead"
    options: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as a new dict."""
        return asdict(self)


class GenerationConfig:
    """The parameters of one generation.

    A field that was not given is None until `generate` puts its default in place (see
    `_get_default_generation_params`). What each field means is in `asyncgen.generation.fields`.
    Keywords that are no field are kept as attributes of the same name, and saved.
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
    sequence_bias: list[list[list[int] | float]] | dict[tuple[int, ...], float] | None
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
    force_words_ids: list[Any] | None
    prefill_chunk_size: int | None
    _from_model_config: bool | None
    transformers_version: str | None

    extra_output_flags = (
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
    )

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
        for name in _NAMES + _METADATA:
            setattr(self, name, kwargs.pop(name, None))
        if isinstance(self.watermarking_config, dict):
            # Here, because the processors beside it need torch, which this module does not.
            from asyncgen.generation.watermarking import watermark_from

            self.watermarking_config = watermark_from(self.watermarking_config)
        for name in GENERATE_ARGUMENTS:
            if name in kwargs:
                remedy = "an argument of `generate`, not a configuration field; pass it there"
                raise InvalidRequestError(name, kwargs[name], remedy)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.validate(user_set_attributes=given)

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
            known = name in self.__dict__
            if known and not (defaults_only and getattr(self, name) is not None):
                setattr(self, name, value)
                used.add(name)
            elif not known and allow_custom_entries:
                setattr(self, name, value)
                used.add(name)
        self.validate(user_set_attributes=used)
        return {name: value for name, value in kwargs.items() if name not in used}

    # Forms: dict, JSON, file.

    def to_dict(self) -> dict[str, Any]:
        """Return a deep copy of all attributes; torch dtypes become their names."""
        values = {
            name: copy.deepcopy(value)
            for name, value in self.__dict__.items()
            if not name.startswith("_") or name in _METADATA
        }
        return {name: dtype_to_name(value) for name, value in values.items()}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from an empty configuration."""
        known = (*_NAMES, *_METADATA)
        return {
            name: value
            for name, value in self.to_dict().items()
            if value is not None or name not in known
        }

    def to_json_string(
        self,
        use_diff: bool = True,
        ignore_metadata: bool = False,
        keys_to_pop: list[str] | None = None,
    ) -> str:
        """Render as JSON, sorted, with a final newline.

        A `sequence_bias` keyed by tuples is written in its list form, which JSON can hold.

        Args:
            use_diff: Leave out what is not set.
            ignore_metadata: Leave out what is no parameter.
            keys_to_pop: Leave these out as well.

        Returns:
            The JSON text.
        """
        values = self.to_diff_dict() if use_diff else self.to_dict()
        for name in [*(keys_to_pop or []), *(_METADATA if ignore_metadata else ())]:
            values.pop(name, None)
        return json.dumps(to_plain(values), indent=2, sort_keys=True) + "\n"

    def to_json_file(
        self,
        json_file_path: str | os.PathLike[str],
        use_diff: bool = True,
        keys_to_pop: list[str] | None = None,
    ) -> None:
        """Write `to_json_string` to a file."""
        text = self.to_json_string(use_diff=use_diff, keys_to_pop=keys_to_pop)
        Path(json_file_path).write_text(text, encoding="utf-8")

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        config_file_name: str | os.PathLike[str] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save to a folder, so that `from_pretrained` can load it again.

        How to compile is not saved: it belongs to a machine, not to a model.

        Args:
            save_directory: The folder; made where it does not exist.
            config_file_name: Name of the file; "generation_config.json" by default.
            push_to_hub: Upload the file to the hub as well.
            kwargs: With ``push_to_hub``: `repo_id` (the folder's name by default), `token`,
                `private`, `revision`, `commit_message`, `create_pr`.

        Raises:
            InvalidRequestError: The configuration has flags without effect, or
                ``save_directory`` is a file.
        """
        self.validate(strict=True)
        folder = Path(save_directory)
        if folder.is_file():
            raise InvalidRequestError("save_directory", str(folder), "a file; pass a folder")
        folder.mkdir(parents=True, exist_ok=True)
        name = str(config_file_name or CONFIG_FILE)
        self.to_json_file(folder / name, keys_to_pop=["compile_config"])
        if push_to_hub:
            upload(folder / name, **{"repo_id": folder.resolve().name, **kwargs})
        elif kwargs:
            raise TypeError(f"unexpected arguments {sorted(kwargs)}; set `push_to_hub=True`")

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        commit_description: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Upload as ``generation_config.json`` to a repository, made where it does not exist.

        Args:
            repo_id: The repository, such as "owner/name".
            commit_message: Message of the commit.
            commit_description: Its longer text.
            private: Whether a new repository is private.
            token: Token for the hub; True or None takes the stored one.
            revision: Branch to write to.
            create_pr: Propose the change instead of making it.

        Returns:
            Address of the commit.

        Raises:
            InvalidRequestError: The configuration has flags without effect.
            OSError: The hub refuses, or cannot be reached.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload(
                Path(folder) / CONFIG_FILE,
                repo_id,
                token=token,
                private=private,
                revision=revision,
                commit_message=commit_message,
                commit_description=commit_description,
                create_pr=create_pr,
            )

    @overload
    @classmethod
    def from_dict(
        cls,
        config_dict: dict[str, Any],
        *,
        return_unused_kwargs: Literal[True],
        **kwargs: Any,
    ) -> tuple[Self, dict[str, Any]]: ...

    @overload
    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self: ...

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from a dict.

        Args:
            config_dict: Fields by name.
            kwargs: Values that win over ``config_dict``, and ``return_unused_kwargs``.

        Returns:
            The configuration. With ``return_unused_kwargs=True`` a pair of it and of those
            keywords that are no field; otherwise such keywords become attributes.
        """
        return_unused = kwargs.pop("return_unused_kwargs", False)
        for private in ("_from_auto", "_from_pipeline"):
            kwargs.pop(private, None)
        unused = {}
        if return_unused:
            known = {*_NAMES, *_METADATA, *config_dict}
            unused = {name: kwargs.pop(name) for name in list(kwargs) if name not in known}
        config = cls(**{**config_dict, **kwargs})
        return (config, unused) if return_unused else config

    @classmethod
    def from_model_config(cls, model_config: Any) -> Self:
        """Collect the generation fields of a model configuration.

        Args:
            model_config: A dict, or an object with a `to_dict` method. Fields that its
                ``decoder`` or ``text_config`` sets are used where it sets none itself.

        Returns:
            The configuration, with `_from_model_config` set.
        """
        values = dict(model_config if isinstance(model_config, dict) else model_config.to_dict())
        fields: dict[str, Any] = {}
        for key in ("text_config", "generator", "decoder"):  # the last one wins
            part = values.get(key)
            if isinstance(part, dict):
                fields |= {name: part[name] for name in _NAMES if part.get(name) is not None}
        fields |= {name: values[name] for name in _NAMES if values.get(name) is not None}
        if any(fields.get(flag) for flag in cls.extra_output_flags):
            fields["return_dict_in_generate"] = True
        return cls(**fields, _from_model_config=True)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name: str | os.PathLike[str],
        config_file_name: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        revision: str = "main",
        **kwargs: Any,
    ) -> Any:
        """Load from a folder or from the hub.

        Args:
            pretrained_model_name: A folder, or a model id on the hub.
            config_file_name: Name of the file; "generation_config.json" by default.
            cache_dir: Where downloads are kept.
            force_download: Download even what is in the cache.
            local_files_only: Never connect.
            token: Token for the hub; True takes the stored one.
            revision: Branch, tag or commit on the hub.
            kwargs: ``subfolder``, ``return_unused_kwargs`` (see `from_dict`), and values that
                win over the file's.

        Returns:
            The configuration; with ``return_unused_kwargs=True`` a pair, as from `from_dict`.

        Raises:
            ModelLoadError: The file is missing, cannot be fetched, or is no JSON object.
        """
        if kwargs.pop("proxies", None) is not None:
            remedy = "not supported; set HTTPS_PROXY in the environment"
            raise InvalidRequestError("proxies", "...", remedy)
        name = str(config_file_name or CONFIG_FILE)
        subfolder = kwargs.pop("subfolder", "") or ""
        values = fetch(
            str(pretrained_model_name),
            name,
            subfolder=subfolder,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            revision=revision,
        )
        return cls.from_dict(values, **kwargs)


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str, detail: str = "") -> None:
    """Log a warning that need not be repeated for every request."""
    _logger.warning("%s; log level info has the reasons" if detail else "%s", message)
    if detail:
        _logger.info("%s", detail)
