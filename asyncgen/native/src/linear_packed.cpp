// Products with weights of 4 and 8 bits. Rows become integers of 16 bits, with a scale for each group
// of inputs; the sum of a group is an integer, exact whatever the order, and groups are added up in
// theirs, in float32. So a row's result depends on nothing else, and errs by what 16 bits leave of
// the largest input of a group: 1 / 65,534 of it.

#include "linear_packed.h"

#include <cstring>

#include "memory.h"
#include "products.h"

namespace {

// Rows at a time: two integer and two float accumulators each, of 32 registers.
constexpr int MOST_ROWS = 6;

// More rows than these share a panel that is widened once.
constexpr int FEW_ROWS = 12;

// Each thread's, for one panel after another.
thread_local Memory tile;

// How far ahead of its use a half of a panel is fetched, in bytes.
constexpr std::int64_t AHEAD = 2048;

// Groups whose inputs are all smaller count as zero: what they would be divided by overflows.
constexpr float LEAST = 1e-30f;

// Rows as integers, a group's scale, its sum, and that sum times the scale.
struct Quantised {
  std::int16_t* numbers;  // [rows, wide]
  float *scales, *sums;   // [rows, groups]
  std::int32_t* totals;
  std::int64_t wide, groups;

  Quantised(char* memory, const PackedLayout& layout, std::int64_t rows)
      : wide(layout.groups * layout.group), groups(layout.groups) {
    numbers = reinterpret_cast<std::int16_t*>(memory);
    scales = reinterpret_cast<float*>(numbers + rows * wide);
    sums = scales + rows * groups;
    totals = reinterpret_cast<std::int32_t*>(sums + rows * groups);
  }
};

template <typename T>
f32x16 inputs_at(const T* row, const std::int32_t* order, std::int64_t at, __mmask16 lanes) {
  if (order == nullptr) return load(row + at, lanes);
  alignas(64) T picked[LANES] = {};
  for (int lane = 0; lane < LANES && (lanes >> lane & 1) != 0; ++lane) {
    picked[lane] = row[order[at + lane]];
  }
  return load(picked, lanes);
}

// Makes integers of one group of a row.
template <typename T>
void quantise_group(const T* row, const PackedLayout& layout, std::int64_t inputs,
                    std::int64_t group, std::int16_t* to, float& scale, std::int32_t& total) {
  constexpr int MOST = MOST_GROUP / LANES;
  f32x16 x[MOST];
  const int count = static_cast<int>(layout.group / LANES);
  __m512i largest = _mm512_setzero_si512();  // as bits: what is not a number is larger than all
  for (int part = 0; part < count; ++part) {
    const std::int64_t at = group * layout.group + part * LANES;
    x[part] = inputs_at(row, layout.order, at, first_lanes(inputs - at));
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(x[part]),
                                          _mm512_set1_epi32(0x7fffffff));
    largest = _mm512_max_epu32(largest, size);
  }
  const std::uint32_t bits = _mm512_reduce_max_epu32(largest);
  float most;
  std::memcpy(&most, &bits, sizeof most);
  const bool is_zero = most < LEAST;
  scale = is_zero ? 0.0f : most / 32767.0f;
  const f32x16 factor = _mm512_set1_ps(is_zero ? 0.0f : 32767.0f / most);
  __m512i sum = _mm512_setzero_si512();
  for (int part = 0; part < count; ++part) {
    const __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(x[part], factor));
    sum = _mm512_add_epi32(sum, number);
    _mm256_storeu_si256((__m256i*)(to + part * LANES), _mm512_cvtsepi32_epi16(number));
  }
  total = _mm512_reduce_add_epi32(sum);
}

template <typename T>
void quantise_row(const T* row, const PackedLayout& layout, std::int64_t inputs,
                  const Quantised& to, std::int64_t number) {
  for (std::int64_t group = 0; group < layout.groups; ++group) {
    const std::int64_t at = number * to.groups + group;
    quantise_group(row, layout, inputs, group, to.numbers + number * to.wide + group * layout.group,
                   to.scales[at], to.totals[at]);
    to.sums[at] = static_cast<float>(to.totals[at]) * to.scales[at];
  }
}

