// Attention in float32.

#include "attention_vectors.h"

Division divide_f32(const Attention<float>& attention) noexcept { return divide(attention); }

void attend_f32(const Attention<float>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<float>>(step, division, memory);
}
