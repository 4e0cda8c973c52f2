"""Fourier transforms on CPUs, in the tile language: the lanes of a vector belong to different transforms.

A program takes `LANES` rows at a time.  Their numbers lie in `scratch` with the lanes together, the real and the
imaginary part of a number after each other, [number][part][lane], so that no pass moves anything between lanes.  The
passes are Stockham's (every one reads a buffer and writes the other, numbers come out in order): one for each factor of
the number of points.  Real numbers of an even count are transformed as half as many complex ones (number k is 2k and
2k + 1), and what belongs to the even and the odd ones is told apart behind (before, for the inverse) the passes.
An inverse transform is the same with the parts exchanged.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masks import within

HALF_ROOT = tl.constexpr(0.7071067811865476)


@tilewright.jit
def left_part(left, right):
    """The gate of a transform whose two parts do not meet."""
    return left


@tilewright.jit
def butterfly_2(re, im):
    """The transform of 2 numbers."""
    return (re[0] + re[1], re[0] - re[1]), (im[0] + im[1], im[0] - im[1])


@tilewright.jit
def butterfly_4(re, im):
    """The transform of 4 numbers."""
    even_re, even_im = butterfly_2((re[0], re[2]), (im[0], im[2]))
    odd_re, odd_im = butterfly_2((re[1], re[3]), (im[1], im[3]))
    return ((even_re[0] + odd_re[0], even_re[1] + odd_im[1], even_re[0] - odd_re[0], even_re[1] - odd_im[1]),
            (even_im[0] + odd_im[0], even_im[1] - odd_re[1], even_im[0] - odd_im[0],
             even_im[1] + odd_re[1]))  # fmt: skip


@tilewright.jit
def butterfly_8(re, im):
    """The transform of 8 numbers."""
    a, b = butterfly_4((re[0], re[2], re[4], re[6]), (im[0], im[2], im[4], im[6]))
    c, d = butterfly_4((re[1], re[3], re[5], re[7]), (im[1], im[3], im[5], im[7]))
    first_re, first_im = (c[1] + d[1]) * HALF_ROOT, (d[1] - c[1]) * HALF_ROOT
    third_re, third_im = (d[3] - c[3]) * HALF_ROOT, (c[3] + d[3]) * HALF_ROOT
    return ((a[0] + c[0], a[1] + first_re, a[2] + d[2], a[3] + third_re,
             a[0] - c[0], a[1] - first_re, a[2] - d[2], a[3] - third_re),
            (b[0] + d[0], b[1] + first_im, b[2] - c[2], b[3] - third_im,
             b[0] - d[0], b[1] - first_im, b[2] + c[2], b[3] + third_im))  # fmt: skip


@tilewright.jit
def butterfly_odd(re, im, roots, RADIX: tl.constexpr, STEP: tl.constexpr):
    """The transform of an odd count of numbers, from their sums and differences in pairs; `STEP` roots are a turn by
    1 / RADIX."""
    total_re, total_im = re[0], im[0]
    for j in tl.static_range(1, RADIX // 2 + 1):
        total_re += re[j] + re[RADIX - j]
        total_im += im[j] + im[RADIX - j]
    out_re, out_im = (total_re,), (total_im,)
    back_re, back_im = (), ()
    for k in tl.static_range(1, RADIX // 2 + 1):
        even_re, even_im = re[0], im[0]
        odd_re, odd_im = None, None
        for j in tl.static_range(1, RADIX // 2 + 1):
            cosine = tl.load(roots + 2 * STEP * (j * k % RADIX))
            sine = tl.load(roots + 2 * STEP * (j * k % RADIX) + 1)
            even_re += cosine * (re[j] + re[RADIX - j])
            even_im += cosine * (im[j] + im[RADIX - j])
            if j == 1:
                odd_re, odd_im = sine * (re[j] - re[RADIX - j]), sine * (im[j] - im[RADIX - j])
            else:
                odd_re += sine * (re[j] - re[RADIX - j])
                odd_im += sine * (im[j] - im[RADIX - j])
        out_re, out_im = out_re + (even_re + odd_im,), out_im + (even_im - odd_re,)
        back_re, back_im = (even_re - odd_im,) + back_re, (even_im + odd_re,) + back_im
    return out_re + back_re, out_im + back_im


@tilewright.jit
def butterfly(re, im, roots, RADIX: tl.constexpr, STEP: tl.constexpr):
    """The transform of `RADIX` numbers, given as tuples of their parts."""
    if RADIX == 2:
        found = butterfly_2(re, im)
    elif RADIX == 4:
        found = butterfly_4(re, im)
    elif RADIX == 8:
        found = butterfly_8(re, im)
    else:
        found = butterfly_odd(re, im, roots, RADIX, STEP)
    return found


@tilewright.jit
def one_pass(source, target, roots, RADIX: tl.constexpr, COUNT: tl.constexpr, STRIDE: tl.constexpr, STEP: tl.constexpr,
             RE: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    """One pass over RADIX x COUNT x STRIDE numbers; `STEP` roots are a turn by 1 / (RADIX x COUNT).  `RE` is where the
    pass finds real parts: 1 for the inverse."""
    lane = tl.arange(0, LANES)
    apart: tl.constexpr = 2 * LANES * STRIDE
    for place in range(0, COUNT):
        for number in range(0, STRIDE):
            first = source + (number + STRIDE * place) * (2 * LANES) + lane
            re, im = (), ()
            for j in tl.static_range(RADIX):
                re = re + (tl.load(first + j * COUNT * apart + RE * LANES),)
                im = im + (tl.load(first + j * COUNT * apart + (1 - RE) * LANES),)
            re, im = butterfly(re, im, roots, RADIX, STEP * COUNT)
            out = target + (number + STRIDE * RADIX * place) * (2 * LANES) + lane
            tl.store(out + RE * LANES, re[0])
            tl.store(out + (1 - RE) * LANES, im[0])
            for k in tl.static_range(1, RADIX):
                out_re, out_im = re[k], im[k]
                if COUNT > 1:
                    cosine = tl.load(roots + place * (2 * STEP * k))
                    sine = tl.load(roots + place * (2 * STEP * k) + 1)
                    out_re = re[k] * cosine + im[k] * sine
                    out_im = im[k] * cosine - re[k] * sine
                tl.store(out + k * apart + RE * LANES, out_re)
                tl.store(out + k * apart + (1 - RE) * LANES, out_im)


@tilewright.jit
def part_even_odd(source, target, roots, POINTS: tl.constexpr, LANES: tl.constexpr):
    """The first POINTS + 1 numbers of the transform of 2 POINTS real ones, from that of POINTS complex ones."""
    lane = tl.arange(0, LANES)
    first_re, first_im = tl.load(source + lane), tl.load(source + LANES + lane)
    tl.store(target + lane, first_re + first_im)
    tl.store(target + LANES + lane, tl.zeros((LANES,), target.dtype.element_ty))
    tl.store(target + POINTS * (2 * LANES) + lane, first_re - first_im)
    tl.store(target + POINTS * (2 * LANES) + LANES + lane, tl.zeros((LANES,), target.dtype.element_ty))
    for k in range(1, POINTS // 2 + 1):
        near, far = k * (2 * LANES) + lane, (POINTS - k) * (2 * LANES) + lane
        near_re, near_im = tl.load(source + near), tl.load(source + near + LANES)
        far_re, far_im = tl.load(source + far), tl.load(source + far + LANES)
        cosine, sine = tl.load(roots + 2 * k), tl.load(roots + 2 * k + 1)
        even_re, even_im = (near_re + far_re) * 0.5, (near_im - far_im) * 0.5
        odd_re, odd_im = (near_im + far_im) * 0.5, (far_re - near_re) * 0.5
        turned_re = odd_re * cosine + odd_im * sine
        turned_im = odd_im * cosine - odd_re * sine
        tl.store(target + near, even_re + turned_re)
        tl.store(target + near + LANES, even_im + turned_im)
        tl.store(target + far, even_re - turned_re)
        tl.store(target + far + LANES, turned_im - even_im)


@tilewright.jit
def join_even_odd(source, target, roots, POINTS: tl.constexpr, LANES: tl.constexpr):
    """The numbers whose inverse transform are 2 POINTS real ones in pairs, from the first half of those of theirs."""
    lane = tl.arange(0, LANES)
    low, high = tl.load(source + lane), tl.load(source + POINTS * (2 * LANES) + lane)
    tl.store(target + lane, low + high)
    tl.store(target + LANES + lane, low - high)
    for k in range(1, POINTS // 2 + 1):
        near, far = k * (2 * LANES) + lane, (POINTS - k) * (2 * LANES) + lane
        near_re, near_im = tl.load(source + near), tl.load(source + near + LANES)
        far_re, far_im = tl.load(source + far), tl.load(source + far + LANES)
        cosine, sine = tl.load(roots + 2 * k), tl.load(roots + 2 * k + 1)
        even_re, even_im = near_re + far_re, near_im - far_im
        odd_re, odd_im = near_re - far_re, near_im + far_im
        turned_re = odd_re * cosine - odd_im * sine
        turned_im = odd_im * cosine + odd_re * sine
        tl.store(target + near, even_re - turned_im)
        tl.store(target + near + LANES, even_im + turned_re)
        tl.store(target + far, even_re + turned_im)
        tl.store(target + far + LANES, turned_re - even_im)


@tilewright.jit
def mirror(buffer, LENGTH: tl.constexpr, LANES: tl.constexpr):
    """The second half of the transform of an odd count of real numbers, behind the first half."""
    lane = tl.arange(0, LANES)
    tl.store(buffer + LANES + lane, tl.zeros((LANES,), buffer.dtype.element_ty))
    for k in range(1, LENGTH // 2 + 1):
        near, far = k * (2 * LANES) + lane, (LENGTH - k) * (2 * LANES) + lane
        tl.store(buffer + far, tl.load(buffer + near))
        tl.store(buffer + far + LANES, -tl.load(buffer + near + LANES))


@tilewright.jit
def take_rows(buffer, tile, first_row, rows, extra, COUNT: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr,
              PITCH: tl.constexpr, LANES: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr):  # fmt: skip
    """`COUNT` numbers of the rows from `first_row` on, at `STEP` lines of lanes from each other."""
    for row in range(0, LANES):
        place = tl.minimum(first_row + row, rows - 1).to(tl.int64)
        for start in range(0, COUNT, CHUNK):
            column = start + tl.arange(0, CHUNK)
            mask = within(column, COUNT, COUNT % CHUNK != 0)
            tl.store(tile + row * PITCH + column, PROLOGUE(place, column, mask, extra).to(TYPE), mask=mask)
    lane, numbers = tl.arange(0, LANES)[None, :], tl.arange(0, COUNT)[:, None]
    tl.store(buffer + numbers * (STEP * LANES) + lane, tl.load(tile + lane * PITCH + numbers))


@tilewright.jit
def give_rows(out, buffer, tile, first_row, rows, extra, first_column, COUNT: tl.constexpr, COLUMNS: tl.constexpr,
              STEP: tl.constexpr, CHUNK: tl.constexpr, PITCH: tl.constexpr, LANES: tl.constexpr, GATE: tl.constexpr,
              EPILOGUE: tl.constexpr):  # fmt: skip
    """`COUNT` numbers of each lane as columns from `first_column` on of the rows, through GATE (of a number and the
    line of lanes behind it) and EPILOGUE."""
    lane, numbers = tl.arange(0, LANES)[:, None], tl.arange(0, COUNT)[None, :]
    source = buffer + numbers * (STEP * LANES) + lane
    tl.store(tile + lane * PITCH + numbers, GATE(tl.load(source), tl.load(source + LANES)))
    for row in range(0, tl.minimum(rows - first_row, LANES)):
        place = (first_row + row).to(tl.int64)
        for start in range(0, COUNT, CHUNK):
            column = start + tl.arange(0, CHUNK)
            mask = within(column, COUNT, COUNT % CHUNK != 0)
            value = tl.load(tile + row * PITCH + column, mask=mask)
            result = EPILOGUE(value, place, first_column + column, mask, extra)
            tl.store(out + place * COLUMNS + first_column + column, result, mask=mask)


@tilewright.jit
def fourier(roots, out, first, second, rows_of_lanes, rows, blocks, *extra, FORM: tl.constexpr, COMPLEX: tl.constexpr,
            LENGTH: tl.constexpr, PASSES: tl.constexpr, RE: tl.constexpr, LANES: tl.constexpr, LOADED: tl.constexpr,
            GIVEN: tl.constexpr, SPACE: tl.constexpr, PITCH: tl.constexpr, TYPE: tl.constexpr, GATED: tl.constexpr,
            PROLOGUE: tl.constexpr, SECOND: tl.constexpr, GATE: tl.constexpr = left_part,
            EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """The graph op `fourier` (see graph.fourier) of `rows` rows, `blocks` times `LANES` of them a program.

    PROLOGUE and SECOND load real and imaginary parts (`COMPLEX`: there are some), `LOADED` numbers at a time, and
    EPILOGUE is given `GIVEN` at a time.  PASSES has for each pass what `one_pass` is told; GATE joins the two parts of
    a number where `GATED`.  `first` and `second` have SPACE elements for each program, `rows_of_lanes` LANES x PITCH.
    """
    half: tl.constexpr = LENGTH // 2 + 1
    paired: tl.constexpr = LENGTH % 2 == 0 and (FORM == "real" or (FORM == "half" and not COMPLEX))
    points: tl.constexpr = LENGTH // 2 if paired else LENGTH
    loaded: tl.constexpr = half if FORM == "real" else LENGTH
    given: tl.constexpr = half if FORM == "half" else LENGTH
    together: tl.constexpr = 1 if FORM == "half" and paired else 2
    program = tl.program_id(0).to(tl.int64)
    tile = rows_of_lanes + program * (LANES * PITCH)
    for block in range(0, blocks):
        a, b = first + program * SPACE, second + program * SPACE
        row = (tl.program_id(0) * blocks + block) * LANES
        if row < rows:
            take_rows(a, tile, row, rows, extra, loaded, together, LOADED, PITCH, LANES, TYPE, PROLOGUE)
            if COMPLEX:
                take_rows(a + LANES, tile, row, rows, extra, loaded, 2, LOADED, PITCH, LANES, TYPE, SECOND)
            elif together == 2:
                for k in range(0, loaded):
                    tl.store(a + k * (2 * LANES) + LANES + tl.arange(0, LANES), tl.zeros((LANES,), TYPE))
            if FORM == "real":
                if paired:
                    join_even_odd(a, b, roots, points, LANES)
                    a, b = b, a
                else:
                    mirror(a, LENGTH, LANES)
            for number in tl.static_range(len(PASSES)):
                one_pass(a, b, roots, PASSES[number][0], PASSES[number][1], PASSES[number][2], PASSES[number][3], RE,
                         LANES)  # fmt: skip
                a, b = b, a
            if FORM == "half" and paired:
                part_even_odd(a, b, roots, points, LANES)
                a, b = b, a
            if FORM == "real":
                apart: tl.constexpr = 1 if paired else 2
                give_rows(out, a, tile, row, rows, extra, 0, given, given, apart, GIVEN, PITCH, LANES, left_part,
                          EPILOGUE)  # fmt: skip
            elif GATED:
                give_rows(out, a, tile, row, rows, extra, 0, given, given, 2, GIVEN, PITCH, LANES, GATE, EPILOGUE)
            else:
                give_rows(out, a, tile, row, rows, extra, 0, given, 2 * given, 2, GIVEN, PITCH, LANES, left_part,
                          EPILOGUE)  # fmt: skip
                give_rows(out, a + LANES, tile, row, rows, extra, given, given, 2 * given, 2, GIVEN, PITCH, LANES,
                          left_part, EPILOGUE)  # fmt: skip
