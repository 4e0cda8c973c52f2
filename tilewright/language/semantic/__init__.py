"""The meaning of language functions: promotion, broadcasting, checks, and the operations to emit.

One module a section: `promotion` (types of binary operators), `convert` (constants and casts),
`arithmetic`, `shape`, `memory` (atomics too), `tiled` (block pointers, descriptors), `reduction`,
`product` (dot), `hint`.
"""
