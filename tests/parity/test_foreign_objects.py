"""`AsyncLLM(model, tokenizer=tokenizer)` with objects of transformers, and of `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.text.foreign_tokenizer import own_tokenizer
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

transformers = pytest.importorskip("transformers", "5.23")

DEMO = Path(asyncgen.__file__).parent / "demo"
STORY = "Once upon a time"
TURN = [{"role": "user", "content": "What is 3 + 4?"}]
SHORT: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture(scope="module")
def theirs() -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def llm(theirs: tuple[Any, Any]) -> Iterator[asyncgen.LLM]:
    with asyncgen.LLM(theirs[0], tokenizer=theirs[1]) as found:
        yield found


def expected_texts(theirs: tuple[Any, Any], ids: torch.Tensor, **options: Any) -> list[str]:
    found = theirs[0].generate(ids, attention_mask=torch.ones_like(ids), **{**SHORT, **options})
    texts = theirs[1].batch_decode(found[:, ids.shape[1] :], skip_special_tokens=True)
    return list(texts)


@for_each("options", [{}, {"repetition_penalty": 1.4}, {"num_beams": 3}, {"num_beams": 3, "n": 2}])
def test_text_of_both_is_that_of_transformers(
    theirs: tuple[Any, Any], llm: asyncgen.LLM, options: dict[str, Any]
) -> None:
    ids = theirs[1](STORY, return_tensors="pt")["input_ids"]
    same = {name if name != "n" else "num_return_sequences": at for name, at in options.items()}
    found = llm.generate(STORY, **SHORT, **options)
    assert [sample.text for sample in found.samples] == expected_texts(theirs, ids, **same)


def test_messages_pass_the_template_of_the_object(
    theirs: tuple[Any, Any], llm: asyncgen.LLM
) -> None:
    prompt = theirs[1].apply_chat_template(
        TURN, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert [llm.generate(TURN, **SHORT).text] == expected_texts(theirs, prompt["input_ids"])
    assert llm.count_tokens(TURN) == prompt["input_ids"].shape[1]


@for_each("options", [{"num_beams": 2}, {"num_beams": 3, "n": 3}, {"temperature": 0, "n": 2}])
def test_sequences_of_a_model_with_an_encoder_are_whole(
    theirs: tuple[Any, Any], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    ends = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.T5Config(vocab_size=len(theirs[1]), **sizes, **ends)
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids = theirs[1](STORY, return_tensors="pt")["input_ids"]
    rows = options.get("n", 1)
    same = {name: at for name, at in options.items() if name == "num_beams"}
    same["num_return_sequences"] = rows if same else 1
    expected = model.generate(ids, max_new_tokens=5, **same)[:, 1:].tolist()
    with asyncgen.LLM(model, tokenizer=theirs[1]) as llm:
        found = llm.generate(STORY, max_new_tokens=5, **options)
    expected = expected if "num_beams" in options else expected * rows
    assert [list(sample.token_ids) for sample in found.samples] == expected
    assert found.finish_reason == "length"


def test_samples_at_temperature_0_are_equal(llm: asyncgen.LLM) -> None:
    one = llm.generate(STORY, **SHORT).text
    found = llm.generate(STORY, max_new_tokens=12, temperature=0, n=3)
    assert [sample.text for sample in found.samples] == [one] * 3


def test_streamer_of_transformers_is_fed(
    theirs: tuple[Any, Any], llm: asyncgen.LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = transformers.TextStreamer(theirs[1], skip_prompt=True)
    text = llm.generate(STORY, streamer=streamer, **SHORT).text
    assert capsys.readouterr().out.strip() == text.strip()


@pytest.mark.anyio
async def test_stream_of_both_stops_when_it_is_left(theirs: tuple[Any, Any]) -> None:
    async with asyncgen.AsyncLLM(theirs[0], tokenizer=theirs[1]) as llm:
        async with llm.stream(STORY, max_new_tokens=400, seed=1) as stream:
            async for _ in stream:
                break
        assert stream.result.finish_reason == "cancelled"
        assert (await llm.generate(TURN, **SHORT)).text


def test_tokenizer_objects_serve_a_model_of_ours(theirs: tuple[Any, Any]) -> None:
    with asyncgen.LLM("demo") as plain, asyncgen.LLM("demo", tokenizer=theirs[1]) as mixed:
        for prompt in (STORY, TURN):
            assert mixed.generate(prompt, **SHORT).text == plain.generate(prompt, **SHORT).text
        answer = mixed.generate(STORY, json_object=True, max_new_tokens=60, seed=1)
        assert answer.text.startswith("{")


def test_pipeline_takes_both_objects(theirs: tuple[Any, Any]) -> None:
    expected = transformers.pipeline("text-generation", model=theirs[0], tokenizer=theirs[1])
    found = asyncgen.pipeline("text-generation", model=theirs[0], tokenizer=theirs[1])
    for prompt in (STORY, TURN):
        assert found(prompt, **SHORT) == expected(prompt, **SHORT)


def test_template_that_was_set_on_the_object_is_used(theirs: tuple[Any, Any]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    tokenizer.chat_template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    taken = own_tokenizer(tokenizer)
    assert taken.apply_chat_template(TURN, tokenize=False) == "[What is 3 + 4?]"
    assert taken.all_special_tokens == tokenizer.all_special_tokens
    assert taken.encode_ids("a <extra> b") == tokenizer.encode("a <extra> b")


def test_backend_of_tokenizers_is_taken() -> None:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(DEMO / "tokenizer.json"))
    assert own_tokenizer(backend).encode_ids(STORY) == backend.encode(STORY).ids


def test_what_is_no_tokenizer_is_refused_by_name() -> None:
    class Unsaveable:
        def save_pretrained(self, folder: str) -> None:
            raise NotImplementedError("no files")

    with pytest.raises(InvalidRequestError, match="`tokenizer` is 'function'"):
        own_tokenizer(own_tokenizer)
    with pytest.raises(ModelLoadError, match="Unsaveable cannot be taken over: no files"):
        own_tokenizer(Unsaveable())


def test_beams_that_are_cut_off_say_so(llm: asyncgen.LLM) -> None:
    """A request that was cancelled, or whose time is over, has not come to its end."""

    class Cancelling(asyncgen.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > length + 4:
                stream.cancel()
            return scores

    length = llm.count_tokens(STORY)
    stream = llm.stream(STORY, max_new_tokens=200, num_beams=2, logits_processor=[Cancelling()])
    with stream:
        for _ in stream:
            pass
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"
    timed = llm.generate(STORY, max_new_tokens=500, num_beams=2, max_time=0.05)
    assert timed.finish_reason == "time"
