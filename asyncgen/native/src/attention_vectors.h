// Attention with vectors of sixteen sums. Queries, keys, weights and values are read in words of 32
// bits, a number in float32 or two in bfloat16; `Words` says what becomes of them. Those in float16
// are widened as they are packed, which is exact, and computed with as float32 is. Two weights of a
// word, and the values of their two keys, are those of an even position and the next one: so every
// sum is of the same pairs in the same order, wherever a task or what is seen begins.
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
constexpr int LEAST_OF_MANY = 9;  // in tiles of equal size
constexpr int PAIR = 2;
constexpr std::int64_t VALUES = PAIR * LANES;

template <typename T>
struct Words;

// What is multiplied where heads are of some type.
template <typename T>
using Factor = std::conditional_t<std::is_same_v<T, f16>, float, T>;

template <>
struct Words<float> {
  static f32x16 load(const float* words) { return _mm512_loadu_ps(words); }
  static f32x16 load(const f16* words) { return ::load(words, 0xffff); }
  static f32x16 load(const std::int8_t* words) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
  static f32x16 words(__m512i all) { return _mm512_castsi512_ps(all); }
  static f32x16 repeat(const float* number) { return _mm512_set1_ps(*number); }
  static f32x16 add(f32x16 sums, f32x16 value, f32x16 words) {
    return _mm512_fmadd_ps(value, words, sums);
  }
};

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

// Such a block in float16 becomes [width, BLOCK] floats.
template <typename Meanwhile = Nothing>
void keep_columns(const f16* block, std::int64_t width, float* to, Meanwhile meanwhile = {}) {
  const auto widened = [](__m512i halves) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves));
  };
  for (std::int64_t first = 0; first < BLOCK; first += LANES, block += LANES * width) {
    for_columns(block, width * sizeof(f16), width / IN_WORD<f16>,
                [&](std::int64_t word, __m512i column) {
                  float* both = to + 2 * word * BLOCK + first;
                  _mm512_store_ps(both, widened(column));
                  _mm512_store_ps(both + BLOCK, widened(_mm512_srli_epi32(column, 16)));
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
  clear(low);
  clear(high);
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
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
    _mm512_storeu_ps(scores + row * STRIDE, low[row]);
    _mm512_storeu_ps(scores + row * STRIDE + LANES, high[row]);
  }
}

// Values of a key, or of a pair of keys that lie `width` numbers apart, as words: sixteen a vector.
template <int COLUMNS, typename V>
inline void load_words(const V* values, std::int64_t, __m512i (&words)[COLUMNS]) {
#pragma GCC unroll 4
  for (int i = 0; i < COLUMNS; ++i) {
    words[i] = _mm512_castps_si512(Words<float>::load(values + i * LANES));
  }
}
template <int COLUMNS>
inline void load_words(const bf16* values, std::int64_t width, __m512i (&words)[COLUMNS]) {
  // Of each 16 bytes the first half goes to the lower vector, the second one to the upper.
  const __m512i lanes = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
#pragma GCC unroll 2
  for (int i = 0; i + 1 < COLUMNS; i += 2) {
    const bf16* from = values + i * LANES;
    const __m512i first = _mm512_permutexvar_epi64(lanes, _mm512_loadu_si512(from));
    const __m512i second = _mm512_permutexvar_epi64(lanes, _mm512_loadu_si512(from + width));
    words[i] = _mm512_unpacklo_epi16(first, second);
    words[i + 1] = _mm512_unpackhi_epi16(first, second);
  }
  if constexpr (COLUMNS % 2 != 0) {
    const auto widened = [](const bf16* from) {
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    };
    const bf16* from = values + (COLUMNS - 1) * LANES;
    const __m512i second = _mm512_slli_epi32(widened(from + width), 16);
    words[COLUMNS - 1] = _mm512_or_si512(widened(from), second);
  }
}

// Adds weighted values, word by word of keys, to the sums of some queries; the weights of two
// queries are STRIDE floats apart. Rows of `width` values are those of a key, or words of some keys.
// Calls `meanwhile` for each word.
template <typename W, int ROWS, int COLUMNS, std::int64_t STRIDE, typename V,
          typename Meanwhile = Nothing>
void gather_rows(const V* values, std::int64_t width, std::int64_t keys, const W* weights,
                 float* sums, std::int64_t sums_stride, Meanwhile meanwhile = {}) {
  f32x16 all[ROWS][COLUMNS];
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < COLUMNS; ++i)
      all[row][i] = _mm512_loadu_ps(sums + row * sums_stride + i * LANES);
  }
  constexpr std::int64_t ROWS_OF_WORD = std::is_same_v<V, W> ? IN_WORD<W> : 1;
  for (std::int64_t key = 0; key < keys; key += IN_WORD<W>, values += ROWS_OF_WORD * width) {
    meanwhile();
    __m512i value[COLUMNS];
    load_words(values, width, value);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const auto weight = Words<W>::repeat(weights + row * STRIDE * IN_WORD<W> + key);
#pragma GCC unroll 4
      for (int i = 0; i < COLUMNS; ++i)
        all[row][i] = Words<W>::add(all[row][i], weight, Words<W>::words(value[i]));
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < COLUMNS; ++i)
      _mm512_storeu_ps(sums + row * sums_stride + i * LANES, all[row][i]);
  }
}

