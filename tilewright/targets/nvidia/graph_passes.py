"""The graph passes for NVIDIA GPUs alone: each line is a pass, with the reason for its place."""

from __future__ import annotations

from tilewright.graph.passes.align_products import align_products
from tilewright.graph.passes.block_products import block_products, without_block_products
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.extremes_at_places import extremes_at_places
from tilewright.graph.passes.extremes_of_parts import extremes_of_parts
from tilewright.graph.passes.fold_zero_points import fold_zero_points
from tilewright.graph.passes.fourier import transforms_as_products
from tilewright.graph.passes.fuse_norms import prepare_norms
from tilewright.graph.passes.narrow_products import narrow_products
from tilewright.graph.passes.narrow_sums import narrow_sums
from tilewright.graph.passes.native_shapes import native_shapes
from tilewright.graph.passes.padded_pools import padded_pools
from tilewright.graph.passes.planes import convolutions_of_planes, pools_of_planes, pools_of_volumes
from tilewright.graph.passes.quantized_weights import quantized_weights
from tilewright.graph.passes.recurrent import unrolled
from tilewright.graph.passes.scatters import scatters_at_once
from tilewright.graph.passes.short_frames import short_frames
from tilewright.graph.passes.sorting import sorting
from tilewright.graph.passes.sparse_products import sparse_products
from tilewright.graph.passes.stage_reductions import stage_reductions
from tilewright.graph.passes.transposed_products import transposed_products
from tilewright.graph.passes.trees import trees_as_steps
from tilewright.graph.passes.weight_products import weight_products, without_weight_products
from tilewright.graph.passes.wide_heads import separate_wide_heads
from tilewright.graph.target_passes import TargetPass, TargetPasses
from tilewright.targets.nvidia.target import NvidiaTarget


def graph_passes(target: NvidiaTarget) -> TargetPasses:
    """The passes around those of all graphs."""
    kernels = target.kernels
    weights = TargetPass(weight_products, kernels)
    if not target.wgmma:
        weights = TargetPass(without_weight_products, required=True)
    blocks = TargetPass(block_products) if target.wgmma else TargetPass(without_block_products, required=True)
    return TargetPasses(
        before=(
            blocks,  # first: to the next one they are products of floats
            TargetPass(quantized_weights),  # integers are what the next passes look for
            TargetPass(narrow_products, kernels),  # what it leaves stays in floats
            TargetPass(fold_zero_points),  # of its products
            weights,  # what is still quantized is read as it is stored, where there is wgmma
            TargetPass(sorting, kernels, required=True),  # the kernels sort 32 bits along the last dimension
            TargetPass(scatters_at_once),  # before constants are folded: what it adds is elementwise
            TargetPass(convolutions_of_planes, kernels),  # tensor cores want channels last
            TargetPass(extremes_of_parts),  # a launch for all parts
            TargetPass(extremes_at_places),  # one look at what is searched
            TargetPass(narrow_sums),  # while casts stand where importers put them
            TargetPass(sparse_products),  # before products of odd sizes are padded
            TargetPass(padded_pools),  # before the others read what a launch has padded
            TargetPass(short_frames),  # no kernel reads along memory what is reduced across it
            TargetPass(pools_of_volumes, kernels),  # before others become pools of images
            TargetPass(transforms_as_products, required=True),  # there is no kernel of Fourier transforms
            TargetPass(trees_as_steps, required=True),  # nor of trees
            TargetPass(unrolled, required=True),  # few steps are faster as products
        ),
        after=(
            TargetPass(pools_of_planes),  # after channels are last elsewhere
            TargetPass(separate_wide_heads, kernels),  # into products, before those are looked at
            TargetPass(canonicalize),  # the permutes around pools cancel
            *((TargetPass(align_products, kernels),) if target.wgmma else ()),  # of products in their final form
            # What is copied for its rows is not read as it lies.
            TargetPass(transposed_products, kernels),
            # They find their products.
            *((TargetPass(prepare_norms, kernels, required=True),) if kernels.normed_rows else ()),
            TargetPass(stage_reductions),  # rows that one kernel reduces in several steps
            TargetPass(native_shapes, kernels),  # last: it reports shapes that remain
        ),
        kernels=kernels,
    )
