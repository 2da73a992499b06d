/* Runs one kernel of the C library on made-up numbers: what benchmarks/kernel_instructions.py counts instructions of.
 *
 *     kernel_instructions LIBRARY KERNEL LEVEL
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rows {
    const float *values;
    int64_t apart, far, stride, line, length;
};
struct factor {
    const float *values;
    int64_t stride, length;
};
struct movement {
    int64_t images, channels, height, width, outputs, high, wide;
    int64_t kernel[2], stride[2], padding[2], dilation[2], strides[5], back[5];
};

static float *numbers(int64_t count) {
    float *made = aligned_alloc(64, (size_t)(count * 4 + 63) / 64 * 64);
    for (int64_t k = 0; k < count; k++) made[k] = (float)((k * 7919) % 1009 - 504) / 504.0f;
    return made;
}

static void *room(int64_t bytes) { return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64); }

int main(int count, char **words) {
    if (count != 4) return 2;
    void *library = dlopen(words[1], RTLD_LAZY);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    void *kernel = dlsym(library, words[2]);
    const int level = atoi(words[3]);
    if (!kernel) return 2;
    if (!strcmp(words[2], "qg_sums_of_products")) {
        /* An MLP's layer: 512 records of one position, in two runs. */
        enum { N = 512, O = 192, I = 256 };
        const struct rows b = {numbers(N * O), O, 0, O, 1, O}, a = {numbers(N * I), I, 0, I, 1, I};
        const int64_t starts[] = {0, 256, N};
        float *weights = numbers(N);
        for (int k = 0; k < N; k++) weights[k] = 0.5f;
        int64_t (*needed)(int64_t, int64_t, int64_t, int64_t) = dlsym(library, "qg_packed_room");
        ((void (*)(const struct rows *, const struct rows *, const float *, int64_t, int, const int64_t *, int64_t, float *,
                   double *, int64_t, int, int))kernel)(&b, &a, weights, 1, 0, starts, 2, room(4 * needed(O, I, N, 2)),
                                                        room(8 * O * I), I, level, 1);
    } else if (!strcmp(words[2], "qg_gram_sums")) {
        /* A transformer's layer: 8 records of 64 positions. */
        enum { N = 8, T = 64, O = 256, I = 192 };
        const struct factor a = {numbers(N * T * I), I, I}, b = {numbers(N * T * O), O, O};
        ((void (*)(const struct factor *, int64_t, const struct factor *, int64_t, int64_t, int64_t, double, double *,
                   double *, int, int))kernel)(&a, T * I, &b, T * O, N, T, 0.0, room(8 * N), room(24 * N), level, 1);
    } else if (!strcmp(words[2], "qg_conv_grads")) {
        /* A ResNet's layer: 16 channels of 16 by 16 pixels. */
        enum { N = 4, C = 16, S = 16 };
        const struct movement m = {1, C, S, S, C, S, S, {3, 3}, {1, 1}, {1, 1}, {1, 1},
                                   {C * S * S, C * S * S, S * S, S, 1}, {C * S * S, C * S * S, S * S, S, 1}};
        ((int (*)(const struct movement *, const float *, const float *, int64_t, float *, double *, int, int))kernel)(
            &m, numbers(N * C * S * S), numbers(N * C * S * S), N, room(4 * N * C * C * 9), room(8 * N), level, 1);
    } else if (!strcmp(words[2], "qg_row_squares")) {
        ((void (*)(const float *, int64_t, int64_t, int64_t, double *, int, int))kernel)(numbers(1 << 19), 1 << 13, 64,
                                                                                         1 << 13, room(512), level, 1);
    } else if (!strcmp(words[2], "qg_row_sums")) {
        double *weights = room(512);
        for (int k = 0; k < 64; k++) weights[k] = 0.5;
        ((void (*)(const float *, int64_t, const double *, int64_t, int64_t, double *, int, int))kernel)(
            numbers(1 << 19), 1 << 13, weights, 64, 1 << 13, room(8 << 13), level, 1);
    } else if (!strcmp(words[2], "qg_norm_rows")) {
        enum { N = 16, T = 64, D = 256 };
        ((void (*)(const float *, const float *, const float *, const float *, int64_t, int64_t, int64_t, float *, float *,
                   int, int))kernel)(numbers(N * T * D), numbers(N * T * D), numbers(N * T), numbers(N * T), N, T, D,
                                     room(4 * N * D), room(4 * N * D), level, 1);
    } else if (!strcmp(words[2], "qg_add_steps")) {
        enum { P = 1 << 18 };
        const void *from[] = {numbers(P)};
        void *to[] = {room(4 * P)};
        const int64_t starts[] = {0, P};
        const int32_t kinds[] = {0};
        ((void (*)(const void *const *, void *const *, const int64_t *, const int32_t *, const int32_t *, int64_t,
                   const int32_t *, double, double, int, int))kernel)(from, to, starts, kinds, kinds, 1,
                                                                      memset(room(4 * P), 1, 4 * P), 1e-6, 1e-6, level, 1);
    } else if (!strcmp(words[2], "qg_key_stream")) {
        int (*kind)(int) = dlsym(library, "qg_aes");
        const uint8_t key[32] = {1};
        ((void (*)(const uint8_t *, uint64_t, uint64_t, int64_t, uint8_t *, int))kernel)(key, 1, 0, 1 << 14,
                                                                                         room(16 << 14), kind(level));
    } else {
        return 2;
    }
    return 0;
}
