"""Build an engine around a loaded model: cache memory, CPU threads, scheduler, batch, side lane."""
