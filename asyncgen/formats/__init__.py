"""Files of weights in formats other than safetensors, a room each."""
