"""Compute a file's logits with llama.cpp; runs where it is installed, without this library.

``python llamacpp_logits.py logits MODEL.gguf IDS.npy LOGITS.npy``: ids are ``[texts, S]`` int32,
logits ``[texts, S, V]`` float32; keys and values are float32.

``python llamacpp_logits.py pack FLOATS.gguf Q4_K FOLDER``: every matrix packed to
a type by its quantiser, as ``FOLDER/Q4_K.gguf``; several types with commas between.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp
import numpy

MIXTURES = {"F16": "F16", "Q8_0": "Q8_0", "Q4_0": "Q4_0", "Q4_K": "Q4_K_S", "Q6_K": "Q6_K"}
"""Types, and what the quantiser calls files of them."""


def logits(lib: Any, file: str, ids: Any) -> Any:
    """Each text in a sequence of its own."""
    options = lib.llama_model_default_params()
    options.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(file.encode(), options)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {file}")
    texts, length = ids.shape
    settings = lib.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 256 * -(-length // 256)
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = lib.llama_init_from_model(model, settings)
    words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    found = numpy.empty((texts, length, words), numpy.float32)
    batch = lib.llama_batch_init(length, 0, 1)
    for text in range(texts):
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        for place in range(length):
            batch.token[place] = int(ids[text, place])
            batch.pos[place] = place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = True
        batch.n_tokens = length
        if lib.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")
        for place in range(length):
            row = lib.llama_get_logits_ith(context, place)
            found[text, place] = numpy.ctypeslib.as_array(row, (words,))
    return found


def pack(lib: Any, file: str, kind: str, folder: str) -> None:
    """Have its quantiser write a file of one type."""
    options = lib.llama_model_quantize_default_params()
    name = MIXTURES[kind]
    options.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{name}")
    options.pure = kind != "F16"
    target = f"{folder}/{kind}.gguf".encode()
    if lib.llama_model_quantize(file.encode(), target, ctypes.byref(options)):
        raise SystemExit(f"llama.cpp cannot make {kind} of {file}")


def main() -> None:
    """Do what the command line says."""
    llama_cpp.llama_backend_init()
    what, file, one, other = sys.argv[1:5]
    if what == "logits":
        numpy.save(other, logits(llama_cpp, file, numpy.load(one)))
        return
    for kind in one.split(","):
        pack(llama_cpp, file, kind, other)


if __name__ == "__main__":
    main()
