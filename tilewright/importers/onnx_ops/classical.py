"""Classical models on rows of numbers: scaling, encodings, linear models, kernels, trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import float32, float64, int64, string
from tilewright.graph.core import Value
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.trees import (
    LARGEST_TABLE,
    LEAF,
    MEMBER,
    Trees,
    leaves_of,
    mode_codes,
    place_in,
    tree_table,
)
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import product

TABLE = RuleTable("Classical models", "ai.onnx.ml::")
rule = TABLE.rule

_DEFAULTS: dict[str, tuple[str, object]] = {  # of labels by the kind of their NumPy type
    "f": ("default_float", -0.0), "i": ("default_int64", -1), "O": ("default_string", "_Unused"),
}  # fmt: skip


def _rows(call: OnnxCall, x: Value) -> Value:
    """[N, C] in float32 at least; one row may come without its first dimension."""
    call.require_rank(x, 1, 2)
    x = call.unsqueeze(x, 0) if x.rank == 1 else x
    return x if x.dtype == float64 else call.cast(x, float32)


def _softmax_without_zeros(call: OnnxCall, scores: Value) -> Value:
    """A softmax of each row in which numbers next to 0 have no share of the sum, as in ONNX Runtime."""
    largest = call.op("reduce_max", scores, axes=(1,), keepdims=True)
    powers = call.op("exp", call.op("subtract", scores, largest))
    counted = call.op("greater", call.op("absolute", scores), 1e-7)
    total = call.op("reduce_sum", call.op("where", counted, powers, 0.0), axes=(1,), keepdims=True)
    others = call.op("multiply", scores, call.op("exp", call.op("negate", largest)))
    return call.op("divide", call.op("where", counted, powers, others), total)


def _transformed(call: OnnxCall, scores: Value, name: str | None = None) -> Value:
    """Scores [N, E] after the transform of a name, or of the attribute `post_transform`; only 'PROBIT' changes a
    single score, as in ONNX Runtime."""
    name = name or call.choice("post_transform", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    if name == "PROBIT":
        return _probit(call, scores)
    if name == "NONE" or scores.shape[1] == 1:
        return scores
    if name == "SOFTMAX_ZERO":
        return _softmax_without_zeros(call, scores)
    return call.op("sigmoid", scores) if name == "LOGISTIC" else call.op("softmax", scores, axis=1)


def _probit(call: OnnxCall, scores: Value) -> Value:
    """Where the normal distribution has reached these shares, by the approximation that ONNX Runtime uses: S. Winitzki,
    "A handy approximation for the error function and its inverse", 2008, with a = 0.147."""
    x, a = call.op("subtract", call.op("multiply", scores, 2.0), 1.0), 0.147
    log = call.op("log", call.op("multiply", call.op("subtract", 1.0, x), call.op("add", x, 1.0)))
    half = call.op("add", call.op("multiply", log, 0.5), 2 / (math.pi * a))
    root = call.op("sqrt", call.op("subtract", call.op("multiply", half, half), call.op("divide", log, a)))
    size = call.op("sqrt", call.op("multiply", call.op("subtract", root, half), 2.0))
    return call.op("where", call.op("less", x, 0.0), call.op("negate", size), size)


def _of_two(call: OnnxCall, score: Value, shares: bool) -> Value:
    """Scores [N, 2] of two classes from that of the second [N, 1]: of shares, which any softmax leaves as they are, the
    first has the rest."""
    if call.attribute("post_transform") == "PROBIT":
        raise Unsupported("PROBIT of one score for two classes", "score both classes")
    transform = call.choice("post_transform", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    other = call.op("subtract", 1.0, score) if shares and transform != "LOGISTIC" else call.op("negate", score)
    scores = call.op("concat", other, score, axis=1)
    return call.op("sigmoid", scores) if transform == "LOGISTIC" else scores


@rule("Binarizer")
def binarizer(call: OnnxCall) -> Value:
    return call.cast(call.op("greater", call[0], call.attribute("threshold", 0.0)), call[0].dtype)


@rule("Scaler")
def scaler(call: OnnxCall) -> Value:
    """(x - offset) scale, by column, in float32."""
    x = call.cast(call[0], float32)
    offset, scale = (np.array(call.attribute(name) or [default], np.float32) for name, default in _SCALING)
    moved = call.op("subtract", x, call.constant(offset, "offset"))
    return call.op("multiply", moved, call.constant(scale, "scale"))


_SCALING = (("offset", 0.0), ("scale", 1.0))


@rule("Normalizer")
def normalizer(call: OnnxCall) -> Value:
    """Rows divided by their largest size, sum of sizes or length; rows of zeros stay."""
    x, norm = call.cast(call[0], float32), call.choice("norm", "MAX", "L1", "L2")
    axes = (x.rank - 1,)
    if norm == "L2":
        size = call.op("sqrt", call.op("reduce_sum", call.op("multiply", x, x), axes=axes, keepdims=True))
    elif norm == "L1":
        size = call.op("reduce_sum", call.op("absolute", x), axes=axes, keepdims=True)
    else:
        size = call.op("reduce_max", x, axes=axes, keepdims=True)
    return call.op("divide", x, call.op("where", call.op("equal", size, 0.0), 1.0, size))


@rule("Imputer")
def imputer(call: OnnxCall) -> Value:
    """Another number, by column, in place of one that stands for what is missing."""
    x = call[0]
    kind = "float" if x.dtype.is_float else "int64"
    given = call.attribute(f"imputed_value_{kind}s")
    missing = call.attribute(f"replaced_value_{kind}", 0)
    if not given:
        raise Invalid(f"the attribute 'imputed_value_{kind}s' is missing for numbers of type {x.dtype}")
    new = call.constant(np.array(given, x.dtype.numpy), "imputed")
    gone = call.op("isnan", x) if x.dtype.is_float and np.isnan(missing) else call.op("equal", x, missing)
    return call.op("where", gone, new, x)


@rule("ArrayFeatureExtractor")
def array_feature_extractor(call: OnnxCall) -> Value:
    """Columns of the last dimension; a list becomes one row."""
    x, places = call[0], call.cast(call[1], int64)
    found = call.op("gather", x, call.reshape(places, (product(places.shape),)), axis=x.rank - 1)
    return call.unsqueeze(found, 0) if x.rank == 1 else found


@rule("FeatureVectorizer")
def feature_vectorizer(call: OnnxCall) -> Value:
    """Numbers of several inputs side by side, a row for each sample; each is cut or filled with 0 to its own width."""
    parts = [call.flatten(x, 1, x.rank) if x.rank > 2 else x for x in map(call.__getitem__, range(len(call.inputs)))]
    parts = [call.cast(_rows(call, part), float32) for part in parts]
    widths = call.attribute("inputdimensions") or [part.shape[1] for part in parts]
    if len(widths) != len(parts):
        raise Invalid(f"the attribute 'inputdimensions' has {len(widths)} entries for {len(parts)} inputs")
    cut = []
    for part, width in zip(parts, widths, strict=True):
        missing = width - part.shape[1] if isinstance(part.shape[1], int) else 0
        part = call.op("pad", part, pads=[(0, 0), (0, missing)], value=0) if missing > 0 else part
        cut.append(call.slice(part, 1, 0, width))
    return cut[0] if len(cut) == 1 else call.op("concat", *cut, axis=1)


@rule("OneHotEncoder")
def one_hot_encoder(call: OnnxCall) -> Value:
    texts, classes = call.attribute("cats_strings"), call.attribute("cats_int64s")
    call.attribute("zeros", 1)  # whether a number that is no class is an error, which only the run would know
    if not texts and not classes:
        raise Invalid("there are no classes")
    if texts:
        place = call.op("text_position", call[0], keys=tuple(texts))
        each = call.op("equal", call.unsqueeze(place, place.rank), call.iota(len(texts)))
        return call.cast(each, float32)
    x = call.unsqueeze(call.cast(call[0], int64), call[0].rank)
    return call.cast(call.op("equal", x, call.constant(np.array(classes, np.int64), "classes")), float32)


@rule("LabelEncoder")
def label_encoder(call: OnnxCall) -> Value:
    """Labels by a table of numbers or texts; others become a default."""
    classes = call.attribute("classes_strings")
    if classes is not None:  # version 1: a text and its place in the list, either way
        return _by_list(call, classes, range(len(classes)))
    keys, values = (_table(call, name) for name in ("keys", "values"))
    default = call.attribute("default_tensor")
    if default is None:
        name, other = _DEFAULTS[values.dtype.kind]
        default = np.array(call.attribute(name, other), values.dtype)
    for name in ("default_string", "default_int64", "default_float"):
        call.attribute(name)
    if len(keys) != len(values) or not len(keys):
        raise Invalid(f"there are {len(keys)} keys and {len(values)} values")
    first: dict[Any, int] = {}
    for index, key in enumerate(keys.tolist()):
        first.setdefault(key, index)
    order = np.array([*first.values()])
    keys, values, x = keys[order], values[order], call[0]
    if (x.dtype == string) != (keys.dtype == object):
        raise Invalid(f"the keys are {'texts' if keys.dtype == object else 'numbers'}, and the labels are {x.dtype}")
    if x.dtype == string:
        place = call.op("text_position", x, keys=tuple(keys.tolist()))
        rows = call.constant(np.concatenate([values, default.reshape(-1)[:1].astype(values.dtype)]), "values")
        return call.op("gather", rows, place, axis=0)  # the last of which -1 stands for
    column = call.unsqueeze(x, x.rank)
    table = call.constant(keys.astype(x.dtype.numpy), "keys")
    match = call.op("equal", column, table)
    if call.opset >= 4 and x.dtype.is_float and np.isnan(keys.astype(np.float64)).any():
        match = call.op("logical_or", match, call.op("logical_and", call.op("isnan", column), call.op("isnan", table)))
    place = call.op("argmax", call.cast(match, int64), axis=x.rank)
    found = call.op("gather", call.constant(values, "values"), place, axis=0)
    known = call.op("greater", call.op("reduce_max", call.cast(match, int64), axes=(x.rank,)), 0)
    return call.op(
        "where", known, found, call.constant(default.reshape(-1)[:1].reshape(()).astype(values.dtype), "default")
    )


@rule("CategoryMapper")
def category_mapper(call: OnnxCall) -> Value:
    """Texts to numbers or numbers to texts, by a list of pairs."""
    texts, numbers = call.attribute("cats_strings") or [], call.attribute("cats_int64s") or []
    if len(texts) != len(numbers) or not texts:
        raise Invalid(f"there are {len(texts)} texts and {len(numbers)} numbers; there must be as many")
    return _by_list(call, texts, numbers)


def _by_list(call: OnnxCall, texts: Sequence[str], numbers: Sequence[int]) -> Value:
    """Texts to their numbers or numbers to their texts, the last of equal ones; others become a default."""
    other, code = call.attribute("default_string", "_Unused"), call.attribute("default_int64", -1)
    if call[0].dtype == string:
        place = call.op("text_position", call[0], keys=tuple(texts))
        return call.op("gather", call.constant(np.array([*numbers, code], np.int64), "numbers"), place, axis=0)
    known = dict(zip(numbers, texts, strict=True))
    match = call.op(
        "equal", call.unsqueeze(call[0], call[0].rank), call.constant(np.array([*known], np.int64), "numbers")
    )
    hits = call.cast(match, int64)
    place = call.op("argmax", hits, axis=call[0].rank)
    found = call.op("greater", call.op("reduce_max", hits, axes=(call[0].rank,)), 0)
    place = call.op("where", found, place, len(known))
    return call.op("gather", call.constant(np.array([*known.values(), other], object), "texts"), place, axis=0)


def _table(call: OnnxCall, name: str) -> np.ndarray:
    """The keys or the values of a LabelEncoder."""
    for kind, dtype in (("strings", object), ("int64s", np.int64), ("floats", np.float32), ("tensor", None)):
        found = call.attribute(f"{name}_{kind}")
        if found is not None:
            array = np.asarray(found) if dtype is None else np.array(found, dtype)
            return array.reshape(-1)
    raise Invalid(f"the {name} are missing")


def _classes(call: OnnxCall, name: str) -> np.ndarray:
    """The names of classes: texts, or the numbers of an attribute."""
    texts, numbers = call.attribute("classlabels_strings"), call.attribute(name)
    return np.array(texts, object) if texts else np.array(numbers or [], np.int64)


# Linear models and kernels ---------------------------------------------------------------------------


def _linear(call: OnnxCall, outputs: int) -> Value:
    """Scores [N, outputs]; coefficients beyond the last row are not read, as in ONNX Runtime, which has such a file."""
    x = _rows(call, call[0])
    numbers = np.array(call.attribute("coefficients"), np.float32)
    if not isinstance(x.shape[1], int):
        x = must_be(call, x, (x.shape[0], numbers.size // outputs))
    width = x.shape[1]
    if not isinstance(width, int) or numbers.size < outputs * width:
        raise Invalid(f"there are {numbers.size} coefficients for {outputs} results of {x!r}")
    matrix = call.constant(numbers[: outputs * width].reshape(outputs, width).astype(x.dtype.numpy), "coefficients")
    scores = call.op("matmul", x, matrix, transpose_b=True)
    given = call.attribute("intercepts")
    if not given:
        return scores
    return call.op("add", scores, call.constant(np.array(given, x.dtype.numpy), "intercepts"))


@rule("LinearRegressor")
def linear_regressor(call: OnnxCall) -> Value:
    return _transformed(call, _linear(call, int(call.attribute("targets", 1))))


@rule("LinearClassifier")
def linear_classifier(call: OnnxCall) -> tuple[Value, Value]:
    call.attribute("multi_class")
    intercepts, labels = call.attribute("intercepts") or [], _classes(call, "classlabels_ints")
    width = call[0].shape[-1]
    size = len(call.attribute("coefficients"))
    outputs = len(intercepts) or (size // width if isinstance(width, int) and width else len(labels))
    if outputs < 1 or len(labels) != max(outputs, 2):
        raise Unsupported(f"{len(labels)} classes for {outputs} rows of coefficients", "give one row for each class")
    scores = _linear(call, outputs)
    names = call.constant(labels, "classes")
    if outputs > 1:
        label = call.op("gather", names, call.op("argmax", scores, axis=1), axis=0)
        return label, call.cast(_transformed(call, scores), float32)
    chosen = call.cast(call.op("greater", scores, 0.0), int64)
    label = call.reshape(call.op("gather", names, chosen, axis=0), scores.shape[:1])
    return label, call.cast(_of_two(call, scores, shares=True), float32)


@rule("SVMRegressor")
def support_vector_regressor(call: OnnxCall) -> Value:
    """A sum of kernels of the row and each support vector, to which ONNX Runtime applies no transform."""
    x = call.cast(_rows(call, call[0]), float32)
    count, one_class = int(call.attribute("n_supports", 0)), call.attribute("one_class", 0)
    kind = call.choice("kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID")
    gamma, offset, degree = (*(call.attribute("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    coefficients = np.array(call.attribute("coefficients"), np.float32)
    rho = float((call.attribute("rho") or [0.0])[0])
    if not count:
        total = call.op("matmul", x, call.constant(coefficients.reshape(-1, 1), "coefficients"))
    else:
        vectors = np.array(call.attribute("support_vectors"), np.float32).reshape(count, -1)
        kernel = _kernel(call, x, vectors, kind, (gamma, offset, degree))
        total = call.op("matmul", kernel, call.constant(coefficients.reshape(-1, 1), "coefficients"))
    total = call.op("add", total, rho)
    call.attribute("post_transform")
    if one_class:
        sign = call.op("greater", total, 0.0)
        return call.op("where", sign, call.builder.number(1.0, float32), call.builder.number(-1.0, float32))
    return total


@rule("SVMClassifier")
def support_vector_classifier(call: OnnxCall) -> tuple[Value, Value]:
    """Each pair of classes has a score, by which one gets a vote; or one score for each class, without vectors."""
    labels = _classes(call, "classlabels_ints")
    counts = [int(count) for count in call.attribute("vectors_per_class") or []]
    kind = call.choice("kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID")
    numbers = (*(call.attribute("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    coefficients, rho, slopes, shifts = (
        np.array(call.attribute(name) or [], np.float32) for name in ("coefficients", "rho", "prob_a", "prob_b")
    )
    x, classes = call.cast(_rows(call, call[0]), float32), len(labels)
    if classes < 2 or (counts and len(counts) != classes):
        raise Invalid(f"there are {classes} classes, and vectors for {len(counts)}")
    names = call.constant(labels, "classes")
    if not sum(counts):
        weights = call.constant(coefficients.reshape(classes, -1), "coefficients")
        scores = call.op("add", call.op("matmul", x, weights, transpose_b=True), float(rho[0]) if rho.size else 0.0)
        best = call.op("argmax", scores, axis=1)
        return call.op("gather", names, best, axis=0), _transformed(call, scores)
    vectors = np.array(call.attribute("support_vectors"), np.float32).reshape(sum(counts), -1)
    table, pairs = _of_pairs(coefficients.reshape(classes - 1, -1), counts)
    kernel = _kernel(call, x, vectors, kind, numbers)
    scores = call.op("matmul", kernel, call.constant(table, "coefficients"))
    scores = call.op("add", scores, call.constant(rho[: len(pairs)], "rho"))
    # The first of a pair wins with a score above 0.
    first = np.zeros((len(pairs), classes), np.float32)
    second = np.zeros((len(pairs), classes), np.float32)
    for place, (left, right) in enumerate(pairs):
        first[place, left], second[place, right] = 1, 1
    won = call.cast(call.op("greater", scores, 0.0), float32)
    votes = call.op("matmul", won, call.constant(first - second, "votes"))
    votes = call.op("add", votes, call.constant(second.sum(axis=0), "votes"))
    label = call.op("gather", names, call.op("argmax", votes, axis=1), axis=0)
    if slopes.size:
        return label, _transformed(call, _of_classes(call, scores, slopes, shifts, first, second))
    return label, _of_a_pair(call, scores) if len(pairs) == 1 else _transformed(call, scores)


def _of_a_pair(call: OnnxCall, score: Value) -> Value:
    """Scores [N, 2] of two classes from that of the second [N, 1], as ONNX Runtime transforms them."""
    transform = call.choice("post_transform", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    is_share = transform in ("SOFTMAX", "SOFTMAX_ZERO")
    other = call.op("subtract", 1.0, score) if is_share else call.op("negate", score)
    scores = call.op("concat", other, score, axis=1)
    return call.op("sigmoid", scores) if transform == "LOGISTIC" else scores


def _of_pairs(coefficients: np.ndarray, counts: list[int]) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The factors [vectors, pairs] of kernels in the score of each pair of classes, and the pairs."""
    begins = np.cumsum([0, *counts])
    pairs = [(left, right) for left in range(len(counts)) for right in range(left + 1, len(counts))]
    table = np.zeros((sum(counts), len(pairs)), np.float32)
    for place, (left, right) in enumerate(pairs):
        mine, other = slice(begins[left], begins[left + 1]), slice(begins[right], begins[right + 1])
        table[mine, place], table[other, place] = coefficients[right - 1, mine], coefficients[left, other]
    return table, pairs


