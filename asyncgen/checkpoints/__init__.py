"""Read and write checkpoints: hub, safetensors, packed weights, GGUF."""
