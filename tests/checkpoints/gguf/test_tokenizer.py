"""Tokenizers in GGUF: the same ids as of the tokenizers that the files were made of."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

import asyncgen
from asyncgen.checkpoints.gguf import pre_tokenizers as pre_tokenizer_patterns
from asyncgen.checkpoints.gguf.pre_tokenizers import (
    make_pre_tokenizer,
    pre_tokenizer_name,
    pre_tokenizer_names,
)
from asyncgen.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError
from tests.cases import for_each
from tests.checkpoints.gguf.making import write_gguf
from tests.checkpoints.test_saved_folder import PATHS

if TYPE_CHECKING:
    from pathlib import Path

WORDS = (
    "the quick brown fox's don't I'LL we'Re 1 12 123 1234567 3.14 a_b __init__ (x) == != "
    "-> \n \n\n \t \r\n   HelloWorld HTTPServer été Straße naïve Пр"
    "ивет мир שלום 你好 "
    "世界 こんにちは 한국어 ١٢٣ "
    "😀 👩\u200d👩\u200d👧 ½ ² № … —"
    " “quoted” https://a.b/c?d=e#f foo@bar.com C++ C# $5.00 100% # @ ~ ` '' \""
    " e\u0301"
).split(" ")
CORPUS = [" ".join(WORDS), *WORDS] * 3


def texts(count: int, seed: int = 3) -> list[str]:
    """Words in any order, with any spaces between them."""
    draw = random.Random(seed)
    gaps = [" ", " ", " ", "  ", "   ", "", "\n", "\n\n", " \n "]
    return [
        "".join(draw.choice(WORDS) + draw.choice(gaps) for _ in range(draw.randrange(1, 30)))
        for _ in range(count)
    ]


def _cut(*patterns: str) -> Any:
    each = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Sequence([*each, ByteLevel(add_prefix_space=False, use_regex=False)])


def _plain() -> Any:
    return ByteLevel(add_prefix_space=False, use_regex=True)


_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
ORIGINALS: dict[str, Any] = {
    "gpt-2": _plain(),
    "starcoder": Sequence([Digits(individual_digits=True), _plain()]),
    "falcon": Sequence(
        [
            Punctuation("contiguous"),
            _plain(),
            Digits(individual_digits=False),
            Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    ),
    "llama-bpe": _cut(_HEAD + r"\p{N}{1,3}|" + _TAIL),
    "qwen2": _cut(_HEAD + r"\p{N}|" + _TAIL),
    "deepseek-v3": _cut(
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ),
    "exaone-moe": _cut(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "kimi-k2": _cut(
        r"[\p{Han}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""What the files of models with these names say, step by step."""


def byte_level(pre: Any, *, whole_first: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_first))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>", "<|im_end|>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def in_order(tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return sorted(vocabulary, key=lambda text: vocabulary[text])


def merges_of(tokenizer: Tokenizer) -> list[str]:
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]


def write_bytes(folder: Path, tokenizer: Tokenizer, pre: str, **more: Any) -> Path:
    tokens = in_order(tokenizer)
    kinds = {"<s>": 3, "</s>": 3, "<|im_end|>": 3, "<tool>": 4}
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": merges_of(tokenizer),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return write_gguf(folder / "vocabulary.gguf", metadata, {})


def same_ids(file: Path, original: Tokenizer, count: int) -> None:
    ours = asyncgen.load_tokenizer(file)
    for text in texts(count):
        ids = original.encode(text, add_special_tokens=False).ids
        assert ours.encode_ids(text, add_special_tokens=False) == ids, text
        assert ours.decode(ids) == original.decode(ids, skip_special_tokens=False)


