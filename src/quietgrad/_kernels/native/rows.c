/* Rows that are formed, and small products b aᵀ: each one's squared norm, and their weighted sum, in float64 in one pass.
 *
 * float64 holds the square of a float32 exactly, and products with a weight lose nothing that float32 would have kept;
 * nothing overflows or is flushed to zero. Operations are the same at every level, so the bits are. A norm is added up
 * in LANES sums, which fill the vectors of every level; a weighted sum takes four rows at a time, in their order, so that
 * the result is read and written a fourth as often.
 *
 * Checked by: tests/kernels/test_rows.py
 */
#include "levels.h"

#define LANES 32
#define COLUMNS 2048 /* of a sum: they stay in the nearest cache while all rows are added */

static ALWAYS_INLINE void square_body(const float *restrict row, int64_t length, double *out) {
    double sums[LANES] = {0}, total = 0;
    int64_t j = 0;
    for (; j + LANES <= length; j += LANES)
        for (int64_t k = 0; k < LANES; k++) sums[k] += (double)row[j + k] * (double)row[j + k];
    for (; j < length; j++) total += (double)row[j] * (double)row[j];
    for (int64_t k = 0; k < LANES; k++) total += sums[k];
    *out = total;
}

LEVELS(square, (const float *row, int64_t length, double *out), (row, length, out))

/* The squared norms of n rows, which begin `apart` numbers from each other. */
EXPORT void qg_row_squares(const float *rows, int64_t apart, int64_t count, int64_t length, double *out, int level,
                           int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 1 && count * length > 20000)
    for (int64_t i = 0; i < count; i++) AT_LEVEL(square, level)(rows + i * apart, length, out + i);
}

/* out += Σ_i w_i·row_i, row by row, of which those of weight 0 are not read. */
static ALWAYS_INLINE void sum_body(const float *rows, int64_t apart, const double *weights, int64_t count, int64_t length,
                                   double *restrict out) {
    const float *row[4];
    double w[4];
    int64_t held = 0;
    for (int64_t j = 0; j < length; j++) out[j] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (weights[i] != 0) row[held] = rows + i * apart, w[held++] = weights[i];
        if (held == 4) {
            const float *restrict a = row[0], *restrict b = row[1], *restrict c = row[2], *restrict d = row[3];
            for (int64_t j = 0; j < length; j++)
                out[j] = (((out[j] + w[0] * (double)a[j]) + w[1] * (double)b[j]) + w[2] * (double)c[j]) +
                         w[3] * (double)d[j];
            held = 0;
        }
    }
    for (int64_t i = 0; i < held; i++)
        for (int64_t j = 0; j < length; j++) out[j] += w[i] * (double)row[i][j];
}

LEVELS(sum, (const float *rows, int64_t apart, const double *weights, int64_t count, int64_t length, double *out),
       (rows, apart, weights, count, length, out))

/* Σ_i w_i·row_i of n rows, which begin `apart` numbers from each other. */
EXPORT void qg_row_sums(const float *rows, int64_t apart, const double *weights, int64_t count, int64_t length,
                        double *out, int level, int threads) {
    const int64_t parts = (length + COLUMNS - 1) / COLUMNS;
    const int64_t size = parts < threads ? (length + threads - 1) / threads : COLUMNS;
#pragma omp parallel for schedule(static) num_threads(threads) if (count * length > 20000)
    for (int64_t start = 0; start < length; start += size)
        AT_LEVEL(sum, level)
        (rows + start, apart, weights, count, length - start < size ? length - start : size, out + start);
}

/* What a small block has of each record: the row b, times the row a where there is one. Rows begin `apart` numbers from
 * each other; `excess` is by what a squared norm is multiplied so that rounding leaves none below the truth. */
struct block {
    const float *a, *b;
    int64_t a_apart, b_apart, inputs, outputs;
    double excess;
};

/* out_i += Σ over blocks of ‖b_i‖²‖a_i‖². The weight and the bias of a layer share b, whose norms are then taken once. */
static ALWAYS_INLINE void norms_body(const struct block *blocks, int64_t count, int64_t samples, double *out) {
    for (int64_t i = 0; i < samples; i++) {
        double total = 0, b = 0, a;
        for (int64_t k = 0; k < count; k++) {
            const struct block *block = blocks + k, *last = block - (k > 0);
            if (k == 0 || block->b != last->b || block->b_apart != last->b_apart || block->outputs != last->outputs)
                square_body(block->b + i * block->b_apart, block->outputs, &b);
            a = 1;
            if (block->a) square_body(block->a + i * block->a_apart, block->inputs, &a);
            total += block->excess * (a * b);
        }
        out[i] = total;
    }
}

LEVELS(norms, (const struct block *blocks, int64_t count, int64_t samples, double *out), (blocks, count, samples, out))

EXPORT void qg_block_norms(const struct block *blocks, int64_t count, int64_t samples, double *out, int level) {
    AT_LEVEL(norms, level)(blocks, count, samples, out);
}

/* out = Σ_i w_i b_i a_iᵀ, row by row in their order; one of weight 0 is not read. */
static ALWAYS_INLINE void products_body(const struct block *block, const double *weights, int64_t samples,
                                        double *restrict out) {
    const int64_t inputs = block->inputs, outputs = block->outputs;
    const float *row[4];
    int64_t places[4], held = 0;
    for (int64_t j = 0; j < outputs * inputs; j++) out[j] = 0;
    for (int64_t i = 0; i < samples; i++) {
        if (weights[i] != 0) row[held] = block->a + i * block->a_apart, places[held++] = i;
        if (held == 4) {
            const float *restrict a = row[0], *restrict b = row[1], *restrict c = row[2], *restrict d = row[3];
            for (int64_t o = 0; o < outputs; o++) {
                double w[4], *restrict to = out + o * inputs;
                for (int k = 0; k < 4; k++)
                    w[k] = weights[places[k]] * (double)block->b[places[k] * block->b_apart + o];
                for (int64_t j = 0; j < inputs; j++)
                    to[j] = (((to[j] + w[0] * (double)a[j]) + w[1] * (double)b[j]) + w[2] * (double)c[j]) +
                            w[3] * (double)d[j];
            }
            held = 0;
        }
    }
    for (int64_t k = 0; k < held; k++)
        for (int64_t o = 0; o < outputs; o++) {
            const double w = weights[places[k]] * (double)block->b[places[k] * block->b_apart + o];
            for (int64_t j = 0; j < inputs; j++) out[o * inputs + j] += w * (double)row[k][j];
        }
}

LEVELS(products, (const struct block *block, const double *weights, int64_t samples, double *out),
       (block, weights, samples, out))

/* The weighted sum of each block, one after the other. */
EXPORT void qg_block_sums(const struct block *blocks, int64_t count, int64_t samples, const double *weights, double *out,
                          int level) {
    for (int64_t k = 0; k < count; k++) {
        const struct block *block = blocks + k;
        if (block->a) AT_LEVEL(products, level)(block, weights, samples, out);
        else AT_LEVEL(sum, level)(block->b, block->b_apart, weights, samples, block->outputs, out);
        out += block->outputs * (block->a ? block->inputs : 1);
    }
}
