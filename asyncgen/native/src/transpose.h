// Rows of 32-bit words to columns of sixteen rows.
#pragma once

#include "vectors.h"

// Four words of the rows 0, 4, 8 and 12.
inline __m512i four_words(const char* from, std::int64_t stride) {
  __m512i words = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)from));
  words = _mm512_inserti32x4(words, _mm_loadu_si128((const __m128i*)(from + 4 * stride)), 1);
  words = _mm512_inserti32x4(words, _mm_loadu_si128((const __m128i*)(from + 8 * stride)), 2);
  return _mm512_inserti32x4(words, _mm_loadu_si128((const __m128i*)(from + 12 * stride)), 3);
}

// Calls `use(word, column)` for each of `words` (a multiple of 4) words of sixteen rows, which are
// `stride` bytes apart.
template <typename Use>
inline void for_columns(const void* rows, std::int64_t stride, std::int64_t words, Use use) {
  const char* from = static_cast<const char*>(rows);
  for (std::int64_t word = 0; word < words; word += 4, from += 16) {
    const __m512i a = four_words(from, stride), b = four_words(from + stride, stride);
    const __m512i c = four_words(from + 2 * stride, stride);
    const __m512i d = four_words(from + 3 * stride, stride);
    const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    use(word, _mm512_unpacklo_epi64(ab_low, cd_low));
    use(word + 1, _mm512_unpackhi_epi64(ab_low, cd_low));
    use(word + 2, _mm512_unpacklo_epi64(ab_high, cd_high));
    use(word + 3, _mm512_unpackhi_epi64(ab_high, cd_high));
  }
}
