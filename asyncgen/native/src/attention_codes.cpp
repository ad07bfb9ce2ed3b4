// Attention over pages of codes, for heads in any dtype.

#include "attention_codes.h"

void attend(const Attention<Coded<float>>& step, const Division& division, float* memory) noexcept {
  attend_step<CodeVectors<float>>(step, division, memory);
}

void attend(const Attention<Coded<bf16>>& step, const Division& division, float* memory) noexcept {
  attend_step<CodeVectors<bf16>>(step, division, memory);
}

void attend(const Attention<Coded<f16>>& step, const Division& division, float* memory) noexcept {
  attend_step<CodeVectors<f16>>(step, division, memory);
}
