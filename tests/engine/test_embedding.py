"""Texts that become vectors, step by step beside streams: preempted, cut into chunks, cancelled."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.requests.embedding import prepare_embedding
from asyncgen.engine.requests.served_model import ServedModel
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.models import byte_tokenizer
from tests.doubles.sinks import RecordingSink
from tests.engine.batches import Bench, ids_of
from tests.engine.making import seated
from tests.models.build import random_pair

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request

POSITION = 2 * 3 * 2 * 8 * 4
"""Bytes of a position: keys and values, layers, heads, their size, float32."""


@pytest.fixture(scope="module")
def pair() -> Any:
    return random_pair("llama")


def embed(bench: Bench, ids: list[int], **given: Any) -> Request:
    """Queue a text."""
    request = prepare_embedding(
        ServedModel.of(bench.model, byte_tokenizer(), bench.opened.room),
        ids,
        given,
        cancel=CancelCriteria(),
        sink=RecordingSink(),
        place=seated(bench.admission),
    )
    bench.engine.add(request)
    return request


def expected(reference: Any, ids: list[int], pooling: str) -> torch.Tensor:
    """Embed a text with transformers."""
    with torch.no_grad():
        states = reference.base_model(torch.tensor([ids])).last_hidden_state[0]
    vector: torch.Tensor = states[-1] if pooling == "last" else states.mean(0)
    return vector / vector.norm()


@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("scheduler", ["fifo", "prefill_first"])
def test_any_mix_with_preemption_equals_transformers(
    pair: Any, ahead: bool, scheduler: str
) -> None:
    reference, core = pair
    model = PreTrainedModel(core)
    draw = random.Random(7)
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
    texts: list[tuple[list[int], str, Request]] = []
    streams = []
    for number in range(24):
        size = draw.choice((1, 2, 6, 7, 8, 21, 40, 63, 64))
        own = [draw.randrange(3, 96) for _ in range(size)]
        ids = (beginning + own)[:64] if number % 3 == 0 else own
        pooling = "mean" if number % 2 else "last"
        texts.append((ids, pooling, embed(bench, ids, pooling=pooling)))
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
    for ids, pooling, request in texts:
        assert request.pool is not None and request.pool.vector is not None
        wanted = expected(reference, ids, pooling)
        torch.testing.assert_close(request.pool.vector, wanted, atol=1e-5, rtol=0)
    for prompt, sink in streams:
        found = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        assert isinstance(found, torch.Tensor)
        assert ids_of(sink) == found[0, len(prompt) :].tolist()
    bench.require_empty()


def test_embeddings_share_blocks_and_free_them(pair: Any) -> None:
    bench = Bench(PreTrainedModel(pair[1]), page_size=7, position_bytes=POSITION)
    ids = list(range(3, 33))
    for pooling, cached in (("mean", 0), ("last", 0), ("mean", 0), ("last", 28)):
        request = embed(bench, ids, pooling=pooling)
        bench.run()
        assert request.progress.cached_tokens == cached
        bench.require_empty()
    begun = embed(bench, ids[::-1], pooling="mean")
    bench.step()
    bench.engine.abort(begun)
    assert begun.pool is not None and begun.pool.vector is None
    bench.require_empty()
