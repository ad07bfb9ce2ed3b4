// Products in bfloat16, summed up in float32. A panel lies in tiles of 16 pairs of inputs by 16
// outputs, two beside each other: what AMX multiplies, and what a vector of pairs reads as well. The
// last tiles are filled up with zeros, and so are the rows that they are multiplied by.

#include <cstring>

#include "products.h"
#include "tiles.h"

namespace {

// How far ahead of its use a panel is fetched, in elements: into the second cache, by tiles and by
// most numbers of rows without them, and into the first by a few rows. Zen 4, all products of a 135M
// model, the former against the latter: 1 row takes 0.90 of the time, 2 0.98, 3 and 4 1.02, 5 1.00,
// 8 0.95, 12 0.86.
constexpr std::int64_t AHEAD_OF_TILES = 4096, AHEAD = 2048, AHEAD_OF_FEW = 1024;

template <int ROWS>
inline void fetch_ahead(const bf16* w) {
  if constexpr (ROWS >= 3 && ROWS <= 5) {
    _mm_prefetch(w + AHEAD_OF_FEW, _MM_HINT_T0);
  } else {
    _mm_prefetch(w + AHEAD, _MM_HINT_T1);
  }
}

// Inputs in whole tiles, and those that are left.
std::int64_t whole(const Product<bf16>& product) { return product.inputs / TILE_WIDTH * TILE_WIDTH; }
std::int64_t rest(const Product<bf16>& product) { return product.inputs % TILE_WIDTH; }

const bf16* panel_at(const Product<bf16>& product, std::int64_t panel) {
  const std::int64_t filled = (product.inputs + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH;
  return product.weight + panel * PANEL * filled;
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

// Multiplies some rows, whose next inputs lie at `upper` and `lower`, by two tiles of a weight.
template <bool BOTH>
void multiply_tiles(const bf16* upper, const bf16* lower, std::int64_t stride, const bf16* w) {
  _tile_loadd(4, upper, stride);
  _tile_loadd(6, w, 64);
  _tile_loadd(7, w + TILE, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (BOTH) {
    _tile_loadd(5, lower, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <bool BOTH>
void block_amx(const Product<bf16>& product, std::int64_t first, std::int64_t rows, std::int64_t panel) {
  const bf16* upper = product.x + first * product.x_stride;
  const bf16* lower = upper + TILE_ROWS * product.x_stride;
  const bf16* w = panel_at(product, panel);
  const std::int64_t stride = product.x_stride * static_cast<std::int64_t>(sizeof(bf16));
  const std::int64_t inputs = whole(product);
  _tile_zero(0);
  _tile_zero(1);
  if (BOTH) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < inputs; k += TILE_WIDTH, w += 2 * TILE) {
    for (std::int64_t at = 0; at < 2 * TILE; at += 32) {
      _mm_prefetch(w + AHEAD_OF_TILES + at, _MM_HINT_T1);
    }
    multiply_tiles<BOTH>(upper + k, lower + k, stride, w);
  }
  if (rest(product) > 0) {
    alignas(64) bf16 last[2 * TILE] = {};
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(last + row * TILE_WIDTH, upper + row * product.x_stride + inputs,
                  rest(product) * sizeof(bf16));
    }
    settle_memory(last);
    multiply_tiles<BOTH>(last, last + TILE, 64, w);
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

// Adds the next pair of some rows' inputs, `value(row)`, times that of sixteen outputs.
template <int ROWS, typename Value>
inline void add_pair(f32x16 (&sums)[ROWS], const bf16* w, Value value) {
  const __m512bh weights = (__m512bh)_mm512_loadu_si512(w);
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
    sums[row] = _mm512_dpbf16_ps(sums[row], (__m512bh)_mm512_set1_epi32(value(row)), weights);
  }
}

inline std::int32_t pair_at(const bf16* inputs) {
  std::int32_t both;
  std::memcpy(&both, inputs, sizeof both);
  return both;
}

// A panel is read as it lies, one tile after the other: processors fetch ahead what is read in
// order, and half of the bandwidth is lost to those that are confused by two tiles at a time.
template <int ROWS>
void block_vectors(const Product<bf16>& product, std::int64_t first, std::int64_t panel) {
  f32x16 sums[2][ROWS];
  clear(sums[0]);
  clear(sums[1]);
  const std::int64_t stride = product.x_stride, inputs = whole(product), left = rest(product);
  const bf16* from = product.x + first * stride;
  const bf16* w = panel_at(product, panel);
  for (std::int64_t k = 0; k < inputs; k += TILE_WIDTH) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, w += TILE) {
      for (std::int64_t at = 0; at < TILE_WIDTH; at += 2) {
        fetch_ahead<ROWS>(w + at * LANES);
        add_pair(sums[half], w + at * LANES,
                 [&](int row) { return pair_at(from + row * stride + k + at); });
      }
    }
  }
  for (int half = 0; left > 0 && half < 2; ++half, w += TILE) {
    for (std::int64_t at = 0; at < left; at += 2) {
      add_pair(sums[half], w + at * LANES, [&](int row) {
        const bf16* pair = from + row * stride + inputs + at;
        return at + 1 < left ? pair_at(pair) : static_cast<std::int32_t>(*pair);
      });
    }
  }
  use_rows(product, sums[0], sums[1], first, ROWS, 1, panel);
}

// Adds the next pair of some rows' inputs times those of both halves of a panel.
template <int ROWS, typename Value>
inline void add_pairs(f32x16 (&sums)[2][ROWS], const bf16* w, Value value) {
  const __m512bh low = (__m512bh)_mm512_loadu_si512(w);
  const __m512bh high = (__m512bh)_mm512_loadu_si512(w + TILE);
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
    const __m512bh both = (__m512bh)_mm512_set1_epi32(value(row));
    sums[0][row] = _mm512_dpbf16_ps(sums[0][row], both, low);
    sums[1][row] = _mm512_dpbf16_ps(sums[1][row], both, high);
  }
}

// What a block of rows fetches of the panel that comes next: the caches have it when it is its turn,
// and memory is read all the time, not by the first block alone.
struct Ahead {
  const bf16* panel;
  std::int64_t number, blocks;  // which of so many blocks

  // Fetches a share of the lines that lie in two tiles there.
  void fetch(std::int64_t k) const {
    constexpr std::int64_t LINE = 32, LINES = 2 * TILE / LINE;
    const bf16* tiles = panel + k * PANEL;
    const std::int64_t end = LINES * (number + 1) / blocks;
    for (std::int64_t line = LINES * number / blocks; line < end; ++line) {
      _mm_prefetch(tiles + line * LINE, _MM_HINT_T1);
    }
  }
};

// The same where the panel is in the cache: then it pays to use what is loaded of x for both tiles at
// once (Zen 5: 99 % of the processor's peak instead of 91).
template <int ROWS>
void block_cached(const Product<bf16>& product, std::int64_t first, std::int64_t panel,
                  const Ahead& ahead) {
  f32x16 sums[2][ROWS];
  clear(sums[0]);
  clear(sums[1]);
  const std::int64_t stride = product.x_stride, inputs = whole(product), left = rest(product);
  const bf16* from = product.x + first * stride;
  const bf16* w = panel_at(product, panel);
  for (std::int64_t k = 0; k < inputs; k += TILE_WIDTH, w += 2 * TILE) {
    ahead.fetch(k);
    for (std::int64_t at = 0; at < TILE_WIDTH; at += 2) {
      add_pairs(sums, w + at * LANES, [&](int row) { return pair_at(from + row * stride + k + at); });
    }
  }
  for (std::int64_t at = 0; at < left; at += 2) {
    add_pairs(sums, w + at * LANES, [&](int row) {
      const bf16* pair = from + row * stride + inputs + at;
      return at + 1 < left ? pair_at(pair) : static_cast<std::int32_t>(*pair);
    });
  }
  use_rows(product, sums[0], sums[1], first, ROWS, 1, panel);
}

template <typename Work>
void multiply_all_amx(const Work& work) {
  for_panels<RowTiles>(work, [&](RowTiles& tiles, const Product<bf16>& product, std::int64_t first,
                                 std::int64_t count, std::int64_t panel) {
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

// The last panel that a thread has used, and has fetched the next one behind.
struct Fetched {
  const bf16* last = nullptr;
};

template <typename Work>
void multiply_all(const Work& work) {
  for_panels<Fetched>(work, [&](Fetched& fetched, const Product<bf16>& product, std::int64_t first,
                                std::int64_t count, std::int64_t panel) {
    const bf16* const w = panel_at(product, panel);
    const bf16* const next = panel_at(product, panel + 1);
    const bool is_cached = fetched.last == w || fetched.last == panel_at(product, panel - 1);
    for_blocks<MOST_ROWS>(count, [&](auto size, std::int64_t begin, std::int64_t number,
                                     std::int64_t blocks) {
      if (number > 0 || (blocks > 1 && is_cached)) {
        block_cached<size>(product, first + begin, panel, {next, number, blocks});
      } else {
        block_vectors<size>(product, first + begin, panel);
      }
      fetched.last = blocks > 1 ? w : nullptr;
    });
  });
}

}  // namespace

void multiply_amx(const Product<bf16>& product) noexcept { multiply_all_amx(product); }
void multiply_amx(const Grouped<bf16>& products) noexcept { multiply_all_amx(products); }
void multiply(const Product<bf16>& product) noexcept { multiply_all(product); }
void multiply(const Grouped<bf16>& products) noexcept { multiply_all(products); }
