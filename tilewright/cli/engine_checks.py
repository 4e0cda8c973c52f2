"""The checks of an engine file that `run`, `bench` and `inspect` make before they use it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EngineFileArgument = Annotated[Path, typer.Argument(help="Engine file.")]
TrustedKeyOption = Annotated[
    list[Path] | None,
    typer.Option("--trusted-key", help="A public key: accept only an engine signed by it. May be repeated."),
]
DigestOption = Annotated[
    str | None, typer.Option("--expect-sha256", help="Accept only the file with this SHA-256.", metavar="DIGITS")
]
RebuildOption = Annotated[
    bool,
    typer.Option(
        "--rebuild", help="Compile the graph inside the file for this machine; run no machine code of the file."
    ),
]
