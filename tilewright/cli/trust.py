"""What `run`, `bench` and `inspect` ask of an engine file before they use it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EngineFileArgument = Annotated[Path, typer.Argument(help="Engine file.")]
TrustedKeyOption = Annotated[
    list[Path] | None,
    typer.Option("--trusted-key", help="A public key: only an engine that it has signed is used. May be repeated."),
]
DigestOption = Annotated[
    str | None, typer.Option("--expect-sha256", help="The file's SHA-256: no other file is used.", metavar="DIGITS")
]
RebuildOption = Annotated[
    bool,
    typer.Option(
        "--rebuild", help="Compile the graph inside the file for this machine; no machine code of the file is run."
    ),
]
