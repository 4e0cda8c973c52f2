"""`tilewright compile`: compile a kernel to an object file with a C header."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import shim
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.scripts import run_script
from tilewright.errors import CompilationError, TilewrightError

if TYPE_CHECKING:
    from tilewright.launch.jit import JITFunction


def compile(
    file: Annotated[Path, typer.Argument(help="A Python file that defines the kernel; it may import Triton.")],
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the kernel.")],
    signature: Annotated[
        str,
        typer.Option(
            "--signature", "-s", help='Parameter types, e.g. "*f32:16, *f32:16, i32"; :16 promises divisibility by 16.'
        ),
    ],
    constants: Annotated[
        list[str] | None,
        typer.Option("--constants", "-c", help="Compile-time parameters: BLOCK=1024,TYPE=fp32."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for NAME.o and NAME.h.")] = Path("."),
    out_name: Annotated[str | None, typer.Option(help="Name of the C function; by default the kernel's.")] = None,
    target: Annotated[str, typer.Option(help="cpu (this machine), or a CPU such as cpu:x86-64-v3.")] = "cpu",
) -> None:
    """Compile a kernel to an object file and a C header, for programs without Python."""
    if not file.is_file():
        raise wrong_usage(f"there is no file {file}")
    from tilewright.launch.ahead import build, parse_signature

    kernel = load_kernel(file, name)
    built = build(kernel, parse_signature(kernel, signature, _parse_constants(constants or [])), out_name, target)
    object_file, header = built.write(output)
    prototype = next(line for line in built.header.splitlines() if line.startswith("int "))
    console = terminal()
    console.print(f"{object_file}: {len(built.image)} bytes")
    console.print(f"{header}: {prototype}", soft_wrap=True)


def load_kernel(file: Path, name: str) -> JITFunction:
    """The kernel `name` of a Python file, below autotune and heuristics; raises `typer.BadParameter`."""
    from tilewright.launch.heuristics import KernelWrapper
    from tilewright.launch.jit import JITFunction

    if file.suffix != ".py":
        raise wrong_usage(f"{file} is no Python file")
    shim.install()
    sys.path.insert(0, str(file.resolve().parent))
    try:
        module = run_script(file, file.stem)
    except TilewrightError:
        raise
    except Exception as error:  # the file's own faults, shown from its own lines on
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != str(file):
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace, chain=False)[trace is not None :]  # no title
        raise CompilationError(f"{file} cannot be run:\n{''.join(lines).rstrip()}") from None
    found: Any = getattr(module, name, None)
    kernel = found.kernel if isinstance(found, KernelWrapper) else found
    if not isinstance(kernel, JITFunction):
        known = [key for key, value in vars(module).items() if isinstance(value, (JITFunction, KernelWrapper))]
        raise wrong_usage(f"{file} defines no kernel {name!r}; it has {', '.join(known) or 'none'}")
    return kernel


def _parse_constants(texts: list[str]) -> dict[str, Any]:
    """``["BLOCK=64,TYPE=fp32"]`` as values by name; raises `typer.BadParameter`."""
    from tilewright.launch.ahead import parse_constant

    found: dict[str, Any] = {}
    for text in (part for given in texts for part in given.split(",")):
        name, separator, value = text.strip().partition("=")
        if not separator or not name.isidentifier():
            raise wrong_usage(f"{text!r}: expected NAME=VALUE")
        found[name] = parse_constant(value.strip())
    return found
