"""Combine every strategy with every other parameter: it takes effect, or is refused."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError, InvalidScoresError
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.llm.llm import AsyncLLM
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each, on_asyncio
from tests.doubles.engine import no_thread_left
from tests.doubles.models import byte_tokenizer
from tests.doubles.strategies import CASES, Case, options_of, tiny_model
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from asyncgen.reference.load_model import PreTrainedModel

__all__ = ["no_thread_left"]

PROMPT = list(b"abcabcab")
NEW = 12
every = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def shared() -> PreTrainedModel:
    return tiny_model()


def run(case: Case, **options: Any) -> Any:
    torch.manual_seed(5)
    given = {"max_new_tokens": NEW, **options_of(case), **options}
    return shared().generate(torch.tensor([PROMPT]), **given)


def only_even(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A processor as users write them, in place."""
    scores[:, 1::2] = -torch.inf
    return scores


class AfterFive:
    """A criterion as users write them."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Tell whether five tokens were generated, bool ``[B]``."""
        return torch.full((len(input_ids),), input_ids.shape[1] >= len(PROMPT) + 5)


ADDED: dict[str, Callable[[], dict[str, Any]]] = {
    "guidance": lambda: {"guidance_scale": 2.5},
    "negative prompt": lambda: {
        "guidance_scale": 2.5,
        "negative_prompt_ids": torch.tensor([[9, 8, 7]]),
    },
    "watermark": lambda: {"watermarking_config": {"bias": 30.0}},
    "self-hashed": lambda: {
        "watermarking_config": {"bias": 30.0, "seeding_scheme": "selfhash", "context_width": 2}
    },
    "synthid": lambda: {"watermarking_config": {"keys": [1, 2, 3, 4], "ngram_len": 3}},
    "processor": lambda: {"logits_processor": LogitsProcessorList([only_even])},
    "criterion": lambda: {"stopping_criteria": StoppingCriteriaList([AfterFive()])},
}


REFUSED = {("beam groups", added) for added in ("guidance", "negative prompt", "synthid")}
"""What remembers its last call does not go with groups, which are processed in turn."""

COMBINED = [
    pytest.param(case, added, id=f"{added}-{case}")
    for case in CASES
    for added in ADDED
    if (str(case), added) not in REFUSED
]


@pytest.mark.parametrize(("name", "added"), sorted(REFUSED))
def test_it_is_refused_by_name(name: str, added: str) -> None:
    case = next(case for case in CASES if str(case) == name)
    with pytest.raises(InvalidRequestError, match="num_beam_groups"):
        run(case, **ADDED[added]())


@pytest.mark.gate
@for_each(("case", "added"), COMBINED)
def test_it_has_its_effect(case: Case, added: str) -> None:
    plain = run(case)[0].tolist()
    found = run(case, **ADDED[added]())[0].tolist()
    assert found != plain
    new = found[len(PROMPT) :]
    if added == "processor" and str(case) != "constrained beams":  # its words come all the same
        assert not any(token % 2 for token in new)
    if added == "criterion":
        # Behind what did not end by itself these two write an end, as they always did.
        writes_end = str(case) in ("beam groups", "constrained beams")
        assert len(new) == 5 + writes_end
        if not case.is_sampled and case.is_linear:
            assert found == plain[: len(found)]


@for_each(
    "case", [case for case in CASES if "assisted" in case.mode and not case.is_sampled], ids=str
)
@for_each("added", ADDED)
def test_drafts_change_nothing_of_it(case: Case, added: str) -> None:
    greedy = CASES[0]
    assert run(case, **ADDED[added]()).tolist() == run(greedy, **ADDED[added]()).tolist()


@pytest.mark.gate
@pytest.mark.anyio
@on_asyncio
@for_each(("case", "added"), COMBINED)
async def test_a_stream_gives_the_same(case: Case, added: str) -> None:
    params: dict[str, Any] = {"max_new_tokens": NEW, "seed": 3, **case.make(), **ADDED[added]()}
    async with AsyncLLM(shared(), tokenizer=byte_tokenizer()) as llm:
        ids: list[int] = []
        async with llm.stream(PROMPT, **params) as stream:
            async for event in stream.events():
                ids += event.token_ids
        again = await llm.generate(PROMPT, **params)
    assert ids == list(again.token_ids)
    if not case.is_sampled:
        assert run(case, **ADDED[added]())[0, len(PROMPT) :].tolist() == ids


