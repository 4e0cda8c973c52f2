"""The command line: `tilewright` and `tw`.

Exit codes: 0 done; 1 the input, the model or the machine does not allow it (one message says why);
2 wrong usage; 3 a comparison failed (`run --compare`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from typing import Annotated

import typer
from rich.text import Text

from tilewright import __version__
from tilewright.cli.console import terminal
from tilewright.errors import TilewrightError, printable

# The module of each command, in the order of the help page; a group in a command is asked for by both names.
_MODULES = {
    "build": "build",
    "compile": "compile",
    "run": "run",
    "bench": "bench",
    "bench llm": "bench_llm",
    "inspect": "inspect",
    "quantize": "quantize",
    "generate": "generate",
    "chat": "generate",
    "serve": "serve",
    "keygen": "signing",
    "sign": "signing",
    "verify": "signing",
    "tune": "tune",
    "cache": "cache",
    "doctor": "doctor",
}


def application(command: str | None = None) -> typer.Typer:
    """The commands; only the one that is asked for, if it is one, and none for the version: others import what it does
    not need.

    Raises `SettingsError`, since their modules read the settings when they are imported.
    """
    commands = typer.Typer(
        name="tilewright",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands.callback()(_options)
    names = [name for name in _MODULES if name == command] or [name for name in _MODULES if " " not in name]
    for name in names if command != "--version" else []:
        module = importlib.import_module(f"tilewright.cli.{_MODULES[name]}")
        if hasattr(module, "commands"):
            commands.add_typer(module.commands)
        else:
            commands.command(name)(getattr(module, name))
    return commands


def _command() -> str | None:
    """The command that the arguments begin with; none where a shell asks for completions."""
    if any(name.endswith("_COMPLETE") for name in os.environ):
        return None
    two = " ".join(sys.argv[1:3])
    return two if two in _MODULES else next(iter(sys.argv[1:]), None)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Compile trained models to engines and kernels to objects; run, time and inspect them."""


def main() -> None:
    """Entry point of the `tilewright` and `tw` commands."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files and tensors may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            application(_command())()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except TilewrightError as error:
        terminal(stderr=True).print(Text(type(error).__name__, "bold red"), end=": ")
        print(*map(printable, (str(error), *getattr(error, "__notes__", ()))), sep="\n", file=sys.stderr)
        sys.exit(1)
    except (OSError, MemoryError) as error:
        _end_output()
        if not isinstance(error, BrokenPipeError):  # whoever reads the output has enough of it
            _complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        _end_output()
        sys.exit(130)


def _end_output() -> None:
    """Let nothing more be written at the end of the process: the output is gone, or full."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def _complain(error: OSError | MemoryError) -> None:
    """What the system refused, in one line."""
    if isinstance(error, MemoryError):
        text = "there is not enough memory"
    else:
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename is not None else "")
    terminal(stderr=True).print(Text.assemble(("error", "bold red"), f": {text}"), soft_wrap=True)


if __name__ == "__main__":
    main()
