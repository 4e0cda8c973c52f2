"""A product with a tanh epilogue agrees with NumPy in the interpreter."""

import numpy as np

from tilewright import ops
from tilewright.settings import settings

rng = np.random.default_rng(0)
a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
with settings.scope(interpret=True):
    found = ops.matmul(a, b.T, activation="tanh", out_dtype=np.float32)
np.testing.assert_allclose(found, np.tanh(a.astype(np.float64) @ b.T.astype(np.float64)), atol=1e-3)
