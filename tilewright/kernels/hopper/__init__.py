"""The library's kernels for sm_90a, written at the explicit level of the tile language (docs/guide/explicit.md)."""