template <typename T>
std::int64_t width_of(const Step<T>& step) {
  return parts(step.size, LANES) * LANES;
}

// Few queries: a block of keys or values after another, as they lie in their page. Keys are turned,
// and values widened or put side by side, as they are used.
template <typename T>
class FewVectors {
 public:
  using Weight = Factor<T>;
  // In float32 values are read as they lie. Behind 16,384 tokens 36 to 96 queries take 10 to 20 %
  // less time than in tiles (Zen 4), those of 16 bits as long or longer.
  static constexpr std::int64_t MOST = std::is_same_v<T, float> ? 3 * FEW_QUERIES : FEW_QUERIES;

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
          score_rows<Weight, rows, SPLIT>(memory_->queries + first * QUERY, width_, memory_->floats,
                                          scores + first * SPLIT + at, [&] { lines.ask(); });
        });
      }
    }
  }

  void gather(const Reader<T>& values, std::int64_t base, Range range, std::int64_t count,
              const float* scores, float* sums, std::int64_t stride, Ahead<T>& ahead) {
    const Weight* weights = reinterpret_cast<const Weight*>(scores);
    for (std::int64_t query = 0; query < count; ++query) {
      std::memset(sums + query * stride, 0, width_ * sizeof(float));
    }
    const std::int64_t groups = parts(count, GATHERED);
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      Lines lines = ahead.next_block();
      const T* block = values.block(base + at, memory_->block);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        for (std::int64_t column = 0; column < width_; column += VECTORS * LANES) {
          const std::int64_t vectors = least((width_ - column) / LANES, VECTORS);
          with_count<GATHERED>(end - first, [&](auto rows) {
            with_count<VECTORS>(vectors, [&](auto columns) {
              gather_rows<Weight, rows, columns, SPLIT>(
                  block + column, width_, BLOCK, weights + first * SPLIT * IN_WORD<Weight> + at,
                  sums + first * stride + column, stride, [&] { lines.ask(ASKED); });
            });
          });
        }
      }
    }
  }

 private:
  struct Memory {
    alignas(64) Weight queries[MOST * QUERY];
    alignas(64) float floats[BLOCK * MOST_SIZE];
    alignas(64) T block[BLOCK * MOST_SIZE];
  };

  // Lines asked for with each word of values.
  static constexpr std::int64_t ASKED = IN_WORD<Weight> * VECTORS * LANES * sizeof(T) / LINE;

  const Step<T>& step_;
  std::int64_t width_;
  Memory* memory_;
};

// Many queries: see `ChunkRun`.
template <typename T>
class ManyVectors {
 public:
  using Weight = Factor<T>;
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
      for (std::int64_t key = at; key < at + BLOCK; key += IN_WORD<Weight>) {
        for (std::int64_t column = 0; column < width_; column += VALUES) {
          float* to = panel(column) + key / IN_WORD<Weight> * VALUES;
          with_count<PAIR>((width_ - column) / LANES, [&](auto vectors) {
            __m512i words[vectors];
            load_words(from + column, width_, words);
            for (int i = 0; i < vectors; ++i) _mm512_store_si512(to + i * LANES, words[i]);
          });
        }
        from += IN_WORD<Weight> * width_;
      }
    }
  }

  void score(std::int64_t first, std::int64_t count, Range range, float* scores) const {
    CHECK_OR_RETURN(count >= LEAST_OF_MANY && count <= MANY, )
    with_count<MANY, LEAST_OF_MANY>(count, [&](auto rows) {
      for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
        score_rows<Weight, rows, SCORES>(memory_->queries + first * QUERY, width_, columns(at),
                                         scores + at);
      }
    });
  }

  void gather(Range seen, std::int64_t count, const float* scores, float* sums,
              std::int64_t stride) const {
    const Weight* weights = reinterpret_cast<const Weight*>(scores);
    const Range range{seen.first / IN_WORD<Weight> * IN_WORD<Weight>,
                      parts(seen.end, IN_WORD<Weight>) * IN_WORD<Weight>};
    for (std::int64_t query = 0; query < count; ++query) {
      std::memset(sums + query * stride, 0, width_ * sizeof(float));
    }
    with_count<MANY, LEAST_OF_MANY>(count, [&](auto rows) {
      for (std::int64_t column = 0; column < width_; column += VALUES) {
        with_count<PAIR>((width_ - column) / LANES, [&](auto vectors) {
          gather_rows<Weight, rows, vectors, SCORES>(
              panel(column) + range.first / IN_WORD<Weight> * VALUES, VALUES,
              range.end - range.first, weights + range.first, sums + column, stride);
        });
      }
    });
  }

 private:
  struct Memory : ChunkSpace {
    alignas(64) Weight queries[MOST_QUERIES * QUERY];
    alignas(64) float keys[SPLIT * MOST_SIZE];    // [blocks, words, BLOCK]
    alignas(64) float values[SPLIT * MOST_SIZE];  // [width / VALUES, words, VALUES]
    alignas(64) T block[BLOCK * MOST_SIZE];
  };

  float* columns(std::int64_t at) const { return memory_->keys + at * (width_ / IN_WORD<Weight>); }
  float* panel(std::int64_t column) const {
    return memory_->values + column / VALUES * (SPLIT / IN_WORD<Weight>) * VALUES;
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
