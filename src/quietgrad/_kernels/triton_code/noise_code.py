"""Gaussian integers on a device: ChaCha20's key stream, and the tents and boxes of `_noise.pieces`.

Which bits a coordinate takes is said in `_kernels.keyed_draws`; the reference is `_noise.keyed`.
Checked by: tests/triton_kernels/test_noise.py
"""

import triton
import triton.language as tl

from quietgrad._kernels import keyed_draws

BLOCKS = tl.constexpr(keyed_draws.BLOCKS)
TILE = tl.constexpr(keyed_draws.TILE)
TRIALS = tl.constexpr(keyed_draws.TRIALS)


@triton.jit
def _rotate(x, k: tl.constexpr):
    return (x << k) | (x >> (32 - k))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d = _rotate(d ^ a, 16)
    c += d
    b = _rotate(b ^ c, 12)
    a += b
    d = _rotate(d ^ a, 8)
    c += d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def key_block(key, block, stream):
    """The 16 words of blocks (int64) of a stream (below 2³²): 64 bits count blocks, 64 bits name the stream."""
    zero = (block * 0).to(tl.uint32)
    k0 = tl.load(key + 0) + zero
    k1 = tl.load(key + 1) + zero
    k2 = tl.load(key + 2) + zero
    k3 = tl.load(key + 3) + zero
    k4 = tl.load(key + 4) + zero
    k5 = tl.load(key + 5) + zero
    k6 = tl.load(key + 6) + zero
    k7 = tl.load(key + 7) + zero
    low = block.to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    s = stream + zero
    c0 = zero + 0x61707865
    c1 = zero + 0x3320646E
    c2 = zero + 0x79622D32
    c3 = zero + 0x6B206574
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, low, high, s, zero
    # A loop of the device: ten rounds written out take the compiler two minutes and are no faster.
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + c0, x1 + c1, x2 + c2, x3 + c3, x4 + k0, x5 + k1, x6 + k2, x7 + k3,
        x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + low, x13 + high, x14 + s, x15,
    )  # fmt: skip


@triton.jit
def key_blocks(out, key, first, stream, B: tl.constexpr):
    """Write B blocks of the key stream, for tests with known answers."""
    block = first + tl.arange(0, B).to(tl.int64)
    x = key_block(key, block, stream)
    at = out + tl.arange(0, B) * 16
    for j in tl.static_range(16):
        tl.store(at + j, x[j])


@triton.jit
def _tent(u, v, centre, BITS: tl.constexpr):
    """A slot and a point of its tent, from two words; a slot of boxes has no tent, and the point means nothing."""
    slot = ((u & 511) << 4 | (v & 15)).to(tl.int32)
    middle = tl.load(centre + slot).to(tl.int32) << BITS
    a = u.to(tl.int32, bitcast=True) >> (32 - BITS)
    b = v.to(tl.int32, bitcast=True) >> (32 - BITS)
    return slot, middle + 1 + a + b


@triton.jit
def _put(out, at, n, u, v, centre, TENTS: tl.constexpr, BITS: tl.constexpr):
    """Store the point of a coordinate; return its box slot, and 1 where it wants a box."""
    slot, point = _tent(u, v, centre, BITS)
    inside = (at >= 0) & (at < n)
    tl.store(out + at, point, inside)
    return slot - TENTS, (inside & (slot >= TENTS)).to(tl.int32)


@triton.jit
def _list(places, slots, spot, at, slot, boxed, room):
    fits = (boxed > 0) & (spot < room)
    tl.store(places + spot, at, fits)
    tl.store(slots + spot, slot, fits)
    return spot + boxed


