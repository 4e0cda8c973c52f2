"""Classical models of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import numpy_helper
from onnx.helper import make_model, make_opsetid
from onnx.parser import parse_graph

from tests.host.test_import_onnx_runtime import check, model_of
from tilewright.build.builder import build
from tilewright.errors import UnsupportedOperationError
from tilewright.graph import reference
from tilewright.graph.passes.trees import trees_as_steps
from tilewright.importers import import_model
from tilewright.importers.onnx_ops import trees as trees_module

X = np.array([[0.5, -1, 2], [0, 0, 0], [3, -2, 0.25], [-0.5, 4, 1]], np.float32)


def own(operation: str, *inputs: np.ndarray, outputs: int = 1, version: int = 3, **attributes: Any) -> None:
    named = [(f"x{index}", data, False) for index, data in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    model, feeds = model_of(operation, named, results, domain="ai.onnx.ml", **attributes)
    model.opset_import[1].version = version
    check(model, feeds)


def test_scaling_and_encodings() -> None:
    own("Binarizer", X, threshold=0.3)
    own("Scaler", X, offset=[0.5, 1.0, -1.0], scale=[2.0, 0.5, 3.0])
    for norm in ("MAX", "L1", "L2"):
        own("Normalizer", np.abs(X), norm=norm)
    gaps = np.where(X > 1.5, np.float32(np.nan), X)
    own("Imputer", gaps, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan"))
    own("Imputer", X.astype(np.int64), imputed_value_int64s=[5], replaced_value_int64=0)
    own("ArrayFeatureExtractor", X, np.array([2, 0], np.int64))
    own("FeatureVectorizer", X, X[:, :2], inputdimensions=[3, 2])
    own("FeatureVectorizer", X.reshape(2, 2, 3), X[:2], inputdimensions=[5, 4])  # cut, and filled with 0
    own("OneHotEncoder", np.array([[1, 5], [2, 9]], np.int64), cats_int64s=[2, 5, 1])
    own("LabelEncoder", np.array([1, 5, 2], np.int64), keys_int64s=[2, 5], values_floats=[0.5, 1.5], default_float=-2.0)
    own("LabelEncoder", np.array([1, 5, 2], np.float32), keys_floats=[1.0, 5.0], values_int64s=[3, 4], default_int64=9)
    own("LabelEncoder", np.array([2, 1, 3], np.int64), keys_int64s=[2, 3, 2], values_int64s=[5, 6, 7])  # the first 2
    gap = np.array([np.nan, 1, 2], np.float32)
    for version in (2, 4):  # a NaN among the keys is found from version 4 on
        options = {"keys_floats": [1.0, float("nan")], "values_int64s": [3, 4], "default_int64": 9}
        own("LabelEncoder", gap, version=version, **options)


def test_linear_models_and_kernels() -> None:
    own("LinearRegressor", X, coefficients=[1.0, 2.0, -1.0, 0.5, 0.0, 3.0], intercepts=[0.5, -1.0], targets=2)
    numbers = [1.0, 2.0, -1.0, 0.5, 0.0, 3.0, -1.0, 1.0, 1.0]
    for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
        options = {"coefficients": numbers, "intercepts": [0.1, 0.2, 0.3], "post_transform": transform}
        own("LinearClassifier", X, outputs=2, classlabels_ints=[4, 5, 6], **options)
    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):  # one score for two classes, or one target
        options = {"coefficients": numbers[:3], "intercepts": [0.1], "post_transform": transform}
        own("LinearClassifier", X, outputs=2, classlabels_ints=[4, 5], **options)
        own("LinearRegressor", X, targets=1, **options)
    options = {"coefficients": numbers[:8], "intercepts": [0.1, 0.2], "classlabels_ints": [4, 5]}
    own("LinearClassifier", X, outputs=2, **options)  # the last two are not read
    for kind in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        vectors = [1.0, 2.0, 3.0, -1.0, 0.5, 0.0]
        options = {"kernel_type": kind, "kernel_params": [0.3, 0.5, 2.0], "support_vectors": vectors, "n_supports": 2}
        own("SVMRegressor", X, coefficients=[0.7, -0.4], rho=[0.25], **options)
        for one_class in (0, 1):  # whatever the transform
            options |= {"one_class": one_class, "post_transform": "PROBIT" if kind == "POLY" else "LOGISTIC"}
            own("SVMRegressor", X, coefficients=[0.7, -0.4], rho=[0.25], **options)


def test_probit_of_one_score_is_refused() -> None:
    options = {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5], "classlabels_ints": [4, 5]}
    model, _ = model_of(
        "LinearClassifier", [("x", X, False)], ["y", "z"], domain="ai.onnx.ml", post_transform="PROBIT", **options
    )
    with pytest.raises(UnsupportedOperationError, match="PROBIT of one score"):
        import_model(model)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("kind", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("chances", [False, True])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX_ZERO"])
def test_support_vectors_for_classes(
    classes: int, kind: str, chances: bool, transform: str, rng: np.random.Generator
) -> None:
    counts = [int(count) for count in rng.integers(1, 4, classes)]
    pairs = classes * (classes - 1) // 2
    options: dict[str, Any] = {"kernel_type": kind, "kernel_params": [0.3, 0.5, 2.0], "vectors_per_class": counts}
    options["support_vectors"] = rng.standard_normal(3 * sum(counts)).tolist()
    options["coefficients"] = rng.standard_normal((classes - 1) * sum(counts)).tolist()
    options["rho"] = rng.standard_normal(pairs).tolist()
    if chances:
        options["prob_a"] = (-1 - rng.random(pairs)).tolist()
        options["prob_b"] = rng.standard_normal(pairs).tolist()
    labels = [4, 7, 5, 9][:classes]
    own("SVMClassifier", X, outputs=2, classlabels_ints=labels, post_transform=transform, **options)


def test_linear_support_vectors_for_classes(rng: np.random.Generator) -> None:
    options: dict[str, Any] = {"kernel_type": "LINEAR", "coefficients": rng.standard_normal(9).tolist(), "rho": [0.3]}
    options["kernel_params"] = [0.0, 0.0, 0.0]
    for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
        own("SVMClassifier", X, outputs=2, classlabels_ints=[4, 7, 5], post_transform=transform, **options)


def trees(side: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    """Two trees: one of depth 2, and one of depth 1; a leaf has one weight."""
    return {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
        "nodes_values": [0.4, -0.5, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
        f"{side}_treeids": [0, 0, 0, 1, 1],
        f"{side}_nodeids": [2, 3, 4, 1, 2],
        f"{side}_ids": ids,
        f"{side}_weights": weights,
    }


@pytest.mark.parametrize("function", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_trees_for_numbers(function: str, rng: np.random.Generator) -> None:
    nodes = trees("target", [0] * 5, [1.0, 2.0, -3.0, 0.5, 4.0])
    x = rng.standard_normal((20, 3), dtype=np.float32)
    own("TreeEnsembleRegressor", x, n_targets=1, aggregate_function=function, **nodes)


def test_trees_with_more_results_than_memory() -> None:
    nodes = trees("target", [0] * 5, [1.0, 2.0, -3.0, 0.5, 4.0])
    named = [("x", X, False)]
    model, _ = model_of("TreeEnsembleRegressor", named, ["y"], domain="ai.onnx.ml", n_targets=2**31 - 1, **nodes)
    with pytest.raises(UnsupportedOperationError, match="trees of 8 nodes with 2147483647 results"):
        import_model(model)


@pytest.mark.parametrize("function", ["SUM", "AVERAGE"])
def test_trees_that_each_add_to_one_result_need_no_table_of_all(
    function: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees_module, "LARGEST_TABLE", 23)  # 8 nodes with 3 results each are 24 numbers
    nodes = trees("target", [0, 0, 0, 2, 2], [1.0, 2.0, -3.0, 0.5, 4.0])
    x = rng.standard_normal((20, 3), dtype=np.float32)
    own("TreeEnsembleRegressor", x, n_targets=3, aggregate_function=function, **nodes)


def _random_tree(rng: np.random.Generator, modes: list[str], depth: int, special: float) -> list[list[Any]]:
    """Nodes as lists: mode, feature, limit, true and false child, whether NaNs go to the first; some limits are equal,
    and a share is infinite or NaN."""
    nodes: list[list[Any]] = []

    def grow(depth: int) -> int:
        number, limit = len(nodes), round(float(rng.standard_normal()), 1) or 0.1
        nodes.append(["LEAF", 0, 0.0, 0, 0, 0])
        if depth and rng.random() < 0.85:
            limit = float(rng.choice([limit, np.inf, -np.inf, np.nan], p=[1 - special, *[special / 3] * 3]))
            node = [str(rng.choice(modes)), int(rng.integers(4)), limit, grow(depth - 1), grow(depth - 1)]
            nodes[number] = [*node, int(rng.random() < 0.5)]
        return number

    grow(depth)
    return nodes


@pytest.mark.parametrize("special", [0.0, 0.09], ids=["numbers", "places"])
@pytest.mark.parametrize("modes", [["LEQ"], ["LT", "GTE"], ["GT", "LEQ", "LT"], ["LEQ", "EQ"]], ids="+".join)
def test_trees_of_random_shapes_and_limits(modes: list[str], special: float, rng: np.random.Generator) -> None:
    modes = [f"BRANCH_{mode}" for mode in modes]
    forest = [_random_tree(rng, modes, depth, special) for depth in (0, 1, 6, 3, 6, 2, 4)]
    names = ("modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    nodes: dict[str, Any] = {f"nodes_{name}": [node[i] for tree in forest for node in tree]
                             for i, name in enumerate(names)}  # fmt: skip
    places = [(number, node) for number, tree in enumerate(forest) for node in range(len(tree))]
    leaves = [place for place in places if forest[place[0]][place[1]][0] == "LEAF"]
    weights = rng.integers(-99, 99, len(leaves)).astype(np.float32)  # of which sums are exact
    nodes |= {"nodes_treeids": [tree for tree, _ in places], "nodes_nodeids": [node for _, node in places]}
    nodes |= {"target_treeids": [tree for tree, _ in leaves], "target_nodeids": [node for _, node in leaves]}
    nodes |= {"target_ids": [0] * len(leaves), "target_weights": weights.tolist()}
    x = np.round(rng.standard_normal((280, 4)), 1).astype(np.float32)  # more than the kernel takes together
    x[rng.random(x.shape) < 0.3] = np.nan
    x[rng.random(x.shape) < 0.1] = rng.choice([np.inf, -np.inf])
    model, _ = model_of("TreeEnsembleRegressor", [("x", x, False)], ["y"], domain="ai.onnx.ml", n_targets=1, **nodes)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    graph = import_model(model)
    found = reference.run(graph, {"x": x}, None)["y"]
    for ready in (graph, trees_as_steps(graph)):
        engine = build(ready)
        for rows in (1, 20, 280):
            np.testing.assert_array_equal(engine.run({"x": x[:rows]})["y"], found[:rows])
    compare = {"LEQ": np.less_equal, "LT": np.less, "GTE": np.greater_equal, "GT": np.greater, "EQ": np.equal}
    for row, result in zip(x, found[:, 0], strict=True):
        total = 0.0
        for number, tree in enumerate(forest):
            node = 0
            while tree[node][0] != "LEAF":
                mode, feature, limit, true, false, first = tree[node]
                value = row[feature]
                answer = compare[mode.removeprefix("BRANCH_")](value, np.float32(limit)) or (first and np.isnan(value))
                node = true if answer else false
            total += weights[leaves.index((number, node))]
        assert result == total


def test_less_than_zero_where_the_processor_takes_subnormal_numbers_for_zero() -> None:
    x = np.array([[0.0], [-1.0], [1.0]], np.float32)
    nodes = {"nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"], "nodes_values": [0.0] * 3, "nodes_featureids": [0] * 3}
    nodes |= {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_truenodeids": [1, 0, 0]}
    nodes |= {"nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2]}
    nodes |= {"target_ids": [0, 0], "target_weights": [1.0, 2.0], "n_targets": 1}
    model, _ = model_of("TreeEnsembleRegressor", [("x", x, False)], ["y"], domain="ai.onnx.ml", **nodes)
    graph = import_model(model)
    torch.set_flush_denormal(True)
    try:
        found = reference.run(graph, {"x": x}, None)["y"]
    finally:
        torch.set_flush_denormal(False)
    assert found[:, 0].tolist() == [2.0, 1.0, 2.0]


def test_lists_of_a_node_may_be_as_long_as_the_file() -> None:
    count = (1 << 20) + 1  # as boosted trees have them, which can have no initializers
    graph = parse_graph("main () => (int64[n] y) { y = Constant<value_ints: ints = [0]>() }")
    graph.node[0].attribute[0].ints.extend([0] * (count - 1))
    graph = import_model(make_model(graph, opset_imports=[make_opsetid("", 20)], ir_version=10))
    assert graph.outputs[0].shape == (count,)


def test_trees_that_score_one_of_two_classes_refuse_more_base_values() -> None:
    nodes = trees("class", [0] * 5, [1.0, 2.0, -3.0, 0.5, -4.0])
    options = {"classlabels_int64s": [7, 8], "base_values": [0.1, 0.2]}
    named, results = [("x", X, False)], ["y0", "y1"]
    model, _ = model_of("TreeEnsembleClassifier", named, results, domain="ai.onnx.ml", **options, **nodes)
    with pytest.raises(UnsupportedOperationError, match="2 base values where leaves score class 0 alone"):
        import_model(model)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_trees_for_classes(transform: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 3), dtype=np.float32)
    options = {"outputs": 2, "post_transform": transform}
    several = trees("class", [0, 1, 2, 2, 0], [1.0, 2.0, 3.0, 0.5, 4.0])
    own("TreeEnsembleClassifier", x, classlabels_int64s=[3, 1, 2], **options, **several)
    below = trees("class", [0, 1, 2, 2, 0], [-1.0, -2.0, -3.0, -0.5, -4.0])  # a class without a score is none
    own("TreeEnsembleClassifier", x, classlabels_int64s=[3, 1, 2], **options, **below)
    signed = trees("class", [0] * 5, [1.0, 2.0, -3.0, 0.5, -4.0])
    own("TreeEnsembleClassifier", x, classlabels_int64s=[7, 8], **options, **signed)
    for place in (0, 1):
        shares = trees("class", [place] * 5, [0.1, 0.5, 0.3, 0.2, 0.4])
        own("TreeEnsembleClassifier", x, classlabels_int64s=[7, 8], **options, **shares)


@pytest.mark.parametrize("function", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ensembles_whose_leaves_have_a_list_of_their_own(function: int, dtype: str, rng: np.random.Generator) -> None:
    """Two trees of random nodes, one of depth 3 and one with a leaf only, some of them asking for membership."""
    count, leaves = 8, 9  # a full tree of 7 nodes and 8 leaves, and a node whose branches are one leaf
    modes = rng.integers(0, 6, count)
    modes[1], splits = 6, rng.integers(-2, 3, count).astype(dtype)
    inner = [1, 3, 5, 0, 2, 4, 6, 8], [2, 4, 6, 1, 3, 5, 7, 8]
    last = [0, 0, 0, 1, 1, 1, 1, 1]
    options = {
        "n_targets": 3, "aggregate_function": function, "post_transform": 0, "tree_roots": [0, 7],
        "nodes_featureids": rng.integers(0, 3, count).tolist(), "nodes_splits": numpy_helper.from_array(splits, "s"),
        "nodes_modes": numpy_helper.from_array(modes.astype(np.uint8), "m"),
        "nodes_truenodeids": inner[0], "nodes_falsenodeids": inner[1], "nodes_trueleafs": last,
        "nodes_falseleafs": last,
        "nodes_missing_value_tracks_true": rng.integers(0, 2, count).tolist(),
        "leaf_targetids": rng.integers(0, 3, leaves).tolist(),
        "leaf_weights": numpy_helper.from_array(rng.standard_normal(leaves).astype(dtype), "w"),
        "membership_values": numpy_helper.from_array(np.array([1.0, -2.0, np.nan], dtype), "v"),
    }  # fmt: skip
    own("TreeEnsemble", rng.integers(-2, 3, (40, 3)).astype(dtype), version=5, **options)


def test_scores_become_quantiles() -> None:
    """ONNX Runtime's approximation, far from both ends; shares of 0 and 1 are at infinity."""
    shares = np.array([[0.02], [0.3], [0.5], [0.77], [0.99]], np.float32)
    for count in (1, 2, 3):
        options = {"coefficients": [1.0, 0.5, 0.3][:count], "intercepts": [0.0, 0.1, 0.2][:count]}
        own("LinearRegressor", shares, targets=count, post_transform="PROBIT", **options)
    own("LinearRegressor", np.float32([[0], [1]]), coefficients=[1.0], targets=1, post_transform="PROBIT")
    for count in (2, 3):
        options = {"coefficients": [1.0, 0.5, 0.3][:count], "intercepts": [0.0, 0.1, 0.2][:count]}
        labels = list(range(count))
        own("LinearClassifier", shares, outputs=2, classlabels_ints=labels, post_transform="PROBIT", **options)
    tree = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0]}
    tree |= {"nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0]}
    tree |= {"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "post_transform": "PROBIT"}
    leaves = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [0.2, 0.7]}
    own("TreeEnsembleRegressor", shares, n_targets=1, **tree, **leaves)
    leaves = {"class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 2], "class_weights": [0.2, 0.7]}
    own("TreeEnsembleClassifier", shares, outputs=2, classlabels_int64s=[0, 1, 2], **tree, **leaves)
