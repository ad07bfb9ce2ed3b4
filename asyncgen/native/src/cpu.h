// What this processor can do, as far as the kernels ask.
#pragma once

bool has_avx512();
bool has_avx512_bf16();
bool has_avx512_vnni();

// Asks the system for the tiles, too: a process has to before it uses them.
bool has_amx_bf16();
