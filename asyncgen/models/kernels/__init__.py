"""What layers compute with: products, norms and rotary positions, each by its fastest kernel."""
