"""Networks and samplers on the device against the same on a CPU: numbers, without an engine."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.engine.sampling.sampler import BatchSampler
from asyncgen.engine.setup import assembly
from asyncgen.generation.config import GenerationConfig
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.cuda_graphs import DecodeGraphs
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.device.context import Finding
from tests.engine.batches import Bench
from tests.engine.making import sequence_of
from tests.models.build import random_config, random_model
from tests.models.packing import alone, make_rows, num_groups, packed, run

if TYPE_CHECKING:
    from asyncgen.engine.batch.sequence import Sequence
    from asyncgen.engine.setup.assembly import DeviceKind
    from asyncgen.models.attention.paged.fused import FusedKernel
    from asyncgen.models.decoder import DecoderLM
    from tests.device.context import Context
    from tests.device.plan import Item

__all__ = ["dtypes", "network", "paged", "recorded", "seeds", "windows"]

PAGE = 256
SHORT = {torch.bfloat16: 0.15, torch.float16: 0.15, torch.float32: 1e-3}
"""Largest deviation of a logit, in standard deviations of the logits."""

WINDOW = 300

DRAWN: tuple[dict[str, Any], ...] = (
    {"do_sample": True},
    {"do_sample": True, "temperature": 0.6},
    {"do_sample": True, "top_k": 40},
    {"do_sample": True, "top_p": 0.9},
    {"do_sample": True, "min_p": 0.05, "temperature": 1.3},
    {"do_sample": True, "top_k": 30, "top_p": 0.8, "temperature": 0.8},
    {"do_sample": True, "typical_p": 0.7},
    {"do_sample": True, "epsilon_cutoff": 3e-4},
    {"do_sample": True, "eta_cutoff": 3e-4},
    {"do_sample": True, "top_h": 0.5},
    {"do_sample": True, "repetition_penalty": 1.3, "top_p": 0.95},
    {"do_sample": True, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"do_sample": True, "no_repeat_ngram_size": 2, "min_new_tokens": 30},
    {"do_sample": True, "sequence_bias": [[[7], 4.0], [[8, 9], -2.0]], "suppress_tokens": [3, 4]},
    {"do_sample": True, "xtc_probability": 0.5, "xtc_threshold": 0.005},
    {"do_sample": True, "top_n_sigma": 1.5, "typical_p": 0.9},
    {"do_sample": True, "dynatemp_range": 0.4, "dynatemp_exponent": 2.0},
    {"do_sample": True, "mirostat": 1, "mirostat_tau": 3.0},
    {"do_sample": True, "mirostat": 2, "mirostat_tau": 3.0},
    {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": []},
    {"repetition_penalty": 1.2, "repeat_last_n": 8},
    {"repetition_penalty": 1.2},
    {},
)


def network(context: Context, model_type: str = "llama", **more: Any) -> DecoderLM:
    """A random network in float32 on the CPU, of a width that suits the device's kernels."""
    hidden = context.sizes.hidden
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": hidden // 8}
    if model_type == "gpt2":
        heads |= {"num_key_value_heads": ..., "head_dim": ...}  # type: ignore[dict-item]
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, **heads}
    sizes |= {"max_position_embeddings": context.sizes.long + 1024, "vocab_size": 512}
    # Sums over more features are larger: a wide network would be chaotic in 16 bits.
    spread = 0.1 * (64 / hidden) ** 0.5
    return random_model(random_config(model_type, **{**sizes, **more}), seed=3, spread=spread)


def kind(context: Context) -> DeviceKind:
    """Return the engine's way to use the device, or its stand-in."""
    found: DeviceKind = vars(assembly)["kind_of"](torch.device(context.device))
    return found


def _storage(core: DecoderLM, context: Context, pages: int = 40) -> PagedStorage:
    return PagedStorage(
        core.config,
        pages * num_groups(core),
        PAGE,
        device=context.device,
        dtype=core.dtype,
        heads_first=False,
    )


def _kernel_name(kernel: FusedKernel | None) -> str:
    if kernel is None:
        return "unfused"
    return "pages" if kernel.reads_pages else "gathered"


