/* Trials of the rounded Gaussian: the same integers from the same bits as quietgrad._noise.trials; why they
 * are exact is said in quietgrad._noise.sources. Tents are integer arithmetic. A box compares float64 numbers as the reference does; points closer to the
 * curve than its margin, and those of the two ends, are handed back to be decided exactly. Key stream and points are
 * made a few thousand at a time, so that they stay in the nearest cache.
 *
 * Checked by: tests/kernels/test_integer_noise.py
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "aes.h"
#include "levels.h"

#define PART 4096
#define BLOCK 16

typedef int32_t __attribute__((aligned(1), may_alias)) int32_any;

/* One box: where it begins, the tents on the centres beside it, and how many boxes lie below it. */
struct box {
    int32_t start;
    int16_t left, right;
    float level;
};

/* Where bits come from: bytes that are there (`raw`), or a key and the place in its stream. */
struct bits {
    const uint8_t *raw;
    uint8_t rounds[240];
    uint64_t number, position;
    int kind;
};

/* The tables of the pieces under the curve, and how they are read; see RoundedGaussian. */
struct pieces {
    const int8_t *centre;
    const struct box *box;
    int64_t tents, boxes, strips, log_std, log_apart;
    double height, margin;
};

/* Bytes [from, from + size) of the bits; `room` holds size + 2 blocks. */
static const uint8_t *bytes(const struct bits *bits, uint64_t from, int64_t size, uint8_t *room) {
    if (bits->raw) return bits->raw + from;
    const uint64_t place = bits->position + from, first = place / BLOCK;
    const int64_t blocks = (int64_t)((place + (uint64_t)size + BLOCK - 1) / BLOCK - first);
    aes_blocks(bits->rounds, bits->number, first, blocks, room, bits->kind);
    return room + place % BLOCK;
}

/* Points of tents: centre + u + u', u and u' the leading bits of two words, uniform between two centres (their sum has
 * mean −1). The slot is what is left at the other end of the words: nine bits of one, four of the other. */
static ALWAYS_INLINE void tents_body(const int32_any *u, const int32_any *v, int64_t count, const int8_t *centre,
                                     int shift, int log_apart, uint16_t *restrict slot, int32_t *restrict out) {
    for (int64_t i = 0; i < count; i++) slot[i] = (uint16_t)((u[i] & 511) << 4 | (v[i] & 15));
    for (int64_t i = 0; i < count; i++) out[i] = centre[slot[i]];
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)((uint32_t)out[i] << log_apart) + 1 + (u[i] >> shift) + (v[i] >> shift);
}

LEVELS(tents,
       (const int32_any *u, const int32_any *v, int64_t count, const int8_t *centre, int shift, int log_apart,
        uint16_t *slot, int32_t *out),
       (u, v, count, centre, shift, log_apart, slot, out))

/* Whether any of 32 slots is no tent. */
static ALWAYS_INLINE int any_boxed(const uint16_t *slot, uint16_t tents) {
    uint16_t any = 0;
    for (int j = 0; j < 32; j++) any |= (uint16_t)(slot[j] >= tents);
    return any;
}

/* The places whose slot is no tent. */
static ALWAYS_INLINE void boxed_body(const uint16_t *slot, int64_t count, int64_t tents, int64_t offset,
                                     int32_t *places, int16_t *slots, int64_t *total) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += 32) {
        if (i + 32 <= count && !any_boxed(slot + i, (uint16_t)tents)) continue;
        for (int64_t j = i; j < i + 32 && j < count; j++)
            if (slot[j] >= tents) {
                places[found] = (int32_t)(offset + j);
                slots[found++] = (int16_t)(slot[j] - tents);
            }
    }
    *total = found;
}

LEVELS(boxed,
       (const uint16_t *slot, int64_t count, int64_t tents, int64_t offset, int32_t *places, int16_t *slots,
        int64_t *total),
       (slot, count, tents, offset, places, slots, total))

/* What all points of boxes have in common: powers of two, which multiply without rounding. */
struct scales {
    int within;
    int64_t apart, strip;
    double of_fraction, of_std, of_roof;
};

