"""Load a model, as the class of its family, and a tokenizer; seed the generators."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import torch

from asyncgen.checkpoints.hub import resolve
from asyncgen.errors import InvalidRequestError, UnsupportedModelError
from asyncgen.generation.config.rules import require, switch
from asyncgen.reference.family_classes import CLASSES
from asyncgen.reference.model_loader import load_core
from asyncgen.reference.pretrained_model import PreTrainedModel
from asyncgen.runtime.progress import progress_option
from asyncgen.text.content_guard import check_special_tokens_in_content
from asyncgen.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import os

    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.families.config import ModelConfig
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.text.content_guard import SpecialTokensInContent

__all__ = ["PreTrainedModel", "load_model", "load_tokenizer", "set_seed"]


def load_model(
    source: str | os.PathLike[str],
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    progress: ProgressOption = None,
    quantize: Packing | None = None,
    has_encoder: bool | None = None,
    subfolder: str = "",
    follow_links: bool = False,
) -> PreTrainedModel:
    """Load a model.

    Call this on the thread that will compute: a second computing thread costs speed.

    Args:
        source: ``"demo"``, a folder, a GGUF file, or the id of a repository on the hub, with
            ``:Q4_K_M`` or ``:file.gguf`` behind it for a GGUF file in it.
        device: Device of the computation; ``None``: CUDA if available, otherwise the CPU.
        dtype: Dtype of the computation; ``None`` or ``"auto"``: that of the checkpoint.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        cache_dir: Folder of downloads.
        local_files_only: Never download.
        progress: Progress of downloads and loading. ``None``: a bar on the terminal, if they take
            longer than a second; ``False``: nothing; or a function of label, done and total.
        quantize: ``"int8"`` or ``"int4"`` packs weights while they are read, 32 inputs a scale:
            a half or a quarter of the memory of bfloat16, and a faster stream if memory limits its
            speed. The embedding table and the head take 8 bits.
        has_encoder: Require a model with (True) or without (False) an encoder; ``None``: either.
        subfolder: Folder of the checkpoint in the source.
        follow_links: Read files outside of the folder to which links in it lead. Such links are
            refused otherwise: whoever made the folder chose them.

    Returns:
        The model, of the class of its family, such as `LlamaForCausalLM`; one with an encoder is a
        `Seq2SeqModel` too.

    Raises:
        ModelLoadError: The checkpoint is missing, or cannot be read.
        UnsupportedModelError: Its ``model_type`` has no implementation, or is of the other kind.
        InvalidRequestError: The device or the dtype is invalid.
    """

    def check(config: ModelConfig) -> None:
        if has_encoder is not None and config.is_encoder_decoder is not has_encoder:
            right = "AutoModelForCausalLM" if has_encoder else "AutoModelForSeq2SeqLM"
            raise UnsupportedModelError(
                f"{config.model_type!r} is loaded with `{right}`, or with `load_model`"
            )

    loaded = load_core(
        source,
        device=device,
        dtype=dtype,
        progress=progress,
        quantize=quantize,
        check=check,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        subfolder=subfolder,
        follow_links=follow_links,
    )
    return CLASSES[loaded.core.family.class_name].from_loaded(loaded)


def load_tokenizer(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    add_prefix_space: bool | None = None,
    subfolder: str = "",
    follow_links: bool = False,
    trust_template: bool = False,
    special_tokens_in_content: SpecialTokensInContent = "allow",
    progress: ProgressOption = None,
) -> Tokenizer:
    """Load a tokenizer; parameters as in :func:`load_model`.

    Args:
        source: As in :func:`load_model`.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        cache_dir: Folder of downloads.
        local_files_only: Never download.
        add_prefix_space: Split a text as if a space stood before it; ``None``: as in the files.
        subfolder: Folder of the tokenizer in the source.
        follow_links: As in :func:`load_model`.
        trust_template: Its chat templates are one's own: they may call whatever jinja's sandbox
            allows, without limits. Those of others may call what a table of costs has.
        special_tokens_in_content: ``"text"`` keeps what messages say as text, also where it spells
            a control token; with ``"allow"`` it becomes that token.
        progress: As in :func:`load_model`, for downloads.

    Raises:
        ModelLoadError: The tokenizer is missing, or cannot be read.
    """
    require("progress", progress, progress_option)
    require("follow_links", follow_links, switch)
    require("trust_template", trust_template, switch)
    check_special_tokens_in_content(special_tokens_in_content)
    folder = resolve(
        source,
        weights=False,
        progress=progress,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        subfolder=subfolder,
        follow_links=follow_links,
    )
    tokenizer = Tokenizer.from_folder(folder, add_prefix_space=add_prefix_space)
    tokenizer.trust_template = trust_template
    tokenizer.special_tokens_in_content = special_tokens_in_content
    tokenizer.name_or_path = str(source)
    return tokenizer


def set_seed(seed: int) -> None:
    """Seed the generators of Python, torch, and numpy if it is in use.

    Args:
        seed: From 0 to 2**32 - 1.

    Raises:
        InvalidRequestError: The seed is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidRequestError("seed", seed, "give an integer from 0 to 2**32 - 1")
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
