"""The graph pipeline: each line is a pass, with the reason for its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from tilewright.graph.core import Graph
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.channels_last import to_channels_last
from tilewright.graph.passes.common_subexpressions import share_common_subexpressions
from tilewright.graph.passes.dead_code import eliminate_dead_code
from tilewright.graph.passes.decompose import decompose
from tilewright.graph.passes.exact_products import exact_products
from tilewright.graph.passes.fold_constants import fold_constants, fold_tables
from tilewright.graph.passes.fold_pixels import fold_pixels
from tilewright.graph.passes.fold_scales import fold_scales
from tilewright.graph.passes.fourier import join_parts
from tilewright.graph.passes.merge_matmuls import merge_matmuls
from tilewright.graph.passes.move_row_permutes import move_row_permutes
from tilewright.graph.passes.recognise_activations import recognise_activations
from tilewright.graph.passes.recognise_attention import recognise_attention
from tilewright.graph.passes.recognise_losses import recognise_losses
from tilewright.graph.passes.recognise_norms import recognise_norms
from tilewright.graph.passes.separate_outputs import separate_outputs
from tilewright.graph.printer import print_graph
from tilewright.graph.target_passes import NO_PASSES, TargetPasses
from tilewright.graph.verifier import verify
from tilewright.settings import settings

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    eliminate_dead_code,  # importers may leave unused branches; nobody should look at them
    decompose,  # batch norm and friends become arithmetic that the next passes know
    canonicalize,  # one way to write each thing, before anything is matched
    fold_constants,  # shape arithmetic, norm parameters and transposed weights become data
    share_common_subexpressions,  # patterns compare values by identity: equal ones must be the same
    canonicalize,  # folding and sharing uncover identities
    fold_constants,  # numbers that stood in large constants
    exact_products,  # now that weights without their zero points are constants; scales are not in them yet
    canonicalize,
    join_parts,  # of Fourier transforms, before anything else looks at what is computed of them
    recognise_activations,  # softmax first of all: attention is found around it
    recognise_losses,  # what reads a few elements of a log softmax
    recognise_norms,  # before scales are folded: a norm's scale must stay the norm's
    recognise_attention,  # the products inside must still be where the model put them
    canonicalize,  # what the recognisers left around their ops (reshapes, masks)
    recognise_attention,  # keys and values that stand out as repeated only now
    fold_scales,  # batch norm into convolutions, now that it is a constant scale and shift
    fold_pixels,  # with the scales inside, before channels are last
    to_channels_last,  # after scales are folded, so that few ops stand between convolutions
    canonicalize,  # the permutes that channels_last made cancel
    fold_constants,  # and those of constants are applied
    share_common_subexpressions,  # masks are built once for all layers
    merge_matmuls,  # q, k and v as one product; weights are constants in their final form by now
    move_row_permutes,  # after merging: one product instead of three to move across
    canonicalize,  # slices of the merged product meet the slices that models make, permutes cancel
    fold_tables,  # only now: recognisers look at how masks are made
    separate_outputs,  # last: every output is a tensor that some node computes
)


# Passes of these that go by what kernels there are.
_BY_KERNELS = frozenset({decompose, fold_pixels, move_row_permutes, to_channels_last})


def optimize(graph: Graph, of_targets: TargetPasses = NO_PASSES) -> Graph:
    """The graph in the form that fusion and the kernels want; the given graph is not changed.

    `of_targets` are the passes of those it is built for (`targets.registry.graph_passes`).  Verified after every pass
    under ``TILEWRIGHT_VERIFY=1``; with a dump directory, the text of the graph after each pass that changed it is
    written to ``<graph>.<number>-<pass>.txt`` there.
    """
    _dump(graph, "00-imported")
    before, after = ([each.bound() for each in passes] for passes in (of_targets.before, of_targets.after))
    return _applied(graph, [*before, *own_passes(of_targets.kernels), *after])


def own_passes(kernels: KernelFacts) -> list[tuple[str, Pass]]:
    """The passes of all graphs by name, as these kernels want them."""
    return [(each.__name__, partial(each, kernels=kernels) if each in _BY_KERNELS else each) for each in PASSES]


def prepare_cut(graph: Graph, of_targets: TargetPasses = NO_PASSES) -> Graph:
    """A graph as it is cut into parts, each of which `optimize` then takes; the given graph is not changed."""
    return _applied(graph, [each.bound() for each in of_targets.cut])


def _applied(graph: Graph, passes: Sequence[tuple[str, Pass]]) -> Graph:
    for number, (name, transform) in enumerate(passes, 1):
        result = transform(graph)
        if settings.verify:
            verify(result)
        if result is not graph:
            _dump(result, f"{number:02d}-{name}")
        graph = result
    return graph


def _dump(graph: Graph, stage: str) -> None:
    if settings.dump_directory is not None:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", graph.name) or "graph"
        settings.dump(f"{name}.{stage}.txt", print_graph(graph))
