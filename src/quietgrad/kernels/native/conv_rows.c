/* Every sample's own gradient of a convolution kernel, and its squared norm, without unfolding anything:
 *
 *     G[o][tap] = Σ_t b[o][t] · x[t + tap]
 *
 * The picture is copied once, padded and with its channels last, so that the taps of one row of the kernel lie side by
 * side. A tile of 4 outputs and 24 taps stays in registers while the positions pass by, a few rows of the picture at a
 * time, which stay in the nearest cache. The norm is that of the float32 numbers that are kept: their squares are exact
 * in float64, where they are added, so the caller's slack for float64 sums covers it.
 */
#include <stdlib.h>
#include <string.h>

#include "levels.h"

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

/* A product and its sum may round once instead of twice: what is kept is what is normed, either way. */
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define OUTPUTS 4
#define VECTORS 3
#define WIDTH 8
#define NEAREST (1 << 14) /* bytes of the picture that pass by at a time */

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef float lanes_any __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef double wide __attribute__((vector_size(8 * WIDTH)));

/* How a kernel moves; the strides are those of the input, in numbers: samples, images, channels, rows, columns. */
struct movement {
    int64_t images, channels, height, width, outputs, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2], dilation[2], strides[5];
};

/* Where one vector of taps lies: in the padded picture, from a position on, and in the gradient of an output. */
struct taps {
    int64_t offset, place, count;
};

struct plan {
    struct movement m;
    struct taps *vectors;
    int64_t count, taps, wide_height, wide_width, rows;
};

static void lay_out(struct plan *p) {
    const struct movement *m = &p->m;
    const int64_t whole = m->dilation[1] == 1, runs = whole ? 1 : m->kernel[1];
    const int64_t length = whole ? m->kernel[1] * m->channels : m->channels;
    int64_t found = 0;
    for (int64_t y = 0; y < m->kernel[0]; y++)
        for (int64_t x = 0; x < runs; x++)
            for (int64_t j = 0; j < length; j += WIDTH)
                p->vectors[found++] = (struct taps){
                    (y * m->dilation[0] * p->wide_width + x * m->dilation[1]) * m->channels + j,
                    (y * runs + x) * length + j,
                    length - j < WIDTH ? length - j : WIDTH,
                };
    while (found % VECTORS) p->vectors[found] = p->vectors[found - 1], p->vectors[found++].count = 0;
    p->count = found;
}

/* One image into the padded picture, channels last; the padding is zero already. */
static ALWAYS_INLINE void copy_image(const struct plan *p, const float *image, float *picture) {
    const struct movement *m = &p->m;
    const int64_t channel = m->strides[2], column = m->strides[4];
    for (int64_t y = 0; y < m->height; y++) {
        const float *from = image + y * m->strides[3];
        float *to = picture + ((y + m->padding[0]) * p->wide_width + m->padding[1]) * m->channels;
        for (int64_t c = 0; c < m->channels; c += WIDTH) {
            const int64_t some = m->channels - c < WIDTH ? m->channels - c : WIDTH;
            if (some == WIDTH)
                for (int64_t x = 0; x < m->width; x++) {
                    const float *q = from + c * channel + x * column;
                    *(lanes_any *)(to + x * m->channels + c) =
                        (lanes){q[0],           q[channel],     q[2 * channel], q[3 * channel],
                                q[4 * channel], q[5 * channel], q[6 * channel], q[7 * channel]};
                }
            else
                for (int64_t x = 0; x < m->width; x++)
                    for (int64_t j = 0; j < some; j++)
                        to[x * m->channels + c + j] = from[(c + j) * channel + x * column];
        }
    }
}

/* sums[r][v] += Σ_positions b[r] · taps[v], over some rows of positions. */
static ALWAYS_INLINE void tile(const float *picture, const struct taps *v, const float *const b[OUTPUTS], int64_t rows,
                               int64_t columns, int64_t down, int64_t right, lanes *sums) {
    const float *at0 = picture + v[0].offset, *at1 = picture + v[1].offset, *at2 = picture + v[2].offset;
    const float *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
    lanes s00 = sums[0], s01 = sums[1], s02 = sums[2], s10 = sums[3], s11 = sums[4], s12 = sums[5];
    lanes s20 = sums[6], s21 = sums[7], s22 = sums[8], s30 = sums[9], s31 = sums[10], s32 = sums[11];
    for (int64_t y = 0; y < rows; y++, b0 += columns, b1 += columns, b2 += columns, b3 += columns) {
        const int64_t start = y * down;
        for (int64_t x = 0; x < columns; x++) {
            const int64_t here = start + x * right;
            const lanes x0 = *(const lanes_any *)(at0 + here), x1 = *(const lanes_any *)(at1 + here);
            const lanes x2 = *(const lanes_any *)(at2 + here);
            s00 += x0 * b0[x], s01 += x1 * b0[x], s02 += x2 * b0[x];
            s10 += x0 * b1[x], s11 += x1 * b1[x], s12 += x2 * b1[x];
            s20 += x0 * b2[x], s21 += x1 * b2[x], s22 += x2 * b2[x];
            s30 += x0 * b3[x], s31 += x1 * b3[x], s32 += x2 * b3[x];
        }
    }
    sums[0] = s00, sums[1] = s01, sums[2] = s02, sums[3] = s10, sums[4] = s11, sums[5] = s12;
    sums[6] = s20, sums[7] = s21, sums[8] = s22, sums[9] = s30, sums[10] = s31, sums[11] = s32;
}

