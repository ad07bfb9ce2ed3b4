// Short causal convolutions over the last inputs of each text, which its window keeps.

#include "scans.h"
#include "team.h"
#include "vectors.h"

namespace {

constexpr std::int64_t BLOCK = 4 * LANES;  // channels that are computed together

template <typename T>
struct Place {
  const T* at;
  const T* factors;  // of what is in the step; windows have the products
};

// The input of a channel so many tokens after the run's first one, or before it.
template <typename T>
Place<T> input_at(const Convolution<T>& convolution, const Run& run, std::int64_t token,
                  std::int64_t channel) {
  if (token < 0) {
    const std::int64_t row = run.source * convolution.taps + convolution.taps + token;
    return {convolution.windows + row * convolution.channels + channel, nullptr};
  }
  const std::int64_t at = (run.token + token) * convolution.x_stride + channel;
  return {convolution.x + at, convolution.factors == nullptr ? nullptr : convolution.factors + at};
}

// Products with factors are rounded as they would be in a tensor of their own.
f32x16 rounded(f32x16 value, const float*) { return value; }
template <typename T>
f32x16 rounded(f32x16 value, const T*) {
  alignas(32) T lanes[LANES];
  store(lanes, 0xffff, value);
  return load(lanes, 0xffff);
}

template <typename T>
f32x16 read(const Place<T>& place, __mmask16 lanes) {
  const f32x16 value = load(place.at, lanes);
  if (place.factors == nullptr) return value;
  return rounded(_mm512_mul_ps(value, load(place.factors, lanes)), place.at);
}

template <typename T>
void convolve_token(const Convolution<T>& convolution, const Run& run, std::int64_t token,
                    std::int64_t channel, __mmask16 lanes) {
  const std::int64_t taps = convolution.taps, channels = convolution.channels;
  f32x16 sum = convolution.bias == nullptr ? _mm512_setzero_ps()
                                           : load(convolution.bias + channel, lanes);
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    const f32x16 input = read(input_at(convolution, run, token + tap - taps + 1, channel), lanes);
    sum = _mm512_fmadd_ps(input, load(convolution.weight + tap * channels + channel, lanes), sum);
  }
  if (convolution.is_activated) sum = silu(sum);
  const std::int64_t at = (run.token + token) * channels + channel;
  store(convolution.out + at, lanes, sum);
  if (convolution.rounded != nullptr) store(convolution.rounded + at, lanes, sum);
}

// The window behind the run: in ascending order, so that it may be the one before it.
template <typename T>
void keep_window(const Convolution<T>& convolution, const Run& run, std::int64_t channel,
                 __mmask16 lanes) {
  const std::int64_t taps = convolution.taps;
  for (std::int64_t row = 0; row < taps; ++row) {
    const Place<T> from = input_at(convolution, run, run.count - taps + row, channel);
    const std::int64_t to = (run.target * taps + row) * convolution.channels + channel;
    store(convolution.windows + to, lanes, read(from, lanes));
  }
}

template <typename T>
void convolve_all(const Convolution<T>& convolution) {
  const std::int64_t channels = convolution.channels;
  const std::int64_t blocks = (channels + BLOCK - 1) / BLOCK;
  // A few tokens are convolved sooner by one thread than handed out.
  std::int64_t tokens = 0;
  for (std::int64_t run = 0; run < convolution.runs.count; ++run) {
    tokens += convolution.runs.first[run].count;
  }
  const std::int64_t all = convolution.runs.count * blocks;
  const std::int64_t wanted = tokens * channels / PIECE_ELEMENTS + 1;
  const std::int64_t pieces = wanted < all ? wanted : all;
  for_each_piece(pieces, [&](std::int64_t piece) {
    for (std::int64_t at = all * piece / pieces; at < all * (piece + 1) / pieces; ++at) {
      const Run& run = convolution.runs.first[at / blocks];
      const std::int64_t first = at % blocks * BLOCK;
      const std::int64_t end = first + BLOCK < channels ? first + BLOCK : channels;
      for (std::int64_t token = 0; token < run.count; ++token) {
        for (std::int64_t channel = first; channel < end; channel += LANES) {
          convolve_token(convolution, run, token, channel, first_lanes(end - channel));
        }
      }
      for (std::int64_t channel = first; channel < end; channel += LANES) {
        keep_window(convolution, run, channel, first_lanes(end - channel));
      }
    }
  });
}

}  // namespace

void convolve(const Convolution<float>& convolution) noexcept { convolve_all(convolution); }
void convolve(const Convolution<bf16>& convolution) noexcept { convolve_all(convolution); }
void convolve(const Convolution<f16>& convolution) noexcept { convolve_all(convolution); }
