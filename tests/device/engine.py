"""Busy engines on the device: what every request was told is what the network says of its text."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.device.context import Finding
from tests.device.numbers import network
from tests.engine.batches import Bench, ids_of
from tests.models.packing import alone

if TYPE_CHECKING:
    from tests.device.context import Context
    from tests.device.plan import Item
    from tests.doubles.sinks import RecordingSink

__all__ = ["ahead", "company", "lane", "long", "poison"]

ALLOWED = {torch.float32: 1e-3, torch.bfloat16: 0.15}
"""How far below the likeliest token one may be, in standard deviations: 16 bits round."""

MODES: tuple[dict[str, Any], ...] = (
    {"use_cuda_graph": False, "use_async_batching": False},
    {"use_cuda_graph": False, "use_async_batching": True},
    {"use_cuda_graph": True, "use_async_batching": False},
    {},
)

BESIDE: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 4},
    "beams, drawn": {"num_beams": 3, "do_sample": True, "seed": 1},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "guided": {"guidance_scale": 1.5},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "assisted": {"assistant_model": ...},
    "dola": {"dola_layers": "low"},
}


class _Engine(Bench):
    """An engine over a random network on the device."""

    def __init__(
        self,
        context: Context,
        dtype: torch.dtype,
        *,
        pages: int = 64,
        device: str = "",
        **more: Any,
    ) -> None:
        """Open it over so many pages."""
        options = {name: more.pop(name) for name in list(more) if name in _OPTIONS}
        core = network(context, **more).to(device or context.device, dtype)
        core.prepare()
        self.core = core
        self.page = 256 if context.device != "cpu" else 32
        self.vocabulary = core.config.vocab_size
        config = core.config
        position = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim
        super().__init__(
            PreTrainedModel(core, GenerationConfig(), "random"),
            pages=pages,
            page_size=self.page,
            position_bytes=position * dtype.itemsize,
            prefill_chunk_size=self.page // 2,
            **{"max_running": 16, **options},
        )

    def margin(self, prompt: list[int], sink: RecordingSink) -> float:
        """Return the distance of an answer's worst token below the likeliest, in standard
        deviations.

        An answer that failed, or ended for no reason, is infinitely far.
        """
        last, generated = sink.items[-1] if sink.items else None, ids_of(sink)
        if last is None or isinstance(last, BaseException) or last.finish_reason is None:
            return math.inf
        if not generated:
            return 0.0 if last.finish_reason == "cancelled" else math.inf
        ids = torch.tensor(prompt + generated, device=self.core.device)
        behind = alone(self.core, ids)[len(prompt) - 1 : -1].float()
        chosen = behind.gather(1, ids[len(prompt) :, None])[:, 0]
        below = ((behind.amax(-1) - chosen) / behind.std()).max()
        return float(below.nan_to_num(torch.inf))

    @property
    def has_recorded(self) -> bool:
        """Tell whether steps were recorded, and each recording was used."""
        graphs = self.batch._runner._graphs
        return graphs is not None and graphs.failure is None and bool(graphs.sizes)

    @property
    def recordings(self) -> str:
        """Return the number of recorded sizes, or the reason why there is none."""
        graphs = self.batch._runner._graphs
        if graphs is None:
            return "not recorded"
        return graphs.failure or f"{len(graphs.sizes)} sizes recorded"


_OPTIONS = ("max_running", "use_cuda_graph", "use_async_batching", "prefix_caching")


def _prompts(engine: _Engine, count: int, longest: int, seed: int = 5) -> list[list[int]]:
    draw = random.Random(seed)
    ids = range(3, engine.vocabulary - 1)
    return [draw.choices(ids, k=draw.randint(1, longest)) for _ in range(count)]


def ahead(context: Context, item: Item) -> Finding:
    """In every mode the likeliest tokens; in float32 the same ones, drawn ones too."""
    sizes = context.sizes
    margins, said, recorded = {}, [], []
    for mode in MODES:
        engine = _Engine(context, torch.bfloat16, **mode)
        sinks = []
        for number, prompt in enumerate(_prompts(engine, sizes.requests, 3 * engine.page)):
            given = {"max_new_tokens": sizes.new_tokens + number, "eos_token_id": [2, 60 + number]}
            sinks.append((prompt, engine.add(prompt, **given)[1]))
            engine.step()
        engine.run()
        engine.require_empty()
        name = ", ".join(f"{key}={value}" for key, value in mode.items()) or "defaults"
        margins[name] = max(engine.margin(prompt, sink) for prompt, sink in sinks)
        said.append(f"{name}: {engine.recordings}")
        recorded.append(engine.has_recorded is mode.get("use_cuda_graph", True))
    texts = []
    for mode in MODES[:2]:
        engine = _Engine(context, torch.float32, **mode)
        sinks = []
        for number, prompt in enumerate(_prompts(engine, sizes.requests, engine.page)):
            given = {"max_new_tokens": sizes.new_tokens + number, "eos_token_id": 2}
            if number % 2:
                given |= {"do_sample": True, "top_p": 0.9, "top_k": 20, "seed": number}
            sinks.append((prompt, engine.add(prompt, **given)[1]))
            engine.step()
        engine.run()
        engine.require_empty()
        texts.append([ids_of(sink) for _, sink in sinks if sink.events[-1].finish_reason])
    equal = sum(bool(one) and one == other for one, other in zip(*texts, strict=True))
    worst = max(margins.values())
    figures = {"margins": margins, "modes": said, "equal": equal, "of": len(texts[0])}
    holds = worst < ALLOWED[torch.bfloat16] and equal == sizes.requests and all(recorded)
    line = f"{len(MODES)} modes, worst token {worst:.1e} std below the likeliest"
    return Finding(
        holds, f"{line}; float32: {equal} of {len(texts[0])} texts equal; {said[-1]}", figures
    )


def company(context: Context, item: Item) -> Finding:
    """Too few pages for all, common beginnings, and some that leave in the middle."""
    sizes, draw = context.sizes, random.Random(2)
    engine = _Engine(context, torch.bfloat16, pages=9, max_running=8)
    common = _prompts(engine, 1, 1, seed=9)[0] * (engine.page + 3)
    running: list[Any] = []
    for number, prompt in enumerate(_prompts(engine, sizes.requests, engine.page)):
        whole = (common if number % 2 else []) + prompt
        given: dict[str, Any] = {"max_new_tokens": engine.page + 10, "eos_token_id": 2}
        running.append((whole, *engine.add(whole, **given)))
        for _ in range(draw.randint(1, 12)):
            engine.step()
        if number % 3 == 2:
            engine.engine.abort(draw.choice(running)[1])
    engine.run(limit=100_000)
    engine.require_empty()
    worst = max(engine.margin(prompt, sink) for prompt, _, sink in running)
    last = [sink.events[-1] for _, _, sink in running]
    cancelled = sum(event.finish_reason == "cancelled" for event in last)
    cached = sum(event.usage.cached_tokens for event in last if event.usage is not None)
    preempted = engine.batch.scheduler.num_preemptions
    figures = {"margin": worst, "preemptions": preempted, "cached": cached, "cancelled": cancelled}
    line = f"{preempted} preemptions, {cached} tokens of prompts shared, {cancelled} cancelled, "
    line += f"all pages back; worst token {worst:.1e} std below the likeliest"
    holds = worst < ALLOWED[torch.bfloat16] and bool(preempted and cached and cancelled)
    return Finding(holds, line, figures)


def poison(context: Context, item: Item) -> Finding:
    """One request whose numbers are NaN; the others, and those that get its pages later."""
    engine = _Engine(context, torch.bfloat16, pages=17, max_running=8)
    bad = engine.vocabulary - 1
    engine.core.embed_tokens.weight[bad] = torch.nan
    given: dict[str, Any] = {"max_new_tokens": 20, "suppress_tokens": [bad], "eos_token_id": 2}
    sinks: list[tuple[list[int], RecordingSink]] = []
    failed = []
    for wave in range(3):
        prompts = _prompts(engine, 5, engine.page, seed=wave)
        sinks += [(prompt, engine.add(prompt, **given)[1]) for prompt in prompts]
        failed.append(engine.add([bad, *sinks[-1][0]], **given)[1])
        engine.run()
        engine.require_empty()
    errors = [type(sink.items[-1]).__name__ for sink in failed]
    alone_failed = all(isinstance(sink.items[-1], FloatingPointError) for sink in failed)
    worst = max(engine.margin(prompt, sink) for prompt, sink in sinks)
    line = f"the poisoned ended with {', '.join(sorted(set(errors)))}; of {len(sinks)} others the "
    line += f"worst token is {worst:.1e} std below the likeliest"
    holds = worst < ALLOWED[torch.bfloat16] and alone_failed
    return Finding(holds, line, {"margin": worst, "errors": errors})


def lane(context: Context, item: Item) -> Finding:
    """Strategies beside a busy batch, in float32: the tokens of a CPU."""
    texts: list[dict[str, list[int]]] = []
    for device in ("cpu", context.device):
        engine = _Engine(context, torch.float32, device=device)
        draft = network(context, num_hidden_layers=1).to(device)
        assistant = PreTrainedModel(draft, GenerationConfig(), "draft")
        sinks = {}
        for number, (name, given) in enumerate(BESIDE.items()):
            prompt = _prompts(engine, 1, engine.page, seed=number)[0] * 2
            own = {key: assistant if value is ... else value for key, value in given.items()}
            sinks[name] = engine.add(prompt, max_new_tokens=12, eos_token_id=2, **own)[1]
            beside = _prompts(engine, 1, engine.page, seed=50 + number)[0]
            sinks[f"batch {number}"] = engine.add(beside, max_new_tokens=12, eos_token_id=2)[1]
            engine.step()
        engine.run()
        engine.require_empty()
        texts.append({name: ids_of(sink) for name, sink in sinks.items() if sink.events})
    other = [name for name, ids in texts[0].items() if not ids or ids != texts[1].get(name)]
    line = f"{len(texts[0]) - len(other)} of {len(texts[0])} texts equal to the CPU's"
    line += f"; other: {', '.join(other)}" if other else f" ({', '.join(BESIDE)})"
    return Finding(not other, line, {"other": other})


def long(context: Context, item: Item) -> Finding:
    """A long prompt in chunks, and what is decoded behind it, beside short ones."""
    engine = _Engine(context, torch.bfloat16, pages=80)
    draw = random.Random(4)
    prompt = draw.choices(range(3, 200), k=context.sizes.long)
    prompts = [prompt, *_prompts(engine, 4, engine.page)]
    sinks = [(own, engine.add(own, max_new_tokens=40, eos_token_id=2)[1]) for own in prompts]
    engine.run(limit=100_000)
    engine.require_empty()
    worst = max(engine.margin(own, sink) for own, sink in sinks)
    line = f"{len(prompt)} tokens and {len(ids_of(sinks[0][1]))} behind them: worst token "
    line += f"{worst:.1e} std below the likeliest; {engine.recordings}"
    holds = worst < ALLOWED[torch.bfloat16] and engine.has_recorded
    return Finding(holds, line, {"margin": worst})
