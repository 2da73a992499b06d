/* The key stream of AES-256 in counter mode, by the processor's own instructions: constant time, no tables.
 *
 * A block of the stream is the encryption of its own number, so any part of the stream can be made by itself, by any
 * thread. Eight blocks (or pairs of them) are encrypted side by side: a round takes several cycles to come out, and the
 * processor begins one of another block in each of them.
 *
 * Checked by: tests/kernels/test_integer_noise.py, tests/noise/test_aes.py
 */
#include "aes.h"

#include <string.h>

#include "levels.h"

#if X86
#include <immintrin.h>

#define WITH_AES __attribute__((target("aes,sse4.1,ssse3")))
#define WITH_VAES __attribute__((target("vaes,aes,avx2")))
#define ROUNDS 14
#define WIDE 8

int aes_available(int level) {
    __builtin_cpu_init();
    if (level == PORTABLE || !__builtin_cpu_supports("aes") || !__builtin_cpu_supports("sse4.1")) return 0;
    return __builtin_cpu_supports("vaes") ? 2 : 1;
}

/* w_i ^ w_{i-1} ^ w_{i-2} ^ w_{i-3} along the four words of a round key. */
WITH_AES static __m128i along(__m128i key) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_slli_si128(key, 8));
}

#define EXPAND(I, RCON)                                                                                     \
    even = _mm_xor_si128(along(even), _mm_shuffle_epi32(_mm_aeskeygenassist_si128(odd, RCON), 0xff));       \
    _mm_storeu_si128(key + 2 * (I), even);                                                                  \
    if ((I) < 7) {                                                                                          \
        odd = _mm_xor_si128(along(odd), _mm_shuffle_epi32(_mm_aeskeygenassist_si128(even, 0), 0xaa));       \
        _mm_storeu_si128(key + 2 * (I) + 1, odd);                                                           \
    }

WITH_AES void aes_expand(const uint8_t secret[32], uint8_t rounds[240]) {
    __m128i *key = (__m128i *)rounds;
    __m128i even = _mm_loadu_si128((const __m128i *)secret), odd = _mm_loadu_si128((const __m128i *)(secret + 16));
    _mm_storeu_si128(key, even);
    _mm_storeu_si128(key + 1, odd);
    EXPAND(1, 0x01)
    EXPAND(2, 0x02)
    EXPAND(3, 0x04)
    EXPAND(4, 0x08)
    EXPAND(5, 0x10)
    EXPAND(6, 0x20)
    EXPAND(7, 0x40)
}

WITH_AES static void with_aes_ni(const uint8_t *rounds, uint64_t number, uint64_t first, int64_t count, uint8_t *out) {
    const int64_t high = (int64_t)__builtin_bswap64(number);
    __m128i key[ROUNDS + 1], block[WIDE];
    for (int r = 0; r <= ROUNDS; r++) key[r] = _mm_loadu_si128((const __m128i *)rounds + r);
    for (int64_t done = 0; done < count; done += WIDE) {
        for (int j = 0; j < WIDE; j++)
            block[j] = _mm_xor_si128(
                _mm_set_epi64x((int64_t)__builtin_bswap64(first + (uint64_t)(done + j)), high), key[0]);
        for (int r = 1; r < ROUNDS; r++)
            for (int j = 0; j < WIDE; j++) block[j] = _mm_aesenc_si128(block[j], key[r]);
        const int64_t left = count - done < WIDE ? count - done : WIDE;
        for (int j = 0; j < WIDE; j++) block[j] = _mm_aesenclast_si128(block[j], key[ROUNDS]);
        memcpy(out + 16 * done, block, (size_t)(16 * left));
    }
}

WITH_VAES static void with_vaes(const uint8_t *rounds, uint64_t number, uint64_t first, int64_t count, uint8_t *out) {
    const int64_t high = (int64_t)__builtin_bswap64(number);
    __m256i key[ROUNDS + 1], block[WIDE];
    for (int r = 0; r <= ROUNDS; r++)
        key[r] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)rounds + r));
    /* The counter lies in the upper half of each block, and counts in the processor's own order. */
    const __m256i two = _mm256_set_epi64x(2, 0, 2, 0);
    const __m256i big_endian = _mm256_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0, 8, 9, 10, 11, 12,
                                               13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0);
    __m256i place = _mm256_set_epi64x((int64_t)(first + 1), high, (int64_t)first, high);
    int64_t done = 0;
    for (; done + 2 * WIDE <= count; done += 2 * WIDE) {
        for (int j = 0; j < WIDE; j++) {
            block[j] = _mm256_xor_si256(_mm256_shuffle_epi8(place, big_endian), key[0]);
            place = _mm256_add_epi64(place, two);
        }
        for (int r = 1; r < ROUNDS; r++)
            for (int j = 0; j < WIDE; j++) block[j] = _mm256_aesenc_epi128(block[j], key[r]);
        for (int j = 0; j < WIDE; j++)
            _mm256_storeu_si256((__m256i *)(out + 16 * done) + j, _mm256_aesenclast_epi128(block[j], key[ROUNDS]));
    }
    if (done < count) with_aes_ni(rounds, number, first + (uint64_t)done, count - done, out + 16 * done);
}

void aes_blocks(const uint8_t rounds[240], uint64_t number, uint64_t first, int64_t count, uint8_t *out, int kind) {
    (kind == 2 ? with_vaes : with_aes_ni)(rounds, number, first, count, out);
}

#else

int aes_available(int level) { return (void)level, 0; }
void aes_expand(const uint8_t key[32], uint8_t rounds[240]) { (void)key, memset(rounds, 0, 240); }
void aes_blocks(const uint8_t rounds[240], uint64_t number, uint64_t first, int64_t count, uint8_t *out, int kind) {
    (void)rounds, (void)number, (void)first, (void)count, (void)out, (void)kind;
}

#endif

/* Which instructions for AES a level has; see aes.h. */
EXPORT int qg_aes(int level) { return aes_available(level); }

/* `count` whole blocks of the key stream. */
EXPORT void qg_key_stream(const uint8_t *key, uint64_t number, uint64_t first, int64_t count, uint8_t *out, int kind) {
    uint8_t rounds[240];
    aes_expand(key, rounds);
    aes_blocks(rounds, number, first, count, out, kind);
}
