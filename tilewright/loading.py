"""`tilewright.load`: loads an engine file, and builds the engine again where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tilewright.engine.engine import Engine
from tilewright.engine.file import as_path
from tilewright.engine.trust import PublicKey, Trust
from tilewright.errors import EngineError, EngineUntrustedError, SettingsError, brief


def load(
    path: str | Path,
    rebuild: bool | Literal["always"] = False,
    target: str | None = None,
    *,
    expect_sha256: str | None = None,
    trusted_keys: PublicKey | Sequence[PublicKey] | None = None,
    mmap: bool = False,
    threads: int | None = None,
) -> Engine:
    """`Engine.load`: read an engine file, which is a program: see there for how to load only what you trust.

    With ``rebuild=True``, an engine that does not load is built again, for this machine, from the graph inside it.
    ``rebuild="always"`` reads only the graph and the weights and compiles them here: no machine code of the file is
    run.  Both import the compiler; save the result to keep it.
    """
    path = as_path(path, "an engine file")
    if not isinstance(rebuild, (bool, str)) or rebuild not in (False, True, "always"):
        raise SettingsError(f"rebuild is {brief(rebuild)}: expected False, True or 'always'")
    trust = Trust.of(expect_sha256, trusted_keys)
    reason: EngineError | None = None
    if rebuild != "always":
        try:
            return Engine.load(
                path, target, expect_sha256=expect_sha256, trusted_keys=trusted_keys, mmap=mmap, threads=threads
            )
        except EngineUntrustedError:
            raise
        except EngineError as error:
            if not rebuild:
                raise
            reason = error
    from tilewright.build.rebuild import rebuild_engine

    engine = rebuild_engine(path, reason, target, trust)
    engine.threads = threads
    return engine
