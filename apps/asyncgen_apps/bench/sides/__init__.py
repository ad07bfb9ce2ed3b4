"""Sides of the benchmarks: each is measured in a process of its own."""
