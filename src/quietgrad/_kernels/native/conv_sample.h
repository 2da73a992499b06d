/* One sample's gradient in conv_rows.c, in vectors of WIDTH taps, OUTPUTS outputs at a time: included once for each
 * width. CONV(NAME) names what is defined, OUTPUTS_OF(DO) does it for every output of a tile.
 */

typedef float CONV(lanes) __attribute__((vector_size(4 * WIDTH)));
typedef float CONV(lanes_any) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define READ(R) const float *b##R = b[R];
#define NOTHING(R) CONV(lanes) s##R##0 = {0}, s##R##1 = {0}, s##R##2 = {0};
#define BEGIN(R) s##R##0 = before[3 * R], s##R##1 = before[3 * R + 1], s##R##2 = before[3 * R + 2];
#define NEXT(R) b##R += back[3];
#define STEP(R)                                                   \
    {                                                             \
        const float y = b##R[x * apart];                          \
        s##R##0 += x0 * y, s##R##1 += x1 * y, s##R##2 += x2 * y;  \
    }
#define END(R) sums[3 * R] = s##R##0, sums[3 * R + 1] = s##R##1, sums[3 * R + 2] = s##R##2;

/* sums[r][v] = before[r][v] + Σ_positions b[r] · taps[v], over some rows of positions; `before` may be nothing. */
static ALWAYS_INLINE void CONV(tile)(const float *picture, const struct taps *v, const float *const b[OUTPUTS],
                                     const int64_t *back, int64_t rows, int64_t columns, int64_t down, int64_t right,
                                     const CONV(lanes) *before, CONV(lanes) *sums) {
    const int64_t apart = back[4];
    const float *at0 = picture + v[0].offset, *at1 = picture + v[1].offset, *at2 = picture + v[2].offset;
    OUTPUTS_OF(READ)
    OUTPUTS_OF(NOTHING)
    if (before) { OUTPUTS_OF(BEGIN) }
    for (int64_t y = 0; y < rows; y++) {
        const int64_t start = y * down;
        for (int64_t x = 0; x < columns; x++) {
            const int64_t here = start + x * right;
            const CONV(lanes) x0 = *(const CONV(lanes_any) *)(at0 + here), x1 = *(const CONV(lanes_any) *)(at1 + here);
            const CONV(lanes) x2 = *(const CONV(lanes_any) *)(at2 + here);
            OUTPUTS_OF(STEP)
        }
        OUTPUTS_OF(NEXT)
    }
    OUTPUTS_OF(END)
}

#undef READ
#undef NOTHING
#undef BEGIN
#undef NEXT
#undef STEP
#undef END

/* A tile's sums into a sample's gradient, from output `o` and vector `v` on. */
static ALWAYS_INLINE void CONV(keep)(const struct plan *p, int64_t o, int64_t v, const CONV(lanes) *sums, float *row) {
    for (int64_t r = 0; r < OUTPUTS && o + r < p->m.outputs; r++)
        for (int64_t j = 0; j < VECTORS; j++) {
            float *to = row + (o + r) * p->taps + p->vectors[v + j].place;
            if (p->vectors[v + j].count == WIDTH)
                *(CONV(lanes_any) *)to = sums[r * VECTORS + j];
            else
                memcpy(to, sums + r * VECTORS + j, (size_t)(4 * p->vectors[v + j].count));
        }
}

#ifdef STREAMED
/* The same past the caches; squares are added up on the way, as reading them back would bring them into the caches. */
TARGETED static ALWAYS_INLINE void CONV(stream)(const struct plan *p, int64_t o, int64_t v, const CONV(lanes) *sums,
                                                   float *row, __m512d norms[2]) {
    for (int64_t r = 0; r < OUTPUTS && o + r < p->m.outputs; r++)
        for (int64_t j = 0; j < VECTORS && p->vectors[v + j].count; j++) {
            const __m512 value = (__m512)sums[r * VECTORS + j];
            const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
            const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
            _mm512_stream_ps(row + (o + r) * p->taps + p->vectors[v + j].place, value);
            norms[0] += low * low, norms[1] += high * high;
        }
}
#endif

/* Some rows of positions of one image: added to what is there `before`, and written to `row` if they are the last. */
TARGETED static ALWAYS_INLINE void CONV(add_rows)(const struct plan *p, const float *picture, const float *backprops, int64_t y,
                                         int begun, int last, CONV(lanes) *sums, float *row, void *norms) {
    const struct movement *m = &p->m;
    const int64_t down = m->stride[0] * p->wide_width * m->channels, right = m->stride[1] * m->channels;
    const int64_t rows = m->out_height - y < p->rows ? m->out_height - y : p->rows;
    CONV(lanes) done[OUTPUTS * VECTORS];
    for (int64_t o = 0; o < m->outputs; o += OUTPUTS) {
        const float *b[OUTPUTS];
        for (int64_t r = 0; r < OUTPUTS; r++)
            b[r] = backprops + (o + r < m->outputs ? o + r : o) * m->back[2] + y * m->back[3];
        for (int64_t v = 0; v < p->count; v += VECTORS, sums += OUTPUTS * VECTORS) {
            CONV(tile)(picture + y * down, p->vectors + v, b, m->back, rows, m->out_width, down, right,
                       begun ? sums : 0, last ? done : sums);
#ifdef STREAMED
            if (last && p->streams) {
                CONV(stream)(p, o, v, done, row, norms);
                continue;
            }
#endif
            if (last) CONV(keep)(p, o, v, done, row);
        }
    }
}

TARGETED static ALWAYS_INLINE void CONV(sample_body)(const struct plan *p, const float *inputs, const float *backprops,
                                            float *picture, float *room, float *row, double *norm) {
    const struct movement *m = &p->m;
    double norms[16] __attribute__((aligned(64))) = {0};
    for (int64_t i = 0; i < m->images; i++) {
        copy_image(p, inputs + i * m->strides[1], picture);
        for (int64_t y = 0; y < m->out_height; y += p->rows)
            CONV(add_rows)(p, picture, backprops + i * m->back[1], y, i > 0 || y > 0,
                           i + 1 == m->images && y + p->rows >= m->out_height, (CONV(lanes) *)room, row, norms);
    }
#ifdef STREAMED
    if (p->streams) {
        for (int64_t j = 1; j < 16; j++) norms[0] += norms[j];
        *norm = norms[0];
        _mm_sfence();
        return;
    }
#endif
    *norm = squared(row, m->outputs * p->taps);
}