COUNTS = [100, pytest.param(2000, marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("pre", ORIGINALS)
def test_bytes_are_cut_as_the_original_cuts_them(pre: str, count: int, tmp_path: Path) -> None:
    original = byte_level(ORIGINALS[pre], whole_first=pre in ("llama-bpe", "kimi-k2"))
    same_ids(write_bytes(tmp_path, original, pre), original, count)


def test_every_name_is_of_a_way_that_gives_each_text_back() -> None:
    for name in pre_tokenizer_names():
        way = pre_tokenizer_name(name)
        assert way is not None
        pieces = make_pre_tokenizer(way).pre_tokenize_str("a 12 été\n\n你好  x")
        assert pieces[-1][1][1] == len("a 12 été\n\n你好  x")


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("afmoe", "a 1234567 12 123", ["a", " ", "1", "234", "567", " ", "12", " ", "123"]),
        ("afmoe", "Hi\u4f60\u597d, x_y", ["Hi", "\u4f60\u597d", ",", " x", "_y"]),
        ("youtu", "it's 12\u4f60\u597d", ["it's", " ", "1", "2", "\u4f60\u597d"]),
        ("kimi-k2", "It's1234\u4f60\u597dab", ["It's", "123", "4", "\u4f60\u597d", "ab"]),
    ],
)
def test_pieces_of_texts(pre: str, text: str, pieces: list[str]) -> None:
    way = pre_tokenizer_name(pre)
    assert way is not None
    found = make_pre_tokenizer(way).pre_tokenize_str(text)
    assert [text[first:last] for _, (first, last) in found] == pieces


def test_digits_in_threes_are_counted_from_the_last_one() -> None:
    """As by the pattern of the original, which looks at all that is to come of each three."""
    original = _cut(
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        pre_tokenizer_patterns._ASIAN,
        pre_tokenizer_patterns._MARKED,
    )
    ours, draw = make_pre_tokenizer("afmoe"), random.Random(5)
    for _ in range(2000):
        text = "".join(
            draw.choices("123\u0661\u00bd\u00b2a e\u0301\n.,\u4f60", k=draw.randrange(1, 20))
        )
        text += "".join(draw.choices("0123456789", k=draw.randrange(12)))
        assert ours.pre_tokenize_str(text) == original.pre_tokenize_str(text)
    found = ours.pre_tokenize_str("7" * 200_000)  # in a moment, and not in half a minute
    assert [piece for piece, _ in found] == ["77", *["777"] * 66_666]


@pytest.mark.parametrize("count", COUNTS)
def test_gemma_4_has_merges_of_pieces(count: int, tmp_path: Path) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    original = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    original.normalizer = normalizers.Replace(" ", "\u2581")
    original.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    original.decoder = decoders.Sequence(back)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*special, *in_bytes], show_progress=False
    )
    original.train_from_iterator([text for text in CORPUS if "\U0001f600" not in text], trainer)
    tokens = in_order(original)
    metadata = {
        "general.architecture": "gemma4",
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens),
        "tokenizer.ggml.token_type": [3] * 4 + [6] * 256 + [1] * (len(tokens) - 260),
        "tokenizer.ggml.merges": merges_of(original),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }
    file = write_gguf(tmp_path / "gemma.gguf", metadata, {})
    same_ids(file, original, count)
    assert asyncgen.load_tokenizer(file).encode_ids("a \U0001f600")[0] == 2
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.merges"):
        asyncgen.load_tokenizer(write_gguf(tmp_path / "bad.gguf", metadata, {}))


def sentence_pieces(text: str, vocabulary: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece's rule: the pair that makes the best scored token, the leftmost of several."""
    pieces = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        joined = [one + two for one, two in zip(pieces, pieces[1:], strict=False)]
        found = [
            (scores[vocabulary[each]], -i) for i, each in enumerate(joined) if each in vocabulary
        ]
        if not found:
            break
        place = -max(found)[1]
        pieces[place : place + 2] = [joined[place]]
    made: list[int] = []
    for piece in pieces:
        known = vocabulary.get(piece)
        made += [known] if known is not None else [3 + byte for byte in piece.encode()]
    return made


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentence_pieces_are_put_together_by_score(
    count: int, has_prefix: bool, tmp_path: Path
) -> None:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581*[^\u2581]*"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [token for token in in_order(trained) if token not in tokens]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": has_prefix,
    }
    ours = asyncgen.load_tokenizer(write_gguf(tmp_path / "pieces.gguf", metadata, {}))
    vocabulary = {token: place for place, token in enumerate(tokens)}
    for text in texts(count):
        ids = ours.encode_ids(text, add_special_tokens=False)
        if has_prefix:
            assert ids == sentence_pieces(text, vocabulary, scores), text
        assert ours.decode(ids) == text
    assert ours.encode_ids("a")[0] == 1
    assert (ours.bos_token, ours.eos_token, ours.unk_token) == ("<s>", "</s>", "<unk>")


