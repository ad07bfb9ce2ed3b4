"""GGUF, the files of llama.cpp: a model, its configuration and its tokenizer in one.

The format is described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
