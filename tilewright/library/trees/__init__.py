"""Trees of decisions."""
