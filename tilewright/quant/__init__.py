"""Quantization: observers, quantized graphs, engines of them, and the error of each layer."""
