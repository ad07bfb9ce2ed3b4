// The instructions that the kernels use, in plain C++: for tests on processors that lack them.
//
// Found instead of the compiler's own header, by its place in the include path. Each function does
// what the instruction of its name does, lane by lane; AMX's tiles are arrays of a thread. It is
// slow, and it is where a sanitizer can look into every load and store.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

using __m128i = long long __attribute__((vector_size(16), may_alias));
using __m256i = long long __attribute__((vector_size(32), may_alias));
using __m512i = long long __attribute__((vector_size(64), may_alias));
using __m512 = float __attribute__((vector_size(64), may_alias));
using __m512bh = short __attribute__((vector_size(64), may_alias));
using __m256bh = short __attribute__((vector_size(32), may_alias));
using __mmask16 = std::uint16_t;
using __mmask32 = std::uint32_t;

constexpr int _MM_HINT_T0 = 0, _MM_HINT_T1 = 1, _CMP_LT_OQ = 17, _CMP_UNORD_Q = 3, _CMP_EQ_OQ = 0;
constexpr int _CMP_GT_OQ = 30, _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8;
constexpr int _MM_MANT_NORM_p75_1p5 = 3, _MM_MANT_SIGN_zero = 1;

namespace emulated {

template <typename To, typename From>
To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <typename Lane>
struct Lanes {
  Lane at[64 / sizeof(Lane)];
};
using Words = Lanes<std::uint32_t>;
using Halves = Lanes<std::uint16_t>;

template <typename Vector>
Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <typename Vector>
void store(void* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// Whether an address is a multiple of 64: the instruction would fault where it is not.
inline void want_aligned(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 64 != 0) __builtin_trap();
}

template <typename Lane, typename Compute>
Lanes<Lane> each(Compute compute) {
  Lanes<Lane> made;
  for (unsigned lane = 0; lane < 64 / sizeof(Lane); ++lane) made.at[lane] = compute(lane);
  return made;
}

// A number of IEEE's 16 bits: a sign, 5 bits of exponent, 10 of the rest.
inline float from_half(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31, rest = bits & 0x3ff;
  const int exponent = bits >> 10 & 31;
  if (exponent == 31) {  // infinite, or not a number, which comes out quiet
    return as<float>(sign | 0x7f800000 | rest << 13 | (rest != 0 ? 0x400000u : 0));
  }
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(rest), -24)
                                   : std::ldexp(static_cast<float>(rest + 1024), exponent - 25);
  return as<float>(as<std::uint32_t>(size) | sign);
}

// Rounds to the nearest such number, ties to even; NaN stays NaN.
inline std::uint16_t to_half(float value) {
  const std::uint32_t bits = as<std::uint32_t>(value);
  const unsigned sign = bits >> 16 & 0x8000;
  if (value != value) return static_cast<std::uint16_t>(sign | 0x7e00 | (bits >> 13 & 0x3ff));
  const float size = as<float>(bits & 0x7fffffff);
  if (size >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  int exponent;
  std::frexp(size, &exponent);
  const int last = size < 0x1p-14f ? -24 : exponent - 11;  // the power of two of the last place
  const auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(size, -last)));
  return static_cast<std::uint16_t>(sign | ((static_cast<unsigned>(last + 24) << 10) + steps));
}

inline float widened(std::uint16_t upper) { return as<float>(std::uint32_t{upper} << 16); }

