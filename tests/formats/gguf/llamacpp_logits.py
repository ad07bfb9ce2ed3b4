"""The logits of llama.cpp: ``python llamacpp_logits.py MODEL.gguf IDS.npy LOGITS.npy``.

Runs where llama.cpp is installed, without anything of ours. Ids are ``[texts, S]`` int32, logits
``[texts, S, V]`` float32; keys and values are float32.
"""

from __future__ import annotations

import sys
from typing import Any

import llama_cpp
import numpy


def logits(lib: Any, file: str, ids: Any) -> Any:
    """Each text in a sequence of its own."""
    lib.llama_backend_init()
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


if __name__ == "__main__":
    model_file, ids_file, target = sys.argv[1:4]
    numpy.save(target, logits(llama_cpp, model_file, numpy.load(ids_file)))
