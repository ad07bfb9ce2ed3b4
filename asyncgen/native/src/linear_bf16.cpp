// Products in bfloat16, summed up in float32. A panel lies in tiles of 16 pairs of inputs by 16
// outputs, two beside each other: what AMX multiplies, and what a vector of pairs reads as well.

// Before any declaration: a function belongs to the instructions it was first declared with.
#pragma GCC target("avx512bf16,amx-tile,amx-bf16")

#include <cstring>

#include "products.h"
#include "tiles.h"

namespace {

// How far ahead of its use a panel is fetched, in elements.
constexpr std::int64_t AHEAD = 4096;

struct Product {
  const bf16* x;
  std::int64_t x_stride, inputs, outputs;
  const bf16* weight;
  const float* bias;
  bf16* out;
  std::int64_t out_stride, use;

  const bf16* panel_at(std::int64_t panel) const { return weight + panel * PANEL * inputs; }

  void use_rows(const f32x16* low, const f32x16* high, std::int64_t first, std::int64_t rows,
                std::int64_t stride, std::int64_t panel) const {
    const float* shift = bias == nullptr ? nullptr : bias + panel * PANEL;
    for (std::int64_t row = 0; row < rows; ++row) {
      use_result(low[row * stride], high[row * stride], shift, out + (first + row) * out_stride,
                 panel * PANEL, outputs, use);
    }
  }
};

// The tiles of up to 32 rows: 0 to 3 are sums (rows by outputs), 4 and 5 rows of x, 6 and 7 of the
// weight.
class RowTiles {
 public:
  void shape(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const std::uint8_t full = TILE_ROWS;
    const std::uint8_t upper = static_cast<std::uint8_t>(rows < full ? rows : full);
    const std::uint8_t lower = static_cast<std::uint8_t>(rows > full ? rows - full : full);
    const std::uint8_t counts[8] = {upper, upper, lower, lower, upper, lower, full, full};
    tiles_.shape(counts);
  }

 private:
  Tiles tiles_;
  std::int64_t rows_ = 0;
};

template <bool BOTH>
void block_amx(const Product& product, std::int64_t first, std::int64_t rows, std::int64_t panel) {
  const bf16* upper = product.x + first * product.x_stride;
  const bf16* lower = upper + TILE_ROWS * product.x_stride;
  const bf16* w = product.panel_at(panel);
  const std::int64_t stride = product.x_stride * static_cast<std::int64_t>(sizeof(bf16));
  _tile_zero(0);
  _tile_zero(1);
  if (BOTH) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < product.inputs; k += TILE_WIDTH, w += 2 * TILE) {
    for (std::int64_t at = 0; at < 2 * TILE; at += 32) _mm_prefetch(w + AHEAD + at, _MM_HINT_T1);
    _tile_loadd(4, upper + k, stride);
    _tile_loadd(6, w, 64);
    _tile_loadd(7, w + TILE, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (BOTH) {
      _tile_loadd(5, lower + k, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  f32x16 sums[2 * TILE_ROWS][2];
  _tile_stored(0, &sums[0][0], 128);
  _tile_stored(1, &sums[0][1], 128);
  if (BOTH) {
    _tile_stored(2, &sums[TILE_ROWS][0], 128);
    _tile_stored(3, &sums[TILE_ROWS][1], 128);
  }
  product.use_rows(&sums[0][0], &sums[0][1], first, rows, 2, panel);
}

// Rows at a time without tiles: two accumulators each, of 32 registers.
constexpr int MOST_ROWS = 12;

template <int ROWS>
void block_vectors(const Product& product, std::int64_t first, std::int64_t panel) {
  f32x16 low[ROWS], high[ROWS];
  for (int row = 0; row < ROWS; ++row) low[row] = high[row] = _mm512_setzero_ps();
  const bf16* from = product.x + first * product.x_stride;
  const bf16* w = product.panel_at(panel);
  for (std::int64_t k = 0; k < product.inputs; k += TILE_WIDTH, w += 2 * TILE) {
    for (std::int64_t pair = 0; pair < TILE_WIDTH / 2; ++pair) {
      const bf16* at = w + pair * 2 * LANES;
      _mm_prefetch(at + AHEAD / 4, _MM_HINT_T0);
      _mm_prefetch(at + TILE + AHEAD / 4, _MM_HINT_T0);
      const __m512bh w_low = (__m512bh)_mm512_loadu_si512(at);
      const __m512bh w_high = (__m512bh)_mm512_loadu_si512(at + TILE);
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        std::int32_t both;
        std::memcpy(&both, from + row * product.x_stride + k + 2 * pair, sizeof both);
        const __m512bh value = (__m512bh)_mm512_set1_epi32(both);
        low[row] = _mm512_dpbf16_ps(low[row], value, w_low);
        high[row] = _mm512_dpbf16_ps(high[row], value, w_high);
      }
    }
  }
  product.use_rows(low, high, first, ROWS, 1, panel);
}

}  // namespace

void linear_bf16_amx(const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t inputs,
                     std::int64_t outputs, const bf16* weight, const float* bias, bf16* out,
                     std::int64_t out_stride, std::int64_t use) {
  const Product product{x, x_stride, inputs, outputs, weight, bias, out, out_stride, use};
  for_panels<RowTiles>(
      rows, outputs,
      [&](RowTiles& tiles, std::int64_t first, std::int64_t count, std::int64_t panel) {
        for (std::int64_t begin = 0; begin < count; begin += 2 * TILE_ROWS) {
          const std::int64_t left = count - begin;
          const std::int64_t size = left < 2 * TILE_ROWS ? left : 2 * TILE_ROWS;
          tiles.shape(size);
          if (size > TILE_ROWS) {
            block_amx<true>(product, first + begin, size, panel);
          } else {
            block_amx<false>(product, first + begin, size, panel);
          }
        }
      });
}

void linear_bf16(const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t inputs,
                 std::int64_t outputs, const bf16* weight, const float* bias, bf16* out,
                 std::int64_t out_stride, std::int64_t use) {
  const Product product{x, x_stride, inputs, outputs, weight, bias, out, out_stride, use};
  for_blocks<MOST_ROWS>(rows, outputs, [&](auto size, std::int64_t first, std::int64_t panel) {
    block_vectors<size>(product, first, panel);
  });
}
