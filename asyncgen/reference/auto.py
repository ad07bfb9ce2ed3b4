"""Auto classes: load models, tokenizers and configurations of any family."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from asyncgen.families.config import EditableConfig
from asyncgen.reference.from_pretrained_options import (
    HubAddress,
    ModelOptions,
    TokenizerOptions,
    config_arguments,
    model_arguments,
    shows,
    tokenizer_arguments,
)
from asyncgen.reference.load_model import load_model, load_tokenizer
from asyncgen.reference.model_loader import read_config

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from asyncgen.reference.load_model import PreTrainedModel
    from asyncgen.text.tokenizer import Tokenizer


class _AutoModel:
    """Base of both classes of models."""

    _has_encoder: ClassVar[bool]

    @classmethod
    @shows(ModelOptions)
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        **options: Unpack[ModelOptions],
    ) -> PreTrainedModel:
        """Load a model, as the class of its family.

        Args:
            pretrained_model_name_or_path: As ``source`` of :func:`load_model`.
            **options: See `from_pretrained_options.ModelOptions`. Anything else is an error
                that names it, unless it is off.

        Raises:
            InvalidRequestError: An argument is not supported.
            ModelLoadError: There is no such checkpoint, or it cannot be read.
            UnsupportedModelError: It is a model of the other kind, or of an unknown family.
        """
        where = f"{cls.__name__}.from_pretrained"
        arguments, values, config = model_arguments(options, where)
        model = load_model(pretrained_model_name_or_path, has_encoder=cls._has_encoder, **arguments)
        return model.configured(values, config)


class AutoModelForCausalLM(_AutoModel):
    """The documented way to load a decoder-only model; see :func:`load_model` for ours."""

    _has_encoder = False


class AutoModelForSeq2SeqLM(_AutoModel):
    """The documented way to load a model with an encoder; see :func:`load_model` for ours."""

    _has_encoder = True


class AutoTokenizer:
    """The documented way to load a tokenizer; see :func:`load_tokenizer` for ours."""

    @classmethod
    @shows(TokenizerOptions)
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        **options: Unpack[TokenizerOptions],
    ) -> Tokenizer:
        """Load a tokenizer.

        Args:
            pretrained_model_name_or_path: As ``source`` of :func:`load_tokenizer`.
            **options: See `from_pretrained_options.TokenizerOptions`. Anything else is an
                error that names it, unless it is off.

        Raises:
            InvalidRequestError: An argument is not supported.
            ModelLoadError: There is no such tokenizer, or it cannot be read.
        """
        arguments, values = tokenizer_arguments(options, "AutoTokenizer.from_pretrained")
        tokenizer = load_tokenizer(pretrained_model_name_or_path, **arguments)
        for name, value in values.items():
            setattr(tokenizer, name, value)
        return tokenizer


class AutoConfig:
    """The documented way to read the configuration of a model."""

    @classmethod
    @shows(HubAddress)
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        **options: Unpack[HubAddress],
    ) -> EditableConfig:
        """Read the configuration of a checkpoint, without its weights.

        Args:
            pretrained_model_name_or_path: As ``source`` of :func:`load_model`.
            **options: See `asyncgen.reference.from_pretrained_options.HubAddress`.

        Returns:
            The configuration as in ``model.config``; usable as ``config=`` of ``from_pretrained``.

        Raises:
            InvalidRequestError: An argument is not supported.
            ModelLoadError: There is no such checkpoint, or it cannot be read.
            UnsupportedModelError: Its family is unknown.
        """
        arguments = config_arguments(options, "AutoConfig.from_pretrained")
        return EditableConfig(read_config(pretrained_model_name_or_path, **arguments))
