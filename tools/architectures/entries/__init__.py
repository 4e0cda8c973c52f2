"""The architectures by library; each module has `ENTRIES` and is imported where its library is there."""
