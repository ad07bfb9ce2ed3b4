"""The bundled model says the same in transformers and here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

import asyncgen

transformers = pytest.importorskip("transformers")

DEMO = Path(asyncgen.__file__).parent / "demo"
QUESTIONS = ("Tell me a story about a fox.", "What is 3 + 4?", "Write hello in Python.")


@pytest.fixture(scope="module")
def theirs() -> tuple[Any, Any]:
    """Model and tokenizer as transformers loads them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(DEMO)


@pytest.mark.parametrize("question", QUESTIONS)
def test_same_prompt_same_tokens_same_text(theirs: tuple[Any, Any], question: str) -> None:
    model, tokenizer = theirs
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    expected = model.generate(**prompt, do_sample=False, max_new_tokens=200)
    answer = expected[0, prompt["input_ids"].shape[1] :]

    async def ask() -> asyncgen.Completion:
        async with asyncgen.AsyncLLM("demo") as llm:
            return await llm.generate(messages, do_sample=False, max_new_tokens=200)

    completion = anyio.run(ask)
    assert list(completion.token_ids) == answer.tolist()
    assert completion.text == tokenizer.decode(answer, skip_special_tokens=True)
    assert completion.finish_reason == "stop"


def test_logits_agree(theirs: tuple[Any, Any]) -> None:
    model, tokenizer = theirs
    inputs = tokenizer(["Once upon a time, a fox", "Hi"], return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = model(**inputs).logits
    found = asyncgen.load_model("demo")(**inputs).logits
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], atol=2e-4, rtol=1e-4)
