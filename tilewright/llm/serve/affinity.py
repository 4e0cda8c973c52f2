"""Which replica of a model takes a request: one that holds the beginning of its prompt, unless others have much less
to do.  Policy without a network.

A prompt is known by digests of its beginning, each of a block and the digest before it, as pages of keys and values
are (`block_pool.py`), but of bytes, so that no tokenizer is needed.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

DIGEST_BLOCK = 256  # bytes of a prompt that are known together
MOST_BLOCKS = 256  # of a prompt; what comes after them decides nothing
_SLACK = 4  # requests more than the replica with the fewest has, and twice as many
_SEARCHED = 64 << 10  # bytes at an end of a body in which its fields are searched for
_PROMPT = re.compile(rb'"(?:tools|instructions|messages|prompt|input)"\s*:')  # quotes inside of a text are escaped
_MODEL = re.compile(rb'"model"\s*:\s*("[^"]{0,256}")')


def digests_of(prompt: bytes, salt: bytes = b"") -> list[bytes]:
    """The digests of a prompt's whole blocks, each of all bytes up to its end; `salt` keeps tenants apart."""
    found, digest = [], hashlib.sha256(salt).digest()
    for end in range(DIGEST_BLOCK, min(len(prompt), MOST_BLOCKS * DIGEST_BLOCK) + 1, DIGEST_BLOCK):
        digest = hashlib.sha256(digest + prompt[end - DIGEST_BLOCK : end]).digest()[:16]
        found.append(digest)
    return found


def prompt_digests(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> list[bytes]:
    """The digests of the beginning of the prompt in a request's JSON, for its key; none where no prompt is found.

    The fields are searched for near the ends of the body, which is not parsed: a decoder would hold up all requests of
    a process while it reads a long one.  A field of the same name inside another one costs a worse choice at most.
    """
    prompt = _PROMPT.search(body, 0, _SEARCHED)
    if prompt is None:
        return []
    model = _MODEL.search(body, 0, _SEARCHED) or _MODEL.search(body, max(0, len(body) - _SEARCHED))
    key = next((value for name, value in headers if name.lower() == b"authorization"), b"")
    begin = prompt.start()
    return digests_of(body[begin : begin + MOST_BLOCKS * DIGEST_BLOCK], key + b"\n" + (model[1] if model else b""))


class Affinity:
    """Remembers which replicas were given which beginnings, for `most` blocks; the oldest are forgotten first."""

    def __init__(self, most: int = 1 << 16, seed: int | None = None) -> None:
        self._most = most
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()
        self._random = random.Random(seed)

    def choose(self, digests: Sequence[bytes], loads: Mapping[str, int]) -> str:
        """The name of the replica, of those in `loads` with the numbers of requests that they work on.

        Of the replicas that have little enough to do, the one that holds most of the prompt; where none holds any, the
        one of two at random that has less to do (Mitzenmacher, "The power of two choices in randomized load
        balancing", 2001).
        """
        fewest = min(loads.values())
        free = [name for name, load in loads.items() if load <= 2 * fewest + _SLACK]
        depths = self._depths(digests, free)
        most = max(depths.values())
        among = [name for name in free if depths[name] == most]
        if not most:
            among = self._random.sample(among, min(2, len(among)))
        return min(among, key=lambda name: (loads[name], name))

    def note(self, digests: Sequence[bytes], name: str) -> None:
        """A replica has been given a prompt, and will hold it."""
        for digest in digests:
            self._holders.setdefault(digest, set()).add(name)
            self._holders.move_to_end(digest)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def keep(self, names: Collection[str]) -> None:
        """Forget the replicas that are not among these."""
        for digest, holders in list(self._holders.items()):
            holders.intersection_update(names)
            if not holders:
                del self._holders[digest]

    def _depths(self, digests: Sequence[bytes], names: Sequence[str]) -> dict[str, int]:
        """How many blocks of a prompt each replica holds."""
        depths = dict.fromkeys(names, 0)
        for count, digest in enumerate(digests, 1):
            holders = self._holders.get(digest, ())
            going_on = [name for name in names if depths[name] == count - 1 and name in holders]
            if not going_on:
                break
            for name in going_on:
                depths[name] = count
        return depths
