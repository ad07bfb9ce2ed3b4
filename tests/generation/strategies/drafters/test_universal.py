"""Drafts of a model with another tokenizer: never wrong, and right where both say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.strategies.assisted import assisted
from asyncgen.generation.strategies.drafters.drafting import Assistance, make_drafter
from asyncgen.generation.strategies.drafters.universal import SharedTokens, TokenTranslator, _join
from asyncgen.generation.strategies.step import Proposal
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.models import EOS, PAD, TableModel, byte_tokenizer
from tests.doubles.tokenizers import save_tokenizer
from tests.generation.strategies.pairs import pair
from tests.generation.strategies.plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path

TEXT = " quick brown fox jumps over the lazy dog. Hello world, how are you today?"


def tokenizer_of(folder: Path, kind: str) -> Tokenizer:
    return Tokenizer.from_folder(save_tokenizer(folder / kind, kind))


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("kinds", [("byte_level", "byte_fallback"), ("byte_fallback", "metaspace")])
def test_greedy_tokens_whatever_the_draft_and_valid_ones_sampled(
    kinds: tuple[str, str], do_sample: bool, tmp_path: Path
) -> None:
    target, other = (tokenizer_of(tmp_path, kind) for kind in kinds)
    _, ours = pair(tmp_path / "target", 1, vocab_size=len(target))
    _, draft = pair(tmp_path / "draft", 2, vocab_size=len(other), num_hidden_layers=1)
    ids = torch.tensor([target.encode_ids("The quick brown fox, ")])
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": do_sample}
    helped = {"assistant_model": draft, "tokenizer": target, "assistant_tokenizer": other}
    lookbehinds = {"target_lookbehind": 3, "assistant_lookbehind": 4}
    torch.manual_seed(0)
    found = ours.generate(ids, **options, **helped, **lookbehinds, num_assistant_tokens=4)
    if do_sample:
        assert found.shape[1] <= ids.shape[1] + 16
    else:
        assert found.tolist() == ours.generate(ids, **options).tolist()


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_draft_that_says_the_same_saves_passes(do_sample: bool, tmp_path: Path) -> None:
    target, other = byte_tokenizer(), tokenizer_of(tmp_path, "byte_level")
    prompt = "The"
    model = TableModel(script=TEXT, prompt_length=len(prompt))
    script = other.encode_ids(prompt + TEXT)
    start = len(other.encode_ids(prompt))
    assert script[:start] == other.encode_ids(prompt)
    if do_sample:
        # Sampled drafts keep to shared tokens, here single characters.
        script[start:] = [each for char in TEXT for each in other.encode_ids(char)]
    size = len(other)
    draft = TableModel(script=script[start:], prompt_length=start, vocab_size=size)
    plan = plan_of(model, [list(prompt.encode())], new_tokens=len(TEXT))
    plan.config = GenerationConfig(
        do_sample=do_sample, eos_token_id=EOS, pad_token_id=PAD, num_assistant_tokens=6
    )
    helper = Assistance(draft, target, other)
    plan.drafter = make_drafter(model, plan, helper, remember=False)
    settled = [token for step in assisted(plan) for token in step.token_ids[0]]
    assert bytes(settled).decode() == TEXT
    assert model.num_forwards < len(TEXT) / 3


@given(st.text("ab ", min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 6))
def test_tokenizers_meet_in_the_text(text: str, step: int, lookbehind: int) -> None:
    # Bytes against characters: where every token stands alone, nothing may be lost or doubled.
    target = byte_tokenizer()
    translator = TokenTranslator(
        target, target, target_lookbehind=lookbehind, assistant_lookbehind=lookbehind
    )
    ids = list(text.encode())
    known: list[int] = []
    for seen in range(0, len(ids), step):
        known = translator.to_assistant(known, ids[: seen + step], seen)
        # A window of repeats can be joined at several places; where it cannot, it is exact.
        if len(set(ids[max(0, seen - lookbehind) : seen + step])) > 2 and seen == 0:
            assert known == ids[: seen + step]
    assert set(known) <= set(ids)
    assert translator.to_assistant([], ids, 0) == ids


def test_the_draft_follows_the_settled_text() -> None:
    target = byte_tokenizer()
    translator = TokenTranslator(target, target)
    settled = list(b"the quick brown")
    assert translator.to_target(settled, settled, list(b" fox")) == list(b" fox")
    assert translator.to_target([1], [2], list(b" fox")) == list(b" fox")


def test_shared_tokens_carry_the_distribution_over(tmp_path: Path) -> None:
    target, other = tokenizer_of(tmp_path, "byte_level"), tokenizer_of(tmp_path, "metaspace")
    shared = SharedTokens(
        target, other, target_size=len(target), assistant_size=len(other), ends={2: 0}
    )
    assert shared.size > 10
    scores = shared(torch.empty(1, 0), torch.randn(3, len(other)))
    drawn = scores.argmax(-1)
    found = shared.translate(Proposal(drawn, scores))
    assert found.scores is not None
    for place in range(3):
        before, after = scores[place].softmax(0), found.scores[place].softmax(0)
        torch.testing.assert_close(after.sum(), torch.tensor(1.0))
        assert float(after[found.token_ids[place]]) == pytest.approx(float(before.max()))
        torch.testing.assert_close(after.sort().values[-20:], before.sort().values[-20:])
    token = target.convert_ids_to_tokens(int(found.token_ids[0]))
    assert token is not None
    assert shared.assistant_id(int(found.token_ids[0])) == int(drawn[0])
    assert shared.assistant_id(0) == 2


@given(
    st.lists(st.integers(0, 2), max_size=9),
    st.lists(st.integers(0, 2), max_size=9),
    st.booleans(),
)
def test_sequences_are_joined_where_they_agree_longest(
    known: list[int], window: list[int], whole: bool
) -> None:
    first = len(known) if whole else max(1, len(known) - len(window) + 1)
    agreements = [
        (length, end, place)
        for end in range(len(known), first - 1, -1)
        for place in range(1, len(window) + 1)
        for length in range(1, min(end, place) + 1)
        if known[end - length : end] == window[place - length : place]
    ]
    # Of equally long ones the first: the latest end, then the earliest place.
    expected = max(agreements, key=lambda found: found[0], default=None)
    assert _join(known, window, whole=whole) == (None if expected is None else expected[1:])


def test_tokenizers_without_common_tokens_are_refused() -> None:
    class Strange:
        """Has one token that nobody else has."""

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [0]

        def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
            return "?"

        def get_vocab(self) -> dict[str, int]:
            return {"never": 0}

    with pytest.raises(InvalidRequestError, match="assistant_tokenizer"):
        SharedTokens(byte_tokenizer(), Strange(), target_size=260, assistant_size=1, ends={})


@pytest.mark.parametrize("name", ["target_lookbehind", "assistant_lookbehind"])
def test_lookbehind_is_at_least_one(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        TokenTranslator(byte_tokenizer(), byte_tokenizer(), **{name: 0})
