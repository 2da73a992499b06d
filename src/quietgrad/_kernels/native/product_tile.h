/* Panels and tiles of product_sums.c in vectors of WIDTH numbers, TALL rows at a time: included once for each width.
 *
 * TILE(NAME) names what is defined, TARGETED says for which processor; ROWS_OF(DO) does it for every row of a tile, as
 * each must stay in registers of its own; WIDENED(FROM) are WIDTH/2 numbers in float64.
 */

typedef float TILE(lanes) __attribute__((vector_size(4 * WIDTH)));
typedef float TILE(lanes_any) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef double TILE(wide) __attribute__((vector_size(4 * WIDTH)));
typedef double TILE(wide_any) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));

/* One row's numbers for some panels of `size` columns, which begin `far` numbers from each other, zeros beyond the last
 * column; a panel before the last one is whole. `more` rows of the same panels are written after this one, so that it
 * may be written as a whole vector, over the beginning of theirs. */
TARGETED static ALWAYS_INLINE void TILE(pack_row)(const float *restrict row, float w, int64_t there, int64_t panels,
                                         int64_t size, int64_t far, int more, float *restrict out) {
    if (size < WIDTH && more)
        for (; panels && there >= WIDTH; panels--, there -= size, row += size, out += far)
            *(TILE(lanes_any) *)out = *(const TILE(lanes_any) *)row * w;
    for (; panels > 1 || (panels == 1 && there >= size); panels--, there -= size, row += size, out += far)
        for (int64_t j = 0; j < size; j++) out[j] = row[j] * w;
    if (panels)
        for (int64_t j = 0; j < size; j++) out[j] = j < there ? row[j] * w : 0.0f;
}

/* Rows [from, to) of a factor as panels of [row][size], the first one of them at `out`. Their weight is 1 for the factor
 * that is not scaled: a product with it does not round. */
TARGETED static ALWAYS_INLINE void TILE(pack)(const struct rows *f, const float *weights, int64_t positions, int scaled,
                                     int64_t from, int64_t to, int64_t panel, int64_t panels, int64_t size,
                                     float *restrict out) {
    const int64_t column = panel * size, far = (to - from) * size + GAP;
    int64_t sample = from / positions, line = from % positions / f->line, position = from % positions % f->line;
    for (int64_t k = from; k < to; k++, out += size) {
        const float *row = f->values + sample * f->apart + line * f->far + position * f->stride + column;
        const float w = weights[sample];
        if (w != 0.0f)
            TILE(pack_row)(row, scaled ? w : 1.0f, f->length - column, panels, size, far, k + 1 < to, out);
        else
            for (int64_t p = 0; p < panels; p++) memset(out + p * far, 0, (size_t)size * sizeof *out);
        if (++position < f->line) continue;
        position = 0;
        if (++line * f->line == positions) line = 0, sample++;
    }
}

TARGETED static ALWAYS_INLINE void TILE(pack_tall_body)(const struct rows *f, const float *weights, int64_t positions,
                                                        int scaled, int64_t from, int64_t to, int64_t panel,
                                                        int64_t panels, float *out) {
    TILE(pack)(f, weights, positions, scaled, from, to, panel, panels, TALL, out);
}

TARGETED static ALWAYS_INLINE void TILE(pack_wide_body)(const struct rows *f, const float *weights, int64_t positions,
                                                        int scaled, int64_t from, int64_t to, int64_t panel,
                                                        int64_t panels, float *out) {
    TILE(pack)(f, weights, positions, scaled, from, to, panel, panels, 2 * WIDTH, out);
}

TARGETED static ALWAYS_INLINE void TILE(add_row)(const double *from, double *out, const TILE(lanes) *left,
                                                 const TILE(lanes) *right, int begun) {
    float sums[2 * WIDTH];
    memcpy(sums, left, sizeof *left);
    memcpy(sums + WIDTH, right, sizeof *right);
    for (int j = 0; j < 2 * WIDTH; j += WIDTH / 2) {
        TILE(wide) x = WIDENED(sums + j);
        if (begun) x += *(const TILE(wide_any) *)(from + j);
        *(TILE(wide_any) *)(out + j) = x;
    }
}

#define NOTHING(R) TILE(lanes) s##R##0 = {0}, s##R##1 = {0};
#define STEP(R)                               \
    {                                         \
        const float x = b[R];                 \
        s##R##0 += x * y0, s##R##1 += x * y1; \
    }
#define ASK_FOR(R) \
    for (int j = 0; j < 2 * WIDTH; j += 8) __builtin_prefetch(out + R * apart + j, 1);
#define ADD_ROW(R) TILE(add_row)(kept + R * ROW, out + R * apart, &s##R##0, &s##R##1, begun);

/* A run's sum of one tile, [k][TALL] by [k][2·WIDTH], and what is `kept` of those before it in a block, written to
 * `out`, whose rows begin `apart` numbers from each other. */
TARGETED static ALWAYS_INLINE void TILE(tile_body)(const float *restrict b, const float *restrict a, int64_t count,
                                                   int begun, const double *kept, double *out, int64_t apart) {
    ROWS_OF(NOTHING)
    ROWS_OF(ASK_FOR) /* written when all is multiplied, by which time they have come from memory */
    UNROLLED
    for (int64_t k = 0; k < count; k++, b += TALL, a += 2 * WIDTH) {
        if (WIDTH == 8) __builtin_prefetch(a + 16 * 2 * WIDTH);
        __builtin_prefetch(b + 32 * TALL);
        const TILE(lanes) y0 = *(const TILE(lanes_any) *)a, y1 = *(const TILE(lanes_any) *)(a + WIDTH);
        ROWS_OF(STEP)
    }
    ROWS_OF(ADD_ROW)
}

#undef NOTHING
#undef ASK_FOR
#undef STEP
#undef ADD_ROW
