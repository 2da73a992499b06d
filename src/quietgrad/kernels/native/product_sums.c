/* Weighted sums of products, Σ_k w_k·b_k a_kᵀ, for gradients that are never formed:
 *
 *     out[o][i] = Σ_runs (double) Σ_{k in run} (w_k·b_k[o])·a_k[i]         the inner sum in float32, the outer in float64
 *
 * Each inner sum is taken in the order of k, whatever the threads: what a run gives depends on the run alone. Rows of
 * weight 0 are written as zeros when they are packed, both of them, so that what is not a number there is not read.
 * Factors are packed once, in panels of a few columns; then a block of the result is kept in float64 in the cache while
 * all runs are added to it, so that no product of a run is ever written to memory.
 */
#include <string.h>

#include "levels.h"

/* A product and its sum may round once instead of twice: the bound allows for both. */
#ifdef __clang__
#pragma clang fp contract(fast)
#define UNROLLED _Pragma("clang loop unroll_count(4)")
#else
#pragma GCC optimize("fp-contract=fast")
#define UNROLLED _Pragma("GCC unroll 4")
#endif

#define WIDTH 8
#define TALL 6
#define WIDE (2 * WIDTH)
#define BLOCK_TALL 16
#define BLOCK_WIDE 4
#define ROW (BLOCK_WIDE * WIDE)

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef float lanes_any __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef float half __attribute__((vector_size(2 * WIDTH)));
typedef double wide __attribute__((vector_size(4 * WIDTH)));
typedef double wide_any __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));

/* One factor: rows of `length` numbers; those of a sample begin `stride` apart, those of the next one `apart`. */
struct rows {
    const float *values;
    int64_t apart, stride, length;
};

/* One row's numbers for some panels of `size` columns, which begin `far` numbers from each other, zeros beyond the last
 * column; a panel before the last one is whole. `more` rows of the same panels are written after this one, so that it
 * may be written as a whole vector, over the beginning of theirs. */
static ALWAYS_INLINE void pack_row(const float *restrict row, float w, int64_t there, int64_t panels, int64_t size,
                                   int64_t far, int more, float *restrict out) {
    if (size < WIDTH && more)
        for (; panels && there >= WIDTH; panels--, there -= size, row += size, out += far)
            *(lanes_any *)out = *(const lanes_any *)row * w;
    for (; panels > 1 || (panels == 1 && there >= size); panels--, there -= size, row += size, out += far)
        for (int64_t j = 0; j < size; j++) out[j] = row[j] * w;
    if (panels)
        for (int64_t j = 0; j < size; j++) out[j] = j < there ? row[j] * w : 0.0f;
}

/* Rows [from, to) of a factor as panels of [row][size], the first one of them at `out`. Their weight is 1 for the factor
 * that is not scaled: a product with it does not round. */
static ALWAYS_INLINE void pack_body(const struct rows *f, const float *weights, int64_t positions, int scaled,
                                    int64_t from, int64_t to, int64_t panel, int64_t panels, int64_t size,
                                    float *restrict out) {
    const int64_t column = panel * size, far = (to - from) * size;
    int64_t sample = from / positions, position = from % positions;
    for (int64_t k = from; k < to; k++, out += size) {
        const float *row = f->values + sample * f->apart + position * f->stride + column;
        const float w = weights[sample];
        if (w != 0.0f)
            pack_row(row, scaled ? w : 1.0f, f->length - column, panels, size, far, k + 1 < to, out);
        else
            for (int64_t p = 0; p < panels; p++) memset(out + p * far, 0, (size_t)size * sizeof *out);
        if (++position == positions) position = 0, sample++;
    }
}

static ALWAYS_INLINE void pack_tall_body(const struct rows *f, const float *weights, int64_t positions, int scaled,
                                         int64_t from, int64_t to, int64_t panel, int64_t panels, float *out) {
    pack_body(f, weights, positions, scaled, from, to, panel, panels, TALL, out);
}

static ALWAYS_INLINE void pack_wide_body(const struct rows *f, const float *weights, int64_t positions, int scaled,
                                         int64_t from, int64_t to, int64_t panel, int64_t panels, float *out) {
    pack_body(f, weights, positions, scaled, from, to, panel, panels, WIDE, out);
}

LEVELS(pack_tall,
       (const struct rows *f, const float *weights, int64_t positions, int scaled, int64_t from, int64_t to,
        int64_t panel, int64_t panels, float *out),
       (f, weights, positions, scaled, from, to, panel, panels, out))

LEVELS(pack_wide,
       (const struct rows *f, const float *weights, int64_t positions, int scaled, int64_t from, int64_t to,
        int64_t panel, int64_t panels, float *out),
       (f, weights, positions, scaled, from, to, panel, panels, out))

static ALWAYS_INLINE void add_row(double *out, const lanes *left, const lanes *right, int begun) {
    half quarters[4];
    memcpy(quarters, left, sizeof *left);
    memcpy(quarters + 2, right, sizeof *right);
    for (int j = 0; j < 4; j++) {
        const wide x = __builtin_convertvector(quarters[j], wide);
        if (begun)
            *(wide_any *)(out + 4 * j) += x;
        else
            *(wide_any *)(out + 4 * j) = x;
    }
}

