"""No value of a `config.json` ends in an error that is not the library's own, or takes long.

Each key of a tiny checkpoint of each family is set to what no file should have there. The model is
opened and computes, or is refused by name.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import AsyncgenError
from tests.families.arch.families import FAMILIES, STATES, make
from tests.parity.test_seq2seq import models as make_t5

if TYPE_CHECKING:
    from collections.abc import Iterator

transformers = pytest.importorskip("transformers")

NAMES = [*FAMILIES, *STATES, "t5", "mt5"]
VALUES: tuple[Any, ...] = (
    *(10**9, 10**30, 10**400, -1, 0, 1, 3, True, False, 0.5, -0.5, 1e-45),
    *(float("nan"), float("inf"), "7", "x", [], [1], {}, {"a": [None]}, None),
)
MOST_SECONDS = 10.0
MOST_MEGABYTES = 500
QUICK = 40
"""Cases of each family that are tried at a gate."""


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the places of all values, of lists the first two entries."""
    if isinstance(value, dict):
        entries = list(value.items())
    else:
        entries = list(enumerate(value))[:2] if isinstance(value, list) else []
    for key, inner in entries:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def changed(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    new = copy.deepcopy(raw)
    place = new
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return new


def peak() -> int:
    """Return the megabytes that this process had at most since they were last forgotten."""
    if sys.platform != "linux":
        return 0
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def opened(folder: Path, inputs: dict[str, Any]) -> str:
    """Open a folder and compute; return what is wrong with how that ended."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    before, began = peak(), time.thread_time()
    try:
        model = asyncgen.load_model(folder, dtype="float32", device="cpu", progress=False)
        model(**inputs)
        model.generate(inputs["input_ids"], max_new_tokens=2, do_sample=False)
    except AsyncgenError as error:
        if len(str(error)) > 5000:
            return f"an error of {len(str(error))} characters"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    seconds, megabytes = time.thread_time() - began, peak() - before
    if seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES:
        return f"{seconds:.1f} s, {megabytes} MB"
    return ""


def faults(name: str, folder: Path, count: int | None) -> dict[str, str]:
    """Try so many cases of a family, or all; return those that break the law."""
    ids = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids}
    if name in ("t5", "mt5"):
        make_t5(0, folder, name.upper())
        inputs["decoder_input_ids"] = ids.flip(1)
    else:
        make(name, folder)
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    cases = [
        (path, value)
        for path in paths(raw)
        if path[0] not in ("transformers_version", "architectures", "model_type")
        for value in VALUES
    ]
    if count is not None:
        cases = random.Random(name).sample(cases, count)
    found: dict[str, str] = {}
    for path, value in cases:
        file.write_text(json.dumps(changed(raw, path, value)))
        wrong = opened(folder, inputs)
        if wrong:
            found[f"{'.'.join(map(str, path))} = {str(value)[:20]}"] = wrong
    return found


def null_means(name: str, folder: Path) -> dict[str, float]:
    """Set each key to null, also in objects; return how far off what opens here and there is."""
    ids = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids}
    kind = transformers.AutoModelForCausalLM
    if name in ("t5", "mt5"):
        make_t5(0, folder, name.upper())
        inputs["decoder_input_ids"] = ids.flip(1)
        kind = transformers.AutoModelForSeq2SeqLM
    else:
        make(name, folder)
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    found: dict[str, float] = {}
    for path in paths(raw):
        if not all(isinstance(key, str) for key in path):
            continue
        file.write_text(json.dumps(changed(raw, path, None)))
        try:
            ours = asyncgen.load_model(folder, dtype="float32", device="cpu", progress=False)
            expected = ours(**inputs).logits
        except AsyncgenError:
            continue
        try:
            theirs = kind.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                logits = theirs.eval()(**inputs).logits
        except Exception:
            continue  # it does not read such a file
        off = (logits - expected).abs().max().item()
        if not off < 1e-3 * max(1.0, logits.abs().max().item()):
            found[".".join(path)] = off
    return found


@pytest.mark.gate
@pytest.mark.parametrize("name", NAMES)
def test_null_means_what_it_means_to_the_reference(name: str, tmp_path: Path) -> None:
    assert null_means(name, tmp_path) == {}


@pytest.mark.gate
@pytest.mark.parametrize("name", NAMES)
def test_some_hostile_values_are_refused_by_name_or_read(name: str, tmp_path: Path) -> None:
    assert faults(name, tmp_path, QUICK) == {}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_hostile_values_are_refused_by_name_or_read(name: str, tmp_path: Path) -> None:
    assert faults(name, tmp_path, None) == {}
