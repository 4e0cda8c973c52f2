"""`tilewright keygen`, `sign` and `verify`: make keys, sign engines and check signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.console import terminal
from tilewright.cli.engine_checks import DigestOption, EngineFileArgument, TrustedKeyOption
from tilewright.engine.signing import create_key, sign_engine, verify_engine
from tilewright.engine.trust import Trust


def keygen(
    key: Annotated[Path, typer.Argument(help="File for the private key; the public key is written to KEY.pub.")],
) -> None:
    """Make a key for signing engines: keep KEY, and give KEY.pub to everybody who loads your engines.

    Both are Ed25519 keys in PEM format. KEY is not encrypted; only you may read it. Files are never overwritten.
    """
    public = create_key(key)
    terminal().print(f"{key}: private key, keep it to yourself\n{public}: public key", soft_wrap=True)


def sign(
    engine: EngineFileArgument,
    key: Annotated[Path, typer.Option("--key", help="Your private key, from `tilewright keygen`.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Engine file to write; by default ENGINE is replaced.")
    ] = None,
) -> None:
    """Check that an engine is undamaged and sign it. None of its code is run. Other signatures in it stay."""
    public = sign_engine(engine, key, output)
    terminal().print(f"{output or engine}: signed by {public}", soft_wrap=True)


def verify(
    engine: EngineFileArgument, trusted_key: TrustedKeyOption = None, expect_sha256: DigestOption = None
) -> None:
    """Check that an engine is undamaged and matches --trusted-key and --expect-sha256. None of its code is run.

    The exit code is 1 if it does not.
    """
    found = verify_engine(engine, Trust.of(expect_sha256, trusted_key))
    terminal().print(f"{engine}: {found}", soft_wrap=True)
