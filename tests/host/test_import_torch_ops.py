"""Every ATen rule against PyTorch in float64, through the graph's NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from tests.host.torch_op_cases import CASES, SHAPE_ONLY, strange  # noqa: E402
from tilewright.errors import UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.graph.core import Value  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.importers.report import ImportReport  # noqa: E402
from tilewright.importers.torch_export import declare_output  # noqa: E402
from tilewright.importers.torch_fx import Walker, dtype_of  # noqa: E402
from tilewright.importers.torch_ops import RULES  # noqa: E402
from tilewright.importers.torch_ops.fake_quantized import TABLE as FAKE_QUANTIZED  # noqa: E402
from tilewright.importers.torch_ops.random import TABLE as RANDOM  # noqa: E402
from tilewright.importers.torch_symbols import SymbolTable  # noqa: E402

CELLS = {"aten._thnn_fused_gru_cell.default", "aten._thnn_fused_lstm_cell.default"}
# Only GPUs run these; test_torch_compile_partition.py has them.
ON_GPUS = {f"aten._scaled_dot_product_{kind}_attention.default" for kind in ("cudnn", "efficient", "flash")}
ASSERTIONS = {name for name in RULES if "_assert" in name or "sym_constrain" in name or "check_errors" in name}
# Those for complex numbers and torchvision's are tested in modules: test_import_torch_complex.py.
ELSEWHERE = (
    {name for name in RULES if not name.startswith("aten.")}
    | {
        f"aten.{name}.default"
        for name in ("_linalg_eigh", "_linalg_svd")  # vectors of any sign: test_import_torch_matrices.py
    }
    | {f"aten.special_bessel_{kind}.default" for kind in ("j0", "j1", "y0", "y1")}  # test_bessel_functions
    | {"aten.special_airy_ai.default"}
    | {"aten._scaled_mm.default", "aten._scaled_mm_v2.default"}  # test_block_products.py
    | FAKE_QUANTIZED.rules.keys()  # test_import_torch_fake_quantized.py
)


def call_graph(operation: Any, args: Any, kwargs: Any) -> tuple[fx.Graph, fx.Node, dict[str, Any]]:
    """An FX graph with the one call; tensors are placeholders."""
    graph, inputs = fx.Graph(), {}
    nodes: dict[int, fx.Node] = {}

    def lift(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if id(item) not in nodes:
            node = nodes[id(item)] = graph.placeholder(f"x{len(inputs)}")
            node.meta["val"] = item
            inputs[node.name] = item
        return nodes[id(item)]

    args, kwargs = pytree.tree_map(lift, (args, kwargs))
    return graph, graph.call_function(operation, tuple(args), dict(kwargs)), inputs


def lookup(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def imported(name: str, args: Any, kwargs: Any, expected: Any = None) -> tuple[list[Any], list[Any]]:
    """PyTorch's results (those that are given for operations that the CPU has not), and ours (None where there is
    none)."""
    operation = lookup(name)
    graph, node, inputs = call_graph(operation, args, kwargs)
    expected = expected or operation(
        *pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, args), **kwargs
    )
    node.meta["val"] = expected
    builder, report = GraphBuilder("case"), ImportReport("case")
    walker = Walker(builder, SymbolTable(builder, {}), report, RULES)
    for placeholder in graph.nodes:
        if placeholder.op == "placeholder":
            fake = placeholder.meta["val"]
            walker.values[placeholder] = builder.input(placeholder.name, dtype_of(fake.dtype), tuple(fake.shape))
    walker.run(graph.nodes)
    report.check()
    found = walker.values[node]
    results = list(found) if isinstance(found, tuple) else [found]
    for index, value in enumerate(results):
        if isinstance(value, Value):
            declare_output(builder, value, f"y{index}")
    answers = reference.run(builder.finish(), {key: item.numpy() for key, item in inputs.items()})
    wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    return wanted, [answers.get(f"y{index}") for index in range(len(results))]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cells_of_gpus(kind: str, bias: bool) -> None:
    """The fused cells, which PyTorch has on GPUs only, beside its modules on the CPU."""
    cell = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[kind](5, 3, bias=bias, dtype=torch.float64)
    x, hidden, memory = (torch.randn(2, width, dtype=torch.float64) for width in (5, 3, 3))
    with torch.no_grad():
        expected = cell(x, hidden) if kind == "gru" else cell(x, (hidden, memory))
        products = x @ cell.weight_ih.T, hidden @ cell.weight_hh.T
    biases = [item.detach() for item in (cell.bias_ih, cell.bias_hh)] if bias else []
    args = (*products, hidden if kind == "gru" else memory, *biases)
    expected = [expected] if kind == "gru" else list(expected)
    wanted, found = imported(f"aten._thnn_fused_{kind}_cell.default", args, {}, [*expected, None])
    for want, got in zip(wanted[:-1], found, strict=False):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["j0", "j1", "y0", "y1"])
def test_bessel_functions(name: str) -> None:
    """Compared with exact values: PyTorch's are off by up to 1e-6, even in float64."""
    mpmath = pytest.importorskip("mpmath")
    x = torch.cat([torch.linspace(0.01, 60, 90, dtype=torch.float64), torch.tensor([1e3, 1e5], dtype=torch.float64)])
    _, (found,) = imported(f"aten.special_bessel_{name}.default", (x,), {})
    exact = np.array([float(getattr(mpmath, f"bessel{name[0]}")(int(name[1]), item)) for item in x.tolist()])
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-14)
    (want,), (found,) = imported(f"aten.special_bessel_{name}.default", (strange(),), {})
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-6, atol=1e-6)


