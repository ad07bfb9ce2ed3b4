"""Products, norms, rotary positions and experts, each by its fastest kernel."""
