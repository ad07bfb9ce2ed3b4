// Kernels of layers that keep a state of each text: short convolutions and recurrences. Each goes
// through a text token by token, or sums in the order of its tokens, so no result depends on how a
// text was cut, on other texts, or on threads. See kernels.h for what all kernels have in common.
#pragma once

#include "kernels.h"

// Some tokens of one text: the first one's number in the step, how many there are, the place of the
// state that they go on from, and that of the one they leave, which may be the same.
struct Run {
  std::int64_t token, count, source, target;
};
struct Runs {
  const Run* first;
  std::int64_t count;
};

// A causal convolution of each channel by itself, over the last `taps` inputs.
template <typename T>
struct Convolution {
  const T* x;  // [tokens, channels]
  std::int64_t x_stride;
  const T* factors;  // of x's shape and stride, on the inputs; or null
  T* windows;        // [places, taps, channels]: the last inputs
  const float* weight;  // [taps, channels], the last ones those of the token itself
  const float* bias;    // [channels], or null
  bool is_activated;    // by SiLU
  float* out;           // [tokens, channels]
  T* rounded;           // the same, or null
  std::int64_t channels, taps;
  Runs runs;
};

void convolve(const Convolution<float>& convolution) noexcept;
void convolve(const Convolution<bf16>& convolution) noexcept;
void convolve(const Convolution<f16>& convolution) noexcept;

// Steps of time of heads, and what they keep of a state:
// steps = min(max(softplus(x + bias), least), most) and kept = exp(steps * decay).
template <typename T>
struct Steps {
  const T* x;  // [rows, heads]
  std::int64_t x_stride, rows, heads;
  const float *bias, *decay;
  float least, most;
  float *steps, *kept;  // [rows, heads]
};

void make_steps(const Steps<float>& steps) noexcept;
void make_steps(const Steps<bf16>& steps) noexcept;
void make_steps(const Steps<f16>& steps) noexcept;

// The recurrence h = kept h + steps x B, y = C h + skip x of heads whose channels share a decay.
struct Scan {
  float* states;       // [places, heads, size, numbers]
  const float* x;      // [tokens, heads, size]
  const float *enter, *leave;  // B and C, [tokens, groups, numbers]
  std::int64_t stride;         // of all three from token to token
  const float *steps, *kept;   // [tokens, heads]
  const float* skip;           // [heads]
  float* out;                  // [tokens, heads, size]
  std::int64_t heads, size, groups, numbers;
  Runs runs;
};

void scan_states(const Scan& scan) noexcept;

// The same where each channel is a head, with a decay for each number of its state, and a gate
// behind it: out = (C h + skip x) * silu(gate), and steps = softplus(low + bias).
template <typename T>
struct Selection {
  float* states;  // [places, channels, numbers]
  const float* x;  // [tokens, channels]
  const T* low;    // [tokens, channels]
  const float *bias, *decay, *skip;  // [channels], [channels, numbers], [channels]
  const T *enter, *leave;            // [tokens, numbers]
  std::int64_t side_stride;
  const T* gate;  // [tokens, channels]
  std::int64_t gate_stride;
  T* out;  // [tokens, channels]
  std::int64_t channels, numbers;
  Runs runs;
};

void select_states(const Selection<float>& selection) noexcept;
void select_states(const Selection<bf16>& selection) noexcept;
void select_states(const Selection<f16>& selection) noexcept;

// The gated delta rule M = kept M, M = M + rate (v - M k) k', y = M q.
struct Delta {
  float* states;  // [places, heads, size, numbers]
  const float *queries, *keys;  // [tokens, groups, numbers]
  const float* values;          // [tokens, heads, size]
  std::int64_t stride;          // of all three from token to token
  const float* kept;  // [tokens, heads], or [tokens, heads, numbers] where features differ
  bool has_features;
  const float* rates;  // [tokens, heads]
  float* out;          // [tokens, heads, size]
  std::int64_t heads, size, groups, numbers;
  Runs runs;
};

void apply_delta(const Delta& delta) noexcept;

// out = most * sigmoid(x).
template <typename T>
struct Rates {
  const T* x;  // [rows, heads]
  std::int64_t x_stride, rows, heads;
  float most;
  float* out;  // [rows, heads]
};

void make_rates(const Rates<float>& rates) noexcept;
void make_rates(const Rates<bf16>& rates) noexcept;
void make_rates(const Rates<f16>& rates) noexcept;

// The gated recurrent unit h = a h + root(1 - a^2) sigmoid(x I) x, a = exp(decay sigmoid(x D)), of
// blocks of channels, with a gate of what is read: out = h gelu(gate).
template <typename T>
struct Griffin {
  float* states;   // [places, channels + 1]: the last says that the text has begun
  const float* x;  // [tokens, channels]
  const float *input_gate, *input_bias;  // I, [blocks, size, size] by inputs, and [channels]
  const float *decay_gate, *decay_bias;  // D
  const float* decay;                    // [channels], negative
  const float* begun;                    // [runs]: zero where the root is left out of the first token
  const T* gate;                         // [tokens, channels]
  std::int64_t gate_stride;
  T* out;  // [tokens, channels]
  std::int64_t channels, size;
  Runs runs;
};

void advance_griffin(const Griffin<float>& griffin) noexcept;
void advance_griffin(const Griffin<bf16>& griffin) noexcept;
void advance_griffin(const Griffin<f16>& griffin) noexcept;

// out = silu(x).
template <typename T>
struct Activation {
  const T* x;  // [rows, features]
  std::int64_t x_stride, rows, features;
  float* out;  // [rows, features]
};

void activate(const Activation<float>& activation) noexcept;
void activate(const Activation<bf16>& activation) noexcept;
void activate(const Activation<f16>& activation) noexcept;

// Multiplies columns of rows by a factor each, in place.
template <typename T>
struct Columns {
  T* x;  // [rows, features]
  std::int64_t stride, rows, features;
  const float* factors;  // [features]
};

void scale_columns(const Columns<float>& columns) noexcept;
void scale_columns(const Columns<bf16>& columns) noexcept;
void scale_columns(const Columns<f16>& columns) noexcept;

// out = scale * x * act(gate), and act is
enum class Passing { PLAIN, SILU, SIGMOID };
template <typename T>
struct Gating {
  Passing passing;
  float scale;
  const float* x;  // [rows, features]
  const T* gate;
  std::int64_t gate_stride;
  T* out;  // [rows, features]
  std::int64_t rows, features;
};

void gate(const Gating<float>& gating) noexcept;
void gate(const Gating<bf16>& gating) noexcept;
void gate(const Gating<f16>& gating) noexcept;
