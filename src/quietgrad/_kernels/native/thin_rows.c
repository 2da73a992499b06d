/* Products of many rows with a matrix of few columns, and rows to which such products are added.
 *
 * Every row is worked out alone and in the order of its terms, so that its bits do not depend on the rows beside it, nor
 * on the level. TALL rows are taken at a time, because each sum waits for its last addition.
 *
 * Checked by: tests/kernels/test_thin_rows.py
 */
#include "levels.h"

#define WIDEST 16 /* columns of the matrix: one vector of AVX-512 */
#define TALL 4
#define TILE 64 /* columns of a row that stay in registers while the products are added */

typedef float few __attribute__((vector_size(4 * WIDEST)));
typedef float few_any __attribute__((vector_size(4 * WIDEST), aligned(4), may_alias));

static ALWAYS_INLINE void times_rows(const float *restrict rows, int64_t apart, int64_t tall, int64_t length,
                                     const float *restrict matrix, int64_t width, float *restrict out) {
    few sums[TALL] = {{0}};
    for (int64_t k = 0; k < length; k++) {
        const few column = *(const few_any *)(matrix + WIDEST * k);
        for (int64_t r = 0; r < tall; r++) sums[r] += rows[r * apart + k] * column;
    }
    for (int64_t r = 0; r < tall; r++)
        for (int64_t j = 0; j < width; j++) out[r * width + j] = sums[r][j];
}

static ALWAYS_INLINE void times_body(const float *rows, int64_t apart, int64_t count, int64_t length,
                                     const float *matrix, int64_t width, float *out) {
    int64_t i = 0;
    for (; i + TALL <= count; i += TALL)
        times_rows(rows + i * apart, apart, TALL, length, matrix, width, out + i * width);
    for (; i < count; i++) times_rows(rows + i * apart, apart, 1, length, matrix, width, out + i * width);
}

LEVELS(times, (const float *rows, int64_t apart, int64_t count, int64_t length, const float *matrix, int64_t width,
               float *out),
       (rows, apart, count, length, matrix, width, out))

/* rows·matrix of rows that begin `apart` numbers from each other; the matrix is [length][WIDEST], zeros after `width`. */
EXPORT void qg_row_times(const float *rows, int64_t apart, int64_t count, int64_t length, const float *matrix,
                         int64_t width, float *out, int level, int threads) {
    const int64_t part = (count + threads - 1) / threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (count * length > 20000)
    for (int64_t start = 0; start < count; start += part)
        AT_LEVEL(times, level)
        (rows + start * apart, apart, count - start < part ? count - start : part, length, matrix, width,
         out + start * width);
}

static ALWAYS_INLINE void lift_columns(const float *restrict row, const float *restrict thin,
                                       const float *restrict lifted, int64_t width, int64_t length, float scale,
                                       int64_t columns, float *restrict out) {
    float sums[TILE];
    for (int64_t j = 0; j < columns; j++) sums[j] = scale * row[j];
    for (int64_t r = 0; r < width; r++)
        for (int64_t j = 0; j < columns; j++) sums[j] += thin[r] * lifted[r * length + j];
    for (int64_t j = 0; j < columns; j++) out[j] = sums[j];
}

static ALWAYS_INLINE void lift_body(const float *rows, int64_t apart, int64_t count, int64_t length, const float *thin,
                                    const float *lifted, int64_t width, float scale, float *out) {
    for (int64_t i = 0; i < count; i++, rows += apart, thin += width, out += length) {
        int64_t k = 0;
        for (; k + TILE <= length; k += TILE)
            lift_columns(rows + k, thin, lifted + k, width, length, scale, TILE, out + k);
        lift_columns(rows + k, thin, lifted + k, width, length, scale, length - k, out + k);
    }
}

LEVELS(lift, (const float *rows, int64_t apart, int64_t count, int64_t length, const float *thin, const float *lifted,
              int64_t width, float scale, float *out),
       (rows, apart, count, length, thin, lifted, width, scale, out))

/* scale·rows + thin·lifted, of rows that begin `apart` numbers from each other; lifted is [width][length]. */
EXPORT void qg_row_lifts(const float *rows, int64_t apart, int64_t count, int64_t length, const float *thin,
                         const float *lifted, int64_t width, float scale, float *out, int level, int threads) {
    const int64_t part = (count + threads - 1) / threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (count * length > 20000)
    for (int64_t start = 0; start < count; start += part)
        AT_LEVEL(lift, level)
        (rows + start * apart, apart, count - start < part ? count - start : part, length, thin + start * width, lifted,
         width, scale, out + start * length);
}
