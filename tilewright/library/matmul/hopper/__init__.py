"""Matrix products on Hopper, by tensor copies and wgmma."""
