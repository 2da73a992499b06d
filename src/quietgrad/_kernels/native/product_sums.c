/* Weighted sums of products, Σ_k w_k·b_k a_kᵀ, for gradients that are never formed:
 *
 *     out[o][i] = Σ_runs (double) Σ_{k in run} (w_k·b_k[o])·a_k[i]         the inner sum in float32, the outer in float64
 *
 * Each inner sum is taken in the order of k, whatever the threads: what a run gives depends on the run alone. Rows of
 * weight 0 are written as zeros when they are packed, both of them, so that what is not a number there is not read.
 * Factors are packed once, in panels of a few columns; then a block of the result is kept in float64 in the cache while
 * all runs are added to it, so that no product of a run is ever written to memory. Panels lie GAP numbers further apart
 * than they are long: a power of two apart, those that are written side by side would fall into one place of the cache.
 * Runs and their bound are explained in _kernels/rounding.py.
 *
 * Checked by: tests/kernels/test_product_sums.py, tests/attacks/test_conspiring_rows.py
 */
#include <string.h>

#include "levels.h"

#if X86
#include <immintrin.h>
#endif

/* A product and its sum may round once instead of twice: the bound allows for both. */
#ifdef __clang__
#pragma clang fp contract(fast)
#define UNROLLED _Pragma("clang loop unroll_count(4)")
#else
#pragma GCC optimize("fp-contract=fast")
#define UNROLLED _Pragma("GCC unroll 4")
#endif

/* One factor: rows of `length` numbers. A sample's lie in lines of `line` rows, as patches of a picture do: they begin
 * `stride` apart, the lines `far`, the samples `apart`. */
struct rows {
    const float *values;
    int64_t apart, far, stride, line, length;
};

typedef float four_any __attribute__((vector_size(16), aligned(4), may_alias));

#define GAP 16
#define LARGEST_BLOCK (96 * 128) /* numbers of a block, at the level that has most */

#define TILE(NAME) NAME##_8
#define WIDTH 8
#define TALL 6
#define ROW 64
#define ROWS_OF(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define TARGETED
#define WIDENED(FROM) __builtin_convertvector(*(const four_any *)(FROM), wide_8)
#include "product_tile.h"
#undef TILE
#undef WIDTH
#undef TALL
#undef ROW
#undef ROWS_OF
#undef WIDENED
#undef TARGETED

#if X86
#define TILE(NAME) NAME##_16
#define WIDTH 16
#define TALL 12
#define ROW 128
#define ROWS_OF(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define WIDENED(FROM) ((wide_16)_mm512_cvtps_pd(_mm256_loadu_ps(FROM))) /* gcc would make two conversions of it */
#define TARGETED WITH_AVX512
#include "product_tile.h"
#endif

typedef void packer(const struct rows *f, const float *weights, int64_t positions, int scaled, int64_t from, int64_t to,
                    int64_t panel, int64_t panels, float *out);
typedef void tiler(const float *b, const float *a, int64_t count, int begun, const double *kept, double *out,
                   int64_t apart);

/* How a level cuts the result: the sizes of its tiles, how many of them a block has, and the functions for them. */
struct tiling {
    int64_t tall, wide, block_tall, block_wide;
    packer *pack_tall, *pack_wide;
    tiler *tile;
};

#define TILING(TARGET, NAME, BODIES, ...)                                                                              \
    TARGET static void pack_tall_##NAME(const struct rows *f, const float *weights, int64_t positions, int scaled,     \
                                        int64_t from, int64_t to, int64_t panel, int64_t panels, float *out) {         \
        pack_tall_body_##BODIES(f, weights, positions, scaled, from, to, panel, panels, out);                          \
    }                                                                                                                  \
    TARGET static void pack_wide_##NAME(const struct rows *f, const float *weights, int64_t positions, int scaled,     \
                                        int64_t from, int64_t to, int64_t panel, int64_t panels, float *out) {         \
        pack_wide_body_##BODIES(f, weights, positions, scaled, from, to, panel, panels, out);                          \
    }                                                                                                                  \
    TARGET static void tile_##NAME(const float *b, const float *a, int64_t count, int begun, const double *kept,       \
                                   double *out, int64_t apart) {                                                       \
        tile_body_##BODIES(b, a, count, begun, kept, out, apart);                                                      \
    }                                                                                                                  \
    static const struct tiling NAME##_tiling = {__VA_ARGS__, pack_tall_##NAME, pack_wide_##NAME, tile_##NAME};

TILING(, portable, 8, 6, 16, 16, 4)
#if X86
TILING(WITH_AVX2, avx2, 8, 6, 16, 16, 4)
TILING(WITH_AVX512, avx512, 16, 12, 32, 8, 4)
#endif

static const struct tiling *tiling_of(int level) {
#if X86
    if (level == AVX512) return &avx512_tiling;
    if (level == AVX2) return &avx2_tiling;
#endif
    return (void)level, &portable_tiling;
}

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t parts(int64_t x, int64_t of) { return (x + of - 1) / of; }