// Rounds to the nearest, ties to even; NaN stays NaN.
inline std::uint16_t narrowed(float value) {
  const std::uint32_t bits = as<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace emulated

// Any address may be fetched.
inline void emulated_prefetch() {}
#define _mm_prefetch(address, hint) (static_cast<void>(address), emulated_prefetch())

// Whole vectors.
inline __m128i _mm_loadu_si128(const __m128i* from) { return emulated::load<__m128i>(from); }
inline __m256i _mm256_loadu_si256(const __m256i* from) { return emulated::load<__m256i>(from); }
inline __m512 _mm512_loadu_ps(const void* from) { return emulated::load<__m512>(from); }
inline __m512i _mm512_loadu_si512(const void* from) { return emulated::load<__m512i>(from); }
inline void _mm512_storeu_ps(void* to, __m512 value) { emulated::store(to, value); }
inline __m512 _mm512_load_ps(const void* from) {
  emulated::want_aligned(from);
  return emulated::load<__m512>(from);
}
inline void _mm512_store_ps(void* to, __m512 value) {
  emulated::want_aligned(to);
  emulated::store(to, value);
}
inline void _mm512_store_si512(void* to, __m512i value) {
  emulated::want_aligned(to);
  emulated::store(to, value);
}

inline __m512i _mm512_load_si512(const void* from) {
  emulated::want_aligned(from);
  return emulated::load<__m512i>(from);
}
inline void _mm256_storeu_si256(__m256i* to, __m256i value) { emulated::store(to, value); }

// Some lanes.
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* from) {
  const float* lanes = static_cast<const float*>(from);
  return emulated::as<__m512>(emulated::each<float>(
      [&](unsigned lane) { return mask >> lane & 1 ? lanes[lane] : 0.0f; }));
}
inline void _mm512_mask_storeu_ps(void* to, __mmask16 mask, __m512 value) {
  for (unsigned lane = 0; lane < 16; ++lane) {
    if (mask >> lane & 1) static_cast<float*>(to)[lane] = value[lane];
  }
}
inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* from) {
  std::uint16_t lanes[16];
  for (unsigned lane = 0; lane < 16; ++lane) {
    lanes[lane] = mask >> lane & 1 ? static_cast<const std::uint16_t*>(from)[lane] : 0;
  }
  return emulated::load<__m256i>(lanes);
}
inline void _mm256_mask_storeu_epi16(void* to, __mmask16 mask, __m256i value) {
  std::uint16_t lanes[16];
  emulated::store(lanes, value);
  for (unsigned lane = 0; lane < 16; ++lane) {
    if (mask >> lane & 1) static_cast<std::uint16_t*>(to)[lane] = lanes[lane];
  }
}
inline __m128i _mm_maskz_loadu_epi8(__mmask16 mask, const void* from) {
  std::int8_t lanes[16];
  for (unsigned lane = 0; lane < 16; ++lane) {
    lanes[lane] = mask >> lane & 1 ? static_cast<const std::int8_t*>(from)[lane] : std::int8_t{0};
  }
  return emulated::load<__m128i>(lanes);
}
inline void _mm_mask_storeu_epi8(void* to, __mmask16 mask, __m128i value) {
  std::int8_t lanes[16];
  emulated::store(lanes, value);
  for (unsigned lane = 0; lane < 16; ++lane) {
    if (mask >> lane & 1) static_cast<std::int8_t*>(to)[lane] = lanes[lane];
  }
}
inline __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void* from) {
  const std::uint16_t* lanes = static_cast<const std::uint16_t*>(from);
  return emulated::as<__m512i>(emulated::each<std::uint16_t>(
      [&](unsigned lane) -> std::uint16_t { return mask >> lane & 1 ? lanes[lane] : 0; }));
}

