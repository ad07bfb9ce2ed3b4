// Products in float32, and of rows in float16, which are widened and whose products are rounded
// once: a panel's outputs side by side in two vectors, one row's input at a time against both. Each
// weight is read once from memory for all rows; one of 16 bits is widened on the way, which is
// exact, so that the sums are those of the same weight in float32.

#include "products.h"

namespace {

// Rows at a time: two accumulators each, of 32 registers.
constexpr int MOST_ROWS = 12;

// Inputs of rows in float16 that are widened together.
constexpr std::int64_t WIDENED = 256;

// How far ahead of its use a panel is fetched, in bytes: processors stop fetching ahead at each 4 KB.
template <typename W>
constexpr std::int64_t AHEAD = sizeof(W) == sizeof(float) ? 2048 : 4096;

// The weights of one input for both halves of a panel's outputs, as floats.
void load_halves(const float* from, f32x16& low, f32x16& high) {
  low = _mm512_loadu_ps(from);
  high = _mm512_loadu_ps(from + LANES);
}

// Outputs of both halves take turns, so that a single instruction widens each half.
void load_halves(const bf16* from, f32x16& low, f32x16& high) {
  const __m512i both = _mm512_loadu_si512(from);
  low = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  high = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
}

void load_halves(const f16* from, f32x16& low, f32x16& high) {
  low = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
  high = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(from + LANES)));
}

// Adds the products of so many inputs of some rows, which are `stride` floats apart.
template <int ROWS, typename W>
[[gnu::always_inline]] inline void add_inputs(f32x16 (&low)[ROWS], f32x16 (&high)[ROWS],
                                              const float* from, std::int64_t stride,
                                              std::int64_t inputs, const W* w) {
  for (std::int64_t k = 0; k < inputs; ++k, w += PANEL) {
    const char* ahead = reinterpret_cast<const char*>(w) + AHEAD<W>;
    _mm_prefetch(ahead, _MM_HINT_T0);
    if (sizeof(W) == sizeof(float)) _mm_prefetch(ahead + 64, _MM_HINT_T0);
    f32x16 w_low, w_high;
    load_halves(w, w_low, w_high);
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) {
      const f32x16 value = _mm512_set1_ps(from[row * stride + k]);
      low[row] = _mm512_fmadd_ps(value, w_low, low[row]);
      high[row] = _mm512_fmadd_ps(value, w_high, high[row]);
    }
  }
}

template <int ROWS, typename W>
[[gnu::always_inline]] inline void add_products(f32x16 (&low)[ROWS], f32x16 (&high)[ROWS],
                                            const float* from, std::int64_t stride,
                                            std::int64_t inputs, const W* w) {
  add_inputs(low, high, from, stride, inputs, w);
}

// Rows in float16 are widened a part of their inputs after another, which stay in the innermost
// cache.
template <int ROWS, typename W>
[[gnu::always_inline]] inline void add_products(f32x16 (&low)[ROWS], f32x16 (&high)[ROWS],
                                            const f16* from, std::int64_t stride,
                                            std::int64_t inputs, const W* w) {
  alignas(64) float wide[ROWS * WIDENED];
  for (std::int64_t first = 0; first < inputs; first += WIDENED) {
    const std::int64_t count = inputs - first < WIDENED ? inputs - first : WIDENED;
    for (int row = 0; row < ROWS; ++row) {
      for (std::int64_t k = 0; k < count; k += LANES) {
        copy_lanes(from + row * stride + first + k, first_lanes(count - k),
                   wide + row * WIDENED + k);
      }
    }
    add_inputs(low, high, wide, WIDENED, count, w + first * PANEL);
  }
}

template <int ROWS, typename T, typename W>
void block(const Product<T, W>& product, std::int64_t first, std::int64_t panel) {
  f32x16 low[ROWS], high[ROWS];
  clear(low);
  clear(high);
  const T* from = product.x + first * product.x_stride;
  const W* w = product.weight + panel * PANEL * product.inputs;
  add_products(low, high, from, product.x_stride, product.inputs, w);
  for (int row = 0; row < ROWS; ++row) {
    use_result(product, low[row], high[row], first + row, panel);
  }
}

template <typename Work>
void multiply_all(const Work& work) {
  struct Nothing {};
  for_panels<Nothing>(work, [&](Nothing&, const auto& product, std::int64_t first,
                                std::int64_t count, std::int64_t panel) {
    for_blocks<MOST_ROWS>(count, [&](auto size, std::int64_t begin, std::int64_t, std::int64_t) {
      block<size>(product, first + begin, panel);
    });
  });
}

}  // namespace

std::int64_t pieces_of(std::int64_t rows, std::int64_t outputs) {
  return chunks_of(rows) * panels_of(outputs);
}

void multiply(const Product<float>& product) noexcept { multiply_all(product); }
void multiply(const Product<float, bf16>& product) noexcept { multiply_all(product); }
void multiply(const Product<float, f16>& product) noexcept { multiply_all(product); }
void multiply(const Grouped<float>& products) noexcept { multiply_all(products); }
void multiply(const Grouped<float, bf16>& products) noexcept { multiply_all(products); }
void multiply(const Grouped<float, f16>& products) noexcept { multiply_all(products); }
void multiply(const Product<f16>& product) noexcept { multiply_all(product); }
void multiply(const Grouped<f16>& products) noexcept { multiply_all(products); }