def test_unigram_and_word_pieces(tmp_path: Path) -> None:
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    unigram.train_from_iterator(CORPUS, trainer)
    pieces = json.loads(unigram.to_str())["model"]["vocab"]
    metadata: dict[str, Any] = {
        "general.architecture": "t5",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.scores": [float(score) for _, score in pieces],
        "tokenizer.ggml.token_type": [3, 3, 2] + [1] * (len(pieces) - 3),
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    ours = asyncgen.load_tokenizer(write_gguf(tmp_path / "unigram.gguf", metadata, {}))
    for text in texts(60):
        assert ours.encode_ids(text, add_special_tokens=False) == unigram.encode(text).ids
    assert ours.encode_ids("fox")[-1] == 1

    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trained = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    words.train_from_iterator(CORPUS, trained)
    tokens = [
        text if text in special else (text[2:] if text.startswith("##") else f"\u2581{text}")
        for text in in_order(words)
    ]
    metadata = {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(tokens) - 4),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }
    ours = asyncgen.load_tokenizer(write_gguf(tmp_path / "words.gguf", metadata, {}))
    for text in texts(60):
        ids = words.encode(text, add_special_tokens=False).ids
        assert ours.encode_ids(text) == [2, *ids, 3]


def test_special_tokens_templates_and_frames(tmp_path: Path) -> None:
    original = byte_level(ORIGINALS["llama-bpe"], whole_first=True)
    template = "{% for m in messages %}<s>{{ m.content }}<|im_end|>{% endfor %}"
    named: dict[str, Any] = {"tokenizer__chat_template": template}
    ours = asyncgen.load_tokenizer(write_bytes(tmp_path, original, "llama-bpe", **named))
    assert ours.encode_ids("a<tool>b</s>") == [0, *original.encode("a<tool>b</s>").ids]
    assert (ours.bos_token_id, ours.eos_token_id, ours.model_max_length) == (0, 1, 512)
    assert ours.decode(ours.encode_ids("fox"), skip_special_tokens=True) == "fox"
    assert ours.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == (
        "<s>x<|im_end|>"
    )
    named = {"tokenizer__ggml__add_bos_token": False, "tokenizer__ggml__add_eos_token": True}
    ours = asyncgen.load_tokenizer(write_bytes(tmp_path, original, "llama-bpe", **named))
    assert ours.encode_ids("a") == [*original.encode("a").ids, 1]
    ours.save_pretrained(tmp_path / "saved")
    again = asyncgen.load_tokenizer(tmp_path / "saved")
    for text in texts(20):
        assert again.encode_ids(text) == ours.encode_ids(text)


@for_each("name", [*PATHS, "default/../x"])
def test_names_of_templates_are_no_paths(name: str, tmp_path: Path) -> None:
    original = byte_level(ORIGINALS["gpt-2"])
    if name == "\ud800":
        return  # no text of such a file
    named: dict[str, Any] = {"tokenizer__chat_templates": ["tool", name]}
    named |= {f"tokenizer__chat_template__{each}": "x" for each in ("tool", name)}
    file = write_bytes(tmp_path, original, "gpt-2", **named)
    with pytest.raises(ModelLoadError, match=r"(?s)\.gguf: `tokenizer\.chat_templates.*plain name"):
        asyncgen.load_tokenizer(file)


def test_unknown_tokenizer_kinds_are_refused_by_name(tmp_path: Path) -> None:
    original = byte_level(ORIGINALS["gpt-2"])
    with pytest.raises(UnsupportedModelError, match=r"pre` is 'from-mars'.*qwen2"):
        asyncgen.load_tokenizer(write_bytes(tmp_path, original, "from-mars"))
    kind: dict[str, Any] = {"tokenizer__ggml__model": "rwkv"}
    with pytest.raises(UnsupportedModelError, match="model` is 'rwkv'"):
        asyncgen.load_tokenizer(write_bytes(tmp_path, original, "gpt-2", **kind))
    short: dict[str, Any] = {"tokenizer__ggml__token_type": [1, 1]}
    with pytest.raises(ModelLoadError, match="token_type` is an array: must list one for each"):
        asyncgen.load_tokenizer(write_bytes(tmp_path, original, "gpt-2", **short))
    beyond: dict[str, Any] = {"tokenizer__ggml__bos_token_id": 99999}
    with pytest.raises(ModelLoadError, match="bos_token_id` is 99999"):
        asyncgen.load_tokenizer(write_bytes(tmp_path, original, "gpt-2", **beyond))
    with pytest.raises(InvalidRequestError, match="add_prefix_space"):
        asyncgen.load_tokenizer(write_bytes(tmp_path, original, "gpt-2"), add_prefix_space=True)
