"""The names and arguments by which people know how to load things.

They check what they are given and call :mod:`asyncgen.pretrained`; nothing is loaded here. An
argument that cannot be honoured is an error that names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.pretrained import load_model, load_tokenizer

if TYPE_CHECKING:
    import os

    from asyncgen.batch_encoding import Side
    from asyncgen.pretrained import PreTrainedModel
    from asyncgen.progress import ProgressOption
    from asyncgen.tokenizer import Tokenizer


class _AutoModel:
    """What both kinds of model share."""

    _has_encoder: ClassVar[bool]

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        device_map: str | int | torch.device | dict[str, Any] | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        use_safetensors: bool | None = None,
        trust_remote_code: bool | None = None,
        low_cpu_mem_usage: bool | None = None,
        attn_implementation: str | None = None,
        progress: ProgressOption = None,
        **unsupported: Any,
    ) -> PreTrainedModel:
        """Load a model.

        Args:
            pretrained_model_name_or_path: As ``source`` of :func:`load_model`.
            dtype: What to compute in; ``None`` or ``"auto"`` is what the checkpoint says.
            torch_dtype: The older name of ``dtype``.
            device_map: ``None`` is the CPU, ``"auto"`` is CUDA where there is one; or one device
                for the whole model.
            revision: Branch, tag or commit on the hub.
            token: Access token for the hub.
            cache_dir: Where downloads are kept.
            local_files_only: Never download.
            use_safetensors: Only safetensors are read, so ``False`` is an error.
            trust_remote_code: No remote code is run, so ``True`` is an error.
            low_cpu_mem_usage: Loading always needs little memory, so ``False`` is an error.
            attn_implementation: ``"sdpa"`` is the only one.
            progress: As in :func:`load_model`.
            **unsupported: Anything else is an error that names it.

        Raises:
            InvalidRequestError: An argument that cannot be honoured.
            ModelLoadError: There is no such checkpoint, or it cannot be read.
            UnsupportedModelError: It is a model of the other kind, or of none that is known.
        """
        _refuse(unsupported, f"{cls.__name__}.from_pretrained", cls.from_pretrained)
        if use_safetensors is False:
            raise InvalidRequestError("use_safetensors", False, "pickle weights are never opened")
        if trust_remote_code:
            raise InvalidRequestError("trust_remote_code", True, "remote code is never run")
        if low_cpu_mem_usage is False:
            raise InvalidRequestError("low_cpu_mem_usage", False, "leave it out")
        if attn_implementation not in (None, "sdpa"):
            raise InvalidRequestError("attn_implementation", attn_implementation, "use 'sdpa'")
        if dtype is not None and torch_dtype is not None and dtype != torch_dtype:
            raise InvalidRequestError("torch_dtype", torch_dtype, f"`dtype` is {dtype}; give one")
        return load_model(
            pretrained_model_name_or_path,
            device=_check_device_map(device_map),
            dtype=torch_dtype if dtype is None else dtype,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            has_encoder=cls._has_encoder,
            progress=progress,
        )


class AutoModelForCausalLM(_AutoModel):
    """The documented way to load a decoder-only model; see :func:`load_model` for ours."""

    _has_encoder = False


class AutoModelForSeq2SeqLM(_AutoModel):
    """The documented way to load a model with an encoder; see :func:`load_model` for ours."""

    _has_encoder = True


class AutoTokenizer:
    """The documented way to load a tokenizer; see :func:`load_tokenizer` for ours."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        use_fast: bool | None = None,
        trust_remote_code: bool | None = None,
        padding_side: Side | None = None,
        truncation_side: Side | None = None,
        model_max_length: int | None = None,
        chat_template: str | dict[str, str] | None = None,
        add_prefix_space: bool | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        unk_token: str | None = None,
        pad_token: str | None = None,
        progress: ProgressOption = None,
        **unsupported: Any,
    ) -> Tokenizer:
        """Load a tokenizer.

        Args:
            pretrained_model_name_or_path: As ``source`` of :func:`load_tokenizer`.
            revision: Branch, tag or commit on the hub.
            token: Access token for the hub.
            cache_dir: Where downloads are kept.
            local_files_only: Never download.
            use_fast: There are no slow tokenizers, so ``False`` is an error.
            trust_remote_code: No remote code is run, so ``True`` is an error.
            padding_side: Overrides the files.
            truncation_side: Overrides the files.
            model_max_length: Overrides the files; tokens.
            chat_template: Overrides the files; jinja text, or several by name.
            add_prefix_space: As in :func:`load_tokenizer`.
            bos_token: Overrides the files; a token of the vocabulary, as the following three.
            eos_token: Overrides the files.
            unk_token: Overrides the files.
            pad_token: Overrides the files.
            progress: As in :func:`load_tokenizer`.
            **unsupported: Anything else is an error that names it.

        Raises:
            InvalidRequestError: An argument that cannot be honoured.
            ModelLoadError: There is no such tokenizer, or it cannot be read.
        """
        _refuse(unsupported, "AutoTokenizer.from_pretrained", cls.from_pretrained)
        if use_fast is False:
            raise InvalidRequestError("use_fast", False, "only fast tokenizers are read")
        if trust_remote_code:
            raise InvalidRequestError("trust_remote_code", True, "remote code is never run")
        tokenizer = load_tokenizer(
            pretrained_model_name_or_path,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            add_prefix_space=add_prefix_space,
            progress=progress,
        )
        overrides = {
            "padding_side": padding_side,
            "truncation_side": truncation_side,
            "model_max_length": model_max_length,
            "chat_template": chat_template,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "unk_token": unk_token,
            "pad_token": pad_token,
        }
        for name, value in overrides.items():
            if value is not None:
                setattr(tokenizer, name, value)
        return tokenizer


def _check_device_map(
    device_map: str | int | torch.device | dict[str, Any] | None,
) -> str | int | torch.device:
    """Return the one device that a map means."""
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


def _refuse(unsupported: dict[str, Any], where: str, function: Any) -> None:
    """Raise for the first keyword that is not understood."""
    for name, value in unsupported.items():
        known = sorted(function.__annotations__.keys() - {"return", "unsupported"})
        raise InvalidRequestError(name, value, f"`{where}` does not take it; it takes {known}")
