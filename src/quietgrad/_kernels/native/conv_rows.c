/* Every sample's own gradient of a convolution kernel, and its squared norm, without unfolding anything:
 *
 *     G[o][tap] = Σ_t b[o][t] · x[t + tap]
 *
 * The picture is copied once, padded and with its channels last, so that the taps of one row of the kernel lie side by
 * side. A tile of 4 outputs and 24 taps (8 and 48 in vectors of 16 numbers) stays in registers while the positions pass
 * by, a few rows of the picture at a time, which stay in the nearest cache. The norm is that of the float32 numbers that
 * are kept: their squares are exact in float64, where they are added, so the caller's slack for float64 sums covers it.
 * With AVX-512, a million numbers and more are written past the caches, and squared before they leave.
 *
 * Checked by: tests/kernels/test_conv_rows.py
 */
#include <stdlib.h>
#include <string.h>

#include "levels.h"

#if X86
#include <immintrin.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

/* A product and its sum may round once instead of twice: the norm is of what is kept, rounded once or twice. */
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define VECTORS 3
#define STREAMED_FROM (1 << 20) /* numbers of gradients that no cache holds until they are summed */
#define NEAREST (3 << 13) /* bytes of the picture that pass by at a time */

typedef float eight __attribute__((vector_size(32)));
typedef float eight_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef double eight_wide __attribute__((vector_size(64)));

/* How a kernel moves; strides in numbers of the input, samples, images, channels, rows and columns, and those of the
 * output gradient (`back`). */
struct movement {
    int64_t images, channels, height, width, outputs, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2], dilation[2], strides[5], back[5];
};

/* Where one vector of taps lies: in the padded picture, from a position on, and in the gradient of an output. */
struct taps {
    int64_t offset, place, count;
};

struct plan {
    struct movement m;
    struct taps *vectors;
    int64_t count, taps, wide_height, wide_width, rows;
    int streams; /* whether gradients go past the caches, which they would only pass through */
};

/* Taps that lie side by side in the picture: those of a row of the kernel, or of one of its pixels where it is dilated. */
static int64_t run_of_taps(const struct movement *m) {
    return m->dilation[1] == 1 ? m->kernel[1] * m->channels : m->channels;
}

static void lay_out(struct plan *p, int64_t width) {
    const struct movement *m = &p->m;
    const int64_t runs = m->dilation[1] == 1 ? 1 : m->kernel[1], length = run_of_taps(m);
    int64_t found = 0;
    for (int64_t y = 0; y < m->kernel[0]; y++)
        for (int64_t x = 0; x < runs; x++)
            for (int64_t j = 0; j < length; j += width)
                p->vectors[found++] = (struct taps){
                    (y * m->dilation[0] * p->wide_width + x * m->dilation[1]) * m->channels + j,
                    (y * runs + x) * length + j,
                    length - j < width ? length - j : width,
                };
    while (found % VECTORS) p->vectors[found] = p->vectors[found - 1], p->vectors[found++].count = 0;
    p->count = found;
}

#ifdef __clang__
#define PICK(X, Y, ...) __builtin_shufflevector(X, Y, __VA_ARGS__)
#else
typedef int32_t eight_places __attribute__((vector_size(32)));
#define PICK(X, Y, ...) __builtin_shuffle(X, Y, (eight_places){__VA_ARGS__})
#endif

