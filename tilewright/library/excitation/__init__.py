"""Squeeze and excitation: the mean of an image, and two small products of it."""
