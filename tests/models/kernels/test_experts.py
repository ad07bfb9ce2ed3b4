"""Mixtures of experts: the plain formula, one token and one expert at a time, and its company."""

from __future__ import annotations

import copy
import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close as close

from asyncgen import native
from asyncgen.families.plans.experts_plan import ExpertsPlan, GatePlan, Routing
from asyncgen.models.kernels import native_linear
from asyncgen.models.kernels.experts import PLAIN_GATES, Experts, pass_gate
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import NativeStack
from asyncgen.models.kernels.routing import choose

if TYPE_CHECKING:
    from collections.abc import Callable

NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 2.5e-3}
DTYPES = [
    dtype
    for dtype in NEAR
    if dtype != torch.bfloat16 or not native.kernels or native.supports(dtype)
]
"""Those that our kernels have here, if they run here at all."""
KERNELS = ["ours", "torch"]

ROUTINGS: dict[str, tuple[Routing, bool]] = {
    "softmax": (Routing(2), False),
    "normalised": (Routing(3, is_normalised=True, scale=1.5), False),
    "one": (Routing(1), False),
    "all": (Routing(12, is_normalised=True), False),
    "corrected softmax": (Routing(3, is_normalised=True), True),
    "best groups": (Routing(2, groups=4, chosen_groups=2, scale=4.0), False),
    "sigmoid": (Routing(3, "sigmoid"), False),
    "corrected groups": (
        Routing(3, "sigmoid", True, 2.5, groups=3, chosen_groups=2, best_of_group=2),
        True,
    ),
    "corrected logits": (Routing(3, "sigmoid", corrects_logits=True), True),
    "sparsemixer": (Routing(2, "sparsemixer", tolerance=0.02), False),
    "weighed inputs": (Routing(2, "sigmoid", weighs_inputs=True), False),
}
"""How experts are chosen, and whether scores are corrected."""

GATES = [GatePlan(), GatePlan("gelu"), GatePlan("gelu_tanh"), GatePlan("clamped", 1.702, 0.5)]


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with our kernels and with torch's."""
    if request.param == "torch":
        monkeypatch.setattr(native, "kernels", None)
    elif native.kernels is None:
        pytest.skip("our own kernels do not run here")
    return str(request.param)


def made(
    routing: Routing,
    *,
    hidden: int = 40,
    width: int = 24,
    experts: int = 12,
    dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None,
    prepares: bool = True,
    **options: Any,
) -> Experts:
    """Random experts; ``stored`` is what a file has the weights in."""
    generator = torch.Generator().manual_seed(7)
    found = Experts(hidden, ExpertsPlan(experts, width, routing, **options), dtype=dtype)
    for name, parameter in found.named_parameters():
        spread = 1.0 if "router" in name or "correction" in name else 0.5
        values = spread * torch.randn(parameter.shape, generator=generator)
        parameter.data = values.to(stored or parameter.dtype)
    if prepares:
        prepare(found)
    return found


def prepare(experts: Experts) -> None:
    for module in experts.children():
        if isinstance(module, Linear):
            module.prepare()
    experts.prepare()


def plainly_chosen(routing: Routing, logits: Tensor, correction: Tensor | None) -> dict[int, float]:
    """Weigh a token's experts, by their numbers; logits ``[X]`` in float64."""
    values = logits.tolist()
    if routing.scoring == "sparsemixer":
        found: dict[int, float] = {}
        for _ in range(routing.chosen):
            rest = [number for number in range(len(values)) if number not in found]
            best = max(rest, key=values.__getitem__)
            top = values[best]
            near = [
                number
                for number in rest
                if (top - values[number]) / max(abs(values[number]), top) <= routing.tolerance
            ]
            found[best] = 1 / sum(math.exp(values[number] - top) for number in near)
        return found
    scores = (logits.softmax(0) if routing.scoring == "softmax" else logits.sigmoid()).tolist()
    added = [0.0] * len(values) if correction is None else correction.tolist()
    ranked = values if routing.corrects_logits else scores
    ranks = [each + more for each, more in zip(ranked, added, strict=True)]
    size = len(ranks) // routing.groups
    groups = [range(first, first + size) for first in range(0, len(ranks), size)]
    worth = [
        sum(sorted((ranks[number] for number in group), reverse=True)[: routing.best_of_group])
        for group in groups
    ]
    best_groups = sorted(range(len(groups)), key=worth.__getitem__)[-routing.chosen_groups :]
    allowed = [number for group in best_groups for number in groups[group]]
    ids = sorted(allowed, key=ranks.__getitem__)[-routing.chosen :]
    total = sum(scores[number] for number in ids) if routing.is_normalised else 1.0
    return {number: scores[number] / total * routing.scale for number in ids}


