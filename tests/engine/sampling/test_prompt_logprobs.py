"""Log-probabilities of prompts, beside streams, are those of transformers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen import native
from asyncgen.engine.sampling import prompt_logprobs as prompt_scores
from asyncgen.engine.sampling.prompt_logprobs import PromptLogprobs
from asyncgen.errors import ContextLengthError, InvalidRequestError, InvalidScoresError
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer
from tests.engine.batches import Bench, ids_of
from tests.models.build import random_pair

if TYPE_CHECKING:
    from asyncgen.types import TokenLogprob
    from tests.doubles.sinks import RecordingSink

POSITION = 2 * 3 * 2 * 8 * 4
"""Bytes of a position: keys and values, layers, heads, their size, float32."""


FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {},
    "gpt2": {},
    "mamba": {"state_size": 5, "time_step_rank": 2},
}
TEXTS = [byte_tokenizer().decode([number]) for number in range(97)]


@pytest.fixture(scope="module")
def pair() -> Any:
    return random_pair("llama")


def told(sink: RecordingSink) -> tuple[TokenLogprob | None, ...] | None:
    """The entries of a prompt, which come with the first event and no other."""
    first, *others = [event.prompt_logprobs for event in sink.events]
    assert not any(others)
    return first


def require_right(
    entries: tuple[TokenLogprob | None, ...] | None, reference: Any, ids: list[int], top: int
) -> None:
    """Hold entries against what transformers says of the prompt."""
    assert entries is not None
    assert entries[0] is None
    assert len(entries) == len(ids)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    told = [entry for entry in entries[1:] if entry is not None]
    assert [entry.token_id for entry in told] == ids[1:]
    for row, entry in zip(expected, told, strict=False):
        every = [(entry.token_id, entry.token, entry.logprob)]
        every += [(one.token_id, one.token, one.logprob) for one in entry.top]
        assert [token for _, token, _ in every] == [TEXTS[number] for number, _, _ in every]
        wanted = [*row[[number for number, _, _ in every]].tolist(), *row.topk(top).values.tolist()]
        found = [value for _, _, value in [*every, *every[1:]]]
        assert len(found) == len(wanted)
        assert max(abs(one - other) for one, other in zip(found, wanted, strict=True)) < 1e-4


@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("scheduler", ["fifo", "prefill_first"])
def test_any_mix_with_preemption_equals_transformers(
    pair: Any, ahead: bool, scheduler: str
) -> None:
    reference, core = pair
    model = PreTrainedModel(core)
    draw = random.Random(11)
    bench = Bench(
        model,
        pages=14,
        page_size=7,
        prefill_chunk_size=5,
        position_bytes=POSITION,
        use_async_batching=ahead,
        scheduler=scheduler,
    )
    beginning = [draw.randrange(3, 96) for _ in range(20)]
    asked, streams = [], []
    for number in range(24):
        size = draw.choice((1, 2, 6, 7, 8, 21, 40, 63))
        own = [draw.randrange(3, 96) for _ in range(size)]
        ids = (beginning + own)[:62] if number % 3 == 0 else own
        top, new, n = draw.choice((0, 1, 5)), draw.choice((0, 1)), draw.choice((1, 1, 3))
        more: dict[str, Any] = {"do_sample": True, "seed": number, "n": n} if n > 1 else {}
        request, sink = bench.add(ids, prompt_logprobs=top, max_new_tokens=new, **more)
        asked.append((ids, top, new, n, request, sink))
        if number % 4 == 0:
            prompt = own[:8]
            streams.append((prompt, bench.add(prompt, max_new_tokens=40, do_sample=False)[1]))
        for _ in range(draw.randrange(4)):
            bench.step()
    preempted = 0
    while bench.engine.has_work:
        bench.step()
        running = bench.batch.scheduler.running()
        if running and bench.batch._begun is None and draw.random() < 0.2:
            state = draw.choice(running)
            preempted += state in bench.batch._readers and state.num_computed > 0
            bench.batch.scheduler.preempt(state)
    assert preempted > 4
    for ids, top, new, n, request, sink in asked:
        require_right(told(sink), reference, ids, top)
        assert [len(ids_of(sink, index)) for index in range(n)] == [new] * n
        assert {event.finish_reason for event in sink.events if event.finish_reason} <= {
            "length",
            "stop",
        }
        last = sink.events[-1]
        assert last.usage is not None
        assert last.usage.completion_tokens == new * n
        assert request.progress.cached_tokens == 0
    for prompt, sink in streams:
        found = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        assert isinstance(found, torch.Tensor)
        assert ids_of(sink) == found[0, len(prompt) :].tolist()
    assert not bench.batch._readers
    bench.require_empty()


@pytest.mark.parametrize("kernels", ["ours", "torch"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families(family: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft-capped logits, biases, windows and states are no matter of the projection."""
    if kernels == "torch":
        monkeypatch.setattr(native, "kernels", None)
    reference, core = random_pair(family, **FAMILIES[family])
    bench = Bench(PreTrainedModel(core), page_size=8, prefill_chunk_size=16, position_bytes=8192)
    ids = [random.Random(3).randrange(3, 96) for _ in range(45)]
    _, sink = bench.add(ids, prompt_logprobs=2, max_new_tokens=2, do_sample=False)
    bench.run()
    require_right(told(sink), reference, ids, 2)
    bench.require_empty()


