"""The forms of a `GenerationConfig`: dict, JSON text, file, repository on the hub.

What a field means and what may be combined is not known here.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

from asyncgen.checkpoints.hub import checked_folder
from asyncgen.checkpoints.push_to_hub import PushToHubMixin, upload
from asyncgen.checkpoints.saved_folder import SavedFolder
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.files import dtype_to_name, fetch, to_plain
from asyncgen.generation.config.parameters import FIELDS
from asyncgen.generation.config.rules import require, switch

if TYPE_CHECKING:
    import os
    from collections.abc import Collection


CONFIG_FILE = "generation_config.json"

METADATA = ("_from_model_config", "transformers_version")
"""Attributes that say where a configuration comes from."""

NAMES = tuple(field.name for field in FIELDS)
"""All fields."""


class ConfigForms(PushToHubMixin):
    """Reads and writes the attributes of a configuration, which are its fields."""

    extra_output_flags: ClassVar[tuple[str, ...]] = (
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
    )

    def __init__(self, **kwargs: Any) -> None:
        """Take the fields; what they mean is the configuration's business."""
        for name, value in kwargs.items():
            setattr(self, name, value)

    def validate(
        self, strict: bool = False, user_set_attributes: Collection[str] | None = None
    ) -> None:
        """Check the fields; a configuration knows how."""

    def to_dict(self) -> dict[str, Any]:
        """Return a deep copy of all attributes; torch dtypes become their names."""
        return {
            name: dtype_to_name(copy.deepcopy(value))
            for name, value in self.__dict__.items()
            if not name.startswith("_") or name in METADATA
        }

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from an empty configuration."""
        known = (*NAMES, *METADATA)
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
        for name in [*(keys_to_pop or []), *(METADATA if ignore_metadata else ())]:
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
        folder = checked_folder(save_directory)
        name = str(config_file_name or CONFIG_FILE)
        with SavedFolder(folder) as saved:
            saved.add(name, self.to_json_string(keys_to_pop=["compile_config"]))
        if push_to_hub:
            upload(folder / name, **{"repo_id": folder.resolve().name, **kwargs})
        elif kwargs:
            raise TypeError(f"unexpected arguments {sorted(kwargs)}; set `push_to_hub=True`")

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
            known = {*NAMES, *METADATA, *config_dict}
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
                fields |= {name: part[name] for name in NAMES if part.get(name) is not None}
        fields |= {name: values[name] for name in NAMES if values.get(name) is not None}
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
            kwargs: ``subfolder``, ``follow_links`` (see :func:`asyncgen.load_model`),
                ``return_unused_kwargs`` (see `from_dict`), and values that win over the file's.

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
        follow_links = kwargs.pop("follow_links", False)
        require("follow_links", follow_links, switch)
        values = fetch(
            pretrained_model_name,
            name,
            subfolder=subfolder,
            follow_links=follow_links,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            revision=revision,
        )
        return cls.from_dict(values, **kwargs)
