// Attention over pages of codes: integers of 8 bits with a scale a head and position
// (asyncgen/cache/codes.py). They are read as they lie. A query becomes integers of 16 bits with a
// scale, so that its score is the exact sum of products of integers, times both scales; it errs by
// what 16 bits leave of a query, 1 / 65,534 of its largest number, which is a 256th of what 8 bits
// leave of the keys. Weights take the scales of the values on, which are float32 from there on.
//
// A sum of integers is the same in any order, so few queries and many get the same bits.
#pragma once

#include "attention_vectors.h"

constexpr float MOST_CODE = 127.0f;
constexpr float MOST_NUMBER = 32767.0f;
static_assert(MOST_SIZE * 32767 * 127 <= 0x7fffffff, "a score is summed up in 32 bits");

// Vectors whose scale would be smaller are zero.
constexpr float LEAST_SCALE = __FLT_MIN__;

// One vector's scale for integers up to `most`: NaN if it has a number that is none.
template <typename T>
float scale_of(const T* from, std::int64_t size, float most) {
  const __m512i sign = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();  // as bits: NaN is the greatest of all
  for (std::int64_t at = 0; at < size; at += LANES) {
    const f32x16 x = load(from + at, first_lanes(size - at));
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(x), sign));
  }
  const std::uint32_t bits = _mm512_reduce_max_epu32(largest);
  float found;
  std::memcpy(&found, &bits, sizeof found);
  if (!(found <= __FLT_MAX__)) return __builtin_nanf("");
  const float scale = found / most;
  return scale < LEAST_SCALE ? 0.0f : scale;
}

// Writes one head's key or value in codes: rounded to the nearest, ties to even.
template <typename T>
void keep_number(const T* from, const Store<Coded<T>>& to, std::int64_t spot, std::int64_t size) {
  const float scale = to.scales[spot] = scale_of(from, size, MOST_CODE);
  std::int8_t* codes = to.numbers + spot * size;
  const bool is_number = scale > 0.0f;  // else all codes are zero
  const f32x16 divisor = _mm512_set1_ps(is_number ? scale : 1.0f);
  for (std::int64_t at = 0; at < size; at += LANES) {
    const __mmask16 lanes = first_lanes(size - at);
    const f32x16 x = _mm512_div_ps(load(from + at, is_number ? lanes : 0), divisor);
    _mm512_mask_cvtsepi32_storeu_epi8(codes + at, lanes, _mm512_cvtps_epi32(x));
  }
}

// A query as integers of 16 bits, with zeros up to `width`. The second and third number of each
// four change places: codes come out of words of four in this order.
template <typename T>
float keep_query(const T* from, std::int64_t size, std::int64_t width, std::int16_t* to) {
  const __m512i order =
      _mm512_set_epi32(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  const float scale = scale_of(from, size, MOST_NUMBER);
  if (width != size) std::memset(to, 0, width * sizeof(std::int16_t));
  const bool is_number = scale > 0.0f;
  const f32x16 factor = _mm512_set1_ps(is_number ? 1.0f / scale : 0.0f);
  for (std::int64_t at = 0; at < size; at += LANES) {
    const f32x16 all = load(from + at, is_number ? first_lanes(size - at) : 0);
    const f32x16 x = _mm512_mul_ps(_mm512_permutex2var_ps(all, order, all), factor);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
  }
  return scale;
}

// The first and third code of each word, and the second and fourth, as integers of 16 bits.
inline __m512i even_codes(__m512i words) {
  return _mm512_srai_epi16(_mm512_slli_epi16(words, 8), 8);
}
inline __m512i odd_codes(__m512i words) { return _mm512_srai_epi16(words, 8); }

inline __m512i repeat_pair(const std::int16_t* pair) {
  std::int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return _mm512_set1_epi32(both);
}

// Sixteen integers. GCC keeps sums in registers if they are of this type all along, and in memory if
// they are of the intrinsics' own.
using i32x16 = std::int32_t __attribute__((vector_size(64)));

inline i32x16 add_pairs(i32x16 sums, __m512i a, __m512i b) {
  return (i32x16)_mm512_dpwssd_epi32((__m512i)sums, a, b);
}
inline f32x16 as_floats(i32x16 sums) { return _mm512_cvtepi32_ps((__m512i)sums); }

// A block of keys, turned: [pairs, BLOCK] of two integers of 16 bits. Calls `meanwhile` as often as
// there are pairs.
template <typename Meanwhile = Nothing>
void keep_pairs(const std::int8_t* block, std::int64_t width, float* to, Meanwhile meanwhile = {}) {
  for (std::int64_t first = 0; first < BLOCK; first += LANES, block += LANES * width) {
    for_columns(block, width, width / IN_WORD<std::int8_t>, [&](std::int64_t word, __m512i column) {
      float* pairs = to + 2 * word * BLOCK + first;
      _mm512_store_si512(pairs, even_codes(column));
      _mm512_store_si512(pairs + BLOCK, odd_codes(column));
      meanwhile();
    });
  }
}

// Scores of some queries and a block of turned keys. Calls `meanwhile` for each pair.
template <int ROWS, std::int64_t STRIDE, typename Meanwhile = Nothing>
void score_codes(const std::int16_t* queries, const float* query_scales, std::int64_t width,
                 const float* columns, const float* key_scales, float* scores,
                 Meanwhile meanwhile = {}) {
  i32x16 low[ROWS], high[ROWS];
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) low[row] = high[row] = i32x16{};
  for (std::int64_t at = 0; at < width; at += 2, columns += BLOCK) {
    meanwhile();
    const __m512i a = _mm512_load_si512(columns), b = _mm512_load_si512(columns + LANES);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const __m512i pair = repeat_pair(queries + row * QUERY + at);
      low[row] = add_pairs(low[row], pair, a);
      high[row] = add_pairs(high[row], pair, b);
    }
  }
  const f32x16 low_scales = _mm512_loadu_ps(key_scales);
  const f32x16 high_scales = _mm512_loadu_ps(key_scales + LANES);
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
    const f32x16 scale = _mm512_set1_ps(query_scales[row]);
    float* to = scores + row * STRIDE;
    const f32x16 a = _mm512_mul_ps(as_floats(low[row]), scale);
    const f32x16 b = _mm512_mul_ps(as_floats(high[row]), scale);
    _mm512_storeu_ps(to, _mm512_mul_ps(a, low_scales));
    _mm512_storeu_ps(to + LANES, _mm512_mul_ps(b, high_scales));
  }
}