/* One point of a box: 1 below the curve, 0 above it, 2 if exact arithmetic must tell. */
static int point(const struct pieces *p, const struct scales *by, int64_t slot, uint64_t first, uint64_t second,
                 int32_t *out) {
    const int64_t number = slot * p->strips * p->strips + (int64_t)(first >> 56);
    const struct box box = p->box[number];
    const int64_t integer = box.start + ((int64_t)(first >> by->within) & (by->strip - 1));
    const double fraction = (double)(first & (((uint64_t)1 << by->within) - 1)) * by->of_fraction;
    const double x = ((double)integer + (fraction - 0.5)) * by->of_std;
    const int64_t along = integer & (by->apart - 1);
    const double roof = (double)(box.left * (by->apart - along) + box.right * along) * by->of_roof;
    const double y = (roof + (double)box.level + (double)second * 0x1p-64) * p->height;
    const double curve = exp(-0.5 * x * x);
    *out = (int32_t)integer;
    if (fabs(y - curve) < p->margin || number == p->boxes || number == p->boxes + 1) return 2;
    return y < curve;
}

/* A point of a tent for each place of `out`. Returns how many places want a box instead, -1 without memory; `places`
 * and `slots` name them. */
EXPORT int64_t qg_tents(const uint8_t *raw, const uint8_t *key, uint64_t number, uint64_t position, int kind,
                        const struct pieces *pieces, int32_t *out, int64_t count, int64_t at_once, int32_t *places,
                        int16_t *slots, int level, int threads) {
    struct bits bits = {.raw = raw, .number = number, .position = position, .kind = kind};
    if (!raw) aes_expand(key, bits.rounds);
    const int64_t parts = (count + PART - 1) / PART;
    const int shift = 32 - (int)pieces->log_apart;
    int64_t *found = malloc((size_t)(parts + 1) * sizeof *found);
    if (!found) return -1;
#pragma omp parallel for schedule(static) num_threads(threads) if (parts > 1)
    for (int64_t part = 0; part < parts; part++) {
        uint8_t room[2][4 * PART + 2 * BLOCK];
        uint16_t slot[PART];
        const int64_t start = part * PART, size = count - start < PART ? count - start : PART;
        const int64_t chunk = start / at_once * at_once, inside = start - chunk;
        const int64_t together = count - chunk < at_once ? count - chunk : at_once;
        const uint64_t base = (uint64_t)(8 * chunk);
        const uint8_t *u = bytes(&bits, base + (uint64_t)(4 * inside), 4 * size, room[0]);
        const uint8_t *v = bytes(&bits, base + (uint64_t)(4 * (together + inside)), 4 * size, room[1]);
        AT_LEVEL(tents, level)
        ((const int32_any *)u, (const int32_any *)v, size, pieces->centre, shift, (int)pieces->log_apart, slot,
         out + start);
        AT_LEVEL(boxed, level)(slot, size, pieces->tents, start, places + start, slots + start, found + part);
    }
    int64_t total = 0;
    for (int64_t part = 0; part < parts; part++) {
        memmove(places + total, places + part * PART, (size_t)found[part] * sizeof *places);
        memmove(slots + total, slots + part * PART, (size_t)found[part] * sizeof *slots);
        total += found[part];
    }
    free(found);
    return total;
}

/* A point of a box for each of `places`, from the two words of each (first all first ones); `verdict` says what became
 * of it (see `point`). */
EXPORT void qg_boxes(const struct pieces *pieces, const int32_t *places, const int16_t *slots, const uint64_t *words,
                     int64_t count, int32_t *out, uint8_t *verdict, int threads) {
    const int within = 56 - (int)(pieces->log_apart - 4);
    const int64_t apart = (int64_t)1 << pieces->log_apart;
    const struct scales by = {.within = within,
                              .apart = apart,
                              .strip = apart / pieces->strips,
                              .of_fraction = ldexp(1.0, -within),
                              .of_std = ldexp(1.0, -(int)pieces->log_std),
                              .of_roof = (double)pieces->strips / (double)apart};
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 256)
    for (int64_t i = 0; i < count; i++)
        verdict[i] = (uint8_t)point(pieces, &by, slots[i], words[i], words[count + i], out + places[i]);
}
