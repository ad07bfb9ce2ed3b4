"""Check and translate the documented arguments of ``from_pretrained``.

Nothing is loaded here. An argument is not supported is an error that names it; one whose
meaning holds anyway is accepted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import torch

from asyncgen.checkpoints.packed.bits_and_bytes import packing_asked
from asyncgen.checkpoints.packed.quantise import check_packing
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import EditableConfig
from asyncgen.families.config.editable_config import CALL_DEFAULTS, FREE
from asyncgen.generation.config.rules import require, switch

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from asyncgen.checkpoints.packed.bits_and_bytes import BitsAndBytesConfig
    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.text.batch_encoding import Side
    from asyncgen.text.content_guard import SpecialTokensInContent


class HubAddress(TypedDict, total=False):
    """Address of a checkpoint on the hub, and options of access."""

    revision: str | None
    """Branch, tag or commit on the hub."""
    token: str | bool | None
    """Access token for the hub."""
    cache_dir: str | os.PathLike[str] | None
    """Folder of downloads."""
    local_files_only: bool
    """Never download."""
    subfolder: str
    """Folder of the checkpoint in the source."""
    follow_links: bool
    """Read files outside of the folder to which links in it lead."""
    trust_remote_code: bool | None
    """No remote code is run, so ``True`` is an error."""
    progress: ProgressOption
    """Progress of downloads and loading: as in :func:`asyncgen.load_model`."""


class ModelOptions(HubAddress, total=False):
    """The keywords of ``from_pretrained`` of a model."""

    config: EditableConfig | None
    """A configuration from ``AutoConfig``: its changes are applied to the model's."""
    dtype: str | torch.dtype | None
    """Dtype of the computation; ``None`` or ``"auto"``: that of the checkpoint."""
    torch_dtype: str | torch.dtype | None
    """The older name of ``dtype``."""
    quantize: Packing | None
    """``"int8"`` or ``"int4"``: weights are packed while they are read."""
    quantization_config: BitsAndBytesConfig | dict[str, Any] | None
    """The documented way to pack weights."""
    load_in_8bit: bool | None
    """The older way to pack weights."""
    load_in_4bit: bool | None
    """See ``load_in_8bit``."""
    device_map: str | int | torch.device | dict[str, Any] | None
    """``None`` is the CPU, ``"auto"`` is CUDA if available; or one device for the whole model."""
    attn_implementation: str | None
    """``"eager"`` or ``"sdpa"``: both are computed by the same kernels, to the same numbers."""
    low_cpu_mem_usage: bool | None
    """Accepted: loading always needs little memory."""
    use_safetensors: bool | None
    """Only safetensors are read, so ``False`` is an error."""
    bos_token_id: int | None
    """Set on ``model.config``, as are all that follow."""
    eos_token_id: int | list[int] | None
    """See ``bos_token_id``."""
    pad_token_id: int | None
    """See ``bos_token_id``."""
    decoder_start_token_id: int | None
    """See ``bos_token_id``."""
    use_cache: bool
    """See ``bos_token_id``."""
    output_attentions: bool
    """See ``bos_token_id``."""
    output_hidden_states: bool
    """See ``bos_token_id``."""
    return_dict: bool
    """See ``bos_token_id``."""


class TokenizerOptions(HubAddress, total=False):
    """The keywords of ``from_pretrained`` of a tokenizer; ``None`` uses the files' settings."""

    use_fast: bool | None
    """There are no slow tokenizers, so ``False`` is an error."""
    legacy: bool | None
    """``tokenizer.json`` decides how text is split, so ``True`` is an error."""
    add_prefix_space: bool | None
    """Split a text as if a space stood before it."""
    padding_side: Side | None
    """Side of the padding."""
    truncation_side: Side | None
    """Side that truncation cuts."""
    model_max_length: int | None
    """Positions that the model was trained for, in tokens."""
    chat_template: str | dict[str, str] | None
    """Jinja text, or several by name."""
    trust_template: bool
    """The chat templates are one's own and run without limits."""
    special_tokens_in_content: SpecialTokensInContent
    """``"text"`` keeps what messages say as text, also where it spells a control token."""
    bos_token: str | None
    """A token of the vocabulary, as the following three."""
    eos_token: str | None
    """See ``bos_token``."""
    unk_token: str | None
    """See ``bos_token``."""
    pad_token: str | None
    """See ``bos_token``."""


Function = TypeVar("Function", bound=Callable[..., Any])


