/* Every sample's gradients of a normalisation's scale and shift, in one pass over its input and output gradient:
 *
 *     ∂γ[n] = Σ_t b_t ∘ (x_t·s_t + c_t)      ∂β[n] = Σ_t b_t
 *
 * where s_t is one over the deviation and c_t = −mean·s_t. Sums over positions are taken in their order in float32, the
 * precision of the gradients themselves; operations are the same at every level, so the bits are.
 *
 * Checked by: tests/kernels/test_norm_rows.py
 */
#include "levels.h"

static ALWAYS_INLINE void sample_body(const float *x, const float *b, const float *mean, const float *scale,
                                      int64_t positions, int64_t length, float *restrict of_scale,
                                      float *restrict of_shift) {
    for (int64_t j = 0; j < length; j++) of_scale[j] = of_shift[j] = 0;
    for (int64_t t = 0; t < positions; t++) {
        const float s = scale[t], c = -mean[t] * s;
        const float *restrict at = x + t * length, *restrict back = b + t * length;
        for (int64_t j = 0; j < length; j++) {
            of_scale[j] += back[j] * (at[j] * s + c);
            of_shift[j] += back[j];
        }
    }
}

LEVELS(sample,
       (const float *x, const float *b, const float *mean, const float *scale, int64_t positions, int64_t length,
        float *of_scale, float *of_shift),
       (x, b, mean, scale, positions, length, of_scale, of_shift))

/* x and b [n, positions, length], the statistics [n, positions], all contiguous; the sums [n, length]. */
EXPORT void qg_norm_rows(const float *x, const float *b, const float *mean, const float *scale, int64_t samples,
                         int64_t positions, int64_t length, float *of_scale, float *of_shift, int level, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (samples > 1 && samples * positions * length > 20000)
    for (int64_t i = 0; i < samples; i++) {
        const int64_t first = i * positions;
        AT_LEVEL(sample, level)
        (x + first * length, b + first * length, mean + first, scale + first, positions, length, of_scale + i * length,
         of_shift + i * length);
    }
}
