"""Fuzzing: seeded cases against every door of tilewright, in child processes with limits on time and memory."""