// Sixteen scales or minimums as they are stored.
inline f32x16 load_scales(Scale kind, const char*& at) {
  const char* from = at;
  if (kind == Scale::FLOAT32) {
    at += 64;
    return _mm512_loadu_ps(from);
  }
  if (kind == Scale::INT8) {
    at += 16;
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
  }
  at += 32;
  const __m256i half = _mm256_loadu_si256((const __m256i*)from);
  if (kind == Scale::FLOAT16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// What a group's numbers are scaled by, and what is taken off and added, of sixteen outputs. Floats
// of 256 inputs, and those of a whole row, stand before the first of their groups.
struct Scales {
  f32x16 scale, minimum, large, large_minimum;
  __m512i zero;
  std::int64_t until_large = 0, until_scale = 0;  // groups before there are others

  void read(const PackedLayout& layout, const char*& at) {
    if (until_large-- == 0) {
      until_large = layout.groups_per_super - 1;
      if (is_two_level(layout.scales)) large = load_scales(Scale::FLOAT16, at);
      if (is_two_level(layout.minimums)) large_minimum = load_scales(Scale::FLOAT16, at);
    }
    if (until_scale-- != 0) return;
    until_scale = layout.groups_per_scale - 1;
    if (layout.scales == Scale::INT4) {
      const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at));
      at += 16;
      scale = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
      scale = _mm512_mul_ps(scale, large);
      minimum = _mm512_cvtepi32_ps(
          _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_srli_epi32(both, 4)));
      minimum = _mm512_mul_ps(minimum, large_minimum);
      return;
    }
    scale = load_scales(layout.scales, at);
    if (layout.scales == Scale::INT8) scale = _mm512_mul_ps(scale, large);
    if (layout.has_zeros) {
      zero = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at));
      at += 16;
    }
    if (layout.minimums == Scale::NONE) return;
    minimum = load_scales(layout.minimums, at);
    if (layout.minimums == Scale::INT8) minimum = _mm512_mul_ps(minimum, large_minimum);
  }
};

inline __m512i pair_at(const std::int16_t* numbers) {
  std::int32_t both;
  std::memcpy(&both, numbers, sizeof both);
  return _mm512_set1_epi32(both);
}

// Calls `use(pair, weights)` for each pair of a group's inputs, with the numbers of 16 outputs.
//
// Codes of 8 inputs lie in words of 16 bits, of which a table takes four bits at a time: it is there
// twice, so that the fifth bit means nothing.
template <bool HAS_TABLE, typename Use>
inline void for_pairs(__m512i table, const char*& at, std::int64_t group, Use use) {
  for (std::int64_t pair = 0; pair < group / 2; pair += 8) {
#pragma GCC unroll 2
    for (int part = 0; part < 8; part += 4) {
      _mm_prefetch(at + AHEAD, _MM_HINT_T0);
      if (HAS_TABLE) {
        const __m512i codes = _mm512_loadu_si512(at);
        at += 64;
        use(pair + part, _mm512_permutexvar_epi16(codes, table));
        use(pair + part + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table));
        use(pair + part + 2, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table));
        use(pair + part + 3, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table));
        continue;
      }
      _mm_prefetch(at + AHEAD + 64, _MM_HINT_T0);
#pragma GCC unroll 4
      for (int number = 0; number < 4; ++number, at += 32) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i*)at);
        use(pair + part + number, _mm512_cvtepi8_epi16(bytes));
      }
    }
  }
}

// Adds what a group of a row gives to its sum, from the sum of integers.
inline f32x16 add_group(f32x16 sum, __m512i whole, f32x16 scale, float row_scale) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole),
                         _mm512_mul_ps(scale, _mm512_set1_ps(row_scale)), sum);
}

