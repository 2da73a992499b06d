/* What Gram norms need of each sample, without its Gram matrices:
 *
 *     squared = Σ_ts (a_t·a_s)(b_t·b_s)      roots: Σ_t ‖a_t‖‖b_t‖, Σ_t ‖a_t‖, Σ_t ‖b_t‖
 *
 * Both matrices are symmetric, so only s ≥ t is computed: 4 rows against 3 at a time, whose 12 products stay in
 * registers. DEPTH numbers of an inner product are added up in float32, in eight lanes: DEPTH/8 products and their sums
 * in each lane, three sums of lanes. Everything after that is float64, so that the rounding of an inner product does not
 * grow with its length: a vocabulary's is no worse than a layer's. kernels.gram_rows counts the roundings.
 */
#include <math.h>
#include <string.h>

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
#define DEPTH 512

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

/* The sums of four vectors' lanes, added to `sums`. */
static ALWAYS_INLINE void add_lanes(wide *sums, lanes a, lanes b, lanes c, lanes d) {
    const lanes ab = PICK(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + PICK(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const lanes cd = PICK(c, d, 0, 8, 1, 9, 4, 12, 5, 13) + PICK(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    const lanes all = PICK(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + PICK(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    const lanes both = all + PICK(all, all, 4, 5, 6, 7, 4, 5, 6, 7);
    four low;
    memcpy(&low, &both, sizeof low);
    *sums += __builtin_convertvector(low, wide);
}

/* Inner products of four positions with three, of one column in each vector: of `length` numbers from `start` on. */
static ALWAYS_INLINE void products(const struct factor *f, const int64_t *rows, const int64_t *columns, int64_t start,
                                   int64_t length, wide out[COLUMNS]) {
    const float *values = f->values + start;
    const float *r0 = values + rows[0] * f->stride, *r1 = values + rows[1] * f->stride;
    const float *r2 = values + rows[2] * f->stride, *r3 = values + rows[3] * f->stride;
    const float *c0 = values + columns[0] * f->stride, *c1 = values + columns[1] * f->stride;
    const float *c2 = values + columns[2] * f->stride;
    lanes s00 = {0}, s01 = {0}, s02 = {0}, s10 = {0}, s11 = {0}, s12 = {0};
    lanes s20 = {0}, s21 = {0}, s22 = {0}, s30 = {0}, s31 = {0}, s32 = {0};
    int64_t j = 0;
    for (; j + WIDTH <= length; j += WIDTH) {
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
    if (j < length) {
        const size_t rest = (size_t)(length - j) * sizeof(float);
        lanes x0 = {0}, x1 = {0}, x2 = {0}, y0 = {0}, y1 = {0}, y2 = {0}, y3 = {0};
        memcpy(&x0, c0 + j, rest), memcpy(&x1, c1 + j, rest), memcpy(&x2, c2 + j, rest);
        memcpy(&y0, r0 + j, rest), memcpy(&y1, r1 + j, rest), memcpy(&y2, r2 + j, rest), memcpy(&y3, r3 + j, rest);
        s00 += y0 * x0, s01 += y0 * x1, s02 += y0 * x2, s10 += y1 * x0, s11 += y1 * x1, s12 += y1 * x2;
        s20 += y2 * x0, s21 += y2 * x1, s22 += y2 * x2, s30 += y3 * x0, s31 += y3 * x1, s32 += y3 * x2;
    }
    add_lanes(out + 0, s00, s10, s20, s30);
    add_lanes(out + 1, s01, s11, s21, s31);
    add_lanes(out + 2, s02, s12, s22, s32);
}

/* The same of whole positions, DEPTH numbers at a time. */
static ALWAYS_INLINE void whole_products(const struct factor *f, const int64_t *rows, const int64_t *columns,
                                         wide out[COLUMNS]) {
    for (int64_t c = 0; c < COLUMNS; c++) out[c] = (wide){0};
    for (int64_t start = 0; start < f->length; start += DEPTH)
        products(f, rows, columns, start, f->length - start < DEPTH ? f->length - start : DEPTH, out);
}

static ALWAYS_INLINE void sample_body(const struct factor *a, const struct factor *b, int64_t positions, double lost,
                                      double *squared, double *roots) {
    wide beside = {0};
    double on = 0, both = 0, first = 0, second = 0;
    for (int64_t y = 0; y < positions; y += ROWS) {
        int64_t rows[ROWS], columns[COLUMNS];
        for (int64_t r = 0; r < ROWS; r++) rows[r] = y + r < positions ? y + r : positions - 1;
        for (int64_t z = y; z < positions; z += COLUMNS) {
            wide of_a[COLUMNS], of_b[COLUMNS];
            for (int64_t c = 0; c < COLUMNS; c++) columns[c] = z + c < positions ? z + c : positions - 1;
            whole_products(a, rows, columns, of_a);
            whole_products(b, rows, columns, of_b);
            if (z >= y + ROWS && y + ROWS <= positions && z + COLUMNS <= positions) {
                for (int64_t c = 0; c < COLUMNS; c++) beside += of_a[c] * of_b[c];
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
EXPORT void qg_gram_sums(const struct factor *a, int64_t a_apart, const struct factor *b, int64_t b_apart, int64_t samples,
                    int64_t positions, double lost, double *squared, double *roots, int level, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (samples > 1)
    for (int64_t i = 0; i < samples; i++) {
        const struct factor mine = {a->values + i * a_apart, a->stride, a->length};
        const struct factor theirs = {b->values + i * b_apart, b->stride, b->length};
        AT_LEVEL(sample, level)(&mine, &theirs, positions, lost, squared + i, roots + 3 * i);
    }
}
