// Attention in bfloat16 with tiles: products of bfloat16, everything else in float32. A weight is
// the sum of two numbers in bfloat16, so that it loses nothing that could be seen.

#include "attention.h"
#include "tiles.h"
#include "transpose.h"

namespace {

// Up to so many queries, both parts of their weights are rows of one tile.
constexpr std::int64_t FEW_QUERIES = TILE_ROWS / 2;

class TileEngine {
 public:
  explicit TileEngine(const Step<bf16>& step)
      : step_(step), width_(parts(step.size, TILE_WIDTH) * TILE_WIDTH) {
    static thread_local Memory memory;
    memory_ = &memory;
  }

  std::int64_t width() const { return width_; }

  // Queries are kept as the second factor of a product, sixteen beside each other in pairs of
  // numbers: keys, the first factor, are then read as they lie.
  void take(const Task& task) {
    for (std::int64_t query = 0; query < task.count; ++query) {
      const bf16* from = step_.query(*task.row, task.head, task.first + query);
      bf16* to = memory_->block + query * width_;
      for (std::int64_t at = 0; at < width_; at += TILE_WIDTH) {
        const __mmask32 lanes = pairs_of_lanes(step_.size - at);
        _mm512_store_si512(to + at, _mm512_maskz_loadu_epi16(lanes, from + at));
      }
    }
    for (std::int64_t first = 0; first < task.count; first += TILE_ROWS) {
      bf16* to = memory_->queries + first * width_;
      const std::int64_t stride = width_ * sizeof(bf16);
      for_columns(memory_->block + first * width_, stride, width_ / 2,
                  [&](std::int64_t word, __m512i column) {
                    _mm512_store_si512(to + word * TILE_WIDTH, column);
                  });
    }
  }

