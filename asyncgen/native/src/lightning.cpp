// What lightning attention gives to its recurrence, which is that of `Scan`: Qin and others,
// "Lightning Attention-2" (2024), section 3.2, equation 5.

#include "scans.h"
#include "team.h"
#include "vectors.h"

namespace {

template <typename T>
void activate_all(const Activation<T>& activation) {
  for_rows(activation.rows, activation.features * 4, [&](std::int64_t row) {
    const T* const x = activation.x + row * activation.x_stride;
    float* const out = activation.out + row * activation.features;
    for (std::int64_t at = 0; at < activation.features; at += LANES) {
      const __mmask16 lanes = first_lanes(activation.features - at);
      store(out + at, lanes, silu(load(x + at, lanes)));
    }
  });
}

}  // namespace

void activate(const Activation<float>& activation) noexcept { activate_all(activation); }
void activate(const Activation<bf16>& activation) noexcept { activate_all(activation); }
void activate(const Activation<f16>& activation) noexcept { activate_all(activation); }
