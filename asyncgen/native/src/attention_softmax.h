// The softmax of some scores, and how those of several parts of the keys become one.
//
// Merging softmaxes by their maxima and sums is Milakov and Gimelshein, "Online normalizer
// calculation for softmax" (2018), section 3.1, with the weighted sums of the values carried along
// as in Dao, Fu, Ermon, Rudra and Re, "FlashAttention" (2022), section 3.1. It is computed in
// powers of two: a score is multiplied by log2 e once, with its scale.
#pragma once

#include "vectors.h"

constexpr float MINUS_INFINITY = -__builtin_inff();
constexpr float LOG2_E = 1.44269504f;

// What a query gathered of some keys: the largest score, the sum of all weights, and from SUMS on
// the weighted sum of the values.
constexpr std::int64_t SUMS = LANES;
constexpr std::int64_t MOST_RECORD = SUMS + MOST_SIZE;

struct Range {
  std::int64_t first, end;
};

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline std::int64_t parts(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

// 2^x of what is at most a little above zero, to two units in the last place: x = n + r, and a
// polynomial for |r| <= 1 / 2, the best of its degree that is 1 at 0.
inline f32x16 power_of_two(f32x16 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);  // in this order NaN stays
  const f32x16 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const f32x16 r = _mm512_sub_ps(x, n);
  f32x16 p = _mm512_set1_ps(1.326472731e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.671512991e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550733581e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402224243e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931470037e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// How an engine keeps its weights. They lie where the scores were, whose place they need not fill.
template <typename W>
struct Weights;

template <>
struct Weights<float> {
  static f32x16 power(f32x16 x) { return power_of_two(x); }
  // Writes sixteen weights, and returns what they are from now on.
  static f32x16 keep(f32x16 weights, float* to) {
    _mm512_storeu_ps(to, weights);
    return weights;
  }
};

// Calls `use(at, lanes)` for sixteen scores of a range after another, with those of `seen`.
template <typename Use>
inline void for_lanes(Range range, Range seen, Use use) {
  const Range whole{parts(most(seen.first, range.first), LANES) * LANES,
                    least(seen.end, range.end) / LANES * LANES};
  const auto some = [&](std::int64_t at) {
    use(at, first_lanes(seen.end - at) & ~first_lanes(seen.first - at));
  };
  std::int64_t at = range.first;
  for (; at < least(whole.first, range.end); at += LANES) some(at);
  for (; at < whole.end; at += LANES) use(at, 0xffff);
  for (; at < range.end; at += LANES) some(at);
}

// Turns a query's scores of `range` within its split into weights and notes their maximum and sum.
// Only those of `seen` count; the others get no weight. The sum is that of the weights as they are
// kept: where they are rounded a result is still a mean of the values.
template <typename W>
void weigh(float* scores, Range range, Range seen, float scale, float* record) {
  const f32x16 factor = _mm512_set1_ps(scale * LOG2_E), nothing = _mm512_set1_ps(MINUS_INFINITY);
  f32x16 largest = nothing;
  for_lanes(range, seen, [&](std::int64_t at, __mmask16 lanes) {
    const f32x16 score = _mm512_mask_mul_ps(nothing, lanes, _mm512_loadu_ps(scores + at), factor);
    largest = _mm512_max_ps(score, largest);
  });
  record[0] = _mm512_reduce_max_ps(largest);
  const f32x16 shift = _mm512_set1_ps(record[0] == MINUS_INFINITY ? 0.0f : -record[0]);
  W* weights = reinterpret_cast<W*>(scores);
  f32x16 sum = _mm512_setzero_ps();
  for_lanes(range, seen, [&](std::int64_t at, __mmask16 lanes) {
    const f32x16 score = _mm512_fmadd_ps(_mm512_loadu_ps(scores + at), factor, shift);
    const f32x16 weight = _mm512_maskz_mov_ps(lanes, Weights<W>::power(score));
    sum = _mm512_add_ps(sum, Weights<W>::keep(weight, weights + at));
  });
  record[1] = _mm512_reduce_add_ps(sum);
}

// tanh to an error of 2^-23 of itself: near zero an odd polynomial, fitted to the least relative
// error; elsewhere by the exponential function, where nothing cancels out.
inline f32x16 tangent(f32x16 x) {
  const f32x16 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f);
  const f32x16 size = _mm512_max_ps(_mm512_sub_ps(zero, x), x);  // in this order NaN stays
  const f32x16 square = _mm512_mul_ps(x, x);
  f32x16 p = _mm512_set1_ps(2.29274e-3f);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-8.34395e-3f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.176892e-2f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-5.395926e-2f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(1.3333304e-1f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-3.3333333e-1f));
  const f32x16 inner = _mm512_fmadd_ps(_mm512_mul_ps(p, square), x, x);
  const f32x16 e = power_of_two(_mm512_mul_ps(size, _mm512_set1_ps(-2.0f * LOG2_E)));
  const f32x16 outer = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __mmask16 is_negative = _mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ);
  const f32x16 turned = _mm512_mask_mov_ps(outer, is_negative, _mm512_sub_ps(zero, outer));
  const __mmask16 is_near = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(turned, is_near, inner);
}

