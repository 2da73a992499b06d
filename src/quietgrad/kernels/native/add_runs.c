/* Sums of float32 runs in float64, in one pass over all of them: the outer sum of quietgrad.gradients.sums.
 *
 * The runs of a coordinate are added in their order, as the reference adds them, so the bits are the reference's.
 */
#include "levels.h"

#define PART 4096

static ALWAYS_INLINE void runs_body(const float *parts, int64_t runs, int64_t apart, int64_t count, int begun,
                                    double *restrict out) {
    if (!begun)
        for (int64_t i = 0; i < count; i++) out[i] = (double)parts[i];
    for (int64_t run = begun ? 0 : 1; run < runs; run++)
        for (int64_t i = 0; i < count; i++) out[i] += (double)parts[run * apart + i];
}

LEVELS(runs, (const float *parts, int64_t runs, int64_t apart, int64_t count, int begun, double *out),
       (parts, runs, apart, count, begun, out))

/* out = Σ_run parts[run], or out + that sum if it has `begun`; `parts` holds `runs` arrays of `count` numbers. Some
 * thousand coordinates at a time, which stay in the nearest cache from one run to the next. */
EXPORT void qg_add_runs(const float *parts, int64_t runs, int64_t count, int begun, double *out, int level,
                        int threads) {
    const int64_t pieces = (count + PART - 1) / PART;
#pragma omp parallel for schedule(static) num_threads(threads) if (pieces > 8)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t start = piece * PART, size = count - start < PART ? count - start : PART;
        AT_LEVEL(runs, level)(parts + start, runs, count, size, begun, out + start);
    }
}
