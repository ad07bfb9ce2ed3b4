"""Keys and values kept between steps: a cache is a list of layers."""
