// Products with weights of 4 and 8 bits. Rows become integers, with a scale for each group of inputs;
// the sum of a group is an integer, exact whatever the order, and groups are added up in theirs, in
// float32. So a row's result depends on nothing else, and errs by what the integers leave of the
// largest input of a group: 1 / 65,534 of it where they have 16 bits, 1 / 254 where they have 8.

#include "linear_packed.h"

#include <cstring>

#include "memory.h"
#include "packed_many.h"

// A panel is unpacked for all rows of a chunk.
template <>
constexpr std::int64_t LEAST_PART<PackedLayout> = CHUNK_ROWS;

namespace {

// More rows than these share a panel that is unpacked once.
constexpr int FEW_ROWS = 12;

// Each thread's, for one panel after another.
thread_local Memory tile;

// The sums of a few rows with one half of a panel, as it is read from memory.
template <int ROWS, typename Way, bool HAS_TABLE>
void half_of(const PackedLayout& layout, const char* at, const Quantised<Way>& x,
             std::int64_t first, f32x16 (&sums)[ROWS]) {
  clear(sums);
  const __m512i table = HAS_TABLE ? Way::table_of(layout) : _mm512_setzero_si512();
  const typename Way::Number* numbers = x.numbers + first * x.wide;
  Scales scales{};
  for (std::int64_t group = 0; group < layout.groups; ++group, numbers += layout.group) {
    scales.read(layout, at);
    const std::int64_t place = first * x.groups + group;
    __m512i whole[ROWS];
    for (int row = 0; row < ROWS; ++row) {
      whole[row] = Way::BIAS == 0 ? _mm512_setzero_si512()
                                  : _mm512_set1_epi32(x.starts[place + row * x.groups]);
    }
    for_steps<Way, HAS_TABLE>(table, at, layout.group, [&](std::int64_t step, __m512i weights) {
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        whole[row] =
            Way::add(whole[row], weights, step_at(numbers + row * x.wide + Way::STEP * step));
      }
    });
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const std::int64_t at_row = place + row * x.groups;
      if (layout.has_zeros) {
        const __m512i total = _mm512_set1_epi32(x.totals[at_row]);
        whole[row] = _mm512_sub_epi32(whole[row], _mm512_mullo_epi32(total, scales.zero));
      }
      sums[row] = add_group(sums[row], whole[row], scales.scale, x.scales[at_row]);
      if (layout.minimums == Scale::NONE) continue;
      sums[row] = _mm512_fmadd_ps(scales.minimum, _mm512_set1_ps(x.sums[at_row]), sums[row]);
    }
  }
}

template <int ROWS, typename Way, bool HAS_TABLE, typename T>
void few_rows(const Product<T, PackedLayout>& product, const Quantised<Way>& x, std::int64_t row,
              std::int64_t first, std::int64_t panel) {
  const PackedLayout& layout = *product.weight;
  const char* at = layout.data + panel * 2 * layout.half_bytes;
  f32x16 low[ROWS], high[ROWS];
  half_of<ROWS, Way, HAS_TABLE>(layout, at, x, row, low);
  half_of<ROWS, Way, HAS_TABLE>(layout, at + layout.half_bytes, x, row, high);
  for (int number = 0; number < ROWS; ++number) {
    use_result(product, low[number], high[number], first + number, panel);
  }
}

// Unpacks a panel where it is for many rows, there is memory, and its numbers fit.
template <typename Way, bool HAS_TABLE>
bool unpacked_for(std::int64_t rows, const PackedLayout& layout, std::int64_t panel, Unpacked& to) {
  if (rows <= FEW_ROWS) return false;
  if (!tile.hold(static_cast<std::size_t>(Unpacked::bytes<Way>(layout)))) return false;
  to = Unpacked::in<Way>(tile.data(), layout);
  return unpack<Way, HAS_TABLE>(layout, panel, to);
}

template <typename Way, bool HAS_TABLE, typename T, typename Work>
void multiply_panels(const Work& work, const Product<T, PackedLayout>& all,
                     const Quantised<Way>& x) {
  struct Nothing {};
  for_panels<Nothing>(work, [&](Nothing&, const auto& product, std::int64_t first,
                                std::int64_t count, std::int64_t panel) {
    // By results: rows of a group may all be the same one.
    const std::int64_t row = (product.out - all.out) / all.out_stride + first;
    const PackedLayout& layout = *product.weight;
    Unpacked unpacked;
    if (unpacked_for<Way, HAS_TABLE>(count, layout, panel, unpacked)) {
      const char* next = layout.data + (panel + 1) * 2 * layout.half_bytes;
      const std::int64_t share = 2 * layout.half_bytes * MOST_ROWS / count / layout.groups;
      const std::int64_t bytes = (share + 63) / 64 * 64;
      for_blocks<MOST_ROWS>(count, [&](auto size, std::int64_t begin, std::int64_t, std::int64_t) {
        many_rows<size>(product, x, unpacked, row + begin, first + begin, panel, next, bytes);
        next += bytes * layout.groups;
      });
    } else {
      for_blocks<FEW_ROWS>(count, [&](auto size, std::int64_t begin, std::int64_t, std::int64_t) {
        few_rows<size, Way, HAS_TABLE>(product, x, row + begin, first + begin, panel);
      });
    }
  });
}

