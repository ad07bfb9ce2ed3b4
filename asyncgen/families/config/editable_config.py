"""``model.config``: the frozen description of a network, and attributes that users write to it.

Modules that compute hold the frozen `ModelConfig` itself and never look here.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Self

from asyncgen.errors import InvalidRequestError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.config.model_config import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FREE = frozenset({"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"})
"""Token ids of a file; no weight depends on them."""

_BUILT_FROM = frozenset({"partial_rotary_factor", "quantization_config", "torch_dtype"})
"""Keys of the file that are read-only beside those that a network was built from."""

CALL_DEFAULTS = {
    "use_cache": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
}
"""Defaults of a call of the model, which it reads here."""


class EditableConfig(ModelConfig):
    """The configuration of a model in use.

    Token ids, the defaults of a call (``use_cache``, ``output_attentions``,
    ``output_hidden_states``, ``return_dict``) and attributes of the user's own can be set. Values
    that the network was built from are read-only. Keys of the file that have no field are
    attributes.
    """

    # The slots of the parent stay empty: an unset one falls through to `__getattr__`.
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    changes: Mapping[str, Any]
    """Values that were set since the model was loaded."""

    def __init__(self, built: ModelConfig) -> None:
        """Begin with nothing changed.

        Args:
            built: Configuration that the network was built from.
        """
        vars(self)["changes"] = {}
        self.describe(built)

    def describe(self, built: ModelConfig) -> None:
        """Describe another network from now on; values that were set stay.

        Args:
            built: Configuration that the network is built from now.
        """
        family = FAMILIES.get(built.model_type)
        spellings = family.spellings.values() if family is not None else ()
        tokens = {name: getattr(built, name) for name in FREE if hasattr(built, name)}
        vars(self).update(
            _built=built,
            _stored=copy.deepcopy({**built.raw, **tokens}),
            _fixed=(_BUILT_FROM | built.built_from | {*spellings, *dir(built)})
            - FREE
            - CALL_DEFAULTS.keys(),
        )

    def __getattr__(self, name: str) -> Any:
        """Return the value that was set, else the network's, else the file's."""
        own = vars(self)
        if "_built" not in own or name.startswith("__"):
            raise AttributeError(name)
        if name in own["changes"]:
            return own["changes"][name]
        if name not in FREE and hasattr(own["_built"], name):
            return getattr(own["_built"], name)
        for place in (own["_stored"], CALL_DEFAULTS):
            if name in place:
                return place[name]
        raise AttributeError(f"the configuration of this model has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a token id, a default of a call, or an attribute of the user's own.

        Raises:
            InvalidRequestError: The network was built from this value.
        """
        own = vars(self)
        if name in own["_fixed"] or name in own:
            reason = "read-only, because the network was built from it and would not follow"
            if name in ("dtype", "torch_dtype"):
                reason = "read-only; convert the model with `model.to(dtype)`"
            elif hasattr(self, name):
                reason += f" (it has {getattr(self, name)!r}); load a checkpoint that says so"
            raise InvalidRequestError(f"model.config.{name}", value, reason)
        own["changes"][name] = value

    def describes(self, built: ModelConfig) -> bool:
        """Return whether this is the configuration of a network that was built from the same
        values.

        Facts that only the weights tell, such as a tied head, do not count.

        Args:
            built: Configuration that the other network was built from.
        """
        own = vars(self)["_built"]
        return bool(own.raw == built.raw and own.model_type == built.model_type)

    def __delattr__(self, name: str) -> None:
        """Take back a value that was set.

        Raises:
            AttributeError: It was not.
        """
        if name not in self.changes:
            raise AttributeError(f"{name!r} was not set on this configuration")
        del vars(self)["changes"][name]

    def __dir__(self) -> list[str]:
        """List the names that can be read."""
        own = vars(self)
        return sorted({*dir(own["_built"]), *own["_stored"], *CALL_DEFAULTS, *own["changes"]})

    def __eq__(self, other: object) -> bool:
        """Compare the networks' configurations, and the values that were set."""
        if not isinstance(other, EditableConfig):
            return NotImplemented
        own, theirs = vars(self), vars(other)
        return bool(own["_built"] == theirs["_built"] and own["changes"] == theirs["changes"])

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the network's configuration, and the values that were set."""
        set_here = f" with {self.changes!r}" if self.changes else ""
        return f"<configuration of a model: {vars(self)['_built']!r}{set_here}>"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[ModelConfig, dict[str, Any]]]:
        """Copy and pickle both parts."""
        return type(self)._restored, (vars(self)["_built"], dict(self.changes))

    @classmethod
    def _restored(cls, built: ModelConfig, changes: dict[str, Any]) -> Self:
        config = cls(built)
        vars(config)["changes"].update(changes)
        return config

    @property
    def is_encoder_decoder(self) -> bool:  # type: ignore[override]
        """True if there is an encoder as well."""
        return bool(vars(self)["_built"].is_encoder_decoder)

    @property
    def use_return_dict(self) -> bool:
        """True if a call of the model returns an object."""
        return bool(self.return_dict)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """Return the part that describes text: all of it."""
        return self

    def update(self, config_dict: Mapping[str, Any]) -> None:
        """Set several attributes.

        Args:
            config_dict: Values by name.

        Raises:
            InvalidRequestError: The network was built from one of these; nothing was set.
        """
        trial = copy.copy(self)
        for config in (trial, self):
            for name, value in config_dict.items():
                setattr(config, name, value)

    def to_file(self, dtype: str, class_name: str) -> str:
        """Return the content of a ``config.json``: the file as it was, with the values set since.

        Args:
            dtype: Name of the dtype of the weights beside it.
            class_name: Class of the model, if the file named none.

        Raises:
            InvalidRequestError: A value that was set is no JSON value.
        """
        key = "torch_dtype" if "torch_dtype" in self.raw else "dtype"
        content = {"architectures": [class_name], **self.raw, **self.changes, key: dtype}
        for name, value in content.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                allowed = f"config.json cannot hold it ({error}); take it away with `del` to save"
                raise InvalidRequestError(f"model.config.{name}", value, allowed) from error
        return json.dumps(content, indent=2, sort_keys=True) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the file's content with all defaults and with the values that were set."""
        tokens = {name: getattr(self, name) for name in FREE if hasattr(self, name)}
        return copy.deepcopy({**vars(self)["_built"].to_dict(), **tokens, **self.changes})
