// Products in bfloat16, summed up in float32. A panel lies in tiles of 16 pairs of inputs by 16
// outputs, two beside each other: what AMX multiplies, and what a vector of pairs reads as well.

#include <cstring>

#include "products.h"
#include "tiles.h"

namespace {

// How far ahead of its use a panel is fetched, in elements.
constexpr std::int64_t AHEAD = 4096;

const bf16* panel_at(const Product<bf16>& product, std::int64_t panel) {
  return product.weight + panel * PANEL * product.inputs;
}

// Hands on the sums of some rows, whose halves lie `stride` vectors apart.
void use_rows(const Product<bf16>& product, const f32x16* low, const f32x16* high,
              std::int64_t first, std::int64_t rows, std::int64_t stride, std::int64_t panel) {
  for (std::int64_t row = 0; row < rows; ++row) {
    use_result(product, low[row * stride], high[row * stride], first + row, panel);
  }
}

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
void block_amx(const Product<bf16>& product, std::int64_t first, std::int64_t rows, std::int64_t panel) {
  const bf16* upper = product.x + first * product.x_stride;
  const bf16* lower = upper + TILE_ROWS * product.x_stride;
  const bf16* w = panel_at(product, panel);
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
  use_rows(product, &sums[0][0], &sums[0][1], first, rows, 2, panel);
}

// Rows at a time without tiles: two accumulators each, of 32 registers.
constexpr int MOST_ROWS = 12;

template <int ROWS>
void block_vectors(const Product<bf16>& product, std::int64_t first, std::int64_t panel) {
  f32x16 low[ROWS], high[ROWS];
  for (int row = 0; row < ROWS; ++row) low[row] = high[row] = _mm512_setzero_ps();
  const bf16* from = product.x + first * product.x_stride;
  const bf16* w = panel_at(product, panel);
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
  use_rows(product, low, high, first, ROWS, 1, panel);
}

}  // namespace

void linear_bf16_amx(const Product<bf16>& product) noexcept {
  for_panels<RowTiles>(
      product.rows, product.outputs,
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

void linear_bf16(const Product<bf16>& product) noexcept {
  for_blocks<MOST_ROWS>(product.rows, product.outputs,
                        [&](auto size, std::int64_t first, std::int64_t panel) {
                          block_vectors<size>(product, first, panel);
                        });
}
