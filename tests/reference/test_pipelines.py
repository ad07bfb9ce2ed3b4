"""``pipeline`` beside the reference's: the same calls, the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, UnsupportedModelError
from asyncgen.reference.pipelines import TextGenerationPipeline, pipeline
from tests.cases import for_each
from tests.checkpoints.test_saving import FAMILIES
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import SPECIAL, save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = [{"role": "user", "content": "Hi dog"}]
BEGUN = [*CHAT, {"role": "assistant", "content": "The fox"}]
LONG = "Hello world, how are you? " * 12
GREEDY = {"do_sample": False, "max_new_tokens": 3}


def save(folder: Path, kind: str, **config: Any) -> str:
    """A small chat model with a tokenizer of a kind."""
    own: dict[str, Any] = {"vocab_size": 600, "eos_token_id": None}
    save_checkpoint(folder, **own, architectures=["LlamaForCausalLM"], **config)
    files: dict[str, Any] = {"chat_template": TEMPLATE, "model_max_length": 40}
    save_tokenizer(folder, kind, pad_token=SPECIAL[kind]["eos_token"], **files)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chat model, and another one beside it that drafts."""
    path = tmp_path_factory.mktemp("pipeline")
    save(path / "model", "byte_fallback")
    save(path / "draft", "byte_fallback", num_hidden_layers=1)
    return path


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[TextGenerationPipeline, Any]:
    """Ours and the reference's."""
    source = str(folder / "model")
    theirs = transformers.pipeline("text-generation", model=source, device="cpu")
    return pipeline("text-generation", model=source, device="cpu"), theirs


CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": ("Hello world", {}),
    "empty": ("", {}),
    "list": (["Hello world", "def f(x):", "a"], {}),
    "batches": (["Hello world", "def f(x): return", "a"], {"batch_size": 2}),
    "beams": (["Hello", "a"], {"num_beams": 3, "num_return_sequences": 2, "batch_size": 2}),
    "new text": ("Hello world", {"return_full_text": False}),
    "ids": (["Hello world", "a"], {"return_tensors": True}),
    "prefix": ("Hello world", {"prefix": "The fox "}),
    "special tokens": ("<|im_start|>Hello", {"skip_special_tokens": False}),
    "no special tokens": ("<|im_start|>Hello", {"add_special_tokens": False}),
    "cleaned": ("Hello world , n't", {"clean_up_tokenization_spaces": True}),
    "length": ("Hello world", {"max_length": 14, "max_new_tokens": ...}),
    "encoded": (LONG, {"tokenizer_encode_kwargs": {"truncation": True, "max_length": 6}}),
    "hole": (LONG, {"handle_long_generation": "hole"}),
    "chat": (CHAT, {}),
    "chats in a batch": ([CHAT, CHAT * 2], {"batch_size": 2}),
    "begun": (BEGUN, {}),
    "begun, not gone on with": (BEGUN, {"continue_final_message": False}),
    "gone on with": (CHAT, {"continue_final_message": True}),
    "answer": (CHAT, {"return_full_text": False}),
    "chat ids": ([CHAT], {"return_tensors": True}),
    "tools": (CHAT, {"tools": [{"type": "function"}]}),
    "processors": ("Hello", {"repetition_penalty": 5.0, "bad_words_ids": [[5]]}),
    "configuration": ("Hello", {"generation_config": ..., "max_new_tokens": 3}),
}  # fmt: skip


@for_each("name", CALLS)
def test_calls(name: str, pair: tuple[TextGenerationPipeline, Any]) -> None:
    given, options = CALLS[name]
    results = []
    for library, pipe in zip((asyncgen, transformers), pair, strict=True):
        params = {**GREEDY, **options}
        if "generation_config" in params:
            params["generation_config"] = library.GenerationConfig(num_beams=2)
        params = {key: value for key, value in params.items() if value is not ...}
        results.append(pipe(given, **params))
    assert results[0] == results[1]
    torch.manual_seed(3)
    assert pair[0]("Hello", max_new_tokens=2)  # nothing of a call stays


def test_sampled_texts_equal_the_reference(pair: tuple[TextGenerationPipeline, Any]) -> None:
    results = []
    for pipe in pair:
        torch.manual_seed(0)
        results.append(pipe("Hello", max_new_tokens=8))  # samples by itself, at 0.7
        torch.manual_seed(1)
        results[-1] += pipe(["a", "b"], num_return_sequences=3, top_k=5, max_new_tokens=8)
        results[-1] += pipe((text for text in "ab"), max_new_tokens=8)
    assert results[0] == results[1]
    config = pair[0].generation_config
    assert (config.max_new_tokens, config.do_sample, config.temperature) == (256, True, 0.7)


