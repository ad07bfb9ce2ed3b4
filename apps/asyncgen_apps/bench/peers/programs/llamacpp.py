"""Run llama.cpp by its C interface, in a loop that batches as its server does.

Every step carries the next token of each running text and as much of new prompts as fits into a
batch. A text reuses the part of its beginning that its slot has. Weights are converted to GGUF, in
the type to compute in: BF16 at bfloat16 (keys and values F16, its default), F32 at float32. Its
own quantiser packs that file; it keeps tables in more bits, and chooses another type for rows that
do not fit (Q4_K needs 256 inputs).
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Unpack

    from asyncgen_apps.bench.peers.programs.protocol import Task

BATCH = 2048
MOST_SLOTS = 128
MARGIN = 64
"""Tokens of a slot beyond its text."""


class Slot:
    """Place of one text in a context.

    Attributes:
        tokens: Tokens whose keys and values it has.
        left: Tokens of its text that are not computed yet.
        index: The request that it answers, ``None`` if it is free.
    """

    def __init__(self) -> None:
        """Make an empty, free slot."""
        self.tokens: list[int] = []
        self.left: list[int] = []
        self.index: int | None = None


class DecodeLoop:
    """Program that steps a context: a slot for each request, or a long one for a lone request."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._lib: Any = None
        self._model: Any = None
        self._contexts: dict[bool, tuple[Any, int, int]] = {}
        self._slots: dict[bool, list[Slot]] = {}
        self._alone = True
        self._queue: list[tuple[int, list[int]]] = []
        self._ends: dict[int, int] = {}

    def load(self, **task: Unpack[Task]) -> dict[str, str]:
        """Convert the checkpoint, unless that is done, and open it."""
        import gguf
        import llama_cpp

        self._lib = llama_cpp
        self._dtype, self._threads = task["dtype"], task["threads"]
        file = Path(task["work"]) / f"{self._dtype}.gguf"
        if not file.exists():
            convert(Path(task["folder"]), file, self._dtype)
        llama_cpp.llama_backend_init()
        weights = task.get("weights")
        if weights is not None:
            file = quantised(llama_cpp, file, weights)
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        if not self._model:
            raise RuntimeError(f"it cannot load {file.name}")
        self._words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._open(alone=True, slots=1, length=task["length"])
        information = llama_cpp.llama_print_system_info().decode().strip(" |")
        return {
            "version": llama_cpp.__version__,
            "gguf": getattr(gguf, "__version__", ""),
            "processor": information,
        }

    def prepare(self, requests: list[dict[str, Any]]) -> None:
        """Open a context that fits all requests of a run."""
        longest = max(len(one["prompt"]) + one["new_tokens"] for one in requests)
        self._alone = len(requests) == 1
        self._open(self._alone, min(len(requests), MOST_SLOTS), longest)

    def _open(self, alone: bool, slots: int, length: int) -> None:
        """Open a context of that many slots; the long one stays, the other is made again."""
        found = self._contexts.get(alone)
        if found is not None:
            context, has_slots, has_length = found
            if alone or (has_slots == slots and has_length >= length):
                return
            self._lib.llama_free(context)
        options = self._lib.llama_context_default_params()
        options.n_seq_max = slots
        options.n_ctx = slots * -(-(length + MARGIN) // 256) * 256
        options.n_batch = BATCH
        options.n_threads = options.n_threads_batch = self._threads
        options.no_perf = True
        if self._dtype == "float32":
            options.type_k = options.type_v = self._lib.GGML_TYPE_F32
        context = self._lib.llama_init_from_model(self._model, options)
        if not context:
            raise RuntimeError(f"it has no memory for {options.n_ctx} tokens")
        self._contexts[alone] = context, slots, length
        self._slots[alone] = [Slot() for _ in range(slots)]

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        """Queue a request."""
        self._queue.append((index, prompt))
        self._ends[index] = new_tokens

    def step(self) -> Iterator[tuple[int, list[int]]]:
        """Compute one batch, and pick the likeliest token of each text that is complete."""
        import numpy

        lib, context = self._lib, self._contexts[self._alone][0]
        slots = self._slots[self._alone]
        self._seat(context, slots)
        batch, used = self._batch, 0
        outputs: list[tuple[int, Slot]] = []
        # Running texts have one token each and come before prompts.
        order = sorted(
            (number for number, slot in enumerate(slots) if slot.index is not None),
            key=lambda number: len(slots[number].left) > 1,
        )
        for number in order:
            slot = slots[number]
            piece, slot.left = slot.left[: BATCH - used], slot.left[BATCH - used :]
            for token in piece:
                batch.token[used] = token
                batch.pos[used] = len(slot.tokens)
                batch.n_seq_id[used] = 1
                batch.seq_id[used][0] = number
                batch.logits[used] = False
                slot.tokens.append(token)
                used += 1
            if piece and not slot.left:
                batch.logits[used - 1] = True
                outputs.append((used - 1, slot))
        batch.n_tokens = used
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        picked: list[tuple[int, list[int]]] = []
        for place, slot in outputs:
            row = lib.llama_get_logits_ith(context, place)
            token = int(numpy.ctypeslib.as_array(row, (self._words,)).argmax())
            assert slot.index is not None
            picked.append((slot.index, [token]))
            slot.left = [token]
            self._ends[slot.index] -= 1
            if not self._ends[slot.index]:
                slot.index = None
        return iter(picked)

    def _seat(self, context: Any, slots: list[Slot]) -> None:
        """Give waiting requests the free slots that have most of their beginning."""
        lib = self._lib
        while self._queue and any(slot.index is None for slot in slots):
            index, prompt = self._queue.pop(0)
            free = [number for number, slot in enumerate(slots) if slot.index is None]
            number = max(free, key=lambda one: shared_prefix(slots[one].tokens, prompt[:-1]))
            slot = slots[number]
            same = shared_prefix(slot.tokens, prompt[:-1])
            lib.llama_memory_seq_rm(lib.llama_get_memory(context), number, same, -1)
            slot.tokens, slot.left, slot.index = prompt[:same], prompt[same:], index


def shared_prefix(left: list[int], right: list[int]) -> int:
    """Count the equal tokens at the beginning of both."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def quantised(lib: Any, file: Path, weights: str) -> Path:
    """Return a file of packed weights, made by llama.cpp's quantiser unless that is done.

    Args:
        lib: ``llama_cpp``.
        file: File of floats.
        weights: ``Q8_0``, ``Q4_0``, or another of its mixtures.
    """
    target = file.with_name(f"{file.stem}-{weights}.gguf")
    if not target.exists():
        options = lib.llama_model_quantize_default_params()
        options.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{weights}")
        half = target.with_suffix(".part")
        if lib.llama_model_quantize(str(file).encode(), str(half).encode(), ctypes.byref(options)):
            raise RuntimeError(f"it cannot make {weights} of {file.name}")
        half.rename(target)
    return target


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}

KINDS = {"llama": "llama", "qwen3_moe": "qwen3moe"}
"""Names of model types in GGUF."""


def convert(folder: Path, file: Path, dtype: str) -> None:
    """Write the weights of a checkpoint as GGUF, without a vocabulary of texts.

    Args:
        folder: Checkpoint of one of :data:`KINDS` in Hugging Face layout, in one file.
        file: File to write; while it is written, it has another name.
        dtype: ``float32`` or ``bfloat16``, of the matrices; norms are always F32.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    half = file.with_suffix(".part")
    writer = gguf.GGUFWriter(half, KINDS[config["model_type"]])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    kind = gguf.GGMLQuantizationType
    turned = (("q_proj", heads), ("k_proj", kv_heads)) if config["model_type"] == "llama" else ()
    for name, array in joined_experts(tensors(folder / "model.safetensors")):
        # llama.cpp computes the router in float32, too.
        is_wide = array.ndim > 1 and not name.endswith("mlp.gate.weight")
        target = kind.BF16 if dtype == "bfloat16" and is_wide else kind.F32
        for part, count in turned:
            if part in name:
                # Its rotary embedding pairs adjacent values, that of the checkpoint pairs halves.
                size = array.shape[0] // count
                array = array.reshape(count, 2, size // 2, -1).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, target), raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half.rename(file)


def joined_experts(found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield weights, those of a layer's experts as one: ``[experts, outputs, inputs]``."""
    import numpy

    experts: dict[str, dict[int, Any]] = {}
    for name, array in found:
        layer, is_expert, rest = name.partition(".experts.")
        if not is_expert:
            yield name, array
            continue
        number, _, part = rest.partition(".")
        experts.setdefault(f"{layer}.experts.{part}", {})[int(number)] = array
    for name, arrays in experts.items():
        yield name, numpy.stack([arrays[number] for number in sorted(arrays)])


def gguf_name(name: str) -> str:
    """Translate the name of a weight."""
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        number, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{number}.{NAMES[part]}.weight"
    return f"{NAMES[stem]}.weight"


def tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Read every weight of a file of safetensors as float32."""
    import numpy

    with file.open("rb") as source:
        size = ctypes.c_uint64.from_buffer_copy(source.read(8)).value
        header = json.loads(source.read(size))
        for name, one in header.items():
            if name == "__metadata__":
                continue
            first, last = one["data_offsets"]
            source.seek(8 + size + first)
            raw = source.read(last - first)
            if one["dtype"] == "BF16":
                wide = numpy.frombuffer(raw, numpy.uint16).astype(numpy.uint32) << 16
                array = wide.view(numpy.float32)
            else:
                array = numpy.frombuffer(raw, numpy.float32)
            yield name, array.reshape(one["shape"])
