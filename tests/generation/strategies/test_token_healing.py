"""Token healing: which tokens may take the place of a prompt's last one, and its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.token_by_token import greedy
from asyncgen.generation.strategies.token_healing import decode_healed, plan_healing
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.engine import greedy_ids, raw_logits
from tests.doubles.models import VOCABULARY, TableModel, byte_tokenizer
from tests.doubles.tokenizers import save_tokenizer
from tests.generation.strategies.pairs import pair
from tests.generation.strategies.plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path


TEXTS = [
    "The quick bro",
    "Hello world, h",
    "Hel",
    "The q",
    "def f(",
    "The quick",
    "Hello world, how",
    "naïve c",
    "th ",
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_folder(save_tokenizer(tmp_path / "tokenizer", "byte_level"))


def test_tokens_that_the_last_one_begins(tokenizer: Tokenizer) -> None:
    (row,) = rows = [tokenizer.encode_ids("Hello world, h")]
    healing = plan_healing(tokenizer, rows, len(tokenizer))
    assert healing.rows == rows
    beginning = tokenizer.convert_ids_to_tokens(row[-1])
    assert beginning is not None
    for token, token_id in tokenizer.get_vocab().items():
        expected = 10.0 * token.startswith(beginning) + (token_id == row[-1])
        assert float(healing.bias[0, token_id]) == expected


def test_white_space_at_the_end_goes_but_one_token_stays(tokenizer: Tokenizer) -> None:
    row = tokenizer.encode_ids("Hello world, how")
    space = tokenizer.encode_ids(" ")
    rows = plan_healing(tokenizer, [row + space + space, space + space], len(tokenizer)).rows
    assert rows == [row, space]


def test_no_choice_after_nothing_about_a_special_token_or_without_longer_ones() -> None:
    tokenizer = byte_tokenizer()
    for row in ([5], [5, 256], [5, 6]):
        bias = plan_healing(tokenizer, [row], 260).bias
        assert bias.nonzero().tolist() == [[0, row[-1]]]
        assert float(bias[0, row[-1]]) > 1e6


@pytest.mark.parametrize("extra", [{}, {"num_beams": 1, "repetition_penalty": 1.3}], ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_the_reference(
    text: str, extra: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    # The reference takes a beginning-of-sequence token away; here no prompt has one.
    other = transformers.AutoTokenizer.from_pretrained(
        tmp_path / "tokenizer", bos_token="<|im_end|>"
    )
    theirs, ours = pair(tmp_path / "model", 4, vocab_size=len(tokenizer))
    ids = torch.tensor([tokenizer.encode_ids(text)])
    common: dict[str, Any] = {"max_new_tokens": 5, "token_healing": True, **extra}
    expected = theirs.generate(ids, tokenizer=other, **common)
    assert ours.generate(ids, tokenizer=tokenizer, **common).tolist() == expected.tolist()


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prompt_lookup_num_tokens": 2},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "low"},
        {"do_sample": True, "num_return_sequences": 2},
    ],
    ids=str,
)
def test_every_strategy_continues_from_the_healed_prompt(
    options: dict[str, Any], chunk: int | None, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    _, ours = pair(tmp_path / "model", 4, vocab_size=len(tokenizer))
    ids = torch.tensor([tokenizer.encode_ids("Hello world, h")])
    common = {"max_new_tokens": 5, "prefill_chunk_size": chunk}
    torch.manual_seed(0)
    found = ours.generate(ids, token_healing=True, tokenizer=tokenizer, **common, **options)
    healed = found[:1, : ids.shape[1]]
    assert healed[0, :-1].tolist() == ids[0, :-1].tolist()
    assert healed[0, -1] != ids[0, -1]
    torch.manual_seed(0)
    assert found.tolist() == ours.generate(healed, **common, **options).tolist()


def test_rows_of_a_batch_are_healed_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    _, ours = pair(tmp_path / "model", 4, vocab_size=len(tokenizer))
    rows = [tokenizer.encode_ids(text) for text in ("Hello w", "The quick bro ")]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    options: dict[str, Any] = {"token_healing": True, "tokenizer": tokenizer, "max_new_tokens": 4}
    together = ours.generate(ids, attention_mask=mask, **options).tolist()
    for row, found in zip(rows, together, strict=True):
        alone = ours.generate(torch.tensor([row]), **options)[0].tolist()
        assert found[-len(alone) :] == alone


def test_a_streamer_gets_the_healed_prompt(tokenizer: Tokenizer, tmp_path: Path) -> None:
    _, ours = pair(tmp_path / "model", 4, vocab_size=len(tokenizer))
    put: list[list[int]] = []

    class Streamer:
        """Keeps what it is given."""

        def put(self, value: torch.Tensor) -> None:
            """Keep."""
            put.append(value.flatten().tolist())

        def end(self) -> None:
            """Nothing to do."""

    ids = torch.tensor([tokenizer.encode_ids("Hello world, h")])
    found = ours.generate(
        ids, token_healing=True, tokenizer=tokenizer, max_new_tokens=4, streamer=Streamer()
    )
    assert put[0] == found[0, : ids.shape[1]].tolist()
    assert [token for piece in put for token in piece] == found[0].tolist()


def test_token_healing_refuses_missing_tokenizer_and_cache(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    _, ours = pair(tmp_path / "model", 4, vocab_size=len(tokenizer))
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(InvalidRequestError, match="token_healing"):
        ours.generate(ids, token_healing=True)
    with pytest.raises(InvalidRequestError, match="token_healing"):
        ours.generate(ids, token_healing=True, tokenizer=tokenizer, past_key_values=DynamicCache())


def test_the_best_biased_token_ends_the_prompt() -> None:
    model = TableModel()
    prompts = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]
    bias = torch.zeros(2, VOCABULARY)
    bias[0, [30, 31, 32]] = 50.0
    plan = plan_of(model, prompts, new_tokens=3, prefill_chunk=3)
    steps = list(decode_healed(plan, strategy=greedy, bias=bias))
    told = [step.prompt for step in steps if step.prompt is not None]
    assert len(told) == 1
    best = [
        int((raw_logits(model, p[:-1]) + b).argmax()) for p, b in zip(prompts, bias, strict=True)
    ]
    assert told[0].tolist() == [[*p[:-1], token] for p, token in zip(prompts, best, strict=True)]
    assert best[0] in (30, 31, 32)
    for row, prompt in enumerate(told[0].tolist()):
        settled = [token for step in steps for token in step.token_ids[row]]
        assert settled == greedy_ids(model, prompt, 3)
    assert model.core.forwards[:2] == [(2, 3), (2, 1)]


def test_a_lone_token_stays() -> None:
    plan = plan_of(TableModel(), [[7]], new_tokens=2)
    steps = decode_healed(plan, strategy=greedy, bias=torch.zeros(1, VOCABULARY))
    prompt = next(steps).prompt
    assert prompt is not None and prompt.tolist() == [[7]]
    assert torch.is_grad_enabled()
