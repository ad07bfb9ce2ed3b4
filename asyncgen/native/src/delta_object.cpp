// `DeltaMixer`: that of gated delta networks (Yang, Kautz and Hatamizadeh, 2024, section 3.4 and
// figure 1), or Kimi Delta Attention (Kimi Linear, 2025, equation 1 and section 4), from the
// normalised stream to what it adds to it.

#include "mixers.h"

namespace {

struct DeltaMixer : Mixer {
  Linear *enter, *leave;  // the former gives queries, keys, values, rates, steps and gates,
  Linear *decays, *gates;  // or short rows, of which these make steps of features and gates, or null
  Norm *sides_norm, *norm;  // of queries and keys, and of each head's results; in float32
  Window window;
  const float *decay, *steps_bias;
  float most_rate;
  std::int64_t heads, size, groups, numbers;

  std::int64_t channels() const { return heads * size; }
  bool has_features() const { return decays != nullptr; }
  std::int64_t num_steps() const { return has_features() ? heads * numbers : heads; }
  std::int64_t rank() const { return has_features() ? decays->inputs : 0; }
  // Where what makes steps and gates begins in what `enter` gives.
  std::int64_t steps_at() const { return window.channels + heads; }
  std::int64_t gates_at() const { return steps_at() + (has_features() ? rank() : heads); }
  std::int64_t entering() const { return gates_at() + (has_features() ? rank() : channels()); }

  struct Space {
    char *wide, *gated, *made_steps, *made_gates;
    float *convolved, *rates, *steps, *kept, *found;
    std::size_t bytes;
  };
  Space lay_out(std::int64_t rows, char* memory) const {
    Room room(memory);
    Space space;
    space.wide = room.take_rows(rows, enter->outputs, kind);
    space.gated = room.take_rows(rows, channels(), kind);
    space.made_steps = room.take_rows(has_features() ? rows : 0, num_steps(), kind);
    space.made_gates = room.take_rows(has_features() ? rows : 0, channels(), kind);
    space.convolved = room.take<float>(rows * window.channels);
    space.rates = room.take<float>(rows * heads);
    space.steps = room.take<float>(rows * num_steps());
    space.kept = room.take<float>(rows * num_steps());
    space.found = room.take<float>(rows * channels());
    space.bytes = room.used();
    return space;
  }

  bool is_of(const StateLayer& layer) const override {
    return layer.taps == window.taps && layer.channels == window.channels &&
           layer.heads == heads && layer.size == size && layer.numbers == numbers;
  }
  std::size_t memory_for(std::int64_t rows) const override { return lay_out(rows, nullptr).bytes; }

  template <typename T>
  const T* wide_from(const Space& space, std::int64_t first) const {
    return reinterpret_cast<const T*>(space.wide) + first;
  }
  template <typename T>
  Rates<T> rates_of(const Space& space, std::int64_t rows) const {
    return {wide_from<T>(space, window.channels), enter->outputs, rows, heads, most_rate,
            space.rates};
  }
  template <typename T>
  Steps<T> steps_of(const Space& space, std::int64_t rows) const {
    const T* const made = reinterpret_cast<const T*>(space.made_steps);
    return {has_features() ? made : wide_from<T>(space, steps_at()),
            has_features() ? num_steps() : enter->outputs,
            rows,
            num_steps(),
            steps_bias,
            decay,
            0.0f,
            __builtin_inff(),
            space.steps,
            space.kept};
  }
  template <typename T>
  Gating<T> gating_of(const Space& space, std::int64_t rows) const {
    const T* const made = reinterpret_cast<const T*>(space.made_gates);
    return {has_features() ? Passing::SIGMOID : Passing::SILU,
            1.0f,
            space.found,
            has_features() ? made : wide_from<T>(space, gates_at()),
            has_features() ? channels() : enter->outputs,
            reinterpret_cast<T*>(space.gated),
            rows,
            channels()};
  }

  void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer, const Runs& runs,
           char* memory) const noexcept override {
    const Space space = lay_out(x.count, memory);
    multiply(*enter, x, Rows(space.wide, enter->outputs, x.count), STORE);
    if (has_features()) {
      const auto latent = [&](std::int64_t first) {
        return Rows(space.wide + first * item_size(kind), enter->outputs, x.count);
      };
      multiply(*decays, latent(steps_at()), Rows(space.made_steps, num_steps(), x.count), STORE);
      multiply(*gates, latent(gates_at()), Rows(space.made_gates, channels(), x.count), STORE);
    }
    convolve(window, kind, space.wide, enter->outputs, nullptr, layer, runs, space.convolved,
             nullptr);
    const Rows sides(reinterpret_cast<char*>(space.convolved), window.channels, x.count);
    normalise(*sides_norm, sides, sides);
    for_kind(kind, [&](auto number) {
      make_rates(rates_of<decltype(number)>(space, x.count));
      make_steps(steps_of<decltype(number)>(space, x.count));
    });
    const std::int64_t width = groups * numbers;
    apply_delta({layer.states_at, space.convolved, space.convolved + width,
                 space.convolved + 2 * width, window.channels, space.kept, has_features(), space.rates,
                 space.found, heads, size, groups, numbers, runs});
    const Rows found(reinterpret_cast<char*>(space.found), channels(), x.count);
    normalise(*norm, found, found);
    for_kind(kind, [&](auto number) { gate(gating_of<decltype(number)>(space, x.count)); });
    multiply(*leave, Rows(space.gated, channels(), x.count), out, use);
  }
};

