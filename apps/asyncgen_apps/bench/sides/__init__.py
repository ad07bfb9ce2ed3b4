"""Sides of the benchmarks: what runs in a process of its own and is measured there."""