def test_an_iterator(pair: tuple[TextGenerationPipeline, Any]) -> None:
    read: list[str] = []

    def prompts() -> Any:
        for text in ("Hello world", "a", "b"):
            read.append(text)
            yield text

    ours = pair[0](prompts(), **GREEDY)
    assert read == []
    first = next(ours)
    assert read == ["Hello world"]
    assert [first, *ours] == list(pair[1](prompts(), **GREEDY))


def test_options_of_the_pipeline_apply_to_calls(folder: Path) -> None:
    options: dict[str, Any] = {"return_full_text": False, "batch_size": 2, **GREEDY}
    model = asyncgen.load_model(folder / "model", device="cpu")
    tokenizer = asyncgen.load_tokenizer(folder / "model")
    ours = pipeline(model=model, tokenizer=tokenizer, device=-1, **options)
    source = str(folder / "model")
    theirs = transformers.pipeline("text-generation", model=source, device=-1, **options)
    assert ours(["Hello", "a b"]) == theirs(["Hello", "a b"])
    assert ours("Hello", max_new_tokens=2) == theirs("Hello", max_new_tokens=2)
    assert ours.model is model and ours.tokenizer is tokenizer and ours.device.type == "cpu"
    assert model.generation_config.max_new_tokens is None  # the pipeline has its own


def test_an_assistant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, draft = str(folder / "model"), str(folder / "draft")
    ours = pipeline("text-generation", source, assistant_model=draft, torch_dtype=torch.float32)
    assert ours.assistant_model is not None and ours.assistant_tokenizer is None
    theirs = transformers.pipeline(
        "text-generation", model=source, assistant_model=draft, dtype=torch.float32, device="cpu"
    )
    assert ours("Once upon a time, ", **GREEDY) == theirs("Once upon a time, ", **GREEDY)
    helper: asyncgen.PreTrainedModel = asyncgen.load_model(draft, device="cpu")
    loaded = pipeline(model=source, assistant_model=helper, device="cpu")
    assert loaded.assistant_model is helper
    assert loaded(CHAT, **GREEDY) == theirs(CHAT, **GREEDY)
    monkeypatch.setattr(helper.core, "_run", None)
    with pytest.raises(TypeError):  # it does draft
        loaded("Hello", **GREEDY)


def test_a_tokenizer_of_bytes(tmp_path: Path) -> None:
    source = save(tmp_path, "byte_level")
    theirs = transformers.pipeline("text-generation", model=source, device="cpu")
    ours = pipeline("text-generation", model=source, device="cpu")
    given = ["<|im_start|>Hello world", "a"]
    options = {"batch_size": 2, "skip_special_tokens": False, **GREEDY}
    assert ours(given, **options) == theirs(given, **options)
    assert ours(CHAT, **GREEDY) == theirs(CHAT, **GREEDY)


def test_an_assistant_of_another_vocabulary(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_checkpoint(other, vocab_size=600, eos_token_id=None)
    save_tokenizer(other, "metaspace")
    ours = pipeline(model=str(folder / "model"), assistant_model=str(other), device="cpu")
    assert ours.assistant_tokenizer is not None
    alone = pipeline(model=str(folder / "model"), device="cpu")
    assert ours("Hello world", **GREEDY) == alone("Hello world", **GREEDY)


def test_dtypes_and_devices(folder: Path) -> None:
    source = folder / "model"
    given: tuple[dict[str, Any], ...] = (
        {"torch_dtype": "bfloat16"},
        {"dtype": torch.bfloat16, "device_map": "cpu"},
        {"model_kwargs": {"dtype": "bfloat16", "use_cache": True}},
    )
    for options in given:
        assert pipeline(model=source, **options).model.dtype is torch.bfloat16
    model = asyncgen.load_model(source, device="cpu")
    tokenizer = asyncgen.load_tokenizer(source)
    pipe = pipeline(model=model, tokenizer=tokenizer, dtype=torch.float64, device="cpu")
    assert pipe.model is model and model.dtype is torch.float64


@for_each(
    ("options", "message"),
    [
        ({"task": "text2text-generation"}, "`task` is 'text2text-generation': the only one is"),
        ({"model": None}, "`model` is None: name one"),
        ({"device": "cpu", "device_map": "auto"}, "`device_map` is 'auto'"),
        ({"feature_extractor": "x"}, "`feature_extractor` is 'x'"),
        ({"use_fast": False}, "`use_fast` is False"),
        ({"trust_remote_code": True}, "`trust_remote_code` is True"),
        ({"assistant_tokenizer": "demo"}, "`assistant_tokenizer` is 'demo': needs"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"return_text": True, "return_tensors": True}, "contradicts `return_tensors`"),
        ({"return_full_text": False, "return_tensors": True}, "contradicts `return_full_text`"),
    ],
)
def test_pipeline_refuses_unsupported_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        pipeline(**{"model": "demo", **options})


