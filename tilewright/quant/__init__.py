"""Quantization: observers of what a model computes, integers in its graph, an engine of it, and what it costs."""
