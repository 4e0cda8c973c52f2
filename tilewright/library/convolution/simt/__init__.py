"""Convolution on GPUs, in the plain tile language."""
