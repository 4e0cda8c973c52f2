"""Every kernel of the library compiles for CPUs that this machine need not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.host.tactics_support import parameter_types
from tilewright.dtypes import float32, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.library.select import candidates, choose
from tilewright.targets.cpu.target import CPUTarget

WINDOW: dict[str, Any] = {"strides": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "layout": "NHWC"}


def weights(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def transformer() -> Graph:
    """Embedding, attention of both kinds, products, norms."""
    b = GraphBuilder("transformer")
    n, s = b.symbol("batch", 1, 8), b.symbol("sequence", 1, 128)
    tokens = b.op("gather", [b.constant(weights(50, 64)), b.input("tokens", int64, (n, s))], axis=0)
    x = b.op("layer_norm", [tokens, b.constant(weights(64)), b.constant(weights(64))], axis=2, epsilon=1e-5)
    heads = b.op("permute", [b.op("reshape", [x], shape=(n, s, 4, 16))], order=(0, 2, 1, 3))
    mixed = b.op("attention", [heads, heads, heads], scale=0.25, causal=True)
    x = b.op("reshape", [b.op("permute", [mixed], order=(0, 2, 1, 3))], shape=(n, s, 64))
    x = b.op("gelu", [b.op("matmul", [x, b.constant(weights(64, 200))])])
    b.output(b.op("softmax", [b.op("rms_norm", [x], axis=2, epsilon=1e-5)], axis=2))
    b.output(b.op("argmax", [x], axis=2))
    b.output(b.op("cumsum", [x], axis=1))
    return b.finish()


def images() -> Graph:
    """Convolutions of every kind, pools, a reduction over pixels."""
    b = GraphBuilder("images")
    n = b.symbol("batch", 1, 8)
    x = b.op("permute", [b.input("x", float32, (n, 3, 17, 19))], order=(0, 2, 3, 1))
    x = b.op("relu", [b.op("conv", [x, b.constant(weights(16, 3, 3, 3))], **WINDOW)])
    b.output(b.op("average_pool", [x], kernel=(3, 3), **WINDOW))
    x = b.op("max_pool", [x], kernel=(3, 3), **WINDOW)
    x = b.op("conv", [x, b.constant(weights(16, 1, 3, 3))], groups=16, **WINDOW)
    x = b.op("conv", [x, b.constant(weights(40, 16, 3, 3)), b.constant(weights(40))], **WINDOW)
    b.output(b.op("reduce_mean", [x], axes=(1, 2)))
    return b.finish()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "aarch64", "apple-m1"])
@pytest.mark.parametrize("make", [transformer, images])
def test_compiles_for(name: str, make: Callable[[], Graph]) -> None:
    target, graph = CPUTarget.named(name), make()
    for group in fuse(graph).groups:
        if group.kind == "view":
            continue
        for stage in choose(candidates(group, graph, target)).stages:
            for call in stage.calls:
                compiled = call.kernel.compile(parameter_types(call), call.constants, target=target)
                assert compiled.binary.image
