// Attention in float32, and of heads in float16, which are widened and rounded once in the end.

#include "attention_vectors.h"

Division divide(const Attention<float>& attention) noexcept { return division_of(attention); }

void attend(const Attention<float>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<float>>(step, division, memory);
}

Division divide(const Attention<f16>& attention) noexcept { return division_of(attention); }

void attend(const Attention<f16>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<f16>>(step, division, memory);
}