def test_airy_function() -> None:
    """Likewise."""
    mpmath = pytest.importorskip("mpmath")
    x = torch.cat([torch.linspace(-40, 12, 131, dtype=torch.float64), torch.tensor([-1e3, 2.0, 60.0, 103.0])])
    _, (found,) = imported("aten.special_airy_ai.default", (x,), {})
    exact = np.array([float(mpmath.airyai(item)) for item in x.tolist()])
    assert (np.abs(found - exact) <= np.where(x < 0, 1e-13, 1e-12 * np.abs(exact))).all()
    (want,), (found,) = imported("aten.special_airy_ai.default", (strange(),), {})
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
def test_resampling_of_bytes(name: str) -> None:
    """Within two of PyTorch, whose weights have 16 bits; weights that are cut to whole numbers are far off."""
    for sizes in ([7, 9], [3, 2], [4, 9]):
        image = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
        for align in (False, True):
            (want,), (got,) = imported(f"aten.{name}.default", (image, sizes, align), {})
            assert got.dtype == np.uint8
            assert np.abs(got.astype(int) - want.numpy()).max() <= 2


# Operators that PyTorch no longer has in some versions; programs saved by others hold them.
GONE = {f"aten.{name}.default" for name in ("cholesky",) if not hasattr(torch.ops.aten, name)}


@pytest.mark.parametrize("name", sorted(RULES.keys() - RANDOM.rules.keys() - CELLS - ON_GPUS - ELSEWHERE - GONE))
def test_rule(name: str, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed") or 0
    torch.manual_seed(seed)
    if name in ASSERTIONS:
        assert RULES[name](None) is None
        return
    if name in SHAPE_ONLY:
        args = pytree.tree_map(lambda item: item() if callable(item) else item, SHAPE_ONLY[name])
        kwargs = {"dtype": torch.float64} if "like" not in name and "new" not in name else {}
        wanted, found = imported(name, args, kwargs)
        assert found[0].shape == tuple(wanted[0].shape)
        return
    assert name in CASES, f"no case for {name}"
    for draw in CASES[name]:
        args, kwargs = draw()
        wanted, found = imported(name, args, kwargs)
        assert found[0] is not None
        for want, got in zip(wanted, found, strict=True):
            if got is None:
                continue
            assert got.shape == tuple(want.shape)
            # float64 on both sides; 1e-6 leaves room for float32 epsilons stored in PyTorch's own kernels
            want = want.resolve_neg().numpy()
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9, err_msg=f"{name} {args} {kwargs}")


def test_a_product_and_its_sum_read_the_same_slice() -> None:
    """The sum's part had been computed in the product's kernel, together with what the product reads from memory."""
    import tilewright

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.addmm(x[:8, :8], y[:8, :8], x[:8, :8], beta=0.5)

    module, x, y = Module().eval(), torch.randn(9, 11), torch.randn(9, 11)
    found = tilewright.compile(module, (x, y), target="cpu", effort=0)(x, y)
    torch.testing.assert_close(found, module(x, y))


@pytest.mark.parametrize("kind", ["Conv2d", "Conv3d"])
@pytest.mark.parametrize("axes", [{}, {"input": {0: ("batch", 1, 8)}}], ids=["fixed", "dynamic"])
def test_few_channels_of_small_images_pixel_by_pixel(kind: str, axes: Any) -> None:
    """Zeros that were put around the image for other convolutions were pixels too many, written beyond the result."""
    import tilewright

    module = getattr(torch.nn, kind)(2, 16, 1).eval()
    shape = (2, *[3] * (module.weight.ndim - 2))
    engine = tilewright.compile(module, (torch.randn(3, *shape),), target="cpu", effort=0, dynamic_shapes=axes)
    for batch in (1, 2, 8) if axes else (3,):
        x = torch.randn(batch, *shape)
        torch.testing.assert_close(engine(x), module(x))


