// What lies around a recurrence, rates and gates behind it, and gates of what attention gives.

#include "scans.h"
#include "team.h"
#include "vectors.h"

namespace {

template <typename T>
void make(const Rates<T>& rates) {
  for_rows(rates.rows, rates.heads * 4, [&](std::int64_t row) {
    for (std::int64_t head = 0; head < rates.heads; head += LANES) {
      const __mmask16 lanes = first_lanes(rates.heads - head);
      const f32x16 rate = sigmoid(load(rates.x + row * rates.x_stride + head, lanes));
      store(rates.out + row * rates.heads + head, lanes,
            _mm512_mul_ps(_mm512_set1_ps(rates.most), rate));
    }
  });
}

template <typename T>
void gate_all(const Gating<T>& gating) {
  for_rows(gating.rows, gating.features, [&](std::int64_t row) {
    const float* const x = gating.x + row * gating.features;
    const T* const by = gating.gate + row * gating.gate_stride;
    T* const out = gating.out + row * gating.features;
    for (std::int64_t at = 0; at < gating.features; at += LANES) {
      const __mmask16 lanes = first_lanes(gating.features - at);
      f32x16 factor = load(by + at, lanes);
      if (gating.passing == Passing::SILU) factor = silu(factor);
      if (gating.passing == Passing::SIGMOID) factor = sigmoid(factor);
      const f32x16 passed = _mm512_mul_ps(load(x + at, lanes), factor);
      store(out + at, lanes, _mm512_mul_ps(passed, _mm512_set1_ps(gating.scale)));
    }
  });
}

template <typename T>
void scale(const Columns<T>& columns) {
  for_rows(columns.rows, columns.features, [&](std::int64_t row) {
    T* const x = columns.x + row * columns.stride;
    for (std::int64_t at = 0; at < columns.features; at += LANES) {
      const __mmask16 lanes = first_lanes(columns.features - at);
      store(x + at, lanes, _mm512_mul_ps(load(x + at, lanes), load(columns.factors + at, lanes)));
    }
  });
}

template <typename T>
void pass(const Gates<T>& gates) {
  for_rows(gates.rows, gates.features, [&](std::int64_t row) {
    T* const x = gates.x + row * gates.x_stride;
    const T* const by = gates.gates + row * gates.stride;
    for (std::int64_t at = 0; at < gates.features; at += LANES) {
      const __mmask16 lanes = first_lanes(gates.features - at);
      store(x + at, lanes, _mm512_mul_ps(load(x + at, lanes), sigmoid(load(by + at, lanes))));
    }
  });
}

}  // namespace

void pass_gates(const Gates<float>& gates) noexcept { pass(gates); }
void pass_gates(const Gates<bf16>& gates) noexcept { pass(gates); }
void pass_gates(const Gates<f16>& gates) noexcept { pass(gates); }

void make_rates(const Rates<float>& rates) noexcept { make(rates); }
void make_rates(const Rates<bf16>& rates) noexcept { make(rates); }
void make_rates(const Rates<f16>& rates) noexcept { make(rates); }

void scale_columns(const Columns<float>& columns) noexcept { scale(columns); }
void scale_columns(const Columns<bf16>& columns) noexcept { scale(columns); }
void scale_columns(const Columns<f16>& columns) noexcept { scale(columns); }

void gate(const Gating<float>& gating) noexcept { gate_all(gating); }
void gate(const Gating<bf16>& gating) noexcept { gate_all(gating); }
void gate(const Gating<f16>& gating) noexcept { gate_all(gating); }
