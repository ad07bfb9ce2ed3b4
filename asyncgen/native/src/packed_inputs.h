// Rows as integers, by groups of inputs.
#pragma once

#include <algorithm>

#include "packed_groups.h"

// Groups whose inputs are all smaller count as zero: what they would be divided by overflows.
constexpr float LEAST = 1e-30f;

// Rows as integers, a group's scale, its sum, that sum times the scale, and what a sum of products
// begins with, since weights are more than they are.
template <typename Way>
struct Quantised {
  using Number = typename Way::Number;
  Number* numbers;       // [rows, wide]
  float *scales, *sums;  // [rows, groups]
  std::int32_t *totals, *starts;
  std::int64_t wide, groups;

  Quantised(char* memory, const PackedLayout& layout, std::int64_t rows)
      : wide(layout.groups * layout.group), groups(layout.groups) {
    numbers = reinterpret_cast<Number*>(memory);
    scales = reinterpret_cast<float*>(numbers + rows * wide);
    sums = scales + rows * groups;
    totals = reinterpret_cast<std::int32_t*>(sums + rows * groups);
    starts = totals + rows * groups;
  }
};

template <typename T>
f32x16 inputs_at(const T* row, const std::int32_t* order, std::int64_t at, __mmask16 lanes) {
  if (order == nullptr) return load(row + at, lanes);
  alignas(64) T picked[LANES] = {};
  for (int lane = 0; lane < LANES && (lanes >> lane & 1) != 0; ++lane) {
    picked[lane] = row[order[at + lane]];
  }
  return load(picked, lanes);
}

// The largest size of a group's inputs. Of bits: what is not a number is larger than all.
template <typename T>
float largest_of(const T* row, const std::int32_t* order, std::int64_t at, std::int64_t end) {
  const __m512i all_but_sign = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (; at < end; at += LANES) {
    const f32x16 x = inputs_at(row, order, at, first_lanes(end - at));
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(x), all_but_sign));
  }
  const std::uint32_t bits = _mm512_reduce_max_epu32(largest);
  float most;
  std::memcpy(&most, &bits, sizeof most);
  return most;
}

// The same of bfloat16 as they lie: the least of what their bits leave, which one instruction finds.
inline float largest_of(const bf16* row, std::int64_t at, std::int64_t end) {
  const __m512i all_but_sign = _mm512_set1_epi16(0x7fff);
  __m512i least = all_but_sign;
  for (; at < end; at += 2 * LANES) {
    const std::int64_t count = end - at;
    const __mmask32 lanes = count < 2 * LANES ? (1u << count) - 1 : ~0u;
    const __m512i x = _mm512_maskz_loadu_epi16(lanes, row + at);
    least = _mm512_min_epu16(least, _mm512_andnot_si512(x, all_but_sign));
  }
  const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(least),
                                        _mm512_extracti64x4_epi64(least, 1));
  const __m128i quarter =
      _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const std::uint32_t left = _mm_cvtsi128_si32(_mm_minpos_epu16(quarter)) & 0xffff;
  const std::uint32_t bits = (0x7fff - left) << 16;
  float most;
  std::memcpy(&most, &bits, sizeof most);
  return most;
}

// Makes integers of a row: its groups' scales, then what they are divided by, kept where their sums
// come to lie, then the integers.
template <typename Way, typename T>
void quantise_row(const T* row, const PackedLayout& layout, std::int64_t inputs,
                  const Quantised<Way>& to, std::int64_t number) {
  const std::int64_t groups = layout.groups, place = number * groups;
  float *scales = to.scales + place, *sums = to.sums + place;
  std::int32_t *totals = to.totals + place, *starts = to.starts + place;
  const auto end_of = [&](std::int64_t group) {
    return std::min((group + 1) * layout.group, inputs);
  };
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t at = group * layout.group;
    if constexpr (std::is_same_v<T, bf16>) {
      if (layout.order == nullptr) {
        scales[group] = largest_of(row, at, end_of(group));
        continue;
      }
    }
    scales[group] = largest_of(row, layout.order, at, end_of(group));
  }
  const f32x16 most = _mm512_set1_ps(Way::MOST);
  for (std::int64_t group = 0; group < groups; group += LANES) {
    const __mmask16 lanes = first_lanes(groups - group);
    const f32x16 largest = load(scales + group, lanes);
    const __mmask16 is_zero = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(LEAST), _CMP_LT_OQ);
    const __mmask16 counts = static_cast<__mmask16>(~is_zero);
    store(scales + group, lanes, _mm512_maskz_div_ps(counts, largest, most));
    store(sums + group, lanes, _mm512_maskz_div_ps(counts, most, largest));
  }
  for (std::int64_t group = 0; group < groups; ++group) {
    const f32x16 factor = _mm512_set1_ps(sums[group]);
    typename Way::Sums integers;
    for (std::int64_t at = group * layout.group; at < (group + 1) * layout.group; at += LANES) {
      const f32x16 x = inputs_at(row, layout.order, at, first_lanes(inputs - at));
      integers.store(to.numbers + number * to.wide + at,
                     _mm512_cvtps_epi32(_mm512_mul_ps(x, factor)), layout.has_table);
    }
    totals[group] = integers.total();
  }
  for (std::int64_t group = 0; group < groups; ++group) {
    sums[group] = static_cast<float>(totals[group]) * scales[group];
    starts[group] = -Way::BIAS * totals[group];
  }
}

// Inputs of a step, for each output.
template <typename Number>
inline __m512i step_at(const Number* numbers) {
  std::int32_t step;
  std::memcpy(&step, numbers, sizeof step);
  return _mm512_set1_epi32(step);
}

// Adds what a group of a row gives to its sum, from the sum of integers.
inline f32x16 add_group(f32x16 sum, __m512i whole, f32x16 scale, float row_scale) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole),
                         _mm512_mul_ps(scale, _mm512_set1_ps(row_scale)), sum);
}
