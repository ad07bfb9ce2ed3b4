"""Each key and each tensor of packed files replaced: the same numbers as before, or a refusal.

Settings and headers are material of strangers. Whatever stands in the place of a key or a tensor,
reading gives the numbers of before, or a short error of ours that names the file and the key; it
never takes another exception, 300 MB beyond the file, or two seconds.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.checkpoints.packed.one_matrix import (
    EVERY,
    FILE,
    STEM,
    Bounded,
    keys_of,
    make,
    replaced,
    values,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

REFUSALS = (ModelLoadError, InvalidRequestError)


def deep(depth: int) -> list[Any]:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 10**18, 10**30, -(10**18), 1.5, 4.0, float("inf")),
    *("", "a", "a" * 100_000, "16x16", "re:(", "\0", [], [[]], [16, 16], ["16", "16"], [0, 0]),
    *([1.5, 16], [5] * 100_000, {}, {"a": 1}, {"": {}}, deep(400), deep(100_000)),
    *({"-:(": {}}, {"a" * 100_000: 1}, {"+:.*": {"bits": [[]]}}),
]

BY_DEFAULT = {("checkpoint_format",), ("linear_class",)}
"""Keys without which a file means another format."""


def settings_cases(scheme: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths of keys, and a value for each."""
    _, _, settings = make(scheme)
    for path in [*keys_of(settings), ("dynamic",), ("modules_to_not_convert",), ("a_new_key",)]:
        for value in ODD:
            if value is not None or path not in BY_DEFAULT:
                yield path, value


def explains(error: Exception, path: tuple[str, ...], value: Any) -> bool:
    """Tell whether an error names a key, or what does not fit it, and the file.

    Without a key, a neighbour of it may have a value that is not allowed any more.
    """
    text = str(error)
    is_key = "config.json" in text and path[-1] in text
    is_key |= value is None and "config.json says" in text and f"`{'.'.join(path[:-1])}" in text
    return len(text) < 1500 and (is_key or (FILE in text and STEM in text))


def check_settings(scheme: str, folder: Path, path: tuple[str, ...], value: Any) -> bool:
    """Read with a changed key; return whether it was refused."""
    parts, _, settings = make(scheme)
    changed = replaced(settings, path, value)
    with Bounded((scheme, path, str(type(value)))):
        try:
            found = values(folder, changed)
        except REFUSALS as error:
            assert explains(error, path, value), (scheme, path, str(error)[:2000])
            return True
    assert torch.equal(found, values(folder, settings)), (scheme, path, str(value)[:80])
    return False


KINDS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32),
    *(torch.int16, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2),
    torch.float8_e8m0fnu,
)


def header_cases(parts: dict[str, Tensor]) -> Iterator[tuple[str, str, Tensor | None]]:
    """Names of tensors, what is done to them, and what stands in their place."""
    for name, part in parts.items():
        yield name, "missing", None
        for kind in KINDS:
            is_same = {kind, part.dtype} <= {torch.float8_e4m3fn, torch.float8_e5m2}
            if kind != part.dtype and not is_same:  # else both are numbers of the format
                wide = part if kind != torch.bool else part.float()
                yield (
                    name,
                    "dtype",
                    wide.float().to(kind) if "float8" in str(kind) else wide.to(kind),
                )
                if part.numel() * part.itemsize % kind.itemsize == 0:
                    yield name, "bytes", part.flatten().view(torch.uint8).view(kind)
        longer = torch.cat((part, part)) if part.dim() else part.expand(2)
        changed = [
            *(
                part.flatten(),
                part.unsqueeze(0),
                part.unsqueeze(-1),
                part.mT if part.dim() > 1 else part,
            ),
            *(
                longer,
                part.flatten()[:1],
                part.flatten()[0],
                part.flatten()[:0],
                part.flatten()[:-1],
            ),
            *(part[:0], part.flatten().view(*[1] * 60, -1)),
        ]
        if part.dim() > 1:
            changed += [part[:-1], part[:, :-1], part[:, :1], part.new_empty(0, 1 << 40)]
        for one in changed:
            if one.shape != part.shape:
                yield name, "shape", one


def check_header(
    scheme: str, folder: Path, name: str, what: str, new: Tensor | None, right: Tensor
) -> bool:
    """Read with a tensor changed; return whether it was refused."""
    parts, _, settings = make(scheme)
    others = {key: one for key, one in parts.items() if key != name}
    if new is not None:
        others[name] = new.contiguous().clone()
    write(folder, others, settings)
    case = scheme, name, what, None if new is None else (new.dtype, list(new.shape))
    with Bounded(case):
        try:
            found = values(folder)
        except REFUSALS as error:
            text, part = str(error), name.removeprefix(f"{STEM}.").split(".")[-1]
            is_named = part.removesuffix("__nf4").removesuffix("__fp4") in text or STEM in text
            is_named |= "config.json says" in text and "'*.weight_scale' is missing" in text
            assert (FILE in text or "config.json" in text) and is_named, (case, text)
            assert len(text) < 1500, (case, text[:2000])
            return True
    are_floats = new is not None and parts[name].is_floating_point() and new.is_floating_point()
    if new is not None and (what == "shape" or are_floats):
        # The same numbers in float32 and the shape of before mean the same.
        same = new if new.numel() == parts[name].numel() else new.expand(parts[name].shape)
        same = same.reshape(parts[name].shape)
        if parts[name].is_floating_point() and parts[name].itemsize > 1:
            same = same.float()
        if same.dtype == torch.float32 or what == "shape":
            right = values(write(folder, {**parts, name: same.contiguous().clone()}, settings))
    assert torch.equal(found, right), case
    return False


def run(folder: Path, scheme: str, draw: random.Random | None) -> tuple[int, int]:
    """Check all cases of a scheme, or a few that are drawn; return how many, and refusals."""
    parts, _, settings = make(scheme)
    write(folder, parts, settings)
    right = values(folder)
    by_key, by_tensor = list(settings_cases(scheme)), list(header_cases(parts))
    if draw is not None:
        by_key, by_tensor = draw.sample(by_key, 6), draw.sample(by_tensor, 6)
    refused = sum(check_settings(scheme, folder, path, value) for path, value in by_key)
    refused += sum(check_header(scheme, folder, *case, right) for case in by_tensor)
    return len(by_key) + len(by_tensor), refused


def test_some_strange_files_change_nothing_or_are_refused(tmp_path: Path) -> None:
    draw = random.Random(5)
    for scheme in EVERY:
        count, refused = run(tmp_path, scheme, draw)
        assert 0.4 * count < refused


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", EVERY)
def test_strange_files_change_nothing_or_are_refused(scheme: str, tmp_path: Path) -> None:
    count, refused = run(tmp_path, scheme, None)
    assert 0.4 * count < refused < count
    print(f"{scheme}: {count} cases, {refused} refused")  # noqa: T201
