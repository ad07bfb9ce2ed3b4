// Experts, but for their products: which ones a token gets, its way there and back.

#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "team.h"
#include "vectors.h"

namespace {

constexpr float LOWEST = -std::numeric_limits<float>::infinity();
constexpr float NOTHING = std::numeric_limits<float>::quiet_NaN();

// Keeps the sum of weights above zero.
constexpr float LEAST_SUM = 1e-20f;

// One number for each expert, and -inf up to the next vector.
struct Numbers {
  alignas(64) float at[MOST_EXPERTS];
};

std::int64_t padded(std::int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Some numbers, and -inf in the lanes behind them.
f32x16 load_or_lowest(const float* from, std::int64_t count) {
  const __mmask16 lanes = first_lanes(count);
  return _mm512_mask_mov_ps(_mm512_set1_ps(LOWEST), lanes, load(from, lanes));
}

float largest(const Numbers& numbers, std::int64_t count) {
  f32x16 most = _mm512_set1_ps(LOWEST);
  for (std::int64_t at = 0; at < count; at += LANES) {
    most = _mm512_max_ps(most, _mm512_loadu_ps(numbers.at + at));
  }
  return _mm512_reduce_max_ps(most);
}

// The first of the largest numbers.
std::int64_t first_largest(const Numbers& numbers, std::int64_t count) {
  const f32x16 most = _mm512_set1_ps(largest(numbers, count));
  for (std::int64_t at = 0; at < count; at += LANES) {
    const f32x16 values = _mm512_loadu_ps(numbers.at + at);
    const unsigned less = _mm512_cmp_ps_mask(values, most, _CMP_LT_OQ);
    if (less != 0xffff) return std::min<std::int64_t>(at + __builtin_ctz(~less), count - 1);
  }
  return 0;
}

// Scores of logits, and their sum.
float score(const Routing& routing, const float* logits, Numbers& scores) {
  const std::int64_t count = routing.experts;
  f32x16 top = _mm512_setzero_ps(), sums = _mm512_setzero_ps();
  if (routing.scoring == Scoring::SOFTMAX) {
    top = _mm512_set1_ps(LOWEST);
    for (std::int64_t at = 0; at < count; at += LANES) {
      top = _mm512_max_ps(top, load_or_lowest(logits + at, count - at));
    }
    top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
  }
  for (std::int64_t at = 0; at < count; at += LANES) {
    const f32x16 values = load_or_lowest(logits + at, count - at);
    const f32x16 found = routing.scoring == Scoring::SIGMOID
                             ? sigmoid(values)
                             : exponential(_mm512_sub_ps(values, top));
    _mm512_storeu_ps(scores.at + at, found);
    sums = _mm512_add_ps(sums, found);
  }
  const float sum = _mm512_reduce_add_ps(sums);
  if (routing.scoring == Scoring::SIGMOID) return sum;
  const f32x16 factor = _mm512_set1_ps(1.0f / sum);
  for (std::int64_t at = 0; at < count; at += LANES) {
    _mm512_storeu_ps(scores.at + at, _mm512_mul_ps(_mm512_loadu_ps(scores.at + at), factor));
  }
  return sum;
}

// What experts are chosen by: their logits, which tell more of them apart than scores do, or their
// scores; either may be corrected.
void rank(const Routing& routing, const float* logits, const Numbers& scores, Numbers& ranks) {
  const bool is_corrected = routing.correction != nullptr && !routing.corrects_logits;
  for (std::int64_t at = 0; at < routing.experts; at += LANES) {
    const std::int64_t left = routing.experts - at;
    f32x16 values = load_or_lowest(logits + at, left);
    if (is_corrected || routing.best_of_group > 1) {
      values = load_or_lowest(scores.at + at, left);
    }
    if (routing.correction != nullptr) {
      values = _mm512_add_ps(values, load(routing.correction + at, first_lanes(left)));
    }
    _mm512_storeu_ps(ranks.at + at, values);
  }
}

// The sum of the best numbers of some; of one alone for `best` 1.
float worth(const float* from, std::int64_t count, std::int64_t best) {
  float first = LOWEST, second = LOWEST;
  for (std::int64_t at = 0; at < count; ++at) {
    second = std::max(second, std::min(first, from[at]));
    first = std::max(first, from[at]);
  }
  return best == 1 ? first : first + second;
}

// Leaves only experts of the best groups to be chosen.
void keep_best_groups(const Routing& routing, Numbers& ranks) {
  const std::int64_t groups = routing.groups, size = routing.experts / groups;
  Numbers worths;
  std::fill_n(worths.at, padded(groups), LOWEST);
  for (std::int64_t group = 0; group < groups; ++group) {
    worths.at[group] = worth(ranks.at + group * size, size, routing.best_of_group);
  }
  bool is_kept[MOST_EXPERTS] = {};
  for (std::int64_t number = 0; number < routing.chosen_groups; ++number) {
    const std::int64_t best = first_largest(worths, groups);
    is_kept[best] = true;
    worths.at[best] = LOWEST;
  }
  for (std::int64_t group = 0; group < groups; ++group) {
    if (!is_kept[group]) std::fill_n(ranks.at + group * size, size, LOWEST);
  }
}

// One after the other of Jin and others, "SparseMixer" (Phi-3.5-MoE's router): the largest logit,
// weighed against those of the others that are not far below it.
void choose_sparsely(const Routing& routing, Numbers& ranks, std::int32_t* ids, float* weights) {
  for (std::int64_t number = 0; number < routing.chosen; ++number) {
    const std::int64_t best = first_largest(ranks, routing.experts);
    const float top = ranks.at[best];
    float sum = 0.0f;
    for (std::int64_t expert = 0; expert < routing.experts; ++expert) {
      const float value = ranks.at[expert];
      if (value == LOWEST) continue;
      const float size = std::max(std::fabs(value), top);
      if (!((top - value) / size > routing.tolerance)) sum += std::exp(value - top);
    }
    ids[number] = static_cast<std::int32_t>(best);
    weights[number] = routing.scale / sum;
    ranks.at[best] = LOWEST;
  }
}

void choose_for_row(const Routing& routing, const float* logits, std::int32_t* ids,
                    float* weights) {
  Numbers scores, ranks;
  const float sum = score(routing, logits, scores);
  if (!(std::fabs(sum) < std::numeric_limits<float>::infinity())) {
    for (std::int64_t number = 0; number < routing.chosen; ++number) {
      ids[number] = static_cast<std::int32_t>(number);
      weights[number] = NOTHING;
    }
    return;
  }
  rank(routing, logits, scores, ranks);
  if (routing.scoring == Scoring::SPARSEMIXER) return choose_sparsely(routing, ranks, ids, weights);
  if (routing.chosen_groups < routing.groups) keep_best_groups(routing, ranks);
  float total = LEAST_SUM;
  for (std::int64_t number = 0; number < routing.chosen; ++number) {
    const std::int64_t best = first_largest(ranks, routing.experts);
    ids[number] = static_cast<std::int32_t>(best);
    weights[number] = scores.at[best];
    total += weights[number];
    ranks.at[best] = LOWEST;
  }
  const float factor = routing.is_normalised ? routing.scale / total : routing.scale;
  for (std::int64_t number = 0; number < routing.chosen; ++number) weights[number] *= factor;
}

template <typename T>
void spread_all(const Spread<T>& work) {
  for_rows(work.rows, work.chosen * work.features, [&](std::int64_t row) {
    const T* from = work.x + row * work.x_stride;
    for (std::int64_t number = 0; number < work.chosen; ++number) {
      T* to = work.out + work.places[row * work.chosen + number] * work.features;
      if (work.weights != nullptr) {
        const f32x16 weight = _mm512_set1_ps(work.weights[row * work.chosen + number]);
        for (std::int64_t at = 0; at < work.features; at += LANES) {
          const __mmask16 lanes = first_lanes(work.features - at);
          store(to + at, lanes, _mm512_mul_ps(weight, load(from + at, lanes)));
        }
        continue;
      }
      for (std::int64_t at = 0; at < work.features; at += LANES) {
        copy_lanes(from + at, first_lanes(work.features - at), to + at);
      }
    }
  });
}

template <typename T>
void mix_all(const Mixture<T>& work) {
  for_rows(work.rows, (work.chosen + 1) * work.features, [&](std::int64_t row) {
    const std::int32_t* places = work.places + row * work.chosen;
    const float* weights = work.weights + row * work.chosen;
    f32x16 passed = _mm512_set1_ps(1.0f);
    if (work.gates != nullptr) passed = sigmoid(_mm512_set1_ps(work.gates[row * work.gate_stride]));
    T* stream = work.stream + row * work.stride;
    for (std::int64_t at = 0; at < work.features; at += LANES) {
      const __mmask16 lanes = first_lanes(work.features - at);
      f32x16 sum = _mm512_setzero_ps();
      for (std::int64_t number = 0; number < work.chosen; ++number) {
        const f32x16 found = load(work.results + places[number] * work.features + at, lanes);
        sum = _mm512_fmadd_ps(_mm512_set1_ps(weights[number]), found, sum);
      }
      if (work.shared != nullptr) {
        const f32x16 found = load(work.shared + row * work.features + at, lanes);
        sum = _mm512_fmadd_ps(passed, found, sum);
      }
      store(stream + at, lanes, _mm512_add_ps(load(stream + at, lanes), sum));
    }
  });
}

template <typename T>
void widen(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t features, float* out) {
  for_rows(rows, features, [&](std::int64_t row) {
    for (std::int64_t at = 0; at < features; at += LANES) {
      const __mmask16 lanes = first_lanes(features - at);
      store(out + row * features + at, lanes, load(x + row * stride + at, lanes));
    }
  });
}

}  // namespace

void choose_experts(const Routing& routing, const float* logits, std::int64_t stride,
                    std::int64_t rows, std::int32_t* ids, float* weights) noexcept {
  for_rows(rows, routing.experts * routing.chosen, [&](std::int64_t row) {
    choose_for_row(routing, logits + row * stride, ids + row * routing.chosen,
                   weights + row * routing.chosen);
  });
}

void spread(const Spread<float>& work) noexcept { spread_all(work); }
void spread(const Spread<bf16>& work) noexcept { spread_all(work); }
void spread(const Spread<f16>& work) noexcept { spread_all(work); }

void mix(const Mixture<float>& work) noexcept { mix_all(work); }
void mix(const Mixture<bf16>& work) noexcept { mix_all(work); }
void mix(const Mixture<f16>& work) noexcept { mix_all(work); }

void widen_rows(const bf16* x, std::int64_t stride, std::int64_t rows, std::int64_t features,
                float* out) noexcept {
  widen(x, stride, rows, features, out);
}
void widen_rows(const f16* x, std::int64_t stride, std::int64_t rows, std::int64_t features,
                float* out) noexcept {
  widen(x, stride, rows, features, out);
}
