"""A module of torch that a user wrote generates with the mixin as with that of the reference."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

import asyncgen
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each
from tests.doubles.written_models import make

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 4]])
MASK = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])

KINDS = ["plain", "hooked", "whole", "own"]

CALLS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "without a cache": {"use_cache": False},
    "sampling": {"do_sample": True, "top_k": 7, "temperature": 1.3},
    "samples": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams without a cache": {"num_beams": 3, "use_cache": False},
    "sampled beams": {"num_beams": 2, "do_sample": True, "length_penalty": 0.5},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
    "guidance": {"guidance_scale": 1.5},
    "an end": {"eos_token_id": [3, 17, 10], "max_new_tokens": 12},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Both libraries tell of defaults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def both(kind: str) -> tuple[Any, Any]:
    """The same module in either library."""
    return make(asyncgen, kind), make(transformers, kind)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_scores_are_those_of_the_reference(kind: str) -> None:
    models = both(kind)
    for name, call in CALLS.items():
        found = []
        for model in models:
            torch.manual_seed(1)
            wanted = {"max_new_tokens": 7, "return_dict_in_generate": True, "output_scores": True}
            found.append(model.generate(IDS, attention_mask=MASK, **{**wanted, **call}))
        ours, theirs = found
        assert torch.equal(ours.sequences, theirs.sequences), name
        for one, other in zip(ours.scores, theirs.scores, strict=True):
            torch.testing.assert_close(one, other, msg=name)


@pytest.mark.filterwarnings("ignore")
@for_each("kind", ["plain", "hooked"])
def test_drafts_by_prompt_lookup_are_checked_by_the_model(kind: str) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
    ours, theirs = (
        model.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=9) for model in both(kind)
    )
    assert torch.equal(ours, theirs)


def test_drafts_need_no_cache_where_the_model_has_none() -> None:
    """The reference cannot draft for it: it crops the cache, and there is none."""
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
    model = make(asyncgen, "whole")
    drafted = model.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=9)
    assert torch.equal(drafted, model.generate(ids, max_new_tokens=9))


@pytest.mark.filterwarnings("ignore")
@for_each("kind", ["plain", "hooked"])
def test_a_cache_is_continued(kind: str) -> None:
    found = []
    for model in both(kind):
        first = model.generate(IDS[:1], max_new_tokens=4, return_dict_in_generate=True)
        more = torch.cat((first.sequences, torch.tensor([[9, 4]])), dim=1)
        past = first.past_key_values
        found.append(model.generate(more, past_key_values=past, max_new_tokens=4).tolist())
    assert found[0] == found[1]


@for_each("call", CALLS.values())
def test_a_forward_that_names_what_it_needs_gets_no_more(call: dict[str, Any]) -> None:
    """The reference hands every such module further keywords, so there it has to take them."""
    found = []
    for kind in ("plain", "strict"):
        torch.manual_seed(2)
        model = make(asyncgen, kind)
        found.append(model.generate(IDS, attention_mask=MASK, **{"max_new_tokens": 7, **call}))
    assert torch.equal(*found)


def test_it_streams_and_its_hook_is_asked_in_every_step() -> None:
    class Streamer(asyncgen.BaseStreamer):
        """Keeps what it gets."""

        def __init__(self) -> None:
            self.tokens: list[list[int]] = []

        def put(self, value: torch.Tensor) -> None:
            self.tokens.append(value.flatten().tolist())

        def end(self) -> None:
            self.tokens.append([])

    model, streamer = make(asyncgen, "hooked"), Streamer()
    ids = model.generate(IDS[:1], streamer=streamer, max_new_tokens=5)
    assert [*IDS[:1].tolist(), *([one] for one in ids[0, 4:].tolist()), []] == streamer.tokens
    assert model.asked == 5
    assert all(weight.grad is None for weight in model.parameters()) and not ids.requires_grad


def test_a_method_of_the_users_gets_the_model_that_he_wrote() -> None:
    model = make(asyncgen, "plain")

    def method(model: Any, input_ids: torch.Tensor, **_: Any) -> tuple[Any, torch.Tensor]:
        return model, input_ids

    found, ids = model.generate(IDS, custom_generate=method, max_new_tokens=3)
    assert found is model and torch.equal(ids, IDS)


def test_a_model_without_its_own_generation_config_has_the_ends_of_its_config() -> None:
    model = make(asyncgen, "plain")
    with_one = model.generate(IDS[:1], max_new_tokens=9)
    del model.generation_config
    model.config.eos_token_id = 3
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=9), with_one)
    model.config.eos_token_id = int(with_one[0, 6])
    assert model.generate(IDS[:1], max_new_tokens=9).tolist()[0] == with_one[0, :7].tolist()


@for_each(
    ("kind", "call", "message"),
    [
        ("plain", {"cache_implementation": "static"}, "`cache_implementation` is 'static'"),
        ("plain", {"penalty_alpha": 0.6, "top_k": 4}, "`penalty_alpha` is 0.6"),
        ("strict", {"position_ids": torch.arange(4)[None]}, "`Strict.forward` has no parameter"),
        ("hooked", {"inputs_embeds": torch.zeros(1, 4, 16)}, "`inputs_embeds` is 'Hooked'"),
        ("own", {"prompt_lookup_num_tokens": 2}, "'Sums'.* no `crop"),
        ("plain", {"max_new_tokenz": 3}, "max_new_tokenz"),
    ],
)
def test_what_a_users_model_cannot_do_is_refused_by_name(
    kind: str, call: dict[str, Any], message: str
) -> None:
    ids = None if "inputs_embeds" in call else torch.tensor([[5, 6, 5, 6]])
    with pytest.raises(ValueError, match=message):
        make(asyncgen, kind).generate(ids, **{"max_new_tokens": 4, **call})


class Sums(torch.nn.Module, asyncgen.GenerationMixin):
    """A model whose logits follow from all ids; `returned` says what comes back as its cache."""

    main_input_name = "input_ids"

    def __init__(self, returned: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.returned = torch.nn.Embedding(40, 40), returned
        self.config = SimpleNamespace(vocab_size=40, is_encoder_decoder=False)
        self.generation_config = asyncgen.GenerationConfig(pad_token_id=0)

    def forward(self, input_ids: Any, past_key_values: Any = None, **_: Any) -> Any:
        logits = self.table(input_ids).cumsum(1)
        return SimpleNamespace(logits=logits, past_key_values=self.returned)


def test_cache_that_is_taken_and_left_empty_is_refused() -> None:
    model: Any = Sums(None)
    with pytest.raises(InvalidRequestError, match="left it empty"):
        model.generate(IDS[:1], max_new_tokens=4)
    assert model.generate(IDS[:1], max_new_tokens=4, use_cache=False).shape == (1, 8)


def test_beams_over_a_cache_that_cannot_change_rows_are_refused() -> None:
    model: Any = Sums((torch.zeros(1),))
    with pytest.raises(InvalidRequestError, match="no `reorder_cache"):
        model.generate(IDS[:1], max_new_tokens=4, num_beams=2)


def test_the_number_of_tokens_is_asked_for_by_name() -> None:
    model = make(asyncgen, "plain")
    del model.config.vocab_size
    with pytest.raises(InvalidRequestError, match="`model.config.vocab_size` is None"):
        model.generate(IDS, max_new_tokens=3)


def test_an_engine_streams_from_it() -> None:
    model = make(asyncgen, "plain")
    expected = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=6)[0, 3:].tolist()
    del model.device
    with asyncgen.LLM(model, tokenizer=asyncgen.load_tokenizer("demo")) as llm:
        answer = llm.generate([5, 6, 7], max_new_tokens=6, do_sample=False)
        events = list(llm.stream([5, 6, 7], max_new_tokens=6, do_sample=False))
    assert list(answer.token_ids) == expected
    assert "".join(map(str, events)) == answer.text
