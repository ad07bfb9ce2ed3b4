// Groups of packed weights as they are read, and the two ways to multiply them: by inputs of 16 bits,
// two at a time, or of 8 bits, four at a time.
#pragma once

#include <cstring>

#include "linear_packed.h"
#include "vectors.h"

// How far ahead of its use a half of a panel is fetched, in bytes.
constexpr std::int64_t AHEAD = 2048;

// Sixteen scales or minimums as they are stored.
[[gnu::always_inline]] inline f32x16 load_scales(Scale kind, const char*& at) {
  const char* from = at;
  if (kind == Scale::FLOAT32) {
    at += 64;
    return _mm512_loadu_ps(from);
  }
  if (kind == Scale::INT8) {
    at += 16;
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
  }
  at += 32;
  const __m256i half = _mm256_loadu_si256((const __m256i*)from);
  if (kind == Scale::FLOAT16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// What a group's numbers are scaled by, and what is taken off and added, of sixteen outputs. Floats
// of 256 inputs, and those of a whole row, stand before the first of their groups. Reading is a part of
// the loop that it stands in: called, it took as long as a row's product, by way of memory.
struct Scales {
  f32x16 scale, minimum, large, large_minimum;
  __m512i zero;
  std::int64_t until_large = 0, until_scale = 0;  // groups before there are others

  [[gnu::always_inline]] void read(const PackedLayout& layout, const char*& at) {
    if (until_large-- == 0) {
      until_large = layout.groups_per_super - 1;
      if (is_two_level(layout.scales)) large = load_scales(Scale::FLOAT16, at);
      if (is_two_level(layout.minimums)) large_minimum = load_scales(Scale::FLOAT16, at);
    }
    if (until_scale-- != 0) return;
    until_scale = layout.groups_per_scale - 1;
    if (layout.scales == Scale::INT4) {
      const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at));
      at += 16;
      scale = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
      scale = _mm512_mul_ps(scale, large);
      minimum = _mm512_cvtepi32_ps(
          _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_srli_epi32(both, 4)));
      minimum = _mm512_mul_ps(minimum, large_minimum);
      return;
    }
    scale = load_scales(layout.scales, at);
    if (layout.scales == Scale::INT8) scale = _mm512_mul_ps(scale, large);
    if (layout.has_zeros) {
      zero = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at));
      at += 16;
    }
    if (layout.minimums == Scale::NONE) return;
    minimum = load_scales(layout.minimums, at);
    if (layout.minimums == Scale::INT8) minimum = _mm512_mul_ps(minimum, large_minimum);
  }
};

// Sixteen inputs as integers, and their sums by lanes.
struct WordSums {
  __m512i sums = _mm512_setzero_si512();
  void store(std::int16_t* to, __m512i numbers, bool) {
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtsepi32_epi16(numbers));
    sums = _mm512_add_epi32(sums, numbers);
  }
  std::int32_t total() const { return _mm512_reduce_add_epi32(sums); }
};

// In the order in which a table gives weights: see `Bytes`.
struct ByteSums {
  __m128i sums = _mm_setzero_si128();
  void store(std::int8_t* to, __m512i numbers, bool has_table) {
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m128i bytes = _mm512_cvtsepi32_epi8(numbers);
    _mm_storeu_si128((__m128i*)to, has_table ? _mm_shuffle_epi8(bytes, order) : bytes);
    sums = _mm_dpbusd_epi32(sums, _mm_set1_epi8(1), bytes);
  }
  std::int32_t total() const {
    const __m128i pairs = _mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums));
    return _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 1)));
  }
};

// Codes of 8 inputs by 16 outputs, and the numbers of codes.
//
// Integers of 16 bits by weights of as many. Codes lie in words, of which a table takes four bits at a
// time: it is there twice, so that the fifth bit means nothing.
struct Words {
  using Number = std::int16_t;
  using Sums = WordSums;
  static constexpr int STEP = 2;  // inputs that are multiplied at a time
  static constexpr int MOST = 32767;
  static constexpr int BIAS = 0;  // what weights have more than they are

