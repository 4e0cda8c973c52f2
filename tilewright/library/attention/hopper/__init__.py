"""Attention on Hopper, by tensor copies and wgmma."""
