"""Reports about engines: what was built, why, and how close it comes to the machine's limits."""