def test_pipeline_call_refuses_wrong_inputs(pair: tuple[TextGenerationPipeline, Any]) -> None:
    pipe = pair[0]
    bad: tuple[tuple[Any, str], ...] = (
        (3, "`text_inputs` is 3: give a text"),
        (None, "`text_inputs` is None"),
        (["a", 3], r"`text_inputs\[1\]` is 3"),
        ([CHAT, [1]], r"`text_inputs\[1\]`"),
        (iter([3]), "`text_inputs` is 3"),
    )
    for given, message in bad:
        with pytest.raises(InvalidRequestError, match=message):
            list(pipe(given, **GREEDY))
    assert pipe([]) == []
    for options, message in (
        ({"handle_long_generation": "cut"}, "`handle_long_generation` is 'cut'"),
        ({"return_full_text": "no"}, "`return_full_text` is 'no'"),
        ({"return_dict_in_generate": True}, "a pipeline returns text"),
        ({"handle_long_generation": "hole", "max_new_tokens": 50}, "leave no room"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            pipe(LONG, **{**GREEDY, **options})
    with pytest.raises(ValueError, match="bogus"):
        pipe("Hello", bogus=3, **GREEDY)


def test_models_that_have_no_such_thing(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, **FAMILIES["t5"])
    save_tokenizer(tmp_path, "metaspace")
    with pytest.raises(UnsupportedModelError, match="AutoModelForSeq2SeqLM"):
        pipeline(model=tmp_path)
    model = asyncgen.load_model(tmp_path)
    with pytest.raises(InvalidRequestError, match="`tokenizer` is None: a model object"):
        pipeline(model=model)
    with pytest.raises(UnsupportedModelError, match="has an encoder"):
        pipeline(model=model, tokenizer=tmp_path)
    own: Any = {"model": model, "tokenizer": tmp_path}
    for name in ("config", "model_kwargs"):
        with pytest.raises(InvalidRequestError, match=f"`{name}` is .*loaded already"):
            pipeline(**{**own, name: {}})


def test_padding_without_a_token(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, vocab_size=600, eos_token_id=None)
    save_tokenizer(tmp_path, "byte_fallback")
    greedy: dict[str, Any] = GREEDY
    pipe = pipeline(model=tmp_path, device="cpu", **greedy)
    assert len(pipe(["Hello", "a b c"])) == 2
    with pytest.raises(InvalidRequestError, match=r"set `pipe.tokenizer.pad_token`"):
        pipe(["Hello", "a b c"], batch_size=2)


def test_stop_sequences(pair: tuple[TextGenerationPipeline, Any]) -> None:
    ours, theirs = pair
    plain = ours("Hello world", max_new_tokens=12, do_sample=False, return_full_text=False)
    text = plain[0]["generated_text"]
    stop = next(letter for letter in text if letter.isascii() and letter.isprintable())
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    found = ours("Hello world", stop_sequence=stop, **options)
    assert found == theirs("Hello world", stop_strings=stop, tokenizer=theirs.tokenizer, **options)
    assert stop in found[0]["generated_text"] and len(found[0]["generated_text"]) < len(text)
    assert found == ours("Hello world", stop_strings=[stop], **options)


def test_default_temperature_of_0_is_greedy(folder: Path) -> None:
    source = str(folder / "model")
    expected = pipeline("text-generation", model=source)("Hello world", **GREEDY)
    model = asyncgen.AutoModelForCausalLM.from_pretrained(source)
    model.generation_config.temperature = 0.0
    tokenizer = asyncgen.AutoTokenizer.from_pretrained(source)
    cold = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert cold("Hello world", max_new_tokens=3) == expected
    assert (
        cold("Hello world", max_new_tokens=3, do_sample=True, temperature=0.5, top_k=1) == expected
    )
    with pytest.raises(InvalidRequestError, match="`temperature` is 0.0"):
        cold("Hello world", max_new_tokens=3, do_sample=True)
