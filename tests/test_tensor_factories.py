"""No tensor depends on torch's defaults: those belong to the app, and it may change them any time.

`torch.set_default_dtype` changes the numbers of a running engine, `torch.set_default_device` the
place of what the caller's thread makes. So whoever makes a tensor names its dtype and its device.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FACTORIES = frozenset(
    "arange as_tensor asarray bartlett_window blackman_window empty empty_permuted empty_strided"
    " eye full hamming_window hann_window kaiser_window linspace logspace normal ones rand randint"
    " randn randperm range scalar_tensor tensor tril_indices triu_indices zeros".split()
)
"""Functions of torch that make a tensor by its defaults."""

BY_DEFAULT = frozenset(
    "complex polar get_default_dtype get_default_device set_default_dtype set_default_device"
    " set_default_tensor_type BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor"
    " FloatTensor HalfTensor IntTensor LongTensor ShortTensor".split()
)
"""What only the default decides, or changes it."""

_RELEVANT = re.compile(
    rf"torch\.({'|'.join(FACTORIES | BY_DEFAULT)})\b|torch\.Tensor\(|from torch import|where\("
)

ALLOWED = {
    "asyncgen.runtime.thread_state get_default_dtype": "put back behind code of a user",
    "asyncgen.runtime.thread_state set_default_dtype": "put back behind code of a user",
    "asyncgen.generation.stopping.criteria as_tensor": "given ids; the caller refuses floats",
    "asyncgen.generation.watermarking.bayes randn": "weights that the user trains",
    "asyncgen.generation.watermarking.bayes tensor": "weights that the user trains",
    "asyncgen.models.activations empty": "weights, made where `torch.device` says",
    "asyncgen.models.decoder get_default_dtype": "networks that a user makes, as documented",
    "asyncgen.models.encoder_decoder get_default_dtype": "the same",
    "asyncgen.models.kernels.experts empty": "weights, made where `torch.device` says",
    "asyncgen.models.kernels.linear empty": "weights, made where `torch.device` says",
    "asyncgen.models.kernels.linear get_default_dtype": "layers that a user makes",
    "asyncgen.models.kernels.norm empty": "weights, made where `torch.device` says",
    "asyncgen.runtime.transfer as_tensor": "given numbers keep their type",
}
"""Modules that use a name without both, and why."""


def faults(source: str) -> dict[str, int]:
    """Return the names of torch that are used without dtype and device, with a line of each."""
    nodes = [*ast.walk(ast.parse(source))]
    named: set[int] = set()
    called: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            if {"dtype", "device"} <= {keyword.arg for keyword in node.keywords}:
                named |= {id(node.func), *map(id, node.args[:1])}  # a call, or `partial`
    found: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            names = {alias.name for alias in node.names} & (FACTORIES | BY_DEFAULT)
            found |= dict.fromkeys(names, node.lineno)
        elif isinstance(node, ast.Call) and _is_where_of_numbers(node):
            found["where"] = node.lineno
        elif isinstance(node, ast.Attribute) and _is_torch(node.value):
            is_unnamed = node.attr in FACTORIES and id(node) not in named
            is_old = node.attr == "Tensor" and id(node) in called
            if is_unnamed or is_old or node.attr in BY_DEFAULT:
                found[node.attr] = node.lineno
    return found


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "torch"


def _is_where_of_numbers(node: ast.Call) -> bool:
    """Return whether it chooses between two numbers, whose dtype is then the default."""
    is_where = isinstance(node.func, ast.Attribute) and node.func.attr == "where"
    return is_where and all(map(_is_number, node.args[1:3])) and len(node.args) == 3


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    is_constant = isinstance(node, ast.Attribute) and node.attr in ("inf", "nan")
    return isinstance(node, ast.Constant) or is_constant


def test_every_tensor_names_its_dtype_and_its_device() -> None:
    unnamed, used = [], set()
    for folder in ("asyncgen", "streamers", "apps/asyncgen_apps"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not _RELEVANT.search(source):
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("apps.")
            for name, line in faults(source).items():
                used.add(f"{module} {name}")
                if f"{module} {name}" not in ALLOWED:
                    unnamed.append(f"{path.relative_to(ROOT)}:{line}: torch.{name}")
    assert not unnamed, "name dtype and device, or use `asyncgen.runtime.transfer`"
    assert used == ALLOWED.keys(), "these exceptions are not needed any more"


@pytest.mark.parametrize(
    "source, name",
    [
        ("torch.tensor([1])", "tensor"),
        ("torch.zeros(3, dtype=torch.int64)", "zeros"),
        ("torch.arange(3, device='cpu')", "arange"),
        ("torch.rand(3, **options)", "rand"),
        ("map(torch.tensor, rows)", "tensor"),
        ("from torch import Tensor, empty", "empty"),
        ("torch.FloatTensor([1])", "FloatTensor"),
        ("torch.Tensor(3)", "Tensor"),
        ("torch.where(found, 0.0, -torch.inf)", "where"),
        ("dtype or torch.get_default_dtype()", "get_default_dtype"),
    ],
)
def test_what_depends_on_a_default_is_found(source: str, name: str) -> None:
    assert [*faults(source)] == [name]


def test_what_names_both_or_takes_them_over_is_fine() -> None:
    assert not faults(
        "from torch import Tensor\n"
        "torch.tensor([1], dtype=torch.int64, device='cpu')\n"
        "partial(torch.tensor, dtype=torch.int64, device='cpu')\n"
        "torch.ones_like(x), x.new_zeros(3), torch.from_numpy(x), isinstance(x, torch.Tensor)\n"
        "torch.frombuffer(x, dtype=torch.int64), torch.where(x, y, 0.0)\n"
    )
