"""lm-evaluation-harness runs unmodified, and scores as it does with transformers' own model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from tests.apps.openai_http.clients.scored import scored
from tests.apps.openai_http.running import reference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.apps.openai_http.running import Running

pytestmark = pytest.mark.clients
PAIRS = [
    ("Once upon a time", " there was a fox"),
    ("Once upon a time", " zebra 🦓 quantum"),
    ("The fox", " slept."),
    ("It rained. The", " sun"),
]
WAYS = {
    "ids": {"tokenized_requests": True},
    "texts": {"tokenized_requests": False},
    "batches": {"tokenized_requests": True, "batch_size": 3},
    "at_once": {"tokenized_requests": False, "num_concurrent": 4},
}


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Running, Path]]:
    with scored() as found:
        yield found


@pytest.fixture(scope="module")
def own(place: tuple[Running, Path]) -> HFLM:
    """The harness's own way, through transformers."""
    return HFLM(pretrained=str(place[1]), dtype="float32", device="cpu", batch_size=1)


def client(place: tuple[Running, Path], **given: Any) -> LocalCompletionsAPI:
    served, folder = place
    return LocalCompletionsAPI(
        model="demo",
        base_url=f"{served.url}/completions",
        tokenizer=str(folder),
        max_length=512,
        **given,
    )


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", sorted(WAYS))
def test_loglikelihood(place: tuple[Running, Path], own: HFLM, way: str) -> None:
    found = client(place, **WAYS[way]).loglikelihood(asked("loglikelihood", *PAIRS))
    wanted = own.loglikelihood(asked("loglikelihood", *PAIRS))
    assert [one for one, _ in found] == pytest.approx([one for one, _ in wanted], abs=1e-3)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["ids", "texts"])
def test_generate_until(place: tuple[Running, Path], own: HFLM, way: str) -> None:
    wishes = {"until": ["."], "max_gen_toks": 24, "do_sample": False}
    prompts = [(prompt, wishes) for prompt, _ in PAIRS[1:]]
    found = client(place, **WAYS[way]).generate_until(asked("generate_until", *prompts))
    assert found == own.generate_until(asked("generate_until", *prompts))


@pytest.mark.timeout(300)
def test_loglikelihood_rolling(place: tuple[Running, Path], own: HFLM) -> None:
    text = (PAIRS[0][0] + PAIRS[0][1] + ". The fox slept. ") * 3
    [found] = client(place).loglikelihood_rolling(asked("loglikelihood_rolling", (text,)))
    [wanted] = own.loglikelihood_rolling(asked("loglikelihood_rolling", (text,)))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_chat_generate_until(place: tuple[Running, Path]) -> None:
    served, _ = place
    turns = [{"role": "user", "content": "Tell me a story."}]
    lm = LocalChatCompletion(model="demo", base_url=f"{served.url}/chat/completions")
    prompt = lm.apply_chat_template(turns)
    wishes = {"until": ["."], "max_gen_toks": 20}
    [found] = lm.generate_until(asked("generate_until", (prompt, wishes)))
    given: Any = {"do_sample": False, "max_new_tokens": 20, "stop": ["."]}
    assert found == reference(served, turns, **given).text


@pytest.mark.timeout(300)
def test_a_task(place: tuple[Running, Path], own: HFLM, tmp_path: Path) -> None:
    """As the command line runs it: accuracies are those of transformers' own model."""
    file = tmp_path / "task.jsonl"
    rows = [
        '{"question": "Once upon a time", "choices": ["there was a fox", "zebra quantum"], "a": 0}',
        '{"question": "The fox", "choices": ["purple of seven", "slept."], "a": 1}',
        '{"question": "It rained. The", "choices": ["sun", "sky was gray."], "a": 1}',
    ]
    file.write_text("\n".join(rows), encoding="utf-8")
    task = {
        "task": "choices",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "a",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    scores = []
    for lm in (client(place), own):
        found: Any = simple_evaluate(lm, tasks=[ConfigurableTask(config=dict(task))])
        scores.append(found["results"]["choices"])
    for name in ("acc,none", "acc_norm,none"):
        assert scores[0][name] == scores[1][name]
