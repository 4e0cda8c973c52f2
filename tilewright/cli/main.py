"""The command line: `tilewright` and `tw`.

Exit codes: 0 done; 1 the input, the model or the machine does not allow it (one message says why);
2 wrong usage; 3 a comparison failed (`run --compare`).
"""

from __future__ import annotations

import sys

import typer
from rich.text import Text

from tilewright.cli.console import terminal
from tilewright.errors import TilewrightError


def application() -> typer.Typer:
    """The commands; raises `SettingsError`, since their modules read the settings when they are imported."""
    from tilewright.cli import bench, build, cache, compile, doctor, inspect, run, tune

    commands = typer.Typer(
        name="tilewright",
        help="Compile trained models to engines and kernels to objects; run, time and inspect them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands.command("build")(build.build)
    commands.command("compile")(compile.compile)
    commands.command("run")(run.run)
    commands.command("bench")(bench.bench)
    commands.command("inspect")(inspect.inspect)
    commands.add_typer(tune.commands)
    commands.add_typer(cache.commands)
    commands.command("doctor")(doctor.doctor)
    return commands


def main() -> None:
    """Entry point of the `tilewright` and `tw` commands."""
    try:
        application()()
    except TilewrightError as error:
        terminal(stderr=True).print(Text(type(error).__name__, "bold red"), end=": ")
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        sys.exit(1)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        text = f": {error.strerror}: {error.filename}"
        terminal(stderr=True).print(Text.assemble(("error", "bold red"), text), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
