"""Build the tokenizer that the metadata of a GGUF file describe.

llama.cpp knows five kinds by ``tokenizer.ggml.model``: ``gpt2`` is byte-level BPE, with a
pre-tokenizer that ``tokenizer.ggml.pre`` names (`pre_tokenizers`); ``llama`` is SentencePiece's BPE
with a score a token; ``gemma4`` is the same with a list of merges; ``t5`` is its unigram
model; ``bert`` is WordPiece. Special tokens and chat templates are in the metadata as well.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram, WordPiece

from asyncgen.checkpoints.charsmap import check_charsmap
from asyncgen.checkpoints.gguf.ends import control_texts
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from asyncgen.checkpoints.gguf.pre_tokenizers import (
    BEGINS,
    WHOLE_FIRST,
    make_pre_tokenizer,
    pre_tokenizer_name,
    pre_tokenizer_names,
)
from asyncgen.checkpoints.saved_folder import plain_name
from asyncgen.checkpoints.tokenizer_sizes import check_added, check_size, check_tree
from asyncgen.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError, shorten
from asyncgen.runtime.wanted import require_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from asyncgen.checkpoints.gguf.gguf_file import Metadata

_log = logging.getLogger("asyncgen.models")

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
"""Types of tokens."""

_SPACE: Final = "\u2581"
"""Character for a space in SentencePiece's tokens."""

_ROLES: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_DEFAULT_UNKNOWN: Final = {"llama": 0, "gemma4": 3, "t5": 2, "bert": 100}
_MOST_LETTERS: Final = 128
"""Most letters of a token that merges may build; no longer one is useful."""
_BETWEEN_LOOKS: Final = 4096
"""Tokens between two looks at whether anybody still waits."""


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn errors of the tokenizers library into a `ModelLoadError` that begins with ``problem``.

    A failed assertion in Rust is a ``PanicException``, which is no `Exception` and cannot be
    imported.
    """
    try:
        yield
    except (ModelLoadError, UnsupportedModelError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl-C and the like
        raise ModelLoadError(f"{problem} ({str(error)[:300]}); download it again") from error


class _Vocabulary:
    """Checked tokens of a file."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        kind = metadata.text("tokenizer.ggml.model")
        if kind is None:
            raise ModelLoadError(f"{metadata.file} has no tokenizer (`tokenizer.ggml.model`)")
        self.kind = kind
        texts = metadata.texts("tokenizer.ggml.tokens")
        if not texts:
            raise metadata.bad("tokenizer.ggml.tokens", "must list the tokens")
        check_size(metadata.file, len(texts))
        self.texts = _distinct(texts)
        kinds = metadata.numbers("tokenizer.ggml.token_type") or [_NORMAL] * len(texts)
        scores = metadata.numbers("tokenizer.ggml.scores")
        for key, found in (("token_type", kinds), ("scores", scores)):
            if found is not None and len(found) != len(texts):
                allowed = f"must list one for each of {len(texts)} tokens"
                raise metadata.bad(f"tokenizer.ggml.{key}", allowed)
        control = control_texts(self.texts)
        self.kinds: Sequence[int] = [
            _CONTROL if text in control else int(kind)
            for text, kind in zip(self.texts, kinds, strict=True)
        ]
        self.scores = scores

    def token(self, theirs: str) -> int | None:
        """Return the token of a role; ``None``: there is none."""
        key = f"tokenizer.ggml.{theirs}_token_id"
        found = self.metadata.whole(key)
        if found is not None and found >= len(self.texts):
            raise self.metadata.bad(key, f"there are {len(self.texts)} tokens")
        return found

    def unknown(self) -> int:
        """Return the unknown token, or the usual one of the kind."""
        found = self.token("unknown")
        return _DEFAULT_UNKNOWN[self.kind] if found is None else found

    def needed_scores(self) -> Sequence[float]:
        """Return the scores, which a file of this kind must have."""
        if self.scores is None:
            raise self.metadata.bad("tokenizer.ggml.scores", "must list one for each token")
        return self.scores

    def flag(self, name: str, default: bool) -> bool:
        found = self.metadata.flag(f"tokenizer.ggml.{name}")
        return default if found is None else found

    def added(self) -> list[AddedToken]:
        """Return the tokens that match text directly, in the order of their ids."""
        return [
            AddedToken(text, special=kind != _USER, normalized=False)
            for text, kind in zip(self.texts, self.kinds, strict=True)
            if text and kind in (_CONTROL, _UNKNOWN, _USER)
        ]


