// The recurrences of Mamba and Mamba 2: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with
// Selective State Spaces" (2023), equation 2 with the discretisation of section 3.6; Dao and Gu,
// "Transformers are SSMs" (2024), equation 2. A prompt is gone through as single tokens are, with
// its state in registers: a state's numbers meet the same operations in the same order either way.

#include "scans.h"
#include "team.h"
#include "vectors.h"

namespace {

constexpr std::int64_t TILE = 16;   // tokens whose B and C stay in the nearest cache
constexpr std::int64_t SIDE = 16;   // channels that a piece of work has
constexpr int MOST_VECTORS = 8;     // of a channel's state that stay in registers
constexpr std::int64_t MOST_CACHED = 1 << 19;  // numbers of a layer's states

// log(1 + exp(x)), which is x itself from 20 on. With u = 1 + exp(x) as it was rounded,
// log(1 + e) = log(u) + (e - (u - 1)) / u; and log(u) = k ln 2 + 2 atanh(f / (2 + f)) for
// u = 2^k (1 + f), |f| at most a half.
f32x16 softplus(f32x16 x) {
  const f32x16 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const f32x16 e = exponential(x), u = _mm512_add_ps(one, e);
  const f32x16 m = _mm512_getmant_ps(u, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
  const f32x16 k = _mm512_sub_ps(_mm512_getexp_ps(u), _mm512_getexp_ps(m));
  const f32x16 f = _mm512_sub_ps(m, one);
  const f32x16 s = _mm512_div_ps(f, _mm512_add_ps(two, f)), square = _mm512_mul_ps(s, s);
  f32x16 p = _mm512_set1_ps(2.0f / 11);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.0f / 9));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.0f / 7));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.0f / 5));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.0f / 3));
  p = _mm512_fmadd_ps(p, square, two);
  const f32x16 rest = _mm512_div_ps(_mm512_sub_ps(e, _mm512_sub_ps(u, one)), u);
  const f32x16 small = _mm512_fmadd_ps(p, s, rest);
  const f32x16 found = _mm512_fmadd_ps(k, _mm512_set1_ps(0.693147181f), small);
  const __mmask16 is_linear = _mm512_cmp_ps_mask(x, _mm512_set1_ps(20.0f), _CMP_GT_OQ);
  return _mm512_mask_mov_ps(found, is_linear, x);
}

template <typename T>
void make(const Steps<T>& steps) {
  const f32x16 least = _mm512_set1_ps(steps.least), most = _mm512_set1_ps(steps.most);
  for_rows(steps.rows, steps.heads * 8, [&](std::int64_t row) {
    for (std::int64_t head = 0; head < steps.heads; head += LANES) {
      const __mmask16 lanes = first_lanes(steps.heads - head);
      const f32x16 x = load(steps.x + row * steps.x_stride + head, lanes);
      const f32x16 raw = softplus(_mm512_add_ps(x, load(steps.bias + head, lanes)));
      // The second operand comes back where one is not a number.
      const f32x16 step = _mm512_min_ps(most, _mm512_max_ps(least, raw));
      const f32x16 decay = load(steps.decay + head, lanes);
      store(steps.steps + row * steps.heads + head, lanes, step);
      store(steps.kept + row * steps.heads + head, lanes,
            exponential(_mm512_mul_ps(step, decay)));
    }
  });
}

// Some channels of a head of one run.
struct Part {
  const Scan& scan;
  const Run& run;
  std::int64_t head;

  const float* x(std::int64_t token) const {
    return scan.x + (run.token + token) * scan.stride + head * scan.size;
  }
  std::int64_t side(std::int64_t token) const {
    const std::int64_t group = head / (scan.heads / scan.groups);
    return (run.token + token) * scan.stride + group * scan.numbers;
  }
  std::int64_t step(std::int64_t token) const {
    return (run.token + token) * scan.heads + head;
  }
  float* out(std::int64_t token) const {
    return scan.out + ((run.token + token) * scan.heads + head) * scan.size;
  }
  // Whether states are written past the caches, as those of many texts are after a few tokens:
  // they are more than caches hold, and lines that are written whole need not be read first.
  bool passes_by(std::int64_t first, std::int64_t end) const {
    const bool is_whole = first == 0 && end == run.count && run.source != run.target;
    return is_whole && scan.runs.count * scan.heads * scan.size * scan.numbers > MOST_CACHED &&
           scan.numbers % LANES == 0 &&
           reinterpret_cast<std::uintptr_t>(scan.states) % sizeof(f32x16) == 0;
  }
  float* state(std::int64_t place, std::int64_t channel) const {
    return scan.states + ((place * scan.heads + head) * scan.size + channel) * scan.numbers;
  }
};

