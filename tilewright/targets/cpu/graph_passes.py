"""The graph passes for CPUs alone: each line is a pass, with the reason for its place."""

from __future__ import annotations

from tilewright.graph.passes.block_products import without_block_products
from tilewright.graph.passes.fold_output_scales import fold_output_scales
from tilewright.graph.passes.join_text_lookups import join_text_lookups
from tilewright.graph.passes.lighten_loops import lighten_loops
from tilewright.graph.passes.narrow_products import narrow_products
from tilewright.graph.passes.narrow_recurrent import narrow_recurrent
from tilewright.graph.passes.quantized_weights import quantized_weights
from tilewright.graph.passes.sorting import sorting
from tilewright.graph.passes.stage_reductions import stage_reductions
from tilewright.graph.passes.weight_products import weight_products
from tilewright.graph.target_passes import TargetPass, TargetPasses
from tilewright.targets.cpu.target import CPUTarget


def graph_passes(target: CPUTarget) -> TargetPasses:
    """The passes around those of all graphs."""
    kernels = target.kernels
    return TargetPasses(
        before=(
            TargetPass(without_block_products, required=True),  # no kernel promotes sums of blocks
            TargetPass(quantized_weights),  # integers are what the next passes look for
            TargetPass(narrow_products, kernels),  # what it leaves stays in floats
            TargetPass(narrow_recurrent),  # as products
            TargetPass(weight_products, kernels),  # what is still quantized is read as it is stored
            TargetPass(sorting, kernels),  # few elements are compared; the kernel sorts longer rows
        ),
        after=(
            TargetPass(fold_output_scales),  # when constants are folded, and convolutions are channels-last
            TargetPass(stage_reductions),  # last: rows that one kernel reduces in several steps
        ),
        cut=(
            TargetPass(join_text_lookups),  # each that the host need not do joins a part
            TargetPass(lighten_loops),  # before what is taken out of a body is put into a part
        ),
        kernels=kernels,
    )
