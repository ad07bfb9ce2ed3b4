// Sixteen floats at a time, by AVX-512. Which files may use which instructions is said where they
// are compiled (hatch_build.py).
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "kernels.h"

constexpr std::int64_t LANES = 16;

using f32x16 = __m512;

// Begins some sums. GCC makes `rep stos` of a plain loop, which takes a twentieth of the time of a
// product of few inputs.
template <int COUNT>
[[gnu::always_inline]] inline void clear(f32x16 (&sums)[COUNT]) {
#pragma GCC unroll 12
  for (int at = 0; at < COUNT; ++at) sums[at] = _mm512_setzero_ps();
}

// A mask of the first lanes: all for `count` >= 16, none for `count` <= 0.
inline __mmask16 first_lanes(std::int64_t count) {
  if (count >= LANES) return 0xffff;
  return count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

inline f32x16 load(const float* from, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, from);
}

inline void store(float* to, __mmask16 lanes, f32x16 value) {
  _mm512_mask_storeu_ps(to, lanes, value);
}

inline f32x16 load(const bf16* from, __mmask16 lanes) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Rounds to the nearest, ties to even; NaN stays NaN.
inline void store(bf16* to, __mmask16 lanes, f32x16 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i all = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc0));
  _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtepi32_epi16(all));
}

inline f32x16 load(const f16* from, __mmask16 lanes) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from));
}

// Rounds to the nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
inline void store(f16* to, __mmask16 lanes, f32x16 value) {
  const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_mask_storeu_epi16(to, lanes, halves);
}

inline void copy_lanes(const float* from, __mmask16 lanes, float* to) {
  _mm512_mask_storeu_ps(to, lanes, _mm512_maskz_loadu_ps(lanes, from));
}

inline void copy_lanes(const bf16* from, __mmask16 lanes, bf16* to) {
  _mm256_mask_storeu_epi16(to, lanes, _mm256_maskz_loadu_epi16(lanes, from));
}

inline void copy_lanes(const f16* from, __mmask16 lanes, f16* to) {
  _mm256_mask_storeu_epi16(to, lanes, _mm256_maskz_loadu_epi16(lanes, from));
}

inline void copy_lanes(const f16* from, __mmask16 lanes, float* to) {
  store(to, lanes, load(from, lanes));
}

inline void copy_lanes(const std::int8_t* from, __mmask16 lanes, std::int8_t* to) {
  _mm_mask_storeu_epi8(to, lanes, _mm_maskz_loadu_epi8(lanes, from));
}

// e^x to about one unit in the last place: x = n ln 2 + r, and a polynomial for |r| <= ln 2 / 2.
inline f32x16 exponential(f32x16 x) {
  const f32x16 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  f32x16 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  f32x16 p = _mm512_set1_ps(1.0f / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  // Where x is infinite r is NaN; a large negative x gives zero by itself.
  const f32x16 result = _mm512_scalef_ps(p, n);
  const __mmask16 is_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-104.0f), _CMP_LT_OQ);
  const __mmask16 is_high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(89.0f), _CMP_GT_OQ);
  const f32x16 capped = _mm512_mask_mov_ps(result, is_low, _mm512_setzero_ps());
  return _mm512_mask_mov_ps(capped, is_high, _mm512_set1_ps(__builtin_inff()));
}

inline f32x16 negated(f32x16 x) { return _mm512_sub_ps(_mm512_setzero_ps(), x); }

inline f32x16 silu(f32x16 x) {
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(negated(x))));
}

inline f32x16 sigmoid(f32x16 x) {
  const f32x16 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exponential(negated(x))));
}

// x times the normal distribution up to x: Hendrycks and Gimpel, "Gaussian Error Linear Units"
// (2016), with 7.1.26 of Abramowitz and Stegun for the error function, off by at most 1.5e-7.
inline f32x16 gelu(f32x16 x) {
  const f32x16 one = _mm512_set1_ps(1.0f);
  const f32x16 size = _mm512_mul_ps(_mm512_max_ps(negated(x), x), _mm512_set1_ps(0.70710678f));
  const f32x16 t = _mm512_div_ps(one, _mm512_fmadd_ps(_mm512_set1_ps(0.3275911f), size, one));
  f32x16 p = _mm512_set1_ps(1.061405429f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
  const f32x16 half_t = _mm512_mul_ps(t, _mm512_set1_ps(0.5f));
  const f32x16 tail = _mm512_mul_ps(
      _mm512_mul_ps(p, half_t), exponential(negated(_mm512_mul_ps(size, size))));
  const __mmask16 is_low = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mul_ps(x, _mm512_mask_mov_ps(_mm512_sub_ps(one, tail), is_low, tail));
}

// Its approximation by tanh, of the same authors: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
inline f32x16 gelu_tanh(f32x16 x) {
  const f32x16 square = _mm512_mul_ps(x, x);
  const f32x16 factor =
      _mm512_fmadd_ps(square, _mm512_set1_ps(0.0713548163f), _mm512_set1_ps(1.5957691216f));
  return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(x, factor)));
}

// Calls `use` with a count of LEAST to MOST that is known when it is compiled.
template <int MOST, int LEAST = 1, typename Use>
inline void with_count(std::int64_t count, Use use) {
  if constexpr (MOST > LEAST) {
    if (count < MOST) return with_count<MOST - 1, LEAST>(count, use);
  }
  use(std::integral_constant<int, MOST>{});
}