// Floats.
inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512 _mm512_set1_ps(float value) {
  return emulated::as<__m512>(emulated::each<float>([&](unsigned) { return value; }));
}
inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
inline __m512 _mm512_sqrt_ps(__m512 a) {
  for (unsigned lane = 0; lane < 16; ++lane) a[lane] = std::sqrt(a[lane]);
  return a;
}
inline __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
inline __m512 _mm512_min_ps(__m512 a, __m512 b) { return a < b ? a : b; }
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  for (unsigned lane = 0; lane < 16; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return c;
}
inline __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(-a, b, c); }
inline __m512 _mm512_mask_mov_ps(__m512 a, __mmask16 mask, __m512 b) {
  for (unsigned lane = 0; lane < 16; ++lane) {
    if (mask >> lane & 1) a[lane] = b[lane];
  }
  return a;
}
inline __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a) {
  return _mm512_mask_mov_ps(__m512{}, mask, a);
}
inline __m512 _mm512_mask_mul_ps(__m512 a, __mmask16 mask, __m512 b, __m512 c) {
  return _mm512_mask_mov_ps(a, mask, b * c);
}
inline float _mm512_cvtss_f32(__m512 a) { return a[0]; }
inline float _mm512_reduce_add_ps(__m512 a) {
  for (unsigned half = 8; half > 0; half /= 2) {
    for (unsigned lane = 0; lane < half; ++lane) a[lane] += a[lane + half];
  }
  return a[0];
}
inline float _mm512_reduce_max_ps(__m512 a) {
  for (unsigned half = 8; half > 0; half /= 2) {
    for (unsigned lane = 0; lane < half; ++lane) {
      a[lane] = a[lane] > a[lane + half] ? a[lane] : a[lane + half];
    }
  }
  return a[0];
}
inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int kind) {
  unsigned mask = 0;
  for (unsigned lane = 0; lane < 16; ++lane) {
    const bool holds = kind == _CMP_LT_OQ   ? a[lane] < b[lane]
                       : kind == _CMP_GT_OQ ? a[lane] > b[lane]
                       : kind == _CMP_EQ_OQ ? a[lane] == b[lane]
                                            : a[lane] != a[lane] || b[lane] != b[lane];
    mask |= static_cast<unsigned>(holds) << lane;
  }
  return static_cast<__mmask16>(mask);
}
inline __m512 _mm512_roundscale_ps(__m512 a, int) {
  for (unsigned lane = 0; lane < 16; ++lane) a[lane] = std::nearbyint(a[lane]);
  return a;
}
inline void _mm512_stream_ps(void* to, __m512 a) {
  emulated::want_aligned(to);
  emulated::store(to, a);
}
inline void _mm_sfence() {}
// Exponents, and mantissas from 0.75 to below 1.5, of numbers above zero.
inline __m512 _mm512_getexp_ps(__m512 a) {
  for (unsigned lane = 0; lane < 16; ++lane) a[lane] = std::logb(a[lane]);
  return a;
}
inline __m512 _mm512_getmant_ps(__m512 a, int, int) {
  for (unsigned lane = 0; lane < 16; ++lane) {
    if (!std::isfinite(a[lane])) continue;
    int exponent;
    const float half = std::frexp(a[lane], &exponent);
    a[lane] = half < 0.75f ? 2 * half : half;
  }
  return a;
}
inline __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  for (unsigned lane = 0; lane < 16; ++lane) {
    const float power = std::floor(b[lane]);
    if (power != power) {
      a[lane] = power;
    } else {
      a[lane] = std::ldexp(a[lane], power < -500 ? -500 : power > 500 ? 500 : int(power));
    }
  }
  return a;
}
inline __m512 _mm512_cvtph_ps(__m256i a) {
  std::uint16_t lanes[16];
  emulated::store(lanes, a);
  return emulated::as<__m512>(
      emulated::each<float>([&](unsigned lane) { return emulated::from_half(lanes[lane]); }));
}
inline __m256i _mm512_cvtps_ph(__m512 a, int) {
  std::uint16_t lanes[16];
  for (unsigned lane = 0; lane < 16; ++lane) lanes[lane] = emulated::to_half(a[lane]);
  return emulated::load<__m256i>(lanes);
}
inline __m512 _mm512_permutex2var_ps(__m512 a, __m512i indices, __m512 b) {
  const auto from = emulated::as<emulated::Words>(indices);
  return emulated::as<__m512>(emulated::each<float>([&](unsigned lane) {
    const unsigned number = from.at[lane] % 32;
    return number < 16 ? a[number] : b[number - 16];
  }));
}

// Casts.
inline __m512 _mm512_castsi512_ps(__m512i a) { return emulated::as<__m512>(a); }
inline __m512i _mm512_castps_si512(__m512 a) { return emulated::as<__m512i>(a); }
inline __m256i _mm512_castsi512_si256(__m512i a) { return emulated::load<__m256i>(&a); }
inline __m512i _mm512_castsi128_si512(__m128i a) { return __m512i{a[0], a[1]}; }