/* One image's part of a sample's gradient. */
static ALWAYS_INLINE void add_image(const struct plan *p, const float *picture, const float *backprops, lanes *sums) {
    const struct movement *m = &p->m;
    const int64_t positions = m->out_height * m->out_width;
    const int64_t down = m->stride[0] * p->wide_width * m->channels, right = m->stride[1] * m->channels;
    for (int64_t y = 0; y < m->out_height; y += p->rows) {
        const int64_t rows = m->out_height - y < p->rows ? m->out_height - y : p->rows;
        lanes *here = sums;
        for (int64_t o = 0; o < m->outputs; o += OUTPUTS) {
            const float *b[OUTPUTS];
            for (int64_t r = 0; r < OUTPUTS; r++)
                b[r] = backprops + (o + r < m->outputs ? o + r : o) * positions + y * m->out_width;
            for (int64_t v = 0; v < p->count; v += VECTORS, here += OUTPUTS * VECTORS)
                tile(picture + y * down, p->vectors + v, b, rows, m->out_width, down, right, here);
        }
    }
}

/* The sums into a sample's gradient. */
static void keep(const struct plan *p, const lanes *sums, float *row) {
    for (int64_t o = 0; o < p->m.outputs; o += OUTPUTS)
        for (int64_t v = 0; v < p->count; v += VECTORS, sums += OUTPUTS * VECTORS)
            for (int64_t r = 0; r < OUTPUTS && o + r < p->m.outputs; r++)
                for (int64_t j = 0; j < VECTORS; j++)
                    memcpy(row + (o + r) * p->taps + p->vectors[v + j].place, sums + r * VECTORS + j,
                           (size_t)(4 * p->vectors[v + j].count));
}

static ALWAYS_INLINE double squared(const float *row, int64_t count) {
    wide some[4] = {{0}};
    double rest = 0;
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (int64_t j = 0; j < 4; j++) {
            const wide x = __builtin_convertvector(*(const lanes_any *)(row + i + WIDTH * j), wide);
            some[j] += x * x;
        }
    for (; i < count; i++) rest += (double)row[i] * (double)row[i];
    for (int64_t j = 0; j < WIDTH; j++) rest += (some[0][j] + some[1][j]) + (some[2][j] + some[3][j]);
    return rest;
}

static ALWAYS_INLINE void sample_body(const struct plan *p, const float *inputs, const float *backprops, float *picture,
                                      lanes *sums, float *row, double *norm) {
    const struct movement *m = &p->m;
    memset(sums, 0, (size_t)((m->outputs + OUTPUTS - 1) / OUTPUTS * OUTPUTS * p->count) * sizeof *sums);
    for (int64_t i = 0; i < m->images; i++) {
        copy_image(p, inputs + i * m->strides[1], picture);
        add_image(p, picture, backprops + i * m->outputs * m->out_height * m->out_width, sums);
    }
    keep(p, sums, row);
    *norm = squared(row, m->outputs * p->taps);
}

LEVELS(sample,
       (const struct plan *p, const float *inputs, const float *backprops, float *picture, lanes *sums, float *row,
        double *norm),
       (p, inputs, backprops, picture, sums, row, norm))

/* `rows` [n, outputs, kernel rows, kernel columns, channels] and their squared norms; -1 without memory. Backprops are
 * contiguous [n, images, outputs, rows, columns]. */
EXPORT int qg_conv_rows(const struct movement *movement, const float *inputs, const float *backprops, int64_t samples,
                        float *rows, double *norms, int level, int threads) {
    struct plan p = {.m = *movement};
    const struct movement *m = &p.m;
    p.taps = m->kernel[0] * m->kernel[1] * m->channels;
    p.wide_height = m->height + 2 * m->padding[0], p.wide_width = m->width + 2 * m->padding[1];
    const int64_t row_bytes = 4 * p.wide_width * m->channels * m->stride[0];
    const int64_t parts = (m->out_height * row_bytes + NEAREST - 1) / NEAREST;
    p.rows = parts < m->out_height ? (m->out_height + parts - 1) / parts : 1;
    const int64_t picture = (p.wide_height * p.wide_width * m->channels + 2 * WIDTH) / WIDTH * WIDTH;
    const int64_t vectors = m->kernel[0] * m->kernel[1] * (m->channels / WIDTH + 2) + VECTORS;
    const int64_t sums = (m->outputs + OUTPUTS) * vectors;
    const int64_t place = (picture + sums * WIDTH + 15) / 16 * 16, each = m->images * m->outputs * m->out_height * m->out_width;
    p.vectors = malloc((size_t)vectors * sizeof *p.vectors);
    float *scratch = aligned_alloc(64, (size_t)(threads * place * 4));
    if (!p.vectors || !scratch) return free(p.vectors), free(scratch), -1;
    lay_out(&p);
    memset(scratch, 0, (size_t)(threads * place * 4));
#pragma omp parallel for schedule(static) num_threads(threads) if (samples > 1)
    for (int64_t i = 0; i < samples; i++) {
        float *mine = scratch + THREAD * place;
        AT_LEVEL(sample, level)
        (&p, inputs + i * m->strides[0], backprops + i * each, mine, (lanes *)(mine + picture),
         rows + i * m->outputs * p.taps, norms + i);
    }
    free(p.vectors), free(scratch);
    return 0;
}