def plainly(experts: Experts, x: Tensor) -> Tensor:
    """Compute the experts of rows in float64, one token after another."""
    plan, count, x = experts.plan, experts.plan.experts, x.double()

    def matrices_of(module: Any, number: int = 1) -> list[tuple[Tensor, Tensor | None]]:
        weights = module.dense_weight().double().chunk(number)
        biases = [None] * number if module.bias is None else module.bias.double().chunk(number)
        return list(zip(weights, biases, strict=True))

    def fed(row: Tensor, first: Any, second: Any) -> Tensor:
        wide = F.linear(row, *first)
        if plan.gate.is_gated:
            return F.linear(pass_gate(plan.gate, *wide.chunk(2)), *second)
        return F.linear(PLAIN_GATES[plan.gate.kind](wide), *second)

    (router,), shared = matrices_of(experts.router), None
    downs = matrices_of(experts.down, count)
    pairs = list(zip(matrices_of(experts.gate_up, count), downs, strict=True))
    if experts.shared_gate_up is not None:
        shared = matrices_of(experts.shared_gate_up)[0], matrices_of(experts.shared_down)[0]
    correction = None if experts.correction is None else experts.correction.weight.double()
    rows = []
    for row in x:
        logits = F.linear(row, *router)
        entered = row if experts.enter is None else F.linear(row, *matrices_of(experts.enter)[0])
        total = torch.zeros_like(entered)
        for number, weight in plainly_chosen(plan.routing, logits[:count], correction).items():
            before, behind = (weight, 1.0) if plan.routing.weighs_inputs else (1.0, weight)
            total += behind * fed(before * entered, *pairs[number])
        if experts.leave is not None:
            total = F.linear(total, *matrices_of(experts.leave)[0])
        if shared is not None:
            passed = logits[count].sigmoid() if plan.is_shared_gated else 1
            total += fed(row, *shared) * passed
        rows.append(total)
    return torch.stack(rows)


def check(experts: Experts, rows: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows)).to(dtype)
    expected = plainly(experts, x)
    stream = torch.ones(rows, 40, dtype=dtype)
    experts.add_to(stream, x)
    near = NEAR[dtype]
    size = float(expected.abs().max())
    close(stream.double(), expected + 1, atol=size * near, rtol=near)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_every_router(name: str, dtype: torch.dtype, kernels: str) -> None:
    routing, corrects = ROUTINGS[name]
    experts = made(routing, dtype=dtype, is_corrected=corrects)
    assert (experts.compiled is None) == (kernels == "torch")
    for rows in (1, 2, 7):
        check(experts, rows, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.kind)
def test_every_gate_with_biases(gate: GatePlan, dtype: torch.dtype, kernels: str) -> None:
    routing = Routing(3, is_normalised=True)
    check(made(routing, dtype=dtype, gate=gate, has_bias=True, has_router_bias=True), 9, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["relu2", "relu", "silu"])