// Integers.
inline __m512i _mm512_set1_epi32(int value) {
  return emulated::as<__m512i>(emulated::each<int>([&](unsigned) { return value; }));
}
inline __m512i _mm512_set_epi32(int p, int o, int n, int m, int l, int k, int j, int i, int h,
                                int g, int f, int e, int d, int c, int b, int a) {
  return emulated::as<__m512i>(
      emulated::Lanes<int>{{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p}});
}
inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  const auto x = emulated::as<emulated::Words>(a), y = emulated::as<emulated::Words>(b);
  return emulated::as<__m512i>(
      emulated::each<std::uint32_t>([&](unsigned lane) { return x.at[lane] + y.at[lane]; }));
}
inline __m512i _mm512_slli_epi32(__m512i a, unsigned bits) {
  const auto x = emulated::as<emulated::Words>(a);
  return emulated::as<__m512i>(
      emulated::each<std::uint32_t>([&](unsigned lane) { return x.at[lane] << bits; }));
}
inline __m512i _mm512_srli_epi32(__m512i a, unsigned bits) {
  const auto x = emulated::as<emulated::Words>(a);
  return emulated::as<__m512i>(
      emulated::each<std::uint32_t>([&](unsigned lane) { return x.at[lane] >> bits; }));
}
inline __m512i _mm512_mask_mov_epi32(__m512i a, __mmask16 mask, __m512i b) {
  const auto x = emulated::as<emulated::Words>(a), y = emulated::as<emulated::Words>(b);
  return emulated::as<__m512i>(emulated::each<std::uint32_t>(
      [&](unsigned lane) { return mask >> lane & 1 ? y.at[lane] : x.at[lane]; }));
}
inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  std::uint16_t lanes[16];
  emulated::store(lanes, a);
  return emulated::as<__m512i>(
      emulated::each<std::uint32_t>([&](unsigned lane) { return lanes[lane]; }));
}
inline __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const auto x = emulated::as<emulated::Words>(a);
  std::uint16_t lanes[16];
  for (unsigned lane = 0; lane < 16; ++lane) lanes[lane] = static_cast<std::uint16_t>(x.at[lane]);
  return emulated::load<__m256i>(lanes);
}
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
inline __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  const auto x = emulated::as<emulated::Words>(a), y = emulated::as<emulated::Words>(b);
  return emulated::as<__m512i>(
      emulated::each<std::uint32_t>([&](unsigned lane) { return x.at[lane] - y.at[lane]; }));
}
inline __m512i _mm512_mullo_epi32(__m512i a, __m512i b) {
  const auto x = emulated::as<emulated::Words>(a), y = emulated::as<emulated::Words>(b);
  return emulated::as<__m512i>(
      emulated::each<std::uint32_t>([&](unsigned lane) { return x.at[lane] * y.at[lane]; }));
}
inline __m512i _mm512_max_epu32(__m512i a, __m512i b) {
  const auto x = emulated::as<emulated::Words>(a), y = emulated::as<emulated::Words>(b);
  return emulated::as<__m512i>(emulated::each<std::uint32_t>(
      [&](unsigned lane) { return x.at[lane] > y.at[lane] ? x.at[lane] : y.at[lane]; }));
}
inline int _mm512_reduce_add_epi32(__m512i a) {
  std::uint32_t sum = 0;
  for (const std::uint32_t lane : emulated::as<emulated::Words>(a).at) sum += lane;
  return static_cast<int>(sum);
}
inline unsigned _mm512_reduce_max_epu32(__m512i a) {
  std::uint32_t largest = 0;
  for (const std::uint32_t lane : emulated::as<emulated::Words>(a).at) {
    largest = lane > largest ? lane : largest;
  }
  return largest;
}
inline __m512 _mm512_cvtepi32_ps(__m512i a) {
  const auto x = emulated::as<emulated::Lanes<std::int32_t>>(a);
  return emulated::as<__m512>(
      emulated::each<float>([&](unsigned lane) { return static_cast<float>(x.at[lane]); }));
}
// What no integer is near gives the smallest of all, as the instruction has it.
inline __m512i _mm512_cvtps_epi32(__m512 a) {
  return emulated::as<__m512i>(emulated::each<std::int32_t>([&](unsigned lane) -> std::int32_t {
    const float near = std::nearbyint(a[lane]);
    return near >= -0x1p31f && near < 0x1p31f ? static_cast<std::int32_t>(near) : INT32_MIN;
  }));
}
inline __m256i _mm512_cvtsepi32_epi16(__m512i a) {
  const auto x = emulated::as<emulated::Lanes<std::int32_t>>(a);
  std::int16_t lanes[16];
  for (unsigned lane = 0; lane < 16; ++lane) {
    const std::int32_t value = x.at[lane];
    lanes[lane] = static_cast<std::int16_t>(value > 32767 ? 32767 : value < -32768 ? -32768 : value);
  }
  return emulated::load<__m256i>(lanes);
}
inline void _mm512_mask_cvtsepi32_storeu_epi8(void* to, __mmask16 mask, __m512i a) {
  const auto x = emulated::as<emulated::Lanes<std::int32_t>>(a);
  for (unsigned lane = 0; lane < 16; ++lane) {
    const std::int32_t value = x.at[lane] > 127 ? 127 : x.at[lane] < -128 ? -128 : x.at[lane];
    if (mask >> lane & 1) static_cast<std::int8_t*>(to)[lane] = static_cast<std::int8_t>(value);
  }
}
inline __m512i _mm512_cvtepi8_epi16(__m256i a) {
  std::int8_t lanes[32];
  emulated::store(lanes, a);
  return emulated::as<__m512i>(
      emulated::each<std::int16_t>([&](unsigned lane) { return std::int16_t{lanes[lane]}; }));
}
inline __m512i _mm512_cvtepi8_epi32(__m128i a) {
  std::int8_t lanes[16];
  emulated::store(lanes, a);
  return emulated::as<__m512i>(
      emulated::each<std::int32_t>([&](unsigned lane) { return std::int32_t{lanes[lane]}; }));
}
inline __m512i _mm512_cvtepu8_epi32(__m128i a) {
  std::uint8_t lanes[16];
  emulated::store(lanes, a);
  return emulated::as<__m512i>(
      emulated::each<std::int32_t>([&](unsigned lane) { return std::int32_t{lanes[lane]}; }));
}
inline __m512i _mm512_srli_epi16(__m512i a, unsigned bits) {
  const auto x = emulated::as<emulated::Halves>(a);
  return emulated::as<__m512i>(emulated::each<std::uint16_t>(
      [&](unsigned lane) { return static_cast<std::uint16_t>(x.at[lane] >> bits); }));
}
inline __m512i _mm512_slli_epi16(__m512i a, unsigned bits) {
  const auto x = emulated::as<emulated::Halves>(a);
  return emulated::as<__m512i>(emulated::each<std::uint16_t>(
      [&](unsigned lane) { return static_cast<std::uint16_t>(x.at[lane] << bits); }));
}
inline __m512i _mm512_srai_epi16(__m512i a, unsigned bits) {
  const auto x = emulated::as<emulated::Lanes<std::int16_t>>(a);
  return emulated::as<__m512i>(emulated::each<std::int16_t>(
      [&](unsigned lane) { return static_cast<std::int16_t>(x.at[lane] >> bits); }));
}
inline __m512i _mm512_sub_epi16(__m512i a, __m512i b) {
  const auto x = emulated::as<emulated::Halves>(a), y = emulated::as<emulated::Halves>(b);
  return emulated::as<__m512i>(emulated::each<std::uint16_t>(
      [&](unsigned lane) { return static_cast<std::uint16_t>(x.at[lane] - y.at[lane]); }));
}
inline __m512i _mm512_permutexvar_epi16(__m512i indices, __m512i a) {
  const auto from = emulated::as<emulated::Halves>(indices), x = emulated::as<emulated::Halves>(a);
  return emulated::as<__m512i>(
      emulated::each<std::uint16_t>([&](unsigned lane) { return x.at[from.at[lane] % 32]; }));
}
// Sums of two products of 16 bits each, that wrap.
inline __m512i _mm512_dpwssd_epi32(__m512i sums, __m512i a, __m512i b) {
  const auto sum = emulated::as<emulated::Words>(sums);
  const auto x = emulated::as<emulated::Lanes<std::int16_t>>(a);
  const auto y = emulated::as<emulated::Lanes<std::int16_t>>(b);
  return emulated::as<__m512i>(emulated::each<std::uint32_t>([&](unsigned lane) {
    const std::uint32_t first = std::int32_t{x.at[2 * lane]} * y.at[2 * lane];
    const std::uint32_t second = std::int32_t{x.at[2 * lane + 1]} * y.at[2 * lane + 1];
    return sum.at[lane] + first + second;
  }));
}
inline __m512i _mm512_inserti32x4(__m512i a, __m128i b, int place) {
  a[2 * place] = b[0];
  a[2 * place + 1] = b[1];
  return a;
}
inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int places) {
  __m512i out;
  for (int part = 0; part < 4; ++part) {
    const int from = places >> (2 * part) & 3;
    for (int i = 0; i < 2; ++i) out[2 * part + i] = (part < 2 ? a : b)[2 * from + i];
  }
  return out;
}
inline __m512i _mm512_set_epi64(long long h, long long g, long long f, long long e, long long d,
                                long long c, long long b, long long a) {
  return __m512i{a, b, c, d, e, f, g, h};
}
inline __m512i _mm512_permutexvar_epi64(__m512i places, __m512i a) {
  __m512i out;
  for (int lane = 0; lane < 8; ++lane) out[lane] = a[places[lane] & 7];
  return out;
}
inline __m256i _mm512_extracti64x4_epi64(__m512i a, int half) {
  return __m256i{a[4 * half], a[4 * half + 1], a[4 * half + 2], a[4 * half + 3]};
}