def _of_classes(
    call: OnnxCall, scores: Value, slopes: np.ndarray, shifts: np.ndarray, first: np.ndarray, second: np.ndarray
) -> Value:
    """Probabilities of classes [N, C] from scores of pairs [N, pairs], of which the matrices have the classes."""
    line = call.op("multiply", scores, call.constant(slopes, "slopes"))
    chance = call.op("sigmoid", call.op("negate", call.op("add", line, call.constant(shifts, "shifts"))))
    chance = call.op("clip", chance, low=1e-7, high=1 - 1e-7)
    classes = first.shape[1]
    places = first[:, :, None] * second[:, None, :]  # [pairs, C, C]
    won = call.op("matmul", chance, call.constant(places.reshape(len(places), -1), "pairs"))
    turned = places.transpose(0, 2, 1).reshape(len(places), -1)
    lost = call.op("matmul", call.op("subtract", 1.0, chance), call.constant(turned, "pairs"))
    return call.op("coupled_probabilities", call.reshape(call.op("add", won, lost), (-1, classes, classes)))


def _kernel(call: OnnxCall, x: Value, vectors: np.ndarray, kind: str, numbers: tuple[float, float, float]) -> Value:
    """Kernels [N, count] of rows and support vectors."""
    gamma, offset, degree = numbers
    table = call.constant(vectors, "vectors")
    if kind == "RBF":
        apart = call.op("subtract", call.unsqueeze(x, 1), table)
        squares = call.op("reduce_sum", call.op("multiply", apart, apart), axes=(2,))
        return call.op("exp", call.op("multiply", squares, -gamma))
    dot = call.op("matmul", x, table, transpose_b=True)
    if kind == "LINEAR":
        return dot
    dot = call.op("add", call.op("multiply", dot, gamma), offset)
    return call.op("tanh", dot) if kind == "SIGMOID" else call.op("power", dot, call.builder.number(degree, float32))


