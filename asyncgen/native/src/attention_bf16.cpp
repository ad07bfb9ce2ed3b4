// Attention in bfloat16 without tiles: scores are summed up in pairs of products of bfloat16, all
// else is float32.

#include "attention_vectors.h"

template <>
struct Words<bf16> {
  static __m512bh load(const float* column) { return (__m512bh)_mm512_loadu_si512(column); }
  static __m512bh repeat(const bf16* pair) {
    std::int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
  }
  static f32x16 add(f32x16 sums, __m512bh value, __m512bh keys) {
    return _mm512_dpbf16_ps(sums, value, keys);
  }
};

Division divide_bf16(const Attention<bf16>& attention) noexcept { return divide(attention); }

void attend_bf16(const Attention<bf16>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<bf16>>(step, division, memory);
}
