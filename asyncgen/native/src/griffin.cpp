// The real-gated linear recurrent unit: De and others, "Griffin: Mixing Gated Linear Recurrences with
// Local Attention for Efficient Language Models" (2024), section 2.4, equations 1 to 4. A gate's
// product is one sum in the order of its inputs, and the recurrence goes from token to token.

#include <algorithm>

#include "scans.h"
#include "team.h"
#include "vectors.h"

namespace {

constexpr int SIDE = 2;     // vectors of channels that are computed together
constexpr int MOST = 4;     // tokens whose products share what is read of a gate

// Both gates of some channels of a block, of so many tokens.
template <int TOKENS, typename T>
void make_gates(const Griffin<T>& griffin, std::int64_t token, std::int64_t channel,
                std::int64_t end, f32x16 (&input)[MOST][SIDE], f32x16 (&decay)[MOST][SIDE]) {
  const std::int64_t size = griffin.size, block = channel / size, column = channel - block * size;
  __mmask16 lanes[SIDE];
  for (int at = 0; at < SIDE; ++at) {
    lanes[at] = first_lanes(end - channel - at * LANES);
    for (int row = 0; row < TOKENS; ++row) {
      input[row][at] = load(griffin.input_bias + channel + at * LANES, lanes[at]);
      decay[row][at] = load(griffin.decay_bias + channel + at * LANES, lanes[at]);
    }
  }
  const float* const x = griffin.x + token * griffin.channels + block * size;
  for (std::int64_t from = 0; from < size; ++from) {
    const std::int64_t place = (block * size + from) * size + column;
    f32x16 values[TOKENS];
    for (int row = 0; row < TOKENS; ++row) {
      values[row] = _mm512_set1_ps(x[row * griffin.channels + from]);
    }
    for (int at = 0; at < SIDE; ++at) {
      const f32x16 first = load(griffin.input_gate + place + at * LANES, lanes[at]);
      const f32x16 second = load(griffin.decay_gate + place + at * LANES, lanes[at]);
      for (int row = 0; row < TOKENS; ++row) {
        input[row][at] = _mm512_fmadd_ps(values[row], first, input[row][at]);
        decay[row][at] = _mm512_fmadd_ps(values[row], second, decay[row][at]);
      }
    }
  }
}

// Some channels of a block of one run.
template <typename T>
void advance(const Griffin<T>& griffin, std::int64_t number, std::int64_t channel,
             std::int64_t end) {
  const Run& run = griffin.runs.first[number];
  const f32x16 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const auto state_at = [&](std::int64_t place) {
    return griffin.states + place * (griffin.channels + 1) + channel;
  };
  __mmask16 lanes[SIDE];
  f32x16 state[SIDE], pace[SIDE], input[MOST][SIDE], decay[MOST][SIDE];
  for (int at = 0; at < SIDE; ++at) {
    lanes[at] = first_lanes(end - channel - at * LANES);
    state[at] = load(state_at(run.source) + at * LANES, lanes[at]);
    pace[at] = load(griffin.decay + channel + at * LANES, lanes[at]);
  }
  for (std::int64_t first = 0; first < run.count; first += MOST) {
    const std::int64_t count = std::min<std::int64_t>(MOST, run.count - first);
    with_count<MOST>(count, [&](auto tokens) {
      make_gates<tokens()>(griffin, run.token + first, channel, end, input, decay);
    });
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t token = run.token + first + row;
      const bool is_first = first + row == 0 && griffin.begun[number] == 0.0f;
      for (int at = 0; at < SIDE; ++at) {
        const std::int64_t place = token * griffin.channels + channel + at * LANES;
        const f32x16 logarithm = _mm512_mul_ps(pace[at], sigmoid(decay[row][at]));
        const f32x16 square = exponential(_mm512_mul_ps(two, logarithm));
        const f32x16 root = is_first ? one : _mm512_sqrt_ps(_mm512_sub_ps(one, square));
        const f32x16 passed =
            _mm512_mul_ps(load(griffin.x + place, lanes[at]), sigmoid(input[row][at]));
        state[at] = _mm512_fmadd_ps(state[at], exponential(logarithm), _mm512_mul_ps(passed, root));
        const std::int64_t gate = token * griffin.gate_stride + channel + at * LANES;
        const f32x16 opened = gelu_tanh(load(griffin.gate + gate, lanes[at]));
        store(griffin.out + place, lanes[at], _mm512_mul_ps(state[at], opened));
      }
    }
  }
  for (int at = 0; at < SIDE; ++at) {
    store(state_at(run.target) + at * LANES, lanes[at], state[at]);
  }
}

template <typename T>
void advance_all(const Griffin<T>& griffin) {
  const std::int64_t step = SIDE * LANES, size = griffin.size;
  const std::int64_t parts = (size + step - 1) / step, blocks = griffin.channels / size;
  for_each_piece(griffin.runs.count * blocks * parts, [&](std::int64_t piece) {
    const std::int64_t block = piece / parts % blocks, first = piece % parts * step;
    const std::int64_t end = std::min(first + step, size);
    advance(griffin, piece / (blocks * parts), block * size + first, block * size + end);
  });
}

}  // namespace

void advance_griffin(const Griffin<float>& griffin) noexcept { advance_all(griffin); }
void advance_griffin(const Griffin<bf16>& griffin) noexcept { advance_all(griffin); }
void advance_griffin(const Griffin<f16>& griffin) noexcept { advance_all(griffin); }
