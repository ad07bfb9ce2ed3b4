// Attention in bfloat16 with tiles: products of bfloat16, everything else in float32. A weight is
// the sum of two numbers in bfloat16, so that it loses nothing that could be seen.

#include "attention.h"
#include "tiles.h"
#include "transpose.h"

namespace {

// Up to so many queries, both parts of their weights are rows of one tile.
constexpr std::int64_t HALF_QUERIES = TILE_ROWS / 2;

// Sums of four tiles.
struct Sums {
  alignas(64) float at[4][TILE_ROWS * LANES];

  void zero() const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  void store() {
    _tile_stored(0, at[0], 64);
    _tile_stored(1, at[1], 64);
    _tile_stored(2, at[2], 64);
    _tile_stored(3, at[3], 64);
  }
};

// Sixteen rows as the second factor of a product: beside each other, in pairs of numbers.
void keep_turned(const bf16* rows, std::int64_t width, bf16* to) {
  for_columns(rows, width * sizeof(bf16), width / 2, [&](std::int64_t word, __m512i column) {
    _mm512_store_si512(to + word * TILE_WIDTH, column);
  });
}

// Pairs of values side by side. In each half of 32 columns the order is that of the instruction:
// `keep_sums` sets it right.
void keep_pairs(const bf16* block, std::int64_t width, bf16* to) {
  for (std::int64_t pair = 0; pair < TILE_ROWS; ++pair, block += 2 * width, to += TILE_WIDTH) {
    for (std::int64_t at = 0; at < width; at += TILE_WIDTH) {
      const __m512i first = _mm512_loadu_si512(block + at);
      const __m512i second = _mm512_loadu_si512(block + width + at);
      bf16* tile = to + at / TILE_WIDTH * 2 * TILE;
      _mm512_store_si512(tile, _mm512_unpacklo_epi16(first, second));
      _mm512_store_si512(tile + TILE, _mm512_unpackhi_epi16(first, second));
    }
  }
}

f32x16 widen(__m256i numbers) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
}

// The two parts of 32 weights.
void keep_weights(const float* weights, bf16* upper, bf16* lower) {
  const f32x16 a = _mm512_loadu_ps(weights), b = _mm512_loadu_ps(weights + LANES);
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
  const f32x16 a_upper = widen(_mm512_castsi512_si256(both));
  const f32x16 b_upper = widen(_mm512_extracti64x4_epi64(both, 1));
  _mm512_store_si512(upper, both);
  _mm512_store_si512(
      lower, (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, b_upper), _mm512_sub_ps(a, a_upper)));
}

// Adds up both parts of 32 sums, of which every second four are `next` apart, and orders them.
void keep_sums(const float* upper, std::int64_t lower, std::int64_t next, float* to) {
  const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const f32x16 a = _mm512_add_ps(_mm512_load_ps(upper), _mm512_load_ps(upper + lower));
  const float* other = upper + next;
  const f32x16 b = _mm512_add_ps(_mm512_load_ps(other), _mm512_load_ps(other + lower));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, first, b));
  _mm512_storeu_ps(to + LANES, _mm512_permutex2var_ps(a, second, b));
}

// Weighted values of up to sixteen queries: the parts of their weights in a tile each, 32 columns
// of values at a time.
void gather_tile(const bf16* values, std::int64_t width, Range range, const bf16* upper,
                 const bf16* lower, std::int64_t count, float* sums, std::int64_t stride) {
  Sums found;
  for (std::int64_t column = 0; column < width; column += TILE_WIDTH) {
    found.zero();
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const bf16* value = values + at * width + column / LANES * TILE;
      _tile_loadd(4, upper + at, SPLIT * sizeof(bf16));
      _tile_loadd(6, value, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, value + TILE, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, lower + at, SPLIT * sizeof(bf16));
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    found.store();
    for (std::int64_t query = 0; query < count; ++query) {
      const float* from = found.at[0] + query * LANES;
      keep_sums(from, 2 * TILE_ROWS * LANES, TILE_ROWS * LANES, sums + query * stride + column);
    }
  }
}

std::int64_t width_of(const Step<bf16>& step) {
  return parts(step.size, TILE_WIDTH) * TILE_WIDTH;
}

// Few queries are kept as the second factor of a product: keys, the first factor, are then read as
// they lie.
class FewTiles {
 public:
  using Weight = float;
  static constexpr std::int64_t MOST = FEW_QUERIES;

  explicit FewTiles(const Step<bf16>& step) : step_(step), width_(width_of(step)) {
    static thread_local Memory memory;
    memory_ = &memory;
  }

  std::int64_t width() const { return width_; }

  void take(const Task& task) {
    keep_queries(step_, task, width_, width_, memory_->block);
    for (std::int64_t first = 0; first < task.count; first += TILE_ROWS) {
      keep_turned(memory_->block + first * width_, width_, memory_->queries + first * width_);
    }
  }

