"""Build an engine around a loaded model: cache memory, scheduler, batch, side lane."""