// Multiplies weights of so many keys by the scales of their values.
inline void scale_weights(float* weights, const float* scales, std::int64_t count) {
  for (std::int64_t at = 0; at < count; at += LANES) {
    const f32x16 scale = _mm512_loadu_ps(scales + at);
    _mm512_storeu_ps(weights + at, _mm512_mul_ps(_mm512_loadu_ps(weights + at), scale));
  }
}

// Few queries: see `FewVectors`.
template <typename T>
class FewCodes {
 public:
  using Weight = float;
  static constexpr std::int64_t MOST = FEW_QUERIES;

  explicit FewCodes(const Step<Coded<T>>& step) : step_(step), width_(width_of(step)) {
    static thread_local Memory memory;
    memory_ = &memory;
  }

  std::int64_t width() const { return width_; }

  void take(const Task& task) {
    for (std::int64_t query = 0; query < task.count; ++query) {
      const T* from = step_.query(*task.row, task.head, task.first + query);
      memory_->scales[query] =
          keep_query(from, step_.size, width_, memory_->queries + query * QUERY);
    }
  }

  void score(const Reader<Coded<T>>& keys, std::int64_t base, Range range, std::int64_t count,
             float* scores, Ahead<Coded<T>>& ahead) {
    const std::int64_t groups = parts(count, SCORED);
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const std::int8_t* block = keys.block(base + at, memory_->block);
      const float* scales = keys.scales(base + at, memory_->block_scales);
      Lines lines = ahead.next_block();
      keep_pairs(block, width_, memory_->columns, [&] { lines.ask(); });
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        with_count<SCORED>(end - first, [&](auto rows) {
          score_codes<rows, SPLIT>(memory_->queries + first * QUERY, memory_->scales + first,
                                   width_, memory_->columns, scales, scores + first * SPLIT + at,
                                   [&] { lines.ask(); });
        });
      }
    }
  }

  void gather(const Reader<Coded<T>>& values, std::int64_t base, Range range, std::int64_t count,
              float* weights, float* sums, std::int64_t stride, Ahead<Coded<T>>& ahead) {
    for (std::int64_t query = 0; query < count; ++query) {
      std::memset(sums + query * stride, 0, width_ * sizeof(float));
    }
    const std::int64_t groups = parts(count, GATHERED);
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const std::int8_t* block = values.block(base + at, memory_->block);
      const float* scales = values.scales(base + at, memory_->block_scales);
      Lines lines = ahead.next_block();
      for (std::int64_t query = 0; query < count; ++query) {
        scale_weights(weights + query * SPLIT + at, scales, BLOCK);
      }
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        for (std::int64_t column = 0; column < width_; column += VECTORS * LANES) {
          const std::int64_t vectors = least((width_ - column) / LANES, VECTORS);
          with_count<GATHERED>(end - first, [&](auto rows) {
            with_count<VECTORS>(vectors, [&](auto columns) {
              gather_rows<float, rows, columns, SPLIT>(block + column, width_, BLOCK,
                                                       weights + first * SPLIT + at,
                                                       sums + first * stride + column, stride,
                                                       [&] { lines.ask(); });
            });
          });
        }
      }
    }
  }

 private:
  struct Memory {
    alignas(64) std::int16_t queries[MOST * QUERY];
    alignas(64) float scales[MOST];  // of queries
    alignas(64) float columns[BLOCK * MOST_SIZE / 2];
    alignas(64) std::int8_t block[BLOCK * MOST_SIZE];
    alignas(64) float block_scales[BLOCK];
  };

  const Step<Coded<T>>& step_;
  std::int64_t width_;
  Memory* memory_;
};

