// The gated delta rule: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with
// Delta Rule" (2024), equation 10; with a decay for each feature of a key it is that of Kimi Linear
// (2025), equation 1. Prompts are gone through token by token, as single tokens are, with a value's
// row of the state in registers.
//
// What is read of the new state is q'(S + n k) = q'S + n q'k, where S is what was kept of the old
// one and n what becomes of the value: so both products with S are sums beside each other, and only
// one of them lies on the way to the next token.

#include "scans.h"
#include "team.h"
#include "vectors.h"

namespace {

constexpr std::int64_t TILE = 16;  // tokens whose queries and keys stay in the nearest cache
constexpr std::int64_t SIDE = 16;  // values of a head that a piece of work has
constexpr int MOST_VECTORS = 8;    // of a row of the state that stay in registers
constexpr std::int64_t MOST_CACHED = 1 << 19;  // numbers of a layer's states

// Some values of a head of one run.
struct Part {
  const Delta& delta;
  const Run& run;
  std::int64_t head;

  std::int64_t side(std::int64_t token) const {
    const std::int64_t group = head / (delta.heads / delta.groups);
    return (run.token + token) * delta.stride + group * delta.numbers;
  }
  const float* values(std::int64_t token) const {
    return delta.values + (run.token + token) * delta.stride + head * delta.size;
  }
  std::int64_t step(std::int64_t token) const {
    return (run.token + token) * delta.heads + head;
  }
  float* state(std::int64_t place, std::int64_t value) const {
    return delta.states + ((place * delta.heads + head) * delta.size + value) * delta.numbers;
  }
  f32x16 kept(std::int64_t token, std::int64_t number, __mmask16 lanes) const {
    if (!delta.has_features) return _mm512_set1_ps(delta.kept[step(token)]);
    return load(delta.kept + step(token) * delta.numbers + number, lanes);
  }
  // Whether states are written past the caches, as those of many texts are after a few tokens.
  bool passes_by(std::int64_t first, std::int64_t end) const {
    const bool is_whole = first == 0 && end == run.count && run.source != run.target;
    return is_whole && delta.runs.count * delta.heads * delta.size * delta.numbers > MOST_CACHED &&
           delta.numbers % LANES == 0 &&
           reinterpret_cast<std::uintptr_t>(delta.states) % sizeof(f32x16) == 0;
  }
};

// The product of a query and a key.
float product(const float* query, const float* key, std::int64_t numbers) {
  f32x16 sum = _mm512_setzero_ps();
  for (std::int64_t at = 0; at < numbers; at += LANES) {
    const __mmask16 lanes = first_lanes(numbers - at);
    sum = _mm512_fmadd_ps(load(query + at, lanes), load(key + at, lanes), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

// Takes ROWS rows of a head's state, of VECTORS vectors each, through the tokens from `first` to
// `end`, of which `products` are those of query and key.
template <int ROWS, int VECTORS>
void advance(const Part& part, std::int64_t value, std::int64_t first, std::int64_t end,
             const float* products) {
  const Delta& delta = part.delta;
  const __mmask16 last = first_lanes(delta.numbers - (VECTORS - 1) * LANES);
  const auto lanes = [&](int vector) -> __mmask16 { return vector < VECTORS - 1 ? 0xffff : last; };
  f32x16 state[ROWS][VECTORS];
  for (int row = 0; row < ROWS; ++row) {
    const float* from = part.state(first == 0 ? part.run.source : part.run.target, value + row);
    for (int at = 0; at < VECTORS; ++at) state[row][at] = load(from + at * LANES, lanes(at));
  }
  for (std::int64_t token = first; token < end; ++token) {
    const float* const query = delta.queries + part.side(token);
    const float* const key = delta.keys + part.side(token);
    f32x16 stored[ROWS], read[ROWS];
    for (int at = 0; at < VECTORS; ++at) {
      const f32x16 kept = part.kept(token, at * LANES, lanes(at));
      const f32x16 k = load(key + at * LANES, lanes(at));
      const f32x16 q = load(query + at * LANES, lanes(at));
      for (int row = 0; row < ROWS; ++row) {
        state[row][at] = _mm512_mul_ps(state[row][at], kept);
        stored[row] = at == 0 ? _mm512_mul_ps(state[row][at], k)
                              : _mm512_fmadd_ps(state[row][at], k, stored[row]);
        read[row] = at == 0 ? _mm512_mul_ps(state[row][at], q)
                            : _mm512_fmadd_ps(state[row][at], q, read[row]);
      }
    }
    const float rate = delta.rates[part.step(token)];
    for (int row = 0; row < ROWS; ++row) {
      const float old = _mm512_reduce_add_ps(stored[row]);
      const float found = (part.values(token)[value + row] - old) * rate;
      const f32x16 new_part = _mm512_set1_ps(found);
      for (int at = 0; at < VECTORS; ++at) {
        state[row][at] =
            _mm512_fmadd_ps(new_part, load(key + at * LANES, lanes(at)), state[row][at]);
      }
      delta.out[part.step(token) * delta.size + value + row] =
          _mm512_reduce_add_ps(read[row]) + found * products[token - first];
    }
  }
  const bool passes = part.passes_by(first, end);
  for (int row = 0; row < ROWS; ++row) {
    float* to = part.state(part.run.target, value + row);
    for (int at = 0; at < VECTORS; ++at) {
      if (passes) {
        _mm512_stream_ps(to + at * LANES, state[row][at]);
      } else {
        store(to + at * LANES, lanes(at), state[row][at]);
      }
    }
  }
}

// The same for a row of any length, which stays in memory.
void advance_long(const Part& part, std::int64_t value, std::int64_t first, std::int64_t end,
                  const float* products) {
  const Delta& delta = part.delta;
  float* const state = part.state(part.run.target, value);
  const float* from = part.state(first == 0 ? part.run.source : part.run.target, value);
  for (std::int64_t token = first; token < end; ++token) {
    const float* const query = delta.queries + part.side(token);
    const float* const key = delta.keys + part.side(token);
    f32x16 stored = _mm512_setzero_ps(), read = _mm512_setzero_ps();
    for (std::int64_t at = 0; at < delta.numbers; at += LANES) {
      const __mmask16 lanes = first_lanes(delta.numbers - at);
      const f32x16 row = _mm512_mul_ps(load(from + at, lanes), part.kept(token, at, lanes));
      stored = _mm512_fmadd_ps(row, load(key + at, lanes), stored);
      read = _mm512_fmadd_ps(row, load(query + at, lanes), read);
      store(state + at, lanes, row);
    }
    from = state;
    const float old = _mm512_reduce_add_ps(stored);
    const float found = (part.values(token)[value] - old) * delta.rates[part.step(token)];
    for (std::int64_t at = 0; at < delta.numbers; at += LANES) {
      const __mmask16 lanes = first_lanes(delta.numbers - at);
      store(state + at, lanes,
            _mm512_fmadd_ps(_mm512_set1_ps(found), load(key + at, lanes),
                            load(state + at, lanes)));
    }
    delta.out[part.step(token) * delta.size + value] =
        _mm512_reduce_add_ps(read) + found * products[token - first];
  }
}

void advance_all(const Part& part, std::int64_t value, std::int64_t end_value, std::int64_t first,
                 std::int64_t end) {
  const Delta& delta = part.delta;
  float products[TILE];
  for (std::int64_t token = first; token < end; ++token) {
    const std::int64_t side = part.side(token);
    products[token - first] = product(delta.queries + side, delta.keys + side, delta.numbers);
  }
  const std::int64_t vectors = (delta.numbers + LANES - 1) / LANES;
  if (vectors > MOST_VECTORS) {
    for (; value < end_value; ++value) advance_long(part, value, first, end, products);
    return;
  }
  with_count<MOST_VECTORS>(vectors, [&](auto count) {
    std::int64_t at = value;
    for (; at + 2 <= end_value; at += 2) advance<2, count()>(part, at, first, end, products);
    if (at < end_value) advance<1, count()>(part, at, first, end, products);
  });
}

}  // namespace

void apply_delta(const Delta& delta) noexcept {
  const std::int64_t blocks = (delta.size + SIDE - 1) / SIDE;
  for_each_piece(delta.runs.count * delta.heads * blocks, [&](std::int64_t piece) {
    const Run& run = delta.runs.first[piece / (delta.heads * blocks)];
    const Part part{delta, run, piece / blocks % delta.heads};
    const std::int64_t value = piece % blocks * SIDE;
    const std::int64_t end = value + SIDE < delta.size ? value + SIDE : delta.size;
    for (std::int64_t first = 0; first < run.count; first += TILE) {
      const std::int64_t next = first + TILE < run.count ? first + TILE : run.count;
      advance_all(part, value, end, first, next);
    }
    _mm_sfence();
  });
}