// Takes CHANNELS channels, and VECTORS vectors of each one's state from a number on, through the
// tokens from `first` to `end`.
template <int CHANNELS, int VECTORS>
void advance(const Part& part, std::int64_t channel, std::int64_t number, std::int64_t first,
             std::int64_t end) {
  const Scan& scan = part.scan;
  const std::int64_t source = first == 0 ? part.run.source : part.run.target;
  const __mmask16 last = first_lanes(scan.numbers - number - (VECTORS - 1) * LANES);
  const auto lanes = [&](int vector) -> __mmask16 { return vector < VECTORS - 1 ? 0xffff : last; };
  f32x16 state[CHANNELS][VECTORS];
  for (int row = 0; row < CHANNELS; ++row) {
    const float* from = part.state(source, channel + row) + number;
    for (int at = 0; at < VECTORS; ++at) state[row][at] = load(from + at * LANES, lanes(at));
  }
  for (std::int64_t token = first; token < end; ++token) {
    const float* const enter = scan.enter + part.side(token) + number;
    const float* const leave = scan.leave + part.side(token) + number;
    const f32x16 kept = _mm512_set1_ps(scan.kept[part.step(token)]);
    const float step = scan.steps[part.step(token)];
    const float* const x = part.x(token) + channel;
    f32x16 scaled[CHANNELS], sum[CHANNELS];
    for (int row = 0; row < CHANNELS; ++row) scaled[row] = _mm512_set1_ps(x[row] * step);
    for (int at = 0; at < VECTORS; ++at) {
      const f32x16 into = load(enter + at * LANES, lanes(at));
      const f32x16 from = load(leave + at * LANES, lanes(at));
      for (int row = 0; row < CHANNELS; ++row) {
        state[row][at] =
            _mm512_fmadd_ps(state[row][at], kept, _mm512_mul_ps(scaled[row], into));
        sum[row] = at == 0 ? _mm512_mul_ps(state[row][at], from)
                           : _mm512_fmadd_ps(state[row][at], from, sum[row]);
      }
    }
    float* const out = part.out(token) + channel;
    for (int row = 0; row < CHANNELS; ++row) {
      const float found = _mm512_reduce_add_ps(sum[row]);
      out[row] = found + (number == 0 ? scan.skip[part.head] * x[row] : out[row]);
    }
  }
  const bool passes = part.passes_by(first, end);
  for (int row = 0; row < CHANNELS; ++row) {
    float* to = part.state(part.run.target, channel + row) + number;
    for (int at = 0; at < VECTORS; ++at) {
      if (passes) {
        _mm512_stream_ps(to + at * LANES, state[row][at]);
      } else {
        store(to + at * LANES, lanes(at), state[row][at]);
      }
    }
  }
}

void advance_all(const Part& part, std::int64_t channel, std::int64_t end_channel,
                 std::int64_t first, std::int64_t end) {
  const std::int64_t numbers = part.scan.numbers;
  for (std::int64_t number = 0; number < numbers; number += MOST_VECTORS * LANES) {
    const std::int64_t vectors = (numbers - number + LANES - 1) / LANES;
    with_count<MOST_VECTORS>(vectors < MOST_VECTORS ? vectors : MOST_VECTORS, [&](auto count) {
      std::int64_t at = channel;
      for (; at + 2 <= end_channel; at += 2) advance<2, count()>(part, at, number, first, end);
      if (at < end_channel) advance<1, count()>(part, at, number, first, end);
    });
  }
}

