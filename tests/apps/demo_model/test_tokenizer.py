"""The tokenizer writes any text, and the chat template says what the corpus says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.demo_model import corpus
from asyncgen_apps.demo_model.tokenizer import (
    CHAT_TEMPLATE,
    SPECIALS,
    save_tokenizer,
    train_tokenizer,
)

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = train_tokenizer(1, vocab_size=600, sample=40)
MESSAGES = [
    {"role": "system", "content": "You are a helpful storyteller."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
]


def _fail(message: str) -> None:
    raise jinja2.TemplateError(message)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _fail
    return environment.from_string(CHAT_TEMPLATE)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    if not any(special in text for special in SPECIALS):
        assert TOKENIZER.decode(ids) == text


def test_special_tokens_come_first_and_stay_whole() -> None:
    assert [TOKENIZER.token_to_id(special) for special in SPECIALS] == list(range(len(SPECIALS)))
    assert TOKENIZER.encode("Hi").ids[0] == SPECIALS.index(corpus.BOS)
    assert len(TOKENIZER.encode("<|end|>", add_special_tokens=False).ids) == 1


def test_training_is_deterministic() -> None:
    assert train_tokenizer(1, vocab_size=600, sample=40).to_str() == TOKENIZER.to_str()


def test_the_template_agrees_with_the_corpus() -> None:
    rendered = _template().render(
        messages=MESSAGES, bos_token=corpus.BOS, eos_token=corpus.END, add_generation_prompt=False
    )
    assert rendered == corpus.text_of(corpus.render(MESSAGES))


def test_the_template_prompts_for_an_answer() -> None:
    rendered = _template().render(
        messages=MESSAGES[1:2],
        bos_token=corpus.BOS,
        eos_token=corpus.END,
        add_generation_prompt=True,
    )
    assert rendered == "<|bos|><|user|>Hi<|end|><|assistant|>"


def test_the_template_refuses_unknown_roles() -> None:
    with pytest.raises(jinja2.TemplateError, match="Unknown role: tool"):
        _template().render(messages=[{"role": "tool", "content": ""}], bos_token="", eos_token="")


def test_the_files_are_written(tmp_path: Path) -> None:
    save_tokenizer(TOKENIZER, tmp_path, 1024)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["eos_token"] == "<|end|>"
    assert config["chat_template"] == CHAT_TEMPLATE
    assert (tmp_path / "tokenizer.json").stat().st_size > 1000
