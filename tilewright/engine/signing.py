"""Keys for engines: writing them, signing with them, and asking whether a file is signed (`engine.signatures`)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.engine.file import check_replaceable, manifest_text, read_package, write_package
from tilewright.engine.signatures import (
    KEY_KINDS,
    MESSAGE,
    MOST_SIGNATURES,
    cryptography_modules,
    key_data,
    signature_lines,
    signed_by,
)
from tilewright.engine.trust import Trust
from tilewright.errors import (
    SigningKeyError,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def create_key(path: Path) -> Path:
    """Write a new private key to `path`, which only its owner may read, and the public key to PATH.pub, whose path is
    returned.  Raises `SigningKeyError` where one of the files exists or cannot be written."""
    ed25519, serialization = cryptography_modules()
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    if not path.name or path.is_dir():
        raise SigningKeyError(f"{path} is a folder; name a file for the key")
    public_path = path.with_name(f"{path.name}.pub")
    _write_new(public_path, public, 0o644)
    try:
        _write_new(path, private, 0o600)
    except SigningKeyError:
        public_path.unlink()  # which was written a moment ago
        raise
    return public_path


def sign_engine(engine: Path, key: Path, output: Path | None = None) -> str:
    """Verify an engine file, sign it with a private key and write it to `output`, by default in its place.

    Earlier signatures of other keys stay.  Returns the public key in hexadecimal digits.  Raises `EngineError` of the
    kinds of `Engine.load`, `SigningKeyError` and `MissingDependencyError`.
    """
    private = _read_private_key(key)
    target = output or engine
    check_replaceable(target)
    package = read_package(engine)
    manifest = manifest_text(package)
    public = private.public_key().public_bytes_raw().hex()
    others = []
    if package.signed is not None and package.signed[0] == manifest:
        others = [line for line in signature_lines(engine, package.signed[1]) if line[0] != public]
    if len(others) >= MOST_SIGNATURES:
        raise SigningKeyError(
            f"{engine} has {len(others)} signatures already, which is the most that an engine may have"
        )
    lines = [*others, (public, private.sign(MESSAGE + manifest).hex())]
    text = "".join(f"ed25519 {signer} {signature}\n" for signer, signature in lines)
    write_package(dataclasses.replace(package, signed=(manifest, text.encode())), target)
    return public


def verify_engine(engine: Path, trust: Trust) -> str:
    """Check an engine file as `Engine.load` does, without running any of it; returns what is known of it, in words."""
    package = read_package(engine, trust)
    found = []
    if trust.sha256:
        found.append("it is the expected file")
    if trust.keys is not None:
        signers = signed_by(engine, *(package.signed or (b"", b"")), trust.keys)
        found.append(f"signed by the trusted key {signers[0]}")
    return "; ".join(found) or "whole, by its own digests; neither a digest nor a trusted key was given"


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    ed25519, serialization = cryptography_modules()
    data, name = key_data(path)
    try:
        key: Ed25519PrivateKey | Any = serialization.load_pem_private_key(data, password=None)
    except TypeError as error:
        raise SigningKeyError(
            f"{name} is encrypted with a passphrase; write it without one first, `openssl pkey -in KEY -out PLAIN`"
        ) from error
    except Exception as error:  # of the package: ValueError, UnsupportedAlgorithm, …
        kind = "it is a public key" if b"PUBLIC KEY" in data else KEY_KINDS
        raise SigningKeyError(f"{name} is no private key in PEM format ({kind})") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SigningKeyError(f"{name} is a key of another kind ({type(key).__name__}): engines are signed by Ed25519")
    return key


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise SigningKeyError(f"{path} exists; a key is never overwritten. Give another name") from None
    except OSError as error:
        raise SigningKeyError(f"cannot write the key {path}: {error.strerror}") from error
