"""Build a tokenizer from the files of older checkpoints that have no ``tokenizer.json``.

These are ``vocab.json`` with ``merges.txt``, and models of SentencePiece. What they do not say,
such as how a text is split, the class of the tokenizer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

from asyncgen.checkpoints.gguf.pre_tokenizers import make_pre_tokenizer
from asyncgen.checkpoints.gguf.tokenizer import token_frame
from asyncgen.checkpoints.json_size import check_json
from asyncgen.checkpoints.stored_files import is_stored, library_path, open_small
from asyncgen.checkpoints.tokenizer_sizes import check_size
from asyncgen.errors import ModelLoadError
from asyncgen.text.sentencepiece_model import build_sentencepiece, read_sentencepiece

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CONVERT: Final = (
    "convert it once with `transformers.AutoTokenizer.from_pretrained(folder)"
    ".save_pretrained(folder)`"
)

_BYTE_LEVEL: Final = {
    "GPT2Tokenizer": "gpt2",
    "GPTNeoXTokenizer": "gpt2",
    "Qwen2Tokenizer": "qwen2",
    "CohereTokenizer": "digits",
}
"""Pre-tokenizer of each class that reads ``vocab.json`` and ``merges.txt``."""

_BY_PIECES: Final = ("", "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "T5Tokenizer")
"""Classes that read a model of SentencePiece; the first takes any."""

_OTHERS: Final = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json")


def read_old_layout(
    folder: Path, class_name: str, stated: Mapping[str, Any], add_prefix_space: bool | None
) -> tuple[Backend, dict[str, str]]:
    """Build the tokenizer of a folder without ``tokenizer.json``.

    Args:
        folder: Folder of the checkpoint.
        class_name: Class of the reference; see `tokenizer_classes`.
        stated: Content of ``tokenizer_config.json``.
        add_prefix_space: Overrides the setting of that name.

    Returns:
        The tokenizer, and special tokens by role that only the model of SentencePiece names.

    Raises:
        ModelLoadError: The files are missing, or say too little.
    """
    prefix = add_prefix_space
    if prefix is None:
        prefix = stated.get("add_prefix_space")
    for name in ("tokenizer.model", "spiece.model"):
        if class_name in _BY_PIECES and is_stored(folder / name):
            return _pieces(folder / name, class_name, stated, prefix)
    files = [folder / name for name in ("vocab.json", "merges.txt")]
    if class_name in _BYTE_LEVEL and all(map(is_stored, files)):
        return _byte_level(class_name, *files, prefix=bool(prefix)), {}
    raise ModelLoadError(_missing(folder, class_name))


def frame(
    backend: Backend, class_name: str, stated: Mapping[str, Any], roles: Mapping[str, str]
) -> None:
    """Add the tokens at the beginning and end of a text, once all tokens are known.

    Args:
        backend: The tokenizer from `read_old_layout`.
        class_name: Class of the reference.
        stated: Content of ``tokenizer_config.json``.
        roles: Special tokens by role.
    """
    begins = stated.get("add_bos_token", class_name == "CodeLlamaTokenizer")
    first = roles.get("bos_token") if begins else None
    last = roles.get("eos_token") if stated.get("add_eos_token") else None
    if class_name == "T5Tokenizer":
        first, last = None, "</s>"
    if (first, last) == (None, None):
        return
    around = []
    for text in (first, last):
        token = None if text is None else backend.token_to_id(text)
        around.append(None if text is None or token is None else (text, token))
    backend.post_processor = token_frame(*around)


def _pieces(
    file: Path, class_name: str, stated: Mapping[str, Any], prefix: Any
) -> tuple[Backend, dict[str, str]]:
    model = read_sentencepiece(file)
    backend = build_sentencepiece(
        model,
        has_prefix=model.has_prefix if prefix is None else bool(prefix),
        is_every_part_prefixed=class_name == "T5Tokenizer" or bool(stated.get("legacy")),
    )
    if class_name:
        return backend, {}
    return backend, {role: text for role, text in model.roles.items() if role not in stated}


def _byte_level(class_name: str, vocabulary: Path, merges: Path, *, prefix: bool) -> Backend:
    with open_small(vocabulary) as words, open_small(merges) as rules:
        content = words.read()
        check_json(vocabulary, content)
        check_size(vocabulary, content.count(b":"))
        del content
        check_size(merges, 0, rules.read().count(b"\n"))
        try:
            texts, pairs = BPE.read_file(library_path(words), library_path(rules))
        except Exception as error:
            raise ModelLoadError(
                f"{vocabulary} and {merges.name} are no vocabulary ({error}); download them again"
            ) from error
    check_size(vocabulary, len(texts), len(pairs))
    backend = Backend(
        BPE(texts, pairs, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    if class_name != "GPT2Tokenizer":
        backend.normalizer = normalizers.NFC()
    way = _BYTE_LEVEL[class_name]
    backend.pre_tokenizer = make_pre_tokenizer(way, add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    return backend


def _missing(folder: Path, class_name: str) -> str:
    """Say what the folder has, and what can be done."""
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}; check the path"
    found = next((name for name in (*_OTHERS, "vocab.txt") if is_stored(folder / name)), None)
    if found is None:
        return f"{folder} has no tokenizer.json; copy the tokenizer's files there"
    kind = f"of the class {class_name}" if class_name else "without a class that says how it splits"
    return f"{folder} has {found} but no tokenizer.json, and is {kind}; {_CONVERT}"
