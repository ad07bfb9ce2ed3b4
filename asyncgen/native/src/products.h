// What products of all dtypes share: the work of each thread, and what becomes of a result.
#pragma once

#include <algorithm>

#include "check.h"
#include "team.h"
#include "vectors.h"

// At most so many rows are multiplied by one panel after another, while they stay in the cache.
constexpr std::int64_t CHUNK_ROWS = 256;

// What a gate lets through.
template <typename T, typename W>
inline f32x16 through_gate(const Product<T, W>& product, f32x16 gate, f32x16 value) {
  if (product.use == GATE_SILU) return _mm512_mul_ps(silu(gate), value);
  if (product.use == GATE_GELU) return _mm512_mul_ps(gelu(gate), value);
  if (product.use == GATE_GELU_TANH) return _mm512_mul_ps(gelu_tanh(gate), value);
  // The second operand comes back where one is not a number.
  const f32x16 most = _mm512_set1_ps(product.limit), least = _mm512_set1_ps(-product.limit);
  gate = _mm512_min_ps(most, gate);
  value = _mm512_max_ps(least, _mm512_min_ps(most, value));
  const f32x16 passed = _mm512_mul_ps(
      gate, sigmoid(_mm512_mul_ps(_mm512_set1_ps(product.alpha), gate)));
  return _mm512_mul_ps(_mm512_add_ps(value, _mm512_set1_ps(1.0f)), passed);
}

inline f32x16 activated(Use use, f32x16 x) {
  if (use == SILU) return silu(x);
  if (use == GELU) return gelu(x);
  if (use == GELU_TANH) return gelu_tanh(x);
  // The second operand comes back where one is not a number.
  const f32x16 above = _mm512_max_ps(_mm512_setzero_ps(), x);
  return use == RELU ? above : _mm512_mul_ps(above, above);
}

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
  if (is_gate(product.use)) {
    const __mmask16 lanes = first_lanes(outputs / 2 - column / 2);
    store(out + column / 2, lanes, through_gate(product, low, high));
    return;
  }
  if (is_activation(product.use)) {
    low = activated(product.use, low);
    high = activated(product.use, high);
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

inline std::int64_t panels_of(std::int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }
inline std::int64_t chunks_of(std::int64_t rows) { return (rows + CHUNK_ROWS - 1) / CHUNK_ROWS; }

// Calls `compute(first row, rows, panel)` for a piece of the work of so many rows and panels.
template <typename Compute>
inline void for_chunk(std::int64_t rows, std::int64_t panels, std::int64_t piece, Compute compute) {
  const std::int64_t chunks = chunks_of(rows), chunk = piece / panels;
  const std::int64_t first = rows * chunk / chunks, next = rows * (chunk + 1) / chunks;
  compute(first, next - first, piece % panels);
}

// A chunk's rows are cut into parts of no fewer, so that threads come to the end of their work at the
// same time. What is made of a panel before it is multiplied by is made once, for all of them.
template <typename W>
constexpr std::int64_t LEAST_PART = 32;

// Calls `compute(state, product, first row, rows, panel)` for all panels and rows, one part of a chunk
// after another; each thread that does has a state of its own meanwhile.
template <typename State, typename T, typename W, typename Compute>
inline void for_panels(const Product<T, W>& product, Compute compute) {
  const std::int64_t panels = panels_of(product.outputs), chunks = chunks_of(product.rows);
  const std::int64_t least = std::max<std::int64_t>(chunks, 1) * LEAST_PART<W>;
  const std::int64_t parts = std::max<std::int64_t>(product.rows / least, 1);
  for_pieces(chunks * panels * parts, [&](Pieces& pieces) {
    State state;
    for (std::int64_t piece; pieces.next(piece);) {
      for_chunk(product.rows, panels, piece / parts,
                [&](std::int64_t first, std::int64_t rows, std::int64_t panel) {
                  const std::int64_t part = piece % parts, begin = rows * part / parts;
                  compute(state, product, first + begin, rows * (part + 1) / parts - begin, panel);
                });
    }
  });
}

// A group's product, as if it were the only one.
template <typename T, typename W>
inline Product<T, W> product_of_group(const Grouped<T, W>& products, const Group& group) {
  Product<T, W> product = products.all;
  product.x += group.first * product.x_stride;
  product.rows = group.rows;
  product.weight += group.matrix * products.matrix_size;
  if (product.bias != nullptr) product.bias += group.matrix * panels_of(product.outputs) * PANEL;
  product.out += group.first * product.out_stride;
  return product;
}

// The same for all groups.
template <typename State, typename T, typename W, typename Compute>
inline void for_panels(const Grouped<T, W>& products, Compute compute) {
  const std::int64_t panels = panels_of(products.all.outputs);
  for_pieces(products.num_pieces, [&](Pieces& pieces) {
    State state;
    std::int64_t number = 0;  // of the group that the last piece was of
    for (std::int64_t piece; pieces.next(piece);) {
      while (products.groups[number].piece > piece) --number;
      while (number + 1 < products.num_groups && products.groups[number + 1].piece <= piece) {
        ++number;
      }
      const Group& group = products.groups[number];
      const Product<T, W> product = product_of_group(products, group);
      for_chunk(group.rows, panels, piece - group.piece,
                [&](std::int64_t first, std::int64_t rows, std::int64_t panel) {
                  compute(state, product, first, rows, panel);
                });
    }
  });
}

// For products that keep the sums of at most MOST rows in registers: calls `compute(count, first row,
// number, blocks)` with a count that is known when it is compiled, for one block of rows after another.
template <int MOST, typename Compute>
inline void for_blocks(std::int64_t count, Compute compute) {
  // Blocks of nearly the same size: a block of one row would wait for its own sums.
  const std::int64_t blocks = (count + MOST - 1) / MOST;
  for (std::int64_t number = 0; number < blocks; ++number) {
    const std::int64_t begin = count * number / blocks, end = count * (number + 1) / blocks;
    with_count<MOST>(end - begin, [&](auto size) { compute(size, begin, number, blocks); });
  }
}
