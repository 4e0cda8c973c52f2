"""ONNX models whose sizes, axes and course only a run knows: compiled, saved, run at several sizes, against ONNX
Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from tilewright.engine.engine import Engine
from tilewright.errors import ShapeError
from tilewright.graph import host_ops

pytestmark = pytest.mark.usefixtures("quick_engines")

Call = dict[str, Any]


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def check(engine: Engine, session: onnxruntime.InferenceSession, call: Call) -> None:
    rng = np.random.default_rng(len(call))
    feeds = {
        name: item if isinstance(item, np.ndarray) else rng.standard_normal(item).astype(np.float32)
        for name, item in call.items()
    }
    names = [output.name for output in session.get_outputs()]
    found = engine.run(feeds)
    for name, wanted in zip(names, session.run(names, feeds), strict=True):
        assert found[name].dtype == wanted.dtype and found[name].shape == wanted.shape, (name, found[name].shape)
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


X = "float[2, 3, 4] x"
CASES: dict[str, tuple[str, list[Call]]] = {
    "a captured size that follows from that of a later value": (
        """m (float[n] x, float[a, b] y) => (float[c] z) {
            p = NonZero(y) one = Constant <value = int64[1] {1}> () s = Shape(p)
            two = Constant <value = int64[1] {2}> () e = Slice(s, one, two)
            zero = Constant <value = int64[1] {0}> () u = Slice(x, zero, e)
            m = ReduceMean <keepdims = 0> (y) limit = Constant <value = float {0.0}> () g = Greater(m, limit)
            z = If (g) <then_branch = f () => (float[p] v) { v = Relu(u) },
                        else_branch = h () => (float[q] w) { w = Neg(x) }> }""",
        [{"x": [5], "y": np.float32([[1, 0], [2, 0]])}, {"x": [5], "y": np.float32([[-1, 0], [0, 0]])}],
    ),
    "sizes that are simpler above zero, and others at zero": (
        """m (float[1] x, float[n] y, float[3] w) => (float[a] z, float[b] rest, float[c] scaled) {
            one = Constant <value = int64[1] {1}> () two = Constant <value = int64[1] {2}> ()
            zero = Constant <value = int64[1] {0}> () many = Constant <value = int64[1] {99}> ()
            p = NonZero(y) s = Shape(p) e = Slice(s, one, two) z = Slice(x, zero, e, zero)
            q = Squeeze(p, zero) f = Cast <to = 1> (q) rest = Slice(f, one, many, zero)
            last = Slice(w, zero, e, zero) scaled = Mul(last, x) }""",
        [{"x": [1], "y": np.float32(y), "w": [3]} for y in ([0], [0, 0, 0], [0, 2], [1, 2, 3])],
    ),
    "a stretch to a size that turns out to be one": (
        """m (float[4] x, float[n] y) => (float[a, b] z) { p = NonZero(y) s = Shape(p) z = Expand(x, s) }""",
        [{"x": [4], "y": np.float32([0, 3])}, {"x": [4], "y": np.float32([1, 2, 3, 4])}],
    ),
    "ends of a slice in a list that is as long as that of starts": (
        """m (float[n] x, float[k] y) => (float[a] z) {
            zero = Constant <value = int64[1] {0}> () p = NonZero(y) q = Squeeze(p, zero)
            z = Slice(x, zero, q, zero) }""",
        [{"x": [5], "y": np.float32([0, 0, 3])}, {"x": [5], "y": np.float32([0, 1, 0, 0])}],
    ),
    "branches of other ranks": (
        """m (float[a, b] x) => (float[c] y, float z, float[a, b] apart) {
            s = ReduceSum <keepdims = 0> (x) zero = Constant <value = float {0.0}> () c = Greater(s, zero)
            t = If (c) <then_branch = f () => (float[p] u) {
                r = Exp(x) u = ReduceMax <keepdims = 0, axes = [0]> (r) },
              else_branch = g () => (float[p, q] v) { v = Relu(x) }>
            r = Abs(t) apart = Neg(x) m1 = Constant <value_ints = [-1]> () y = Reshape(r, m1)
            w = Mul(t, x) k = ReduceMax <keepdims = 0> (w) z = Add(k, s) }""",
        [{"x": sign * np.arange(1, 7, dtype=np.float32).reshape(2, 3)} for sign in (1, -1)],
    ),
    "branches of other ranks inside each other": (
        """m (float[a, b] x) => (float[c] y) {
            s = ReduceSum <keepdims = 0> (x) zero = Constant <value = float {0.0}> () c = Greater(s, zero)
            h = ReduceMax <keepdims = 0> (x) d = Greater(h, zero)
            t = If (c) <then_branch = f () => (float[p] u) { u = ReduceMax <keepdims = 0, axes = [0]> (x) },
              else_branch = g () => (float[p, q] v) { v = Relu(x) }>
            o = If (d) <then_branch = f2 () => (float[p] u) { u = ReduceMin <keepdims = 0, axes = [0]> (t) },
              else_branch = g2 () => (float[p, q] v) { v = Exp(t) }>
            r = Abs(o) m1 = Constant <value_ints = [-1]> () y = Reshape(r, m1) }""",
        [{"x": np.array(x, np.float32)} for x in ([[1, 2], [3, 4]], [[-1, -2], [-3, -4]], [[1, -2], [-3, -4]])],
    ),
    "reshape": (
        f"m ({X}, int64[2] s) => (float[a, b] y) {{ e = Exp(x) t = Reshape(e, s) y = Relu(t) }}",
        [{"x": (2, 3, 4), "s": ints(*s)} for s in ((6, 4), (-1, 2), (0, -1), (24, 1))],
    ),
    "reshape of a dynamic tensor": (
        "m (float[n, 4] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }",
        [{"x": (n, 4), "s": ints(*s)} for n, s in ((3, (6, 2)), (1, (4, 1)), (5, (-1, 10)))],
    ),
    "a shape with known elements": (
        """m (float[n, 8] x, int64[1] h) => (float[n, h, d, w] y) {
            m1 = Constant <value_ints = [-1, 2]> () two = Constant <value_ints = [2]> ()
            s = Concat <axis = 0> (m1, h, two) t = Reshape(x, s) y = Softmax(t) }""",
        [{"x": (3, 8), "h": ints(h)} for h in (1, 2)],
    ),
    "expand": (
        "m (float[3, 1] x, int64[3] s) => (float[a, b, c] y) { t = Expand(x, s) y = Add(t, x) }",
        [{"x": (3, 1), "s": ints(*s)} for s in ((2, 3, 6), (1, 1, 1), (0, 3, 2), (5, 3, 1))],
    ),
    "expand of a dynamic tensor": (
        "m (float[n, 2] x, int64[2] s) => (float[a, b] y) { t = Expand(x, s) y = Neg(t) }",
        [{"x": (1, 2), "s": ints(5, 2)}, {"x": (4, 2), "s": ints(1, 1)}, {"x": (1, 2), "s": ints(0, 2)}],
    ),
    "tile": (
        "m (float[2, n] x, int64[2] r) => (float[a, b] y) { t = Tile(x, r) y = Abs(t) }",
        [{"x": (2, 3), "r": ints(*r)} for r in ((2, 3), (1, 1), (0, 2))],
    ),
    "slice": (
        "m (float[8, 6] x, int64[2] b, int64[2] e, int64[2] a, int64[2] s) => (float[p, q] y) "
        "{ t = Slice(x, b, e, a, s) y = Mul(t, t) }",
        [
            {"x": (8, 6), "b": ints(*b), "e": ints(*e), "a": ints(*a), "s": ints(*s)}
            for b, e, a, s in (
                ((1, 0), (5, 3), (0, 1), (1, 2)),
                ((-1, -3), (-100, 1000), (1, 0), (-2, 1)),
                ((3, 3), (3, 4), (0, 1), (1, 1)),
                ((100, 2), (-1, 5), (0, -1), (-3, 1)),
            )
        ],
    ),
    "slice with known axes": (
        """m (float[n, 6] x, int64[1] e) => (float[p, 6] y) {
            z = Constant <value_ints = [0]> () t = Slice(x, z, e, z) y = Exp(t) }""",
        [{"x": (5, 6), "e": ints(e)} for e in (2, -1, 0, 99)],
    ),
    "pad": (
        "m (float[2, 3] x, int64[4] p, float v) => (float[a, b] y) { t = Pad(x, p, v) y = Relu(t) }",
        [{"x": (2, 3), "p": ints(*p), "v": np.array(2.5, np.float32)} for p in ((1, 0, 2, 3), (0, -1, 0, 2))],
    ),
    "pad by reflection": (
        'm (float[4, 5] x, int64[4] p) => (float[a, b] y) { y = Pad <mode = "reflect"> (x, p) }',
        [{"x": (4, 5), "p": ints(*p)} for p in ((1, 2, 3, 0), (0, 0, 0, 0))],
    ),
    "split": (
        "m (float[6, 2] x, int64[2] s) => (float[a, 2] y, float[b, 2] z) { y, z = Split <axis = 0> (x, s) }",
        [{"x": (6, 2), "s": ints(*s)} for s in ((2, 4), (5, 1), (6, 0))],
    ),
    "squeeze": (
        "m (float[1, 3, 1] x, int64[1] a) => (float[p, q] y) { t = Squeeze(x, a) y = Neg(t) }",
        [{"x": (1, 3, 1), "a": ints(a)} for a in (0, 2, -1)],
    ),
    "squeeze of a count that is not 1": (
        "m (float[n] x) => (float[c] y) { a = NonZero(x) b = Squeeze(a) f = Cast <to = 1> (b) y = Neg(f) }",
        [{"x": np.array(x, np.float32)} for x in ([0, 0, 0], [1, 0, 1], [1, 1, 1])],
    ),
    "squeeze of trips that are not 1": (
        """m (float[2, 1, 4] x, int64 n) => (float[c, d, e] y) {
            t = Constant <value = bool {1}> ()
            a = Loop (n, t) <body = b (int64 i, bool c) => (bool o, float[2, 1, 4] s) {
                o = Identity(c) f = Cast <to = 1> (i) s = Add(x, f) }>
            z = Squeeze(a) y = Neg(z) }""",
        [{"x": (2, 1, 4), "n": np.array(n)} for n in (0, 3, 2)],
    ),
    "unsqueeze": (
        "m (float[2, n] x, int64[2] a) => (float[p, q, r, s] y) { t = Unsqueeze(x, a) y = Neg(t) }",
        [{"x": (2, 3), "a": ints(*a)} for a in ((0, 2), (3, 1), (-1, 0))],
    ),
    "sum along axes": (
        "m (float[2, n, 4] x, int64[2] a) => (float[p, q, r] y) { y = ReduceSum(x, a) }",
        [{"x": (2, 3, 4), "a": ints(*a)} for a in ((0, 1), (2, 0), (-1, 1))],
    ),
    "sum without the axes": (
        "m (float[2, n, 4] x, int64[1] a) => (float[p, q] y) { y = ReduceSum <keepdims = 0> (x, a) }",
        [{"x": (2, 3, 4), "a": ints(a)} for a in (0, 1, 2)],
    ),
    "running sum": (
        "m (float[2, n, 4] x, int64 a) => (float[2, n, 4] y) { y = CumSum <reverse = 1, exclusive = 1> (x, a) }",
        [{"x": (2, 3, 4), "a": np.array(a)} for a in (0, 1, -1)],
    ),
    "range": (
        "m (int64 s, int64 l, int64 d) => (int64[n] y) { r = Range(s, l, d) y = Add(r, r) }",
        [{k: np.array(v) for k, v in zip("sld", t, strict=True)} for t in ((0, 5, 1), (3, -4, -2), (2, 2, 1))],
    ),
    "range of floats": (
        "m (float s, float l, float d) => (float[n] y) { y = Range(s, l, d) }",
        [{k: np.array(v, np.float32) for k, v in zip("sld", t, strict=True)} for t in ((0, 2, 0.5), (1, 0, -0.25))],
    ),
    "constant of shape": (
        "m (int64[2] s) => (float[a, b] y) { z = ConstantOfShape(s) y = Exp(z) }",
        [{"s": ints(*s)} for s in ((2, 3), (0, 4), (1, 1))],
    ),
    "one-hot": (
        """m (int64[3] i, int64 d, float[2] v) => (float[3, k] y) { y = OneHot(i, d, v) }""",
        [{"i": ints(0, 2, 1), "d": np.array(d), "v": np.array([0, 5], np.float32)} for d in (3, 7)],
    ),
    "top k": (
        "m (float[3, n] x, int64[1] k) => (float[3, m] y, int64[3, m] p) { y, p = TopK(x, k) }",
        [{"x": (3, 9), "k": ints(k)} for k in (1, 4, 9)],
    ),
    "resize to sizes": (
        """m (float[1, 2, n, 4] x, int64[4] s) => (float[1, 2, h, w] y) {
            y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, , , s) }""",
        [{"x": (1, 2, n, 4), "s": ints(1, 2, h, w)} for n, h, w in ((4, 8, 4), (3, 2, 9), (5, 5, 1))],
    ),
    "resize by scales": (
        """m (float[1, 1, 4, n] x, float[4] s) => (float[1, 1, h, w] y) {
            y = Resize <mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">
                (x, , s) }""",
        [{"x": (1, 1, 4, 6), "s": np.array([1, 1, h, w], np.float32)} for h, w in ((2, 1.5), (0.5, 1), (1, 0.4))],
    ),
    "triangle": (
        "m (float[4, n] x, int64 k) => (float[4, n] y) { y = Trilu <upper = 0> (x, k) }",
        [{"x": (4, 5), "k": np.array(k)} for k in (0, -2, 3)],
    ),
    "nonzero": (
        """m (float[n, 4] x) => (int64[2, k] p, float[k] y) {
            r = Relu(x) p = NonZero(r) t = Transpose(p) e = Exp(r) y = GatherND(e, t) }""",
        [{"x": (3, 4)}, {"x": np.zeros((2, 4), np.float32)}, {"x": np.ones((1, 4), np.float32)}],
    ),
    "compress": (
        "m (float[n, 4] x, bool[n] c) => (float[k, 4] y) { t = Compress <axis = 0> (x, c) y = Exp(t) }",
        [{"x": (3, 4), "c": np.array(c)} for c in ((True, False, True), (False, False, False))],
    ),
    "scatter at places of a mask": (  # as many as there are, though a slice says so in its own way
        """m (float[n] x, float[n] u) => (float[n] y) {
            p = NonZero(x) t = Transpose(p) o = Constant <value_ints = [0]> () e = Constant <value_ints = [1000000]> ()
            i = Slice(t, o, e) v = GatherND(u, t) y = ScatterND(x, i, v) }""",
        [{"x": np.array([1, 0, 2, 3], np.float32), "u": (4,)}, {"x": np.zeros(2, np.float32), "u": (2,)}],
    ),
    "a scatter of no elements": (
        """m (float[n, 3] x) => (int64[a, b] y) {
            i = Constant <value = int64[2, 0] {}> () u = Constant <value = int64[2, 0] {}> ()
            z = NonZero(x) y = ScatterElements <axis = 0> (z, i, u) }""",
        [{"x": (n, 3)} for n in (1, 2)],
    ),
    "scatter of elements at places of a mask": (
        """m (float[n] x, float[n] u) => (float[n] y) {
            p = NonZero(x) o = Constant <value_ints = [0]> () e = Constant <value_ints = [1000000]> ()
            l = Constant <value_ints = [-1]> () q = Reshape(p, l)
            i = Slice(q, o, e) v = Gather(u, q) y = ScatterElements(x, i, v) }""",
        [{"x": np.array([1, 0, 2, 3], np.float32), "u": (4,)}],
    ),
    "unique": (
        "m (int64[n] x) => (int64[k] y, int64[k] f, int64[n] i, int64[k] c) { y, f, i, c = Unique(x) }",
        [{"x": ints(3, 1, 3, 7, 1)}, {"x": ints(5)}],
    ),
    "unique in their order": (
        "m (float[n, 2] x) => (float[k, 2] y, int64[k] f) { y, f = Unique <axis = 0, sorted = 0> (x) }",
        [{"x": np.array([[2, 1], [0, 1], [2, 1]], np.float32)}],
    ),
    "boxes": (
        """m (float[1, n, 4] b, float[1, 2, n] s, int64[1] m, float[1] o) => (int64[k, 3] y) {
            y = NonMaxSuppression(b, s, m, o) }""",
        [
            {
                "b": np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 5, 1, 6], [1, 1, 0, 0]]], np.float32),
                "s": np.array([[[0.9, 0.75, 0.6, 0.5], [0.1, 0.8, 0.3, 0.2]]], np.float32),
                "m": ints(m),
                "o": np.array([o], np.float32),
            }
            for m, o in ((3, 0.5), (1, 0.0), (0, 0.5))
        ],
    ),
    "sizes that meet": (
        """m (float[3] x, int64[1] s, int64[1] t) => (float[k] y) {
            a = ConstantOfShape(s) b = ConstantOfShape(t) c = Add(a, b) e = Exp(c) y = Concat <axis = 0> (e, x) }""",
        [{"x": (3,), "s": ints(a), "t": ints(b)} for a, b in ((4, 4), (1, 5), (5, 1), (0, 1))],
    ),
    "products whose leading sizes meet": (
        """m (float[a, 2, 4] x, int64[1] s) => (float[k, 2, 5] y, float[j, 2, 2] z) {
            four = Constant <value_ints = [4, 5]> () t = Concat <axis = 0> (s, four)
            w = ConstantOfShape(t) e = Exp(w) y = MatMul(x, e)
            two = Constant <value_ints = [2, 4]> () u = Concat <axis = 0> (s, two)
            v = ConstantOfShape(u) f = Cos(v) h = Transpose <perm = [0, 2, 1]> (x) z = MatMul(f, h) }""",
        [{"x": (a, 2, 4), "s": ints(s)} for a, s in ((3, 3), (3, 1), (1, 3), (1, 1))],
    ),
    "a factor that is no simple fraction": (
        """m (float[n, h] x) => (float[n, k] y) {
            f = Constant <value_floats = [1.0, 0.7]> ()
            y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , f) }""",
        [{"x": (2, h)} for h in (9, 2)],
    ),
    "a mask of a computed length": (
        """m (float[n, 4] x) => (float[n, 4] y) {
            r = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (r) one = Constant <value_ints = [1]> ()
            a = Abs(i) l = Reshape(a, one) h = Add(l, one) t = ConstantOfShape(h) m = ReduceSum(t) y = Add(x, m) }""",
        [{"x": (3, 4)}, {"x": (1, 4)}],
    ),
    "if": (
        """m (float[n] x, bool c) => (float[k] y) {
            e = Exp(x)
            y = If (c) <then_branch = t () => (float[a] p) { p = Concat <axis = 0> (e, x) },
                        else_branch = f () => (float[b] q) { q = Neg(x) }> }""",
        [{"x": (3,), "c": np.array(c)} for c in (True, False)],
    ),
    "loop": (
        """m (float[2] x, int64 n) => (float[2] y, float[n, 2] z) {
            t = Constant <value = bool {1}> ()
            y, z = Loop (n, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s) {
                d = Identity(c) f = Cast <to = 1> (i) u = Add(v, x) w = Add(u, f) s = Mul(w, w) }> }""",
        [{"x": (2,), "n": np.array(n)} for n in (3, 1, 0)],
    ),
    "loop with a condition": (
        """m (float[2] x, float limit) => (float[2] y) {
            n = Constant <value = int64 {100}> () t = Constant <value = bool {1}> ()
            y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                a = Abs(v) one = Constant <value_float = 1.0> () w = Add(a, one)
                s = ReduceSum <keepdims = 0> (w) d = Less(s, limit) }> }""",
        [{"x": (2,), "limit": np.array(v, np.float32)} for v in (10.0, 0.0)],
    ),
    "loop over growing values": (
        """m (float[k] x, int64 n) => (float[m] y) {
            t = Constant <value = bool {1}> ()
            y = Loop (n, t, x) <body = b (int64 i, bool c, float[p] v) => (bool d, float[q] w) {
                d = Identity(c) e = Tanh(v) w = Concat <axis = 0> (v, e) }> }""",
        [{"x": (2,), "n": np.array(n)} for n in (0, 1, 4)],
    ),
    "max unpool": (
        """m (float[1, 1, 4, 4] x, int64[4] s) => (float[a, b, c, d] y) {
            p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
            y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (p, i, s) }""",
        [{"x": (1, 1, 4, 4), "s": ints(1, 1, 4, 4)}],
    ),
    "scan": (
        """m (float[3] x, float[n, 3] l) => (float[3] y, float[n, 3] z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[3] v, float[3] r) => (float[3] w, float[3] s) {
                w = Add(v, r) s = Mul(w, x) }> (x, l) }""",
        [{"x": (3,), "l": (n, 3)} for n in (1, 4)],
    ),
    "scan backwards": (
        """m (float[2] x, float[2, n] l) => (float[2] y, float[2, n] z) {
            y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                scan_input_directions = [1], scan_output_directions = [1],
                body = b (float[2] v, float[2] r) => (float[2] w, float[2] s) { w = Add(v, r) s = Identity(w) }>
                (x, l) }""",
        [{"x": (2,), "l": (2, n)} for n in (1, 5)],
    ),
}


CASES |= {
    "sequences": (
        """m (float[n, 4] x, bool c) => (float[a, 4] y, float[n, 2] z, int64 k) {
            one = Constant <value = int64 {1}> () two = Constant <value_ints = [1, 3]> ()
            e = Exp(x) s = SequenceConstruct(x, e) t = SequenceInsert(s, x, one) u = SequenceErase(t)
            k = SequenceLength(t) p = SplitToSequence <axis = 1> (x, two)
            y = If (c) <then_branch = f () => (float[b, 4] v) { v = ConcatFromSequence <axis = 0> (u) },
                        else_branch = g () => (float[b, 4] w) { w = SequenceAt(t, one) }>
            h = SequenceAt(p, one) zero = Constant <value_ints = [0]> () end = Constant <value_ints = [2]> ()
            ax = Constant <value_ints = [1]> () z = Slice(h, zero, end, ax) }""",
        [{"x": (3, 4), "c": np.array(c)} for c in (True, False)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_size_of_a_case_is_right(name: str, tmp_path: Path) -> None:
    text, calls = CASES[name]
    model = parsed(text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    engine = tilewright.compile(model, target="cpu", effort=0)
    for call in calls:
        check(engine, session, call)
    engine.save(tmp_path / "model.engine")
    loaded = Engine.load(tmp_path / "model.engine")
    for call in calls:
        check(loaded, session, call)


def test_errors_name_what_was_given() -> None:
    engine = tilewright.compile(parsed("m (float[2, 3] x, int64[2] s) => (float[a, b] y) { y = Tile(x, s) }"))
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"element 1 of input 1 \('s'\) is -1; 0 to"):
        engine.run({"x": x, "s": ints(2, -1)})
    engine = tilewright.compile(parsed("m (float[2, 3] x, int64[1] a) => (float[b] y) { y = Squeeze(x, a) }"))
    with pytest.raises(ShapeError, match=r"input 1 \('a'\): dimension 0 of \[2, 3\] is not 1"):
        engine.run({"x": x, "a": ints(0)})
    with pytest.raises(ShapeError, match=r"input 1 \('a'\) is \[7\]: each must be one of -2\.\.1"):
        engine.run({"x": x, "a": ints(7)})
    engine = tilewright.compile(parsed("m (float[n] x) => (int64[c] y) { a = NonZero(x) b = Squeeze(a) y = Neg(b) }"))
    with pytest.raises(ShapeError, match=r"this Squeeze has no axes, .* dimension 1 of %a: .* at a size of 1; give it"):
        engine.run({"x": np.array([0, 1, 0], np.float32)})
    engine = tilewright.compile(parsed("m (float[9] x, int64[1] k) => (float[b] y, int64[b] p) { y, p = TopK(x, k) }"))
    with pytest.raises(ShapeError, match=r"input 1 \('k'\) is 10, and dimension 0 has 9 elements"):
        engine.run({"x": np.ones(9, np.float32), "k": ints(10)})
    engine = tilewright.compile(
        parsed("m (float[6] x, int64[2] s) => (float[a] y, float[b] z) { y, z = Split <axis = 0> (x, s) }")
    )
    with pytest.raises(ShapeError, match=r"does not take the sizes"):
        engine.run({"x": np.ones(6, np.float32), "s": ints(2, 3)})


def test_a_scan_of_opset_8_has_a_batch(rng: np.random.Generator) -> None:
    model = parsed("""m (float[2, 3] x, float[2, n, 3] l) => (float[2, 3] y, float[2, n, 3] z) {
        y, z = Scan <num_scan_inputs = 1, directions = [1],
            body = b (float[3] v, float[3] r) => (float[3] w, float[3] s) {
                w = Add(v, r) s = Tanh(w) }> ("", x, l) }""")
    model.opset_import[0].version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    check(tilewright.compile(model, target="cpu"), session, {"x": (2, 3), "l": (2, 4, 3)})


def test_elements_at_as_many_indices_as_only_the_run_knows() -> None:
    model = parsed(
        "m (float[4, 2] x, int64[2] s) => (float[a, 2] y) {"
        "i = Constant <value = int64[1, 2] {1, 0}> () j = Expand(i, s) y = GatherElements <axis = 1> (x, j) }"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    engine = tilewright.compile(model, target="cpu")
    check(engine, session, {"x": (4, 2), "s": ints(4, 2)})
    with pytest.raises(ShapeError):
        engine.run({"x": np.ones((4, 2), np.float32), "s": ints(5, 2)})


@pytest.mark.parametrize("largest", [True, False])
def test_the_best_of_many_are_those_of_a_whole_sort(largest: bool) -> None:
    """With ties, infinities and NaN."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 50, (3, 400, 2)).astype(np.float32)
    x[0, ::7], x[1, 3] = np.nan, np.inf
    k, attributes = np.array([20]), {"axis": 1, "largest": largest, "what": "k", "gives": "positions"}
    keys = np.where(np.isnan(x), 1e30, np.where(np.isinf(x), 1e20, x))  # NaN is greater than all
    wanted = np.argsort(-keys if largest else keys, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(host_ops.top_k([x, k], attributes), wanted)
