"""Checks an engine file before anything in it is used: a digest, or a signature by a trusted key.

An engine is a program.  Digests inside the file find damage, not forgery; what is known from outside the file decides
whether it may run: the file's SHA-256, or the public keys of those who may sign (`engine.signatures` has the format).
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.engine.signatures import PublicKey, read_public_key, signed_by
from tilewright.errors import EngineUntrustedError, SettingsError, brief


@dataclass(frozen=True)
class Trust:
    """What an engine file must be: `sha256` of the whole file, signed by one of `keys` (Ed25519, 32 bytes each).

    An empty `sha256` and `keys` that are None ask for nothing.
    """

    sha256: str = ""
    keys: tuple[bytes, ...] | None = None

    @classmethod
    def of(cls, expect_sha256: str | None, trusted_keys: PublicKey | Sequence[PublicKey] | None) -> Trust:
        """From the arguments of `load`; raises `SettingsError`, `SigningKeyError` and `MissingDependencyError`."""
        digest = "" if expect_sha256 is None else _hexadecimal(expect_sha256)
        if trusted_keys is None:
            return cls(digest)
        listed = [trusted_keys] if isinstance(trusted_keys, (str, Path, bytes)) else list(_iterable(trusted_keys))
        if not listed:
            raise SettingsError("trusted_keys is empty, so that no engine could be trusted: name a public key, or None")
        return cls(digest, tuple(map(read_public_key, listed)))

    @property
    def needs_signature(self) -> bool:
        """Whether a trusted key must have signed the manifest."""
        return self.keys is not None

    def check_file(self, path: Path, content: memoryview) -> None:
        """Raise `EngineUntrustedError` unless the whole file has the expected SHA-256."""
        if not self.sha256:
            return
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise EngineUntrustedError(
                f"the engine {path} is not the one that is expected: its SHA-256 is {found}, not {self.sha256}. "
                "Nothing of it was used. Get the file again from where it came, or check the expected digest."
            )

    def check_manifest(self, path: Path, manifest: bytes, signatures: bytes) -> None:
        """Raise `EngineUntrustedError` unless one of the trusted keys has signed the manifest."""
        if self.keys is None:
            return
        signed_by(path, manifest, signatures, self.keys)


def _hexadecimal(digest: str) -> str:
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set(string.hexdigits):
        raise SettingsError(
            f"expect_sha256 is {brief(digest)}: expected 64 hexadecimal digits, as `sha256sum FILE` prints them"
        )
    return digest.lower()


def _iterable(keys: Sequence[PublicKey]) -> Iterable[PublicKey]:
    if not isinstance(keys, Iterable):
        raise SettingsError(
            f"trusted_keys is {brief(keys)}: expected files of public keys in PEM format, or their contents"
        )
    return keys
