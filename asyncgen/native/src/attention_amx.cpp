// Attention in bfloat16 with tiles: products of bfloat16, everything else in float32. A weight is
// the sum of two numbers in bfloat16, so that it loses nothing that could be seen.

// Before any declaration: a function belongs to the instructions it was first declared with.
#pragma GCC target("avx512bf16,amx-tile,amx-bf16")

#include "attention.h"
#include "tiles.h"
#include "transpose.h"

namespace {

constexpr std::int64_t TILE_ROWS = 16;
constexpr std::int64_t TILE_WIDTH = 32;  // numbers in a row of a tile
constexpr std::int64_t TILE = TILE_ROWS * TILE_WIDTH;

// What was stored before is in memory when tiles are loaded: the compiler does not know.
inline void finish_stores() { asm volatile("" ::: "memory"); }

class TileEngine {
 public:
  explicit TileEngine(const Step<bf16>& step)
      : step_(step), width_(parts(step.size, TILE_WIDTH) * TILE_WIDTH) {
    static thread_local Memory memory;
    memory_ = &memory;
  }

  std::int64_t width() const { return width_; }

  void take(const Task& task) {
    tiles_.shape(least(task.count, TILE_ROWS));
    for (std::int64_t query = 0; query < task.count; ++query) {
      const bf16* from = step_.query(*task.row, task.head, task.first + query);
      bf16* to = memory_->queries + query * width_;
      for (std::int64_t at = 0; at < width_; at += TILE_WIDTH) {
        const __mmask32 lanes = pairs_of_lanes(step_.size - at);
        _mm512_store_si512(to + at, _mm512_maskz_loadu_epi16(lanes, from + at));
      }
    }
  }

  void score(const Reader<bf16>& keys, std::int64_t at, std::int64_t count, float* scores) {
    const bf16* block = keys.block(at, memory_->block);
    keep_columns(block, memory_->columns);
    keep_columns(block + TILE_ROWS * width_, memory_->columns + TILE);
    finish_stores();
    for (std::int64_t first = 0; first < count; first += TILE_ROWS) {
      score_some(memory_->queries + first * width_, scores + first * SPLIT);
    }
  }

