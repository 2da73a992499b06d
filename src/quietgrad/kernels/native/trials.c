/* Trials of the rounded Gaussian: the same integers from the same bits as quietgrad.noise.rounded_gaussian, which has
 * the proof. Tents are integer arithmetic. A box compares float64 numbers as the reference does; points closer to the
 * curve than its margin, and those of the two ends, are handed back to be settled exactly. Key stream and points are
 * made a few thousand at a time, so that they stay in the nearest cache.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "aes.h"
#include "levels.h"

#define PART 4096
#define BLOCK 16

typedef int32_t __attribute__((aligned(1), may_alias)) int32_any;
typedef uint16_t __attribute__((aligned(1), may_alias)) uint16_any;
typedef uint64_t __attribute__((aligned(1), may_alias)) uint64_any;

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
    const int64_t *start, *left, *right;
    const double *level;
    int64_t tents, boxes, strips, log_std, log_apart;
    double height, doubt;
};

/* Bytes [from, from + size) of the bits; `room` holds size + 2 blocks. */
static const uint8_t *bytes(const struct bits *bits, uint64_t from, int64_t size, uint8_t *room) {
    if (bits->raw) return bits->raw + from;
    const uint64_t place = bits->position + from, first = place / BLOCK;
    const int64_t blocks = (int64_t)((place + (uint64_t)size + BLOCK - 1) / BLOCK - first);
    aes_blocks(bits->rounds, bits->number, first, blocks, room, bits->kind);
    return room + place % BLOCK;
}

/* Points of tents: centre + u + u', u and u' uniform between two centres (their sum has mean −1). */
static ALWAYS_INLINE void tents_body(const int32_any *u, const int32_any *v, const uint16_any *slot, int64_t count,
                                     const int8_t *centre, int shift, int log_apart, int32_t *restrict out) {
    for (int64_t i = 0; i < count; i++) out[i] = centre[slot[i] & 8191];
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)((uint32_t)out[i] << log_apart) + 1 + (u[i] >> shift) + (v[i] >> shift);
}

LEVELS(tents,
       (const int32_any *u, const int32_any *v, const uint16_any *slot, int64_t count, const int8_t *centre, int shift,
        int log_apart, int32_t *out),
       (u, v, slot, count, centre, shift, log_apart, out))

/* Whether any of sixteen slots is no tent. */
static ALWAYS_INLINE int any_boxed(const uint16_any *slot, uint16_t tents) {
    uint16_t any = 0;
    for (int j = 0; j < 16; j++) any |= (uint16_t)((slot[j] & 8191) >= tents);
    return any;
}

/* The places whose slot is no tent. */
static ALWAYS_INLINE void boxed_body(const uint16_any *slot, int64_t count, int64_t tents, int64_t offset,
                                     int64_t *places, int64_t *slots, int64_t *total) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += 16) {
        if (i + 16 <= count && !any_boxed(slot + i, (uint16_t)tents)) continue;
        for (int64_t j = i; j < i + 16 && j < count; j++)
            if ((slot[j] & 8191) >= tents) {
                places[found] = offset + j;
                slots[found++] = (slot[j] & 8191) - tents;
            }
    }
    *total = found;
}

LEVELS(boxed,
       (const uint16_any *slot, int64_t count, int64_t tents, int64_t offset, int64_t *places, int64_t *slots,
        int64_t *total),
       (slot, count, tents, offset, places, slots, total))

/* One point of a box: 1 below the curve, 0 above it, 2 if exact arithmetic must tell. */
static int point(const struct pieces *p, int64_t slot, uint64_t first, uint64_t second, int32_t *out) {
    const int64_t apart = (int64_t)1 << p->log_apart, strip = apart / p->strips;
    const int64_t box = slot * p->strips * p->strips + (int64_t)(first >> 56);
    const int within = 56 - (int)(p->log_apart - 4);
    const int64_t integer = p->start[box] + ((int64_t)(first >> within) & (strip - 1));
    const double fraction = (double)(first & (((uint64_t)1 << within) - 1)) * ldexp(1.0, -within);
    const double x = ((double)integer + (fraction - 0.5)) * ldexp(1.0, -(int)p->log_std);
    const int64_t along = integer & (apart - 1);
    const double roof = (double)(p->left[box] * (apart - along) + p->right[box] * along) * ((double)p->strips / (double)apart);
    const double y = (roof + p->level[box] + (double)second * 0x1p-64) * p->height;
    const double curve = exp(-0.5 * x * x);
    *out = (int32_t)integer;
    if (fabs(y - curve) < p->doubt || box == p->boxes || box == p->boxes + 1) return 2;
    return y < curve;
}

/* A point of a tent for each place of `out`. Returns how many places want a box instead, -1 without memory; `places`
 * and `slots` name them. */
EXPORT int64_t qg_tents(const uint8_t *raw, const uint8_t *key, uint64_t number, uint64_t position, int kind,
                        const struct pieces *pieces, int32_t *out, int64_t count, int64_t at_once, int64_t *places,
                        int64_t *slots, int level, int threads) {
    struct bits bits = {.raw = raw, .number = number, .position = position, .kind = kind};
    if (!raw) aes_expand(key, bits.rounds);
    const int64_t parts = (count + PART - 1) / PART;
    const int shift = 32 - (int)pieces->log_apart;
    int64_t *found = malloc((size_t)(parts + 1) * sizeof *found);
    if (!found) return -1;
#pragma omp parallel for schedule(static) num_threads(threads) if (parts > 1)
    for (int64_t part = 0; part < parts; part++) {
        uint8_t room[3][4 * PART + 2 * BLOCK];
        const int64_t start = part * PART, size = count - start < PART ? count - start : PART;
        const int64_t chunk = start / at_once * at_once, inside = start - chunk;
        const int64_t together = count - chunk < at_once ? count - chunk : at_once;
        const uint64_t base = (uint64_t)(10 * chunk);
        const uint8_t *u = bytes(&bits, base + (uint64_t)(4 * inside), 4 * size, room[0]);
        const uint8_t *v = bytes(&bits, base + (uint64_t)(4 * (together + inside)), 4 * size, room[1]);
        const uint8_t *s = bytes(&bits, base + (uint64_t)(8 * together + 2 * inside), 2 * size, room[2]);
        AT_LEVEL(tents, level)
        ((const int32_any *)u, (const int32_any *)v, (const uint16_any *)s, size, pieces->centre, shift,
         (int)pieces->log_apart, out + start);
        AT_LEVEL(boxed, level)
        ((const uint16_any *)s, size, pieces->tents, start, places + start, slots + start, found + part);
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
EXPORT void qg_boxes(const struct pieces *pieces, const int64_t *places, const int64_t *slots, const uint64_t *words,
                     int64_t count, int32_t *out, uint8_t *verdict, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 256)
    for (int64_t i = 0; i < count; i++)
        verdict[i] = (uint8_t)point(pieces, slots[i], words[i], words[count + i], out + places[i]);
}
