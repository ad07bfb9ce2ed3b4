// `LightningMixer`: lightning attention (Qin and others, 2024) with the norm and the gate of
// TransNormerLLM (Qin and others, 2023, section 3.3), from the normalised stream to what it adds to
// it. Its recurrence is that of Mamba 2 where each head has its own B and C, keys and queries, and
// a decay that is the same for each token.

#include <algorithm>
#include <exception>

#include "mixers.h"

namespace {

struct LightningMixer : Mixer {
  Linear *enter, *leave;  // the former gives queries, keys, values and gates
  Norm* norm;             // of what all heads read, in float32
  const float* kept;      // of a state, [heads]
  float scale;
  std::vector<float> skip;  // zero
  std::int64_t heads, size;

  std::int64_t channels() const { return heads * size; }

  struct Space {
    char *wide, *gated;
    float *activated, *steps, *kept, *found;
    std::size_t bytes;
  };
  Space lay_out(std::int64_t rows, char* memory) const {
    Room room(memory);
    Space space;
    space.wide = room.take_rows(rows, enter->outputs, kind);
    space.gated = room.take_rows(rows, channels(), kind);
    space.activated = room.take<float>(rows * 3 * channels());
    space.steps = room.take<float>(rows * heads);
    space.kept = room.take<float>(rows * heads);
    space.found = room.take<float>(rows * channels());
    space.bytes = room.used();
    return space;
  }

  bool is_of(const StateLayer& layer) const override {
    return layer.taps == 0 && layer.heads == heads && layer.size == size && layer.numbers == size;
  }
  std::size_t memory_for(std::int64_t rows) const override { return lay_out(rows, nullptr).bytes; }

  template <typename T>
  Activation<T> activation_of(const Space& space, std::int64_t rows) const {
    const T* const x = reinterpret_cast<const T*>(space.wide);
    return {x, enter->outputs, rows, 3 * channels(), space.activated};
  }
  template <typename T>
  Gating<T> gating_of(const Space& space, std::int64_t rows) const {
    return {Passing::SIGMOID,
            scale,
            space.found,
            reinterpret_cast<const T*>(space.wide) + 3 * channels(),
            enter->outputs,
            reinterpret_cast<T*>(space.gated),
            rows,
            channels()};
  }

  void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer, const Runs& runs,
           char* memory) const noexcept override {
    const Space space = lay_out(x.count, memory);
    multiply(*enter, x, Rows(space.wide, enter->outputs, x.count), STORE);
    for_kind(kind, [&](auto number) { activate(activation_of<decltype(number)>(space, x.count)); });
    std::fill_n(space.steps, x.count * heads, 1.0f);
    for (std::int64_t row = 0; row < x.count; ++row) {
      std::copy_n(kept, heads, space.kept + row * heads);
    }
    const std::int64_t width = channels();
    scan_states({layer.states_at, space.activated + 2 * width, space.activated + width,
                 space.activated, 3 * width, space.steps, space.kept, skip.data(), space.found,
                 heads, size, heads, size, runs});
    const Rows found(reinterpret_cast<char*>(space.found), width, x.count);
    normalise(*norm, found, found);
    for_kind(kind, [&](auto number) { gate(gating_of<decltype(number)>(space, x.count)); });
    multiply(*leave, Rows(space.gated, width, x.count), out, use);
  }
};

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"enter", "kept", "norm", "leave", "scale", nullptr};
  PyObject *enter, *kept, *norm, *leave;
  View view;
  LightningMixer made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO$f", const_cast<char**>(names), &enter,
                                   &kept, &norm, &leave, &made.scale) ||
      !(made.enter = unbox_as<Linear>(enter)) || !(made.leave = unbox_as<Linear>(leave)) ||
      !(made.norm = unbox_as<Norm>(norm)) || !look_at(kept, view)) {
    return nullptr;
  }
  made.kind = made.enter->kind;
  made.dtype = made.enter->dtype;
  made.width = made.enter->inputs;
  made.heads = view.dims == 1 ? view.sizes[0] : 0;
  const std::int64_t channels = made.leave->inputs;
  const auto is_plain = [&](const Linear& linear, std::int64_t inputs, std::int64_t outputs) {
    return linear.kind == made.kind && linear.matrices == 1 && linear.use == STORE &&
           linear.inputs == inputs && linear.outputs == outputs;
  };
  if (made.heads < 1 || channels % made.heads != 0 || made.norm->kind != Kind::FLOAT32 ||
      made.norm->groups != 1 || made.norm->features != channels ||
      !is_plain(*made.enter, made.width, 4 * channels) ||
      !is_plain(*made.leave, channels, made.width)) {
    PyErr_SetString(PyExc_ValueError, "the parts of this mixer do not fit together");
    return nullptr;
  }
  made.size = channels / made.heads;
  if (!read_floats(kept, "what is kept is", {made.heads}, false, made.kept)) return nullptr;
  try {
    made.skip.assign(static_cast<std::size_t>(made.heads), 0.0f);
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
  made.parts = Reference(PyTuple_Pack(4, enter, kept, norm, leave));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

PyObject* add_to(PyObject* self, PyObject* const* args) {
  return add_mixed(unbox<LightningMixer>(self), args);
}

PyMethodDef methods[] = {
    METHOD("add_to", add_to, 4,
           "add_to($self, stream, x, states, layer, /)\n--\n\n"
           "Add what the mixer makes of rows to the stream; go on in the states of a layer."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const Mixer* lightning_of(PyObject* object) {
  const bool is_one = PyObject_TypeCheck(object, type_of<LightningMixer>);
  return is_one ? &unbox<LightningMixer>(object) : nullptr;
}

bool add_lightning(PyObject* module) {
  return add_type<LightningMixer>(module, "asyncgen.native._kernels.LightningMixer", make, methods,
                                  "LightningMixer(enter, kept, norm, leave, *, scale)\n--\n\n"
                                  "The mixer with lightning attention.");
}
