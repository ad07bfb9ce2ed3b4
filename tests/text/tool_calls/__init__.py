"""Test how models write calls and reasoning, and how both are read."""
