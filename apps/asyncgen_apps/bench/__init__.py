"""Benchmarks: this library beside transformers, on one machine, in one run."""