def nothing(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Bans everything after two tokens."""
    return scores.fill_(-torch.inf) if input_ids.shape[1] >= len(PROMPT) + 2 else scores


def no_number(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Gives NaN after two tokens."""
    return scores * torch.nan if input_ids.shape[1] >= len(PROMPT) + 2 else scores


def narrow(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Another shape after two tokens."""
    return scores[:, :-1] if input_ids.shape[1] >= len(PROMPT) + 2 else scores


BROKEN = [nothing, no_number, narrow]


@every
@pytest.mark.parametrize("processor", BROKEN)
def test_a_broken_processor_is_named(case: Case, processor: Any) -> None:
    with pytest.raises(InvalidScoresError, match=processor.__name__) as caught:
        run(case, logits_processor=LogitsProcessorList([processor]))
    assert caught.value.processor == processor.__name__


@every
def test_a_broken_processor_of_ours_is_named(case: Case) -> None:
    with pytest.raises(InvalidScoresError, match="SuppressTokensLogitsProcessor"):
        run(case, suppress_tokens=list(range(260)))


@pytest.mark.anyio
@on_asyncio
@every
@pytest.mark.parametrize("processor", BROKEN)
async def test_other_streams_go_on(case: Case, processor: Any) -> None:
    broken = {**case.make(), "logits_processor": LogitsProcessorList([processor])}
    async with AsyncLLM(shared(), tokenizer=byte_tokenizer()) as llm:
        alone = list((await llm.generate(b"xyz".decode(), max_new_tokens=NEW)).token_ids)
        async with llm.stream("xyz", max_new_tokens=NEW) as other:
            events = other.events()
            ids = list((await anext(events)).token_ids)
            with pytest.raises(InvalidScoresError, match=processor.__name__):
                await llm.generate(PROMPT, max_new_tokens=NEW, seed=1, **broken)
            ids += [token async for event in events for token in event.token_ids]
    assert ids == alone


def last_token(
    model: Any, input_ids: Tensor, *, logits_processor: Any, generation_config: Any, **_: Any
) -> Any:
    """A method of a user's: greedy, by hand."""
    while True:
        logits = model(input_ids).logits[:, -1].float()
        tokens = logits_processor(input_ids, logits).argmax(-1)
        yield tokens
        input_ids = torch.cat((input_ids, tokens[:, None]), dim=1)


@for_each("added", ADDED)
def test_a_method_of_the_users_gets_it(added: str) -> None:
    greedy = CASES[0]
    expected = run(greedy, **ADDED[added]())
    found = run(greedy, custom_generate=last_token, **ADDED[added]())
    assert found.tolist() == expected.tolist()


@for_each("case", [case for case in CASES if case.name not in ("greedy", "sampling")], ids=str)
def test_a_method_of_the_users_takes_the_place_of_a_strategy(case: Case) -> None:
    """As in the reference: the method decides, and gets the configuration."""
    if "assistant_model" in case.make():
        with pytest.raises(InvalidRequestError, match="assistant_model"):
            run(case, custom_generate=last_token)
        return
    found = run(case, custom_generate=last_token)
    assert found[0].tolist() == run(CASES[0])[0].tolist()


def with_helper(model: Any, input_ids: Tensor, assistant_model: Any = None, **_: Any) -> Tensor:
    """A method that takes the draft model."""
    assert assistant_model is not None
    return torch.cat((input_ids, input_ids[:, :1]), dim=1)


@pytest.mark.anyio
async def test_a_method_may_take_the_draft_model() -> None:
    helper = tiny_model(3)
    found = run(CASES[0], custom_generate=with_helper, assistant_model=helper)
    assert found.tolist() == [[*PROMPT, PROMPT[0]]]
    async with AsyncLLM(shared(), tokenizer=byte_tokenizer()) as llm:
        params: dict[str, Any] = {"max_new_tokens": 4, "assistant_model": helper}
        completion = await llm.generate(PROMPT, custom_generate=with_helper, **params)
        assert list(completion.token_ids) == PROMPT[:1]
        with pytest.raises(InvalidRequestError, match="assistant_model"):
            await llm.generate(PROMPT, custom_generate=last_token, **params)


@pytest.mark.anyio
async def test_custom_method_continues_after_a_healed_prompt(tmp_path: Path) -> None:
    words = Tokenizer.from_folder(save_tokenizer(tmp_path, "byte_level"))
    model: Any = tiny_model(vocab_size=len(words))
    text = "hello wor"
    ids = torch.tensor([words.encode(text)])
    options: dict[str, Any] = {"max_new_tokens": 6, "token_healing": True, "eos_token_id": 0}
    expected = model.generate(ids, tokenizer=words, **options)
    found = model.generate(ids, tokenizer=words, custom_generate=last_token, **options)
    assert found.tolist() == expected.tolist()
    async with AsyncLLM(model, tokenizer=words) as llm:
        plain = await llm.generate(text, **options)
        custom = await llm.generate(text, custom_generate=last_token, **options)
    assert custom.token_ids == plain.token_ids
    assert custom.text == plain.text


@every
def test_a_healed_prompt(case: Case) -> None:
    # No byte begins another, so nothing is chosen anew: the tokens stay.
    options = {"token_healing": True, "tokenizer": byte_tokenizer()}
    assert run(case, **options).tolist() == run(case).tolist()
