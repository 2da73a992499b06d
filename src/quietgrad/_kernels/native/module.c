/* The importable shell of the library, and what the processor offers. The kernels are called through ctypes. */
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "levels.h"

/* The highest level that this processor has. */
EXPORT int qg_best_level(void) {
#if X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            return AVX512;
        return AVX2;
    }
#endif
    return PORTABLE;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