namespace emulated {

// In each 16 bytes: the lanes of one half of `a` and of `b` in turn.
template <typename Lane>
__m512i unpacked(__m512i a, __m512i b, bool is_high) {
  constexpr unsigned SIZE = 16 / sizeof(Lane);
  const auto x = as<Lanes<Lane>>(a), y = as<Lanes<Lane>>(b);
  return as<__m512i>(each<Lane>([&](unsigned lane) {
    const unsigned from = lane / SIZE * SIZE + lane % SIZE / 2 + (is_high ? SIZE / 2 : 0);
    return lane % 2 ? y.at[from] : x.at[from];
  }));
}

}  // namespace emulated

inline __m512i _mm512_unpacklo_epi16(__m512i a, __m512i b) {
  return emulated::unpacked<std::uint16_t>(a, b, false);
}
inline __m512i _mm512_unpackhi_epi16(__m512i a, __m512i b) {
  return emulated::unpacked<std::uint16_t>(a, b, true);
}
inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
  return emulated::unpacked<std::uint32_t>(a, b, false);
}
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
  return emulated::unpacked<std::uint32_t>(a, b, true);
}
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
  return emulated::unpacked<std::uint64_t>(a, b, false);
}
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
  return emulated::unpacked<std::uint64_t>(a, b, true);
}

