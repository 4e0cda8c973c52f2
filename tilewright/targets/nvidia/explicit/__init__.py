"""The explicit operations (`ir.explicit`) in LLVM: TMA, mbarriers, wgmma, warp roles, clusters, shared tiles."""