// Many queries: see `ManyVectors`.
template <typename T>
class ManyCodes {
 public:
  using Weight = float;
  static constexpr std::int64_t TILE_QUERIES = MANY;

  explicit ManyCodes(const Step<Coded<T>>& step) : step_(step), width_(width_of(step)) {
    memory_ = chunk_memory<Memory>();
  }

  std::int64_t width() const { return width_; }
  ChunkSpace& space() const { return *memory_; }

  void take(const Task& task) {
    for (std::int64_t query = 0; query < task.count; ++query) {
      const T* from = step_.query(*task.row, task.head, task.first + query);
      memory_->scales[query] =
          keep_query(from, step_.size, width_, memory_->queries + query * QUERY);
    }
  }

  void pack_keys(const Reader<Coded<T>>& keys, std::int64_t base, Range range) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      keep_pairs(keys.block(base + at, memory_->block), width_, columns(at));
      keep_scales(keys.scales(base + at, memory_->block_scales), memory_->key_scales + at);
    }
  }

  void pack_values(const Reader<Coded<T>>& values, std::int64_t base, Range range) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const std::int8_t* from = values.block(base + at, memory_->block);
      keep_scales(values.scales(base + at, memory_->block_scales), memory_->value_scales + at);
      for (std::int64_t key = at; key < at + BLOCK; ++key, from += width_) {
        for (std::int64_t column = 0; column < width_; column += LANES) {
          float* to = panel(column) + key * VALUES + column % VALUES;
          _mm512_store_ps(to, Words<float>::load(from + column));
        }
      }
    }
  }

  void score(std::int64_t first, std::int64_t count, Range range, float* scores) const {
    CHECK_OR_RETURN(count >= LEAST_OF_MANY && count <= MANY, )
    with_count<MANY, LEAST_OF_MANY>(count, [&](auto rows) {
      for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
        score_codes<rows, SCORES>(memory_->queries + first * QUERY, memory_->scales + first,
                                  width_, columns(at), memory_->key_scales + at, scores + at);
      }
    });
  }

  void gather(Range seen, std::int64_t count, float* weights, float* sums,
              std::int64_t stride) const {
    const Range range{seen.first / BLOCK * BLOCK, parts(seen.end, BLOCK) * BLOCK};
    for (std::int64_t query = 0; query < count; ++query) {
      std::memset(sums + query * stride, 0, width_ * sizeof(float));
      scale_weights(weights + query * SCORES + range.first,
                    memory_->value_scales + range.first, range.end - range.first);
    }
    with_count<MANY, LEAST_OF_MANY>(count, [&](auto rows) {
      for (std::int64_t column = 0; column < width_; column += VALUES) {
        with_count<PAIR>((width_ - column) / LANES, [&](auto vectors) {
          gather_rows<float, rows, vectors, SCORES>(
              panel(column) + seen.first * VALUES, VALUES, seen.end - seen.first,
              weights + seen.first, sums + column, stride);
        });
      }
    });
  }

 private:
  struct Memory : ChunkSpace {
    alignas(64) std::int16_t queries[MOST_QUERIES * QUERY];
    alignas(64) float scales[MOST_QUERIES];  // of queries
    alignas(64) float keys[SPLIT * MOST_SIZE / 2];  // [blocks, pairs, BLOCK]
    alignas(64) float values[SPLIT * MOST_SIZE];  // codes, [width / VALUES, SPLIT, VALUES]
    alignas(64) float key_scales[SPLIT], value_scales[SPLIT];
    alignas(64) std::int8_t block[BLOCK * MOST_SIZE];
    alignas(64) float block_scales[BLOCK];
  };

  static void keep_scales(const float* from, float* to) {
    std::memcpy(to, from, BLOCK * sizeof(float));
  }
  float* columns(std::int64_t at) const { return memory_->keys + at * (width_ / 2); }
  float* panel(std::int64_t column) const {
    return memory_->values + column / VALUES * SPLIT * VALUES;
  }

  const Step<Coded<T>>& step_;
  std::int64_t width_;
  Memory* memory_;
};

template <typename T>
struct CodeVectors {
  FewCodes<T> few;
  ManyCodes<T> many;

  explicit CodeVectors(const Step<Coded<T>>& step) : few(step), many(step) {}
};
