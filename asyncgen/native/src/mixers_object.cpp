// What all mixers share: how tensors come in, convolutions, and a mixer that is called by itself.

#include "mixers.h"

namespace {

// Whether rows are [tokens, width] of a mixer's dtype.
bool are_rows(const Mixer& mixer, const View& view, std::int64_t tokens) {
  return view.has_shape({tokens, mixer.width}) && view.dtype == mixer.dtype && view.is_cpu &&
         view.is_dense_from(1) && view.has_rows_apart();
}

}  // namespace

const Mixer* mixer_of(PyObject* object) {
  if (const Mixer* found = scan_of(object)) return found;
  if (const Mixer* found = delta_of(object)) return found;
  if (const Mixer* found = convolution_of(object)) return found;
  if (const Mixer* found = lightning_of(object)) return found;
  return griffin_of(object);
}

bool read_floats(PyObject* tensor, const char* what, std::initializer_list<std::int64_t> shape,
                 bool may_miss, const float*& at) {
  at = nullptr;
  if (may_miss && tensor == Py_None) return true;
  View view;
  Kind kind;
  if (!look_at(tensor, view) || !read_kind(view.dtype, kind)) return false;
  if (kind != Kind::FLOAT32 || !view.is_cpu || !view.has_shape(shape) || !view.is_dense_from(0)) {
    Reference sizes(PyTuple_New(0));
    for (const std::int64_t size : shape) {
      Reference one(Py_BuildValue("(L)", static_cast<long long>(size)));
      if (!one || !sizes) return false;
      sizes = Reference(PySequence_Concat(sizes.get(), one.get()));
    }
    if (sizes) refuse(what, tensor, "%R in float32 on cpu is expected", sizes.get());
    return false;
  }
  at = view.as<float>();
  return true;
}

bool read_window(PyObject* weight, PyObject* bias, Window& window) {
  View view;
  if (!look_at(weight, view)) return false;
  if (view.dims != 2 || view.sizes[0] < 1) {
    refuse("a convolution is", weight, "[taps, channels] in float32 on cpu is expected");
    return false;
  }
  window.taps = view.sizes[0];
  window.channels = view.sizes[1];
  return read_floats(weight, "a convolution is", {window.taps, window.channels}, false,
                     window.weight) &&
         read_floats(bias, "its bias is", {window.channels}, true, window.bias);
}

template <typename T>
static Convolution<T> convolution_of(const Window& window, const char* x, std::int64_t stride,
                                     const char* factors, const StateLayer& layer,
                                     const Runs& runs, float* out, char* rounded) {
  return {reinterpret_cast<const T*>(x),
          stride,
          reinterpret_cast<const T*>(factors),
          reinterpret_cast<T*>(layer.windows_at),
          window.weight,
          window.bias,
          window.is_activated,
          out,
          reinterpret_cast<T*>(rounded),
          window.channels,
          window.taps,
          runs};
}

void convolve(const Window& window, Kind kind, const char* x, std::int64_t stride,
              const char* factors, const StateLayer& layer, const Runs& runs, float* out,
              char* rounded) noexcept {
  for_kind(kind, [&](auto number) {
    using T = decltype(number);
    convolve(convolution_of<T>(window, x, stride, factors, layer, runs, out, rounded));
  });
}

PyObject* add_mixed(Mixer& mixer, PyObject* const* args) {
  States* const states = unbox_as<States>(args[2]);
  const long long number = PyLong_AsLongLong(args[3]);
  if (states == nullptr || (number == -1 && PyErr_Occurred())) return nullptr;
  HeldStates hold(*states);
  if (!hold) return nullptr;
  if (number < 0 || number >= static_cast<long long>(states->layers.size()) ||
      states->kind != mixer.kind || !mixer.is_of(states->layers[number])) {
    return PyErr_Format(PyExc_ValueError, "layer %lld of these states is not this mixer's", number);
  }
  View stream, x;
  if (!look_at(args[0], stream) || !look_at(args[1], x)) return nullptr;
  const std::int64_t tokens = states->num_tokens;
  const bool is_stream = are_rows(mixer, stream, tokens);
  if (!is_stream || !are_rows(mixer, x, tokens)) {
    return refuse(is_stream ? "rows are" : "the stream is", args[is_stream],
                  "the step that was laid out has [%lld, %lld] %S on cpu",
                  static_cast<long long>(tokens), static_cast<long long>(mixer.width),
                  mixer.dtype);
  }
#ifdef ASYNCGEN_CHECK
  const std::int64_t item = item_size(mixer.kind);
  if (!lies_within(args[0], stream, item) || !lies_within(args[1], x, item)) return nullptr;
#endif
  Memory memory = std::exchange(mixer.memory, {});
  if (!memory.hold(mixer.memory_for(tokens))) return PyErr_NoMemory();
  const bool is_done = run_unlocked([&]() noexcept {
    mixer.mix(Rows(x), Rows(stream), ADD, states->layers[number], states->runs(), memory.data());
  });
  if (memory.is_small()) mixer.memory = std::move(memory);
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}
