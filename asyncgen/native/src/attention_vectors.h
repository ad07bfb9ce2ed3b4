// Attention with vectors of sixteen sums. Queries and keys are read in words of 32 bits, a number
// in float32 or two in bfloat16; `Words` says what becomes of them. Values and weights are float32.
#pragma once

#include "attention.h"
#include "transpose.h"

// Queries whose sums are in registers at the same time where they are few: of scores, two vectors
// each, and of values, up to four.
constexpr int SCORED = 8;
constexpr int GATHERED = 5;
constexpr int VECTORS = 4;

// The same where they are many, of either two vectors each.
constexpr int MANY = 12;
constexpr int LEAST_OF_MANY = 9;  // in tiles of equal size of more than FEW_QUERIES
constexpr int PAIR = 2;
constexpr std::int64_t VALUES = PAIR * LANES;

template <typename T>
struct Words;

template <typename T>
constexpr std::int64_t IN_WORD = sizeof(float) / sizeof(T);

// What the loops below call where nothing is to be done meanwhile.
struct Nothing {
  void operator()() const {}
};

// A block of keys, turned: [words, BLOCK]. Calls `meanwhile` as often as there are words.
template <typename T, typename Meanwhile = Nothing>
void keep_columns(const T* block, std::int64_t width, float* to, Meanwhile meanwhile = {}) {
  for (std::int64_t first = 0; first < BLOCK; first += LANES, block += LANES * width) {
    for_columns(block, width * sizeof(T), width / IN_WORD<T>,
                [&](std::int64_t word, __m512i column) {
                  _mm512_store_si512(to + word * BLOCK + first, column);
                  if (word % 2 == 0) meanwhile();
                });
  }
}

// Scores of some queries and a block of turned keys: for each one sum, word by word. Calls
// `meanwhile` for each word.
template <typename T, int ROWS, std::int64_t STRIDE, typename Meanwhile = Nothing>
void score_rows(const T* queries, std::int64_t width, const float* columns, float* scores,
                Meanwhile meanwhile = {}) {
  f32x16 low[ROWS], high[ROWS];
  for (int row = 0; row < ROWS; ++row) low[row] = high[row] = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < width; at += IN_WORD<T>, columns += BLOCK) {
    meanwhile();
    const auto k_low = Words<T>::load(columns), k_high = Words<T>::load(columns + LANES);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const auto value = Words<T>::repeat(queries + row * QUERY + at);
      low[row] = Words<T>::add(low[row], value, k_low);
      high[row] = Words<T>::add(high[row], value, k_high);
    }
  }
  for (int row = 0; row < ROWS; ++row) {
    _mm512_storeu_ps(scores + row * STRIDE, low[row]);
    _mm512_storeu_ps(scores + row * STRIDE + LANES, high[row]);
  }
}

inline f32x16 widened(const float* from) { return _mm512_loadu_ps(from); }
inline f32x16 widened(const std::int8_t* from) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}

// Adds weighted values, key by key, to the sums of some queries. Calls `meanwhile` for each key.
template <int ROWS, int COLUMNS, std::int64_t STRIDE, typename V, typename Meanwhile = Nothing>
void gather_rows(const V* values, std::int64_t width, std::int64_t keys, const float* weights,
                 float* sums, std::int64_t sums_stride, Meanwhile meanwhile = {}) {
  f32x16 all[ROWS][COLUMNS];
  for (int row = 0; row < ROWS; ++row) {
    for (int i = 0; i < COLUMNS; ++i)
      all[row][i] = _mm512_loadu_ps(sums + row * sums_stride + i * LANES);
  }
  for (std::int64_t key = 0; key < keys; ++key, values += width) {
    meanwhile();
    f32x16 value[COLUMNS];
#pragma GCC unroll 4
    for (int i = 0; i < COLUMNS; ++i) value[i] = widened(values + i * LANES);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const f32x16 weight = _mm512_set1_ps(weights[row * STRIDE + key]);
#pragma GCC unroll 4
      for (int i = 0; i < COLUMNS; ++i)
        all[row][i] = _mm512_fmadd_ps(weight, value[i], all[row][i]);
    }
  }
  for (int row = 0; row < ROWS; ++row) {
    for (int i = 0; i < COLUMNS; ++i)
      _mm512_storeu_ps(sums + row * sums_stride + i * LANES, all[row][i]);
  }
}

template <typename T>
std::int64_t width_of(const Step<T>& step) {
  return parts(step.size, LANES) * LANES;
}

// Few queries: a block of keys or values after another, each packed as it is used.
template <typename T>
class FewVectors {
 public:
  explicit FewVectors(const Step<T>& step) : step_(step), width_(width_of(step)) {
    static thread_local Memory memory;
    memory_ = &memory;
  }

  std::int64_t width() const { return width_; }

  void take(const Task& task) { keep_queries(step_, task, width_, QUERY, memory_->queries); }

