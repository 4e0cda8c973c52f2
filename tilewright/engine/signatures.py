"""Signatures of engines: Ed25519 (RFC 8032), by the `cryptography` package.

The signed message is a fixed line and the manifest, which has the digest of every other member: everything that an
engine is made of is covered.  The member ``manifest.signatures`` has a line for each signature:

    ed25519 <public key, 64 hexadecimal digits> <signature, 128 hexadecimal digits>

Keys are files in PEM format, as ``openssl genpkey -algorithm ed25519`` writes them too: the private key as PKCS #8, the
public key as SubjectPublicKeyInfo.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from tilewright.errors import (
    EngineDamagedError,
    EngineUntrustedError,
    MissingDependencyError,
    SettingsError,
    SigningKeyError,
    brief,
)
from tilewright.runtime.safe_files import why_not_readable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PublicKey = Union[str, Path, bytes]  # a file in PEM format, or its contents
SIGNATURES = "manifest.signatures"  # the member
MOST_SIGNATURES = 16
MESSAGE = b"tilewright engine manifest\n"  # what else the key may have signed is no signature of an engine
_LINE = re.compile(r"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})")
_LARGEST_KEY_FILE = 64 << 10
KEY_KINDS = "keys of OpenSSH and DER files are not taken; `tilewright keygen` and `openssl genpkey` write PEM files"


def signed_by(path: Path, manifest: bytes, signatures: bytes, keys: Collection[bytes]) -> list[str]:
    """The trusted keys, in hexadecimal digits, by which the manifest is signed; raises `EngineUntrustedError` if there
    is none, also where a signature of a trusted key is wrong, and `EngineDamagedError` for malformed signatures."""
    ed25519, _ = cryptography_modules()
    from cryptography.exceptions import InvalidSignature

    if not signatures:
        raise EngineUntrustedError(
            f"the engine {path} is not signed, and only signed engines are trusted here. Nothing of it was used. Ask "
            "for a signed one, or sign it: `tilewright sign ENGINE --key KEY`."
        )
    lines = signature_lines(path, signatures)
    trusted = {key.hex() for key in keys}
    good = []
    for public, signature in lines:
        if public not in trusted:
            continue
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
            key.verify(bytes.fromhex(signature), MESSAGE + manifest)
        except InvalidSignature:
            raise EngineUntrustedError(
                f"the engine {path} has a signature of the trusted key {public} that is wrong: the engine was changed "
                "after it was signed. Nothing of it was used. Get the file again from where it came."
            ) from None
        good.append(public)
    if not good:
        raise EngineUntrustedError(
            f"the engine {path} is signed by {', '.join(public for public, _ in lines)}, which is not a trusted key. "
            "Nothing of it was used. Trust that key if you know its owner, or get an engine signed by a trusted one."
        )
    return good


def read_public_key(source: PublicKey) -> bytes:
    """The 32 bytes of a public key, of a file in PEM format or its contents; raises `SigningKeyError`."""
    ed25519, serialization = cryptography_modules()
    data, name = key_data(source)
    try:
        key: Ed25519PublicKey | Any = serialization.load_pem_public_key(data)
    except Exception as error:  # of the package: ValueError, UnsupportedAlgorithm, …
        kind = "it is a private key: give the .pub file next to it" if b"PRIVATE KEY" in data else KEY_KINDS
        raise SigningKeyError(f"{name} is no public key in PEM format ({kind})") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise SigningKeyError(f"{name} is a key of another kind ({type(key).__name__}): engines are signed by Ed25519")
    return key.public_bytes_raw()


def key_data(source: PublicKey) -> tuple[bytes, str]:
    """The bytes of a key, and what to call it in messages."""
    if isinstance(source, bytes):
        return source, "the given key"
    if not isinstance(source, (str, Path)):
        raise SettingsError(f"a key is a file in PEM format or its contents as bytes, not {brief(source)}")
    reason = why_not_readable(Path(source))
    if reason is not None:
        raise SigningKeyError(
            f"cannot read the key file {source}: {reason}. `tilewright keygen KEY` writes KEY and KEY.pub"
        )
    try:
        with open(source, "rb") as file:
            return file.read(_LARGEST_KEY_FILE), f"the key file {source}"
    except OSError as error:
        raise SigningKeyError(f"cannot read the key file {source}: {error.strerror}") from error


def signature_lines(path: Path, signatures: bytes) -> list[tuple[str, str]]:
    """Public keys and signatures of the member; raises `EngineDamagedError`."""
    lines = signatures[: (MOST_SIGNATURES + 1) * 256].decode("latin-1").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    if not found or len(found) > MOST_SIGNATURES or None in found:
        raise EngineDamagedError(
            f"the engine {path} is damaged: {SIGNATURES} is malformed. Get the file again from where it came."
        )
    return [(match[1], match[2]) for match in found if match is not None]


def cryptography_modules() -> tuple[Any, Any]:
    """The package's modules of Ed25519 and of key files."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingDependencyError(
            "signatures of engines need the package cryptography: pip install 'tilewright[sign]'"
        ) from error
    return ed25519, serialization