// Sixteen channels of one run, through a tile of tokens.
template <typename T>
void select_tile(const Selection<T>& selection, const Run& run, std::int64_t channel,
                 std::int64_t first, std::int64_t count) {
  const std::int64_t channels = selection.channels, numbers = selection.numbers;
  const std::int64_t some = channels - channel < LANES ? channels - channel : LANES;
  const __mmask16 lanes = first_lanes(some);
  alignas(64) float steps[TILE][LANES], scaled[TILE][LANES], found[TILE][LANES];
  const std::int64_t token = run.token + first, source = first == 0 ? run.source : run.target;
  const f32x16 bias = load(selection.bias + channel, lanes);
  for (std::int64_t at = 0; at < count; ++at) {
    const std::int64_t place = (token + at) * channels + channel;
    const f32x16 step = softplus(_mm512_add_ps(load(selection.low + place, lanes), bias));
    _mm512_store_ps(steps[at], step);
    _mm512_store_ps(scaled[at], _mm512_mul_ps(step, load(selection.x + place, lanes)));
    _mm512_store_ps(found[at], _mm512_setzero_ps());
  }
  for (std::int64_t row = 0; row < some; ++row) {
    for (std::int64_t number = 0; number < numbers; number += LANES) {
      const __mmask16 part = first_lanes(numbers - number);
      const auto state_at = [&](std::int64_t place) {
        return selection.states + (place * channels + channel + row) * numbers + number;
      };
      f32x16 state = load(state_at(source), part);
      const f32x16 decay = load(selection.decay + (channel + row) * numbers + number, part);
      for (std::int64_t at = 0; at < count; ++at) {
        const std::int64_t side = (token + at) * selection.side_stride + number;
        const f32x16 kept = exponential(_mm512_mul_ps(_mm512_set1_ps(steps[at][row]), decay));
        const f32x16 new_part =
            _mm512_mul_ps(_mm512_set1_ps(scaled[at][row]), load(selection.enter + side, part));
        state = _mm512_fmadd_ps(state, kept, new_part);
        found[at][row] +=
            _mm512_reduce_add_ps(_mm512_mul_ps(state, load(selection.leave + side, part)));
      }
      store(state_at(run.target), part, state);
    }
  }
  const f32x16 skip = load(selection.skip + channel, lanes);
  for (std::int64_t at = 0; at < count; ++at) {
    const std::int64_t place = (token + at) * channels + channel;
    const f32x16 all =
        _mm512_fmadd_ps(skip, load(selection.x + place, lanes), _mm512_load_ps(found[at]));
    const f32x16 gate =
        silu(load(selection.gate + (token + at) * selection.gate_stride + channel, lanes));
    store(selection.out + place, lanes, _mm512_mul_ps(all, gate));
  }
}

template <typename T>
void select(const Selection<T>& selection) {
  const std::int64_t blocks = (selection.channels + LANES - 1) / LANES;
  for_each_piece(selection.runs.count * blocks, [&](std::int64_t piece) {
    const Run& run = selection.runs.first[piece / blocks];
    for (std::int64_t first = 0; first < run.count; first += TILE) {
      const std::int64_t count = run.count - first < TILE ? run.count - first : TILE;
      select_tile(selection, run, piece % blocks * LANES, first, count);
    }
  });
}

}  // namespace

void make_steps(const Steps<float>& steps) noexcept { make(steps); }
void make_steps(const Steps<bf16>& steps) noexcept { make(steps); }
void make_steps(const Steps<f16>& steps) noexcept { make(steps); }

void scan_states(const Scan& scan) noexcept {
  const std::int64_t blocks = (scan.size + SIDE - 1) / SIDE;
  for_each_piece(scan.runs.count * scan.heads * blocks, [&](std::int64_t piece) {
    const Run& run = scan.runs.first[piece / (scan.heads * blocks)];
    const Part part{scan, run, piece / blocks % scan.heads};
    const std::int64_t channel = piece % blocks * SIDE;
    const std::int64_t end = channel + SIDE < scan.size ? channel + SIDE : scan.size;
    for (std::int64_t first = 0; first < run.count; first += TILE) {
      const std::int64_t next = first + TILE < run.count ? first + TILE : run.count;
      advance_all(part, channel, end, first, next);
    }
    _mm_sfence();
  });
}

void select_states(const Selection<float>& selection) noexcept { select(selection); }
void select_states(const Selection<bf16>& selection) noexcept { select(selection); }
void select_states(const Selection<f16>& selection) noexcept { select(selection); }
