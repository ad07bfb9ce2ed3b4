// Attention in float32.

#include "attention_vectors.h"

template <>
struct Words<float> {
  static f32x16 load(const float* column) { return _mm512_load_ps(column); }
  static f32x16 repeat(const float* number) { return _mm512_set1_ps(*number); }
  static f32x16 add(f32x16 sums, f32x16 value, f32x16 keys) {
    return _mm512_fmadd_ps(value, keys, sums);
  }
};

Division divide_f32(const Attention<float>& attention) noexcept { return divide(attention); }

void attend_f32(const Attention<float>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<float>>(step, division, memory);
}