# Trees -----------------------------------------------------------------------------------------------


def _numbers(call: OnnxCall, name: str) -> np.ndarray:
    """Floats of an attribute, or of its form as a tensor."""
    tensor = call.attribute(f"{name}_as_tensor")
    given = call.attribute(name)
    return np.asarray(tensor) if tensor is not None else np.array(given or [], np.float32)


class _NodeNumbers:
    """Where in the lists of nodes the node of a tree is."""

    def __init__(self, trees: np.ndarray, nodes: np.ndarray) -> None:
        begins = np.flatnonzero(np.diff(trees, prepend=trees[:1] - 1))  # of runs of one tree
        self.trees, self._begins = trees[begins], begins
        self._sizes = np.diff([*begins, len(trees)])
        self.keys: np.ndarray | None = None
        if (np.diff(self.trees) > 0).all() and (nodes == np.arange(len(trees)) - np.repeat(begins, self._sizes)).all():
            return  # trees one after the other, with nodes counted from 0: as nearly all files have them
        self.trees, tree = np.unique(trees, return_inverse=True)
        self.nodes, node = np.unique(nodes, return_inverse=True)
        keys = tree * len(self.nodes) + node
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise Invalid("a tree has two nodes of one number")

    def find(self, trees: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The places of nodes; -1 for those that are not there."""
        if not len(self.trees):
            return np.full(len(trees), -1)
        tree = place_in(self.trees, trees)
        if self.keys is None:
            known = (tree >= 0) & (nodes >= 0) & (nodes < self._sizes[tree])
            return np.where(known, self._begins[tree] + nodes, -1)
        node = place_in(self.nodes, nodes)
        place = place_in(self.keys, tree * len(self.nodes) + node)
        return np.where((tree < 0) | (node < 0) | (place < 0), -1, self.order[place])


def _lists(call: OnnxCall, *names: str) -> list[np.ndarray]:
    """Attributes that are lists of integers of one length; raises `Invalid` for others."""
    found = [np.array(call.attribute(name) or [], np.int64) for name in names]
    if any(len(each) != len(found[0]) for each in found):
        raise Invalid(f"the attributes {', '.join(names)} have {', '.join(str(len(each)) for each in found)} entries")
    return found


def _trees(call: OnnxCall, side: str, results: int) -> Trees:
    """The trees of a TreeEnsembleRegressor (`side` target) or -Classifier (class)."""
    names = ("treeids", "nodeids", "truenodeids", "falsenodeids", "featureids")
    trees, nodes, *wanted, features = _lists(call, *(f"nodes_{name}" for name in names))
    modes = mode_codes(call.attribute("nodes_modes") or [])
    if len(modes) != len(trees):
        raise Invalid(f"there are {len(modes)} modes for {len(trees)} nodes")
    numbers, own, leaf = _NodeNumbers(trees, nodes), np.arange(len(trees)), modes == LEAF
    branches = [np.where(leaf, own, numbers.find(trees, nodes)) for nodes in wanted]
    if any((branch < 0).any() for branch in branches):
        raise Invalid("a node of a tree leads to one that the tree does not have")
    holders, leaves, targets = _lists(call, *(f"{side}_{name}" for name in ("treeids", "nodeids", "ids")))
    weighted, weights = numbers.find(holders, leaves), _numbers(call, f"{side}_weights")
    if len(weights) != len(targets):
        raise Invalid(f"there are {len(weights)} weights for {len(targets)} results")
    wrong = np.flatnonzero((weighted < 0) | (targets < 0) | (targets >= results))
    if wrong.size:
        pair = int(holders[wrong[0]]), int(leaves[wrong[0]])
        raise Invalid(f"a weight belongs to the node {pair} and the result {targets[wrong[0]]}, which are not there")
    is_child = np.zeros(len(trees), np.bool_)
    for branch in branches:
        is_child[branch[branch != own]] = True
    call.attribute("nodes_hitrates"), call.attribute("nodes_hitrates_as_tensor")
    missing = np.array(call.attribute("nodes_missing_value_tracks_true") or [0] * len(modes), np.bool_)
    limits, roots = _numbers(call, "nodes_values"), np.flatnonzero(~is_child)
    return Trees(
        features, limits, modes, missing, branches[0], branches[1], roots, weighted, targets, weights, results
    ).in_order()


def _aggregated(call: OnnxCall, x: Value, trees: Trees, function: str) -> Value:
    """The weights of the leaves put together: [N, results]."""
    names = {"SUM": "reduce_sum", "AVERAGE": "reduce_sum", "MIN": "reduce_min", "MAX": "reduce_max"}
    none = {"MIN": np.inf, "MAX": -np.inf}.get(function, 0.0)  # of a tree that says nothing of a result
    is_small = 1 < trees.results <= LARGEST_TABLE // max(len(trees.roots), 1)
    targets = trees.target_of_each if is_small and not none else None
    if targets is not None:
        total = _sum_of_results(call, x, trees, targets)
    else:
        weights, given = trees.table()
        table = call.constant(np.where(given, weights, none).astype(x.dtype.numpy), "weights")
        found = call.op("gather", table, leaves_of(call, x, trees), axis=0)  # [N, trees, results]
        total = call.op(names[function], found, axes=(1,))
    if none:
        total = call.op("where", call.op("equal", total, none), 0.0, total)
    return call.op("divide", total, float(len(trees.roots))) if function == "AVERAGE" else total


def _sum_of_results(call: OnnxCall, x: Value, trees: Trees, targets: np.ndarray) -> Value:
    """The sums [N, results] of trees that add to one result each."""
    table = call.constant(trees.leaf_weights().astype(x.dtype.numpy), "weights")
    found = call.op("gather", table, leaves_of(call, x, trees), axis=0)  # [N, trees]
    none = call.full((x.shape[0], 1), 0.0, x.dtype)  # for results with fewer trees than others
    found = call.op("concat", found, none, axis=1)
    used, counts = np.unique(targets, return_counts=True)
    places = np.full((trees.results, int(counts.max(initial=1))), len(targets), np.int32)
    for result, count in zip(used, counts, strict=True):
        places[result, :count] = np.flatnonzero(targets == result)
    ordered = call.op("gather", found, call.constant(places.reshape(-1), "order"), axis=1)
    return call.op("reduce_sum", call.reshape(ordered, (x.shape[0], *places.shape)), axes=(2,))


@rule("TreeEnsembleRegressor")
def tree_regressor(call: OnnxCall) -> Value:
    x, results = _rows(call, call[0]), call.positive("n_targets")
    function = call.choice("aggregate_function", "SUM", "AVERAGE", "MIN", "MAX")
    total = _aggregated(call, x, _trees(call, "target", results), function)
    base = _numbers(call, "base_values")
    if base.size:
        total = call.op("add", total, call.constant(base.astype(x.dtype.numpy), "base"))
    return call.cast(_transformed(call, total), float32)


@rule("TreeEnsembleClassifier")
def tree_classifier(call: OnnxCall) -> tuple[Value, Value]:
    """One score for each class; of two classes one may be enough."""
    labels = _classes(call, "classlabels_int64s")
    x, single = _rows(call, call[0]), len(labels) == 2 and len(set(call.attribute("class_ids"))) == 1
    if len(labels) < 2:
        raise Unsupported(f"{len(labels)} classes", "give at least two")
    ids = sorted(set(call.attribute("class_ids")))
    trees = _trees(call, "class", len(labels))
    total, base = _aggregated(call, x, trees, "SUM"), _numbers(call, "base_values")
    classes = call.constant(labels, "classes")
    if not single:
        if base.size:
            total = call.op("add", total, call.constant(base.astype(x.dtype.numpy), "base"))
        best = call.op("argmax", total if base.size else _scored(call, x, trees, total), axis=1)
        label = call.op("gather", classes, best, axis=0)
        return label, call.cast(_transformed(call, total), float32)
    if base.size > 1 or (ids == [1] and base.size):
        raise Unsupported(f"{base.size} base values where leaves score class {ids[0]} alone", "score both classes")
    score = call.slice(total, 1, ids[0], ids[0] + 1)
    if base.size:
        score = call.op("add", score, float(base[-1]))
    positive = bool((_numbers(call, "class_weights") >= 0).all())  # then scores are shares, of which a half decides
    chosen = call.op("greater", score, 0.5 if positive else 0.0)
    label = call.op("gather", classes, call.cast(chosen, int64), axis=0)
    label = call.reshape(label, (x.shape[0],))
    if ids == [1]:  # then the first class has a score of 0
        return label, call.cast(_transformed(call, total), float32)
    return label, call.cast(_of_two(call, score, positive), float32)


def _scored(call: OnnxCall, x: Value, trees: Trees, total: Value) -> Value:
    """The scores [N, classes] with the least one for a class of which no leaf of a row says anything."""
    targets = trees.target_of_each
    if (trees.weights >= 0).all() or (targets is not None and len(np.unique(targets)) == trees.results):
        return total
    given, leaves = trees.table()[1], trees.when_true == np.arange(len(trees.modes))
    if given[leaves].all():
        return total
    table = call.constant(given.astype(np.int64), "given")
    reached = call.op("reduce_max", call.op("gather", table, leaves_of(call, x, trees), axis=0), axes=(1,))
    return call.op("where", call.op("greater", reached, 0), total, call.builder.number(-np.inf, total.dtype))


_FUNCTIONS = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@rule("TreeEnsemble")
def tree_ensemble(call: OnnxCall) -> Value:
    """Sums (or others) of the weights of leaves [N, targets]: inner nodes and leaves have lists of their own."""
    call.require_rank(call[0], 2, 2)
    x = call[0] if call[0].dtype == float64 else call.cast(call[0], float32)
    function, transform = call.attribute("aggregate_function", 1), call.attribute("post_transform", 0)
    if not 0 <= function < len(_FUNCTIONS) or not 0 <= transform < len(_TRANSFORMS):
        raise Invalid(f"the aggregate_function is {function}, the post_transform {transform}")
    total = _aggregated(call, x, _ensemble(call), _FUNCTIONS[function])
    return call.cast(_transformed(call, total, _TRANSFORMS[transform]), call[0].dtype)


def _ensemble(call: OnnxCall) -> Trees:
    """The trees of a TreeEnsemble: the leaves follow the inner nodes."""
    codes = np.asarray(call.attribute("nodes_modes")).reshape(-1)
    splits = np.asarray(call.attribute("nodes_splits")).reshape(-1)
    weights = np.asarray(call.attribute("leaf_weights"), np.float64).reshape(-1)
    targets = np.array(call.attribute("leaf_targetids"), np.int64)
    count, leaves, results = len(codes), len(weights), call.positive("n_targets", 1)
    place = np.arange(count + leaves)
    branches = []
    for name in ("true", "false"):
        nodes, last = (np.array(call.attribute(f"nodes_{name}{kind}"), np.int64) for kind in ("nodeids", "leafs"))
        if len(nodes) != count or len(last) != count or (nodes < 0).any():
            raise Invalid(f"the attributes of the {name} branches have not {count} entries, one for each node")
        if (nodes >= np.where(last != 0, leaves, count)).any():
            raise Invalid("a node of a tree leads to one that is not there")
        branches.append(np.concatenate([np.where(last != 0, nodes + count, nodes), place[count:]]))
    roots, features = (np.array(call.attribute(name), np.int64) for name in ("tree_roots", "nodes_featureids"))
    missing = np.array(call.attribute("nodes_missing_value_tracks_true") or [0] * count, np.bool_)
    fits = len(targets) == leaves and all(len(each) == count for each in (splits, features, missing))
    if not fits or not ((roots >= 0) & (roots < count)).all() or not ((targets >= 0) & (targets < results)).all():
        raise Invalid("the lists of nodes, leaves and roots do not fit together")
    if (codes >= LEAF).any():
        raise Invalid(f"the modes of nodes are {sorted(set(codes.tolist()))}; they must be 0 to {LEAF - 1}")
    call.attribute("nodes_hitrates")
    filled = np.zeros(leaves, np.int64)
    modes = np.concatenate([codes.astype(np.int8), np.full(leaves, LEAF, np.int8)])
    return Trees(
        np.concatenate([features, filled]), np.concatenate([splits, filled]), modes,
        np.concatenate([missing, filled != 0]), branches[0], branches[1], roots, place[count:], targets, weights,
        results, _members(call, codes, leaves),
    ).in_order()  # fmt: skip


def _members(call: OnnxCall, codes: np.ndarray, leaves: int) -> np.ndarray | None:
    """The numbers of the sets of the nodes that ask for membership, which NaNs separate."""
    numbers = call.attribute("membership_values")
    asking = np.flatnonzero(codes == MEMBER)
    if numbers is None or not len(asking):
        if len(asking):
            raise Invalid("nodes ask for membership, and 'membership_values' is missing")
        return None
    numbers = np.asarray(numbers, np.float64).reshape(-1)
    ends = np.flatnonzero(np.isnan(numbers))
    sets = [part[~np.isnan(part)] for part in np.split(numbers, ends + 1)][: len(asking)]
    if len(sets) < len(asking):
        raise Invalid(f"there are {len(sets)} sets in 'membership_values' for {len(asking)} nodes")
    found = tree_table(len(codes) + leaves, max(1, *map(len, sets)), np.nan)
    for node, part in zip(asking, sets, strict=True):
        found[node, : len(part)] = part
    return found