// The sums of a few rows with one half of a panel, as it is read from memory.
template <int ROWS, bool HAS_TABLE>
void half_of(const PackedLayout& layout, const char* at, const Quantised& x, std::int64_t first,
             f32x16 (&sums)[ROWS]) {
  for (int row = 0; row < ROWS; ++row) sums[row] = _mm512_setzero_ps();
  const __m512i table = HAS_TABLE ? _mm512_load_si512(layout.table) : _mm512_setzero_si512();
  const std::int16_t* numbers = x.numbers + first * x.wide;
  Scales scales{};
  for (std::int64_t group = 0; group < layout.groups; ++group, numbers += layout.group) {
    scales.read(layout, at);
    __m512i whole[ROWS];
    for (int row = 0; row < ROWS; ++row) whole[row] = _mm512_setzero_si512();
    for_pairs<HAS_TABLE>(table, at, layout.group, [&](std::int64_t pair, __m512i weights) {
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; ++row) {
        whole[row] =
            _mm512_dpwssd_epi32(whole[row], weights, pair_at(numbers + row * x.wide + 2 * pair));
      }
    });
    const std::int64_t place = first * x.groups + group;
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

template <int ROWS, bool HAS_TABLE, typename T>
void few_rows(const Product<T, PackedLayout>& product, const Quantised& x, std::int64_t row,
              std::int64_t first, std::int64_t panel) {
  const PackedLayout& layout = *product.weight;
  const char* at = layout.data + panel * 2 * layout.half_bytes;
  f32x16 low[ROWS], high[ROWS];
  half_of<ROWS, HAS_TABLE>(layout, at, x, row, low);
  half_of<ROWS, HAS_TABLE>(layout, at + layout.half_bytes, x, row, high);
  for (int number = 0; number < ROWS; ++number) {
    use_result(product, low[number], high[number], first + number, panel);
  }
}

// A panel whose numbers are widened once for many rows; zero points are taken off.
struct Widened {
  std::int16_t* numbers;     // [groups * group / 2, 2, 16 outputs, 2 inputs]
  float *scales, *minimums;  // [groups, 2, 16]

  static std::int64_t bytes(const PackedLayout& layout) {
    return layout.groups * PANEL * (layout.group * 2 + 8);
  }
  Widened(char* memory, const PackedLayout& layout) {
    numbers = reinterpret_cast<std::int16_t*>(memory);
    scales = reinterpret_cast<float*>(numbers + layout.groups * layout.group * PANEL);
    minimums = scales + layout.groups * PANEL;
  }
};

template <bool HAS_TABLE>
void widen(const PackedLayout& layout, std::int64_t panel, const Widened& to) {
  const __m512i table = HAS_TABLE ? _mm512_load_si512(layout.table) : _mm512_setzero_si512();
  for (int half = 0; half < 2; ++half) {
    const char* at = layout.data + (panel * 2 + half) * layout.half_bytes;
    std::int16_t* numbers = to.numbers + half * PANEL;
    Scales scales{};
    for (std::int64_t group = 0; group < layout.groups; ++group, numbers += layout.group * PANEL) {
      scales.read(layout, at);
      _mm512_store_ps(to.scales + (2 * group + half) * LANES, scales.scale);
      _mm512_store_ps(to.minimums + (2 * group + half) * LANES, scales.minimum);
      // The same number in both halves of a word: it is small.
      const __m512i both = _mm512_or_si512(_mm512_slli_epi32(scales.zero, 16),
                                           _mm512_and_si512(scales.zero, _mm512_set1_epi32(0xffff)));
      for_pairs<HAS_TABLE>(table, at, layout.group, [&](std::int64_t pair, __m512i weights) {
        if (layout.has_zeros) weights = _mm512_sub_epi16(weights, both);
        _mm512_store_si512(numbers + pair * 2 * PANEL, weights);
      });
    }
  }
}

// The same sums, of more rows, by both halves of a widened panel. Meanwhile so many bytes for each
// group are fetched, of what is widened next.
template <int ROWS, typename T>
void many_rows(const Product<T, PackedLayout>& product, const Quantised& x, const Widened& panel_of,
               std::int64_t row, std::int64_t first, std::int64_t panel, const char* next,
               std::int64_t bytes) {
  const PackedLayout& layout = *product.weight;
  f32x16 low[ROWS], high[ROWS];
  for (int at = 0; at < ROWS; ++at) low[at] = high[at] = _mm512_setzero_ps();
  const std::int16_t *numbers = x.numbers + row * x.wide, *weights = panel_of.numbers;
  for (std::int64_t group = 0; group < layout.groups; ++group) {
    __m512i first_sums[ROWS], second_sums[ROWS];
    for (int at = 0; at < ROWS; ++at) first_sums[at] = second_sums[at] = _mm512_setzero_si512();
    for (const char* end = next + bytes; next < end; next += 64) _mm_prefetch(next, _MM_HINT_T1);
    for (std::int64_t k = 0; k < layout.group; k += 8) {
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part, numbers += 2, weights += 2 * PANEL) {
        const __m512i upper = _mm512_load_si512(weights);
        const __m512i lower = _mm512_load_si512(weights + PANEL);
#pragma GCC unroll 8
        for (int at = 0; at < ROWS; ++at) {
          const __m512i pair = pair_at(numbers + at * x.wide);
          first_sums[at] = _mm512_dpwssd_epi32(first_sums[at], upper, pair);
          second_sums[at] = _mm512_dpwssd_epi32(second_sums[at], lower, pair);
        }
      }
    }
    const float* scales = panel_of.scales + group * PANEL;
    const float* minimums = panel_of.minimums + group * PANEL;
    const f32x16 upper = _mm512_load_ps(scales), lower = _mm512_load_ps(scales + LANES);
#pragma GCC unroll 8
    for (int at = 0; at < ROWS; ++at) {
      const std::int64_t place = (row + at) * x.groups + group;
      low[at] = add_group(low[at], first_sums[at], upper, x.scales[place]);
      high[at] = add_group(high[at], second_sums[at], lower, x.scales[place]);
      if (layout.minimums == Scale::NONE) continue;
      const f32x16 sum = _mm512_set1_ps(x.sums[place]);
      low[at] = _mm512_fmadd_ps(_mm512_load_ps(minimums), sum, low[at]);
      high[at] = _mm512_fmadd_ps(_mm512_load_ps(minimums + LANES), sum, high[at]);
    }
  }
  for (int at = 0; at < ROWS; ++at) use_result(product, low[at], high[at], first + at, panel);
}

