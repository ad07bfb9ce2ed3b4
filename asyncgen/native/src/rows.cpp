// What is done to each row by itself: normalisation, rotary positions, bans of tokens, and the
// search for the likeliest one.

#include <algorithm>

#include "team.h"
#include "vectors.h"

namespace {

// x / sqrt(mean(x^2) + eps) * weight, for one row.
template <typename T>
void scale_by_size(const T* x, T* out, const float* weight, std::int64_t features, float eps) {
  f32x16 squares = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < features; at += LANES) {
    const f32x16 values = load(x + at, first_lanes(features - at));
    squares = _mm512_fmadd_ps(values, values, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(features);
  const f32x16 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for (std::int64_t at = 0; at < features; at += LANES) {
    const __mmask16 lanes = first_lanes(features - at);
    const f32x16 scaled = _mm512_mul_ps(load(x + at, lanes), factor);
    store(out + at, lanes, _mm512_mul_ps(scaled, load(weight + at, lanes)));
  }
}

// (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, for one row.
template <typename T>
void centre(const T* x, T* out, const float* weight, const float* bias, std::int64_t features,
            float eps) {
  const float size = static_cast<float>(features);
  f32x16 sum = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < features; at += LANES) {
    sum = _mm512_add_ps(sum, load(x + at, first_lanes(features - at)));
  }
  const f32x16 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / size);
  f32x16 squares = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < features; at += LANES) {
    const __mmask16 lanes = first_lanes(features - at);
    const f32x16 all = _mm512_sub_ps(load(x + at, lanes), mean);
    const f32x16 away = _mm512_mask_mov_ps(_mm512_setzero_ps(), lanes, all);
    squares = _mm512_fmadd_ps(away, away, squares);
  }
  const float variance = _mm512_reduce_add_ps(squares) / size;
  const f32x16 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(variance + eps));
  for (std::int64_t at = 0; at < features; at += LANES) {
    const __mmask16 lanes = first_lanes(features - at);
    const f32x16 away = _mm512_mul_ps(_mm512_sub_ps(load(x + at, lanes), mean), factor);
    const f32x16 summand = bias == nullptr ? _mm512_setzero_ps() : load(bias + at, lanes);
    store(out + at, lanes, _mm512_fmadd_ps(away, load(weight + at, lanes), summand));
  }
}

template <typename T>
void normalise_all(const Normalisation<T>& norm) {
  const std::int64_t features = norm.features;
  for_rows(norm.rows, norm.groups * features, [&](std::int64_t row) {
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const std::int64_t at = group * features;
      const T* from = norm.x + row * norm.x_stride + at;
      T* to = norm.out + row * norm.out_stride + at;
      if (norm.is_centred) {
        const float* bias = norm.bias == nullptr ? nullptr : norm.bias + at;
        centre(from, to, norm.weight + at, bias, features, norm.eps);
      } else {
        scale_by_size(from, to, norm.weight + at, features, norm.eps);
      }
    }
  });
}

// Turns the pairs (first half, second half) of one head; the sines of first halves are negated.
template <typename T>
void turn(T* head, const T* cosines, const T* sines, std::int64_t half) {
  for (std::int64_t at = 0; at < half; at += LANES) {
    const __mmask16 lanes = first_lanes(half - at);
    const f32x16 first = load(head + at, lanes), second = load(head + half + at, lanes);
    const f32x16 first_part = _mm512_mul_ps(second, load(sines + at, lanes));
    const f32x16 second_part = _mm512_mul_ps(first, load(sines + half + at, lanes));
    store(head + at, lanes, _mm512_fmadd_ps(first, load(cosines + at, lanes), first_part));
    store(head + half + at, lanes,
          _mm512_fmadd_ps(second, load(cosines + half + at, lanes), second_part));
  }
}

template <typename T>
void scale(T* values, std::int64_t count, float factor) {
  const f32x16 by = _mm512_set1_ps(factor);
  for (std::int64_t at = 0; at < count; at += LANES) {
    const __mmask16 lanes = first_lanes(count - at);
    store(values + at, lanes, _mm512_mul_ps(load(values + at, lanes), by));
  }
}

template <typename T>
void rotate_all(const Rotation<T>& rotation) {
  const std::int64_t size = rotation.head_dim;
  for_rows(rotation.tokens, rotation.turned * size, [&](std::int64_t token) {
    T* heads = rotation.heads + token * rotation.stride;
    for (std::int64_t head = 0; head < rotation.turned; ++head) {
      const std::int64_t angle = token * rotation.angle_stride;
      turn(heads + head * size, rotation.cosines + angle, rotation.sines + angle, size / 2);
    }
    if (rotation.factors != nullptr) {
      const f32x16 factor = load(rotation.factors + token, first_lanes(1));
      scale(heads, rotation.scaled * size, _mm512_cvtss_f32(factor));
    }
  });
}

