// What is done to each row by itself: normalisation and rotary positions.

#include "team.h"
#include "vectors.h"

namespace {

// x / sqrt(mean(x^2) + eps) * weight, for one row.
template <typename T>
void normalise(const T* x, T* out, const float* weight, std::int64_t features, float eps) {
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

template <typename T>
void rms_norm(const Normalisation<T>& norm) {
  const std::int64_t features = norm.features;
  for_rows(norm.rows, norm.groups * features, [&](std::int64_t row) {
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const std::int64_t at = group * features;
      normalise(norm.x + row * norm.x_stride + at, norm.out + row * norm.out_stride + at,
                norm.weight + at, features, norm.eps);
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
void rotate(const Rotation<T>& rotation) {
  const std::int64_t size = rotation.head_dim;
  for_rows(rotation.tokens, rotation.turned * size, [&](std::int64_t token) {
    for (std::int64_t head = 0; head < rotation.turned; ++head) {
      const std::int64_t angle = token * rotation.angle_stride;
      turn(rotation.heads + token * rotation.stride + head * size, rotation.cosines + angle,
           rotation.sines + angle, size / 2);
    }
  });
}

}  // namespace

void rms_norm_f32(const Normalisation<float>& norm) noexcept { rms_norm(norm); }
void rms_norm_bf16(const Normalisation<bf16>& norm) noexcept { rms_norm(norm); }

void rotate_f32(const Rotation<float>& rotation) noexcept { rotate(rotation); }
void rotate_bf16(const Rotation<bf16>& rotation) noexcept { rotate(rotation); }
