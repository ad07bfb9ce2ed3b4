"""Tests of generation, against transformers where it has the same thing."""
