"""The checks of a gateway before it reads a request's body, and the bound on the bodies that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from tilewright.llm.serve.application import Bounds
from tilewright.llm.serve.keys import Keys
from tilewright.llm.serve.protocol import Refused

_MOST_HELD = 256 << 20  # bytes of bodies together


class Gate:
    """Lets requests in that come with one of `keys`, with bodies within `bounds`, and of `most_held` bytes together."""

    def __init__(self, keys: Sequence[str], bounds: Bounds, most_held: int = _MOST_HELD) -> None:
        self._keys, self._bounds, self._most_held = Keys(keys), bounds, most_held
        self.body_bytes = 0  # bytes of bodies

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `Refused` for a request without a key, where its route needs one."""
        self._keys.tenant(path, headers)

    @asynccontextmanager
    async def body(self, pieces: AsyncIterator[bytes] | None) -> AsyncGenerator[bytes, None]:
        """The body of these pieces, if any, for as long as it is held; raises `Refused` for one out of bounds."""
        body = bytearray()
        if pieces is None:
            yield b""
            return
        try:
            try:
                async with asyncio.timeout(self._bounds.body_seconds):
                    async for piece in pieces:
                        self._take(len(body), len(piece))
                        body += piece
            except TimeoutError as error:
                raise Refused(408, "the body did not come in time") from error
            yield bytes(body)
        finally:
            self.body_bytes -= len(body)

    def _take(self, had: int, more: int) -> None:
        """Make room for more bytes of a body of which there are some."""
        if had + more > self._bounds.body:
            raise Refused(413, f"the body has more than {self._bounds.body} bytes")
        if self.body_bytes + more > self._most_held:
            raise Refused(503, "too many bodies are read at once; try again later", code="overloaded",
                          headers=[(b"retry-after", b"1")])  # fmt: skip
        self.body_bytes += more