// Pairs of numbers in bfloat16.
inline __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b) {
  return emulated::as<__m512bh>(emulated::each<std::uint16_t>([&](unsigned lane) {
    return emulated::narrowed(lane < 16 ? b[lane] : a[lane - 16]);
  }));
}
inline __m256bh _mm512_cvtneps_pbh(__m512 a) {
  std::uint16_t words[16];
  for (unsigned lane = 0; lane < 16; ++lane) words[lane] = emulated::narrowed(a[lane]);
  __m256bh out;
  std::memcpy(&out, words, sizeof out);
  return out;
}
inline __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  const auto x = emulated::as<emulated::Halves>(a), y = emulated::as<emulated::Halves>(b);
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned from = lane / 2 * 2 + 1 - lane % 2;  // the odd one first
    sums[lane / 2] += emulated::widened(x.at[from]) * emulated::widened(y.at[from]);
  }
  return sums;
}

// Tiles: up to 16 rows of up to 64 bytes.
namespace emulated {

struct Tile {
  std::uint32_t rows[16][16];
};

struct TileState {
  Tile tiles[8];
  unsigned char config[64];
  int rows(int tile) const { return config[48 + tile]; }
  int words(int tile) const { return (config[16 + 2 * tile] | config[17 + 2 * tile] << 8) / 4; }
};

inline TileState& tile_state() {
  static thread_local TileState state{};
  return state;
}

}  // namespace emulated

inline void _tile_storeconfig(void* to) { std::memcpy(to, emulated::tile_state().config, 64); }
inline void _tile_loadconfig(const void* from) {
  emulated::tile_state() = {};
  std::memcpy(emulated::tile_state().config, from, 64);
}
inline void _tile_zero(int tile) { emulated::tile_state().tiles[tile] = {}; }
inline void _tile_loadd(int tile, const void* from, std::int64_t stride) {
  auto& state = emulated::tile_state();
  for (int row = 0; row < state.rows(tile); ++row) {
    std::memcpy(state.tiles[tile].rows[row], static_cast<const char*>(from) + row * stride,
                state.words(tile) * 4);
  }
}
inline void _tile_stored(int tile, void* to, std::int64_t stride) {
  const auto& state = emulated::tile_state();
  for (int row = 0; row < state.rows(tile); ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, state.tiles[tile].rows[row],
                state.words(tile) * 4);
  }
}
inline void _tile_dpbf16ps(int sums, int left, int right) {
  auto& state = emulated::tile_state();
  const auto number = [&](int tile, int row, int word, bool upper) {
    const std::uint32_t both = state.tiles[tile].rows[row][word];
    return emulated::widened(static_cast<std::uint16_t>(upper ? both >> 16 : both));
  };
  for (int row = 0; row < state.rows(sums); ++row) {
    for (int column = 0; column < state.words(sums); ++column) {
      std::uint32_t& at = state.tiles[sums].rows[row][column];
      float sum = emulated::as<float>(at);
      for (int pair = 0; pair < state.words(left); ++pair) {
        for (const bool upper : {false, true}) {
          const float factor = number(left, row, pair, upper);
          sum = __builtin_fmaf(factor, number(right, pair, column, upper), sum);
        }
      }
      at = emulated::as<std::uint32_t>(sum);
    }
  }
}

#include "packed_bytes.h"
