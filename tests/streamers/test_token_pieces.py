"""Decoders as tables of pieces: what is described, and what is honestly not."""

from __future__ import annotations

from types import SimpleNamespace

from tokenizers import Regex, decoders

from streamers.token_pieces import OpenPiece, PieceTable, parse
from tests.cases import for_each

TOKENS = ["a", "▁b", "<0xC3>", "<0x41>", "skipped", "c</w>", "d</w>e"]


def table_of(decoder: decoders.Decoder | None) -> PieceTable:
    pipeline = parse(b"null" if decoder is None else decoder.__getstate__())
    assert pipeline is not None
    backend = SimpleNamespace(id_to_token=dict(enumerate(TOKENS)).get)
    return PieceTable(pipeline, lambda: backend, frozenset(["skipped"]))


def test_pieces_of_whole_characters_are_text_and_others_bytes() -> None:
    table = table_of(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]))
    assert [table.rest[i] for i in range(5)] == ["a", " b", b"\xc3", "A", ""]
    assert table.rest[99] == ""
    assert table.first is table.rest


def test_first_piece_differs_with_a_prepending_decoder() -> None:
    table = table_of(decoders.Metaspace())
    assert (table.first[1], table.rest[1]) == ("b", " b")
    assert (table.first[4], table.rest[4]) == (None, "")
    assert table_of(decoders.Metaspace(prepend_scheme="never")).first[1] == " b"


def test_a_piece_may_be_open() -> None:
    table = table_of(decoders.BPEDecoder())
    assert table.rest[0] == "a"
    assert table.rest[5] == OpenPiece("c", " ", "")
    assert table.rest[6] == OpenPiece("d", " e", "e")
    assert table.rest[4] is None


def test_a_piece_is_made_once() -> None:
    asked: list[int] = []

    def id_to_token(token_id: int) -> str:
        asked.append(token_id)
        return "x"

    pipeline = parse(decoders.ByteLevel().__getstate__())
    assert pipeline is not None
    backend = SimpleNamespace(id_to_token=id_to_token)
    table = PieceTable(pipeline, lambda: backend, frozenset())
    assert [table.rest[7] for _ in range(3)] == ["x"] * 3
    assert asked == [7]


@for_each(
    "stages",
    [
        [decoders.CTC()],
        [decoders.Replace(Regex("a+"), "b")],
        [decoders.Fuse(), decoders.Strip(" ", 0, 1)],
        [decoders.ByteFallback(), decoders.Strip(" ", 1, 0)],
        [decoders.ByteLevel(), decoders.Replace("ab", "c")],
        [decoders.ByteLevel(), decoders.ByteFallback()],
        [decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.Replace("a", "b")],
        [decoders.Fuse(), decoders.Metaspace()],
        [decoders.BPEDecoder(), decoders.ByteFallback()],
        [decoders.Replace("a", "b"), decoders.BPEDecoder()],
    ],
)
def test_decoders_that_need_more_than_pieces_parse_to_none(stages: list[decoders.Decoder]) -> None:
    assert parse(decoders.Sequence(stages).__getstate__()) is None
