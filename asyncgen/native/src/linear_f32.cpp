// Products in float32: a panel's outputs side by side in two vectors, one row's input at a time
// against both. Each weight is read once from memory for all rows.

#include "products.h"

namespace {

// Rows at a time: two accumulators each, of 32 registers.
constexpr int MOST_ROWS = 12;

// How far ahead of its use a panel is fetched: processors stop fetching ahead at each 4 KB.
constexpr std::int64_t AHEAD = 512;

struct Product {
  const float* x;
  std::int64_t x_stride, inputs, outputs;
  const float *weight, *bias;
  float* out;
  std::int64_t out_stride, use;

  template <int ROWS>
  void block(std::int64_t first, std::int64_t panel) const {
    f32x16 low[ROWS], high[ROWS];
    for (int row = 0; row < ROWS; ++row) low[row] = high[row] = _mm512_setzero_ps();
    const float* from = x + first * x_stride;
    const float* w = weight + panel * PANEL * inputs;
    for (std::int64_t k = 0; k < inputs; ++k, w += PANEL) {
      _mm_prefetch(w + AHEAD, _MM_HINT_T0);
      _mm_prefetch(w + AHEAD + LANES, _MM_HINT_T0);
      const f32x16 w_low = _mm512_loadu_ps(w), w_high = _mm512_loadu_ps(w + LANES);
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        const f32x16 value = _mm512_set1_ps(from[row * x_stride + k]);
        low[row] = _mm512_fmadd_ps(value, w_low, low[row]);
        high[row] = _mm512_fmadd_ps(value, w_high, high[row]);
      }
    }
    const float* shift = bias == nullptr ? nullptr : bias + panel * PANEL;
    for (int row = 0; row < ROWS; ++row) {
      use_result(low[row], high[row], shift, out + (first + row) * out_stride, panel * PANEL,
                 outputs, use);
    }
  }
};

}  // namespace

void linear_f32(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t inputs,
                std::int64_t outputs, const float* weight, const float* bias, float* out,
                std::int64_t out_stride, std::int64_t use) {
  const Product product{x, x_stride, inputs, outputs, weight, bias, out, out_stride, use};
  for_blocks<MOST_ROWS>(rows, outputs, [&](auto size, std::int64_t first, std::int64_t panel) {
    product.block<size>(first, panel);
  });
}