def _deviation(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest one of any logit, in standard deviations; NaN counts as infinite."""
    worst = 0.0
    for ours, wanted in zip(found, expected, strict=True):
        difference = (ours.float().cpu() - wanted.float().cpu()).abs().max()
        worst = max(worst, float(difference.nan_to_num(torch.inf) / wanted.float().std().cpu()))
    return worst


def _packed(
    core: DecoderLM, context: Context, lengths: tuple[int, ...]
) -> tuple[list[torch.Tensor], str]:
    """Logits of texts in random mixes of chunks and single tokens, and by what kernel."""
    attention = PagedAttention(core.config, _storage(core, context))
    groups = num_groups(core)
    pages = random.Random(3).sample(range(40 * groups), 40 * groups)
    rows = make_rows(list(lengths), PAGE, pages, 0, groups)
    for row in rows:
        row.ids = row.ids.to(context.device)
    # Long pieces: a pass a token would take a while.
    found = run(core, attention, rows, random.Random(5), most=400, forgets=True)
    return found, _kernel_name(attention.fused)


def _compare(context: Context, cases: dict[str, dict[str, Any]]) -> Finding:
    """Networks in each dtype on the device, against float32 on the CPU.

    Args:
        context: The device.
        cases: What their configurations say beside the usual, by architecture.
    """
    lengths = context.sizes.lengths
    figures: dict[str, Any] = {}
    worst = dict.fromkeys(SHORT, 0.0)
    wrong = []
    for model_type, more in cases.items():
        core = network(context, model_type, **more)
        expected = [alone(core, row.ids) for row in make_rows(list(lengths), PAGE, [*range(40)])]
        for dtype, allowed in SHORT.items():
            # A network that is sent somewhere is not what it was.
            core = network(context, model_type, **more).to(context.device, dtype)
            found, kernel = _packed(core, context, lengths)
            deviation = _deviation(found, expected)
            figures[f"{model_type} {_name(dtype)}"] = {"deviation": deviation, "kernel": kernel}
            worst[dtype] = max(worst[dtype], deviation)
            if not deviation < allowed:
                wrong.append(f"{model_type} {_name(dtype)} by {deviation:.2g}")
    kernels = ", ".join(sorted({figure["kernel"] for figure in figures.values()}))
    said = ", ".join(f"{_name(dtype)} {deviation:.1e}" for dtype, deviation in worst.items())
    said = f"{len(figures)} cases, largest deviations {said} std; attention {kernels}"
    return Finding(not wrong, f"{said}; too far: {', '.join(wrong)}" if wrong else said, figures)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtypes(context: Context, item: Item) -> Finding:
    """Architectures in every dtype."""
    return _compare(context, {name: {} for name in ("llama", "qwen3", "gpt2", "qwen2")})


def windows(context: Context, item: Item) -> Finding:
    """Layers that see the last tokens only, all or some of them."""
    some = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    return _compare(context, {"mistral": {"sliding_window": WINDOW}, "qwen2": some})


def paged(context: Context, item: Item) -> Finding:
    """Packed over pages and alone in a dense cache, both on the device."""
    figures: dict[str, Any] = {}
    for dtype, allowed in SHORT.items():
        core = network(context).to(context.device, dtype)
        found, kernel = _packed(core, context, context.sizes.lengths)
        texts = make_rows(list(context.sizes.lengths), PAGE, list(range(40)))
        expected = [alone(core, row.ids.to(context.device)) for row in texts]
        deviation = _deviation(found, expected)
        figures[_name(dtype)] = {
            "deviation": deviation,
            "kernel": kernel,
            "holds": deviation < allowed,
        }
    said = ", ".join(f"{name} {each['deviation']:.1e}" for name, each in figures.items())
    return Finding(all(each["holds"] for each in figures.values()), f"{said} std", figures)


def recorded(context: Context, item: Item) -> Finding:
    """Steps that are repeated against the same steps computed as they come."""
    core = network(context, "mistral", sliding_window=WINDOW)
    core = core.to(context.device, torch.bfloat16)
    storage = _storage(core, context, 41)
    attention = PagedAttention(core.config, storage)
    kernel = attention.fused
    make = kind(context).recorder
    if kernel is None or not kernel.is_recordable or make is None:
        return Finding(False, f"nothing can be recorded: attention is {_kernel_name(kernel)}")
    graphs = DecodeGraphs(
        core,
        storage,
        kernel,
        make(torch.device(context.device)),
        rows=[1, 2, 4],
        pages=[4, 8],
        scratch=40,
        most_gathered=2**30,
        after=0,
    )
    rows = make_rows(list(context.sizes.lengths), PAGE, random.Random(3).sample(range(40), 40))
    for row in rows:
        row.ids = row.ids.to(context.device)
        row.count = max(len(row.ids) - 12, 1)
        packed(core, attention, [row])
        row.start, row.count = row.count, 1
    chooser, worst, steps, equal = random.Random(1), 0.0, 0, 0
    while True:
        left = [row for row in rows if row.start < len(row.ids)]
        if not left:
            break
        some = chooser.sample(left, chooser.randint(1, min(len(left), 4)))
        plain = torch.cat(packed(core, attention, some))
        found = graphs.logits(some, [int(row.ids[row.start]) for row in some])
        if found is None:
            return Finding(False, f"a step was not recorded: {graphs.failure}")
        steps += 1
        equal += torch.equal(found, plain)
        worst = max(worst, _deviation([found], [plain]))
        for row in some:
            row.start += 1
    figures = {"steps": steps, "equal": equal, "deviation": worst, "sizes": len(graphs.sizes)}
    said = f"{steps} steps of {len(graphs.sizes)} sizes, {equal} equal to the last bit"
    said += f", largest deviation {worst:.1e} std; attention {_kernel_name(kernel)}"
    return Finding(worst < SHORT[torch.bfloat16], said, figures)


def seeds(context: Context, item: Item) -> Finding:
    """Tokens drawn on the device and on the CPU from the same numbers, with the same seeds."""
    vocabulary = context.sizes.vocabulary
    core = random_model(random_config("llama", vocab_size=vocabulary))
    bench = Bench(PreTrainedModel(core, GenerationConfig(), "random"), pages=2**14)
    draw = torch.Generator().manual_seed(1)
    samplers = [BatchSampler(vocabulary, device) for device in ("cpu", context.device)]
    rows: list[list[Sequence]] = [[], []]
    for number, given in enumerate(DRAWN * 2):
        prompt = torch.randint(vocabulary, (9,), generator=draw).tolist()
        for own in rows:
            request, _ = bench.prepare(prompt, max_new_tokens=40, seed=number, **given)
            own.append(sequence_of(request, 0))
            own[-1].tokens = list(prompt)
    drawn, other, beyond = 0, 0, []
    for _ in range(context.sizes.draws):
        logits = 3 * torch.randn(len(rows[0]), vocabulary, generator=draw)
        here = samplers[0].sample(logits, rows[0])
        there = samplers[1].sample(logits.to(context.device), rows[1])
        if here.failures or there.failures:
            raise RuntimeError(f"rows failed: {here.failures or there.failures}")
        for number, (ours, theirs) in enumerate(zip(here.token_ids, there.token_ids, strict=True)):
            drawn += 1
            if ours != theirs:
                other += 1
                if not _is_rounding(samplers[0], logits[number], rows[0], number, theirs):
                    beyond.append(str(DRAWN[number % len(DRAWN)]))
            assert ours is not None
            for own in rows:
                own[number].tokens.append(ours)
    figures = {"drawn": drawn, "other": other, "beyond_rounding": beyond}
    said = f"{drawn - other} of {drawn} tokens equal, {other - len(beyond)} within rounding"
    return Finding(not beyond, f"{said}; not so: {', '.join(beyond)}" if beyond else said, figures)


def _is_rounding(
    sampler: BatchSampler,
    logits: torch.Tensor,
    rows: list[Sequence],
    number: int,
    token: int | None,
) -> bool:
    """Tell whether logits that differ by a rounding error give this token."""
    for seed in range(20):
        noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed))
        moved = (logits + (noise - 0.5) * 1e-4)[None]
        if sampler.sample(moved, [rows[number]]).token_ids[0] == token:
            return True
    return False
