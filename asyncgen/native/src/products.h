// What products of either dtype share: the work of each thread, and what becomes of a result.
#pragma once

#include "check.h"
#include "team.h"
#include "vectors.h"

// At most so many rows are multiplied by one panel after another, while they stay in the cache.
constexpr std::int64_t CHUNK_ROWS = 256;

// Two halves of a panel's outputs for one row. A result never depends on how many rows there are:
// each is one sum, in the order of the inputs.
template <typename T, typename W>
inline void use_result(const Product<T, W>& product, f32x16 low, f32x16 high, std::int64_t row,
                       std::int64_t panel) {
  const std::int64_t column = panel * PANEL, outputs = product.outputs;
  T* out = product.out + row * product.out_stride;
  CHECK_OR_RETURN(row >= 0 && row < product.rows && column >= 0 && column < outputs, )
  if (product.bias != nullptr) {
    low = _mm512_add_ps(low, _mm512_loadu_ps(product.bias + column));
    high = _mm512_add_ps(high, _mm512_loadu_ps(product.bias + column + LANES));
  }
  if (product.use == GATE_SILU) {
    const __mmask16 lanes = first_lanes(outputs / 2 - column / 2);
    store(out + column / 2, lanes, _mm512_mul_ps(silu(low), high));
    return;
  }
  const __mmask16 first = first_lanes(outputs - column);
  const __mmask16 second = first_lanes(outputs - column - LANES);
  if (product.use == ADD) {
    low = _mm512_add_ps(low, load(out + column, first));
    high = _mm512_add_ps(high, load(out + column + LANES, second));
  }
  store(out + column, first, low);
  store(out + column + LANES, second, high);
}

// Calls `compute(state, first row, rows, panel)` for all panels and chunks of rows; each thread that
// does has a state of its own meanwhile.
template <typename State, typename Compute>
inline void for_panels(std::int64_t rows, std::int64_t outputs, Compute compute) {
  const std::int64_t panels = (outputs + PANEL - 1) / PANEL;
  const std::int64_t chunks = (rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
  for_pieces(chunks * panels, [&](Pieces& pieces) {
    State state;
    for (std::int64_t piece; pieces.next(piece);) {
      const std::int64_t chunk = piece / panels, panel = piece % panels;
      const std::int64_t first = rows * chunk / chunks, next = rows * (chunk + 1) / chunks;
      compute(state, first, next - first, panel);
    }
  });
}

// The same for products that keep the sums of at most MOST rows in registers: calls
// `compute(count, first row, panel)` with a count that is known when it is compiled.
template <int MOST, typename Compute>
inline void for_blocks(std::int64_t rows, std::int64_t outputs, Compute compute) {
  struct Nothing {};
  for_panels<Nothing>(
      rows, outputs, [&](Nothing&, std::int64_t first, std::int64_t count, std::int64_t panel) {
        // Blocks of nearly the same size: a block of one row would wait for its own sums.
        const std::int64_t blocks = (count + MOST - 1) / MOST;
        for (std::int64_t number = 0; number < blocks; ++number) {
          const std::int64_t begin = count * number / blocks, end = count * (number + 1) / blocks;
          with_count<MOST>(end - begin, [&](auto size) { compute(size, first + begin, panel); });
        }
      });
}