  static __m512i add(__m512i sum, __m512i weights, __m512i inputs) {
    return _mm512_dpwssd_epi32(sum, weights, inputs);
  }
  static __m512i table_of(const PackedLayout& layout) { return _mm512_load_si512(layout.table); }

  // A number of each output in all places of it: it is small.
  static __m512i spread(__m512i numbers) {
    return _mm512_or_si512(_mm512_slli_epi32(numbers, 16),
                           _mm512_and_si512(numbers, _mm512_set1_epi32(0xffff)));
  }
  static __m512i less(__m512i weights, __m512i zeros) { return _mm512_sub_epi16(weights, zeros); }

  template <typename Use>
  static void with_codes(__m512i codes, __m512i table, Use use) {
    use(0, _mm512_permutexvar_epi16(codes, table));
    use(1, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table));
    use(2, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table));
    use(3, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table));
  }
  template <typename Use>
  static void with_numbers(const char* at, Use use) {
    use(0, _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)at)));
    use(1, _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)(at + 32))));
  }
};

// Integers of 8 bits by weights of as many, which are unsigned: 128 more than they are. Of codes, the
// lower four bits of all bytes come first, then the upper ones: inputs have that order, too.
struct Bytes {
  using Number = std::int8_t;
  using Sums = ByteSums;
  static constexpr int STEP = 4;
  static constexpr int MOST = 127;
  static constexpr int BIAS = 128;

  static __m512i add(__m512i sum, __m512i weights, __m512i inputs) {
    return _mm512_dpbusd_epi32(sum, weights, inputs);
  }
  static __m512i table_of(const PackedLayout& layout) {
    const __m128i numbers =
        _mm256_cvtepi16_epi8(_mm256_load_si256((const __m256i*)layout.table));
    return biased(_mm512_broadcast_i32x4(numbers));
  }
  static __m512i spread(__m512i numbers) {
    return _mm512_mullo_epi32(_mm512_and_si512(numbers, _mm512_set1_epi32(0xff)),
                              _mm512_set1_epi32(0x01010101));
  }
  static __m512i less(__m512i weights, __m512i zeros) { return _mm512_sub_epi8(weights, zeros); }

  template <typename Use>
  static void with_codes(__m512i codes, __m512i table, Use use) {
    const __m512i lower = _mm512_set1_epi8(15);
    use(0, _mm512_shuffle_epi8(table, _mm512_and_si512(codes, lower)));
    use(1, _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), lower)));
  }
  template <typename Use>
  static void with_numbers(const char* at, Use use) {
    // Two pairs of inputs of each output come together.
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9,
                                           24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1,
                                           16, 0);
    use(0, biased(_mm512_permutexvar_epi16(order, _mm512_loadu_si512(at))));
  }

 private:
  static __m512i biased(__m512i numbers) {
    return _mm512_xor_si512(numbers, _mm512_set1_epi8(-128));
  }
};

// Calls `use(step, weights)` for each step of a group's inputs, with the numbers of 16 outputs.
template <typename Way, bool HAS_TABLE, typename Use>
inline void for_steps(__m512i table, const char*& at, std::int64_t group, Use use) {
  constexpr int INPUTS = HAS_TABLE ? 8 : 4;  // in so many bytes as a cache line has
  constexpr int STEPS = INPUTS / Way::STEP;
  for (std::int64_t begin = 0; begin < group; begin += 16) {
#pragma GCC unroll 4
    for (int part = 0; part < 16; part += INPUTS, at += 64) {
      _mm_prefetch(at + AHEAD, _MM_HINT_T0);
      const std::int64_t first = (begin + part) / INPUTS * STEPS;
      const auto use_step = [&](int step, __m512i weights) { use(first + step, weights); };
      if constexpr (HAS_TABLE) {
        Way::with_codes(_mm512_loadu_si512(at), table, use_step);
      } else {
        Way::with_numbers(at, use_step);
      }
    }
  }
}
