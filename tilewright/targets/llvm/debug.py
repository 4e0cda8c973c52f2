"""Source lines for profilers: LLVM's debug metadata for the instructions of one function.

An instruction ends in ``, !dbg !7``; node 7 is a line of a file, inside the function's own node.  Nothing but lines
is described: no variables, no types.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tilewright.targets.llvm.builder import Module


class SourcePlace(Protocol):
    """A place in the user's source, as `ir.core.Location` is one."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class DebugLines:
    """The debug metadata of a function named `name` (`symbol` in the object) that begins at `place`."""

    def __init__(self, module: Module, name: str, symbol: str, place: SourcePlace) -> None:
        self._module = module
        self._file = place.file
        file = self._file_node(place.file)
        unit = module.distinct_metadata(
            f'!DICompileUnit(language: DW_LANG_C, file: {file}, producer: "tilewright", isOptimized: true, '
            "runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
        )
        kind = module.metadata(f"!DISubroutineType(types: {module.metadata('!{}')})")
        self.subprogram = module.distinct_metadata(
            f'!DISubprogram(name: "{_escaped(name)}", linkageName: "{_escaped(symbol)}", scope: {file}, file: {file}, '
            f"line: {place.line}, type: {kind}, unit: {unit}, spFlags: DISPFlagDefinition)"
        )
        module.named_metadata("llvm.dbg.cu", unit)
        module.named_metadata("llvm.module.flags", module.metadata('!{i32 2, !"Debug Info Version", i32 3}'))

    def note(self, place: SourcePlace) -> str:
        """What is written after an instruction that comes from a place."""
        scope = self.subprogram
        if place.file != self._file:  # inlined from another file
            file = self._file_node(place.file)
            scope = self._module.metadata(f"!DILexicalBlockFile(scope: {scope}, file: {file}, discriminator: 0)")
        location = f"!DILocation(line: {place.line}, column: {min(place.column, 65535)}, scope: {scope})"
        return f", !dbg {self._module.metadata(location)}"

    def _file_node(self, file: str) -> str:
        path = PurePath(file)
        folder = _escaped(str(path.parent))
        return self._module.metadata(f'!DIFile(filename: "{_escaped(path.name)}", directory: "{folder}")')


def _escaped(text: str) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}" for byte in text.encode()
    )
