"""Build a tokenizer from a model of SentencePiece: ``tokenizer.model`` or ``spiece.model``.

The packages ``sentencepiece`` and ``protobuf`` read the file. The tokenizer is one of the library
`tokenizers`, and gives the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram

from asyncgen.checkpoints.charsmap import check_charsmap
from asyncgen.checkpoints.gguf.tokenizer import merges_by_score
from asyncgen.checkpoints.stored_files import read_stored
from asyncgen.checkpoints.tokenizer_sizes import check_added, check_size, check_tree
from asyncgen.errors import ModelLoadError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

_CONTROL, _USER_DEFINED = 3, 4
"""Types of pieces that match text directly."""

_UNIGRAM, _BPE = 1, 2
"""Types of models."""

_FIELD, _FIELDS = b"\n", 4
"""A piece and its text begin with this byte each, which may stand elsewhere as well."""

_SPACE: Final = "\u2581"


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """Content of a model of SentencePiece.

    Attributes:
        file: The file.
        texts: Pieces by id.
        scores: Score of each piece.
        kinds: Type of each piece.
        is_bpe: Pieces are put together by score; otherwise the likeliest split is taken.
        unknown: Id of the unknown piece.
        roles: Pieces that the model names, by role.
        has_bytes: Letters without a piece become bytes.
        has_prefix: A text is split as if a space stood before it.
        joins_spaces: Spaces at the ends are dropped, and several become one.
        charsmap: Rules of normalisation in the library's binary form; empty: none.
    """

    file: Path
    texts: list[str]
    scores: list[float]
    kinds: list[int]
    is_bpe: bool
    unknown: int
    roles: dict[str, str]
    has_bytes: bool
    has_prefix: bool
    joins_spaces: bool
    charsmap: bytes

    def added(self) -> list[AddedToken]:
        """Return the pieces that match text directly, in the order of their ids."""
        return [
            AddedToken(text, normalized=False, special=kind == _CONTROL)
            for text, kind in zip(self.texts, self.kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """Read a model of SentencePiece.

    Raises:
        ModelLoadError: It is not such a model, or a package that reads it is not installed.
        UnsupportedModelError: It splits texts by words or letters.
    """
    try:
        protocol: Any = import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError as error:
        raise ModelLoadError(
            f"{file} is read by the packages `sentencepiece` and `protobuf`: "
            "pip install 'asyncgen[sentencepiece]'"
        ) from error
    model = protocol.ModelProto()
    content = read_stored(file)
    check_size(file, content.count(_FIELD) // _FIELDS)
    try:
        model.ParseFromString(content)
    except Exception as error:
        raise ModelLoadError(f"{file} is no model of SentencePiece ({error})") from error
    trainer, rules = model.trainer_spec, model.normalizer_spec
    if not model.pieces or trainer.unk_id >= len(model.pieces):
        raise ModelLoadError(f"{file} is no whole model of SentencePiece; download it again")
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise UnsupportedModelError(f"{file} splits by words or letters: read are unigram and BPE")
    if trainer.treat_whitespace_as_suffix:
        raise UnsupportedModelError(f"{file} puts spaces behind words, which is not supported")
    ids = {"bos_token": trainer.bos_id, "eos_token": trainer.eos_id, "unk_token": trainer.unk_id}
    return SentencePieceModel(
        file=file,
        texts=[piece.piece for piece in model.pieces],
        scores=[piece.score for piece in model.pieces],
        kinds=[piece.type for piece in model.pieces],
        is_bpe=trainer.model_type == _BPE,
        unknown=trainer.unk_id,
        roles={
            role: model.pieces[token].piece
            for role, token in ids.items()
            if 0 <= token < len(model.pieces)
        },
        has_bytes=trainer.byte_fallback,
        has_prefix=rules.add_dummy_prefix,
        joins_spaces=rules.remove_extra_whitespaces,
        charsmap=rules.precompiled_charsmap,
    )


def build_sentencepiece(
    model: SentencePieceModel, *, has_prefix: bool, is_every_part_prefixed: bool
) -> Backend:
    """Build the tokenizer, without tokens around a text.

    Args:
        model: Content of the file.
        has_prefix: A text is split as if a space stood before it.
        is_every_part_prefixed: So is each part of a text behind a special token.
    """
    # Where spaces were dropped, the library no longer knows that a part is the first.
    is_every = is_every_part_prefixed or model.joins_spaces
    scheme = "never" if not has_prefix else "always" if is_every else "first"
    check_size(model.file, len(model.texts))
    added = model.added()
    check_added(model.file, len(added), sum(len(token.content) for token in added))
    if model.is_bpe:
        backend = Backend(
            BPE(
                vocab={text: token for token, text in enumerate(model.texts)},
                merges=merges_by_score(model.file, model.texts, model.kinds, model.scores),
                unk_token=model.texts[model.unknown],
                fuse_unk=True,
                byte_fallback=model.has_bytes,
            )
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        check_tree(model.file, model.texts)
        pieces = list(zip(model.texts, model.scores, strict=True))
        backend = Backend(Unigram(pieces, unk_id=model.unknown, byte_fallback=model.has_bytes))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    steps: list[Any] = []
    if model.charsmap:
        check_charsmap(model.file, model.charsmap)
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.joins_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    back: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if has_prefix else back)
    backend.add_tokens(added)
    return backend
