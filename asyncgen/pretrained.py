"""Loading: joins a model module with its weights, its generation config and ``generate``."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.checkpoint import open_checkpoint
from asyncgen.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError
from asyncgen.generation.config import CONFIG_FILE, GenerationConfig
from asyncgen.generation.config.rules import require
from asyncgen.hub import read_json, resolve
from asyncgen.modeling import PreTrainedModel
from asyncgen.models.arch.registry import MODELS
from asyncgen.models.config import ModelConfig
from asyncgen.models.config.stored import check_sizes
from asyncgen.progress import progress_option
from asyncgen.seq2seq import Seq2SeqModel
from asyncgen.tokenizer import Tokenizer
from asyncgen.weights import find_broken, load_weights, resolve_dtype

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from asyncgen.checkpoint import Checkpoint
    from asyncgen.progress import ProgressOption

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
    has_encoder: bool | None = None,
) -> PreTrainedModel:
    """Load a model.

    Load it on the thread that will compute: a second computing thread costs speed.

    Args:
        source: ``"demo"``, a folder, or the id of a repository on the hub.
        device: Where to compute; ``None`` is CUDA where there is one, else the CPU.
        dtype: What to compute in; ``None`` or ``"auto"`` is what the checkpoint says.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Never download.
        progress: How far downloads and loading are. ``None``: a bar on the terminal, where they
            take longer than a second; ``False``: nothing; or what is called with what is done, how
            much, and how much in all.
        has_encoder: Refuse a model that has, or has not, an encoder; ``None`` takes either.

    Returns:
        The model; one with an encoder is a `Seq2SeqModel`.

    Raises:
        ModelLoadError: There is no such checkpoint, or it cannot be read.
        UnsupportedModelError: Its ``model_type`` has no implementation, or is of the other kind.
        InvalidRequestError: The device or the dtype is none.
    """
    require("progress", progress, progress_option)
    chosen = _check_device(device)
    folder = resolve(
        source,
        progress=progress,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    raw = _read_config(folder)
    config = ModelConfig.from_hf(raw)
    if has_encoder is not None and config.is_encoder_decoder is not has_encoder:
        right = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
        raise UnsupportedModelError(
            f"{config.model_type!r} is loaded with `{right}`, or with `load_model`"
        )
    generation_config = _read_generation_config(folder, config)
    checkpoint = open_checkpoint(folder)
    config = config.fitted_to(checkpoint.tensors.keys())
    check_sizes(config, {name: tensor.shape for name, tensor in checkpoint.tensors.items()})
    kind = resolve_dtype(dtype, raw, checkpoint)
    with torch.device("meta"):
        core = MODELS[config.model_type](config, dtype=kind)
    load_weights(
        core,
        checkpoint.below(core.stack_prefix),
        dtype=kind,
        device=chosen,
        # Some checkpoints store a tied head all the same.
        ignored=(r"^lm_head\.weight$",) if config.tie_word_embeddings else (),
        progress=progress,
    )
    face = Seq2SeqModel if config.is_encoder_decoder else PreTrainedModel
    model = face(core, generation_config, str(source))
    _try_out(model, checkpoint)
    return model


def load_tokenizer(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    add_prefix_space: bool | None = None,
    progress: ProgressOption = None,
) -> Tokenizer:
    """Load a tokenizer; parameters as in :func:`load_model`.

    Args:
        source: ``"demo"``, a folder, or the id of a repository on the hub.
        revision: Branch, tag or commit on the hub.
        token: Access token for the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Never download.
        add_prefix_space: Whether a text is split as if a space stood before it; ``None`` leaves it
            to the files.
        progress: As in :func:`load_model`, for downloads.

    Raises:
        ModelLoadError: There is no such tokenizer, or it cannot be read.
    """
    require("progress", progress, progress_option)
    folder = resolve(
        source,
        weights=False,
        progress=progress,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    tokenizer = Tokenizer.from_folder(folder, add_prefix_space=add_prefix_space)
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


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelLoadError(
            f"{folder} has no config.json, so it is no checkpoint; give the folder that has one"
        )
    raw = read_json(file)
    if raw.get("quantization_config"):
        stated = raw["quantization_config"]
        named = stated.get("quant_method") if isinstance(stated, dict) else None
        method = named[:40] if isinstance(named, str) else "unknown method"
        raise ModelLoadError(
            f"{folder} is quantised ({method}), which is not supported; "
            "use the model that it was made of"
        )
    return raw


def _read_generation_config(folder: Path, config: ModelConfig) -> GenerationConfig:
    file = folder / CONFIG_FILE
    if not file.is_file():
        return GenerationConfig.from_model_config(config)
    try:
        return GenerationConfig.from_pretrained(folder)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ModelLoadError(
            f"{file}: {error}; correct the file, or take it away to do without its defaults"
        ) from error


def _try_out(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Run one token: NaN in a weight that every token meets is NaN at the end.

    A step costs a few hundredths of a load; looking at every weight would cost a fifth of it.
    """
    ids = torch.zeros(1, 1, dtype=torch.int64)
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    logits = model(input_ids=ids, use_cache=False, return_dict=True, **decoder).logits
    if bool(logits.isnan().any()):
        # Without one, the dtype is too narrow for this token: others may well be served.
        broken = find_broken(checkpoint)
        if broken is not None:
            raise ModelLoadError(
                f"{checkpoint.tensors[broken].file}: `{broken}` holds NaN or infinities, so no "
                "token could be picked; download it again, or ask those who made it"
            )


def _check_device(device: str | int | torch.device | None) -> torch.device:
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidRequestError(
            "device", device, f"it cannot be used ({reason}); use 'cpu'"
        ) from error
    return chosen
