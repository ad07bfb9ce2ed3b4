"""Keys tell apart what differs, and cost one page each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.kv_cache.block_hashes import block_hashes, extend_block_hashes

TOKENS = st.lists(st.integers(0, 3), max_size=12)
SALTS = st.sampled_from([b"", b"a", b"b"])


@given(TOKENS, TOKENS, SALTS, SALTS, st.integers(1, 4))
def test_keys_agree_exactly_where_the_beginning_does(
    one: list[int], other: list[int], salt: bytes, other_salt: bytes, page_size: int
) -> None:
    first, second = block_hashes(one, page_size, salt), block_hashes(other, page_size, other_salt)
    assert len(first) == len(one) // page_size
    for number, (key, other_key) in enumerate(zip(first, second, strict=False)):
        end = (number + 1) * page_size
        assert (key == other_key) == (salt == other_salt and one[:end] == other[:end])
    assert len({*first}) == len(first)


@given(st.lists(st.integers(0, 2**40), max_size=30), st.integers(1, 5), st.data())
def test_keys_grow_with_the_request(tokens: list[int], page_size: int, data: st.DataObject) -> None:
    keys: list[bytes] = []
    full = len(tokens) // page_size
    for count in sorted(data.draw(st.lists(st.integers(0, full), max_size=4))) + [full]:
        extend_block_hashes(keys, tokens, page_size, b"salt", count)
        assert len(keys) == count
    assert keys == block_hashes(tokens, page_size, b"salt")


def test_token_borders_count() -> None:
    assert block_hashes([1, 256], 2) != block_hashes([256, 1], 2)
    assert block_hashes([1, 1], 1)[0] != block_hashes([257], 1)[0]
    assert block_hashes([], 4) == []


def test_only_new_pages_are_read() -> None:
    read: list[slice] = []

    class Counted(list[int]):
        def __getitem__(self, item: object) -> object:  # type: ignore[override]
            assert isinstance(item, slice)
            read.append(item)
            return super().__getitem__(item)

    tokens = Counted(range(100))
    keys: list[bytes] = []
    extend_block_hashes(keys, tokens, 10, b"", 9)
    read.clear()
    extend_block_hashes(keys, tokens, 10, b"", 9)
    assert read == []
    extend_block_hashes(keys, tokens, 10, b"", 10)
    assert read == [slice(90, 100)]