@pytest.mark.parametrize("latent", [0, 19])
def test_experts_without_gates_and_of_rows_of_their_own(
    kind: Any, latent: int, dtype: torch.dtype, kernels: str
) -> None:
    options: dict[str, Any] = {"gate": GatePlan(kind, is_gated=False), "latent": latent}
    experts = made(Routing(3, is_normalised=True), dtype=dtype, shared_width=33, **options)
    for rows in (1, 7):
        check(experts, rows, dtype)
    if kernels == "ours":  # no row's numbers depend on its company
        x = torch.randn(7, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
        assert torch.equal(experts(x)[2:3], experts(x[2:3]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_choice_that_was_made_before(dtype: torch.dtype, kernels: str) -> None:
    experts = made(Routing(3, is_normalised=True), dtype=dtype)
    for rows in (1, 2, 7):
        x = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows)).to(dtype)
        logits = F.linear(x.double(), experts.router.dense_weight().double())
        ids, weights = choose(experts.plan.routing, logits, None)
        stream = torch.ones(rows, 40, dtype=dtype)
        experts.add_chosen(stream, x, ids, (2 * weights).float())
        expected = 2 * plainly(experts, x)
        near, size = NEAR[dtype], float(expected.abs().max())
        close(stream.double(), expected + 1, atol=size * near, rtol=near)
    if kernels == "ours":
        for wrong in (ids[:1], ids + 12, ids - 12):
            with pytest.raises(ValueError, match="ids are|there is no expert"):
                experts.add_chosen(stream, x, wrong, weights.float())
        with pytest.raises(ValueError, match="weights are"):
            experts.add_chosen(stream, x, ids, weights[:1].float())
        with pytest.raises(ValueError, match="they share memory"):
            experts.add_chosen(stream[:1].expand(7, 40), x, ids, weights.float())
        options: dict[str, Any] = {"shared_width": 24, "is_shared_gated": True}
        gated = made(Routing(3, is_normalised=True), dtype=dtype, **options)
        with pytest.raises(ValueError, match="gate of the shared expert"):
            gated.add_chosen(stream, x, ids, weights.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gates_shared", [False, True])
def test_a_shared_expert(gates_shared: bool, dtype: torch.dtype, kernels: str) -> None:
    gate = GatePlan("gelu" if gates_shared else "silu")
    options: dict[str, Any] = {"shared_width": 56, "is_shared_gated": gates_shared}
    experts = made(Routing(2), dtype=dtype, gate=gate, **options)
    for rows in (1, 7):
        check(experts, rows, dtype)


@pytest.mark.parametrize(("width", "experts"), [(1, 2), (15, 17), (33, 33), (16, 16)])
def test_odd_sizes(width: int, experts: int, kernels: str) -> None:
    for dtype in DTYPES:
        check(made(Routing(2), width=width, experts=experts, dtype=dtype), 5, dtype)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_give_what_they_give_in_float32(
    stored: torch.dtype, kernels: str
) -> None:
    options: dict[str, Any] = {"shared_width": 24, "is_shared_gated": True}
    short = made(Routing(3), stored=stored, **options)
    wide = made(Routing(3), stored=stored, prepares=False, **options)
    for parameter in wide.parameters():
        parameter.data = parameter.data.float()
    prepare(wide)
    x = torch.randn(11, 40)
    assert torch.equal(short(x), wide(x))
    if kernels == "ours":
        assert isinstance(short.gate_up.kernel, NativeStack)
        assert short.gate_up.kernel.dense().dtype == stored


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_tokens_on_one_expert_and_none_on_most(dtype: torch.dtype, kernels: str) -> None:
    experts = made(Routing(1), dtype=dtype, has_router_bias=True, prepares=False)
    assert experts.router.bias is not None
    experts.router.bias.data = torch.full((12,), -1e4).index_fill(0, torch.tensor([5]), 1e4)
    prepare(experts)
    check(experts, 70, dtype)


@pytest.mark.skipif(native.kernels is None, reason="torch's kernels promise rounding at best")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["normalised", "corrected groups", "sparsemixer", "weighed inputs"]
)
def test_token_results_do_not_depend_on_other_rows(name: str, dtype: torch.dtype) -> None:
    routing, corrects = ROUTINGS[name]
    options: dict[str, Any] = {
        "shared_width": 24,
        "is_shared_gated": True,
        "is_corrected": corrects,
    }
    experts = made(routing, dtype=dtype, **options)
    x = torch.randn(700, 40).to(dtype)
    together = experts(x)
    for count in (1, 2, 13, 40, 300):
        for first in (0, 37, 700 - count):
            part = slice(first, first + count)
            assert torch.equal(experts(x[part]), together[part])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(experts(x), together)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["softmax", "corrected groups", "sparsemixer", "weighed inputs"])
