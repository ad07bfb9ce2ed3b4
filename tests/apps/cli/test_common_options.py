from __future__ import annotations

import pytest

from asyncgen_apps.cli.settings import SETTINGS
from tests.apps.cli.doubles import ScriptedLLM, run_cli


def test_every_option_reaches_the_request(llm: ScriptedLLM) -> None:
    values = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "max_time": 3.5,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "seed": 7,
    }
    options = [
        x for name, value in values.items() for x in (f"--{name}".replace("_", "-"), str(value))
    ]
    for command in ("chat", "generate"):
        result = run_cli(command, "Hi", *options, "--stop", "A", "--stop", "B", "--sample")
        assert result.exit_code == 0, result.stderr
    assert {*values, "stop", "sample"} == {setting.name for setting in SETTINGS}
    wanted = {**values, "stop": ["A", "B"], "do_sample": True}
    assert llm.asked[0][1] == {**wanted, "separate_reasoning": False}
    assert llm.asked[1][1] == wanted
    assert llm.asked[0][0] == [{"role": "user", "content": "Hi"}]
    assert llm.asked[1][0] == "Hi"


def test_greedy_and_nothing_at_all(llm: ScriptedLLM) -> None:
    run_cli("chat", "Hi", "--greedy", "--system", "Be kind.")
    run_cli("chat", "Hi")
    assert llm.asked[0][1] == {"do_sample": False, "separate_reasoning": False}
    assert llm.asked[0][0][0] == {"role": "system", "content": "Be kind."}
    assert llm.asked[1][1] == {"separate_reasoning": False}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chat", "Hi", "--temperature", "0", "--sample"], "--sample"),
        (["chat", "Hi", "--top-p", "2"], "from 0 to 1"),
        (["chat", "Hi", "--greedy", "--top-k", "5"], "leave out `top_k`"),
        (["chat", " "], "the prompt is empty"),
        (["chat"], "the prompt is empty"),
        (["generate", ""], "the prompt is empty"),
        (["generate"], "the prompt is empty"),
        (["generate", "Hi", "--logprobs"], "--json"),
        (["generate", "Hi", "--json", "--top-logprobs", "3"], "needs --logprobs"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(
    llm: ScriptedLLM, arguments: list[str], says: str
) -> None:
    result = run_cli(*arguments, stdin="")
    assert result.exit_code in (1, 2)
    assert says in result.stderr and result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert llm.asked == []
