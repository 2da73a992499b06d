"""Norms and sums of per-sample gradients on a device; the references are in `_gradients`.

Sums over long rows are in float64 from the start. Products of factors are added in float32 within a run, and runs in
float64, as `_kernels.rounding` wants it. `WIDE` converts factors to float32 before a product: the interpreter's product
of bfloat16 is wrong, and exact products make no difference to what comes out.
Checked by: tests/triton_kernels/test_norms.py
"""

import triton
import triton.language as tl


@triton.jit
def row_squares(rows, out, p, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    """out[i, part]: the sum of squares of SPAN numbers of row i."""
    part = tl.program_id(0)
    # 64 bits: dense gradients of a batch easily have more than 2³¹ numbers.
    i = tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, SPAN, BLOCK):
        at = part.to(tl.int64) * SPAN + start + tl.arange(0, BLOCK)
        x = tl.load(rows + i * p + at, at < p, 0.0).to(tl.float64)
        total += x * x
    tl.store(out + i * tl.num_programs(0) + part, tl.sum(total, 0))


@triton.jit
def weighted_columns(weights, rows, out, n, p, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[j] = Σ_i weights[i]·rows[i, j] in float64; rows of weight 0 are not read."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n, ROWS):
        i = start + tl.arange(0, ROWS)
        w = tl.load(weights + i, i < n, 0.0)
        # A row that was clipped to nothing may hold NaN, and zero times NaN is NaN. So it is not even loaded.
        read = (w != 0.0)[:, None] & (at < p)[None, :]
        x = tl.load(rows + i.to(tl.int64)[:, None] * p + at[None, :], read, 0.0).to(tl.float64)
        total += tl.sum(w[:, None] * x, 0)
    tl.store(out + at, total, at < p)


@triton.jit
def _inner_products(
    x, first, second, count, d, T: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr
):
    """Products of positions with positions: DEPTH features at a time in float32, these sums in float64."""
    total = tl.zeros((T, T), tl.float64)
    for begin in range(0, d, DEPTH):
        part = tl.zeros((T, T), tl.float32)
        end = tl.minimum(begin + DEPTH, d)
        for k in range(begin, end, D):
            at = k + tl.arange(0, D)
            u = tl.load(
                x + first[:, None] * d + at[None, :], (first < count)[:, None] & (at < end)[None, :], 0.0
            )
            v = tl.load(
                x + second[:, None] * d + at[None, :], (second < count)[:, None] & (at < end)[None, :], 0.0
            )
            if WIDE:
                u = u.to(tl.float32)
                v = v.to(tl.float32)
            # "ieee" keeps Triton from rounding factors to TF32, for which the bound leaves no room.
            part = tl.dot(u, tl.trans(v), part, input_precision="ieee")
        total += part.to(tl.float64)
    return total


@triton.jit
def gram_tiles(
    a, b, out, count, i, o, T: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr
):
    """out[n, tile]: Σ over a tile of (a_t·a_s)(b_t·b_s); tiles below the diagonal are counted with those above it."""
    n = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(count, T)
    row = tl.program_id(0) // tiles
    column = tl.program_id(0) % tiles
    # Gram matrices are symmetric, so programs below the diagonal have nothing to do.
    if column >= row:
        first = row * T + tl.arange(0, T)
        second = column * T + tl.arange(0, T)
        of_a = _inner_products(a + n * count * i, first, second, count, i, T, D, DEPTH, WIDE)
        of_b = _inner_products(b + n * count * o, first, second, count, o, T, D, DEPTH, WIDE)
        both = tl.sum(tl.sum(of_a * of_b, 1), 0)
        tl.store(out + n * tl.num_programs(0) + tl.program_id(0), tl.where(column > row, 2 * both, both))


@triton.jit
def formed_tiles(
    a,
    b,
    out,
    count,
    i,
    o,
    WI: tl.constexpr,
    WO: tl.constexpr,
    T: tl.constexpr,
    RUN: tl.constexpr,
    WIDE: tl.constexpr,
):
    """out[n, tile]: the squares of one tile of G_n = Σ_t b_t a_tᵀ, which is never stored."""
    n = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(i, WI)
    at_o = tl.program_id(0) // tiles * WO + tl.arange(0, WO)
    at_i = tl.program_id(0) % tiles * WI + tl.arange(0, WI)
    total = tl.zeros((WO, WI), tl.float64)
    for begin in range(0, count, RUN):
        part = tl.zeros((WO, WI), tl.float32)
        end = tl.minimum(begin + RUN, count)
        for k in range(begin, end, T):
            t = k + tl.arange(0, T)
            x = tl.load(
                a + n * count * i + t[:, None] * i + at_i[None, :],
                (t < end)[:, None] & (at_i < i)[None, :],
                0.0,
            )
            y = tl.load(
                b + n * count * o + t[:, None] * o + at_o[None, :],
                (t < end)[:, None] & (at_o < o)[None, :],
                0.0,
            )
            if WIDE:
                x = x.to(tl.float32)
                y = y.to(tl.float32)
            part = tl.dot(tl.trans(y), x, part, input_precision="ieee")
        total += part.to(tl.float64)
    # The tile stays in registers. Only the sum of its squares leaves the program.
    tl.store(out + n * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(total * total, 1), 0))