// What comes between the scores of a query and the softmax, where a layer has it: the scale, a soft
// cap, and a slope by the distance from the query, which is at `own` within the split.
[[gnu::noinline]] static void bend(float* scores, Range range, float scale, float cap, float slope,
                 std::int64_t own) {
  alignas(64) static constexpr float LANE[LANES] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                    8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 lane = _mm512_load_ps(LANE), rise = _mm512_set1_ps(slope);
  const f32x16 inner = _mm512_set1_ps(cap == 0.0f ? scale : scale / cap);
  const f32x16 outer = _mm512_set1_ps(cap);
  for (std::int64_t at = range.first; at < range.end; at += LANES) {
    f32x16 score = _mm512_mul_ps(_mm512_loadu_ps(scores + at), inner);
    if (cap != 0.0f) score = _mm512_mul_ps(tangent(score), outer);
    const f32x16 away = _mm512_add_ps(lane, _mm512_set1_ps(static_cast<float>(at - own)));
    _mm512_storeu_ps(scores + at, _mm512_fmadd_ps(rise, away, score));
  }
}

// Adds what a query gathered of later keys.
inline void merge(float* record, const float* later, std::int64_t size) {
  const float largest = record[0] > later[0] ? record[0] : later[0];
  const float shift = largest == MINUS_INFINITY ? 0.0f : largest;
  const f32x16 before = power_of_two(_mm512_set1_ps(record[0] - shift));
  const f32x16 now = power_of_two(_mm512_set1_ps(later[0] - shift));
  record[0] = largest;
  const float old_sum = record[1] * _mm512_cvtss_f32(before);
  record[1] = __builtin_fmaf(later[1], _mm512_cvtss_f32(now), old_sum);
  for (std::int64_t at = SUMS; at < SUMS + size; at += LANES) {
    const f32x16 old = _mm512_mul_ps(_mm512_loadu_ps(record + at), before);
    _mm512_storeu_ps(record + at, _mm512_fmadd_ps(_mm512_loadu_ps(later + at), now, old));
  }
}

// One over the sum of all weights, beside which a sink counts with the weight of its score.
inline float share(const float* record, const float* sink) {
  if (sink == nullptr) return 1.0f / record[1];
  const float score = *sink * LOG2_E, largest = record[0] > score ? record[0] : score;
  const f32x16 own = power_of_two(_mm512_set1_ps(record[0] - largest));
  const f32x16 other = power_of_two(_mm512_set1_ps(score - largest));
  const float kept = _mm512_cvtss_f32(own);
  return kept / __builtin_fmaf(record[1], kept, _mm512_cvtss_f32(other));
}

template <typename T>
void write_result(const float* record, const float* sink, std::int64_t size, T* out) {
  const f32x16 factor = _mm512_set1_ps(share(record, sink));
  for (std::int64_t at = 0; at < size; at += LANES) {
    const f32x16 sum = _mm512_loadu_ps(record + SUMS + at);
    store(out + at, first_lanes(size - at), _mm512_mul_ps(sum, factor));
  }
}
