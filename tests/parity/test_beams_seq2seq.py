"""Beams over T5: settings of every kind, the encoder run once, the best sequence streamed."""

from __future__ import annotations

import itertools
from pathlib import Path  # noqa: TC003
from typing import Any

import pytest
import torch

from tests.cases import for_each
from tests.parity.test_seq2seq import inputs, models

SETTINGS = list(
    itertools.product([1, 3], [(2, 1), (4, 3)], [(True, 0.4), (False, 1.0), ("never", -1.0)])
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder: Path = tmp_path_factory.mktemp("t5")
    return models(5, folder)


@for_each(("rows", "beams", "until"), SETTINGS)
def test_settings(
    pair: tuple[Any, Any], rows: int, beams: tuple[int, int], until: tuple[bool | str, float]
) -> None:
    theirs, ours = pair
    options: dict[str, Any] = {
        **inputs(rows, rows),
        "num_beams": beams[0],
        "num_return_sequences": beams[1],
        "early_stopping": until[0],
        "length_penalty": until[1],
        "eos_token_id": [1, 9, 20],
        "max_new_tokens": 14,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    found, expected = ours.generate(**options), theirs.generate(**options)
    assert type(found).__name__ == type(expected).__name__ == "GenerateBeamEncoderDecoderOutput"
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert found.beam_indices.tolist() == expected.beam_indices.tolist()
    torch.testing.assert_close(
        found.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4
    )


def test_the_encoder_runs_once_and_for_every_text_once(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = pair
    sizes: list[int] = []
    encode = type(ours.core).encode

    def counted(core: Any, embeddings: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(embeddings))
        return encode(core, embeddings, *args, **kwargs)

    monkeypatch.setattr(type(ours.core), "encode", counted)
    ours.generate(**inputs(1), num_beams=4, num_return_sequences=2, max_new_tokens=9)
    assert sizes == [3]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
        {"num_beams": 3, "force_words_ids": [[11, 12], [[13], [14, 15]]]},
    ],
)
def test_diverse_and_constrained_search(pair: tuple[Any, Any], options: dict[str, Any]) -> None:
    _, ours = pair
    call: dict[str, Any] = {**inputs(2), "max_new_tokens": 10, "min_new_tokens": 6}
    found = ours.generate(**call, **options)
    alone = [
        ours.generate(**{**call, "input_ids": ids[None], "attention_mask": mask[None]}, **options)
        for ids, mask in zip(call["input_ids"], call["attention_mask"], strict=True)
    ]
    for row, other in zip(found.tolist(), alone, strict=True):
        kept = other[0].tolist()
        assert row[: len(kept)] == kept
        if "force_words_ids" in options:
            assert "11, 12" in str(row)
            assert {13, 14} & set(row)
