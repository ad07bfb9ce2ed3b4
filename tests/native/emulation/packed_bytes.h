// Instructions on vectors of bytes, of any width, as the products of packed weights use them.
#pragma once

#include <algorithm>

namespace emulated {

// `compute(a, b)` for each lane of two vectors.
template <typename Lane, typename Vector, typename Compute>
Vector lanes_of(Vector a, Vector b, Compute compute) {
  constexpr std::size_t COUNT = sizeof(Vector) / sizeof(Lane);
  Lane x[COUNT], y[COUNT];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  for (std::size_t lane = 0; lane < COUNT; ++lane) x[lane] = static_cast<Lane>(compute(x[lane], y[lane]));
  return load<Vector>(x);
}

template <typename Vector, typename Lane>
Vector all_of(Lane value) {
  Lane lanes[sizeof(Vector) / sizeof(Lane)];
  for (Lane& lane : lanes) lane = value;
  return load<Vector>(lanes);
}

template <typename Vector>
Vector dpbusd(Vector sums, Vector a, Vector b) {
  std::int32_t to[sizeof(Vector) / 4];
  std::uint8_t x[sizeof(Vector)];
  std::int8_t y[sizeof(Vector)];
  std::memcpy(to, &sums, sizeof to);
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  for (std::size_t at = 0; at < sizeof(Vector); ++at) to[at / 4] += x[at] * y[at];
  return load<Vector>(to);
}

// Within each 16 bytes.
template <typename Vector>
Vector shuffle_bytes(Vector a, Vector order) {
  std::uint8_t x[sizeof(Vector)], places[sizeof(Vector)], to[sizeof(Vector)];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(places, &order, sizeof places);
  for (std::size_t at = 0; at < sizeof(Vector); ++at) {
    to[at] = (places[at] & 128) != 0 ? 0 : x[at / 16 * 16 + (places[at] & 15)];
  }
  return load<Vector>(to);
}

template <typename Compare>
__mmask16 compare_words(__m512i a, __m512i b, Compare compare) {
  std::int32_t x[16], y[16];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  unsigned mask = 0;
  for (int lane = 0; lane < 16; ++lane) mask |= compare(x[lane], y[lane]) ? 1u << lane : 0u;
  return static_cast<__mmask16>(mask);
}

}  // namespace emulated

