/* What Gram norms need of each sample, without its Gram matrices:
 *
 *     squared = Σ_ts (a_t·a_s)(b_t·b_s)      roots: Σ_t ‖a_t‖‖b_t‖, Σ_t ‖a_t‖, Σ_t ‖b_t‖
 *
 * Both matrices are symmetric, so only s ≥ t is computed: 4 rows against 3 at a time, whose 12 products stay in
 * registers. An inner product is added up in float32, in eight lanes, which is no worse than one sum after the other;
 * everything after it is float64. So the bound of quietgrad.gradients.gram holds.
 */
#include <math.h>

#include "levels.h"

/* A product and its sum may round once instead of twice: the bound allows for both. */
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define ROWS 4
#define COLUMNS 3
#define WIDTH 8

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef float lanes_any __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t places __attribute__((vector_size(4 * WIDTH)));
typedef float four __attribute__((vector_size(16)));
typedef double wide __attribute__((vector_size(32)));

/* One factor of a sample: its positions begin `stride` numbers apart. */
struct factor {
    const float *values;
    int64_t stride, length;
};

#ifdef __clang__
#define PICK(X, Y, ...) __builtin_shufflevector(X, Y, __VA_ARGS__)
#else
#define PICK(X, Y, ...) __builtin_shuffle(X, Y, (places){__VA_ARGS__})
#endif

/* The sums of four vectors' lanes. */
static ALWAYS_INLINE four lane_sums(lanes a, lanes b, lanes c, lanes d) {
    const lanes ab = PICK(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + PICK(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const lanes cd = PICK(c, d, 0, 8, 1, 9, 4, 12, 5, 13) + PICK(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    const lanes all = PICK(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + PICK(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    return (four){all[0] + all[4], all[1] + all[5], all[2] + all[6], all[3] + all[7]};
}

/* Inner products of four positions with three: of one column in each vector. */
static ALWAYS_INLINE void products(const struct factor *f, const int64_t *rows, const int64_t *columns,
                                   four out[COLUMNS]) {
    const float *r0 = f->values + rows[0] * f->stride, *r1 = f->values + rows[1] * f->stride;
    const float *r2 = f->values + rows[2] * f->stride, *r3 = f->values + rows[3] * f->stride;
    const float *c0 = f->values + columns[0] * f->stride, *c1 = f->values + columns[1] * f->stride;
    const float *c2 = f->values + columns[2] * f->stride;
    lanes s00 = {0}, s01 = {0}, s02 = {0}, s10 = {0}, s11 = {0}, s12 = {0};
    lanes s20 = {0}, s21 = {0}, s22 = {0}, s30 = {0}, s31 = {0}, s32 = {0};
    for (int64_t j = 0; j < f->length; j += WIDTH) {
        const lanes x0 = *(const lanes_any *)(c0 + j), x1 = *(const lanes_any *)(c1 + j);
        const lanes x2 = *(const lanes_any *)(c2 + j);
        const lanes y0 = *(const lanes_any *)(r0 + j);
        s00 += y0 * x0, s01 += y0 * x1, s02 += y0 * x2;
        const lanes y1 = *(const lanes_any *)(r1 + j);
        s10 += y1 * x0, s11 += y1 * x1, s12 += y1 * x2;
        const lanes y2 = *(const lanes_any *)(r2 + j);
        s20 += y2 * x0, s21 += y2 * x1, s22 += y2 * x2;
        const lanes y3 = *(const lanes_any *)(r3 + j);
        s30 += y3 * x0, s31 += y3 * x1, s32 += y3 * x2;
    }
    out[0] = lane_sums(s00, s10, s20, s30);
    out[1] = lane_sums(s01, s11, s21, s31);
    out[2] = lane_sums(s02, s12, s22, s32);
}

static ALWAYS_INLINE void sample_body(const struct factor *a, const struct factor *b, int64_t positions, double lost,
                                      double *squared, double *roots) {
    wide beside = {0};
    double on = 0, both = 0, first = 0, second = 0;
    for (int64_t y = 0; y < positions; y += ROWS) {
        int64_t rows[ROWS], columns[COLUMNS];
        for (int64_t r = 0; r < ROWS; r++) rows[r] = y + r < positions ? y + r : positions - 1;
        for (int64_t z = y; z < positions; z += COLUMNS) {
            four of_a[COLUMNS], of_b[COLUMNS];
            for (int64_t c = 0; c < COLUMNS; c++) columns[c] = z + c < positions ? z + c : positions - 1;
            products(a, rows, columns, of_a);
            products(b, rows, columns, of_b);
            if (z >= y + ROWS && y + ROWS <= positions && z + COLUMNS <= positions) {
                for (int64_t c = 0; c < COLUMNS; c++)
                    beside += __builtin_convertvector(of_a[c], wide) * __builtin_convertvector(of_b[c], wide);
                continue;
            }
            for (int64_t c = 0; c < COLUMNS && z + c < positions; c++)
                for (int64_t r = 0; r < ROWS && y + r <= z + c; r++) {
                    const double p = of_a[c][r], q = of_b[c][r];
                    on += (y + r == z + c ? 1.0 : 2.0) * (p * q);
                    if (y + r < z + c) continue;
                    const double x = sqrt((p > 0 ? p : 0) + lost), w = sqrt((q > 0 ? q : 0) + lost);
                    both += x * w, first += x, second += w;
                }
        }
    }
    *squared = on + 2 * ((beside[0] + beside[1]) + (beside[2] + beside[3]));
    roots[0] = both, roots[1] = first, roots[2] = second;
}

LEVELS(sample,
       (const struct factor *a, const struct factor *b, int64_t positions, double lost, double *squared, double *roots),
       (a, b, positions, lost, squared, roots))

/* Of n samples, which begin `apart` numbers from each other; `roots` [n, 3], each position's square `lost` larger. */
EXPORT void qg_gram_rows(const struct factor *a, int64_t a_apart, const struct factor *b, int64_t b_apart, int64_t samples,
                    int64_t positions, double lost, double *squared, double *roots, int level, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (samples > 1)
    for (int64_t i = 0; i < samples; i++) {
        const struct factor mine = {a->values + i * a_apart, a->stride, a->length};
        const struct factor theirs = {b->values + i * b_apart, b->stride, b->length};
        AT_LEVEL(sample, level)(&mine, &theirs, positions, lost, squared + i, roots + 3 * i);
    }
}
