"""Looking at engines: what was built, why, and how far it is from what the machine could do."""