inline __m128i _mm256_castsi256_si128(__m256i a) { return __m128i{a[0], a[1]}; }
inline __m128i _mm256_extracti128_si256(__m256i a, int place) {
  return __m128i{a[2 * place], a[2 * place + 1]};
}
inline __m128i _mm256_cvtepi16_epi8(__m256i a) {
  std::int16_t from[16];
  std::int8_t to[16];
  std::memcpy(from, &a, sizeof from);
  for (int lane = 0; lane < 16; ++lane) to[lane] = static_cast<std::int8_t>(from[lane]);
  return emulated::load<__m128i>(to);
}
inline __m256i _mm256_load_si256(const __m256i* from) { return emulated::load<__m256i>(from); }
inline __m256i _mm256_min_epu16(__m256i a, __m256i b) {
  return emulated::lanes_of<std::uint16_t>(a, b, [](int x, int y) { return std::min(x, y); });
}
inline __m512i _mm512_min_epu16(__m512i a, __m512i b) {
  return emulated::lanes_of<std::uint16_t>(a, b, [](int x, int y) { return std::min(x, y); });
}
inline __m128i _mm_min_epu16(__m128i a, __m128i b) {
  return emulated::lanes_of<std::uint16_t>(a, b, [](int x, int y) { return std::min(x, y); });
}
inline __m128i _mm_minpos_epu16(__m128i a) {
  std::uint16_t x[8], to[8] = {};
  std::memcpy(x, &a, sizeof x);
  to[1] = static_cast<std::uint16_t>(std::min_element(x, x + 8) - x);
  to[0] = x[to[1]];
  return emulated::load<__m128i>(to);
}
inline __m512i _mm512_andnot_si512(__m512i a, __m512i b) { return ~a & b; }
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
inline __m512i _mm512_broadcast_i32x4(__m128i a) {
  return __m512i{a[0], a[1], a[0], a[1], a[0], a[1], a[0], a[1]};
}
inline __mmask16 _mm512_cmpgt_epi32_mask(__m512i a, __m512i b) {
  return emulated::compare_words(a, b, [](std::int32_t x, std::int32_t y) { return x > y; });
}
inline __mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b) {
  return emulated::compare_words(a, b, [](std::int32_t x, std::int32_t y) { return x < y; });
}
inline __m128i _mm512_cvtsepi32_epi8(__m512i a) {
  std::int32_t from[16];
  std::int8_t to[16];
  std::memcpy(from, &a, sizeof from);
  for (int lane = 0; lane < 16; ++lane) {
    to[lane] = static_cast<std::int8_t>(std::min(std::max(from[lane], -128), 127));
  }
  return emulated::load<__m128i>(to);
}
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
  return emulated::dpbusd(sums, a, b);
}
inline __m128i _mm_dpbusd_epi32(__m128i sums, __m128i a, __m128i b) {
  return emulated::dpbusd(sums, a, b);
}
inline __m512 _mm512_maskz_div_ps(__mmask16 mask, __m512 a, __m512 b) {
  __m512 to{};
  for (int lane = 0; lane < 16; ++lane) {
    if ((mask >> lane & 1) != 0) to[lane] = a[lane] / b[lane];
  }
  return to;
}
inline __m512i _mm512_set1_epi16(short value) { return emulated::all_of<__m512i>(value); }
inline __m512i _mm512_set1_epi8(signed char value) { return emulated::all_of<__m512i>(value); }
inline __m128i _mm_set1_epi8(signed char value) { return emulated::all_of<__m128i>(value); }
template <typename... Values>
inline __m512i _mm512_set_epi16(Values... values) {
  std::int16_t to[] = {static_cast<std::int16_t>(values)...};
  static_assert(sizeof to == 64);
  std::reverse(to, to + 32);
  return emulated::load<__m512i>(to);
}
template <typename... Values>
inline __m128i _mm_setr_epi8(Values... values) {
  const std::int8_t to[] = {static_cast<std::int8_t>(values)...};
  static_assert(sizeof to == 16);
  return emulated::load<__m128i>(to);
}
inline __m512i _mm512_shuffle_epi8(__m512i a, __m512i order) {
  return emulated::shuffle_bytes(a, order);
}
inline __m128i _mm_shuffle_epi8(__m128i a, __m128i order) {
  return emulated::shuffle_bytes(a, order);
}
inline __m512i _mm512_sub_epi8(__m512i a, __m512i b) {
  return emulated::lanes_of<std::uint8_t>(a, b, [](int x, int y) { return x - y; });
}
inline __m128i _mm_add_epi32(__m128i a, __m128i b) {
  return emulated::lanes_of<std::uint32_t>(a, b, [](auto x, auto y) { return x + y; });
}
inline std::int32_t _mm_cvtsi128_si32(__m128i a) { return static_cast<std::int32_t>(a[0]); }
inline __m128i _mm_setzero_si128() { return __m128i{}; }
inline __m128i _mm_shuffle_epi32(__m128i a, int order) {
  std::int32_t x[4], to[4];
  std::memcpy(x, &a, sizeof x);
  for (int lane = 0; lane < 4; ++lane) to[lane] = x[order >> 2 * lane & 3];
  return emulated::load<__m128i>(to);
}
inline void _mm_storeu_si128(__m128i* to, __m128i value) { emulated::store(to, value); }
inline __m128i _mm_unpackhi_epi64(__m128i a, __m128i b) { return __m128i{a[1], b[1]}; }