// Calls `compute(count, first)` for blocks of nearly the same size, with a count that is known when
// it is compiled.
template <int MOST, typename Compute>
void for_blocks_of(std::int64_t rows, Compute compute) {
  const std::int64_t blocks = (rows + MOST - 1) / MOST;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
    with_count<MOST>(end - begin, [&](auto count) { compute(count, begin); });
  }
}

template <bool HAS_TABLE, typename T, typename Work>
void multiply_panels(const Work& work, const Product<T, PackedLayout>& all, const Quantised& x) {
  struct Nothing {};
  for_panels<Nothing>(work, [&](Nothing&, const auto& product, std::int64_t first,
                                std::int64_t count, std::int64_t panel) {
    // By results: rows of a group may all be the same one.
    const std::int64_t row = (product.out - all.out) / all.out_stride + first;
    const PackedLayout& layout = *product.weight;
    if (count > FEW_ROWS && tile.hold(static_cast<std::size_t>(Widened::bytes(layout)))) {
      const Widened widened(tile.data(), layout);
      widen<HAS_TABLE>(layout, panel, widened);
      const char* next = layout.data + (panel + 1) * 2 * layout.half_bytes;
      const std::int64_t bytes = (2 * layout.half_bytes * MOST_ROWS / count / layout.groups + 63) / 64 * 64;
      for_blocks_of<MOST_ROWS>(count, [&](auto size, std::int64_t begin) {
        many_rows<size>(product, x, widened, row + begin, first + begin, panel, next, bytes);
        next += bytes * layout.groups;
      });
    } else {
      for_blocks_of<FEW_ROWS>(count, [&](auto size, std::int64_t begin) {
        few_rows<size, HAS_TABLE>(product, x, row + begin, first + begin, panel);
      });
    }
  });
}

template <typename T, typename Work>
void multiply(const Work& work, const Product<T, PackedLayout>& all, char* memory) {
  const PackedLayout& layout = *all.weight;
  const Quantised x(memory, layout, all.rows);
  for_rows(all.rows, all.inputs, [&](std::int64_t row) {
    quantise_row(all.x + row * all.x_stride, layout, all.inputs, x, row);
  });
  if (layout.has_table) {
    multiply_panels<true>(work, all, x);
  } else {
    multiply_panels<false>(work, all, x);
  }
}

// The number of a column of one output, of a group whose codes begin at `at`.
int number_at(const PackedLayout& layout, const char* at, std::int64_t column, std::int64_t lane) {
  if (!layout.has_table) return at[column / 2 * 32 + lane * 2 + column % 2];
  std::uint16_t word;
  std::memcpy(&word, at + column / 8 * 64 + (lane * 2 + column % 2) * 2, sizeof word);
  return layout.table[word >> (column % 8 / 2 * 4) & 15];
}

inline void store_one(float* to, float value) { *to = value; }
inline void store_one(bf16* to, float value) { store(to, 1, _mm512_set1_ps(value)); }

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

void linear_packed(const Product<float, PackedLayout>& product, char* memory) noexcept {
  multiply(product, product, memory);
}
void linear_packed(const Product<bf16, PackedLayout>& product, char* memory) noexcept {
  multiply(product, product, memory);
}
void linear_packed(const Grouped<float, PackedLayout>& products, char* memory) noexcept {
  multiply(products, products.all, memory);
}
void linear_packed(const Grouped<bf16, PackedLayout>& products, char* memory) noexcept {
  multiply(products, products.all, memory);
}
