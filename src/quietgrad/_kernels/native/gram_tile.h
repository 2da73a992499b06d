/* Inner products of gram_rows.c in vectors of WIDTH numbers, ROWS positions with three at a time: included once for each
 * width. GRAM(NAME) names what is defined, ROWS_OF(DO) does it for every one of the rows.
 */

typedef float GRAM(lanes) __attribute__((vector_size(4 * WIDTH)));
typedef float GRAM(lanes_any) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef float GRAM(sums) __attribute__((vector_size(4 * ROWS)));
typedef double GRAM(wide) __attribute__((vector_size(8 * ROWS)));

#define ROW_AT(R) const float *r##R = values + rows[R] * f->stride;
#define NOTHING(R) GRAM(lanes) s##R##0 = {0}, s##R##1 = {0}, s##R##2 = {0};
#define STEP(R)                                                              \
    {                                                                        \
        GRAM(lanes) y = *(const GRAM(lanes_any) *)(r##R + j);                \
        IN_REGISTER(y);                                                       \
        s##R##0 += y * x0, s##R##1 += y * x1, s##R##2 += y * x2;             \
    }
#define REST(R)                                                              \
    {                                                                        \
        GRAM(lanes) y = {0};                                                 \
        memcpy(&y, r##R + j, rest);                                          \
        s##R##0 += y * x0, s##R##1 += y * x1, s##R##2 += y * x2;             \
    }

/* Of one column in each vector: of `length` numbers from `start` on. */
static ALWAYS_INLINE void GRAM(products)(const struct factor *f, const int64_t *rows, const int64_t *columns,
                                         int64_t start, int64_t length, GRAM(wide) out[COLUMNS]) {
    const float *values = f->values + start;
    const float *c0 = values + columns[0] * f->stride, *c1 = values + columns[1] * f->stride;
    const float *c2 = values + columns[2] * f->stride;
    const int64_t ahead = COLUMNS * f->stride; /* the columns that come next */
    ROWS_OF(ROW_AT)
    ROWS_OF(NOTHING)
    int64_t j = 0;
    for (; j + WIDTH <= length; j += WIDTH) {
        const GRAM(lanes) x0 = *(const GRAM(lanes_any) *)(c0 + j), x1 = *(const GRAM(lanes_any) *)(c1 + j);
        const GRAM(lanes) x2 = *(const GRAM(lanes_any) *)(c2 + j);
        __builtin_prefetch(c0 + ahead + j), __builtin_prefetch(c1 + ahead + j), __builtin_prefetch(c2 + ahead + j);
        ROWS_OF(STEP)
    }
    if (j < length) {
        const size_t rest = (size_t)(length - j) * sizeof(float);
        GRAM(lanes) x0 = {0}, x1 = {0}, x2 = {0};
        memcpy(&x0, c0 + j, rest), memcpy(&x1, c1 + j, rest), memcpy(&x2, c2 + j, rest);
        ROWS_OF(REST)
    }
    ADD_COLUMN(0) ADD_COLUMN(1) ADD_COLUMN(2)
}

#undef ROW_AT
#undef NOTHING
#undef STEP
#undef REST

/* The same of whole positions, DEPTH numbers at a time. */
static ALWAYS_INLINE void GRAM(whole_products)(const struct factor *f, const int64_t *rows, const int64_t *columns,
                                               GRAM(wide) out[COLUMNS]) {
    for (int64_t c = 0; c < COLUMNS; c++) out[c] = (GRAM(wide)){0};
    for (int64_t start = 0; start < f->length; start += DEPTH)
        GRAM(products)(f, rows, columns, start, f->length - start < DEPTH ? f->length - start : DEPTH, out);
}

static ALWAYS_INLINE void GRAM(sample_body)(const struct factor *a, const struct factor *b, int64_t positions,
                                            double lost, double *squared, double *roots) {
    GRAM(wide) beside = {0};
    double on = 0, both = 0, first = 0, second = 0;
    for (int64_t y = 0; y < positions; y += ROWS) {
        int64_t rows[ROWS], columns[COLUMNS];
        for (int64_t r = 0; r < ROWS; r++) rows[r] = y + r < positions ? y + r : positions - 1;
        for (int64_t z = y; z < positions; z += COLUMNS) {
            GRAM(wide) of_a[COLUMNS], of_b[COLUMNS];
            for (int64_t c = 0; c < COLUMNS; c++) columns[c] = z + c < positions ? z + c : positions - 1;
            GRAM(whole_products)(a, rows, columns, of_a);
            GRAM(whole_products)(b, rows, columns, of_b);
            if (z >= y + ROWS && y + ROWS <= positions && z + COLUMNS <= positions) {
                for (int64_t c = 0; c < COLUMNS; c++) beside += of_a[c] * of_b[c];
                continue;
            }
            for (int64_t c = 0; c < COLUMNS && z + c < positions; c++)
                for (int64_t r = 0; r < ROWS && y + r <= z + c; r++) {
                    const double p = of_a[c][r], q = of_b[c][r];
                    on += (y + r == z + c ? 1.0 : 2.0) * (p * q);
                    if (y + r < z + c) continue;
                    const double x = sqrt((p > 0 ? p : 0) + lost), w = sqrt((q > 0 ? q : 0) + lost);
                    both += x * w, first += x, second += w;
                }
        }
    }
    double across = 0;
    for (int64_t r = 0; r < ROWS; r++) across += beside[r];
    *squared = on + 2 * across;
    roots[0] = both, roots[1] = first, roots[2] = second;
}