#define STEP(R)                               \
    {                                         \
        const float x = b[R];                 \
        s##R##0 += x * y0, s##R##1 += x * y1; \
    }

/* A run's sum of one tile, [k][TALL] by [k][WIDE], added to a tile of `out`, whose rows are a block's. */
static ALWAYS_INLINE void tile_body(const float *restrict b, const float *restrict a, int64_t count, int begun,
                                    double *out) {
    lanes s00 = {0}, s01 = {0}, s10 = {0}, s11 = {0}, s20 = {0}, s21 = {0};
    lanes s30 = {0}, s31 = {0}, s40 = {0}, s41 = {0}, s50 = {0}, s51 = {0};
    UNROLLED
    for (int64_t k = 0; k < count; k++, b += TALL, a += WIDE) {
        __builtin_prefetch(a + 16 * WIDE);
        __builtin_prefetch(b + 32 * TALL);
        const lanes y0 = *(const lanes_any *)a, y1 = *(const lanes_any *)(a + WIDTH);
        STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5)
    }
    add_row(out, &s00, &s01, begun);
    add_row(out + ROW, &s10, &s11, begun);
    add_row(out + 2 * ROW, &s20, &s21, begun);
    add_row(out + 3 * ROW, &s30, &s31, begun);
    add_row(out + 4 * ROW, &s40, &s41, begun);
    add_row(out + 5 * ROW, &s50, &s51, begun);
}

LEVELS(tile, (const float *b, const float *a, int64_t count, int begun, double *out), (b, a, count, begun, out))

/* All tiles of a block for one run: panels of `count` rows, one after the other. */
static void block(const float *b, const float *a, int64_t tall, int64_t across, int64_t count, int begun, double *out,
                  int level) {
    for (int64_t x = 0; x < across; x++)
        for (int64_t y = 0; y < tall; y++)
            AT_LEVEL(tile, level)(b + y * count * TALL, a + x * count * WIDE, count, begun,
                                  out + y * TALL * ROW + x * WIDE);
}

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t parts(int64_t x, int64_t of) { return (x + of - 1) / of; }

/* Numbers of scratch that the packed factors take. */
EXPORT int64_t qg_packed_size(int64_t outputs, int64_t inputs, int64_t total) {
    return total * (parts(outputs, TALL) * TALL + parts(inputs, WIDE) * WIDE);
}

/* out [outputs, inputs] in float64, of the runs [starts[r], starts[r + 1]) of all positions side by side; `scaled` says
 * which factor is multiplied by the weights: 0 the outputs', 1 the inputs'. */
EXPORT void qg_product_sums(const struct rows *b, const struct rows *a, const float *weights, int64_t positions,
                            int scaled, const int64_t *starts, int64_t runs, float *room, double *out, int level,
                            int threads) {
    const int64_t total = starts[runs], rows = b->length, columns = a->length;
    const int64_t tall = parts(rows, TALL), across = parts(columns, WIDE);
    float *of_b = room, *of_a = room + total * tall * TALL;
    const int64_t down = parts(tall, BLOCK_TALL), right = parts(across, BLOCK_WIDE);
#pragma omp parallel num_threads(threads) if (total * rows * columns > 100000)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < runs * down; i++) {
            const int64_t run = i / down, panel = i % down * BLOCK_TALL, from = starts[run], to = starts[run + 1];
            AT_LEVEL(pack_tall, level)(b, weights, positions, scaled == 0, from, to, panel,
                                       smaller(tall - panel, BLOCK_TALL),
                                       of_b + (from * tall + (to - from) * panel) * TALL);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < runs * right; i++) {
            const int64_t run = i / right, panel = i % right * BLOCK_WIDE, from = starts[run], to = starts[run + 1];
            AT_LEVEL(pack_wide, level)(a, weights, positions, scaled == 1, from, to, panel,
                                       smaller(across - panel, BLOCK_WIDE),
                                       of_a + (from * across + (to - from) * panel) * WIDE);
        }
        double kept[BLOCK_TALL * TALL * ROW] __attribute__((aligned(64)));
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < down * right; i++) {
            const int64_t y = i / right * BLOCK_TALL, x = i % right * BLOCK_WIDE;
            const int64_t high = smaller(tall - y, BLOCK_TALL), far = smaller(across - x, BLOCK_WIDE);
            for (int64_t run = 0; run < runs; run++) {
                const int64_t from = starts[run], count = starts[run + 1] - from;
                block(of_b + (from * tall + count * y) * TALL, of_a + (from * across + count * x) * WIDE, high, far,
                      count, run > 0, kept, level);
            }
            const int64_t last = smaller(rows, (y + high) * TALL), size = smaller(columns - x * WIDE, far * WIDE);
            for (int64_t r = y * TALL; r < last; r++)
                memcpy(out + r * columns + x * WIDE, kept + (r - y * TALL) * ROW, (size_t)size * sizeof *out);
        }
    }
}
