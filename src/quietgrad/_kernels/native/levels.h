/* Run-time dispatch: a kernel's body is written once and compiled for every level of the processor.
 *
 * A body is `static ALWAYS_INLINE void NAME_body(...)`; LEVELS makes NAME_portable, NAME_avx2, NAME_avx512 of it, and
 * AT_LEVEL picks one. OpenMP regions stay outside of bodies: what they outline would lose the level.
 */
#ifndef QUIETGRAD_LEVELS_H
#define QUIETGRAD_LEVELS_H

#include <stdint.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { PORTABLE = 0, AVX2 = 1, AVX512 = 2 };

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#define WITH_AVX2 __attribute__((target("avx2,fma")))
#define WITH_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define LEVELS(NAME, PARAMETERS, ARGUMENTS)                                  \
    static void NAME##_portable PARAMETERS { NAME##_body ARGUMENTS; }        \
    WITH_AVX2 static void NAME##_avx2 PARAMETERS { NAME##_body ARGUMENTS; }  \
    WITH_AVX512 static void NAME##_avx512 PARAMETERS { NAME##_body ARGUMENTS; }
#define AT_LEVEL(NAME, LEVEL) \
    ((LEVEL) == AVX512 ? NAME##_avx512 : (LEVEL) == AVX2 ? NAME##_avx2 : NAME##_portable)
#else
#define X86 0
#define LEVELS(NAME, PARAMETERS, ARGUMENTS) \
    static void NAME##_portable PARAMETERS { NAME##_body ARGUMENTS; }
#define AT_LEVEL(NAME, LEVEL) ((void)(LEVEL), NAME##_portable)
#endif

#endif
