"""Convolution of channels-last images."""
