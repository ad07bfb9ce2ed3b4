"""Load a folder or a GGUF file to a module that computes, with defaults of its generation."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.embedding_settings import read_embedding_settings
from asyncgen.checkpoints.gguf.config import config_of
from asyncgen.checkpoints.gguf.embedding_defaults import embedding_settings
from asyncgen.checkpoints.gguf.file_choice import is_single
from asyncgen.checkpoints.gguf.generation_defaults import generation_values
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from asyncgen.checkpoints.gguf.tensor_mapping import gguf_checkpoint, gguf_rules
from asyncgen.checkpoints.hub import read_json, resolve
from asyncgen.checkpoints.packed.packing_plan import packing_of
from asyncgen.checkpoints.packed.packing_request import PackingRequest
from asyncgen.checkpoints.packed.quantise import check_packing
from asyncgen.checkpoints.packed.quantized_checkpoint import (
    METHODS,
    QUANTISED,
    join_packed,
    quantisation_method,
    without_spare_biases,
)
from asyncgen.checkpoints.stored_files import check_unchanged, is_stored
from asyncgen.checkpoints.tied_head import has_own_head, with_table
from asyncgen.checkpoints.weight_loading import load_weights, resolve_dtype
from asyncgen.errors import InvalidRequestError, ModelLoadError, shorten
from asyncgen.families.config import ModelConfig
from asyncgen.families.config.model_config import T5Config
from asyncgen.families.config.shape_check import check_sizes
from asyncgen.families.config.stored_spelling import fit_to_stored
from asyncgen.families.plans.text_part import text_config, text_tensors
from asyncgen.generation.config import CONFIG_FILE, GenerationConfig
from asyncgen.generation.config.checks import (
    check_extent,
    check_kinds_of_ids,
    check_numbers,
    ends_without_token,
)
from asyncgen.generation.config.rules import require, switch
from asyncgen.models.core import make_core
from asyncgen.runtime.progress import progress_option

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from asyncgen.checkpoints.checkpoint import Checkpoint
    from asyncgen.checkpoints.embedding_settings import EmbeddingSettings
    from asyncgen.checkpoints.gguf.gguf_file import GgufModel
    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.models.decoder import DecoderLM
    from asyncgen.runtime.progress import ProgressOption


_ADAPTER = "adapter_config.json"
_log = logging.getLogger("asyncgen.models")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model.

    Attributes:
        core: The module, ready to compute.
        generation_config: Defaults of its generation.
        source: Its source.
        checkpoint: Its files.
        embedding_settings: Defaults of its embeddings.
    """

    core: DecoderLM
    generation_config: GenerationConfig
    source: str
    checkpoint: Checkpoint
    embedding_settings: EmbeddingSettings


def load_core(
    source: str | os.PathLike[str],
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: ProgressOption = None,
    quantize: Packing | PackingRequest | None = None,
    check: Callable[[ModelConfig], None] | None = None,
    follow_links: bool = False,
    **address: Any,
) -> Loaded:
    """Load the weights of a model.

    Args:
        source: ``"demo"``, a folder, a GGUF file, or the id of a repository on the hub; see
            `asyncgen.checkpoints.hub.resolve`.
        device: Device of the computation; ``None`` or ``"auto"``: CUDA if available, otherwise the
            CPU.
        dtype: Dtype of the computation; ``None`` or ``"auto"``: that of the checkpoint.
        progress: Progress of downloads and loading: a bar, nothing, or a function to call.
        quantize: Packing of weights while they are read, or a request in the reference's words;
            ``None``: they are not packed.
        check: Function that may refuse a configuration, before any weight is read.
        follow_links: Read files outside of a folder to which links in it lead.
        **address: Further options of `asyncgen.checkpoints.hub.resolve`.

    Raises:
        ModelLoadError: The checkpoint is missing, or cannot be read.
        UnsupportedModelError: Its ``model_type`` has no implementation.
        InvalidRequestError: The device or the dtype is invalid.
    """
    require("progress", progress, progress_option)
    require("follow_links", follow_links, switch)
    asked = quantize
    if not isinstance(asked, PackingRequest):
        packing = check_packing(asked)
        asked = None if packing is None else PackingRequest(packing)
    chosen = _check_device(device)
    place = resolve(source, progress=progress, follow_links=follow_links, **address)
    read = _read_gguf if is_single(place) else _read_folder
    parts = read(place, asked, check or (lambda config: None))
    config, checkpoint = parts.config, parts.checkpoint
    with _naming(parts.gguf):
        check_sizes(config, {name: tensor.shape for name, tensor in checkpoint.tensors.items()})
    kind = resolve_dtype(dtype, parts.raw, checkpoint)
    core = _made(config, kind, checkpoint)
    own = gguf_rules(parts.gguf, config) if parts.gguf is not None else None
    rules = core.weight_map() if own is None else own
    needed = {source for rule in rules for source in rule.sources}
    load_weights(
        core,
        without_spare_biases(checkpoint.below(parts.prefix), needed),
        device=chosen,
        rules=rules,
        progress=progress,
        quantize=parts.quantize,
    )
    check_unchanged(place)
    settings = parts.embedding_settings
    return Loaded(core, parts.generation_config, str(source), checkpoint, settings)


