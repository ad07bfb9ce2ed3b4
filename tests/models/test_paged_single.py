"""A token that is alone sees what it would see among others, page after page."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from asyncgen.cache.paged import PagedStorage
from asyncgen.models import PagedAttention
from asyncgen.models.paged_single import MOST_COPIED, SingleToken
from tests.models.build import random_ids, random_pair


@dataclass
class Row:
    start: int
    count: int
    pages: list[int]


@pytest.mark.parametrize("settings", [{}, {"sliding_window": 5}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alone_and_among_others_the_logits_are_the_same(
    settings: dict[str, int], dtype: torch.dtype
) -> None:
    _, core = random_pair("mistral" if settings else "llama", **settings)
    core.to(dtype)
    length, size = 23, 4
    ids = random_ids(1, length)[0]
    tables = [7, 2, 9, 0, 5, 3], [1, 4, 6, 8, 10, 11]
    logits = []
    for count in (1, 2):  # alone, then beside another text
        storage = PagedStorage(core.config, 12, size, dtype=dtype)
        storage.data.fill_(torch.nan)
        attention = PagedAttention(core.config, storage)
        found = []
        for start, end in [(0, 6), *((place, place + 1) for place in range(6, length))]:
            rows = [Row(start, end - start, table) for table in tables[:count]]
            attention.lay_out(rows)
            packed = ids[start:end].repeat(count)
            positions = torch.arange(start, end).repeat(count)
            last = torch.tensor(
                [number * (end - start) + end - start - 1 for number in range(count)]
            )
            found.append(core.decode_packed(packed, positions, last, attention)[0])
        logits.append(torch.stack(found).float())
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(logits[0], logits[1], atol=tolerance, rtol=tolerance)


def test_what_was_written_alone_is_read_by_others() -> None:
    _, core = random_pair("llama")
    ids = random_ids(1, 11)[0]
    storage = PagedStorage(core.config, 6, 4)
    attention = PagedAttention(core.config, storage)
    for place in range(10):
        attention.lay_out([Row(place, 1, [2, 0, 5])])
        core.decode_packed(
            ids[place : place + 1], torch.tensor([place]), torch.tensor([0]), attention
        )
    attention.lay_out([Row(10, 1, [2, 0, 5]), Row(0, 11, [1, 3, 4])])
    packed = torch.cat((ids[10:], ids))
    positions = torch.tensor([10, *range(11)])
    both = core.decode_packed(packed, positions, torch.tensor([0, 11]), attention)
    torch.testing.assert_close(both[0], both[1], atol=1e-5, rtol=1e-5)


def test_a_step_goes_on_where_the_last_one_ended() -> None:
    _, core = random_pair("llama")
    storage = PagedStorage(core.config, 8, 4)
    attention = PagedAttention(core.config, storage)
    pages = [3, 1, 4]
    attention.lay_out([Row(5, 1, pages)])
    part = attention._only[None]
    assert isinstance(part, SingleToken)
    attention.lay_out([Row(6, 1, pages)])
    assert attention._only[None] is part
    attention.lay_out([Row(7, 1, pages)])
    attention.lay_out([Row(8, 1, pages)])  # the next page
    assert attention._only[None] is part
    for other in (Row(10, 1, pages), Row(6, 1, pages), Row(7, 1, [3, 2, 4])):
        attention.lay_out([other])
        assert attention._only[None] is not part


def test_what_is_left_of_a_page_is_no_nan_to_others() -> None:
    _, core = random_pair("llama")
    storage = PagedStorage(core.config, 8, 4)
    storage.data.fill_(torch.nan)
    attention = PagedAttention(core.config, storage)
    one = torch.tensor([0])
    for place in range(30):
        attention.lay_out([Row(place, 1, list(range(place // 4 + 1)))])
        core.decode_packed(one, torch.tensor([place]), one, attention)
    attention.lay_out([Row(0, 3, [7])])
    assert not storage.data[:, :, :7].isnan().any()


def test_a_long_text_is_not_copied() -> None:
    _, core = random_pair("llama", max_position_embeddings=2 * MOST_COPIED)
    storage = PagedStorage(core.config, MOST_COPIED // 64 + 1, 64)
    attention = PagedAttention(core.config, storage)
    pages = list(range(storage.num_pages))
    attention.lay_out([Row(MOST_COPIED - 1, 1, pages)])
    assert isinstance(attention._only[None], SingleToken)
    attention.lay_out([Row(MOST_COPIED, 1, pages)])
    assert not isinstance(attention._only[None], SingleToken)
