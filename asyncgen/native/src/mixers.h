// Layers that keep a state of each text, as C++ sees them.
#pragma once

#include "parts.h"
#include "scans.h"

// What a layer keeps of texts, a place for each, in tensors that somebody else has.
struct StateLayer {
  Reference windows, states;
  char* windows_at;
  float* states_at;
  std::int64_t taps, channels;        // of a window; 0 where there is none
  std::int64_t heads, size, numbers;  // of a state; 0 where there is none
};

// What all layers keep, and the step that was laid out.
struct States {
  std::vector<StateLayer> layers;  // those without states have no sizes
  Kind kind;
  std::int64_t places;
  Numbers rows;
  std::int64_t num_tokens;  // -1 before a step was laid out
  std::vector<std::int64_t> marks;
  bool is_busy;

  Runs runs() const {
    const std::int64_t count = rows.count() * static_cast<std::int64_t>(sizeof(std::int64_t));
    return {reinterpret_cast<const Run*>(rows.data()),
            count / static_cast<std::int64_t>(sizeof(Run))};
  }
};

// A part of a block that goes on from a state: products around a recurrence.
struct Mixer {
  Reference parts;  // keeps what it is made of
  Kind kind;
  PyObject* dtype;
  std::int64_t width;  // of the stream
  Memory memory;       // taken out while in use

  Mixer() = default;
  Mixer(Mixer&&) = default;
  virtual ~Mixer() = default;

  // Whether it goes on from what a layer keeps.
  virtual bool is_of(const StateLayer& layer) const = 0;
  // Bytes that `mix` needs for so many rows.
  virtual std::size_t memory_for(std::int64_t rows) const = 0;
  // Makes of rows x of the stream what becomes of `out`, rows of the same width, by `use`.
  virtual void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer,
                   const Runs& runs, char* memory) const noexcept = 0;
};

// The mixer that a Python object is, if it is one; null otherwise, without an error.
const Mixer* mixer_of(PyObject* object);

const Mixer* scan_of(PyObject* object);
const Mixer* delta_of(PyObject* object);
const Mixer* convolution_of(PyObject* object);
const Mixer* lightning_of(PyObject* object);
const Mixer* griffin_of(PyObject* object);

// `add_to(stream, x, states, layer)` of all of them.
PyObject* add_mixed(Mixer& mixer, PyObject* const* args);

// States in one thread's hands, as long as this exists.
class HeldStates {
 public:
  // A Python error, and nothing held, while another thread has them or no step is laid out.
  explicit HeldStates(States& states);
  HeldStates(const HeldStates&) = delete;
  ~HeldStates() {
    if (states_ != nullptr) states_->is_busy = false;
  }
  explicit operator bool() const { return states_ != nullptr; }

 private:
  States* states_;
};

// Reads a tensor in float32 of a shape, or None where it may be missing: its address, or null.
// False comes with a Python error.
bool read_floats(PyObject* tensor, const char* what, std::initializer_list<std::int64_t> shape,
                 bool may_miss, const float*& at);

// Memory that is handed out piece by piece; without any it counts.
class Room {
 public:
  explicit Room(char* memory) : memory_(memory) {}
  template <typename T>
  T* take(std::int64_t count) {
    char* const at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += Memory::rounded(static_cast<std::size_t>(count) * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  char* take_rows(std::int64_t rows, std::int64_t width, Kind kind) {
    return take<char>(rows * width * item_size(kind));
  }
  std::size_t used() const { return used_; }

 private:
  char* memory_;
  std::size_t used_ = 0;
};

// A short convolution's weights.
struct Window {
  const float *weight, *bias;
  std::int64_t taps, channels;
  bool is_activated;
};

// Reads [taps, channels] and [channels] or None.
bool read_window(PyObject* weight, PyObject* bias, Window& window);
void convolve(const Window& window, Kind kind, const char* x, std::int64_t stride,
              const char* factors, const StateLayer& layer, const Runs& runs, float* out,
              char* rounded) noexcept;
