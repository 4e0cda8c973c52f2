"""Convolution on CPUs."""
