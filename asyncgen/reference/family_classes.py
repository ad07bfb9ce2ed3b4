"""Classes of models and tokenizers of each family, made from the declarations of families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from asyncgen.checkpoints.hub import resolve
from asyncgen.errors import UnsupportedModelError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.reference.from_pretrained_options import TokenizerOptions, shows, tokenizer_arguments
from asyncgen.reference.pretrained_model import PreTrainedModel
from asyncgen.reference.seq2seq_model import Seq2SeqModel
from asyncgen.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import os
    from typing import Unpack


class PreTrainedTokenizerFast(Tokenizer):
    """A tokenizer that is loaded by the name of a class.

    Where a folder has ``tokenizer.json``, it alone decides how text is split, for every class.
    """

    names: tuple[str, ...] = ()
    """Allowed ``tokenizer_class`` of its files; empty: any."""

    @classmethod
    @shows(TokenizerOptions)
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        **options: Unpack[TokenizerOptions],
    ) -> Self:
        """Load a tokenizer of this class.

        Args:
            pretrained_model_name_or_path: ``"demo"``, a folder, or the id of a repository.
            **options: See `from_pretrained_options.TokenizerOptions`. Anything else is an
                error that names it, unless it is off.

        Raises:
            InvalidRequestError: An argument is not supported.
            ModelLoadError: The tokenizer is missing, or cannot be read.
            UnsupportedModelError: Its files belong to another family.
        """
        where = f"{cls.__name__}.from_pretrained"
        arguments, values = tokenizer_arguments(options, where)
        prefix_space = arguments.pop("add_prefix_space")
        folder = resolve(pretrained_model_name_or_path, weights=False, **arguments)
        tokenizer = cls.from_folder(folder, add_prefix_space=prefix_space)
        tokenizer.name_or_path = str(pretrained_model_name_or_path)
        tokenizer._check_family()
        for name, value in values.items():
            setattr(tokenizer, name, value)
        return tokenizer

    def _check_family(self) -> None:
        stated = self.init_kwargs.get("tokenizer_class")
        if self.names and stated in TOKENIZERS and stated not in self.names:
            raise UnsupportedModelError(
                f"`{type(self).__name__}` loads tokenizers of its own family, and this one is a "
                f"`{stated}`; load it with that, or with `AutoTokenizer`"
            )


def _class(name: str, base: type, **attributes: Any) -> Any:
    return type(name, (base,), {"__module__": "asyncgen", "__doc__": base.__doc__, **attributes})


CLASSES: dict[str, type[PreTrainedModel]] = {
    kind.class_name: _class(
        kind.class_name,
        Seq2SeqModel if kind.has_encoder else PreTrainedModel,
        model_type=kind.model_type,
    )
    for kind in FAMILIES.values()
}
"""Classes of models by name."""

TOKENIZERS: dict[str, type[PreTrainedTokenizerFast]] = {
    name: _class(name, PreTrainedTokenizerFast, names=kind.tokenizer_names)
    for kind in FAMILIES.values()
    for name in kind.tokenizer_names
}
"""Classes of tokenizers by name."""

globals().update(CLASSES | TOKENIZERS)
