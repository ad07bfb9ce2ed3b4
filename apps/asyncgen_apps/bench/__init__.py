"""Benchmarks: this library beside others, on one machine, in one run."""
