"""Products of float rows by weights of 4 or 8 bits on CPUs: weights are read as stored, and widened in registers.

Weights lie in panels of `WIDTH` columns: 8 bits as [columns/WIDTH][depth][WIDTH], 4 bits two to a byte as
`library.packing`'s `nibbles` has them.  Scales and zero points lie in panels [columns/WIDTH][groups][WIDTH].  `HALF`
lines of a panel (half a block of nibbles, whose low bits are as many steps of the depth as its high ones) are one step
of the outer loop; `HALF` and `GROUP` divide one another.  `ZERO` is the number that every code is more than its
integer; with `ZEROS` the zero points come on top.

CPUs with vectors of 256 bits or more have 4 bits eight to a word, as `words` of the packing; byte by byte takes more
instructions.  Groups are whole words there, and `HALF` is so many steps of the depth.  Where numbers of a small table
are looked up in a register (`LOOKUP`), one shift of a vector of words and one look-up give the weights of one step.
Elsewhere, integers with a zero
point are shifted down and cut off by an AND; those without one are shifted to the top of their words and down again,
with their sign.  A conversion makes floats of them.

Kernels of few rows multiply the sums of a group by its scale, and so need sums of rows by integers that are finite.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masked_loads import load_within
from tilewright.library.masks import and_masks, within
from tilewright.library.matmul.kernel import load_panels, load_strided


@tilewright.jit
def rows_as_floats(x, out, elements, BLOCK: tl.constexpr, MASK: tl.constexpr):
    """float32 of `elements` numbers.  Grid: (blocks of them,)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = within(place, elements, MASK)
    tl.store(out + place, load_within(x + place, mask).to(tl.float32), mask=mask)


@tilewright.jit
def centred(codes, zero, BITS: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr):
    """float32 of codes less their zero points; those of 4 bits are subtracted in 8 bits, four times as many at once."""
    if BITS == 4:
        whole = codes.to(tl.int8)
        if ZEROS:
            whole = whole - zero
        elif ZERO != 0:
            whole = whole - ZERO
        result = whole.to(tl.float32)
    elif ZEROS:
        result = (codes.to(tl.int32) - zero).to(tl.float32)
    else:
        result = codes.to(tl.float32)
    return result


@tilewright.jit
def load_zero(zeros, place, mask, BITS: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr):
    """What is subtracted of the codes at `place`."""
    zero = None
    if ZEROS:
        if BITS == 4:
            zero = load_within(zeros + place, mask).to(tl.int8) + ZERO
        else:
            zero = load_within(zeros + place, mask).to(tl.int32)
    return zero


@tilewright.jit
def one_part(codes, PART: tl.constexpr, BITS: tl.constexpr):
    """The codes of 4 bits in the low (0) or high (1) ones; those of 8 bits as they are."""
    if BITS == 8:
        result = codes
    elif PART == 0:
        result = codes & 15
    else:
        result = codes >> 4
    return result


