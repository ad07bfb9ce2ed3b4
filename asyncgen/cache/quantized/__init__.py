"""Keys and values in few bits: settings, two ways to quantise, and the caches made of them."""
