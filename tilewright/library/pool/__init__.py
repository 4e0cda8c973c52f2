"""Pooling of channels-last images."""
