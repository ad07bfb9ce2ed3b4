"""Laws that hold for every strategy there is, in both doors."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.llm.llm import AsyncLLM
from tests.cases import for_each, on_asyncio
from tests.doubles.engine import no_thread_left
from tests.doubles.models import EOS, byte_tokenizer
from tests.doubles.strategies import CASES, Case, check_complete, options_of, tiny_model

if TYPE_CHECKING:
    from asyncgen.reference.load_model import PreTrainedModel

__all__ = ["no_thread_left"]

PROMPT = list(b"abcabcab")
NEW = 14

every = pytest.mark.parametrize("case", CASES, ids=str)
linear = pytest.mark.parametrize("case", [case for case in CASES if case.is_linear], ids=str)
certain = pytest.mark.parametrize(
    "case", [case for case in CASES if case.is_linear and not case.is_sampled], ids=str
)


@cache
def shared() -> PreTrainedModel:
    """One model for all; nothing here changes it."""
    return tiny_model()


def run(case: Case, ids: list[list[int]] | torch.Tensor, **options: Any) -> torch.Tensor:
    """Drain ``model.generate`` with a seed."""
    torch.manual_seed(5)
    given = {"max_new_tokens": NEW, **options_of(case), **options}
    model: Any = shared()
    found: torch.Tensor = model.generate(torch.as_tensor(ids), **given)
    return found


def open_llm() -> AsyncLLM:
    return AsyncLLM(shared(), tokenizer=byte_tokenizer())


class Puts:
    """A streamer that keeps what it gets, and cancels after so many puts."""

    def __init__(self, limit: int | None = None) -> None:
        self.ids: list[int] = []
        self.cancelled = CancelCriteria()
        self._limit = limit
        self._puts = 0

    def put(self, value: torch.Tensor) -> None:
        self.ids += value.flatten().tolist()
        self._puts += 1
        if self._puts == self._limit:
            self.cancelled.set()

    def end(self) -> None:
        """Nothing to do."""


def test_every_strategy_is_here() -> None:
    check_complete()


@pytest.mark.anyio
@on_asyncio
@every
async def test_a_joined_stream_is_the_answer(case: Case) -> None:
    params: dict[str, Any] = {"max_new_tokens": NEW, "seed": 3, **case.make()}
    async with open_llm() as llm:
        text = ""
        ids: list[int] = []
        stream = llm.stream(PROMPT, **params)
        async for event in stream.events():
            text += event.text
            ids += event.token_ids
        completion = await llm.generate(PROMPT, **params)
    assert text == completion.text == stream.result.text
    assert ids == list(completion.token_ids)
    assert text == byte_tokenizer().decode(ids, skip_special_tokens=True)
    if not case.is_sampled:
        assert run(case, [PROMPT])[0, len(PROMPT) :].tolist() == ids


@every
def test_streamed_tokens_equal_the_returned_ones(case: Case) -> None:
    streamer = Puts()
    assert run(case, [PROMPT], streamer=streamer)[0].tolist() == streamer.ids


@pytest.mark.anyio
@on_asyncio
@every
async def test_cancelled_anywhere_leaves_a_prefix(case: Case) -> None:
    params: dict[str, Any] = {"max_new_tokens": NEW, "seed": 3, **case.make()}
    async with open_llm() as llm:
        whole = list((await llm.generate(PROMPT, **params)).token_ids)
        for count in range(NEW):
            ids: list[int] = []
            async with llm.stream(PROMPT, **params) as stream:
                async for event in stream.events():
                    ids += event.token_ids
                    if len(ids) > count:
                        break
            assert ids == whole[: len(ids)]
            kept = list(stream.result.token_ids)
            assert kept[: len(ids)] == ids and kept == whole[: len(kept)]


@linear
def test_a_cancelled_call_leaves_a_prefix(case: Case) -> None:
    whole = run(case, [PROMPT])[0].tolist()
    for puts in range(1, 6):
        streamer = Puts(puts)
        found = run(case, [PROMPT], streamer=streamer)[0].tolist()
        assert found == streamer.ids == whole[: len(found)]
        assert len(found) <= len(whole)


@pytest.mark.parametrize(
    "case", [case for case in CASES if "assisted" in case.mode and not case.is_sampled], ids=str
)
def test_greedy_drafts_change_no_token(case: Case) -> None:
    greedy = CASES[0]
    for prompt in (PROMPT, [7], list(b"xyxyxyx")):
        found = run(case, [prompt], max_new_tokens=40)
        assert found.tolist() == run(greedy, [prompt], max_new_tokens=40).tolist()


@certain
def test_far_past_the_first_room_of_a_cache(case: Case) -> None:
    whole = run(case, [PROMPT], max_new_tokens=150)
    ids = torch.tensor([PROMPT])
    for _ in range(3):
        ids = run(case, ids, max_new_tokens=50)
    assert ids.tolist() == whole.tolist()


@linear
def test_the_first_of_several_end_tokens_ends(case: Case) -> None:
    whole = run(case, [PROMPT])[0].tolist()
    new = whole[len(PROMPT) :]
    ends = {new[9], new[5], 259}
    place = next(place for place, token in enumerate(new) if token in ends)
    found = run(case, [PROMPT], eos_token_id=sorted(ends))[0].tolist()
    if case.is_sampled and "assisted" in case.mode:
        # A draft stops at an end token, so the numbers of chance fall to other tokens.
        assert not ends & set(found[len(PROMPT) : -1])
        return
    assert found == whole[: len(PROMPT) + place + 1]


@for_each(
    "case",
    [case for case in CASES if case.takes_rows and case.is_rowwise and not case.is_sampled],
    ids=str,
)
def test_a_padded_row_is_the_row_alone(case: Case) -> None:
    rows = [PROMPT, list(b"xyz"), list(b"hello")]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    found = run(case, ids, attention_mask=mask)
    for row, together in zip(rows, found[:, width:].tolist(), strict=True):
        alone = run(case, [row])[0, len(row) :].tolist()
        assert together[: len(alone)] == alone
        assert set(together[len(alone) :]) <= {257}


@every
def test_several_sequences_of_a_prompt(case: Case) -> None:
    wanted = {"num_return_sequences": 3}
    if case.takes_rows and (case.is_sampled or not case.is_linear):
        found = run(case, [PROMPT, PROMPT], **wanted)
        assert found.shape[0] == 6
        assert len({tuple(row) for row in found.tolist()}) > 1
    else:
        with pytest.raises(InvalidRequestError, match="num_return_sequences"):
            run(case, [PROMPT], **wanted)


@certain
def test_a_cache_is_passed_on(case: Case) -> None:
    ids, cache = torch.tensor([PROMPT]), DynamicCache()
    for turn in range(3):
        expected = run(case, ids)
        if turn and "contrastive" in case.mode:
            # It needs the hidden states of the whole prompt, which no cache has.
            with pytest.raises(InvalidRequestError, match="past_key_values"):
                run(case, ids, past_key_values=cache)
            return
        found = run(case, ids, past_key_values=cache)
        assert found.tolist() == expected.tolist()
        assert cache.get_seq_length() == expected.shape[1] - 1
        ids = torch.cat((expected, torch.tensor([[100 + turn, 9]])), dim=1)


@certain
@pytest.mark.parametrize("name", ["offloaded", "static", "sliding_window", "hybrid"])
def test_a_cache_by_name_changes_no_token(case: Case, name: str) -> None:
    if name == "offloaded" or case.mode in ("greedy_search", "dola_generation"):
        if name != "sliding_window":  # which needs a model with windows
            found = run(case, [PROMPT], cache_implementation=name)
            assert found.tolist() == run(case, [PROMPT]).tolist()
            return
    with pytest.raises(InvalidRequestError, match="cache_implementation"):
        run(case, [PROMPT], cache_implementation=name)


@pytest.mark.gate
@for_each("chunk", [None, 5])
@for_each("name", ["sliding_window", "hybrid", "offloaded_hybrid"])
def test_a_window_is_all_that_a_sliding_model_needs(name: str, chunk: int | None) -> None:
    model: Any = tiny_model(4, model_type="mistral", sliding_window=6)
    ids = torch.randint(0, 250, (2, 90), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :70] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 160, "eos_token_id": EOS}
    expected = model.generate(ids, **options)
    found = model.generate(
        ids,
        cache_implementation=name,
        prefill_chunk_size=chunk,
        return_dict_in_generate=True,
        **options,
    )
    assert found.sequences.tolist() == expected.tolist()
    keys = found.past_key_values.layers[0].keys
    assert keys.shape[2] <= 6 + 64
    # And on: the cache is passed to the next call.
    longer = torch.cat((expected, expected[:, -3:]), dim=1)
    options["attention_mask"] = torch.nn.functional.pad(
        mask, (0, longer.shape[1] - mask.shape[1]), value=1
    )
    again = model.generate(longer, past_key_values=found.past_key_values, **options)
    assert again.tolist() == model.generate(longer, **options).tolist()
