"""Python files that a user names on the command line, as modules."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _UncachedLoader(SourceFileLoader):
    """Compiles the file at each load: Python's bytecode cache takes a file that was changed within a second, to text of
    the same length, for the old one."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def run_script(file: Path, name: str) -> ModuleType:
    """Run `file` as the module `name`, which stays in `sys.modules`: dataclasses look there for types in strings.
    Whatever the file raises is raised."""
    spec = importlib.util.spec_from_file_location(name, file, loader=_UncachedLoader(name, str(file)))
    assert spec is not None and spec.loader is not None  # a loader was given
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