  void gather(const Reader<bf16>& values, std::int64_t base, Range range, std::int64_t count,
              const float* weights, float* sums, std::int64_t stride) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      keep_pairs(values.block(base + at, memory_->block), memory_->values + at * width_);
    }
    for (std::int64_t query = 0; query < count; ++query) {
      for (std::int64_t at = range.first; at < range.end; at += TILE_WIDTH) {
        keep_weights(weights + query * SPLIT + at, query * SPLIT + at);
      }
    }
    finish_stores();
    for (std::int64_t first = 0; first < count; first += TILE_ROWS) {
      const std::int64_t rows = least(count - first, TILE_ROWS);
      for (std::int64_t column = 0; column < width_; column += 2 * TILE_WIDTH) {
        if (column + TILE_WIDTH < width_) {
          gather_some<true>(range, first, rows, column, sums + first * stride, stride);
        } else {
          gather_some<false>(range, first, rows, column, sums + first * stride, stride);
        }
      }
    }
  }

 private:
  struct Memory {
    alignas(64) bf16 queries[QUERIES * MOST_SIZE];
    alignas(64) bf16 block[BLOCK * MOST_SIZE];
    alignas(64) bf16 columns[BLOCK * MOST_SIZE];  // keys: [width / 32, 2 times 16 keys, tile]
    alignas(64) bf16 values[SPLIT * MOST_SIZE];   // [blocks, width / 16, tile]
    alignas(64) bf16 upper[QUERIES * SPLIT];      // of weights
    alignas(64) bf16 lower[QUERIES * SPLIT];
    alignas(64) float sums[4][TILE_ROWS * LANES];
  };

  static __mmask32 pairs_of_lanes(std::int64_t count) {
    return first_lanes(count) | static_cast<__mmask32>(first_lanes(count - LANES)) << LANES;
  }

  void keep_columns(const bf16* rows, bf16* to) const {
    const std::int64_t stride = width_ * sizeof(bf16);
    for_columns(rows, stride, width_ / 2, [&](std::int64_t word, __m512i column) {
      const std::int64_t tile = word / TILE_ROWS * 2 * TILE;
      _mm512_store_si512(to + tile + word % TILE_ROWS * TILE_WIDTH, column);
    });
  }

  // Pairs of keys side by side. In each half of 32 columns the order is that of the instruction:
  // `in_order` sets it right.
  void keep_pairs(const bf16* block, bf16* to) const {
    for (std::int64_t pair = 0; pair < TILE_ROWS; ++pair, block += 2 * width_, to += TILE_WIDTH) {
      for (std::int64_t at = 0; at < width_; at += TILE_WIDTH) {
        const __m512i first = _mm512_loadu_si512(block + at);
        const __m512i second = _mm512_loadu_si512(block + width_ + at);
        bf16* tile = to + at / TILE_WIDTH * 2 * TILE;
        _mm512_store_si512(tile, _mm512_unpacklo_epi16(first, second));
        _mm512_store_si512(tile + TILE, _mm512_unpackhi_epi16(first, second));
      }
    }
  }

  static void in_order(const float* low, const float* high, float* to) {
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const f32x16 a = _mm512_load_ps(low), b = _mm512_load_ps(high);
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, first, b));
    _mm512_storeu_ps(to + LANES, _mm512_permutex2var_ps(a, second, b));
  }

  void keep_weights(const float* weights, std::int64_t to) const {
    const f32x16 a = _mm512_loadu_ps(weights), b = _mm512_loadu_ps(weights + LANES);
    _mm512_store_si512(memory_->upper + to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    const f32x16 a_left = _mm512_sub_ps(a, load(memory_->upper + to, 0xffff));
    const f32x16 b_left = _mm512_sub_ps(b, load(memory_->upper + to + LANES, 0xffff));
    _mm512_store_si512(memory_->lower + to, (__m512i)_mm512_cvtne2ps_pbh(b_left, a_left));
  }

  void score_some(const bf16* queries, float* scores) const {
    const bf16* columns = memory_->columns;
    _tile_zero(0);
    _tile_zero(1);
    for (std::int64_t at = 0; at < width_; at += TILE_WIDTH, columns += 2 * TILE) {
      _tile_loadd(4, queries + at, width_ * sizeof(bf16));
      _tile_loadd(6, columns, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, columns + TILE, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, scores, SPLIT * sizeof(float));
    _tile_stored(1, scores + LANES, SPLIT * sizeof(float));
  }

  template <bool BOTH>
  void gather_some(Range range, std::int64_t first, std::int64_t rows, std::int64_t column,
                   float* sums, std::int64_t stride) const {
    const std::int64_t weight_stride = SPLIT * sizeof(bf16);
    _tile_zero(0);
    _tile_zero(1);
    if (BOTH) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const bf16* value = memory_->values + at * width_ + column / LANES * TILE;
      _tile_loadd(4, memory_->upper + first * SPLIT + at, weight_stride);
      _tile_loadd(5, memory_->lower + first * SPLIT + at, weight_stride);
      _tile_loadd(6, value, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(0, 5, 6);
      _tile_loadd(7, value + TILE, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(1, 5, 7);
      if (BOTH) {
        _tile_loadd(6, value + 2 * TILE, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, value + 3 * TILE, 64);
        _tile_dpbf16ps(3, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, memory_->sums[0], 64);
    _tile_stored(1, memory_->sums[1], 64);
    if (BOTH) {
      _tile_stored(2, memory_->sums[2], 64);
      _tile_stored(3, memory_->sums[3], 64);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      float* to = sums + row * stride + column;
      const std::int64_t from = row * LANES;
      in_order(memory_->sums[0] + from, memory_->sums[1] + from, to);
      if (BOTH) in_order(memory_->sums[2] + from, memory_->sums[3] + from, to + TILE_WIDTH);
    }
  }

  const Step<bf16>& step_;
  std::int64_t width_;
  Memory* memory_;
  Tiles tiles_;
};

}  // namespace

void attend_bf16_amx(const bf16* heads, bf16* out, bf16* keys, bf16* values,
                     const std::int64_t* rows, const std::int64_t* pages, std::int64_t num_rows,
                     std::int64_t num_heads, std::int64_t kv_heads, std::int64_t size,
                     std::int64_t page_size, std::int64_t window, float scale) {
  attend_step<TileEngine>(Step<bf16>{heads, out, keys, values, reinterpret_cast<const Row*>(rows),
                                     pages, num_rows, num_heads, kv_heads, size, page_size, window,
                                     scale});
}
