"""Small tokenizers of the kinds that checkpoints carry, trained on the spot."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = [
    "Hello world, how are you today? I'm fine, thanks; don't worry.",
    "The quick brown fox jumps over the lazy dog.",
    "Ünïcödé 漢字 emoji 😀 naïve café",
    "def f(x):\n    return x + 1\n",
    "1, 2, 3, 45, 678",
] * 5

KINDS = ("byte_level", "byte_fallback", "metaspace", "wordpiece")

SPECIAL: dict[str, dict[str, str]] = {
    "byte_level": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "byte_fallback": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "metaspace": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "wordpiece": {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
}


def save_tokenizer(folder: Path, kind: str, /, **config: Any) -> Path:
    """Write `tokenizer.json` and `tokenizer_config.json` of a kind; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(kind), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL[kind], **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@cache
def tokenizer_json(kind: str) -> str:
    """Content of `tokenizer.json` of a kind."""
    make = {
        "byte_level": _byte_level,
        "byte_fallback": _byte_fallback,
        "metaspace": _metaspace,
        "wordpiece": _wordpiece,
    }[kind]
    return make().to_str()


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def _byte_fallback() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    _train(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=special,
            limit_alphabet=60,
            show_progress=False,
        ),
    )
    # The bytes are ordinary tokens of the vocabulary, not special ones.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = _with_bos()
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _train(
        tokenizer,
        trainers.UnigramTrainer(
            vocab_size=150,
            special_tokens=["<unk>", "<s>", "</s>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    # The trainer's order among equals, and its last digits, differ from one process to the next.
    state = json.loads(tokenizer.to_str())
    special, rest = state["model"]["vocab"][:3], state["model"]["vocab"][3:]
    pieces = sorted((-round(score, 3), piece) for piece, score in rest)
    state["model"]["vocab"] = special + [[piece, -cost] for cost, piece in pieces]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = _with_bos()
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _train(
        tokenizer,
        trainers.WordPieceTrainer(
            vocab_size=300,
            special_tokens=list(SPECIAL["wordpiece"].values()),
            show_progress=False,
        ),
    )
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    return tokenizer


def _with_bos() -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer) -> None:
    tokenizer.train_from_iterator(CORPUS, trainer)
