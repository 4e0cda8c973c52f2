"""The instructions that move whole tiles: ldmatrix and stmatrix, and the descriptors of wgmma.

ldmatrix and stmatrix move 8 x 8 matrices of 16-bit elements, whose rows are 16 bytes of shared memory each.  Lane l
holds of each matrix, in one register of 32 bits, elements 2 (l mod 4) and the next of row l / 4 (transposed: of rows
2 (l mod 4) and the next, element l / 4).  One instruction moves 1, 2 or 4 matrices; lane 8 i + j gives the address of
row j of matrix i.  Whether a pair of layouts fits is read off the map from registers and lanes to offsets:

                     register bit 0     lane bits 0 and 1     lane bits 2, 3, 4
    as it is         offset 1           offsets 2, 4          the row
    transposed       row bit 0          row bits 1, 2         offsets 1, 2, 4

and everything else keeps to multiples of 16 bytes.  Further register bits number the matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.layout.distributed import REGISTER_INPUTS
from tilewright.layout.gf2 import combine
from tilewright.layout.linear import LinearLayout
from tilewright.layout.shared import SharedLayout

ROW = 8  # elements of 16 bits in a row of a matrix


@dataclass(frozen=True)
class MatrixInstruction:
    """One ldmatrix or stmatrix: the first of the two registers of each matrix, and the offset for lane 0."""

    registers: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class MatrixAccess:
    """How a block moves between registers and shared memory by ldmatrix or stmatrix.

    A lane gives as address the XOR of an instruction's `offset` and of `threads` over the bits of its lane, then warp,
    then block number (in elements).  Elements of a matrix are registers r and r + 1.
    """

    transposed: bool
    instructions: tuple[MatrixInstruction, ...]
    threads: tuple[int, ...]

    @property
    def matrices(self) -> int:
        return len(self.instructions[0].registers)

    def __str__(self) -> str:
        return f"{len(self.instructions)} x{self.matrices}{'.trans' if self.transposed else ''}"


def matrix_access(distributed: LinearLayout, shared: SharedLayout, element_bits: int) -> MatrixAccess | None:
    """The access by ldmatrix or stmatrix, or None where the layouts do not fit (padding never does)."""
    places = shared.addresses(distributed)
    registers, lanes = places.bases("register"), places.bases("lane")
    if element_bits != 16 or len(lanes) != 5 or not registers or shared.padding:
        return None
    straight = (registers[0], *lanes[:2]) == (1, 2, 4)
    transposed = lanes[2:] == (1, 2, 4)
    if not straight and not transposed:
        return None
    rows = lanes[2:] if straight else (registers[0], *lanes[:2])
    others = [*registers[1:], *places.bases("warp"), *places.bases("block")]
    if any(vector % ROW for vector in (*rows, *others)):
        return None
    matrix_bits = min(2, len(registers) - 1)
    further = registers[1 + matrix_bits :]
    instructions = []
    for number in range(1 << len(further)):
        first = number << (1 + matrix_bits)
        numbers = tuple(first + 2 * matrix for matrix in range(1 << matrix_bits))
        instructions.append(MatrixInstruction(numbers, combine(further, number)))
    # Lanes 8 i + j give the address of row j of matrix i; the lanes beyond the last matrix repeat the first ones.
    numbering = [*registers[1 : 1 + matrix_bits], *(0,) * (2 - matrix_bits)]
    warps = [vector for name in REGISTER_INPUTS[2:] for vector in places.bases(name)]
    return MatrixAccess(not straight, tuple(instructions), (*rows, *numbering, *warps))


SWIZZLE_CODES = {16: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Descriptor:
    """What a wgmma operand in shared memory needs besides its address: byte distances, and the code of the swizzle.

    `leading` and `stride` are as in the instruction's descriptor; `steps` is what each further instruction along k adds
    to the address, the first being 0.
    """

    leading: int
    stride: int
    swizzle: int
    steps: tuple[int, ...]

    @property
    def bits(self) -> int:
        """The constant bits of the 64-bit descriptor; the address goes, shifted right by 4, into the lowest 14."""
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | self.swizzle << 62


def wgmma_descriptor(shared: SharedLayout, element_bits: int, swizzle: int, k_axis: int) -> Descriptor:
    """The descriptor of a tile (rows x k or k x columns) that `shared.nvmma` laid out with this swizzle.

    Distances are read off the layout.  K-major: the stride is that of 8 rows, the leading distance (used without
    swizzle only) that of the 16-byte core matrices along k.  MN-major: the stride is that of 8 steps along k, the
    leading distance that of the next swizzle-wide box along the other axis.

    Raises `ValueError` for MN-major operands that are not of 16 bits, which the hardware has not.
    """
    other = 1 - k_axis
    bytes_of = element_bits // 8

    def distance(axis: int, index: int) -> int:
        if index >= shared.shape[axis]:
            return 0
        return shared.offset(*(index if position == axis else 0 for position in range(2))) * bytes_of

    k_major = distance(k_axis, 1) == bytes_of
    if not k_major and element_bits != 16:
        raise ValueError(f"wgmma reads operands of {element_bits} bits along k only")
    k_step = 256 // element_bits
    steps = tuple(distance(k_axis, k) for k in range(0, shared.shape[k_axis], k_step))
    stride = distance(other if k_major else k_axis, 8)
    box = swizzle * 8 // element_bits
    if k_major:
        leading = distance(k_axis, 128 // element_bits) if swizzle == 16 else 0
    else:
        leading = distance(other, box)
    return Descriptor(leading, stride, SWIZZLE_CODES[swizzle], steps)
