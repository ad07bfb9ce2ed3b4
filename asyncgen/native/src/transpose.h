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

// Sixteen rows of sixteen words to columns, in place: words of two rows in turn, then pairs of words
// of four, then fours of all.
inline void turn_square(__m512i (&rows)[LANES]) {
  __m512i pairs[LANES], fours[LANES];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xee);
    rows[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    rows[i + 4] = _mm512_shuffle_i32x4(a, c, 0xdd);
    rows[i + 8] = _mm512_shuffle_i32x4(b, d, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// Calls `use(word, column)` for each of `words` (a multiple of 4) words of sixteen rows, which are
// `stride` bytes apart. 64 bytes of a row are read at a time where there are as many.
template <typename Use>
inline void for_columns(const void* rows, std::int64_t stride, std::int64_t words, Use use) {
  const char* from = static_cast<const char*>(rows);
  std::int64_t word = 0;
  for (; word + LANES <= words; word += LANES, from += 64) {
    __m512i square[LANES];
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row) square[row] = _mm512_loadu_si512(from + row * stride);
    turn_square(square);
#pragma GCC unroll 16
    for (int column = 0; column < 16; ++column) use(word + column, square[column]);
  }
  for (; word < words; word += 4, from += 16) {
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
