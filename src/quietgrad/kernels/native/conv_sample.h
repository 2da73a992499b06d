/* One sample's gradient in conv_rows.c, in vectors of WIDTH taps, OUTPUTS outputs at a time: included once for each
 * width. CONV(NAME) names what is defined, OUTPUTS_OF(DO) does it for every output of a tile.
 */

typedef float CONV(lanes) __attribute__((vector_size(4 * WIDTH)));
typedef float CONV(lanes_any) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define READ(R) const float *b##R = b[R];
#define BEGIN(R) CONV(lanes) s##R##0 = sums[3 * R], s##R##1 = sums[3 * R + 1], s##R##2 = sums[3 * R + 2];
#define NEXT(R) b##R += back[3];
#define STEP(R)                                                   \
    {                                                             \
        const float y = b##R[x * apart];                          \
        s##R##0 += x0 * y, s##R##1 += x1 * y, s##R##2 += x2 * y;  \
    }
#define END(R) sums[3 * R] = s##R##0, sums[3 * R + 1] = s##R##1, sums[3 * R + 2] = s##R##2;

/* sums[r][v] += Σ_positions b[r] · taps[v], over some rows of positions. */
static ALWAYS_INLINE void CONV(tile)(const float *picture, const struct taps *v, const float *const b[OUTPUTS],
                                     const int64_t *back, int64_t rows, int64_t columns, int64_t down, int64_t right,
                                     CONV(lanes) *sums) {
    const int64_t apart = back[4];
    const float *at0 = picture + v[0].offset, *at1 = picture + v[1].offset, *at2 = picture + v[2].offset;
    OUTPUTS_OF(READ)
    OUTPUTS_OF(BEGIN)
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
#undef BEGIN
#undef NEXT
#undef STEP
#undef END

/* One image's part of a sample's gradient. */
static ALWAYS_INLINE void CONV(add_image)(const struct plan *p, const float *picture, const float *backprops,
                                          CONV(lanes) *sums) {
    const struct movement *m = &p->m;
    const int64_t down = m->stride[0] * p->wide_width * m->channels, right = m->stride[1] * m->channels;
    for (int64_t y = 0; y < m->out_height; y += p->rows) {
        const int64_t rows = m->out_height - y < p->rows ? m->out_height - y : p->rows;
        CONV(lanes) *here = sums;
        for (int64_t o = 0; o < m->outputs; o += OUTPUTS) {
            const float *b[OUTPUTS];
            for (int64_t r = 0; r < OUTPUTS; r++)
                b[r] = backprops + (o + r < m->outputs ? o + r : o) * m->back[2] + y * m->back[3];
            for (int64_t v = 0; v < p->count; v += VECTORS, here += OUTPUTS * VECTORS)
                CONV(tile)(picture + y * down, p->vectors + v, b, m->back, rows, m->out_width, down, right, here);
        }
    }
}

/* The sums into a sample's gradient. */
static void CONV(keep)(const struct plan *p, const CONV(lanes) *sums, float *row) {
    for (int64_t o = 0; o < p->m.outputs; o += OUTPUTS)
        for (int64_t v = 0; v < p->count; v += VECTORS, sums += OUTPUTS * VECTORS)
            for (int64_t r = 0; r < OUTPUTS && o + r < p->m.outputs; r++)
                for (int64_t j = 0; j < VECTORS; j++)
                    memcpy(row + (o + r) * p->taps + p->vectors[v + j].place, sums + r * VECTORS + j,
                           (size_t)(4 * p->vectors[v + j].count));
}

static ALWAYS_INLINE void CONV(sample_body)(const struct plan *p, const float *inputs, const float *backprops,
                                            float *picture, float *room, float *row, double *norm) {
    const struct movement *m = &p->m;
    CONV(lanes) *sums = (CONV(lanes) *)room;
    memset(sums, 0, (size_t)((m->outputs + OUTPUTS - 1) / OUTPUTS * OUTPUTS * p->count) * sizeof *sums);
    for (int64_t i = 0; i < m->images; i++) {
        copy_image(p, inputs + i * m->strides[1], picture);
        CONV(add_image)(p, picture, backprops + i * m->back[1], sums);
    }
    CONV(keep)(p, sums, row);
    *norm = squared(row, m->outputs * p->taps);
}