  void score(const Reader<T>& keys, std::int64_t base, Range range, std::int64_t count,
             float* scores, Ahead<T>& ahead) {
    const std::int64_t groups = parts(count, SCORED);
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const T* block = keys.block(base + at, memory_->block);
      Lines lines = ahead.next_block();
      keep_columns(block, width_, memory_->floats, [&] { lines.ask(); });
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        with_count<SCORED>(end - first, [&](auto rows) {
          score_rows<T, rows, SPLIT>(memory_->queries + first * QUERY, width_, memory_->floats,
                                     scores + first * SPLIT + at, [&] { lines.ask(); });
        });
      }
    }
  }

  void gather(const Reader<T>& values, std::int64_t base, Range range, std::int64_t count,
              const float* weights, float* sums, std::int64_t stride, Ahead<T>& ahead) {
    for (std::int64_t query = 0; query < count; ++query) {
      std::memset(sums + query * stride, 0, width_ * sizeof(float));
    }
    const std::int64_t groups = parts(count, GATHERED);
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      Lines lines = ahead.next_block();
      const float* block = widened(values.block(base + at, memory_->block), lines);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        for (std::int64_t column = 0; column < width_; column += VECTORS * LANES) {
          const std::int64_t vectors = least((width_ - column) / LANES, VECTORS);
          with_count<GATHERED>(end - first, [&](auto rows) {
            with_count<VECTORS>(vectors, [&](auto columns) {
              gather_rows<rows, columns, SPLIT>(block + column, width_, BLOCK,
                                                weights + first * SPLIT + at,
                                                sums + first * stride + column, stride,
                                                [&] { lines.ask(ASKED); });
            });
          });
        }
      }
    }
  }

 private:
  struct Memory {
    alignas(64) T queries[FEW_QUERIES * QUERY];
    alignas(64) float floats[BLOCK * MOST_SIZE];
    alignas(64) T block[BLOCK * MOST_SIZE];
  };

  // Lines asked for with each key of values, beside those that are asked for while one is widened.
  static constexpr std::int64_t ASKED = VECTORS * LANES * sizeof(T) / LINE / IN_WORD<T>;

  const float* widened(const float* block, Lines&) { return block; }
  const float* widened(const bf16* block, Lines& lines) {
    for (std::int64_t at = 0; at < BLOCK * width_; at += LANES) {
      if (at % LINE == 0) lines.ask();
      _mm512_store_ps(memory_->floats + at, load(block + at, 0xffff));
    }
    return memory_->floats;
  }

  const Step<T>& step_;
  std::int64_t width_;
  Memory* memory_;
};

// Many queries: see `ChunkRun`.
template <typename T>
class ManyVectors {
 public:
  static constexpr std::int64_t TILE_QUERIES = MANY;

  explicit ManyVectors(const Step<T>& step) : step_(step), width_(width_of(step)) {
    memory_ = chunk_memory<Memory>();
  }

  std::int64_t width() const { return width_; }
  ChunkSpace& space() const { return *memory_; }

  void take(const Task& task) { keep_queries(step_, task, width_, QUERY, memory_->queries); }

  void pack_keys(const Reader<T>& keys, std::int64_t base, Range range) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      keep_columns(keys.block(base + at, memory_->block), width_, columns(at));
    }
  }

  void pack_values(const Reader<T>& values, std::int64_t base, Range range) {
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const T* from = values.block(base + at, memory_->block);
      for (std::int64_t key = at; key < at + BLOCK; ++key, from += width_) {
        for (std::int64_t column = 0; column < width_; column += LANES) {
          float* to = panel(column) + key * VALUES + column % VALUES;
          _mm512_store_ps(to, load(from + column, 0xffff));
        }
      }
    }
  }

  void score(std::int64_t first, std::int64_t count, Range range, float* scores) const {
    CHECK_OR_RETURN(count >= LEAST_OF_MANY && count <= MANY, )
    with_count<MANY, LEAST_OF_MANY>(count, [&](auto rows) {
      for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
        score_rows<T, rows, SCORES>(memory_->queries + first * QUERY, width_, columns(at),
                                    scores + at);
      }
    });
  }

  void gather(Range range, std::int64_t count, const float* weights, float* sums,
              std::int64_t stride) const {
    for (std::int64_t query = 0; query < count; ++query) {
      std::memset(sums + query * stride, 0, width_ * sizeof(float));
    }
    with_count<MANY, LEAST_OF_MANY>(count, [&](auto rows) {
      for (std::int64_t column = 0; column < width_; column += VALUES) {
        with_count<PAIR>((width_ - column) / LANES, [&](auto vectors) {
          gather_rows<rows, vectors, SCORES>(panel(column) + range.first * VALUES, VALUES,
                                             range.end - range.first, weights + range.first,
                                             sums + column, stride);
        });
      }
    });
  }

 private:
  struct Memory : ChunkSpace {
    alignas(64) T queries[MOST_QUERIES * QUERY];
    alignas(64) float keys[SPLIT * MOST_SIZE];    // [blocks, words, BLOCK]
    alignas(64) float values[SPLIT * MOST_SIZE];  // [width / VALUES, SPLIT, VALUES]
    alignas(64) T block[BLOCK * MOST_SIZE];
  };

  float* columns(std::int64_t at) const { return memory_->keys + at * (width_ / IN_WORD<T>); }
  float* panel(std::int64_t column) const {
    return memory_->values + column / VALUES * SPLIT * VALUES;
  }

  const Step<T>& step_;
  std::int64_t width_;
  Memory* memory_;
};

template <typename T>
struct Vectors {
  FewVectors<T> few;
  ManyVectors<T> many;

  explicit Vectors(const Step<T>& step) : few(step), many(step) {}
};
