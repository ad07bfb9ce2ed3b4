// Products in float32: a panel's outputs side by side in two vectors, one row's input at a time
// against both. Each weight is read once from memory for all rows.

#include "products.h"

namespace {

// Rows at a time: two accumulators each, of 32 registers.
constexpr int MOST_ROWS = 12;

// How far ahead of its use a panel is fetched: processors stop fetching ahead at each 4 KB.
constexpr std::int64_t AHEAD = 512;

template <int ROWS>
void block(const Product<float>& product, std::int64_t first, std::int64_t panel) {
  f32x16 low[ROWS], high[ROWS];
  for (int row = 0; row < ROWS; ++row) low[row] = high[row] = _mm512_setzero_ps();
  const std::int64_t x_stride = product.x_stride, inputs = product.inputs;
  const float* from = product.x + first * x_stride;
  const float* w = product.weight + panel * PANEL * inputs;
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
  for (int row = 0; row < ROWS; ++row) {
    use_result(product, low[row], high[row], first + row, panel);
  }
}

}  // namespace

void linear_f32(const Product<float>& product) noexcept {
  for_blocks<MOST_ROWS>(
      product.rows, product.outputs,
      [&](auto size, std::int64_t first, std::int64_t panel) { block<size>(product, first, panel); });
}
