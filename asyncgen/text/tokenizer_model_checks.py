"""Check the model of a ``tokenizer.json``: its vocabulary, its merges, its pieces.

Over what is wrong in them the library may end the process: an assertion that fails while it cleans
up behind another one cannot be caught. And it may copy for each letter of a text what it reads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import ByteLevel

from asyncgen.checkpoints.tokenizer_sizes import check_size, check_tree
from asyncgen.errors import ModelLoadError, shorten
from asyncgen.text.tokenizer_parts import MOST_ID, MOST_TOKEN, kind_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenizers import Tokenizer as Backend

MOST_PIECE: Final = 256
"""Characters of a piece of a unigram model, which tries every beginning at every letter; trained
ones have up to 16 or, of spaces, 64."""

_MOST_SCORE: Final = 1e30
_BYTES: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def check_model(place: object, state: Mapping[str, Any]) -> None:
    """Refuse a model over which the library gives up, for any text or for the file itself.

    Args:
        place: The file, for messages.
        state: Content of ``tokenizer.json`` whose parts are known; see `tokenizer_parts`.

    Raises:
        ModelLoadError: Names the entry.
    """
    model = state.get("model")
    if not isinstance(model, dict):
        return  # the library refuses it
    dropout = model.get("dropout")
    if dropout is not None and dropout != 0:
        raise ModelLoadError(
            f"{place}: `dropout` of its model is {shorten(dropout)}: null or 0, since with it a "
            "text has other tokens each time; it belongs to training, set it to null"
        )
    if kind_of(model) == "Unigram":
        _check_pieces(place, model)
        return
    vocabulary = model.get("vocab") or {}
    check_vocabulary(place, vocabulary)
    if kind_of(model) == "BPE":
        _check_merges(place, model)
        unknown = model.get("unk_token")
        if unknown is not None and unknown not in vocabulary and not _spells_all(state):
            raise ModelLoadError(
                f"{place}: `unk_token` of its model is {shorten(unknown)}, which is not in its "
                "vocabulary; null, or a token of it"
            )


def check_backend(place: object, backend: Backend) -> None:
    """Check the vocabulary of a tokenizer that was built of other files; errors as `check_model`.

    Args:
        place: The file or folder, for messages.
        backend: The tokenizer.
    """
    is_unigram = isinstance(backend.model, Unigram)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    check_vocabulary(place, vocabulary, MOST_PIECE if is_unigram else MOST_TOKEN)


def check_vocabulary(place: object, vocabulary: Mapping[str, Any], most: int = MOST_TOKEN) -> None:
    """Refuse ids and lengths of tokens that no model has.

    Args:
        place: The file, for messages.
        vocabulary: Ids by token.
        most: Characters of a token.
    """
    check_size(place, len(vocabulary))
    longest = max(vocabulary, key=len, default="")
    if len(longest) > most:
        raise ModelLoadError(_too_long(place, longest, most))
    ids = vocabulary.values()
    if {*map(type, ids)} <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) < MOST_ID:
        return
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < MOST_ID:
            raise ModelLoadError(
                f"{place}: the token {shorten(token)} of its model has the id {shorten(number)}: "
                f"must be a whole number from 0 to {MOST_ID - 1}"
            )


def _too_long(place: object, token: str, most: int) -> str:
    return (
        f"{place}: a token of its model has {len(token)} characters ({shorten(token)}); at most "
        f"{most} are read"
    )


def _check_pieces(place: object, model: Mapping[str, Any]) -> None:
    """Check a unigram model: pieces and their scores."""
    pieces = model.get("vocab")
    if not isinstance(pieces, list):
        return  # the library refuses it
    check_size(place, len(pieces))
    for piece in () if _are_plain(pieces) else pieces:
        if not (isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)):
            raise ModelLoadError(
                f"{place}: a piece of its model is {shorten(piece)}: must be a text and its score"
            )
        text, score = piece
        if len(text) > MOST_PIECE:
            raise ModelLoadError(_too_long(place, text, MOST_PIECE))
        if type(score) not in (int, float) or not math.fabs(score) <= _MOST_SCORE:
            raise ModelLoadError(
                f"{place}: the piece {shorten(text)} of its model has the score {shorten(score)}: "
                f"must be a number from -{_MOST_SCORE:g} to {_MOST_SCORE:g}"
            )
    check_tree(place, [piece[0] for piece in pieces])
    unknown = model.get("unk_id")
    if not isinstance(unknown, int) or not unknown < len(pieces):
        raise ModelLoadError(
            f"{place}: `unk_id` of its model is {shorten(unknown)}: must be the number of the "
            f"piece for unknown letters, from 0 to {len(pieces) - 1}"
        )


def _are_plain(pieces: list[Any]) -> bool:
    """Tell at once whether all pieces are as they should be, as those of real files are."""
    if {*map(type, pieces)} != {list} or {*map(len, pieces)} != {2}:
        return False
    texts, scores = zip(*pieces, strict=True)
    return (
        {*map(type, texts)} == {str}
        and {*map(type, scores)} <= {int, float}
        and max(map(len, texts)) <= MOST_PIECE
        and -_MOST_SCORE <= min(scores) <= max(scores) <= _MOST_SCORE
    )


def _check_merges(place: object, model: Mapping[str, Any]) -> None:
    """Count merges; hold them to the prefix of what continues a word, which is cut off unseen."""
    prefix = model.get("continuing_subword_prefix")
    merges = model.get("merges")
    if not isinstance(merges, list):
        return  # the library refuses it
    check_size(place, len(model.get("vocab") or ()), len(merges))
    if not prefix:
        return  # the library looks up the rest by itself
    if not prefix.isascii():
        raise ModelLoadError(
            f"{place}: `continuing_subword_prefix` of its model is {shorten(prefix)}: must be of "
            "ASCII, since the library counts its letters as bytes"
        )
    for merge in merges:
        pair: Sequence[Any] = merge.split(" ") if isinstance(merge, str) else merge
        last = pair[-1] if isinstance(pair, list) and pair else None
        if not isinstance(last, str) or not last.startswith(prefix):
            raise ModelLoadError(
                f"{place}: the merge {shorten(merge)} of its model has no second token that begins "
                f"with `continuing_subword_prefix`, which is {shorten(prefix)}"
            )


def _spells_all(state: Mapping[str, Any]) -> bool:
    """Tell whether no letter is unknown: all bytes are in the vocabulary."""
    model = state["model"]
    vocabulary = (model.get("vocab") or {}).keys()
    if model.get("byte_fallback") and vocabulary >= _BYTES:
        return True
    steps = [
        part for chain in ("normalizer", "pre_tokenizer") for part in parts_of(state.get(chain))
    ]
    is_by_bytes = any(kind_of(part) == "ByteLevel" for part in steps)
    return is_by_bytes and vocabulary >= {*ByteLevel.alphabet()}