def test_chunks_and_other_rows_change_no_bit(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own kernels; with torch's, rows of a product depend on how many there are."""
    ids, found = [random.Random(5).randrange(3, 96) for _ in range(60)], []
    for chunk, slices, company in ((64, 64, False), (7, 64, False), (64, 3, True)):
        monkeypatch.setattr(prompt_scores, "MOST_SCORES", slices * 97)
        bench = Bench(PreTrainedModel(pair[1]), prefill_chunk_size=chunk, position_bytes=POSITION)
        if company:
            bench.add(ids[:9], max_new_tokens=20, do_sample=False)
            bench.step()
        _, sink = bench.add(ids, prompt_logprobs=3, max_new_tokens=1, do_sample=False)
        bench.run()
        entries = told(sink)
        require_right(entries, pair[0], ids, 3)
        found.append(entries)
    if native.kernels is not None:
        assert found[0] == found[1] == found[2]


def test_prompt_logprobs_recompute_cached_tokens_and_free_blocks(pair: Any) -> None:
    bench = Bench(PreTrainedModel(pair[1]), page_size=7, position_bytes=POSITION)
    ids = list(range(3, 33))
    for given, cached in (({}, 0), ({"prompt_logprobs": 1}, 0), ({"prompt_logprobs": 1}, 0)):
        request, sink = bench.add(ids, max_new_tokens=1, do_sample=False, **given)
        bench.run()
        assert request.progress.cached_tokens == cached
        bench.require_empty()
    request, _ = bench.add(ids, max_new_tokens=1, do_sample=False)
    bench.run()
    assert request.progress.cached_tokens == 29  # all but the last, whose logits are needed
    require_right(told(sink), pair[0], ids, 1)


def test_cancel_during_prefill_returns_no_prompt_logprobs(pair: Any) -> None:
    bench = Bench(PreTrainedModel(pair[1]), prefill_chunk_size=8, position_bytes=POSITION)
    for new in (0, 5):
        request, sink = bench.add(list(range(3, 60)), prompt_logprobs=0, max_new_tokens=new)
        bench.step()
        bench.step()
        bench.engine.abort(request)
        assert told(sink) is None
        assert sink.events[-1].finish_reason == "cancelled"
        bench.require_empty()


def test_others_wait_for_few_tokens_at_a_time() -> None:
    """A chunk of such a prompt is half as long as those that are not projected."""
    bench = Bench(TableModel(context_length=2048), pages=512, page_size=8, prefill_chunk_size=256)
    _, sink = bench.add(b"abc".decode(), max_new_tokens=30, do_sample=False, eos_token_id=[])
    bench.step()
    request, asked = bench.add([97] * 1000, prompt_logprobs=0, max_new_tokens=0)
    [sample] = bench.batch.requests[request]
    while not asked.events:
        before, known = len(ids_of(sink)), sample.num_computed
        bench.step()
        assert len(ids_of(sink)) == before + 1
        assert sample.num_computed - known <= prompt_scores.MOST_TOKENS
    assert len(asked.events) == 1
    assert len(told(asked) or ()) == 1000


def test_logits_are_never_there_all_at_once() -> None:
    shapes = []

    def project(hidden: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(hidden.shape))
        return torch.zeros(hidden.shape[0], 2**20)

    scores = PromptLogprobs(range(30), 1, project, 2**20, None)
    taken = scores.wanted(0, 30, is_last=True)
    assert taken == range(29)
    scores.add(torch.zeros(29, 4), 0)
    assert shapes == [(8, 4), (8, 4), (8, 4), (5, 4)]
    assert not scores.wanted(29, 30, is_last=True)
    scores.finish()


def test_nan_is_the_failure_of_its_request_alone() -> None:
    model = TableModel()
    model.core.table[:, 98] = float("nan")
    bench = Bench(model)
    _, good = bench.add("aac", prompt_logprobs=0, max_new_tokens=0)
    _, bad = bench.add("abc", prompt_logprobs=0, max_new_tokens=0)
    bench.run()
    assert isinstance(good.items[-1], InvalidScoresError) or told(good) is not None
    assert isinstance(bad.items[-1], InvalidScoresError)
    bench.require_empty()


def test_a_prompt_may_fill_the_context(pair: Any) -> None:
    model = PreTrainedModel(pair[1])
    bench = Bench(model, pages=100, position_bytes=POSITION)
    context = model.config.max_position_embeddings
    ids = [5] * context
    _, sink = bench.add(ids, prompt_logprobs=0, max_new_tokens=0)
    bench.run()
    assert len(told(sink) or ()) == context
    with pytest.raises(ContextLengthError):
        bench.prepare([*ids, 5], prompt_logprobs=0, max_new_tokens=0)


@for_each(
    ("given", "name"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"prompt_logprobs": 1, "max_new_tokens": False}, "max_new_tokens"),
        ({"prompt_logprobs": 1, "max_new_tokens": 0, "max_length": 9}, "max_length"),
        ({"prompt_logprobs": 1, "max_new_tokens": 0, "min_new_tokens": 1}, "min_new_tokens"),
        ({"prompt_logprobs": 1, "num_beams": 2}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "guidance_scale": 2.0}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "cache_implementation": "static"}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "prompt_lookup_num_tokens": 3}, "prompt_logprobs"),
    ],
    ids=str,
)
def test_refusals(given: dict[str, Any], name: str) -> None:
    bench = Bench()
    with pytest.raises(InvalidRequestError) as caught:
        bench.prepare("abc", **given)
    assert caught.value.parameter == name


