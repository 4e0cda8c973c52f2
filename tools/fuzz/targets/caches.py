"""Cache folders: damaged, renamed and forged entries come back whole, or not at all."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from tilewright.runtime import safe_files
from tilewright.targets.llvm.cache import ObjectCache, _checksum
from tools.fuzz.target import Base, Failed

HOSTILE = ("[]", "{", "null", "1", '"x"', "[" * 5000, '{"a":' * 2000, "{}", '{"symbol": null}', "NaN", "\0")


class Caches(Base):
    def prepare(self, folder: Path) -> None:
        self.folder = folder / "cache"

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        cache = ObjectCache(self.folder)
        key, other = f"key{draw.randrange(5)}", f"key{draw.randrange(5)}"
        metadata, image = {"number": draw.randrange(100)}, draw.randbytes(draw.randrange(200))
        if not cache.put(key, metadata, image):
            raise Failed("wrong", "a good entry is not written")
        path = cache.path(key)
        kind = draw.choice(("flip", "cut", "append", "rename", "forge", "length", "mode", "link", "leftover", "whole"))
        self._damage(kind, draw, cache, key, other, path)
        entry = cache.get(other if kind == "rename" else key)
        whole = kind in ("whole", "leftover") or (kind == "rename" and other == key)
        if whole and (entry is None or entry.image != image or entry.metadata != metadata):
            raise Failed("wrong", f"{kind}: a good entry is not found")
        if not whole and kind != "forge" and entry is not None:
            raise Failed("wrong", f"{kind}: a damaged entry is found")
        if kind == "leftover" and (cache.clean() < 1 or safe_files.leftovers(self.folder)):
            raise Failed("wrong", "a leftover stays")
        if path.is_symlink() or not entry:
            path.unlink(missing_ok=True)
        return kind

    def _damage(self, kind: str, draw: random.Random, cache: ObjectCache, key: str, other: str, path: Path) -> None:
        data = bytearray(path.read_bytes())
        if kind == "flip":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del data[draw.randrange(len(data)) :]
        elif kind == "append":
            data += draw.randbytes(draw.randrange(1, 9))
        elif kind in ("forge", "length"):
            text = draw.choice(HOSTILE).encode()
            length = len(text) if kind == "forge" else draw.choice((2**64 - 1, 2**63, len(text) + 10**6))
            body = length.to_bytes(8, "little") + text + draw.randbytes(9)
            data = bytearray(data[:8] + _checksum(key, body) + body)
        if kind == "rename":
            cache.path(other).parent.mkdir(exist_ok=True)
            os.replace(path, cache.path(other))
        elif kind == "link":
            os.replace(path, self.folder / "elsewhere")
            path.symlink_to(self.folder / "elsewhere")
        elif kind == "mode":
            path.chmod(draw.choice((0o620, 0o602, 0o666, 0o777)))
        elif kind == "leftover":
            (path.parent / f".write-{draw.randrange(1000)}").write_bytes(json.dumps(kind).encode())
        elif kind != "whole":
            path.write_bytes(data)


TARGET = Caches()