/* Where a panel of `size` columns begins, of `panels` in each run: that of the run of `count` positions that `from`
 * positions and `run` runs lie before. */
static int64_t place(int64_t from, int64_t run, int64_t count, int64_t panels, int64_t panel, int64_t size) {
    return (from * size + run * GAP) * panels + (count * size + GAP) * panel;
}

/* A block of the result: its first tile among all, how many there are, and where it is kept. */
struct block {
    int64_t y, x, tall, across;
    double *kept;
};

/* The result [rows, columns], whose rows begin `apart` numbers from each other. */
struct result {
    double *values;
    int64_t rows, columns, apart;
};

/* All tiles of a block for one run of `count` positions, panels one after the other; after the last run they are in
 * `out`, of which a tile may reach beyond the end. */
static void add_run(const struct tiling *by, const struct block *block, const float *b, const float *a, int64_t count,
                    int begun, int last, const struct result *out) {
    const int64_t row = by->block_wide * by->wide;
    for (int64_t x = 0; x < block->across; x++)
        for (int64_t y = 0; y < block->tall; y++) {
            double *kept = block->kept + y * by->tall * row + x * by->wide;
            const int64_t r = (block->y + y) * by->tall, c = (block->x + x) * by->wide;
            const int64_t high = smaller(out->rows - r, by->tall), far = smaller(out->columns - c, by->wide);
            const int whole = last && high == by->tall && far == by->wide;
            double *there = out->values + r * out->apart + c;
            by->tile(b + y * (count * by->tall + GAP), a + x * (count * by->wide + GAP), count, begun, kept,
                     whole ? there : kept, whole ? out->apart : row);
            if (last && !whole)
                for (int64_t k = 0; k < high; k++)
                    memcpy(there + k * out->apart, kept + k * row, (size_t)far * sizeof *kept);
        }
}

/* Numbers of scratch that the packed factors take, at the level that takes most. */
EXPORT int64_t qg_packed_room(int64_t outputs, int64_t inputs, int64_t total, int64_t runs) {
    int64_t most = 0;
    for (int level = PORTABLE; level <= AVX512; level++) {
        const struct tiling *by = tiling_of(level);
        const int64_t needed = place(total, runs, 0, parts(outputs, by->tall), 0, by->tall) +
                               place(total, runs, 0, parts(inputs, by->wide), 0, by->wide);
        most = needed > most ? needed : most;
    }
    return most;
}

/* out [outputs, inputs] in float64, its rows `apart` numbers from each other, of the runs [starts[r], starts[r + 1]) of
 * all positions side by side; `scaled` says which factor is multiplied by the weights: 0 the outputs', 1 the inputs'. */
EXPORT void qg_sums_of_products(const struct rows *b, const struct rows *a, const float *weights, int64_t positions,
                                int scaled, const int64_t *starts, int64_t runs, float *room, double *out,
                                int64_t apart, int level, int threads) {
    const struct tiling *by = tiling_of(level);
    const int64_t total = starts[runs], rows = b->length, columns = a->length;
    const int64_t tall = parts(rows, by->tall), across = parts(columns, by->wide);
    float *of_b = room, *of_a = room + place(total, runs, 0, tall, 0, by->tall);
    const int64_t down = parts(tall, by->block_tall), right = parts(across, by->block_wide);
    const struct result result = {out, rows, columns, apart};
#pragma omp parallel num_threads(threads) if (total * rows * columns > 100000)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < runs * down; i++) {
            const int64_t run = i / down, panel = i % down * by->block_tall, from = starts[run], to = starts[run + 1];
            by->pack_tall(b, weights, positions, scaled == 0, from, to, panel, smaller(tall - panel, by->block_tall),
                          of_b + place(from, run, to - from, tall, panel, by->tall));
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < runs * right; i++) {
            const int64_t run = i / right, panel = i % right * by->block_wide, from = starts[run], to = starts[run + 1];
            by->pack_wide(a, weights, positions, scaled == 1, from, to, panel, smaller(across - panel, by->block_wide),
                          of_a + place(from, run, to - from, across, panel, by->wide));
        }
        double kept[LARGEST_BLOCK] __attribute__((aligned(64)));
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < down * right; i++) {
            const int64_t y = i / right * by->block_tall, x = i % right * by->block_wide;
            const int64_t high = smaller(tall - y, by->block_tall), far = smaller(across - x, by->block_wide);
            const struct block block = {y, x, high, far, kept};
            for (int64_t run = 0; run < runs; run++) {
                const int64_t from = starts[run], count = starts[run + 1] - from;
                add_run(by, &block, of_b + place(from, run, count, tall, y, by->tall),
                        of_a + place(from, run, count, across, x, by->wide), count, run > 0, run == runs - 1, &result);
            }
        }
    }
}
