/* Gradients of tables: what each sample's positions add to the rows that they read, and weighted sums of such rows.
 *
 * A sample may read a row at several positions. Its gradient there is the sum over them in float32, in their order, which
 * is the reference's order too. Equal ids of a sample are found by a hash table that is emptied for every sample by
 * giving its slots another owner. Squared norms are taken while the sample's rows are in the cache.
 *
 * Checked by: tests/kernels/test_indexed_rows.py
 */
#include "levels.h"
#include <stdlib.h>
#include <string.h>

struct slot {
    int64_t owner, place;
};

/* ids, owner [m] and values [m][length] in; ids_out, owner_out, out with one entry for each pair of owner and id, and the
 * squared norms of all samples. Returns how many entries there are, -1 where owners do not ascend. */
static ALWAYS_INLINE void pairs_body(const int64_t *ids, const int64_t *owner, const float *values, int64_t count,
                                     int64_t length, struct slot *slots, int64_t mask, int64_t *restrict ids_out,
                                     int64_t *restrict owner_out, float *restrict out, double *restrict squares,
                                     int64_t *found) {
    int64_t made = 0, begun = 0;
    for (int64_t k = 0; k < count; k++) {
        const float *restrict row = values + k * length;
        int64_t at = (int64_t)((uint64_t)ids[k] * 0x9E3779B97F4A7C15u >> 20) & mask;
        while (slots[at].owner == owner[k] && ids_out[slots[at].place] != ids[k]) at = (at + 1) & mask;
        if (slots[at].owner == owner[k]) {
            float *restrict to = out + slots[at].place * length;
            for (int64_t j = 0; j < length; j++) to[j] += row[j];
        } else {
            slots[at].owner = owner[k], slots[at].place = made;
            ids_out[made] = ids[k], owner_out[made] = owner[k];
            /* Added to zero, as the reference does: -0 becomes 0. */
            for (int64_t j = 0; j < length; j++) out[made * length + j] = 0.0f + row[j];
            made++;
        }
        if (k + 1 == count || owner[k + 1] != owner[k]) {
            double sums[8] = {0}, total = 0;
            const float *restrict own = out + begun * length;
            const int64_t size = (made - begun) * length;
            int64_t j = 0;
            for (; j + 8 <= size; j += 8)
                for (int l = 0; l < 8; l++) sums[l] += (double)own[j + l] * (double)own[j + l];
            for (; j < size; j++) total += (double)own[j] * (double)own[j];
            for (int l = 0; l < 8; l++) total += sums[l];
            squares[owner[k]] = total;
            begun = made;
        }
    }
    *found = made;
}

LEVELS(pairs, (const int64_t *ids, const int64_t *owner, const float *values, int64_t count, int64_t length,
               struct slot *slots, int64_t mask, int64_t *ids_out, int64_t *owner_out, float *out, double *squares,
               int64_t *found),
       (ids, owner, values, count, length, slots, mask, ids_out, owner_out, out, squares, found))

EXPORT int64_t qg_table_pairs(const int64_t *ids, const int64_t *owner, const float *values, int64_t count, int64_t length,
                              int64_t *ids_out, int64_t *owner_out, float *out, double *squares, int level) {
    int64_t longest = 0, begun = 0, size = 16, found = 0;
    for (int64_t k = 0; k < count; k++) {
        if (k && owner[k] < owner[k - 1]) return -1;
        if (k && owner[k] != owner[k - 1]) begun = k;
        if (k + 1 - begun > longest) longest = k + 1 - begun;
    }
    while (size < 2 * longest) size *= 2;
    struct slot *slots = malloc((size_t)size * sizeof *slots);
    if (!slots) return -2;
    memset(slots, 0xff, (size_t)size * sizeof *slots); /* owner -1: nobody's */
    AT_LEVEL(pairs, level)
    (ids, owner, values, count, length, slots, size - 1, ids_out, owner_out, out, squares, &found);
    free(slots);
    return found;
}

/* total[id] += w·value of every entry, in their order; one whose owner has weight 0 is not read. */
static ALWAYS_INLINE void add_body(const int64_t *ids, const int64_t *owner, const float *values, const double *weights,
                                   int64_t count, int64_t length, double *total) {
    for (int64_t k = 0; k < count; k++) {
        const double w = weights[owner[k]];
        const float *restrict row = values + k * length;
        double *restrict to = total + ids[k] * length;
        if (w != 0)
            for (int64_t j = 0; j < length; j++) to[j] += (double)row[j] * w;
    }
}

LEVELS(add, (const int64_t *ids, const int64_t *owner, const float *values, const double *weights, int64_t count,
             int64_t length, double *total),
       (ids, owner, values, weights, count, length, total))

EXPORT void qg_table_sums(const int64_t *ids, const int64_t *owner, const float *values, const double *weights,
                          int64_t count, int64_t length, double *total, int level) {
    AT_LEVEL(add, level)(ids, owner, values, weights, count, length, total);
}