def test_halves_rounded_to_more_decimals_than_they_have() -> None:
    """The power of ten is one of float32."""
    x = torch.linspace(-2, 2, 9).half()
    graph = import_model(lambda x: torch.round(x, decimals=5), (x,))
    (found,) = reference.run(graph, {"x": x.numpy()}, dtype=None).values()
    np.testing.assert_array_equal(found, torch.round(x, decimals=5).numpy())


def test_group_norm_of_no_images() -> None:
    graph = import_model(torch.nn.GroupNorm(3, 6).eval(), (torch.zeros(0, 6, 4),))
    (found,) = reference.run(graph, {"input": np.zeros((0, 6, 4), np.float32)}).values()
    assert found.shape == (0, 6, 4)


def test_covariances_and_statistics_of_norms() -> None:
    """PyTorch's own covariance looks at its data, which cannot be exported."""
    w = torch.tensor([2, 1, 3, 1, 5])

    def model(x: torch.Tensor) -> Any:
        stats = torch.native_layer_norm(x, (5,), None, None, 1e-5)
        groups = torch.native_group_norm(x[:, :4, None].contiguous(), None, None, 3, 4, 1, 2, 1e-5)
        share = x[0].abs()
        return (torch.cov(x), x.corrcoef(), torch.cov(x[0]), torch.cov(x, correction=0, fweights=w, aweights=share),
                torch.cov((4 * x).long(), aweights=share), *stats, *groups)  # fmt: skip

    x = torch.randn(3, 5)
    graph = import_model(model, (x,))
    found = reference.run(graph, {"x": x.numpy()}, dtype=None)
    for want, got in zip(model(x), found.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_matrices_that_cannot_be_factored_are_reported() -> None:
    a = torch.tensor([[[1.0, 2], [2, 4]], [[0, 0], [0, 0]], [[4, 1], [1, 3]], [[1, 2], [2, 1]]], dtype=torch.float64)
    ops = torch.ops.aten
    cases = {"linalg_inv_ex": ops.linalg_inv_ex(a), "linalg_cholesky_ex": ops.linalg_cholesky_ex(a)}
    for name, want in cases.items():
        _, found = imported(f"aten.{name}.default", (a,), {})
        np.testing.assert_array_equal(found[-1], want[-1].numpy())
    want = ops._linalg_solve_ex(a, a[:, :, :1])
    _, found = imported("aten._linalg_solve_ex.default", (a, a[:, :, :1]), {})
    np.testing.assert_array_equal(found[-1], want[-1].numpy())


@pytest.mark.parametrize("shapes", [((3, 3), (5, 3, 2)), ((2, 1, 3, 3), (4, 3, 2)), ((1, 3, 3), (5, 3, 2))])
def test_solutions_for_matrices_that_broadcast(shapes: Any) -> None:
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    for name, args in (("linalg_lu_solve", (*torch.linalg.lu_factor(a), b)), ("_linalg_solve_ex", (a, b))):
        want, found = imported(f"aten.{name}.default", args, {})
        np.testing.assert_allclose(found[0], want[0].numpy(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_spreads_of_fewer_numbers_than_the_correction() -> None:
    """The divisor is never below 0: PyTorch gives infinity and NaN."""

    def model(x: torch.Tensor) -> Any:
        return torch.cov(x, correction=3), x.var(1, correction=3), x.std(1, correction=2)

    graph = import_model(model, (torch.randn(2, 6),), dynamic_shapes=({1: ("n", 1, 9)},))
    for count in (1, 2, 3, 5):
        x = torch.randn(2, count)
        found = reference.run(graph, {"x": x.numpy()}, dtype=None)
        for want, got in zip(model(x), found.values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_polygamma_whose_factorial_overflows_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="order 171"):
        import_model(lambda x: torch.polygamma(171, x), (torch.rand(3) + 1,))


def test_a_histogram_of_elements_on_its_edges() -> None:
    """They are counted where PyTorch's quotient of them lies, which an edge's own rounding may move."""
    for bins, low, high in ((255, -1.7, 3.1), (7, 0.0, 1.0), (93, 0.3, 0.7)):
        x = torch.cat([torch.linspace(low, high, 10 * bins + 1), torch.arange(bins + 1) / bins * (high - low) + low])
        graph = import_model(lambda x, bins=bins, low=low, high=high: torch.histc(x, bins, low, high), (x,))
        (found,) = reference.run(graph, {"x": x.numpy()}, dtype=None).values()
        np.testing.assert_array_equal(found, torch.histc(x, bins, low, high).numpy())
