"""One module a target, each with a `TARGET`."""
