"""Products of groups of rows with a matrix each (experts)."""
