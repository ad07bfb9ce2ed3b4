// `ConvolutionMixer`: the gated short convolution of LFM2 (Liquid AI, "LFM2 Technical Report", 2025,
// section 2), C * conv(B * x), from the normalised stream to what it adds to it.

#include "mixers.h"

namespace {

struct ConvolutionMixer : Mixer {
  Linear *enter, *leave;  // the former gives B, C and x
  Window window;

  struct Space {
    char *wide, *gated;
    float* convolved;
    std::size_t bytes;
  };
  Space lay_out(std::int64_t rows, char* memory) const {
    Room room(memory);
    Space space;
    space.wide = room.take_rows(rows, enter->outputs, kind);
    space.gated = room.take_rows(rows, window.channels, kind);
    space.convolved = room.take<float>(rows * window.channels);
    space.bytes = room.used();
    return space;
  }

  bool is_of(const StateLayer& layer) const override {
    return layer.taps == window.taps && layer.channels == window.channels;
  }
  std::size_t memory_for(std::int64_t rows) const override { return lay_out(rows, nullptr).bytes; }

  template <typename T>
  Gating<T> gating_of(const Space& space, std::int64_t rows) const {
    return {Passing::PLAIN,
            1.0f,
            space.convolved,
            reinterpret_cast<const T*>(space.wide) + window.channels,
            enter->outputs,
            reinterpret_cast<T*>(space.gated),
            rows,
            window.channels};
  }

  void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer, const Runs& runs,
           char* memory) const noexcept override {
    const Space space = lay_out(x.count, memory);
    multiply(*enter, x, Rows(space.wide, enter->outputs, x.count), STORE);
    const char* const inputs = space.wide + 2 * window.channels * item_size(kind);
    convolve(window, kind, inputs, enter->outputs, space.wide, layer, runs, space.convolved,
             nullptr);
    for_kind(kind, [&](auto number) { gate(gating_of<decltype(number)>(space, x.count)); });
    multiply(*leave, Rows(space.gated, window.channels, x.count), out, use);
  }
};

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"enter", "window", "window_bias", "leave", nullptr};
  PyObject *enter, *window, *window_bias, *leave;
  ConvolutionMixer made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO", const_cast<char**>(names), &enter,
                                   &window, &window_bias, &leave) ||
      !(made.enter = unbox_as<Linear>(enter)) || !(made.leave = unbox_as<Linear>(leave)) ||
      !read_window(window, window_bias, made.window)) {
    return nullptr;
  }
  made.kind = made.enter->kind;
  made.dtype = made.enter->dtype;
  made.width = made.enter->inputs;
  const std::int64_t channels = made.window.channels;
  const auto is_plain = [&](const Linear& linear, std::int64_t inputs, std::int64_t outputs) {
    return linear.kind == made.kind && linear.matrices == 1 && linear.use == STORE &&
           linear.inputs == inputs && linear.outputs == outputs;
  };
  if (!is_plain(*made.enter, made.width, 3 * channels) ||
      !is_plain(*made.leave, channels, made.width)) {
    PyErr_SetString(PyExc_ValueError, "the parts of this mixer do not fit together");
    return nullptr;
  }
  made.parts = Reference(PyTuple_Pack(4, enter, window, window_bias, leave));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

PyObject* add_to(PyObject* self, PyObject* const* args) {
  return add_mixed(unbox<ConvolutionMixer>(self), args);
}

PyMethodDef methods[] = {
    METHOD("add_to", add_to, 4,
           "add_to($self, stream, x, states, layer, /)\n--\n\n"
           "Add what the mixer makes of rows to the stream; go on in the states of a layer."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const Mixer* convolution_of(PyObject* object) {
  const bool is_one = PyObject_TypeCheck(object, type_of<ConvolutionMixer>);
  return is_one ? &unbox<ConvolutionMixer>(object) : nullptr;
}

bool add_convolution(PyObject* module) {
  return add_type<ConvolutionMixer>(module, "asyncgen.native._kernels.ConvolutionMixer", make,
                                    methods,
                                    "ConvolutionMixer(enter, window, window_bias, leave)\n--\n\n"
                                    "The gated short convolution.");
}