bool fits(const DeltaMixer& made) {
  const auto is_norm = [](const Norm& norm, std::int64_t groups, std::int64_t features) {
    return norm.kind == Kind::FLOAT32 && norm.groups == groups && norm.features == features;
  };
  const auto is_plain = [&](const Linear& linear, std::int64_t inputs, std::int64_t outputs) {
    return linear.kind == made.kind && linear.matrices == 1 && linear.use == STORE &&
           linear.inputs == inputs && linear.outputs == outputs;
  };
  const std::int64_t width = made.groups * made.numbers, channels = made.channels();
  const bool is_made =
      !made.has_features() ||
      (made.gates != nullptr && is_plain(*made.decays, made.rank(), made.num_steps()) &&
       is_plain(*made.gates, made.rank(), channels));
  return is_made && (made.has_features() || made.gates == nullptr) && made.heads % made.groups == 0 && 2 * width + channels == made.window.channels &&
         is_norm(*made.sides_norm, 2 * made.groups, made.numbers) &&
         is_norm(*made.norm, made.heads, made.size) &&
         is_plain(*made.enter, made.width, made.entering()) &&
         is_plain(*made.leave, channels, made.width);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"enter", "window", "window_bias", "sides_norm", "steps_bias",
                                "decay", "norm",   "leave",       "heads",      "decays",
                                "gates", "most_rate", nullptr};
  PyObject *enter, *window, *window_bias, *sides_norm, *steps_bias, *decay, *norm, *leave;
  PyObject *decays, *gates;
  long long heads;
  DeltaMixer made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOO$LOOf", const_cast<char**>(names), &enter,
                                   &window, &window_bias, &sides_norm, &steps_bias, &decay, &norm,
                                   &leave, &heads, &decays, &gates, &made.most_rate) ||
      !(made.enter = unbox_as<Linear>(enter)) || !(made.leave = unbox_as<Linear>(leave)) ||
      !(decays == Py_None || (made.decays = unbox_as<Linear>(decays))) ||
      !(gates == Py_None || (made.gates = unbox_as<Linear>(gates))) ||
      !(made.sides_norm = unbox_as<Norm>(sides_norm)) || !(made.norm = unbox_as<Norm>(norm)) ||
      !read_window(window, window_bias, made.window)) {
    return nullptr;
  }
  made.kind = made.enter->kind;
  made.dtype = made.enter->dtype;
  made.width = made.enter->inputs;
  made.window.is_activated = true;
  made.heads = heads;
  made.size = made.norm->features;
  made.groups = made.sides_norm->groups / 2;
  made.numbers = made.sides_norm->features;
  if (heads < 1 || made.groups < 1 || heads != made.norm->groups || !fits(made)) {
    PyErr_SetString(PyExc_ValueError, "the parts of this mixer do not fit together");
    return nullptr;
  }
  if (!read_floats(steps_bias, "the steps' bias is", {made.num_steps()}, false, made.steps_bias) ||
      !read_floats(decay, "decays are", {made.num_steps()}, false, made.decay)) {
    return nullptr;
  }
  made.parts = Reference(PyTuple_Pack(10, enter, window, window_bias, sides_norm, steps_bias, decay,
                                      norm, leave, decays, gates));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

PyObject* add_to(PyObject* self, PyObject* const* args) {
  return add_mixed(unbox<DeltaMixer>(self), args);
}

PyMethodDef methods[] = {
    METHOD("add_to", add_to, 4,
           "add_to($self, stream, x, states, layer, /)\n--\n\n"
           "Add what the mixer makes of rows to the stream; go on in the states of a layer."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const Mixer* delta_of(PyObject* object) {
  return PyObject_TypeCheck(object, type_of<DeltaMixer>) ? &unbox<DeltaMixer>(object) : nullptr;
}

bool add_delta(PyObject* module) {
  return add_type<DeltaMixer>(module, "asyncgen.native._kernels.DeltaMixer", make, methods,
                              "DeltaMixer(enter, window, window_bias, sides_norm, steps_bias, "
                              "decay, norm, leave,\n*, heads, decays, gates, most_rate)\n--\n\n"
                              "The mixer with the gated delta rule.");
}
