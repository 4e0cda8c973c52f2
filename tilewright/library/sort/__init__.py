"""Positions in sorted rows."""