  void score(const Reader<bf16>& keys, std::int64_t base, Range range, std::int64_t count,
             float* scores, Ahead<bf16>& ahead) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const bf16* block = keys.block(base + at, memory_->block);
      ahead.next_block().ask_all();
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
      ahead.next_block().ask_all();
      keep_pairs(block, width_, memory_->values + at * width_);
    }
    bf16 *upper = memory_->weights, *lower = upper + count * SPLIT;
    for (std::int64_t query = 0; query < count; ++query) {
      for (std::int64_t at = range.first; at < range.end; at += TILE_WIDTH) {
        const std::int64_t place = query * SPLIT + at;
        keep_weights(weights + place, upper + place, lower + place);
      }
    }
    settle_memory(memory_);
    if (count <= HALF_QUERIES) return gather_few(range, count, sums, stride);
    for (std::int64_t first = 0; first < count; first += TILE_ROWS) {
      gather_tile(memory_->values, width_, range, upper + first * SPLIT, lower + first * SPLIT,
                  least(count - first, TILE_ROWS), sums + first * stride, stride);
    }
  }

 private:
  struct Memory {
    alignas(64) bf16 queries[MOST * MOST_SIZE];  // [queries / 16, width / 32, tile]
    alignas(64) bf16 block[BLOCK * MOST_SIZE];
    alignas(64) bf16 values[SPLIT * MOST_SIZE];  // [blocks, width / 16, tile]
    alignas(64) bf16 weights[3 * MOST * SPLIT];  // the upper parts of all, then the lower
    alignas(64) float by_key[MOST * SPLIT];      // scores [queries / 16, keys, 16]
    Sums sums;
  };

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

  // Both parts of all weights in one tile, 64 columns of values at a time.
  void gather_few(Range range, std::int64_t count, float* sums, std::int64_t stride) const {
    for (std::int64_t column = 0; column < width_; column += 2 * TILE_WIDTH) {
      const bool both = column + TILE_WIDTH < width_;
      memory_->sums.zero();
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
      memory_->sums.store();
      const std::int64_t lower = count * LANES, next = TILE_ROWS * LANES;
      for (std::int64_t query = 0; query < count; ++query) {
        const float* from = memory_->sums.at[0] + query * LANES;
        float* to = sums + query * stride + column;
        keep_sums(from, lower, next, to);
        if (both) keep_sums(from + 2 * next, lower, next, to + TILE_WIDTH);
      }
    }
  }

  const Step<bf16>& step_;
  std::int64_t width_;
  Memory* memory_;
};

// Of many queries it is the keys that are turned, once for all: see `ChunkRun`.
class ManyTiles {
 public:
  using Weight = float;
  static constexpr std::int64_t TILE_QUERIES = TILE_ROWS;

  explicit ManyTiles(const Step<bf16>& step) : step_(step), width_(width_of(step)) {
    memory_ = chunk_memory<Memory>();
  }

  std::int64_t width() const { return width_; }
  ChunkSpace& space() const { return *memory_; }

  void take(const Task& task) { keep_queries(step_, task, width_, QUERY, memory_->queries); }

  void pack_keys(const Reader<bf16>& keys, std::int64_t base, Range range) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const bf16* block = keys.block(base + at, memory_->block);
      for (std::int64_t first = 0; first < BLOCK; first += TILE_ROWS) {
        keep_turned(block + first * width_, width_, memory_->keys + (at + first) * width_);
      }
    }
  }

  void pack_values(const Reader<bf16>& values, std::int64_t base, Range range) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      keep_pairs(values.block(base + at, memory_->block), width_, memory_->values + at * width_);
    }
    settle_memory(memory_);
  }

  // Sixteen queries with up to 64 keys at a time.
  void score(std::int64_t first, std::int64_t, Range range, float* scores) const {
    const bf16* queries = memory_->queries + first * QUERY;
    for (std::int64_t at = range.first; at < range.end; at += 2 * BLOCK) {
      const bool both = at + BLOCK < range.end;
      const std::int64_t next = TILE_ROWS * width_;
      const bf16* key = memory_->keys + at * width_;
      memory_->sums.zero();
      for (std::int64_t column = 0; column < width_; column += TILE_WIDTH, key += TILE) {
        _tile_loadd(4, queries + column, QUERY * sizeof(bf16));
        _tile_loadd(6, key, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, key + next, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (!both) continue;
        _tile_loadd(6, key + 2 * next, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, key + 3 * next, 64);
        _tile_dpbf16ps(3, 4, 7);
      }
      constexpr std::int64_t stride = SCORES * sizeof(float);
      _tile_stored(0, scores + at, stride);
      _tile_stored(1, scores + at + LANES, stride);
      if (!both) continue;
      _tile_stored(2, scores + at + 2 * LANES, stride);
      _tile_stored(3, scores + at + 3 * LANES, stride);
    }
    settle_memory(scores);
  }

  void gather(Range seen, std::int64_t count, const float* weights, float* sums,
              std::int64_t stride) const {
    const Range range{seen.first / BLOCK * BLOCK, parts(seen.end, BLOCK) * BLOCK};
    for (std::int64_t query = 0; query < count; ++query) {
      for (std::int64_t at = range.first; at < range.end; at += TILE_WIDTH) {
        const std::int64_t place = query * SPLIT + at;
        keep_weights(weights + query * SCORES + at, memory_->upper + place,
                     memory_->lower + place);
      }
    }
    settle_memory(memory_);
    gather_tile(memory_->values, width_, range, memory_->upper, memory_->lower, count, sums,
                stride);
  }

 private:
  struct Memory : ChunkSpace {
    alignas(64) bf16 queries[(MOST_QUERIES + TILE_ROWS) * QUERY];
    alignas(64) bf16 keys[SPLIT * MOST_SIZE];    // [keys / 16, width / 32, tile]
    alignas(64) bf16 values[SPLIT * MOST_SIZE];  // [blocks, width / 16, tile]
    alignas(64) bf16 block[BLOCK * MOST_SIZE];
    alignas(64) bf16 upper[TILE_ROWS * SPLIT], lower[TILE_ROWS * SPLIT];  // of weights
    Sums sums;
  };

  const Step<bf16>& step_;
  std::int64_t width_;
  Memory* memory_;
};

struct TileEngine {
  Tiles tiles;
  FewTiles few;
  ManyTiles many;

  explicit TileEngine(const Step<bf16>& step) : few(step), many(step) {}
};

}  // namespace

void attend_amx(const Attention<bf16>& step, const Division& division, float* memory) noexcept {
  attend_step<TileEngine>(step, division, memory);
}