// Products are rounded before they are added, as by operators that do the one and the other.
template <typename T>
void add_all(const Addition<T>& addition) {
  for_rows(addition.rows, addition.features, [&](std::int64_t row) {
    T* from = addition.x + row * addition.x_stride;
    T* to = addition.stream + row * addition.stride;
    if (addition.scale != 1.0f) scale(from, addition.features, addition.scale);
    for (std::int64_t at = 0; at < addition.features; at += LANES) {
      const __mmask16 lanes = first_lanes(addition.features - at);
      store(to + at, lanes, _mm512_add_ps(load(to + at, lanes), load(from + at, lanes)));
    }
  });
}

// A word without a bit that bans is passed over: of a mask few are.
void ban_row(float* scores, const std::uint32_t* words, std::int64_t vocab) {
  const f32x16 never = _mm512_set1_ps(-__builtin_inff());
  for (std::int64_t at = 0; at < vocab; at += LANES) {
    const std::uint32_t banned = ~words[at / 32] >> (at % 32);
    const auto lanes = static_cast<__mmask16>(banned & first_lanes(vocab - at));
    if (lanes != 0) store(scores + at, lanes, never);
  }
}

// The first lane in some scores where `found(vector)` has one, or `count`.
template <typename T, typename Find>
std::int64_t first_place(const T* scores, std::int64_t count, Find find) {
  for (std::int64_t at = 0; at < count; at += LANES) {
    const __mmask16 lanes = first_lanes(count - at);
    const auto found = static_cast<std::uint32_t>(find(load(scores + at, lanes)) & lanes);
    if (found != 0) return at + __builtin_ctz(found);
  }
  return count;
}

// So many scores are looked at before the largest of them is compared with that of those before.
constexpr std::int64_t SEARCHED = 32 * LANES;

template <typename T>
void find_largest(const T* scores, std::int64_t vocab, float& value, std::int64_t& place) {
  const f32x16 none = _mm512_set1_ps(-__builtin_inff());
  std::int64_t block = 0;
  value = -__builtin_inff();
  for (std::int64_t begin = 0; begin < vocab; begin += SEARCHED) {
    const std::int64_t end = std::min(begin + SEARCHED, vocab);
    f32x16 best = none;
    __mmask16 unknown = 0;
    for (std::int64_t at = begin; at < end; at += LANES) {
      const __mmask16 lanes = first_lanes(end - at);
      const f32x16 some = _mm512_mask_mov_ps(none, lanes, load(scores + at, lanes));
      unknown |= _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
      best = _mm512_max_ps(best, some);
    }
    if (unknown != 0) {
      value = __builtin_nanf("");
      place = begin + first_place(scores + begin, end - begin, [](f32x16 some) {
                return _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
              });
      return;
    }
    const float most = _mm512_reduce_max_ps(best);
    if (most > value) {
      value = most;
      block = begin;
    }
  }
  const f32x16 wanted = _mm512_set1_ps(value);
  place = block + first_place(scores + block, std::min(SEARCHED, vocab - block), [&](f32x16 some) {
            return _mm512_cmp_ps_mask(some, wanted, _CMP_EQ_OQ);
          });
}

template <typename T>
void find_all(const Largest<T>& largest) {
  for_rows(largest.rows, largest.vocab, [&](std::int64_t row) {
    find_largest(largest.scores + row * largest.stride, largest.vocab, largest.values[row],
                 largest.places[row]);
  });
}

}  // namespace

void argmax(const Largest<float>& largest) noexcept { find_all(largest); }
void argmax(const Largest<bf16>& largest) noexcept { find_all(largest); }
void argmax(const Largest<f16>& largest) noexcept { find_all(largest); }

void ban(const Ban& ban) noexcept {
  for_rows(ban.rows, ban.vocab, [&](std::int64_t row) {
    ban_row(ban.scores + ban.places[row] * ban.stride, ban.words + row * ban.num_words, ban.vocab);
  });
}

void normalise(const Normalisation<float>& norm) noexcept { normalise_all(norm); }
void normalise(const Normalisation<bf16>& norm) noexcept { normalise_all(norm); }
void normalise(const Normalisation<f16>& norm) noexcept { normalise_all(norm); }

void add(const Addition<float>& addition) noexcept { add_all(addition); }
void add(const Addition<bf16>& addition) noexcept { add_all(addition); }
void add(const Addition<f16>& addition) noexcept { add_all(addition); }

void rotate(const Rotation<float>& rotation) noexcept { rotate_all(rotation); }
void rotate(const Rotation<bf16>& rotation) noexcept { rotate_all(rotation); }
void rotate(const Rotation<f16>& rotation) noexcept { rotate_all(rotation); }
