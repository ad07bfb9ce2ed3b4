"""Test how a declaration in a file turns answers into messages."""
