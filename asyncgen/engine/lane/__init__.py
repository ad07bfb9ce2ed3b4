"""Beside the batch: requests that cannot share a step take turns."""
