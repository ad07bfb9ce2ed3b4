// What the Python module offers. Memory is the caller's: contiguous where no stride is given,
// sizes in elements. Nothing is checked here: asyncgen/native/__init__.py and its callers know
// their shapes. Every function runs on torch's team of OpenMP threads.
#pragma once

#include <cstdint>

using bf16 = std::uint16_t;  // the upper half of a float's bits

// What becomes of a product.
enum Use : std::int64_t {
  STORE = 0,     // out = product
  ADD = 1,       // out += product
  GATE_SILU = 2  // out = silu(product of even halves of a panel) * product of odd ones
};

// Outputs of a panel: weights lie in panels, and within a panel by inputs.
constexpr std::int64_t PANEL = 32;

// x [rows, inputs], weight in panels, bias [panels * PANEL] or null, out [rows, outputs].
void linear_f32(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t inputs,
                std::int64_t outputs, const float* weight, const float* bias, float* out,
                std::int64_t out_stride, std::int64_t use);
void linear_bf16_amx(const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t inputs,
                     std::int64_t outputs, const bf16* weight, const float* bias, bf16* out,
                     std::int64_t out_stride, std::int64_t use);
void linear_bf16(const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t inputs,
                 std::int64_t outputs, const bf16* weight, const float* bias, bf16* out,
                 std::int64_t out_stride, std::int64_t use);

// Root-mean-square norm of `groups` times `features` values of each row, with weights for each of
// them; `out` may be `x`.
void rms_norm_f32(const float* x, std::int64_t x_stride, float* out, std::int64_t out_stride,
                  const float* weight, std::int64_t rows, std::int64_t groups,
                  std::int64_t features, float eps);
void rms_norm_bf16(const bf16* x, std::int64_t x_stride, bf16* out, std::int64_t out_stride,
                   const float* weight, std::int64_t rows, std::int64_t groups,
                   std::int64_t features, float eps);

// Rotary positions of the first `turned` heads of each token, in place. Cosines and sines are
// [tokens, 2, head_dim / 2], the sines of first halves negated.
void rotate_f32(float* heads, std::int64_t stride, const float* cosines, const float* sines,
                std::int64_t angle_stride, std::int64_t tokens, std::int64_t turned,
                std::int64_t head_dim);
void rotate_bf16(bf16* heads, std::int64_t stride, const bf16* cosines, const bf16* sines,
                 std::int64_t angle_stride, std::int64_t tokens, std::int64_t turned,
                 std::int64_t head_dim);

// Writes the keys and values of a step's tokens into their pages, and attends for all of them.
//
// heads [tokens, num_heads + 2 * kv_heads, size]; out [tokens, num_heads * size]; keys and values
// [pages, kv_heads, page_size, size]; rows: for each text its first token in the step, how many
// there are, the position of the first and where its page table begins in `pages`; window: keys
// that a query sees, itself included, or 0 for all. Sizes of heads are at most 256.
void attend_f32(const float* heads, float* out, float* keys, float* values,
                const std::int64_t* rows, const std::int64_t* pages, std::int64_t num_rows,
                std::int64_t num_heads, std::int64_t kv_heads, std::int64_t size,
                std::int64_t page_size, std::int64_t window, float scale);
void attend_bf16(const bf16* heads, bf16* out, bf16* keys, bf16* values, const std::int64_t* rows,
                 const std::int64_t* pages, std::int64_t num_rows, std::int64_t num_heads,
                 std::int64_t kv_heads, std::int64_t size, std::int64_t page_size,
                 std::int64_t window, float scale);
void attend_bf16_amx(const bf16* heads, bf16* out, bf16* keys, bf16* values,
                     const std::int64_t* rows, const std::int64_t* pages, std::int64_t num_rows,
                     std::int64_t num_heads, std::int64_t kv_heads, std::int64_t size,
                     std::int64_t page_size, std::int64_t window, float scale);
