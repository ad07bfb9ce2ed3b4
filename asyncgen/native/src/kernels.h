// The kernels, each a function of one struct: asyncgen/native/src/*_object.cpp fill them in from
// tensors and see to it that the tensors are large enough. Sizes and strides count elements; memory
// is contiguous where no stride is given. Kernels run on a team of threads (team.h), without Python's
// lock, and allocate nothing: nothing is thrown through them.
#pragma once

#include <cstdint>

using bf16 = std::uint16_t;  // the upper half of a float's bits
struct f16 {                 // of IEEE 754; weights alone come in it
  std::uint16_t bits;
};

// What becomes of a product.
enum Use : std::int64_t {
  STORE = 0,     // out = product
  ADD = 1,       // out += product
  GATE_SILU = 2  // out = silu(product of even halves of a panel) * product of odd ones
};

// Outputs of a panel: weights lie in panels, and within a panel by inputs.
constexpr std::int64_t PANEL = 32;

// The largest head that attention is computed for.
constexpr std::int64_t MOST_SIZE = 512;

// Numbers of type T by a weight of type W: the same, or one of 16 bits that widens to a float.
template <typename T, typename W = T>
struct Product {
  const T* x;  // [rows, inputs]
  std::int64_t x_stride, rows, inputs, outputs;
  const W* weight;    // in panels
  const float* bias;  // [panels * PANEL] or null
  T* out;             // [rows, outputs], half as many for GATE_SILU
  std::int64_t out_stride;
  Use use;
};

void linear_f32(const Product<float>& product) noexcept;
void linear_f32(const Product<float, bf16>& product) noexcept;
void linear_f32(const Product<float, f16>& product) noexcept;
void linear_bf16(const Product<bf16>& product) noexcept;
void linear_bf16_amx(const Product<bf16>& product) noexcept;

// Root-mean-square norm of `groups` times `features` values of each row, with a weight for each of
// them; `out` may be `x`.
template <typename T>
struct Normalisation {
  const T* x;
  std::int64_t x_stride;
  T* out;
  std::int64_t out_stride;
  const float* weight;  // [groups, features]
  std::int64_t rows, groups, features;
  float eps;
};

void rms_norm_f32(const Normalisation<float>& norm) noexcept;
void rms_norm_bf16(const Normalisation<bf16>& norm) noexcept;

// Rotary positions of the first `turned` heads of each token, in place. Cosines and sines are
// [tokens, 2, head_dim / 2], the sines of first halves negated.
template <typename T>
struct Rotation {
  T* heads;
  std::int64_t stride;
  const T *cosines, *sines;
  std::int64_t angle_stride, tokens, turned, head_dim;
};

void rotate_f32(const Rotation<float>& rotation) noexcept;
void rotate_bf16(const Rotation<bf16>& rotation) noexcept;

// Some tokens of one text: the first one's number in the step, how many there are, the position of
// the first, and where the text's page table begins in the step's list of pages.
struct Row {
  std::int64_t token, count, start, pages;
};

// Writes the keys and values of a step's tokens into their pages, and attends for all of them.
template <typename T>
struct Attention {
  const T* heads;    // [tokens, num_heads + 2 * kv_heads, size]
  T* out;            // [tokens, num_heads * size]
  T *keys, *values;  // [num_pages, kv_heads, page_size, size]
  const Row* rows;
  const std::int64_t* pages;
  std::int64_t num_rows, num_pages, num_heads, kv_heads;
  std::int64_t size;  // of a head, at most MOST_SIZE
  std::int64_t page_size;
  std::int64_t window;  // keys that a query sees, itself included, or 0 for all
  bool is_chunked;      // whether they are those of its chunk of so many
  float scale;
  float cap;            // soft cap of the scores, or 0
  const float* slopes;  // [num_heads] by distance (ALiBi), or null
  const float* sinks;   // [num_heads] scores without a key, or null
};

// How a step's work is divided; it changes no result.
struct Division {
  std::int64_t most_splits;  // of keys that one task has; of texts with more, each has its own
  std::int64_t most_queries;  // of a key head that one task has
  std::int64_t num_tokens, num_tasks;
  std::int64_t memory;  // floats for what tasks leave to be merged
};

Division divide_f32(const Attention<float>& attention) noexcept;
Division divide_bf16(const Attention<bf16>& attention) noexcept;

// `memory` has as many floats as the division says.
void attend_f32(const Attention<float>& step, const Division& division, float* memory) noexcept;
void attend_bf16(const Attention<bf16>& step, const Division& division, float* memory) noexcept;
void attend_bf16_amx(const Attention<bf16>& step, const Division& division, float* memory) noexcept;
