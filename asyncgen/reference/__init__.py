"""Offer the documented names: models, Auto classes, pipelines, continuous batching."""
