"""Grouped products: groups of rows, each times its own matrix (experts)."""
