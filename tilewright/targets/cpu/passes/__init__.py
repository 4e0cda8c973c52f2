"""Tile IR passes of the CPU target, one per file."""