def read_gguf_tokenizer(file: Path) -> tuple[Backend, dict[str, Any]]:
    """Read the tokenizer of a file.

    Args:
        file: The file, or the first of several.

    Returns:
        The tokenizer, and further settings: ``special_tokens`` by role, ``chat_template``,
        ``model_max_length``.

    Raises:
        ModelLoadError: It is missing or incomplete.
        UnsupportedModelError: Its kind or its pre-tokenizer is not supported.
    """
    metadata = open_gguf(file).metadata
    vocabulary = _Vocabulary(metadata)
    make = _KINDS.get(vocabulary.kind)
    if make is None:
        raise UnsupportedModelError(
            f"{file}: `tokenizer.ggml.model` is {shorten(vocabulary.kind)}: read are "
            + ", ".join(_KINDS)
        )
    with library_errors(f"{file}: its tokenizer is not whole"):
        backend = make(vocabulary)
        _frame(backend, vocabulary)
    return backend, {"special_tokens": _roles(vocabulary), **_beside(metadata)}


def _roles(vocabulary: _Vocabulary) -> dict[str, str]:
    found = {role: vocabulary.token(theirs) for role, theirs in _ROLES.items()}
    if found["unk_token"] is None and vocabulary.kind in _DEFAULT_UNKNOWN:
        unknown = _DEFAULT_UNKNOWN[vocabulary.kind]
        found["unk_token"] = unknown if unknown < len(vocabulary.texts) else None
    return {role: vocabulary.texts[token] for role, token in found.items() if token is not None}


def _beside(metadata: Metadata) -> dict[str, Any]:
    """Read the chat templates and the context length, if they exist."""
    found: dict[str, Any] = {}
    templates = {"default": metadata.text("tokenizer.chat_template")}
    for name in (metadata.texts("tokenizer.chat_templates") or [])[:100]:
        try:
            plain_name("tokenizer.chat_templates", name)
        except InvalidRequestError as error:
            raise ModelLoadError(f"{metadata.file}: {error}") from error
        templates[name] = metadata.text(f"tokenizer.chat_template.{name}")
    there = {name: text for name, text in templates.items() if text}
    if there:
        found["chat_template"] = there["default"] if set(there) == {"default"} else there
    context = metadata.own.whole("context_length")
    if context:
        found["model_max_length"] = context
    return found


def _frame(backend: Backend, vocabulary: _Vocabulary) -> None:
    """Add the tokens that match text directly, and those at the beginning and end of a text."""
    added = vocabulary.added()
    check_added(vocabulary.metadata.file, len(added), sum(len(token.content) for token in added))
    backend.add_tokens(added)
    begins = vocabulary.kind in ("llama", "gemma4", "bert") or (
        vocabulary.kind == "gpt2" and vocabulary.metadata.text("tokenizer.ggml.pre") in BEGINS
    )
    ends = vocabulary.kind in ("t5", "bert")
    first = vocabulary.token("cls") if vocabulary.kind == "bert" else vocabulary.token("bos")
    last = vocabulary.token("seperator") if vocabulary.kind == "bert" else vocabulary.token("eos")
    first = first if vocabulary.flag("add_bos_token", begins) else None
    last = last if vocabulary.flag("add_eos_token", ends) else None
    around = [None if each is None else (vocabulary.texts[each], each) for each in (first, last)]
    if around == [None, None]:
        return
    by_bytes = [processors.ByteLevel(trim_offsets=False)] if vocabulary.kind == "gpt2" else []
    backend.post_processor = processors.Sequence([*by_bytes, token_frame(*around)])


def token_frame(first: tuple[str, int] | None, last: tuple[str, int] | None) -> Any:
    """Make the step that adds a token at the beginning and one at the end of a text.

    Args:
        first: Text and id of the first token; ``None``: there is none.
        last: Text and id of the last token; ``None``: there is none.
    """
    parts: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if first is not None:
        parts.insert(0, {"SpecialToken": {"id": first[0], "type_id": 0}})
    if last is not None:
        parts.append({"SpecialToken": {"id": last[0], "type_id": 0}})
    state = {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            text: {"id": text, "ids": [token], "tokens": [text]}
            for text, token in filter(None, (first, last))
        },
    }
    whole = json.loads(Backend(BPE()).to_str())
    return Backend.from_str(json.dumps({**whole, "post_processor": state})).post_processor


def _byte_level(vocabulary: _Vocabulary) -> Backend:
    metadata = vocabulary.metadata
    pre = metadata.text("tokenizer.ggml.pre")
    if pre in (None, "default"):
        _log.warning("%s does not say how texts are cut: they are as GPT-2's are", metadata.file)
    way = pre_tokenizer_name(pre or "default")
    if way is None:
        raise UnsupportedModelError(
            f"{metadata.file}: `tokenizer.ggml.pre` is {shorten(pre)}: texts are cut as "
            f"{', '.join(pre_tokenizer_names())} say"
        )
    backend = Backend(
        BPE(
            vocab={text: token for token, text in enumerate(vocabulary.texts)},
            merges=_pairs(metadata),
            ignore_merges=pre in WHOLE_FIRST,
            fuse_unk=False,
        )
    )
    backend.pre_tokenizer = make_pre_tokenizer(way)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pairs(metadata: Metadata) -> list[tuple[str, str]]:
    """Return the merges in the order of the file."""
    merges = metadata.texts("tokenizer.ggml.merges")
    if merges is None:
        raise metadata.bad("tokenizer.ggml.merges", "must list what is put together")
    check_size(metadata.file, 0, len(merges))
    return [_pair(metadata, merge) for merge in merges]