@tilewright.jit
def add_products(sums, x, step, rows, weights, x_row, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    """`sums` of each row plus its element at `step` times `weights`; rows beyond the last are read as the last.

    An element is loaded for all lanes, so where it is multiplied: loads of scalars come first in a pass of a loop, and
    none that comes before a prefetch can be an instruction's operand.
    """
    found = ()
    for row in tl.static_range(ROWS):
        place = row
        if not WHOLE:
            place = tl.minimum(row, rows - 1)
        elements = tl.load(x + place * x_row + step + tl.zeros(weights.shape, tl.int32))
        found = found + (sums[row] + elements.to(tl.float32) * weights,)
    return found


@tilewright.jit
def add_pairs(sums, x, step, rows, pairs, x_row, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    """As `add_products`, of two elements from `step` on and words of two bfloat16."""
    found = ()
    for row in tl.static_range(ROWS):
        place = row
        if not WHOLE:
            place = tl.minimum(row, rows - 1)
        words = (x + place * x_row + step).to(tl.pointer_type(tl.uint32), bitcast=True)
        elements = tl.load(words + tl.zeros(pairs.shape, tl.int32))
        added = tl.fma(upper_half(pairs), upper_half(elements), sums[row])
        found = found + (tl.fma(lower_half(pairs), lower_half(elements), added),)
    return found


@tilewright.jit
def upper_half(words):
    """float32 of bfloat16 in the upper half of words."""
    return (words & 0xFFFF0000).to(tl.float32, bitcast=True)


@tilewright.jit
def lower_half(words):
    """float32 of bfloat16 in the lower half of words."""
    return (words << 16).to(tl.float32, bitcast=True)


@tilewright.jit
def packed_pair(low, high):
    """Words of two bfloat16, of float32 that are such numbers."""
    return low.to(tl.uint32, bitcast=True) >> 16 | high.to(tl.uint32, bitcast=True)


@tilewright.jit
def no_sums(SETS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Zeros for each row, so many sets of them."""
    found = ()
    for _ in tl.static_range(SETS):
        rows = ()
        for _ in tl.static_range(ROWS):
            rows = rows + (tl.zeros((LANES,), tl.float32),)
        found = found + (rows,)
    return found


@tilewright.jit
def sum_of_chains(sums, chains, scale, ROWS: tl.constexpr, CHAINS: tl.constexpr):
    """`sums` of each row plus those of a group times its scale."""
    total = ()
    for row in tl.static_range(ROWS):
        added = chains[0][row]
        for chain in tl.static_range(1, CHAINS):
            added += chains[chain][row]
        total = total + (sums[row] + added * scale,)
    return total


@tilewright.jit
def store_rows(sums, out, first, panel, rows, columns, c_row, extra, WIDTH: tl.constexpr, LANES: tl.constexpr,
               ROWS: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """Store `ROWS` rows of a panel's columns with what follows the product."""
    for part in tl.static_range(WIDTH // LANES):
        column = panel * WIDTH + part * LANES + tl.arange(0, LANES)
        mask = within(column, columns, MASK_N)
        for row in tl.static_range(ROWS):
            stored = mask
            if MASK_M:
                stored = and_masks(mask, first + row < rows)
            output_row = first.to(tl.int64) + row
            result = EPILOGUE(sums[part][row], output_row, column, stored, extra)
            tl.store(out + output_row * c_row + column, result, mask=stored)


@tilewright.jit
def few_rows(x, w, scales, zeros, out, rows, columns, depth, x_row, c_row, *extra, BITS: tl.constexpr,
             GROUP: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
             ZERO: tl.constexpr, ZEROS: tl.constexpr, PAIRS: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
             CHAINS: tl.constexpr = 1, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """`ROWS` rows by a panel, sums of a group and of `LANES` columns in registers: for each row `CHAINS` that do not
    wait for each other.  Rows of bfloat16 with `PAIRS` are multiplied two steps at a time.
    Grid: (blocks of rows, panels)."""
    parts: tl.constexpr = 8 // BITS
    steps: tl.constexpr = 2 if PAIRS else 1
    run: tl.constexpr = GROUP if GROUP < HALF else HALF
    first = tl.program_id(0) * ROWS
    panel = tl.program_id(1)
    groups = depth // GROUP
    base = w + panel.to(tl.int64) * (depth * WIDTH * BITS // 8)
    x = x + first.to(tl.int64) * x_row
    last = rows - first
    sums = no_sums(WIDTH // LANES, ROWS, LANES)
    for begin in range(0, depth, HALF * parts):
        for part in tl.static_range(parts):
            for line in range(0, HALF, run):
                start = begin + part * HALF + line
                total = ()
                for across in tl.static_range(WIDTH // LANES):
                    lane = across * LANES + tl.arange(0, LANES)
                    codes = base + (begin // parts + line) * WIDTH + lane
                    scaled = (panel * groups + start // GROUP) * WIDTH + lane
                    zero = load_zero(zeros, scaled, None, BITS, ZERO, ZEROS)
                    chains = no_sums(CHAINS, ROWS, LANES)
                    for step in range(0, run, CHAINS * steps):
                        found = ()
                        for chain in tl.static_range(0, CHAINS * steps, steps):
                            stored = tl.load(codes + (step + chain) * WIDTH, cache_modifier=".cs")
                            weights = centred(one_part(stored, part, BITS), zero, BITS, ZERO, ZEROS)
                            place = start + step + chain
                            before = chains[chain // steps]
                            if PAIRS:
                                other = tl.load(codes + (step + chain + 1) * WIDTH, cache_modifier=".cs")
                                odd = centred(one_part(other, part, BITS), zero, BITS, ZERO, ZEROS)
                                pairs = packed_pair(weights, odd)
                                found = found + (add_pairs(before, x, place, last, pairs, x_row, ROWS, not MASK_M),)
                            else:
                                found = found + (
                                    add_products(before, x, place, last, weights, x_row, ROWS, not MASK_M),
                                )
                        chains = found
                    scale = tl.load(scales + scaled, cache_modifier=".cs").to(tl.float32)
                    total = total + (sum_of_chains(sums[across], chains, scale, ROWS, CHAINS),)
                sums = total
    store_rows(sums, out, first, panel, rows, columns, c_row, extra, WIDTH, LANES, ROWS, MASK_M, MASK_N, EPILOGUE)


@tilewright.jit
def number_at(table, words, STEP: tl.constexpr, ZERO: tl.constexpr, LOOKUP: tl.constexpr):
    """float32 of the integers of one of the eight steps of words: codes less `ZERO`, which is 0 or 8."""
    if LOOKUP:
        number = tl.gather(table, (words >> 4 * STEP) & 15, 0)
    elif ZERO == 8:  # with its highest bit flipped a code is 8 less, in two's complement
        top = ((words ^ 0x88888888) << 28 - 4 * STEP).to(tl.int32, bitcast=True)
        number = (top >> 28).to(tl.float32)
    else:
        number = ((words >> 4 * STEP) & 15).to(tl.int32, bitcast=True).to(tl.float32)
    return number


@tilewright.jit
def word_zero(zeros, place, ZEROS: tl.constexpr):
    """What is subtracted of `number_at`; None where nothing is."""
    zero = None
    if ZEROS:
        zero = tl.load(zeros + place).to(tl.float32)
    return zero


@tilewright.jit
def weight_at(table, words, zero, STEP: tl.constexpr, ZERO: tl.constexpr, LOOKUP: tl.constexpr):
    """`number_at` less a zero point, where there is one."""
    number = number_at(table, words, STEP, ZERO, LOOKUP)
    if zero is not None:
        number = number - zero
    return number


@tilewright.jit
def pair_at(table, words, zero, STEP: tl.constexpr, ZERO: tl.constexpr, LOOKUP: tl.constexpr):
    """Words of two bfloat16: the integers of two of the eight steps, less a zero point where there is one."""
    if LOOKUP and zero is None:
        bits = table.to(tl.uint32, bitcast=True)
        low = tl.gather(bits >> 16, (words >> 4 * STEP) & 15, 0)
        pair = low | tl.gather(bits, (words >> 4 * STEP + 4) & 15, 0)
    else:
        pair = packed_pair(weight_at(table, words, zero, STEP, ZERO, LOOKUP),
                           weight_at(table, words, zero, STEP + 1, ZERO, LOOKUP))  # fmt: skip
    return pair


@tilewright.jit
def few_rows_of_words(x, w, scales, zeros, out, rows, columns, depth, x_row, c_row, *extra, GROUP: tl.constexpr,
                      WIDTH: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, ZERO: tl.constexpr,
                      ZEROS: tl.constexpr, PAIRS: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
                      LOOKUP: tl.constexpr, CHAINS: tl.constexpr = 1,
                      EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """`ROWS` rows by a panel, sums of a group and of `LANES` columns in registers: for each row `CHAINS` that do not
    wait for each other.  Rows of bfloat16 with `PAIRS` are multiplied two steps at a time.
    Grid: (blocks of rows, panels)."""
    steps: tl.constexpr = 2 if PAIRS else 1
    first = tl.program_id(0) * ROWS
    panel = tl.program_id(1)
    table = (tl.arange(0, 16) - ZERO).to(tl.float32)
    groups = depth // GROUP
    base = w.to(tl.pointer_type(tl.uint32), bitcast=True) + panel.to(tl.int64) * (depth // 8 * WIDTH)
    x = x + first.to(tl.int64) * x_row
    last = rows - first
    sums = no_sums(WIDTH // LANES, ROWS, LANES)
    for group in range(0, groups):
        total = ()
        for across in tl.static_range(WIDTH // LANES):
            lane = across * LANES + tl.arange(0, LANES)
            scaled = (panel * groups + group) * WIDTH + lane
            zero = word_zero(zeros, scaled, ZEROS)
            chains = no_sums(CHAINS, ROWS, LANES)
            for start in range(group * GROUP, group * GROUP + GROUP, 8):
                words = tl.load(base + start // 8 * WIDTH + lane, cache_modifier=".cs")
                for step in tl.static_range(0, 8, CHAINS * steps):
                    found = ()
                    for chain in tl.static_range(0, CHAINS * steps, steps):
                        place = start + step + chain
                        before = chains[chain // steps]
                        if PAIRS:
                            pairs = pair_at(table, words, zero, step + chain, ZERO, LOOKUP)
                            found = found + (add_pairs(before, x, place, last, pairs, x_row, ROWS, not MASK_M),)
                        else:
                            weights = weight_at(table, words, zero, step + chain, ZERO, LOOKUP)
                            found = found + (add_products(before, x, place, last, weights, x_row, ROWS, not MASK_M),)
                    chains = found
            scale = tl.load(scales + scaled, cache_modifier=".cs").to(tl.float32)
            total = total + (sum_of_chains(sums[across], chains, scale, ROWS, CHAINS),)
        sums = total
    store_rows(sums, out, first, panel, rows, columns, c_row, extra, WIDTH, LANES, ROWS, MASK_M, MASK_N, EPILOGUE)


@tilewright.jit
def rounded_half(number, ROUNDED: tl.constexpr):
    """bfloat16 of float32 in the upper half of a word; codes of 8 bits need no rounding.

    The product with 2^16 + 1 drops the bits that bfloat16 lacks (Veltkamp's splitting): numbers are below 2^111.
    """
    if ROUNDED:
        number = tl.fma(number, -65536.0, number * 65537.0)
    return number.to(tl.uint32, bitcast=True) & 0xFFFF0000


@tilewright.jit
def widened(w, scales, zeros, panel, begin, depth, BITS: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr,
            WIDTH: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr, PART: tl.constexpr, FIRST: tl.constexpr,
            STEP: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """float32 [runs, lines, WIDTH] of one part of `HALF` lines of a panel: every `STEP`th from `FIRST` on."""
    run: tl.constexpr = GROUP if GROUP < HALF else HALF
    lane = tl.arange(0, WIDTH)[None, None, :]
    runs = tl.arange(0, HALF // run)[:, None, None]
    line = runs * run + tl.arange(0, run // STEP)[None, :, None] * STEP + FIRST
    codes = tl.load(w + panel.to(tl.int64) * (depth * WIDTH * BITS // 8) + (begin * BITS // 8 + line) * WIDTH + lane)
    place = (panel * (depth // GROUP) + (begin + PART * HALF) // GROUP + runs) * WIDTH + lane
    zero = load_zero(zeros, place, None, BITS, ZERO, ZEROS)
    found = centred(one_part(codes, PART, BITS), zero, BITS, ZERO, ZEROS)
    if SCALED:
        found = found * tl.load(scales + place).to(tl.float32)
    return found


@tilewright.jit
def widen(w, scales, zeros, numbers, panel, begin, depth, BITS: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr,
          WIDTH: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr, PART: tl.constexpr, PAIRS: tl.constexpr,
          SCALED: tl.constexpr):  # fmt: skip
    """Store one part of `HALF` lines of a panel as floats [HALF][WIDTH]; with `PAIRS` as bfloat16 [HALF/2][WIDTH][2],
    which are written as words."""
    run: tl.constexpr = GROUP if GROUP < HALF else HALF
    step: tl.constexpr = 2 if PAIRS else 1
    runs = tl.arange(0, HALF // run)[:, None, None]
    line = runs * (run // step) + tl.arange(0, run // step)[None, :, None]
    place = line * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    found = widened(w, scales, zeros, panel, begin, depth, BITS, GROUP, HALF, WIDTH, ZERO, ZEROS, PART, 0, step, SCALED)
    if PAIRS:
        odd = widened(w, scales, zeros, panel, begin, depth, BITS, GROUP, HALF, WIDTH, ZERO, ZEROS, PART, 1, 2, SCALED)
        words = numbers.to(tl.pointer_type(tl.uint32), bitcast=True)
        tl.store(words + place, rounded_half(found, SCALED) >> 16 | rounded_half(odd, SCALED))
    else:
        tl.store(numbers + place, found.to(numbers.dtype.element_ty))


@tilewright.jit
def widen_words(w, scales, zeros, numbers, panel, begin, depth, GROUP: tl.constexpr, LINES: tl.constexpr,
                WIDTH: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr, PAIRS: tl.constexpr,
                LOOKUP: tl.constexpr):  # fmt: skip
    """Store `LINES` steps of a panel as floats [LINES][WIDTH]; with `PAIRS` as bfloat16 [LINES/2][WIDTH][2], which are
    written as words."""
    lane = tl.arange(0, WIDTH)
    table = (tl.arange(0, 16) - ZERO).to(tl.float32)
    stored = w.to(tl.pointer_type(tl.uint32), bitcast=True) + (panel.to(tl.int64) * depth + begin) // 8 * WIDTH + lane
    pairs = numbers.to(tl.pointer_type(tl.uint32), bitcast=True) + lane
    place = (panel * (depth // GROUP) + begin // GROUP) * WIDTH + lane
    for line in range(0, LINES, 8):
        words = tl.load(stored + line // 8 * WIDTH)
        scale = tl.load(scales + place + line // GROUP * WIDTH).to(tl.float32)
        zero = word_zero(zeros, place + line // GROUP * WIDTH, ZEROS)
        if PAIRS:
            for step in tl.static_range(0, 8, 2):
                low = rounded_half(weight_at(table, words, zero, step, ZERO, LOOKUP) * scale, True)
                high = rounded_half(weight_at(table, words, zero, step + 1, ZERO, LOOKUP) * scale, True)
                tl.store(pairs + (line + step) // 2 * WIDTH, low >> 16 | high)
        else:
            for step in tl.static_range(8):
                found = weight_at(table, words, zero, step, ZERO, LOOKUP) * scale
                tl.store(numbers + (line + step) * WIDTH + lane, found.to(numbers.dtype.element_ty))


@tilewright.jit
def many_rows(x, w, scales, zeros, out, numbers, rows, columns, depth, x_row, c_row, *extra, BITS: tl.constexpr,
              GROUP: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, PANELS: tl.constexpr, ROWS: tl.constexpr,
              ZERO: tl.constexpr, ZEROS: tl.constexpr, PAIRS: tl.constexpr, SCALED: tl.constexpr,
              MASK_M: tl.constexpr, MASK_N: tl.constexpr, WORDS: tl.constexpr = False,
              LOOKUP: tl.constexpr = False, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """`ROWS` rows by blocks of `PANELS` panels: lines of these become floats in `numbers`, which has room for them for
    each program and so stays in its caches, then a product of floats of that type.  Panels beyond the last one are read
    as the last.  Where numbers are not `SCALED`, sums are: a group is the whole depth.  Grid: (blocks of rows, programs
    that share the blocks of panels)."""
    parts: tl.constexpr = 1 if WORDS else 8 // BITS
    numbers += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * (PANELS * HALF * WIDTH)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    step = tl.arange(0, HALF)[None, :]
    panels = tl.cdiv(columns, WIDTH)
    for block in range(tl.program_id(1), tl.cdiv(panels, PANELS), tl.num_programs(1)):
        acc = tl.zeros((ROWS, PANELS * WIDTH), tl.float32)
        for begin in range(0, depth, HALF * parts):
            for part in tl.static_range(parts):
                for number in tl.static_range(PANELS):
                    panel = tl.minimum(block * PANELS + number, panels - 1)
                    place = numbers + number * (HALF * WIDTH)
                    if WORDS:
                        widen_words(w, scales, zeros, place, panel, begin, depth, GROUP, HALF, WIDTH, ZERO, ZEROS,
                                    PAIRS, LOOKUP)  # fmt: skip
                    else:
                        widen(w, scales, zeros, place, panel, begin, depth, BITS, GROUP, HALF, WIDTH, ZERO, ZEROS, part,
                              PAIRS, SCALED)  # fmt: skip
                left = load_strided(x, row, begin + part * HALF + step, x_row, 1, rows, depth, MASK_M, False)
                right = load_panels(numbers, 0, 0, HALF, PANELS, PANELS, HALF, WIDTH, False, False, 2 if PAIRS else 1)
                acc = tl.dot(left.to(numbers.dtype.element_ty), right, acc, input_precision="ieee")
        output_row = row.to(tl.int64)
        column = block * (PANELS * WIDTH) + tl.arange(0, PANELS * WIDTH)[None, :]
        if not SCALED:
            acc = acc * load_within(scales + column, within(column, columns, MASK_N)).to(tl.float32)
        mask = and_masks(within(row, rows, MASK_M), within(column, columns, MASK_N))
        result = EPILOGUE(acc, output_row, column, mask, extra)
        tl.store(out + output_row * c_row + column, result, mask=mask)
