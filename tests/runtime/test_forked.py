"""A process that code of a user forks on the decode thread ends where that code does."""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.llm.llm import LLM
from tests.cases import for_each
from tests.doubles.models import PATIENCE, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TableModel(), tokenizer=byte_tokenizer()) as found:
        yield found


def forking(act: Callable[[], object], children: list[int]) -> Callable[..., Any]:
    def process(input_ids: Any, scores: Any) -> Any:
        if not children:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # it has other threads
                child = os.fork()
            if not child:
                sys.stderr = open(os.devnull, "w")
                act()
                return scores
            children.append(child)
        return scores

    return process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@for_each(
    "act, code",
    [
        (lambda: None, 0),
        (sys.exit, 0),
        (lambda: sys.exit(7), 7),
        (lambda: sys.exit(-1), 255),
        (lambda: sys.exit("over"), 1),
        (lambda: [].pop(), 1),
        (lambda: os._exit(5), 5),
    ],
)
def test_a_forked_child_ends_and_its_parent_goes_on(
    llm: LLM, act: Callable[[], object], code: int
) -> None:
    children: list[int] = []
    right = llm.generate("a", max_new_tokens=4).token_ids
    given: Any = {"logits_processor": [forking(act, children)]}
    assert llm.generate("a", max_new_tokens=4, **given).token_ids == right
    assert _code_of(children[0]) == code


def _code_of(child: int) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child lives")