  void score(const Reader<bf16>& keys, std::int64_t base, Range range, std::int64_t count,
             float* scores, Ahead<bf16>& ahead) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const bf16* block = keys.block(base + at, memory_->block);
      if (at + BLOCK < range.end) keys.fetch(base + at + BLOCK);
      ahead.fetch();
      settle_memory(memory_);
      for (std::int64_t first = 0; first < count; first += TILE_ROWS) {
        score_block(block, memory_->queries + first * width_,
                    memory_->by_key + first * SPLIT + at * LANES);
      }
    }
    for (std::int64_t first = 0; first < count; first += TILE_ROWS) {
      const std::int64_t queries = parts(least(count - first, TILE_ROWS), 4) * 4;
      for (std::int64_t at = range.first; at < range.end; at += LANES) {
        float* to = scores + first * SPLIT + at;
        for_columns(memory_->by_key + first * SPLIT + at * LANES, 64, queries,
                    [&](std::int64_t query, __m512i column) {
                      _mm512_store_si512(to + query * SPLIT, column);
                    });
      }
    }
  }

  void gather(const Reader<bf16>& values, std::int64_t base, Range range, std::int64_t count,
              const float* weights, float* sums, std::int64_t stride, Ahead<bf16>& ahead) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const bf16* block = values.block(base + at, memory_->block);
      ahead.fetch();
      keep_pairs(block, memory_->values + at * width_);
    }
    for (std::int64_t query = 0; query < count; ++query) {
      for (std::int64_t at = range.first; at < range.end; at += TILE_WIDTH) {
        keep_weights(weights + query * SPLIT + at, query * SPLIT + at, count * SPLIT);
      }
    }
    settle_memory(memory_);
    if (count <= FEW_QUERIES) return gather_few(range, count, sums, stride);
    for (std::int64_t first = 0; first < count; first += TILE_ROWS) {
      gather_many(range, first, count, sums + first * stride, stride);
    }
  }

 private:
  struct Memory {
    alignas(64) bf16 queries[QUERIES * MOST_SIZE];  // [queries / 16, width / 32, tile]
    alignas(64) bf16 block[BLOCK * MOST_SIZE];
    alignas(64) bf16 values[SPLIT * MOST_SIZE];     // [blocks, width / 16, tile]
    alignas(64) bf16 weights[3 * QUERIES * SPLIT];  // the upper parts of all, then the lower ones
    alignas(64) float by_key[QUERIES * SPLIT];      // scores [queries / 16, keys, 16]
    alignas(64) float sums[4][TILE_ROWS * LANES];
  };

  static __mmask32 pairs_of_lanes(std::int64_t count) {
    return first_lanes(count) | static_cast<__mmask32>(first_lanes(count - LANES)) << LANES;
  }

  // Two times sixteen keys with sixteen queries.
  void score_block(const bf16* keys, const bf16* queries, float* scores) const {
    const std::int64_t stride = width_ * sizeof(bf16);
    _tile_zero(0);
    _tile_zero(1);
    for (std::int64_t at = 0; at < width_; at += TILE_WIDTH, queries += TILE) {
      _tile_loadd(6, queries, 64);
      _tile_loadd(4, keys + at, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, keys + TILE_ROWS * width_ + at, stride);
      _tile_dpbf16ps(1, 5, 6);
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + TILE_ROWS * LANES, 64);
  }

  // Pairs of values side by side. In each half of 32 columns the order is that of the instruction:
  // `keep_sums` sets it right.
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

  void keep_weights(const float* weights, std::int64_t upper, std::int64_t distance) const {
    const f32x16 a = _mm512_loadu_ps(weights), b = _mm512_loadu_ps(weights + LANES);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    const f32x16 a_upper = widen(_mm512_castsi512_si256(both));
    const f32x16 b_upper = widen(_mm512_extracti64x4_epi64(both, 1));
    bf16* to = memory_->weights + upper;
    _mm512_store_si512(to, both);
    _mm512_store_si512(to + distance, (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, b_upper),
                                                                   _mm512_sub_ps(a, a_upper)));
  }

  static f32x16 widen(__m256i numbers) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  }

  // Both parts of all weights in one tile, 64 columns of values at a time.
  void gather_few(Range range, std::int64_t count, float* sums, std::int64_t stride) const {
    for (std::int64_t column = 0; column < width_; column += 2 * TILE_WIDTH) {
      const bool both = column + TILE_WIDTH < width_;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
        const bf16* value = memory_->values + at * width_ + column / LANES * TILE;
        _tile_loadd(4, memory_->weights + at, SPLIT * sizeof(bf16));
        _tile_loadd(6, value, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, value + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (!both) continue;
        _tile_loadd(6, value + 2 * TILE, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, value + 3 * TILE, 64);
        _tile_dpbf16ps(3, 4, 7);
      }
      store_sums();
      const std::int64_t lower = count * LANES;
      for (std::int64_t query = 0; query < count; ++query) {
        const float* from = memory_->sums[0] + query * LANES;
        float* to = sums + query * stride + column;
        keep_sums(from, lower, TILE_ROWS * LANES, to);
        if (both)
          keep_sums(from + 2 * TILE_ROWS * LANES, lower, TILE_ROWS * LANES, to + TILE_WIDTH);
      }
    }
  }

  // The parts of sixteen weights in a tile each, 32 columns of values at a time.
  void gather_many(Range range, std::int64_t first, std::int64_t count, float* sums,
                   std::int64_t stride) const {
    const bf16* upper = memory_->weights + first * SPLIT;
    const bf16* lower = upper + count * SPLIT;
    for (std::int64_t column = 0; column < width_; column += TILE_WIDTH) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
        const bf16* value = memory_->values + at * width_ + column / LANES * TILE;
        _tile_loadd(4, upper + at, SPLIT * sizeof(bf16));
        _tile_loadd(6, value, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, value + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower + at, SPLIT * sizeof(bf16));
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      store_sums();
      const std::int64_t queries = least(count - first, TILE_ROWS);
      for (std::int64_t query = 0; query < queries; ++query) {
        const float* from = memory_->sums[0] + query * LANES;
        keep_sums(from, 2 * TILE_ROWS * LANES, TILE_ROWS * LANES, sums + query * stride + column);
      }
    }
  }

  void store_sums() const {
    _tile_stored(0, memory_->sums[0], 64);
    _tile_stored(1, memory_->sums[1], 64);
    _tile_stored(2, memory_->sums[2], 64);
    _tile_stored(3, memory_->sums[3], 64);
  }

  // Adds up both parts of 32 sums, of which every second four are `next` apart, and orders them.
  static void keep_sums(const float* upper, std::int64_t lower, std::int64_t next, float* to) {
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const f32x16 a = _mm512_add_ps(_mm512_load_ps(upper), _mm512_load_ps(upper + lower));
    const float* other = upper + next;
    const f32x16 b = _mm512_add_ps(_mm512_load_ps(other), _mm512_load_ps(other + lower));
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, first, b));
    _mm512_storeu_ps(to + LANES, _mm512_permutex2var_ps(a, second, b));
  }

  const Step<bf16>& step_;
  std::int64_t width_;
  Memory* memory_;
  Tiles tiles_;
};

}  // namespace

void attend_bf16_amx(const Attention<bf16>& step, const Division& division,
                     float* memory) noexcept {
  attend_step<TileEngine>(step, division, memory);
}
