"""``model.generate``: one call from its arguments to what it returns."""
