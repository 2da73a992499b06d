/* What Gram norms need of each sample, without its Gram matrices:
 *
 *     squared = Σ_ts (a_t·a_s)(b_t·b_s)      roots: Σ_t ‖a_t‖‖b_t‖, Σ_t ‖a_t‖, Σ_t ‖b_t‖
 *
 * Both matrices are symmetric, so only s ≥ t is computed: 4 rows (8 in vectors of 16 numbers) against 3 at a time, whose
 * products stay in registers. DEPTH numbers of an inner product are added up in float32, in 8 lanes or 16: a part of the
 * products and their sums in each lane, three or four sums of lanes. Everything after that is float64, so that the
 * rounding of an inner product does not grow with its length: a vocabulary's is no worse than a layer's.
 * `roundings` in _kernels/gram_rows.py counts what is rounded in float32.
 *
 * Checked by: tests/kernels/test_gram_rows.py, tests/attacks/test_conspiring_rows.py
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

#define COLUMNS 3
#define DEPTH 512

/* One factor of a sample: its positions begin `stride` numbers apart. */
struct factor {
    const float *values;
    int64_t stride, length;
};

typedef float eight __attribute__((vector_size(32)));
typedef float sixteen __attribute__((vector_size(64)));

#ifdef __clang__
#define PICK(PLACES, X, Y, ...) __builtin_shufflevector(X, Y, __VA_ARGS__)
#else
typedef int32_t places_8 __attribute__((vector_size(32)));
typedef int32_t places_16 __attribute__((vector_size(64)));
#define PICK(PLACES, X, Y, ...) __builtin_shuffle(X, Y, (PLACES){__VA_ARGS__})
#endif

/* The sums of four vectors' lanes. */
static ALWAYS_INLINE eight lane_sums_8(eight a, eight b, eight c, eight d) {
    const eight ab = PICK(places_8, a, b, 0, 8, 1, 9, 4, 12, 5, 13) + PICK(places_8, a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const eight cd = PICK(places_8, c, d, 0, 8, 1, 9, 4, 12, 5, 13) + PICK(places_8, c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    const eight all = PICK(places_8, ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + PICK(places_8, ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    return all + PICK(places_8, all, all, 4, 5, 6, 7, 4, 5, 6, 7);
}

/* The sums of four vectors' lanes, each fourth of the lanes apart. */
static ALWAYS_INLINE sixteen fourths(sixteen a, sixteen b, sixteen c, sixteen d) {
    const sixteen ab = PICK(places_16, a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                       PICK(places_16, a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    const sixteen cd = PICK(places_16, c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                       PICK(places_16, c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    return PICK(places_16, ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           PICK(places_16, ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

/* The sums of eight vectors' lanes, from the fourths of either half of them. */
static ALWAYS_INLINE sixteen lane_sums_16(sixteen low, sixteen high) {
    const sixteen halves = PICK(places_16, low, high, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                           PICK(places_16, low, high, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    return PICK(places_16, halves, halves, 0, 1, 2, 3, 8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11) +
           PICK(places_16, halves, halves, 4, 5, 6, 7, 12, 13, 14, 15, 4, 5, 6, 7, 12, 13, 14, 15);
}

#define GRAM(NAME) NAME##_8
#define WIDTH 8
#define ROWS 4
#define ROWS_OF(DO) DO(0) DO(1) DO(2) DO(3)
#define IN_REGISTER(X)
#define ADD_COLUMN(C)                                                        \
    {                                                                        \
        const eight both = lane_sums_8(s0##C, s1##C, s2##C, s3##C);          \
        sums_8 low;                                                          \
        memcpy(&low, &both, sizeof low);                                     \
        out[C] += __builtin_convertvector(low, wide_8);                      \
    }
#include "gram_tile.h"
#undef GRAM
#undef WIDTH
#undef ROWS
#undef ROWS_OF
#undef IN_REGISTER
#undef ADD_COLUMN

#if X86
#define GRAM(NAME) NAME##_16
#define WIDTH 16
#define ROWS 8
#define ROWS_OF(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define IN_REGISTER(X) __asm__("" : "+v"(X)) /* gcc would rather read it again for every product than keep it */
#define ADD_COLUMN(C)                                                                                            \
    {                                                                                                            \
        const sixteen all =                                                                                      \
            lane_sums_16(fourths(s0##C, s1##C, s2##C, s3##C), fourths(s4##C, s5##C, s6##C, s7##C));              \
        sums_16 low;                                                                                             \
        memcpy(&low, &all, sizeof low);                                                                          \
        out[C] += __builtin_convertvector(low, wide_16);                                                         \
    }
#include "gram_tile.h"
#endif

#define SAMPLE(TARGET, NAME, WIDTH)                                                                              \
    TARGET static void sample_##NAME(const struct factor *a, const struct factor *b, int64_t positions,          \
                                     double lost, double *squared, double *roots) {                              \
        sample_body_##WIDTH(a, b, positions, lost, squared, roots);                                              \
    }

SAMPLE(, portable, 8)
#if X86
SAMPLE(WITH_AVX2, avx2, 8)
SAMPLE(WITH_AVX512, avx512, 16)
#endif

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
