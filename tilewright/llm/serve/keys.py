"""The keys of a server: a file with one key per line."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilewright.errors import InputError
from tilewright.llm.serve.protocol import Refused

_FEWEST_CHARACTERS = 16  # characters
OPEN = ("/", "/health")  # routes without a key


def read_keys(path: Path | None) -> list[str]:
    """The keys in a file, none without one; raises `InputError` for a file that has none, or short ones."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys or any(len(key) < _FEWEST_CHARACTERS for key in keys):
        raise InputError(f"{path}: expected keys of at least {_FEWEST_CHARACTERS} characters, one a line")
    return keys


class Keys:
    """The keys of which a request needs one; true where there are any."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The salt of whoever asks for a route, none for the open ones and where there are no keys.

        Raises `Refused` without a valid key, after the same time for all of them.
        """
        if not self._digests or path in OPEN:
            return ""
        given = b""
        for name, value in headers:
            if name.lower() == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        digest = hashlib.sha256(given)
        if not any([hmac.compare_digest(digest.digest(), known) for known in self._digests]):
            raise Refused(401, "a valid key is needed: Authorization: Bearer KEY", code="invalid_api_key",
                          headers=[(b"www-authenticate", b"Bearer")])  # fmt: skip
        return digest.hexdigest()