def _pair(metadata: Metadata, merge: str) -> tuple[str, str]:
    # The first letter may be a space, which separates nothing.
    place = merge.find(" ", 1)
    if place < 1:
        raise metadata.bad("tokenizer.ggml.merges", f"{shorten(merge)} is no pair")
    return merge[:place], merge[place + 1 :]


def _sentence_pieces(vocabulary: _Vocabulary) -> Backend:
    """Make SentencePiece's BPE: the pair with the best score is merged first."""
    scores = vocabulary.needed_scores()
    ids = {text: token for token, text in enumerate(vocabulary.texts)}
    has_prefix = vocabulary.flag("add_space_prefix", True)
    file = vocabulary.metadata.file
    merges = merges_by_score(file, vocabulary.texts, vocabulary.kinds, scores)
    return _pieces(vocabulary, ids, merges, has_prefix)


def _gemma(vocabulary: _Vocabulary) -> Backend:
    """Make Gemma 4's tokenizer: SentencePiece's tokens with a list of merges."""
    ids = {text: token for token, text in enumerate(vocabulary.texts)}
    has_prefix = vocabulary.flag("add_space_prefix", False)
    return _pieces(vocabulary, ids, _pairs(vocabulary.metadata), has_prefix)


def _pieces(
    vocabulary: _Vocabulary, ids: dict[str, int], merges: list[tuple[str, str]], has_prefix: bool
) -> Backend:
    """Make BPE of letters, and of bytes for letters without a token."""
    backend = Backend(
        BPE(
            vocab=ids,
            merges=merges,
            unk_token=vocabulary.texts[vocabulary.unknown()],
            fuse_unk=True,
            byte_fallback=_BYTE in vocabulary.kinds,
        )
    )
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    back: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if has_prefix else back)
    return backend


def merges_by_score(
    file: object, texts: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token, the best score first, then by ids.

    Args:
        file: The file, for messages.
        texts: Tokens by id.
        kinds: Type of each token.
        scores: Score of each token.

    Raises:
        ModelLoadError: There are too many.
        UnwantedError: Nobody waits any more.
    """
    ids = {text: token for token, text in enumerate(texts)}
    found: list[tuple[float, int, int, int]] = []
    for token, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if token % _BETWEEN_LOOKS == 0:
            require_wanted()
            check_size(file, len(texts), len(found))
        if kind not in (_NORMAL, _USER, _UNUSED) or not 1 < len(text) <= _MOST_LETTERS:
            continue
        for place in range(1, len(text)):
            left = ids.get(text[:place])
            if left is None:
                continue
            right = ids.get(text[place:])
            if right is not None:
                found.append((-scores[token], token, left, right))
    check_size(file, len(texts), len(found))
    found.sort()
    return [(texts[left], texts[right]) for _, _, left, right in found]


def _unigram(vocabulary: _Vocabulary) -> Backend:
    scores = vocabulary.needed_scores()
    check_tree(vocabulary.metadata.file, vocabulary.texts)
    backend = Backend(
        Unigram(
            list(zip(vocabulary.texts, map(float, scores), strict=True)),
            unk_id=vocabulary.unknown(),
            byte_fallback=_BYTE in vocabulary.kinds,
        )
    )
    charsmap = vocabulary.metadata.numbers("tokenizer.ggml.precompiled_charsmap")
    steps: list[Any] = []
    if charsmap:
        rules = bytes(int(each) & 255 for each in charsmap)
        check_charsmap(vocabulary.metadata.file, rules)
        steps.append(normalizers.Precompiled(rules))
    if vocabulary.flag("remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return backend


def _word_pieces(vocabulary: _Vocabulary) -> Backend:
    """Make WordPiece; llama.cpp marks tokens that begin a word, not those that continue one."""
    texts = [
        text[1:]
        if text.startswith(_SPACE)
        else (text if kind != _NORMAL or text.startswith("[") else f"##{text}")
        for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True)
    ]
    vocabulary.texts = _distinct(texts)
    backend = Backend(
        WordPiece(
            {text: token for token, text in enumerate(vocabulary.texts)},
            unk_token=vocabulary.texts[vocabulary.unknown()],
        )
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _distinct(texts: Sequence[str]) -> list[str]:
    """Return the texts with repeated ones replaced by unique names."""
    seen: set[str] = set()
    made: list[str] = []
    for token, text in enumerate(texts):
        own = f"[token {token}]" if text in seen else text
        seen.add(own)
        made.append(own)
    return made


_KINDS: Final[dict[str, Callable[[_Vocabulary], Backend]]] = {
    "gpt2": _byte_level,
    "llama": _sentence_pieces,
    "gemma4": _gemma,
    "t5": _unigram,
    "bert": _word_pieces,
}