@triton.jit
def run_products(
    b, a, weights, starts, ends, out, runs, positions, i, o,
    WI: tl.constexpr, WO: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """out = Σ_runs fl32(Σ_{k in run} w_k·b_k a_kᵀ), the outer sum in float64; samples of weight 0 are not read."""
    tiles = tl.cdiv(i, WI)
    at_o = tl.program_id(0) // tiles * WO + tl.arange(0, WO)
    at_i = tl.program_id(0) % tiles * WI + tl.arange(0, WI)
    total = tl.zeros((WO, WI), tl.float64)
    for run in range(runs):
        part = tl.zeros((WO, WI), tl.float32)
        begin = tl.load(starts + run)
        end = tl.load(ends + run)
        for k in range(begin, end, T):
            # Runs count positions of all samples one after another, so a position says whose it is.
            t = k + tl.arange(0, T)
            w = tl.load(weights + t // positions, t < end, 0.0)
            read = (t < end) & (w != 0.0)
            x = tl.load(
                a + t.to(tl.int64)[:, None] * i + at_i[None, :], read[:, None] & (at_i < i)[None, :], 0.0
            )
            y = tl.load(
                b + t.to(tl.int64)[:, None] * o + at_o[None, :], read[:, None] & (at_o < o)[None, :], 0.0
            )
            part = tl.dot(tl.trans(y * w[:, None]), x, part, input_precision="ieee")
        total += part.to(tl.float64)
    tl.store(
        out + at_o.to(tl.int64)[:, None] * i + at_i[None, :], total, (at_o < o)[:, None] & (at_i < i)[None, :]
    )


@triton.jit
def norm_rows(x, b, mean, scale, gamma, beta, count, d, T: tl.constexpr, D: tl.constexpr):
    """Of sample n: gamma = Σ_t b_t ∘ (x_t − mean_t)·scale_t and beta = Σ_t b_t."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * D + tl.arange(0, D)
    of_gamma = tl.zeros((D,), tl.float64)
    of_beta = tl.zeros((D,), tl.float64)
    for begin in range(0, count, T):
        t = begin + tl.arange(0, T)
        read = (t < count)[:, None] & (at < d)[None, :]
        place = n * count * d + t[:, None] * d + at[None, :]
        m = tl.load(mean + n * count + t, t < count, 0.0)
        s = tl.load(scale + n * count + t, t < count, 0.0)
        g = tl.load(b + place, read, 0.0)
        normal = (tl.load(x + place, read, 0.0) - m[:, None]) * s[:, None]
        # Positions beyond the sample's are loaded as zero, but (0 − mean)·scale is not zero.
        of_gamma += tl.sum(tl.where(read, g * normal, 0.0).to(tl.float64), 0)
        of_beta += tl.sum(g.to(tl.float64), 0)
    tl.store(gamma + n * d + at, of_gamma.to(tl.float32), at < d)
    tl.store(beta + n * d + at, of_beta.to(tl.float32), at < d)