def shows(keywords: type) -> Callable[[Function], Function]:
    """Show the keywords of ``**options`` one by one in a function's signature.

    Args:
        keywords: TypedDict of the keywords, all optional.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.name != "options"]
        hints: dict[str, Any] = keywords.__annotations__
        shown = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__
            )
            for name, hint in hints.items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *shown]
        )
        return function

    return decorate


_ADDRESS = (
    "revision",
    "token",
    "cache_dir",
    "local_files_only",
    "subfolder",
    "follow_links",
    "progress",
)
_REFUSED = {
    "use_safetensors": (False, "pickle weights are never opened"),
    "use_fast": (False, "only fast tokenizers are read"),
    "legacy": (True, "`tokenizer.json` says how text is split"),
    "trust_remote_code": (True, "remote code is never run"),
}
"""Values that are never supported, with the reasons."""
_SET = FREE | CALL_DEFAULTS.keys()
_OFF = frozenset(
    """
    force_download ignore_mismatched_sizes max_memory offload_folder offload_state_dict
    output_loading_info proxies state_dict tp_plan variant
    from_tf from_flax
    """.split()
)
"""Arguments of the reference that this library lacks: accepted if they are off."""


def model_arguments(
    given: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, Any], EditableConfig | None]:
    """Translate the keywords of ``from_pretrained`` of a model.

    Args:
        given: See `ModelOptions`.
        where: Name of the called function, for errors.

    Returns:
        Arguments for loading, values for the configuration, and the given configuration.

    Raises:
        InvalidRequestError: An argument is not supported.
    """
    arguments = _checked(given, ModelOptions, where)
    for name in ("low_cpu_mem_usage", "use_safetensors", "load_in_8bit", "load_in_4bit"):
        if given.get(name) is not None:
            require(name, given[name], switch)
    attention = given.get("attn_implementation")
    if attention not in (None, "sdpa", "eager"):
        raise InvalidRequestError("attn_implementation", attention, "use 'sdpa' or 'eager'")
    dtype, older, config = given.get("dtype"), given.get("torch_dtype"), given.get("config")
    if dtype is not None and older is not None and dtype != older:
        raise InvalidRequestError("torch_dtype", older, f"`dtype` is {dtype}; give one")
    if config is not None and not isinstance(config, EditableConfig):
        allowed = "give what `AutoConfig.from_pretrained` returns"
        raise InvalidRequestError("config", type(config).__name__, allowed)
    arguments["device"] = check_device_map(given.get("device_map"))
    packing, computed = packing_asked(
        given.get("quantization_config"),
        given.get("load_in_8bit"),
        given.get("load_in_4bit"),
        check_packing(given.get("quantize")),
    )
    dtype = older if dtype is None else dtype
    arguments["dtype"] = computed if dtype is None else dtype
    arguments["quantize"] = packing
    return arguments, {name: given[name] for name in given if name in _SET}, config


def tokenizer_arguments(
    given: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translate the keywords of ``from_pretrained`` of a tokenizer.

    Args:
        given: See `TokenizerOptions`.
        where: Name of the called function, for errors.

    Returns:
        Arguments for loading, and attributes to set.

    Raises:
        InvalidRequestError: An argument is not supported.
    """
    arguments = _checked(given, TokenizerOptions, where)
    arguments["add_prefix_space"] = given.get("add_prefix_space")
    own = TokenizerOptions.__annotations__.keys() - HubAddress.__annotations__.keys()
    own -= {"use_fast", "legacy", "add_prefix_space"}
    values = {name: given[name] for name in sorted(own) if given.get(name) is not None}
    return arguments, values


def config_arguments(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate the keywords of ``from_pretrained`` of a configuration.

    Args:
        given: See `HubAddress`.
        where: Name of the called function, for errors.

    Raises:
        InvalidRequestError: An argument is not supported.
    """
    return _checked(given, HubAddress, where)


def check_device_map(
    device_map: str | int | torch.device | dict[str, Any] | None,
) -> str | int | torch.device:
    """Return the single device of a map.

    Args:
        device_map: See `ModelOptions`.

    Raises:
        InvalidRequestError: It spreads a model over several devices, or is invalid.
    """
    device: object = device_map
    if isinstance(device_map, dict) and set(device_map) == {""}:
        device = device_map[""]
    if device is None:
        return "cpu"
    # The reference's names for spreading a model over several devices.
    spread = device in ("balanced", "balanced_low_0", "sequential")
    if spread or not isinstance(device, str | int | torch.device):
        raise InvalidRequestError(
            "device_map", device_map, 'the model stays in one piece: use "auto" or one device'
        )
    return device


def _checked(given: Mapping[str, Any], options: type, where: str) -> dict[str, Any]:
    """Refuse unknown and refused keywords; return the arguments of `resolve`."""
    known = options.__annotations__
    for name, value in given.items():
        is_off = name in _OFF and (value is None or value is False)
        if name not in known and not is_off:
            allowed = f"`{where}` does not take it; it takes {sorted(known)}"
            raise InvalidRequestError(name, value, allowed)
    for name, (refused, reason) in _REFUSED.items():
        if given.get(name) is refused:
            raise InvalidRequestError(name, refused, reason)
    return {name: given[name] for name in _ADDRESS if given.get(name) is not None}
