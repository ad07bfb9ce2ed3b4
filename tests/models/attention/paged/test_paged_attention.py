"""Packed rows over pages give what each text gives alone in a dense cache."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncgen import native
from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.errors import InvalidRequestError
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.attention.paged.native_attention import NativeAttention
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from tests.cases import for_each
from tests.models.build import random_config, random_ids, random_model
from tests.models.packing import VARIANTS, Row, alone, make_rows, model, num_groups, packed, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen.models.decoder import DecoderLM


@pytest.fixture(scope="module", params=["chosen", "torch"], autouse=True)
def _attention(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the attention chosen on this machine, and torch's kernels if that is another."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            if native.kernels is None:
                pytest.skip("chosen anyway")
            patch.setattr(NativeAttention, "serves", lambda storage: False)
        yield


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    page_size=st.sampled_from([4, 8, 16, 32]),
    heads_first=st.booleans(),
    scattered=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_mix_equals_each_text_alone(
    variant: str,
    lengths: list[int],
    page_size: int,
    heads_first: bool,
    scattered: bool,
    seed: int,
) -> None:
    core = model(variant)
    chooser = random.Random(seed)
    groups = num_groups(core)
    most = 100 * groups
    storage = PagedStorage(core.config, most, page_size, heads_first=heads_first)
    storage.data.fill_(torch.nan)  # the worst that fresh memory can hold
    pages = chooser.sample(range(most), most) if scattered else list(range(most))
    rows = make_rows(lengths, page_size, pages, seed, groups)
    results = run(core, PagedAttention(core.config, storage), rows, chooser, forgets=True)
    for row, result in zip(rows, results, strict=True):
        close(result, alone(core, row.ids))


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=6, deadline=None)
@given(
    prefix=st.integers(0, 9),
    half=st.integers(0, 4),
    lengths=st.lists(st.integers(1, 10), min_size=2, max_size=7),
    seed=st.integers(0, 10**6),
)
def test_rows_that_share_pages_equal_each_text_alone(
    variant: str, prefix: int, half: int, lengths: list[int], seed: int
) -> None:
    core, size = model(variant), 4
    chooser = random.Random(seed)
    groups = num_groups(core)
    storage = PagedStorage(core.config, 120 * groups, size)
    storage.data.fill_(torch.nan)
    attention = PagedAttention(core.config, storage)
    pages = iter(chooser.sample(range(120 * groups), 120 * groups))

    def taken(count: int) -> list[list[int]]:
        """Take so many pages for each group of layers."""
        return [[next(pages) for _ in range(count)] for _ in range(groups)]

    common = random_ids(1, (prefix + half) * size, seed)[0]
    shared = taken(prefix + half)
    if len(common):
        # Two sets of readers: all share the prefix, every second one also what follows.
        packed(core, attention, [Row(common, shared[0], 0, len(common), shared[1:])])
    rows = []
    for number, length in enumerate(lengths):
        count = prefix + half * (number % 2)
        own = random_ids(1, length, seed + number + 1)[0]
        need = -(-length // size)
        first, *more = (old[:count] + new for old, new in zip(shared, taken(need), strict=True))
        rows.append(Row(torch.cat([common[: count * size], own]), first, count * size, 0, more))
    begins = [row.start for row in rows]
    results = run(core, attention, rows, chooser, most=4)
    for row, begin, result in zip(rows, begins, results, strict=True):
        close(result, alone(core, row.ids)[begin:])


def greedy(core: DecoderLM, attention: PagedAttention, rows: list[Row], steps: int) -> list[Tensor]:
    """Continue rows by their best tokens: the prompts in one step, then one token a step."""
    for row in rows:
        row.start, row.count = 0, len(row.ids)
    for _ in range(steps):
        for row, logits in zip(rows, packed(core, attention, rows), strict=True):
            row.ids = torch.cat([row.ids, logits[-1:].argmax(-1)])
            row.start, row.count = len(row.ids) - 1, 1
    return [row.ids for row in rows]


@for_each("variant", VARIANTS)
def test_greedy_tokens_are_those_of_a_dense_cache(variant: str) -> None:
    core, size = model(variant), 8
    groups = num_groups(core)
    storage = PagedStorage(core.config, 40 * groups, size)
    rows = []
    for number, length in enumerate([3, 9, 16, 1]):
        first, *more = (list(range(40 * at + number, 40 * at + 40, 5)) for at in range(groups))
        rows.append(Row(random_ids(1, length, length)[0], first, more=more))
    found = greedy(core, PagedAttention(core.config, storage), rows, 20)
    for number, length in enumerate([3, 9, 16, 1]):
        ids = random_ids(1, length, length)
        attention = DenseAttention(core.config, DynamicCache())
        expected = ids[0]
        for _ in range(20):
            start = expected.shape[0] - ids.shape[1]
            positions = torch.arange(start, expected.shape[0])[None]
            ids = core.decode(ids, positions, attention).argmax(-1)[None]
            expected = torch.cat([expected, ids[0]])
        assert found[number].tolist() == expected.tolist()


def test_continued_step_equals_a_newly_laid_out_one() -> None:
    core, size = model("llama"), 16
    storage = PagedStorage(core.config, 10, size)
    attention = PagedAttention(core.config, storage)
    rows = make_rows([15, 14, 40], size, [4, 2, 0, 1, 3])
    for row in rows:
        row.count = len(row.ids) - 9
    packed(core, attention, rows)
    for row in rows:
        row.start, row.count = len(row.ids) - 9, 1
    for _ in range(9):
        ongoing = packed(core, attention, rows)
        anew = packed(core, PagedAttention(core.config, storage), rows)
        for row, one, other in zip(rows, ongoing, anew, strict=True):
            assert torch.equal(one, other)
            row.start += 1
        # Rows may change places at any time.
        if rows[0].start == 10:
            rows.reverse()


@for_each("shared", [False, True])
@for_each("count", [1, 5])
def test_a_row_of_nan_stays_alone(shared: bool, count: int) -> None:
    core, size = model("llama"), 4
    storage = PagedStorage(core.config, 60, size)
    attention = PagedAttention(core.config, storage)
    rows = make_rows([30, 26, 25, 9], size, list(range(60)))
    if shared:
        for row in rows[1:3]:
            row.pages[:5], row.ids[:20] = rows[0].pages[:5], rows[0].ids[:20]
    for row in rows:
        row.count = len(row.ids) - count
    packed(core, attention, rows)
    for row in rows:
        row.start, row.count = len(row.ids) - count, count
    expected = packed(core, attention, rows)
    storage.data[:, :, rows[1].pages[5 if shared else 2]] = torch.nan
    found = packed(core, attention, rows)
    assert found[1].isnan().all()
    for number in (0, 2, 3):
        assert torch.equal(found[number], expected[number])


@pytest.mark.parametrize("heads_first", [False, True])
def test_earlier_contents_of_a_page_do_not_change_results(heads_first: bool) -> None:
    core, size = model("qwen3"), 8
    storage = PagedStorage(core.config, 3, size, heads_first=heads_first)
    attention = PagedAttention(core.config, storage)
    ids = random_ids(1, 20)[0]
    for chunk in (1, 3, 20):
        storage.data.fill_(torch.nan)
        row = Row(ids, [2, 0, 1])
        pieces = []
        for start in range(0, 20, chunk):
            row.start, row.count = start, min(chunk, 20 - start)
            pieces += packed(core, attention, [row])
        close(torch.cat(pieces), alone(core, ids))


def test_logits_come_for_the_wanted_tokens_only() -> None:
    core = model("gpt2")
    storage = PagedStorage(core.config, 8, 8)
    attention = PagedAttention(core.config, storage)
    ids = random_ids(1, 9)[0]
    expected = alone(core, ids)
    for wanted in ([8], [3, 0], [5, 5, 2], []):
        attention.lay_out([Row(ids, [1, 5], 0, 9)])
        logits = core.decode_packed(
            ids, torch.arange(9), torch.tensor(wanted, dtype=torch.int64), attention
        )
        if wanted:
            close(logits, expected[wanted])
        assert logits.shape == (len(wanted), 97)


def test_dynamic_rope_beyond_its_length_is_refused() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    core = random_model(random_config("llama", rope_scaling=scaling))
    assert core.packed_length == 64
    assert model("llama").packed_length is None
    storage = PagedStorage(core.config, 4, 32)
    attention = PagedAttention(core.config, storage)
    ids = random_ids(1, 65)[0]
    within, beyond = Row(ids, [0, 1, 2], 0, 64), Row(ids, [0, 1, 2], 64, 1)
    close(packed(core, attention, [within])[0], alone(core, ids[:64]))
    with pytest.raises(InvalidRequestError, match="64 tokens"):
        packed(core, attention, [beyond])


def test_inference_mode_may_change_between_steps() -> None:
    core = model("llama")
    storage = PagedStorage(core.config, 8, 8)
    attention = PagedAttention(core.config, storage)
    row = make_rows([12], 8, [3, 6])[0]
    row.count = 5
    with torch.inference_mode():
        packed(core, attention, [row])
    pieces = []
    for start in range(5, 12):
        row.start, row.count = start, 1
        with torch.inference_mode(start % 2 == 0):
            pieces += packed(core, attention, [row])
    close(torch.cat(pieces), alone(core, row.ids)[5:])
