"""What a search for precisions has measured, in this user's cache, so that one that was interrupted goes on where it
was, with the numbers that it had: it ends as it would have ended.

An entry has one measurement.  Its key has the model, the samples, the target, the threads, the sources of this package,
the versions of LLVM and NumPy, and which measurement it is; a bound and a metric are no part of it, as no measurement
depends on them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import ml_dtypes as ml_dtypes  # np.dtype knows the names of its types
import numpy as np

from tilewright.graph.core import Graph
from tilewright.graph.serialize import to_data
from tilewright.quant.calibration import Sample
from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.llvm.cache import CacheEntry, arrays_key, compiler_digest, searches, source_digest
from tilewright.targets.registry import backend_of

logger = logging.getLogger("tilewright.search")
_NUMBERS = "biufcV"  # kinds of dtypes, V of those of ml_dtypes
_LARGEST = 64 << 20  # bytes of an entry; what is larger is computed again
Arrays = Mapping[str, np.ndarray]


class StoredSearch:
    """The measurements of a model with these samples on these targets; those of an earlier run are reported once."""

    def __init__(self, graph: Graph, samples: Sequence[Sample], targets: Sequence[Target]) -> None:
        self.cache = searches()
        self.places = {id(sample): number for number, sample in enumerate(samples)}
        self.prefix = f"search-{_digest_of(graph, samples, targets)}-"
        found = sum(path.name.startswith(self.prefix) for path in safe_files.files(self.cache.directory))
        if found:
            logger.warning(
                "the search goes on with %d measurements that an earlier run with this model, data and target stored "
                "in %s; `tilewright cache clean --all` makes it start anew",
                found, self.cache.directory,
            )  # fmt: skip

    def value(self, kind: str, parts: Any, measure: Callable[[], Any]) -> Any:
        """A measurement of JSON values; `parts`, JSON values too, say which one of its kind."""
        key = self._key(kind, parts)
        found = self.cache.find(key, lambda entry: [entry.metadata["value"]])
        if found is not None:
            return found[0]
        value = measure()
        self.cache.put(key, {"value": value}, b"")
        return value

    def arrays(self, kind: str, parts: Any, compute: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        """A measurement of arrays by name."""
        key = self._key(kind, parts)
        found = self.cache.find(key, _arrays_of)
        if found is None:
            found = {name: np.asarray(array) for name, array in compute().items()}
            numbers = all(array.dtype.kind in _NUMBERS for array in found.values())
            if numbers and sum(array.nbytes for array in found.values()) <= _LARGEST:
                heads = [[name, array.dtype.name, list(array.shape)] for name, array in found.items()]
                self.cache.put(key, {"arrays": heads}, b"".join(array.tobytes() for array in found.values()))
        return found

    def of_sample(self, kind: str, parts: Any, sample: Sample, compute: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        """`arrays` for one of the samples."""
        return self.arrays(kind, [self.places[id(sample)], parts], compute)

    def _key(self, kind: str, parts: Any) -> str:
        return f"{self.prefix}{kind}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"


def _digest_of(graph: Graph, samples: Sequence[Sample], targets: Sequence[Target]) -> str:
    data, constants = to_data(graph)
    versions = source_digest("."), compiler_digest(), np.__version__
    described = [backend_of(target).key for target in targets], settings.threads, versions
    arrays = [arrays_key(each) for each in (constants, *samples)]
    return hashlib.sha256(f"{described}{json.dumps(data, sort_keys=True)}{arrays}".encode()).hexdigest()[:32]


def _arrays_of(entry: CacheEntry) -> dict[str, np.ndarray]:
    """Raises `ValueError`, `KeyError` or `TypeError` for what is no entry of this kind."""
    found: dict[str, np.ndarray] = {}
    place = 0
    for name, dtype, shape in entry.metadata["arrays"]:
        array = np.frombuffer(entry.image, np.dtype(dtype), prod(shape), place) if prod(shape) else np.empty(0, dtype)
        found[str(name)] = array.reshape(shape).copy()
        place += array.nbytes
    return found
