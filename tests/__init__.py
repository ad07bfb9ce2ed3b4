"""Tests; each file mirrors the module of the same path."""
