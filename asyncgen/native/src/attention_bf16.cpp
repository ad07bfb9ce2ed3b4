// Attention in bfloat16 without tiles: scores and weighted values are summed up in pairs of products
// of bfloat16, to which weights are rounded as in Dao, "FlashAttention-2" (2023); all else is float32.
//
// A weight w becomes w (1 + e), |e| <= 2^-8, and the sum of all is that of the rounded ones. So a
// result differs from sum p v, with p of the exact softmax and o that sum, by at most
// 2^-8 / (1 - 2^-8) sum p |v - o|, before it is rounded itself.

#include "attention_vectors.h"

template <>
struct Words<bf16> {
  static __m512bh load(const float* words) { return (__m512bh)_mm512_loadu_si512(words); }
  static __m512bh words(__m512i all) { return (__m512bh)all; }
  static __m512bh repeat(const bf16* pair) {
    std::int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
  }
  static f32x16 add(f32x16 sums, __m512bh value, __m512bh words) {
    return _mm512_dpbf16_ps(sums, value, words);
  }
};

template <>
struct Weights<bf16> {
  static f32x16 power(f32x16 x) { return power_of_two(x); }
  static f32x16 keep(f32x16 weights, bf16* to) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(weights);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
  }
};

Division divide(const Attention<bf16>& attention) noexcept { return division_of(attention); }

void attend(const Attention<bf16>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<bf16>>(step, division, memory);
}
