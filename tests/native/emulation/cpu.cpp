// A processor that has everything: compiled in the place of the kernels' own `cpu.cpp`.

#include "cpu.h"

bool has_avx512() { return true; }
bool has_avx512_bf16() { return true; }
bool has_avx512_vnni() { return true; }
bool has_amx_bf16() { return true; }
