"""Tests of `asyncgen.text.tokenizer`, beside transformers on the same folders."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from asyncgen.errors import ChatTemplateError, InvalidRequestError
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each
from tests.doubles.tokenizers import KINDS, save_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

TEXTS = [
    "Hello world , isn't it? 😀",
    "",
    " leading and  double spaces\n\ttab",
    "<s>special</s> <|im_start|>user [SEP]",
    "漢字 and naïve café, don't",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: save_tokenizer(root / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def pairs(folders: dict[str, Path]) -> dict[str, tuple[Tokenizer, Any]]:
    return {kind: load_pair(folder) for kind, folder in folders.items()}


def load_pair(folder: Path) -> tuple[Tokenizer, Any]:
    """Load a folder here and in transformers, both padding on the left."""
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder), padding_side="left")
    return Tokenizer.from_folder(folder), theirs


@pytest.fixture
def byte_level(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.from_folder(folders["byte_level"])


@for_each("kind", KINDS)
@for_each("text", TEXTS)
def test_encode_and_decode_as_the_reference(
    pairs: dict[str, tuple[Tokenizer, Any]], kind: str, text: str
) -> None:
    ours, theirs = pairs[kind]
    for special in (True, False):
        ids = ours.encode(text, add_special_tokens=special)
        assert ids == theirs.encode(text, add_special_tokens=special)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )
    assert ours.tokenize(text) == theirs.tokenize(text)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=60))
@settings(max_examples=50, deadline=None)
def test_any_text_as_the_reference(
    pairs: dict[str, tuple[Tokenizer, Any]], kind: str, text: str
) -> None:
    ours, theirs = pairs[kind]
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
        ids, skip_special_tokens=True
    )


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_ids_as_the_reference(
    pairs: dict[str, tuple[Tokenizer, Any]], kind: str, data: st.DataObject
) -> None:
    ours, theirs = pairs[kind]
    ids = data.draw(st.lists(st.integers(0, len(ours) + 5), max_size=30))
    assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_as_the_reference(pairs: dict[str, tuple[Tokenizer, Any]], kind: str) -> None:
    ours, theirs = pairs[kind]
    assert len(ours) == len(theirs)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.all_special_ids == theirs.all_special_ids
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.model_max_length == theirs.model_max_length
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        for name in (f"{role}_token", f"{role}_token_id"):
            assert getattr(ours, name) == getattr(theirs, name), name
    tokens = ["<s>", "no such token", *list(ours.get_vocab())[:5]]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.convert_tokens_to_ids("nope") == theirs.convert_tokens_to_ids("nope")
    ids = [0, 1, 2, 30, 10_000]
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(30) == theirs.convert_ids_to_tokens(30)
    assert ours.convert_ids_to_tokens([0, 1, 2, 30], skip_special_tokens=True) == (
        theirs.convert_ids_to_tokens([0, 1, 2, 30], skip_special_tokens=True)
    )


@for_each("kind", KINDS)
@for_each("side", ["left", "right"])
@for_each(
    "options",
    [
        {"padding": True},
        {"padding": "longest", "return_tensors": "pt"},
        {"padding": "max_length", "max_length": 12},
        {"padding": True, "truncation": True, "max_length": 5, "return_tensors": "pt"},
        {"truncation": True, "max_length": 4},
        {"add_special_tokens": False, "truncation": True, "max_length": 4},
        {"return_attention_mask": False},
    ],
)
def test_call_as_the_reference(
    folders: dict[str, Path], kind: str, side: Any, options: dict[str, Any]
) -> None:
    ours, theirs = load_pair(folders[kind])
    for tokenizer in (ours, theirs):
        tokenizer.padding_side = side
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
    for text in (["a", "Hello world, how are you?"], "Hello dog"):
        mine, other = ours(text, **options), theirs(text, **options)
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == torch.int64
                assert torch.equal(value, other[name])
            else:
                assert value == other[name]


def test_files_that_add_and_name_tokens(tmp_path: Path) -> None:
    size = Backend.from_str(tokenizer_json("byte_level")).get_vocab_size()
    decoder = {
        str(size): {"content": "<tool>", "rstrip": True, "special": False},
        str(size + 1): {"content": "<y>", "special": True},
    }
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    config = {
        "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"},
        "pad_token": "<pad>",
        "added_tokens_decoder": {key: {**flags, **entry} for key, entry in decoder.items()},
        "extra_special_tokens": {"image_token": "<img>"},
        "model_max_length": 128,
    }
    ours, theirs = load_pair(save_tokenizer(tmp_path, "byte_level", **config))
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.model_max_length == 128
    ids = ours.encode("a<tool> b<y><pad>c<img>")
    assert ids == theirs.encode("a<tool> b<y><pad>c<img>")
    assert ours.decode(ids, skip_special_tokens=True) == "a<tool>bc"


def test_padding_side_comes_from_the_files_and_is_left_without(tmp_path: Path) -> None:
    assert Tokenizer.from_folder(save_tokenizer(tmp_path, "metaspace")).padding_side == "left"
    folder = save_tokenizer(tmp_path, "metaspace", padding_side="right")
    assert Tokenizer.from_folder(folder).padding_side == "right"


def test_padding_side_of_one_call(byte_level: Tokenizer) -> None:
    encoded = byte_level(["a", "a a"], padding=True, padding_side="right")
    assert encoded.attention_mask[0][-1] == 0
    assert byte_level.padding_side == "left"
    with pytest.raises(InvalidRequestError, match="`padding_side` is 'up'"):
        byte_level.padding_side = "up"  # type: ignore[assignment]


def test_padding_needs_a_token(folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders["byte_fallback"])
    with pytest.raises(InvalidRequestError, match="tokenizer.pad_token = tokenizer.eos_token"):
        tokenizer(["a", "b c"], padding=True)
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token_id == 2
    assert tokenizer(["a", "b c d"], padding=True)["input_ids"][0][0] == 2
    tokenizer.pad_token = None
    assert tokenizer.pad_token_id is None
    tokenizer.pad_token_id = 0
    assert tokenizer.pad_token == "<unk>"


def test_special_tokens_must_exist(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="`pad_token` is '<new>': it is not in the voc"):
        byte_level.pad_token = "<new>"
    with pytest.raises(InvalidRequestError, match="`eos_token_id` is 99999: give an id from 0"):
        byte_level.eos_token_id = 99999
    with pytest.raises(InvalidRequestError, match="use the roles"):
        Tokenizer(byte_level.backend_tokenizer, special_tokens={"end_token": "a"})


def test_decode_accepts_the_output_of_generate(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("Hello world")
    assert byte_level.decode(torch.tensor(ids)) == "Hello world"
    assert byte_level.decode(ids[0]) == byte_level.decode(torch.tensor(ids[0]))
    rows = torch.tensor([ids, ids])
    assert byte_level.batch_decode(rows) == ["Hello world"] * 2
    assert byte_level.batch_decode([rows[0], rows[1]]) == ["Hello world"] * 2
    assert byte_level.batch_decode([ids, ids[:1]]) == ["Hello world", byte_level.decode(ids[:1])]
    assert byte_level.decode([]) == ""


def test_decode_refuses_inputs_other_than_one_row(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="use `batch_decode`"):
        byte_level.decode(torch.tensor([[1, 2]]))
    for bad in ([-1], [1.5], "text", [None]):
        with pytest.raises(InvalidRequestError, match="token_ids"):
            byte_level.decode(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": 5}, "`text` is 5: give a string or a list"),
        ({"text": None}, "`text`"),
        ({"text": [1, 2]}, "`text`"),
        ({"text": "a", "padding": "up"}, "`padding` is 'up'"),
        ({"text": "a", "padding": "max_length"}, "names no length; give `max_length`"),
        ({"text": "a", "return_tensors": "tf"}, "`return_tensors` is 'tf'"),
        ({"text": "a", "max_length": 3}, "`max_length` is 3: add `truncation=True`"),
        ({"text": "a", "max_length": -3, "truncation": True}, "`max_length` is -3"),
        ({"text": "a", "truncation": "longest_first"}, "`truncation`"),
        ({"text": ["a", "a b"], "return_tensors": "pt"}, "add `padding=True`|differ in length"),
        ({"text": [], "return_tensors": "pt"}, "at least one text"),
    ],
)
def test_bad_calls(byte_level: Tokenizer, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        byte_level(**arguments)


@pytest.mark.parametrize("text", ["a\ud800", ["a", "a\udfff"], "a\ud800" + 40_000 * "b"])
def test_half_a_character_is_no_text(byte_level: Tokenizer, text: Any) -> None:
    with pytest.raises(InvalidRequestError, match="`text` is .*lone surrogate at position 1"):
        byte_level(text)


def test_truncation_leaves_room_for_special_tokens(folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders["wordpiece"])
    ids = tokenizer("the quick brown fox", truncation=True, max_length=3).input_ids
    assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id
    with pytest.raises(InvalidRequestError, match="the special tokens alone are 2"):
        tokenizer("the fox", truncation=True, max_length=1)
    tokenizer.truncation_side = "left"
    assert tokenizer("the fox", truncation=True, max_length=3, add_special_tokens=False) == (
        tokenizer("the fox", truncation=True, max_length=3, add_special_tokens=False)
    )


def test_truncation_side(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("Hello world")
    assert byte_level("Hello world", truncation=True, max_length=3).input_ids == ids[:3]
    byte_level.truncation_side = "left"
    assert byte_level("Hello world", truncation=True, max_length=3).input_ids == ids[-3:]


@pytest.mark.parametrize("kind", KINDS)
def test_long_text_is_the_same_and_frees_the_gil(
    pairs: dict[str, tuple[Tokenizer, Any]], kind: str
) -> None:
    ours, theirs = pairs[kind]
    text = "The quick brown fox, don't 漢字 😀. " * 200
    ids = ours.encode_ids(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids)


def test_long_text_uses_batch_encoding(folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders["byte_level"])
    used: list[str] = []
    backend = tokenizer.backend_tokenizer

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            used.append(name)
            return getattr(backend, name)

    tokenizer.backend_tokenizer = Recorder()  # type: ignore[assignment]
    tokenizer.encode_ids("short")
    ids = tokenizer.encode_ids("long " * 2000)
    tokenizer.decode(ids)
    assert used == ["encode", "encode_batch", "decode_batch"]


def test_threads_share_a_tokenizer(byte_level: Tokenizer) -> None:
    text = "Hello world " * 50
    expected = byte_level(text, truncation=True, max_length=20).input_ids
    results: list[list[int]] = []

    def work(length: int) -> None:
        for _ in range(20):
            byte_level(text, truncation=True, max_length=length)
            results.append(byte_level(text, truncation=True, max_length=20).input_ids)

    threads = [threading.Thread(target=work, args=(length,)) for length in (5, 50, 90)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 60


def test_clean_up(folders: dict[str, Path], tmp_path: Path) -> None:
    ours, theirs = load_pair(folders["wordpiece"])
    ids = ours.encode("don't you? I'm fine , isn't it ! you've we're 'quoted' .", True)
    for clean in (True, False, None):
        assert ours.decode(ids, clean_up_tokenization_spaces=clean) == theirs.decode(
            ids, clean_up_tokenization_spaces=clean
        )
    ours, theirs = load_pair(
        save_tokenizer(tmp_path, "wordpiece", clean_up_tokenization_spaces=True)
    )
    assert ours.decode(ids) == theirs.decode(ids) != ours.decode(ids, False, False)


def test_bpe_ignores_clean_up_in_the_tokenizer_file(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, "byte_level", clean_up_tokenization_spaces=True)
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("Hello , world .")
    assert tokenizer.decode(ids) == "Hello , world ."
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=True) == "Hello, world."


def test_prefix_space(folders: dict[str, Path]) -> None:
    folder = folders["byte_level"]
    spaced = Tokenizer.from_folder(folder, add_prefix_space=True)
    assert spaced.encode("dog") == Tokenizer.from_folder(folder).encode(" dog")
    with pytest.raises(InvalidRequestError, match="`add_prefix_space` is True"):
        Tokenizer.from_folder(folders["wordpiece"], add_prefix_space=True)


def test_chat_as_ids_tensors_and_dict(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}{{ eos_token }}{% endfor %}"
    ours, theirs = load_pair(save_tokenizer(tmp_path, "byte_level", chat_template=template))
    messages = [{"role": "user", "content": "Hello"}]
    text = ours.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>Hello<|im_end|>"
    ids = ours.apply_chat_template(messages)
    assert ids == theirs.apply_chat_template(messages, return_dict=False)
    assert ours.apply_chat_template([messages, messages]) == [ids, ids]
    tensor = ours.apply_chat_template(messages, return_tensors="pt")
    assert tensor.tolist() == [ids]
    encoded = ours.apply_chat_template(messages, return_tensors="pt", return_dict=True)
    assert torch.equal(encoded.attention_mask, torch.ones_like(tensor))
    with pytest.raises(InvalidRequestError, match="`return_dict` is True: it needs `tokenize"):
        ours.apply_chat_template(messages, tokenize=False, return_dict=True)


def test_chat_without_a_template(byte_level: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="has no chat template: pass `chat_template=`"):
        byte_level.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.raises(InvalidRequestError, match=r"`conversation\[1\]\[0\].role` is None"):
        byte_level.apply_chat_template(
            [[{"role": "user", "content": "a"}], [{"content": "b"}]], chat_template="x"
        )


def test_repr_names_the_source(byte_level: Tokenizer) -> None:
    assert "byte_level" in repr(byte_level) and "<|im_end|>" in repr(byte_level)
