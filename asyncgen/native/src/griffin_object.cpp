// `GriffinMixer`: the recurrent block of Griffin (De and others, 2024, section 2.4 and figure 2), from
// the normalised stream to what it adds to it.

#include "mixers.h"

namespace {

struct GriffinMixer : Mixer {
  Linear *enter, *leave;  // the former gives channels, and gates of what is read
  Window window;
  const float *input_gate, *input_bias, *decay_gate, *decay_bias, *decay;
  std::int64_t size;  // of a block of channels

  std::int64_t channels() const { return window.channels; }

  struct Space {
    char *wide, *gated;
    float *convolved, *begun;
    std::size_t bytes;
  };
  Space lay_out(std::int64_t rows, char* memory) const {
    Room room(memory);
    Space space;
    space.wide = room.take_rows(rows, enter->outputs, kind);
    space.gated = room.take_rows(rows, channels(), kind);
    space.convolved = room.take<float>(rows * channels());
    space.begun = room.take<float>(rows);
    space.bytes = room.used();
    return space;
  }

  bool is_of(const StateLayer& layer) const override {
    return layer.taps == window.taps && layer.channels == channels() && layer.heads == 1 &&
           layer.size == 1 && layer.numbers == channels() + 1;
  }
  std::size_t memory_for(std::int64_t rows) const override { return lay_out(rows, nullptr).bytes; }

  template <typename T>
  Griffin<T> griffin_of(const Space& space, const StateLayer& layer, const Runs& runs) const {
    return {layer.states_at,
            space.convolved,
            input_gate,
            input_bias,
            decay_gate,
            decay_bias,
            decay,
            space.begun,
            reinterpret_cast<const T*>(space.wide) + channels(),
            enter->outputs,
            reinterpret_cast<T*>(space.gated),
            channels(),
            size,
            runs};
  }

  // Whether each text has begun tells the last number of its state.
  void begin(const Space& space, const StateLayer& layer, const Runs& runs) const noexcept {
    const std::int64_t numbers = channels() + 1;
    const auto mark_at = [&](std::int64_t place) -> float& {
      return layer.states_at[place * numbers + numbers - 1];
    };
    for (std::int64_t at = 0; at < runs.count; ++at) {
      space.begun[at] = mark_at(runs.first[at].source);
    }
    for (std::int64_t at = 0; at < runs.count; ++at) mark_at(runs.first[at].target) = 1.0f;
  }

  void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer, const Runs& runs,
           char* memory) const noexcept override {
    const Space space = lay_out(x.count, memory);
    multiply(*enter, x, Rows(space.wide, enter->outputs, x.count), STORE);
    convolve(window, kind, space.wide, enter->outputs, nullptr, layer, runs, space.convolved,
             nullptr);
    begin(space, layer, runs);
    for_kind(kind, [&](auto number) {
      advance_griffin(griffin_of<decltype(number)>(space, layer, runs));
    });
    multiply(*leave, Rows(space.gated, channels(), x.count), out, use);
  }
};

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"enter",      "window",     "window_bias", "input_gate", "input_bias",
                                "decay_gate", "decay_bias", "decay",       "leave",      nullptr};
  PyObject *enter, *window, *window_bias, *input_gate, *input_bias, *decay_gate, *decay_bias;
  PyObject *decay, *leave;
  View view;
  GriffinMixer made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOO", const_cast<char**>(names), &enter,
                                   &window, &window_bias, &input_gate, &input_bias, &decay_gate,
                                   &decay_bias, &decay, &leave) ||
      !(made.enter = unbox_as<Linear>(enter)) || !(made.leave = unbox_as<Linear>(leave)) ||
      !read_window(window, window_bias, made.window) || !look_at(input_gate, view)) {
    return nullptr;
  }
  made.kind = made.enter->kind;
  made.dtype = made.enter->dtype;
  made.width = made.enter->inputs;
  const std::int64_t channels = made.channels(), blocks = view.dims == 3 ? view.sizes[0] : 0;
  const auto is_plain = [&](const Linear& linear, std::int64_t inputs, std::int64_t outputs) {
    return linear.kind == made.kind && linear.matrices == 1 && linear.use == STORE &&
           linear.inputs == inputs && linear.outputs == outputs;
  };
  if (blocks < 1 || channels < 1 || channels % blocks != 0 ||
      !is_plain(*made.enter, made.width, 2 * channels) ||
      !is_plain(*made.leave, channels, made.width)) {
    PyErr_SetString(PyExc_ValueError, "the parts of this mixer do not fit together");
    return nullptr;
  }
  const std::int64_t size = made.size = channels / blocks;
  if (!read_floats(input_gate, "a gate is", {blocks, size, size}, false, made.input_gate) ||
      !read_floats(input_bias, "its bias is", {blocks, size}, false, made.input_bias) ||
      !read_floats(decay_gate, "a gate is", {blocks, size, size}, false, made.decay_gate) ||
      !read_floats(decay_bias, "its bias is", {blocks, size}, false, made.decay_bias) ||
      !read_floats(decay, "decays are", {channels}, false, made.decay)) {
    return nullptr;
  }
  made.parts = Reference(PyTuple_Pack(9, enter, window, window_bias, input_gate, input_bias,
                                      decay_gate, decay_bias, decay, leave));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

PyObject* add_to(PyObject* self, PyObject* const* args) {
  return add_mixed(unbox<GriffinMixer>(self), args);
}

PyMethodDef methods[] = {
    METHOD("add_to", add_to, 4,
           "add_to($self, stream, x, states, layer, /)\n--\n\n"
           "Add what the mixer makes of rows to the stream; go on in the states of a layer."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const Mixer* griffin_of(PyObject* object) {
  return PyObject_TypeCheck(object, type_of<GriffinMixer>) ? &unbox<GriffinMixer>(object) : nullptr;
}

bool add_griffin(PyObject* module) {
  return add_type<GriffinMixer>(module, "asyncgen.native._kernels.GriffinMixer", make, methods,
                                "GriffinMixer(enter, window, window_bias, input_gate, input_bias, "
                                "decay_gate,\ndecay_bias, decay, leave)\n--\n\n"
                                "The mixer with a gated recurrent unit.");
}