@triton.jit
def tents(
    out, places, slots, found, key, centre, first, n, room,
    TENTS: tl.constexpr, BITS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Points of tents for n coordinates of a draw from `first` on; lists the places that want a box.

    `found` counts them all. A list that is too short is cut, and the caller sees it by the count.
    """
    block = first // TILE * BLOCKS + tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    x = key_block(key, block, 0)
    at = (block // BLOCKS * TILE + block % BLOCKS - first).to(tl.int32)
    s0, b0 = _put(out, at, n, x[0], x[1], centre, TENTS, BITS)
    s1, b1 = _put(out, at + BLOCKS, n, x[2], x[3], centre, TENTS, BITS)
    s2, b2 = _put(out, at + 2 * BLOCKS, n, x[4], x[5], centre, TENTS, BITS)
    s3, b3 = _put(out, at + 3 * BLOCKS, n, x[6], x[7], centre, TENTS, BITS)
    s4, b4 = _put(out, at + 4 * BLOCKS, n, x[8], x[9], centre, TENTS, BITS)
    s5, b5 = _put(out, at + 5 * BLOCKS, n, x[10], x[11], centre, TENTS, BITS)
    s6, b6 = _put(out, at + 6 * BLOCKS, n, x[12], x[13], centre, TENTS, BITS)
    s7, b7 = _put(out, at + 7 * BLOCKS, n, x[14], x[15], centre, TENTS, BITS)
    # One place in 178 wants a box: room for all of a program's is taken by one atomic addition.
    count = b0 + b1 + b2 + b3 + b4 + b5 + b6 + b7
    ends = tl.cumsum(count, 0)
    spot = tl.atomic_add(found, tl.sum(count, 0)) + ends - count
    spot = _list(places, slots, spot, at, s0, b0, room)
    spot = _list(places, slots, spot, at + BLOCKS, s1, b1, room)
    spot = _list(places, slots, spot, at + 2 * BLOCKS, s2, b2, room)
    spot = _list(places, slots, spot, at + 3 * BLOCKS, s3, b3, room)
    spot = _list(places, slots, spot, at + 4 * BLOCKS, s4, b4, room)
    spot = _list(places, slots, spot, at + 5 * BLOCKS, s5, b5, room)
    spot = _list(places, slots, spot, at + 6 * BLOCKS, s6, b6, room)
    _list(places, slots, spot, at + 7 * BLOCKS, s7, b7, room)


@triton.jit
def _unit_interval(low, high):
    """Two words as a number of [0, 1): the conversion of a word of 64 bits would round twice on some devices."""
    return high.to(tl.int64).to(tl.float64) * (2.0**-32) + low.to(tl.int64).to(tl.float64) * (2.0**-64)


@triton.jit
def boxes(
    out, places, slots, found, left, left_slots, left_trials, left_found, key, centre, box, level, first, room, left_room,
    TENTS: tl.constexpr, BITS: tl.constexpr, LOG_STD: tl.constexpr, BOXES: tl.constexpr, HEIGHT: tl.constexpr,
    MARGIN: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Trials of boxes for the listed places; `left` takes those that float64 or TRIALS trials do not decide."""
    start = tl.program_id(0) * B
    count = tl.minimum(tl.load(found), room)
    # As many programs as the list has room for: the host need not know how many places are in it.
    if start < count:
        at = start + tl.arange(0, B)
        inside = at < count
        i = tl.load(places + at, inside, 0)
        slot = tl.load(slots + at, inside, 0)
        # 0: wants the next trial, 1: decided, 2: for exact arithmetic.
        state = tl.where(inside, 0, 1)
        value = i * 0
        trial = i * 0
        for k in range(1, TRIALS + 1):
            x = key_block(key, first + i, k)
            word = x[0].to(tl.uint64) | x[1].to(tl.uint64) << 32
            number = slot * 256 + (word >> 56).to(tl.int32)
            WITHIN: tl.constexpr = 60 - BITS
            APART: tl.constexpr = 1 << BITS
            begin = tl.load(box + 3 * number).to(tl.int64)
            on_left = tl.load(box + 3 * number + 1).to(tl.int64)
            on_right = tl.load(box + 3 * number + 2).to(tl.int64)
            integer = begin + ((word >> WITHIN).to(tl.int64) & (APART // 16 - 1))
            fraction = (word & ((1 << WITHIN) - 1)).to(tl.int64).to(tl.float64) * (2.0**-WITHIN)
            across = (integer.to(tl.float64) + (fraction - 0.5)) * (2.0**-LOG_STD)
            along = integer & (APART - 1)
            roof = (on_left * (APART - along) + on_right * along).to(tl.float64) * (16.0 / APART)
            high = roof + tl.load(level + number).to(tl.float64) + _unit_interval(x[2], x[3])
            high = high * HEIGHT
            curve = tl.exp(-0.5 * across * across)
            undecided = (tl.abs(high - curve) < MARGIN) | (number == BOXES) | (number == BOXES + 1)
            below = high < curve
            again, point = _tent(x[4], x[5], centre, BITS)
            wants = state == 0
            decided = wants & (undecided == 0) & (below | (again < TENTS))
            value = tl.where(decided, tl.where(below, integer.to(tl.int32), point), value)
            trial = tl.where(wants, tl.where(undecided, k, k + 1), trial)
            slot = tl.where(wants & (undecided == 0) & (decided == 0), again - TENTS, slot)
            state = tl.where(decided, 1, tl.where(wants & undecided, 2, state))
        tl.store(out + i, value, inside & (state == 1))
        more = (inside & (state != 1)).to(tl.int32)
        ends = tl.cumsum(more, 0)
        spot = tl.atomic_add(left_found, tl.sum(more, 0)) + ends - more
        fits = (more > 0) & (spot < left_room)
        tl.store(left + spot, i, fits)
        tl.store(left_slots + spot, slot, fits)
        tl.store(left_trials + spot, trial, fits)