def test_nan_and_infinity_stay_in_their_row(name: str, dtype: torch.dtype, kernels: str) -> None:
    routing, corrects = ROUTINGS[name]
    experts = made(routing, dtype=dtype, is_corrected=corrects, shared_width=24)
    x = torch.randn(20, 40).to(dtype)
    clean = experts(x)
    x[7], x[18] = torch.nan, torch.inf
    found = experts(x)
    assert found[7].isnan().all()
    assert not found[18].isfinite().any()
    others = [row for row in range(20) if row not in (7, 18)]
    loose = kernels == "torch"
    close(found[others], clean[others], atol=1e-4 if loose else 0, rtol=0.02 if loose else 0)


@pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighs_inputs", [False, True])
def test_memory_around_rows_and_weights_is_not_read(
    weighs_inputs: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surrounded(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        lying = torch.full((math.prod(shape) + 8192,), torch.nan, dtype=dtype)
        return lying[4096:-4096].view(shape)

    monkeypatch.setattr(native_linear, "empty_weight", surrounded)
    routing = Routing(2, weighs_inputs=weighs_inputs)
    experts = made(routing, hidden=37, width=19, dtype=dtype, shared_width=11)
    wide = torch.full((11, 80), torch.nan, dtype=dtype)
    wide[1:-1, 20:57] = torch.randn(9, 37)
    x = wide[1:-1, 20:57]
    around = torch.zeros(11, 80, dtype=dtype)
    experts.add_to(around[1:-1, 10:47], x)
    assert torch.equal(around[1:-1, 10:47], experts(x.contiguous()))
    assert torch.isfinite(around).all()
    around[1:-1, 10:47] = 0
    assert not around.any()


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda experts: pickle.loads(pickle.dumps(experts))]
)
def test_copies(twin: Callable[[Experts], Experts], kernels: str) -> None:
    experts = made(Routing(2), has_bias=True, shared_width=8, is_corrected=True)
    x = torch.randn(3, 40)
    assert torch.equal(twin(experts)(x), experts(x))


def test_moving_to_another_dtype(kernels: str) -> None:
    experts = made(Routing(2), shared_width=24)
    weight = experts.gate_up.dense_weight()
    assert weight.shape == (12 * 48, 40)
    experts.to(torch.bfloat16)
    assert experts.router.dtype == torch.float32
    assert torch.equal(experts.gate_up.dense_weight(), weight.bfloat16())
    check(experts, 5, torch.bfloat16)


@pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")
def test_mismatched_inputs_and_routings_are_refused() -> None:
    experts = made(Routing(2))
    compiled: Any = experts.compiled
    for wrong in (torch.ones(3, 39), torch.ones(3, 40).double(), torch.ones(40), torch.ones(2, 40)):
        with pytest.raises(ValueError, match=r"these experts take and give \[N, 40\]"):
            compiled.add_to(torch.ones(3, 40), wrong)
    with pytest.raises(ValueError, match="7 of 12 experts cannot be chosen from 1 of 2 groups"):
        made(Routing(7, groups=2))


def test_the_first_of_equal_experts_is_chosen() -> None:
    ids, weights = choose(Routing(1), torch.tensor([[1.0, 3.0, 2.0]]), None)
    assert ids.tolist() == [[1]]
    close(weights, torch.tensor([[1.0, 3.0, 2.0]]).softmax(-1)[:, 1:2])