def test_prompt_logprobs_arrive_although_a_sample_has_ended(pair: Any) -> None:
    ids = [random.Random(6).randrange(3, 96) for _ in range(12)]
    given = {"do_sample": True, "seed": 4, "n": 2, "max_new_tokens": 4, "eos_token_id": []}
    bench = Bench(PreTrainedModel(pair[1]), position_bytes=POSITION)
    _, whole = bench.add(ids, **given)
    bench.run()
    both = [ids_of(whole, index) for index in range(2)]
    _, sink = bench.add(ids, prompt_logprobs=1, generated_ids=[both[0], both[1][:2]], **given)
    bench.run()
    (entries,) = [each.prompt_logprobs for each in sink.events if each.prompt_logprobs is not None]
    require_right(entries, pair[0], ids, 1)
    bench.require_empty()


def test_a_sample_that_ends_before_the_others_keeps_no_page(pair: Any) -> None:
    """Nobody could find what it has generated; the prompt stays as long as the others run."""
    ids = [random.Random(6).randrange(3, 96) for _ in range(14)]
    given = {"do_sample": True, "seed": 4, "n": 2, "max_new_tokens": 20, "eos_token_id": []}
    bench = Bench(PreTrainedModel(pair[1]), page_size=4, position_bytes=POSITION)
    _, whole = bench.add(ids, prompt_logprobs=1, **given)
    bench.run()
    both = [ids_of(whole, index) for index in range(2)]
    assert bench.pool.num_kept == 0
    stop = both[0][9]
    _, sink = bench.add(ids, prompt_logprobs=1, **{**given, "eos_token_id": [stop]})
    bench.run()
    assert len(ids_of(sink)) < 20
    assert bench.pool.num_kept == 0
    bench.require_empty()
