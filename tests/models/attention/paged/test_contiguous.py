"""A token gets the same result from a contiguous copy as page by page, alone and in company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.contiguous import (
    MOST_COPIED,
    MOST_COPIED_TOGETHER,
    SPARE_TOKENS,
    ContiguousRows,
    are_worth_copying,
)
from asyncgen.models.attention.paged.packed_rows import PlacedRow
from asyncgen.models.attention.paged.torch_attention import STEPS_TOGETHER, TorchAttention
from asyncgen.models.kernels.products import has_intel_kernels
from tests.models.build import all_logits, random_ids, random_pair

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.models.decoder import DecoderLM


@dataclass
class Row:
    start: int
    count: int
    pages: list[int]
    more: tuple[list[int], ...] = ()


class Texts:
    """Some texts, each on pages of its own, fed to one attention bit by bit.

    Attributes:
        attention: What reads the pages.
        wrong: Texts whose logits are not those of the text alone.
    """

    def __init__(self, core: DecoderLM, texts: list[Tensor], page_size: int, pages: int) -> None:
        self._core, self._texts = core, texts
        self._alone = [all_logits(core, text[None])[0] for text in texts]
        storage = PagedStorage(core.config, pages, page_size)
        storage.data.fill_(torch.nan)
        self.attention = TorchAttention(core.config, storage)
        self._next = [0] * len(texts)
        # Blocks next to each other in a text are apart in the pool.
        needs = -(-max(len(text) for text in texts) // page_size)
        self._tables = [
            [number + len(texts) * page for page in range(needs)] for number in range(len(texts))
        ]
        self.wrong: set[int] = set()

    def feed(self, counts: dict[int, int]) -> None:
        """One step: so many tokens of each of these texts."""
        rows, ids, positions, ends = [], [], [], []
        for number, count in counts.items():
            start = self._next[number]
            rows.append(Row(start, count, self._tables[number]))
            ids.append(self._texts[number][start : start + count])
            positions.append(torch.arange(start, start + count))
            ends.append(sum(len(one) for one in ids) - 1)
            self._next[number] += count
        self.attention.lay_out(rows)
        last = torch.tensor(ends)
        logits = self._core.decode_packed(
            torch.cat(ids), torch.cat(positions), last, self.attention
        )
        for number, found in zip(counts, logits, strict=True):
            expected = self._alone[number][self._next[number] - 1]
            if not torch.allclose(found, expected, atol=1e-5, rtol=1e-5):
                self.wrong.add(number)

    @property
    def are_copied(self) -> bool:
        """Return whether the last step read a copy."""
        return any(isinstance(whole, ContiguousRows) for whole in self.attention._only.values())


@settings(max_examples=8, deadline=None)
@given(
    starts=st.lists(st.integers(20, 40), min_size=2, max_size=6),
    steps=st.integers(STEPS_TOGETHER + 1, SPARE_TOKENS + 20),
    page_size=st.sampled_from([4, 16, 32]),
    window=st.sampled_from([None, 9, 64]),
    seed=st.integers(0, 10**6),
)
def test_texts_that_go_on_together_say_what_each_says_alone(
    starts: list[int], steps: int, page_size: int, window: int | None, seed: int
) -> None:
    kind, more = ("llama", {}) if window is None else ("mistral", {"sliding_window": window})
    _, core = random_pair(kind, max_position_embeddings=256, **more)
    everybody = range(len(starts))
    texts = [random_ids(1, start + steps + 30, seed + n)[0] for n, start in enumerate(starts)]
    texts.append(random_ids(1, 60, seed + 99)[0])
    fed = Texts(core, texts, page_size, 16_384 // page_size)
    fed.feed(dict(enumerate(starts)))
    for _ in range(steps):
        fed.feed(dict.fromkeys(everybody, 1))
    assert fed.are_copied
    stayed = dict.fromkeys(everybody[1:], 1)
    for _ in range(3):  # one has left
        fed.feed(stayed)
        assert fed.are_copied is (len(stayed) == 1)
    fed.feed({len(starts): 12, **stayed})  # another comes
    for _ in range(STEPS_TOGETHER + 3):
        fed.feed({**stayed, len(starts): 1})
    fed.feed({0: 1, len(starts): 1})  # and the first comes back
    assert not fed.wrong


def test_a_row_of_nan_stays_alone() -> None:
    _, core = random_pair("llama")
    texts = [random_ids(1, 60, seed)[0] for seed in range(3)]
    fed = Texts(core, texts, 8, 1000)
    fed.feed({0: 20, 1: 24, 2: 20})
    fed.attention.storage.data[:, :, fed._tables[0]] = torch.nan
    for _ in range(STEPS_TOGETHER + 6):
        fed.feed({0: 1, 1: 1, 2: 1})
    assert fed.are_copied
    assert fed.wrong == {0}


def test_blocks_are_copied_together_up_to_the_limit() -> None:
    _, core = random_pair("llama")
    large = PagedStorage(core.config, MOST_COPIED_TOGETHER, 16)
    small = PagedStorage(core.config, 40, 16)

    def worth(starts: list[int], storage: PagedStorage = large) -> bool:
        return are_worth_copying([PlacedRow(0, start, 1, []) for start in starts], storage)

    assert worth([MOST_COPIED - 1])
    assert not worth([MOST_COPIED])
    assert worth([0], small)  # one text needs little
    assert not worth([0, 0], small)
    assert worth([99] * 16)  # with two heads, so many matrices as torch multiplies in time
    assert worth([99] * 17) is worth([99] * 32) is has_intel_kernels()
    assert not worth([199] * 32)
    assert worth([99, 10, 99])
    assert not worth([99, 0, 0])  # mostly zeros


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
        attention = TorchAttention(core.config, storage)
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


def test_keys_written_by_one_row_are_read_by_others() -> None:
    _, core = random_pair("llama")
    ids = random_ids(1, 11)[0]
    storage = PagedStorage(core.config, 6, 4)
    attention = TorchAttention(core.config, storage)
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


def test_step_continues_where_the_last_one_ended() -> None:
    _, core = random_pair("llama")
    storage = PagedStorage(core.config, 8, 4)
    attention = TorchAttention(core.config, storage)
    pages = [3, 1, 4]
    attention.lay_out([Row(5, 1, pages)])
    part = attention._only[0]
    assert isinstance(part, ContiguousRows)
    attention.lay_out([Row(6, 1, pages)])
    assert attention._only[0] is part
    attention.lay_out([Row(7, 1, pages)])
    attention.lay_out([Row(8, 1, pages)])  # the next page
    assert attention._only[0] is part
    for other in (Row(10, 1, pages), Row(6, 1, pages), Row(7, 1, [3, 2, 4])):
        attention.lay_out([other])
        assert attention._only[0] is not part


def test_nan_in_unwritten_positions_does_not_reach_other_rows() -> None:
    _, core = random_pair("llama")
    storage = PagedStorage(core.config, 8, 4)
    storage.data.fill_(torch.nan)
    attention = TorchAttention(core.config, storage)
    one = torch.tensor([0])
    for place in range(30):
        attention.lay_out([Row(place, 1, list(range(place // 4 + 1)))])
        core.decode_packed(one, torch.tensor([place]), one, attention)
    attention.lay_out([Row(0, 3, [7])])
    assert not storage.data[:, :, :7].isnan().any()


def test_a_long_text_is_not_copied() -> None:
    _, core = random_pair("llama", max_position_embeddings=2 * MOST_COPIED)
    storage = PagedStorage(core.config, MOST_COPIED // 64 + 1, 64)
    attention = TorchAttention(core.config, storage)
    pages = list(range(storage.num_pages))
    attention.lay_out([Row(MOST_COPIED - 1, 1, pages)])
    assert isinstance(attention._only[0], ContiguousRows)
    attention.lay_out([Row(MOST_COPIED, 1, pages)])
    assert not isinstance(attention._only[0], ContiguousRows)
