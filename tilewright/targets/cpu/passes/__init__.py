"""Tile IR passes of the CPU target, one a file."""
