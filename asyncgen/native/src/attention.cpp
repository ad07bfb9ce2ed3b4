// Attention in float32 arithmetic, whatever the pages hold.

#include "attention.h"

#include "transpose.h"

namespace {

// Queries whose sums are in registers at the same time: of scores, two vectors each, and of values,
// up to four.
constexpr int SCORED = 8;
constexpr int GATHERED = 5;
constexpr int VECTORS = 4;

struct Columns {
  float* to;  // [width, BLOCK]

  void keep(const float* rows, std::int64_t width, std::int64_t first) const {
    for_columns(rows, width * sizeof(float), width, [&](std::int64_t word, __m512i column) {
      _mm512_store_si512(to + word * BLOCK + first, column);
    });
  }
  void keep(const bf16* rows, std::int64_t width, std::int64_t first) const {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    for_columns(rows, width * sizeof(bf16), width / 2, [&](std::int64_t word, __m512i column) {
      float* at = to + 2 * word * BLOCK + first;
      _mm512_store_si512(at, _mm512_slli_epi32(column, 16));
      _mm512_store_si512(at + BLOCK, _mm512_and_si512(column, upper));
    });
  }
};

template <typename T>
class Vectors {
 public:
  explicit Vectors(const Step<T>& step) : step_(step), width_(parts(step.size, LANES) * LANES) {
    static thread_local Memory memory;
    memory_ = &memory;
  }

  std::int64_t width() const { return width_; }

  void take(const Task& task) {
    for (std::int64_t query = 0; query < task.count; ++query) {
      const T* from = step_.query(*task.row, task.head, task.first + query);
      for (std::int64_t at = 0; at < width_; at += LANES) {
        const __mmask16 lanes = first_lanes(step_.size - at);
        _mm512_store_ps(memory_->queries + query * width_ + at, load(from + at, lanes));
      }
    }
  }

  void score(const Reader<T>& keys, std::int64_t base, Range range, std::int64_t count,
             float* scores, Ahead<T>& ahead) {
    const Columns columns{memory_->floats};
    const std::int64_t groups = parts(count, SCORED);
    for (std::int64_t at = range.first; at < range.end; at += BLOCK) {
      const T* block = keys.block(base + at, memory_->block);
      if (at + BLOCK < range.end) keys.fetch(base + at + BLOCK);
      ahead.fetch();
      columns.keep(block, width_, 0);
      columns.keep(block + LANES * width_, width_, LANES);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        with_count<SCORED>(end - first, [&](auto rows) {
          score_some<rows>(memory_->queries + first * width_, scores + first * SPLIT + at);
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
      const float* block = widened(values.block(base + at, memory_->block));
      ahead.fetch();
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = count * group / groups, end = count * (group + 1) / groups;
        for (std::int64_t column = 0; column < width_; column += VECTORS * LANES) {
          const std::int64_t vectors = least((width_ - column) / LANES, VECTORS);
          with_count<GATHERED>(end - first, [&](auto rows) {
            with_count<VECTORS>(vectors, [&](auto columns) {
              gather_some<rows, columns>(block + column, weights + first * SPLIT + at,
                                         sums + first * stride + column, stride);
            });
          });
        }
      }
    }
  }

 private:
  struct Memory {
    alignas(64) float queries[QUERIES * MOST_SIZE];
    alignas(64) float floats[BLOCK * MOST_SIZE];
    alignas(64) T block[BLOCK * MOST_SIZE];
  };

  template <int ROWS>
  void score_some(const float* queries, float* scores) const {
    f32x16 low[ROWS], high[ROWS];
    for (int row = 0; row < ROWS; ++row) low[row] = high[row] = _mm512_setzero_ps();
    const float* column = memory_->floats;
    for (std::int64_t at = 0; at < width_; ++at, column += BLOCK) {
      const f32x16 k_low = _mm512_load_ps(column), k_high = _mm512_load_ps(column + LANES);
#pragma GCC unroll 8
      for (int row = 0; row < ROWS; ++row) {
        const f32x16 value = _mm512_set1_ps(queries[row * width_ + at]);
        low[row] = _mm512_fmadd_ps(value, k_low, low[row]);
        high[row] = _mm512_fmadd_ps(value, k_high, high[row]);
      }
    }
    for (int row = 0; row < ROWS; ++row) {
      _mm512_storeu_ps(scores + row * SPLIT, low[row]);
      _mm512_storeu_ps(scores + row * SPLIT + LANES, high[row]);
    }
  }

  template <int ROWS, int COLUMNS>
  void gather_some(const float* block, const float* weights, float* sums,
                   std::int64_t stride) const {
    f32x16 all[ROWS][COLUMNS];
    for (int row = 0; row < ROWS; ++row) {
      for (int i = 0; i < COLUMNS; ++i)
        all[row][i] = _mm512_loadu_ps(sums + row * stride + i * LANES);
    }
    for (std::int64_t key = 0; key < BLOCK; ++key, block += width_) {
      f32x16 value[COLUMNS];
#pragma GCC unroll 4
      for (int i = 0; i < COLUMNS; ++i) value[i] = _mm512_loadu_ps(block + i * LANES);
#pragma GCC unroll 8
      for (int row = 0; row < ROWS; ++row) {
        const f32x16 weight = _mm512_set1_ps(weights[row * SPLIT + key]);
#pragma GCC unroll 4
        for (int i = 0; i < COLUMNS; ++i)
          all[row][i] = _mm512_fmadd_ps(weight, value[i], all[row][i]);
      }
    }
    for (int row = 0; row < ROWS; ++row) {
      for (int i = 0; i < COLUMNS; ++i)
        _mm512_storeu_ps(sums + row * stride + i * LANES, all[row][i]);
    }
  }

  const float* widened(const float* block) { return block; }
  const float* widened(const bf16* block) {
    for (std::int64_t at = 0; at < BLOCK * width_; at += LANES) {
      _mm512_store_ps(memory_->floats + at, load(block + at, 0xffff));
    }
    return memory_->floats;
  }

  const Step<T>& step_;
  std::int64_t width_;
  Memory* memory_;
};

}  // namespace

Division divide_f32(const Attention<float>& attention) noexcept { return divide(attention); }
Division divide_bf16(const Attention<bf16>& attention) noexcept { return divide(attention); }

void attend_f32(const Attention<float>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<float>>(step, division, memory);
}

void attend_bf16(const Attention<bf16>& step, const Division& division, float* memory) noexcept {
  attend_step<Vectors<bf16>>(step, division, memory);
}
