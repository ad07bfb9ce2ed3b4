"""Groups of layers with page tables of their own: what texts hold, and that none notices."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen import native
from asyncgen.cache.layer_groups import plan_groups
from asyncgen.cache.paged_storage import page_bytes
from asyncgen.engine.kv_cache.cached_sequence import GONE
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.engine.batches import Bench, ids_of
from tests.models.build import random_pair

if TYPE_CHECKING:
    from tests.doubles.sinks import RecordingSink

SLIDING, FULL = "sliding_attention", "full_attention"

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": 9}),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 6,
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": [SLIDING] * 5 + [FULL],
        },
    ),
    "mixed": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
}


class Compared:
    """A model of ours over pages, and transformers' with the same weights."""

    def __init__(self, name: str, seed: int = 0) -> None:
        model_type, more = SHAPES[name]
        self.reference, core = random_pair(
            model_type, seed, max_position_embeddings=256, eos_token_id=None, **more
        )
        self.model = PreTrainedModel(core)
        self.groups = len(plan_groups(core.config).groups)
        self.bytes = page_bytes(core.config, 1, torch.float32)

    def bench(self, pages: int, page_size: int, **options: Any) -> Bench:
        return Bench(
            self.model, pages=pages, page_size=page_size, position_bytes=self.bytes, **options
        )

    def expected(self, prompt: list[int], count: int) -> list[int]:
        """Return the reference's tokens for one prompt alone."""
        ids = torch.tensor([prompt])
        with torch.no_grad():
            made = self.reference.generate(
                ids, max_new_tokens=count, do_sample=False, pad_token_id=0
            )
        found: list[int] = made[0, len(prompt) :].tolist()
        return found


def mix(compared: Compared, page_size: int, seed: int) -> tuple[int, int]:
    """Random requests, cancelled ones among them: tokens compared, and preemptions."""
    rng = random.Random(seed)
    runs_ahead = seed % 2 == 1
    bench = compared.bench(
        compared.groups * (rng.choice([36, 64]) // page_size + 1),
        page_size,
        max_running=rng.choice([3, 6]),
        prefill_chunk_size=rng.choice([3, 8, 50]),
        use_async_batching=runs_ahead,
    )
    prefix = [rng.randrange(3, 97) for _ in range(25)]
    waiting = []
    for _ in range(8):
        own = [rng.randrange(3, 97) for _ in range(rng.randint(1, 12))]
        waiting.append((prefix[: rng.choice([0, 11, 25])] + own, rng.randint(4, 20)))
    added: list[tuple[RecordingSink, list[int], int, bool]] = []
    while waiting or bench.engine.has_work:
        if waiting and rng.random() < 0.3:
            prompt, count = waiting.pop()
            request, sink = bench.add(prompt, max_new_tokens=count, do_sample=False)
            is_cancelled = rng.random() < 0.1
            if is_cancelled:
                request.cancel.set()
            added.append((sink, prompt, count, is_cancelled))
        scheduler = bench.batch.scheduler
        if scheduler.active_requests and not runs_ahead and rng.random() < 0.06:
            scheduler.preempt(rng.choice(scheduler.running()))
        if bench.engine.has_work:
            bench.step()
    bench.require_empty()
    compared_tokens = 0
    for sink, prompt, count, is_cancelled in added:
        found = ids_of(sink)
        expected = compared.expected(prompt, count)
        assert found == (expected[: len(found)] if is_cancelled else expected), prompt
        compared_tokens += len(found)
    return compared_tokens, bench.batch.scheduler.num_preemptions


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own kernels, and torch's in their place."""
    if request.param == "torch":
        monkeypatch.setattr(native, "kernels", None)


@pytest.mark.gate
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("page_size", [4, pytest.param(7, marks=pytest.mark.gate)])
@pytest.mark.parametrize("name", SHAPES)
def test_mixes_are_token_for_token_those_of_transformers(name: str, page_size: int) -> None:
    compared = Compared(name)
    counts = [mix(compared, page_size, seed) for seed in range(2)]
    tokens, preemptions = map(sum, zip(*counts, strict=True))
    assert tokens > 100 and preemptions > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("page_size", [1, 4, 7])
@pytest.mark.parametrize("name", SHAPES)
def test_100_mixes(name: str, page_size: int) -> None:
    compared = Compared(name, 1)
    for seed in range(100, 200):
        mix(compared, page_size, seed)


@pytest.mark.parametrize("name", SHAPES)
def test_a_prefix_is_known_by_its_last_window(name: str) -> None:
    compared = Compared(name)
    bench = compared.bench(300, 4, prefill_chunk_size=16)
    prompt = [(7 * n) % 90 + 3 for n in range(61)]
    bench.add(prompt, max_new_tokens=8, do_sample=False)
    bench.run()
    kept = bench.pool.num_kept
    request, sink = bench.add([*prompt, 5, 6], max_new_tokens=8, do_sample=False)
    bench.step()
    [state] = bench.batch.states
    assert state.num_cached == 60 and request.progress.cached_tokens == 60
    for table, window in zip(state.block_tables, bench.pool.windows, strict=True):
        assert table.count(GONE) == (0 if window is None else (61 - window) // 4)
    bench.run()
    assert ids_of(sink) == compared.expected([*prompt, 5, 6], 8)
    # Without the pages of the last window, the beginning before it is of no use.
    bench.pool.forget_kept()
    assert kept > 0 and bench.pool.num_kept == 0
    request, sink = bench.add([*prompt, 5, 6], max_new_tokens=8, do_sample=False)
    bench.run()
    assert request.progress.cached_tokens == 0
    assert ids_of(sink) == compared.expected([*prompt, 5, 6], 8)


def test_a_text_longer_than_the_pages_of_a_window_model_runs() -> None:
    compared = Compared("mistral")
    bench = compared.bench(8, 4, prefill_chunk_size=8)
    prompt = [(5 * n) % 90 + 3 for n in range(150)]
    _, sink = bench.add(prompt, max_new_tokens=20, do_sample=False)
    bench.run()
    assert ids_of(sink) == compared.expected(prompt, 20)
