"""Prompt chunks over pages against plain products, rows of other sizes beside each."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.families.config import ModelConfig
from asyncgen.models.attention.paged.packed_rows import PlacedRow
from asyncgen.models.attention.paged.prefill import PrefillRows
from tests.models.build import random_config
from tests.models.written_out import attend_plainly, sinks_of, some_options

D = 8


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=5),
    equal=st.booleans(),
    fresh=st.booleans(),
    group=st.sampled_from([1, 3]),
    drawn=st.data(),
    heads_first=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_it_equals_plain_products(
    sizes: list[tuple[int, int]],
    equal: bool,
    fresh: bool,
    group: int,
    drawn: st.DataObject,
    heads_first: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    options = drawn.draw(some_options(2 * group, [None, 1, 6, 30]))
    sinks = sinks_of(options, 2 * group)
    config = ModelConfig.from_hf(
        random_config("llama", num_attention_heads=2 * group, num_key_value_heads=2)
    )
    storage = PagedStorage(config, 80, 4, heads_first=heads_first)
    storage.data.normal_()
    pages = random.Random(seed).sample(range(80), 80)
    rows, token = [], 0
    for start, count in sizes:
        count = sizes[0][1] if equal else count
        start = 0 if fresh else start
        need = -(-(start + count) // 4)
        rows.append(PlacedRow(token, start, count, pages[:need]))
        pages, token = pages[need:], token + count
    heads = torch.randn(token, 2 * group + 4, D)
    for row in rows:
        # The pages hold the step's keys as well, as after a write.
        pair = heads[row.token : row.token + row.count, 2 * group :].view(-1, 2, 2, D)
        for at, cell in enumerate(row.cells(4)):
            page = storage.layers[0][:, cell // 4]
            (page[:, :, cell % 4] if heads_first else page[:, cell % 4]).copy_(pair[at])
    out = torch.empty(token, 2 * group * D)
    PrefillRows(rows, storage, options.kind, group).attend(0, heads, out, options.scale, sinks)
    for row in rows:
        end = row.token + row.count
        queries = heads[row.token : end, : 2 * group]
        expected = attend_plainly(row, storage, options, group, queries)
        torch.testing.assert_close(out[row.token : end], expected, atol=1e-5, rtol=0)
