"""Answers a file of requests on the shared batch, and goes on where it was ended."""
