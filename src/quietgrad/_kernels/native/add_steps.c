/* What a release does to every coordinate: scale·(round(x/γ) + z), in one pass, as quietgrad._gradients.grid does it.
 *
 * Division, clamping, rounding to the nearest even and the product are the same float64 operations in the same order,
 * so the bits are the reference's. NaN stays NaN.
 *
 * Checked by: tests/kernels/test_integer_noise.py
 */
#include "levels.h"

enum { FLOAT32 = 0, FLOAT64 = 1, INT64 = 2 };

#define LARGEST 0x1p50
#define MAGIC 0x1.8p52 /* |q| ≤ 2⁵⁰: adding and taking it away again leaves the nearest whole number, ties to even */

static ALWAYS_INLINE double rounded(double x, double step) {
    double q = x / step;
    q = q < -LARGEST ? -LARGEST : q;
    q = q > LARGEST ? LARGEST : q;
    return (q + MAGIC) - MAGIC;
}

#define LOOP(IN, OUT, RESULT)                                                \
    for (int64_t i = 0; i < count; i++) {                                    \
        const double whole = rounded((double)((const IN *)values)[i], step); \
        const double sum = drawn ? whole + (double)drawn[i] : whole;         \
        ((OUT *)out)[i] = (OUT)(RESULT);                                     \
    }

static ALWAYS_INLINE void add_body(const void *values, int from, const int32_t *drawn, void *out, int to,
                                   int64_t count, double step, double scale) {
    if (from == FLOAT32 && to == FLOAT32) LOOP(float, float, sum * scale)
    else if (from == FLOAT32 && to == FLOAT64) LOOP(float, double, sum * scale)
    else if (from == FLOAT64 && to == FLOAT32) LOOP(double, float, sum * scale)
    else if (from == FLOAT64 && to == FLOAT64) LOOP(double, double, sum * scale)
    else if (from == FLOAT32) LOOP(float, int64_t, sum)
    else LOOP(double, int64_t, sum)
}

LEVELS(add,
       (const void *values, int from, const int32_t *drawn, void *out, int to, int64_t count, double step,
        double scale),
       (values, from, drawn, out, to, count, step, scale))

#define PART 16384

/* The same for many pieces, whose draws lie one after the other (none: `drawn` is NULL). */
EXPORT void qg_add_steps(const void *const *values, void *const *out, const int64_t *starts, const int32_t *from,
                         const int32_t *to, int64_t pieces, const int32_t *drawn, double step, double scale, int level,
                         int threads) {
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t count = starts[i + 1] - starts[i], parts = (count + PART - 1) / PART;
        const int64_t in = from[i] == FLOAT32 ? 4 : 8, wide = to[i] == FLOAT32 ? 4 : 8;
#pragma omp parallel for schedule(static) num_threads(threads) if (parts > 1)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t start = part * PART, size = count - start < PART ? count - start : PART;
            AT_LEVEL(add, level)
            ((const char *)values[i] + in * start, from[i], drawn ? drawn + starts[i] + start : (const int32_t *)0,
             (char *)out[i] + wide * start, to[i], size, step, scale);
        }
    }
}
