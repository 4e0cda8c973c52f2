"""Engines: the file, trust, loading and running (`engine.engine`). Building them is `tilewright.build`."""
