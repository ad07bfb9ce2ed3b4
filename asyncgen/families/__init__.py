"""Describe model families as plain data: one file a family, and the reader of its `config.json`."""