def _made(config: ModelConfig, dtype: torch.dtype, checkpoint: Checkpoint) -> DecoderLM:
    """Build the module without memory; sizes whose products no tensor has are refused."""
    try:
        with torch.device("meta"):
            return make_core(config, dtype=dtype)
    except (TypeError, RuntimeError, OverflowError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise ModelLoadError(
            f"config.json of {checkpoint.folder} has sizes whose product no tensor can have: "
            f"{shorten(str(error))}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Parts:
    """Everything that is read of a model before its weights.

    Attributes:
        config: The configuration.
        raw: Content of ``config.json``.
        generation_config: Defaults of generation.
        checkpoint: The stored tensors.
        embedding_settings: Defaults of embeddings.
        quantize: Request to pack weights that are not packed yet.
        prefix: First part of the names of all stored weights but the head's, with its dot.
        gguf: The file, if it is in GGUF.
    """

    config: ModelConfig
    raw: Mapping[str, Any]
    generation_config: GenerationConfig
    checkpoint: Checkpoint
    embedding_settings: EmbeddingSettings
    quantize: PackingRequest | None
    prefix: str = ""
    gguf: GgufModel | None = None


def _read_folder(
    place: Path, quantize: PackingRequest | None, check: Callable[[ModelConfig], None]
) -> _Parts:
    """Read a folder with ``config.json`` and safetensors."""
    stored = _read_file(place)
    _refuse_adapter(place)
    text = text_config(stored)
    raw = stored if text is None else text
    # Without it: a saved model has the dtype of the unpacked weights.
    raw = {key: value for key, value in raw.items() if key != QUANTISED}
    config = ModelConfig.from_hf(raw)
    check(config)
    generation_config = read_generation_config(place, config)
    checkpoint = open_checkpoint(place)
    method = quantisation_method(stored)
    if method is not None and quantize is not None:
        if not (quantize.is_reference and method == "bitsandbytes"):
            allowed = f"the weights are packed already ({method}); leave it out"
            raise InvalidRequestError(quantize.argument, quantize.codes, allowed)
        _log.warning("%s is packed already (%s): its own settings are used", place, method)
        quantize = None
    if method is not None:
        checkpoint = join_packed(checkpoint, stored)
    if text is not None:
        checkpoint = replace(checkpoint, tensors=text_tensors(checkpoint.tensors))
        _log.warning("%s is a `%s`: its text model alone is loaded", place, stored["model_type"])
    config, checkpoint = _fit(config, checkpoint)
    settings = read_embedding_settings(place, raw, config.hidden_size)
    prefix = _stack_prefix(config)
    return _Parts(config, raw, generation_config, checkpoint, settings, quantize, prefix)


def _read_gguf(
    file: Path, quantize: PackingRequest | None, check: Callable[[ModelConfig], None]
) -> _Parts:
    """Read a GGUF file; its parameters become those of its family."""
    model = open_gguf(file)
    raw, config = _gguf_config(model)
    check(config)
    defaults = generation_values(model.metadata)
    try:
        generation_config = GenerationConfig(**defaults)
    except (ValueError, TypeError) as error:
        raise ModelLoadError(f"{file}: its defaults of generation: {error}") from error
    settings = embedding_settings(model, config.hidden_size)
    checkpoint = gguf_checkpoint(model, config)
    if quantize is not None and any(each.packed for each in checkpoint.tensors.values()):
        allowed = "the file is packed already; leave it out"
        raise InvalidRequestError(quantize.argument, quantize.codes, allowed)
    return _Parts(config, raw, generation_config, checkpoint, settings, quantize, gguf=model)


def _gguf_config(model: GgufModel) -> tuple[dict[str, Any], ModelConfig]:
    """Return a file's metadata in the spelling of a ``config.json``, and what they describe."""
    raw = config_of(model)
    with _naming(model):
        return raw, ModelConfig.from_hf(raw)


@contextmanager
def _naming(model: GgufModel | None) -> Iterator[None]:
    """Name the file in errors of a ``config.json`` that was made of its metadata."""
    try:
        yield
    except ModelLoadError as error:
        if model is None:
            raise
        raise type(error)(f"{model.file}, in the words of a {error}") from error


def read_config(source: str | os.PathLike[str], **address: Any) -> ModelConfig:
    """Read the configuration of a checkpoint, without its weights.

    Args:
        source: As in `load_core`.
        **address: As in `load_core`.

    Raises:
        ModelLoadError: The checkpoint is missing, or cannot be read.
        UnsupportedModelError: Its ``model_type`` has no implementation.
    """
    place = resolve(source, weights=False, **address)
    if is_single(place):
        return _gguf_config(open_gguf(place))[1]
    raw = _read_file(place)
    return ModelConfig.from_hf(text_config(raw) or raw)


def read_plan(folder: Path) -> tuple[dict[str, Any], set[str]]:
    """Return a folder's ``config.json``, and the names of its tensors that can be packed.

    Raises:
        ModelLoadError: It cannot be read, or is packed already.
        UnsupportedModelError: Its ``model_type`` has no implementation.
    """
    stored = _read_file(folder)
    _refuse_adapter(folder)
    method = quantisation_method(stored)
    if method is not None:
        raise ModelLoadError(f"{folder} is packed already ({method})")
    checkpoint = open_checkpoint(folder)
    config, checkpoint = _fit(ModelConfig.from_hf(text_config(stored) or stored), checkpoint)
    with torch.device("meta"):
        core = make_core(config, dtype=torch.float32)
    prefix = _stack_prefix(config)
    found: set[str] = set()
    for rule in core.weight_map():
        module = core.get_submodule(rule.target.rpartition(".")[0])
        if packing_of(module, rule, PackingRequest("int4")) != "int4" or rule.transposed:
            continue
        for name in rule.sources:
            found |= {name, name.removeprefix(prefix)}
    return stored, found


def _fit(config: ModelConfig, checkpoint: Checkpoint) -> tuple[ModelConfig, Checkpoint]:
    """Fit a description and the stored tensors to each other: names, and a tied head or its own."""
    config = fit_to_stored(config, checkpoint.tensors.keys())
    is_tied = config.tie_word_embeddings
    if isinstance(config, T5Config):
        # Newer files say "tied" of every T5; only the weights tell whether there is a head.
        is_tied = config.scale_decoder_outputs
    elif not is_tied:
        return config, checkpoint
    table, head = (f"{config.names[name]}.weight" for name in ("embed_tokens", "lm_head"))
    checkpoint = with_table(checkpoint, table, head)
    is_own = has_own_head(checkpoint, table, head)
    if is_own and is_tied:
        _log.warning(
            "%s: `tie_word_embeddings` is true, but %s and %s differ: the stored head is used",
            checkpoint.folder,
            head,
            table,
        )
    return replace(config, tie_word_embeddings=not is_own), checkpoint


def _stack_prefix(config: ModelConfig) -> str:
    """Return the first part of the names of all stored weights but the head's, with its dot."""
    stack, dot, _ = config.names["embed_tokens"].partition(".")
    return stack + dot if dot else ""


def _refuse_adapter(folder: Path) -> None:
    """Refuse weights that are meant with an adapter: without it they give other texts."""
    if is_stored(folder / _ADAPTER):
        raise ModelLoadError(
            f"{folder} has {_ADAPTER}: transformers adds that adapter of `peft` to the weights, "
            "which is not supported; merge it into them (`merge_and_unload()` of `peft`, then "
            "`save_pretrained`), or remove the file if they have it already"
        )


def _read_file(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not is_stored(file):
        _refuse_adapter(folder)
        raise ModelLoadError(
            f"{folder} has no config.json, so it is no checkpoint; give the folder that has one"
        )
    raw = read_json(file)
    method = quantisation_method(raw)
    if method not in (None, *METHODS):
        raise ModelLoadError(
            f"{file} says that it is quantised ({method}), which is not supported; "
            f"`quantization_config.quant_method` may be one of {list(METHODS)}: use the model that "
            "it was made of"
        )
    return raw


def read_generation_config(folder: Path, config: ModelConfig) -> GenerationConfig:
    has_own = is_stored(folder / CONFIG_FILE)
    file = folder / (CONFIG_FILE if has_own else "config.json")
    try:
        if has_own:
            found: GenerationConfig = GenerationConfig.from_pretrained(folder)
        else:
            found = GenerationConfig.from_model_config(config)
        check_extent(found)
        check_numbers(found)
        check_kinds_of_ids(found, config.vocab_size)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        without = ", or take it away to do without its defaults" if has_own else ""
        raise ModelLoadError(f"{file}: {error}; correct the file{without}") from error
    never = ends_without_token(found, config.vocab_size)
    if never:
        highest = config.vocab_size - 1
        _log.warning(
            "%s: `eos_token_id` has %s, and the model's ids are from 0 to %d: no text ends by it",
            file,
            shorten(never),
            highest,
        )
    return found


def _check_device(device: str | int | torch.device | None) -> torch.device:
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, dtype=torch.float32, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidRequestError(
            "device", device, f"it cannot be used ({reason}); use 'cpu'"
        ) from error
    return chosen
