// Sixteen floats at a time, by AVX-512. Which files may use which instructions is said where they
// are compiled (hatch_build.py).
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "kernels.h"

constexpr std::int64_t LANES = 16;

using f32x16 = __m512;

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

inline void copy_lanes(const float* from, __mmask16 lanes, float* to) {
  _mm512_mask_storeu_ps(to, lanes, _mm512_maskz_loadu_ps(lanes, from));
}

inline void copy_lanes(const bf16* from, __mmask16 lanes, bf16* to) {
  _mm256_mask_storeu_epi16(to, lanes, _mm256_maskz_loadu_epi16(lanes, from));
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

inline f32x16 silu(f32x16 x) {
  const f32x16 minus = _mm512_sub_ps(_mm512_setzero_ps(), x);
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(minus)));
}

// Calls `use` with a count of LEAST to MOST that is known when it is compiled.
template <int MOST, int LEAST = 1, typename Use>
inline void with_count(std::int64_t count, Use use) {
  if constexpr (MOST > LEAST) {
    if (count < MOST) return with_count<MOST - 1, LEAST>(count, use);
  }
  use(std::integral_constant<int, MOST>{});
}
