// Many rows by a panel that is unpacked once for all of them.
#pragma once

#include "packed_inputs.h"
#include "products.h"

// Rows at a time: two integer and two float accumulators each, of 32 registers.
constexpr int MOST_ROWS = 6;

// A panel whose numbers are unpacked; zero points are taken off.
struct Unpacked {
  static constexpr std::int64_t STEP_BYTES = 128;
  char* numbers;             // [steps, 2, 16 outputs, inputs of a step]
  float *scales, *minimums;  // [groups, 2, 16]

  template <typename Way>
  static std::int64_t bytes(const PackedLayout& layout) {
    return layout.groups * (layout.group / Way::STEP * STEP_BYTES + 2 * PANEL * 4);
  }
  template <typename Way>
  static Unpacked in(char* memory, const PackedLayout& layout) {
    float* scales = reinterpret_cast<float*>(
        memory + layout.groups * layout.group / Way::STEP * STEP_BYTES);
    return {memory, scales, scales + layout.groups * PANEL};
  }
};

// Zero points that can be taken off of all numbers within 8 bits, unsigned; any within 16 bits.
template <typename Way>
inline bool fits(const PackedLayout& layout, __m512i zeros) {
  if (Way::BIAS == 0) return true;
  const __m512i least = _mm512_set1_epi32(layout.most - 127);
  const __m512i most = _mm512_set1_epi32(layout.least + 128);
  return (_mm512_cmplt_epi32_mask(zeros, least) | _mm512_cmpgt_epi32_mask(zeros, most)) == 0;
}

// Whether all of a panel's numbers fit, and then it is unpacked.
template <typename Way, bool HAS_TABLE>
bool unpack(const PackedLayout& layout, std::int64_t panel, const Unpacked& to) {
  const __m512i table = HAS_TABLE ? Way::table_of(layout) : _mm512_setzero_si512();
  const std::int64_t group_bytes = layout.group / Way::STEP * Unpacked::STEP_BYTES;
  for (int half = 0; half < 2; ++half) {
    const char* at = layout.data + (panel * 2 + half) * layout.half_bytes;
    char* numbers = to.numbers + half * 64;
    Scales scales{};
    for (std::int64_t group = 0; group < layout.groups; ++group, numbers += group_bytes) {
      scales.read(layout, at);
      if (layout.has_zeros && !fits<Way>(layout, scales.zero)) return false;
      _mm512_store_ps(to.scales + (2 * group + half) * LANES, scales.scale);
      _mm512_store_ps(to.minimums + (2 * group + half) * LANES, scales.minimum);
      const __m512i zeros = Way::spread(scales.zero);
      for_steps<Way, HAS_TABLE>(table, at, layout.group, [&](std::int64_t step, __m512i weights) {
        if (layout.has_zeros) weights = Way::less(weights, zeros);
        _mm512_store_si512(numbers + step * Unpacked::STEP_BYTES, weights);
      });
    }
  }
  return true;
}

// The sums of some rows by both halves of a panel. Meanwhile so many bytes for each group are
// fetched, of what is unpacked next.
template <int ROWS, typename Way, typename T>
void many_rows(const Product<T, PackedLayout>& product, const Quantised<Way>& x,
               const Unpacked& unpacked, std::int64_t row, std::int64_t first, std::int64_t panel,
               const char* next, std::int64_t bytes) {
  const PackedLayout& layout = *product.weight;
  f32x16 low[ROWS], high[ROWS];
  clear(low);
  clear(high);
  const typename Way::Number* numbers = x.numbers + row * x.wide;
  const char* weights = unpacked.numbers;
  for (std::int64_t group = 0; group < layout.groups; ++group) {
    const std::int64_t place = row * x.groups + group;
    __m512i first_sums[ROWS], second_sums[ROWS];
    for (int at = 0; at < ROWS; ++at) {
      first_sums[at] = second_sums[at] =
          Way::BIAS == 0 ? _mm512_setzero_si512()
                         : _mm512_set1_epi32(x.starts[place + at * x.groups]);
    }
    for (const char* end = next + bytes; next < end; next += 64) _mm_prefetch(next, _MM_HINT_T1);
    for (std::int64_t k = 0; k < layout.group; k += 4 * Way::STEP) {
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        const __m512i upper = _mm512_load_si512(weights);
        const __m512i lower = _mm512_load_si512(weights + 64);
#pragma GCC unroll 8
        for (int at = 0; at < ROWS; ++at) {
          const __m512i inputs = step_at(numbers + at * x.wide);
          first_sums[at] = Way::add(first_sums[at], upper, inputs);
          second_sums[at] = Way::add(second_sums[at], lower, inputs);
        }
        numbers += Way::STEP;
        weights += Unpacked::STEP_BYTES;
      }
    }
    const float* scales = unpacked.scales + group * PANEL;
    const float* minimums = unpacked.minimums + group * PANEL;
    const f32x16 upper = _mm512_load_ps(scales), lower = _mm512_load_ps(scales + LANES);
#pragma GCC unroll 8
    for (int at = 0; at < ROWS; ++at) {
      const std::int64_t at_row = place + at * x.groups;
      low[at] = add_group(low[at], first_sums[at], upper, x.scales[at_row]);
      high[at] = add_group(high[at], second_sums[at], lower, x.scales[at_row]);
      if (layout.minimums == Scale::NONE) continue;
      const f32x16 sum = _mm512_set1_ps(x.sums[at_row]);
      low[at] = _mm512_fmadd_ps(_mm512_load_ps(minimums), sum, low[at]);
      high[at] = _mm512_fmadd_ps(_mm512_load_ps(minimums + LANES), sum, high[at]);
    }
  }
  for (int at = 0; at < ROWS; ++at) use_result(product, low[at], high[at], first + at, panel);
}
