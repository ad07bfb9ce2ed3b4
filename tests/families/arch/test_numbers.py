"""Every number and switch of a `config.json` means what it means to the reference.

Each is changed alone, to a value that no release has, on a tiny checkpoint of each family: those
that the reference writes, and those that we read. Logits must be the reference's, and must have
moved; or the value is refused by name. A key that moves nothing stands in `STILL` with a reason.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import AsyncgenError
from asyncgen.families.arch.registry import FAMILIES as DECLARED
from asyncgen.families.config import ModelConfig
from tests.families.arch.families import FAMILIES, STATES, make
from tests.families.arch.unusual import change_of, is_still
from tests.parity.test_seq2seq import models as make_t5

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

transformers = pytest.importorskip("transformers")

LENGTH = 20
CLOSE = 1e-4
_INFINITY = {"__float__": "Infinity"}  # which is no number of JSON


class _Cannot(Exception):
    """The reference does not make or run such a model."""


class Family:
    """Tiny checkpoints of a family: logits of the reference and ours, with keys changed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._made = 0
        self._known: dict[str, torch.Tensor] = {}
        self._ids = torch.randint(3, 60, (2, LENGTH), generator=torch.Generator().manual_seed(1))
        self._make({})
        self.file: dict[str, Any] = self._read()

    def expected(self, changed: Mapping[str, Any]) -> torch.Tensor:
        """Compute the reference's logits, and leave its checkpoint in the folder."""
        theirs = self._make(changed)
        try:
            with torch.no_grad():
                return theirs(**self._inputs()).logits
        except Exception as error:
            raise _Cannot from error

    def before(self, also: Mapping[str, Any]) -> torch.Tensor:
        """Compute the logits that a change is compared with; once for each set of keys."""
        name = json.dumps(also, sort_keys=True, default=repr)
        if name not in self._known:
            self._known[name] = self.expected(also)
        return self._known[name]

    def found(self, changed: Mapping[str, Any], drop: tuple[str, ...]) -> torch.Tensor:
        """Compute our logits of the checkpoint in the folder, some derived keys left out."""
        if drop:
            left = {key: value for key, value in self._read().items() if key not in drop}
            file = json.dumps({**left, **changed})
            (self._place / "config.json").write_text(file, encoding="utf-8")
        return asyncgen.load_model(self._place, dtype="float32")(**self._inputs()).logits

    def paths(self) -> list[tuple[str, ...]]:
        """List the numbers of the reference's file, and the keys beside them that we ask for."""
        family = DECLARED[self.name]
        asked = ModelConfig.from_hf(self.file).built_from - family.unread - {*family.spellings}
        missing = {(key,) for key in asked if self.file.get(key) is None}
        found = sorted(missing.union(_numbers(self.file)))
        return [path for path in found if not is_still(self.name, path)]

    @property
    def _place(self) -> Path:
        return self._folder / str(self._made)

    def _inputs(self) -> dict[str, torch.Tensor]:
        if self.name in ("t5", "mt5"):
            return {"input_ids": self._ids, "decoder_input_ids": self._ids.flip(1)}
        return {"input_ids": self._ids}

    def _make(self, changed: Mapping[str, Any]) -> Any:
        self._made += 1
        self._place.mkdir()
        try:
            if self.name in ("t5", "mt5"):
                return make_t5(0, self._place, self.name.upper(), **changed)[0]
            return make(self.name, self._place, **changed)
        except AsyncgenError:
            raise
        except Exception as error:
            raise _Cannot from error

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._place / "config.json").read_text("utf-8"))
        return found


def _numbers(place: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """List the paths of all numbers, switches and lists of numbers in an object."""
    for key, value in place.items():
        if isinstance(value, dict):
            yield from _numbers(value, (*path, key))
        elif isinstance(value, (bool, int, float)) or _is_list_of_numbers(value):
            yield (*path, key)


def _is_list_of_numbers(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(type(one) in (int, float) or one == _INFINITY for one in value)


def _at(place: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        place = place.get(key) if isinstance(place, dict) else None
    return place


def _with(file: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Give the changed key, with the whole object that it stands in."""
    if len(path) == 1:
        return {path[0]: value}
    outer = copy.deepcopy(file[path[0]])
    inner = outer
    for key in path[1:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return {path[0]: outer}


def outcome(family: Family, path: tuple[str, ...]) -> str:
    """Change one key until its logits move; return ``"equal"``, ``"refused"``, ``"still"``,
    ``"impossible"`` (to the reference), or what differs."""
    change = change_of(family.name, path, _at(family.file, path))
    best = "impossible"
    for value in change.values:
        with_others = {**change.also, **change.beside}
        changed = {**with_others, **_with({**family.file, **with_others}, path, value)}
        try:
            before = family.before(change.also)
            expected = family.expected(changed)
        except _Cannot:
            continue
        try:
            found = family.found(changed, change.drop)
        except AsyncgenError as error:
            assert "unreadable" not in str(error)
            best = "refused"
            continue
        off = (found - expected).abs().max().item()
        if not off < CLOSE * max(1.0, expected.abs().max().item()):
            return f"{'.'.join(path)} = {value!r}: {off:.1e} off"
        best = "still" if best == "impossible" else best
        if expected.shape != before.shape or not torch.equal(expected, before):
            return "equal"
    return best


@pytest.mark.gate
@pytest.mark.parametrize("name", [*FAMILIES, *STATES, "t5", "mt5"])
def test_every_number_of_a_file_means_what_it_means_to_the_reference(
    name: str, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    family = Family(name, tmp_path)
    outcomes = {".".join(path): outcome(family, path) for path in family.paths()}
    assert {key: each for key, each in outcomes.items() if each not in ("equal", "refused")} == {}
