"""Modules of `asyncgen.generation`; see `asyncgen.reference.paths`."""
