// Weights of 4 and 8 bits as they lie in memory, and their products.
//
// Each half of a panel, 16 outputs, lies in one piece, group by group of inputs. A group has
//   - before the first of 256 inputs, where scales (minimums) are two-level, 16 float16 of them each,
//   - its scales, zero points and minimums, 16 of each that there is; or, where a row has but one,
//     these before its first group alone. Two-level ones that are small share a byte: the scale is
//     its lower half, and the minimum is the upper one, negated,
//   - its codes: pairs of inputs by 16 outputs in bytes; or words of 16 bits by inputs 2n and 2n + 1
//     of 16 outputs, which have codes of four such pairs, the first in the lowest bits.
#pragma once

#include "kernels.h"

// The most inputs that share a scale.
constexpr std::int64_t MOST_GROUP = 128;

enum class Scale : std::int64_t { NONE, FLOAT16, BFLOAT16, FLOAT32, INT8, INT4 };

// Whether there are floats of 256 inputs that small integers are multiplied by.
inline bool is_two_level(Scale scale) { return scale == Scale::INT8 || scale == Scale::INT4; }

struct PackedLayout {
  alignas(64) std::int16_t table[32];  // numbers of codes, twice
  const char* data;
  const std::int32_t* order;  // which input each column is of, or null
  std::int64_t half_bytes, group, groups;
  std::int64_t groups_per_scale, groups_per_super;
  std::int64_t least, most;  // of the table's numbers
  Scale scales, minimums;
  bool has_table, has_zeros;
  bool takes_bytes;  // inputs become integers of 8 bits, not of 16
};

// Whether inputs may become integers of 8 bits: what computes in bfloat16 asks for no more, and the
// weight's numbers are of 8 bits themselves, once zero points are taken off.
inline bool may_take_bytes(const PackedLayout& layout, bool is_bfloat16) {
  const bool are_bytes =
      layout.has_table ? layout.least >= -128 && layout.most <= 127 : !layout.has_zeros;
  return is_bfloat16 && are_bytes;
}

// Bytes that rows take as integers.
inline std::int64_t packed_bytes(const PackedLayout& layout, std::int64_t rows) {
  return rows * layout.groups * (layout.group * (layout.takes_bytes ? 1 : 2) + 16);
}

// `memory` has as many bytes as all rows need.
void linear_packed(const Product<float, PackedLayout>& product, char* memory) noexcept;
void linear_packed(const Product<bf16, PackedLayout>& product, char* memory) noexcept;
void linear_packed(const Product<f16, PackedLayout>& product, char* memory) noexcept;

// The same for groups of rows: each matrix has a layout of its own, all alike, one behind the other.
void linear_packed(const Grouped<float, PackedLayout>& products, char* memory) noexcept;
void linear_packed(const Grouped<bf16, PackedLayout>& products, char* memory) noexcept;
void linear_packed(const Grouped<f16, PackedLayout>& products, char* memory) noexcept;

// The values of one output, a row of the matrix [out, in] that is not gated.
void packed_row(const PackedLayout& layout, std::int64_t inputs, std::int64_t output,
                float* out) noexcept;
void packed_row(const PackedLayout& layout, std::int64_t inputs, std::int64_t output,
                bf16* out) noexcept;
void packed_row(const PackedLayout& layout, std::int64_t inputs, std::int64_t output,
                f16* out) noexcept;