template <typename Way, typename T, typename Work>
void multiply_by(const Work& work, const Product<T, PackedLayout>& all, char* memory) {
  const PackedLayout& layout = *all.weight;
  const Quantised<Way> x(memory, layout, all.rows);
  for_rows(all.rows, all.inputs, [&](std::int64_t row) {
    quantise_row(all.x + row * all.x_stride, layout, all.inputs, x, row);
  });
  if (layout.has_table) {
    multiply_panels<Way, true>(work, all, x);
  } else {
    multiply_panels<Way, false>(work, all, x);
  }
}

template <typename T, typename Work>
void multiply(const Work& work, const Product<T, PackedLayout>& all, char* memory) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (all.weight->takes_bytes) return multiply_by<Bytes>(work, all, memory);
  }
  multiply_by<Words>(work, all, memory);
}

// The number of a column of one output, of a group whose codes begin at `at`.
int number_at(const PackedLayout& layout, const char* at, std::int64_t column, std::int64_t lane) {
  if (!layout.has_table) return at[column / 2 * 32 + lane * 2 + column % 2];
  std::uint16_t word;
  std::memcpy(&word, at + column / 8 * 64 + (lane * 2 + column % 2) * 2, sizeof word);
  return layout.table[word >> (column % 8 / 2 * 4) & 15];
}

inline void store_one(float* to, float value) { *to = value; }
template <typename T>
void store_one(T* to, float value) {
  store(to, 1, _mm512_set1_ps(value));
}

template <typename T>
void look_up(const PackedLayout& layout, std::int64_t inputs, std::int64_t output, T* out) {
  const std::int64_t lane = output % LANES;
  const char* at = layout.data + output / LANES * layout.half_bytes;
  Scales scales{};
  for (std::int64_t group = 0; group < layout.groups; ++group) {
    scales.read(layout, at);
    alignas(64) float scale[LANES], minimum[LANES];
    alignas(64) std::int32_t zero[LANES];
    _mm512_store_ps(scale, scales.scale);
    _mm512_store_ps(minimum, scales.minimum);
    _mm512_store_si512(zero, scales.zero);
    const std::int64_t first = group * layout.group, left = inputs - first;
    for (std::int64_t k = 0; k < layout.group && k < left; ++k) {
      const int number = number_at(layout, at, k, lane) - zero[lane];
      const std::int64_t column = layout.order == nullptr ? first + k : layout.order[first + k];
      store_one(out + column, scale[lane] * static_cast<float>(number) + minimum[lane]);
    }
    at += layout.group * LANES / (layout.has_table ? 2 : 1);
  }
}

}  // namespace

void packed_row(const PackedLayout& layout, std::int64_t inputs, std::int64_t output,
                float* out) noexcept {
  look_up(layout, inputs, output, out);
}
void packed_row(const PackedLayout& layout, std::int64_t inputs, std::int64_t output,
                bf16* out) noexcept {
  look_up(layout, inputs, output, out);
}

void packed_row(const PackedLayout& layout, std::int64_t inputs, std::int64_t output,
                f16* out) noexcept {
  look_up(layout, inputs, output, out);
}

void linear_packed(const Product<float, PackedLayout>& product, char* memory) noexcept {
  multiply(product, product, memory);
}
void linear_packed(const Product<bf16, PackedLayout>& product, char* memory) noexcept {
  multiply(product, product, memory);
}
void linear_packed(const Product<f16, PackedLayout>& product, char* memory) noexcept {
  multiply(product, product, memory);
}
void linear_packed(const Grouped<float, PackedLayout>& products, char* memory) noexcept {
  multiply(products, products.all, memory);
}
void linear_packed(const Grouped<bf16, PackedLayout>& products, char* memory) noexcept {
  multiply(products, products.all, memory);
}
void linear_packed(const Grouped<f16, PackedLayout>& products, char* memory) noexcept {
  multiply(products, products.all, memory);
}