/* to[x·apart + c] = from[c·channel + x] for eight channels and eight pixels. */
static ALWAYS_INLINE void turn(const float *from, int64_t channel, float *to, int64_t apart) {
    eight lows[4], highs[4], half[2][4];
    for (int64_t c = 0; c < 4; c++) {
        const eight a = *(const eight_any *)(from + 2 * c * channel);
        const eight b = *(const eight_any *)(from + (2 * c + 1) * channel);
        lows[c] = PICK(a, b, 0, 8, 1, 9, 4, 12, 5, 13), highs[c] = PICK(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int64_t c = 0; c < 2; c++) {
        half[c][0] = PICK(lows[2 * c], lows[2 * c + 1], 0, 1, 8, 9, 4, 5, 12, 13);
        half[c][1] = PICK(lows[2 * c], lows[2 * c + 1], 2, 3, 10, 11, 6, 7, 14, 15);
        half[c][2] = PICK(highs[2 * c], highs[2 * c + 1], 0, 1, 8, 9, 4, 5, 12, 13);
        half[c][3] = PICK(highs[2 * c], highs[2 * c + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int64_t x = 0; x < 4; x++) {
        *(eight_any *)(to + x * apart) = PICK(half[0][x], half[1][x], 0, 1, 2, 3, 8, 9, 10, 11);
        *(eight_any *)(to + (x + 4) * apart) = PICK(half[0][x], half[1][x], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* One image into the padded picture, channels last; the padding is zero already. */
static ALWAYS_INLINE void copy_image(const struct plan *p, const float *image, float *picture) {
    const struct movement *m = &p->m;
    const int64_t channel = m->strides[2], column = m->strides[4];
    for (int64_t y = 0; y < m->height; y++) {
        const float *from = image + y * m->strides[3];
        float *to = picture + ((y + m->padding[0]) * p->wide_width + m->padding[1]) * m->channels;
        for (int64_t c = 0; c < m->channels; c += 8) {
            const int64_t some = m->channels - c < 8 ? m->channels - c : 8;
            if (some == 8 && column == 1 && m->width >= 8)
                /* Eight pixels at a time; the last eight overlap those before them. */
                for (int64_t x = 0; x < m->width; x += 8) {
                    const int64_t at = x + 8 <= m->width ? x : m->width - 8;
                    turn(from + c * channel + at, channel, to + at * m->channels + c, m->channels);
                }
            else if (some == 8)
                for (int64_t x = 0; x < m->width; x++) {
                    const float *q = from + c * channel + x * column;
                    *(eight_any *)(to + x * m->channels + c) =
                        (eight){q[0],           q[channel],     q[2 * channel], q[3 * channel],
                                q[4 * channel], q[5 * channel], q[6 * channel], q[7 * channel]};
                }
            else
                for (int64_t x = 0; x < m->width; x++)
                    for (int64_t j = 0; j < some; j++)
                        to[x * m->channels + c + j] = from[(c + j) * channel + x * column];
        }
    }
}

static ALWAYS_INLINE double squared(const float *row, int64_t count) {
    eight_wide some[4] = {{0}};
    double rest = 0;
    int64_t i = 0;
    for (; i + 4 * 8 <= count; i += 4 * 8)
        for (int64_t j = 0; j < 4; j++) {
            const eight_wide x = __builtin_convertvector(*(const eight_any *)(row + i + 8 * j), eight_wide);
            some[j] += x * x;
        }
    for (; i < count; i++) rest += (double)row[i] * (double)row[i];
    for (int64_t j = 0; j < 8; j++) rest += (some[0][j] + some[1][j]) + (some[2][j] + some[3][j]);
    return rest;
}

#define CONV(NAME) NAME##_8
#define TARGETED
#define WIDTH 8
#define OUTPUTS 4
#define OUTPUTS_OF(DO) DO(0) DO(1) DO(2) DO(3)
#include "conv_sample.h"
#undef CONV
#undef TARGETED
#undef WIDTH
#undef OUTPUTS
#undef OUTPUTS_OF

#if X86
#define CONV(NAME) NAME##_16
#define STREAMED
#define TARGETED WITH_AVX512
#define WIDTH 16
#define OUTPUTS 8
#define OUTPUTS_OF(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#include "conv_sample.h"
#endif

#define SAMPLE(TARGET, NAME, WIDTH)                                                                              \
    TARGET static void sample_##NAME(const struct plan *p, const float *inputs, const float *backprops,          \
                                     float *picture, float *room, float *row, double *norm) {                    \
        sample_body_##WIDTH(p, inputs, backprops, picture, room, row, norm);                                     \
    }

SAMPLE(, portable, 8)
#if X86
SAMPLE(WITH_AVX2, avx2, 8)
SAMPLE(WITH_AVX512, avx512, 16)
#endif

/* `rows` [n, outputs, kernel rows, kernel columns, channels] and their squared norms; -1 without memory. */
EXPORT int qg_conv_grads(const struct movement *movement, const float *inputs, const float *backprops, int64_t samples,
                        float *rows, double *norms, int level, int threads) {
    const int64_t width = level == AVX512 ? 16 : 8;
    struct plan p = {.m = *movement};
    const struct movement *m = &p.m;
    p.taps = m->kernel[0] * m->kernel[1] * m->channels;
    p.wide_height = m->height + 2 * m->padding[0], p.wide_width = m->width + 2 * m->padding[1];
    const int64_t row_bytes = 4 * p.wide_width * m->channels * m->stride[0];
    const int64_t parts = (m->out_height * row_bytes + NEAREST - 1) / NEAREST;
    p.rows = parts < m->out_height ? (m->out_height + parts - 1) / parts : 1;
    const int64_t picture = (p.wide_height * p.wide_width * m->channels + 2 * width) / width * width;
    const int64_t vectors = m->kernel[0] * m->kernel[1] * (m->channels / width + 2) + VECTORS;
    const int64_t sums = (m->outputs + width / 2) * vectors;
    const int64_t place = (picture + sums * width + 15) / 16 * 16;
    p.streams = width == 16 && (uintptr_t)rows % 64 == 0 && run_of_taps(m) % 16 == 0 &&
                samples * m->outputs * p.taps >= STREAMED_FROM;
    p.vectors = malloc((size_t)vectors * sizeof *p.vectors);
    float *scratch = aligned_alloc(64, (size_t)(threads * place * 4));
    if (!p.vectors || !scratch) return free(p.vectors), free(scratch), -1;
    lay_out(&p, width);
    memset(scratch, 0, (size_t)(threads * place * 4));
#pragma omp parallel for schedule(static) num_threads(threads) if (samples > 1)
    for (int64_t i = 0; i < samples; i++) {
        float *mine = scratch + THREAD * place;
        AT_LEVEL(sample, level)
        (&p, inputs + i * m->strides[0], backprops + i * m->back[0], mine, mine + picture,
         rows + i * m->outputs * p.taps, norms + i);
    }
    free(p.vectors), free(scratch);
    return 0;
}
