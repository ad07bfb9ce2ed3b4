// `DualMixer` and `SelectiveMixer`: those of Mamba 2 (Dao and Gu, 2024, section 7.1 and figure 6) and
// of Mamba (Gu and Dao, 2023, section 3.4 and figure 3), from the normalised stream to what they add
// to it.

#include "mixers.h"

namespace {

struct Dual : Mixer {
  Linear *enter, *leave;
  Norm* norm;             // of what was gated, or null
  bool norms_first;       // in float32, before the gate
  const float* factors;   // of columns that the first product gives, or null
  float scale;            // of what is gated
  Window window;
  const float *decay, *skip, *steps_bias;
  std::int64_t heads, size, groups, numbers;
  float least, most;

  std::int64_t channels() const { return heads * size; }

  struct Space {
    char *wide, *gated;
    float *convolved, *steps, *kept, *found;
    std::size_t bytes;
  };
  Space lay_out(std::int64_t rows, char* memory) const {
    Room room(memory);
    Space space;
    space.wide = room.take_rows(rows, enter->outputs, kind);
    space.gated = room.take_rows(rows, channels(), kind);
    space.convolved = room.take<float>(rows * window.channels);
    space.steps = room.take<float>(rows * heads);
    space.kept = room.take<float>(rows * heads);
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
  Steps<T> steps_of(const Space& space, std::int64_t rows) const {
    const T* x = reinterpret_cast<const T*>(space.wide) + channels() + window.channels;
    return {x,     enter->outputs, rows,        heads,     steps_bias, decay,
            least, most,           space.steps, space.kept};
  }
  template <typename T>
  Gating<T> gating_of(const Space& space, std::int64_t rows) const {
    return {Passing::SILU,
            scale,
            space.found,
            reinterpret_cast<const T*>(space.wide),
            enter->outputs,
            reinterpret_cast<T*>(space.gated),
            rows,
            channels()};
  }

  template <typename T>
  Columns<T> columns_of(const Space& space, std::int64_t rows) const {
    return {reinterpret_cast<T*>(space.wide), enter->outputs, rows, enter->outputs, factors};
  }

  void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer, const Runs& runs,
           char* memory) const noexcept override {
    const Space space = lay_out(x.count, memory);
    const std::int64_t item = item_size(kind);
    multiply(*enter, x, Rows(space.wide, enter->outputs, x.count), STORE);
    if (factors != nullptr) {
      for_kind(kind, [&](auto number) {
        scale_columns(columns_of<decltype(number)>(space, x.count));
      });
    }
    convolve(window, kind, space.wide + channels() * item, enter->outputs, nullptr, layer, runs,
             space.convolved, nullptr);
    for_kind(kind, [&](auto number) { make_steps(steps_of<decltype(number)>(space, x.count)); });
    const float* const sides = space.convolved + channels();
    scan_states({layer.states_at, space.convolved, sides, sides + groups * numbers,
                 window.channels, space.steps, space.kept, skip, space.found, heads, size, groups,
                 numbers, runs});
    if (norms_first) {
      const Rows found(reinterpret_cast<char*>(space.found), channels(), x.count);
      normalise(*norm, found, found);
    }
    for_kind(kind, [&](auto number) { gate(gating_of<decltype(number)>(space, x.count)); });
    const Rows gated(space.gated, channels(), x.count);
    if (norm != nullptr && !norms_first) normalise(*norm, gated, gated);
    multiply(*leave, gated, out, use);
  }
};

struct Selective : Mixer {
  Linear *enter, *select, *low, *leave;
  Norm *low_norm, *enter_norm, *leave_norm;  // all three or none
  Window window;
  const float *decay, *skip, *steps_bias;
  std::int64_t numbers;

  std::int64_t channels() const { return window.channels; }
  std::int64_t rank() const { return low->inputs; }

  struct Space {
    char *wide, *rounded, *selected, *low, *gated;
    float* convolved;
    std::size_t bytes;
  };
  Space lay_out(std::int64_t rows, char* memory) const {
    Room room(memory);
    Space space;
    space.wide = room.take_rows(rows, enter->outputs, kind);
    space.convolved = room.take<float>(rows * channels());
    const bool is_wide = kind == Kind::FLOAT32;
    char* const narrow = room.take_rows(is_wide ? 0 : rows, channels(), kind);
    space.rounded = is_wide ? reinterpret_cast<char*>(space.convolved) : narrow;
    space.selected = room.take_rows(rows, select->outputs, kind);
    space.low = room.take_rows(rows, channels(), kind);
    space.gated = room.take_rows(rows, channels(), kind);
    space.bytes = room.used();
    return space;
  }

  bool is_of(const StateLayer& layer) const override {
    return layer.taps == window.taps && layer.channels == channels() &&
           layer.heads == channels() && layer.size == 1 && layer.numbers == numbers;
  }
  std::size_t memory_for(std::int64_t rows) const override { return lay_out(rows, nullptr).bytes; }

  template <typename T>
  Selection<T> selection_of(const Space& space, const StateLayer& layer, const Runs& runs) const {
    const T* const sides = reinterpret_cast<const T*>(space.selected) + rank();
    return {layer.states_at,
            space.convolved,
            reinterpret_cast<const T*>(space.low),
            steps_bias,
            decay,
            skip,
            sides,
            sides + numbers,
            select->outputs,
            reinterpret_cast<const T*>(space.wide) + channels(),
            enter->outputs,
            reinterpret_cast<T*>(space.gated),
            channels(),
            numbers,
            runs};
  }

  void mix(const Rows& x, const Rows& out, Use use, const StateLayer& layer, const Runs& runs,
           char* memory) const noexcept override {
    const Space space = lay_out(x.count, memory);
    const auto selected = [&](std::int64_t first) {
      return Rows(space.selected + first * item_size(kind), select->outputs, x.count);
    };
    multiply(*enter, x, Rows(space.wide, enter->outputs, x.count), STORE);
    convolve(window, kind, space.wide, enter->outputs, nullptr, layer, runs, space.convolved,
             kind == Kind::FLOAT32 ? nullptr : space.rounded);
    multiply(*select, Rows(space.rounded, channels(), x.count), selected(0), STORE);
    if (low_norm != nullptr) {
      normalise(*low_norm, selected(0), selected(0));
      normalise(*enter_norm, selected(rank()), selected(rank()));
      normalise(*leave_norm, selected(rank() + numbers), selected(rank() + numbers));
    }
    multiply(*low, selected(0), Rows(space.low, channels(), x.count), STORE);
    for_kind(kind, [&](auto number) {
      select_states(selection_of<decltype(number)>(space, layer, runs));
    });
    multiply(*leave, Rows(space.gated, channels(), x.count), out, use);
  }
};

bool read_norm(PyObject* object, const Mixer& mixer, std::int64_t features, Norm*& norm,
               bool& fits) {
  norm = nullptr;
  if (object == Py_None) return true;
  if (!(norm = unbox_as<Norm>(object))) return false;
  fits = fits && norm->kind == mixer.kind && norm->groups == 1 && norm->features == features;
  return true;
}

bool is_plain(const Linear& linear, const Mixer& mixer, std::int64_t inputs,
              std::int64_t outputs) {
  return linear.kind == mixer.kind && linear.matrices == 1 && linear.use == STORE &&
         linear.inputs == inputs && linear.outputs == outputs;
}

PyObject* refuse_parts() {
  PyErr_SetString(PyExc_ValueError, "the parts of this mixer do not fit together");
  return nullptr;
}

PyObject* make_dual(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"enter", "window", "window_bias", "steps_bias", "decay", "skip",
                                "norm",  "leave",  "factors",     "heads",      "groups",
                                "numbers", "least", "most",       "norms_first", "scale",
                                nullptr};
  PyObject *enter, *window, *window_bias, *steps_bias, *decay, *skip, *norm, *leave, *factors;
  long long heads, groups, numbers;
  int norms_first;
  Dual made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOO$LLLffpf", const_cast<char**>(names),
                                   &enter, &window, &window_bias, &steps_bias, &decay, &skip,
                                   &norm, &leave, &factors, &heads, &groups, &numbers,
                                   &made.least, &made.most, &norms_first, &made.scale) ||
      !(made.enter = unbox_as<Linear>(enter)) || !(made.leave = unbox_as<Linear>(leave)) ||
      !read_window(window, window_bias, made.window)) {
    return nullptr;
  }
  made.kind = made.enter->kind;
  made.dtype = made.enter->dtype;
  made.width = made.enter->inputs;
  made.window.is_activated = true;
  made.heads = heads;
  made.groups = groups;
  made.numbers = numbers;
  const std::int64_t channels = made.leave->inputs;
  bool fits = heads > 0 && groups > 0 && numbers > 0 && heads <= channels &&
              numbers <= made.window.channels && groups <= made.window.channels &&
              channels % heads == 0 && heads % groups == 0 &&
              channels + 2 * groups * numbers == made.window.channels;
  if (!fits) return refuse_parts();
  made.size = channels / heads;
  if (norm != Py_None && !(made.norm = unbox_as<Norm>(norm))) return nullptr;
  made.norms_first = norms_first;
  const Kind normed = norms_first ? Kind::FLOAT32 : made.kind;
  fits = (made.norm == nullptr
              ? !norms_first
              : made.norm->kind == normed && made.norm->groups * made.norm->features == channels) &&
         is_plain(*made.enter, made, made.width, channels + made.window.channels + heads) &&
         is_plain(*made.leave, made, channels, made.width);
  if (!fits) return refuse_parts();
  if (!read_floats(steps_bias, "the steps' bias is", {heads}, false, made.steps_bias) ||
      !read_floats(decay, "decays are", {heads}, false, made.decay) ||
      !read_floats(skip, "the skip's factors are", {heads}, false, made.skip) ||
      !read_floats(factors, "factors are", {made.enter->outputs}, true, made.factors)) {
    return nullptr;
  }
  made.parts = Reference(
      PyTuple_Pack(9, enter, window, window_bias, steps_bias, decay, skip, norm, leave, factors));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

PyObject* make_selective(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"enter", "window", "window_bias", "select",     "low",  "steps_bias",
                                "decay", "skip",   "leave",       "low_norm", "enter_norm",
                                "leave_norm", nullptr};
  PyObject *enter, *window, *window_bias, *select, *low, *steps_bias, *decay, *skip, *leave;
  PyObject *low_norm, *enter_norm, *leave_norm;
  Selective made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOO$OOO", const_cast<char**>(names),
                                   &enter, &window, &window_bias, &select, &low, &steps_bias,
                                   &decay, &skip, &leave, &low_norm, &enter_norm, &leave_norm) ||
      !(made.enter = unbox_as<Linear>(enter)) || !(made.select = unbox_as<Linear>(select)) ||
      !(made.low = unbox_as<Linear>(low)) || !(made.leave = unbox_as<Linear>(leave)) ||
      !read_window(window, window_bias, made.window)) {
    return nullptr;
  }
  made.kind = made.enter->kind;
  made.dtype = made.enter->dtype;
  made.width = made.enter->inputs;
  made.window.is_activated = true;
  const std::int64_t channels = made.channels(), rank = made.rank();
  made.numbers = (made.select->outputs - rank) / 2;
  bool fits = made.numbers > 0 &&
              is_plain(*made.enter, made, made.width, 2 * channels) &&
              is_plain(*made.select, made, channels, rank + 2 * made.numbers) &&
              is_plain(*made.low, made, rank, channels) &&
              is_plain(*made.leave, made, channels, made.width);
  if (!read_norm(low_norm, made, rank, made.low_norm, fits) ||
      !read_norm(enter_norm, made, made.numbers, made.enter_norm, fits) ||
      !read_norm(leave_norm, made, made.numbers, made.leave_norm, fits)) {
    return nullptr;
  }
  const bool is_one = made.low_norm == nullptr;
  fits = fits && is_one == (made.enter_norm == nullptr) && is_one == (made.leave_norm == nullptr);
  if (!fits) return refuse_parts();
  if (!read_floats(steps_bias, "the steps' bias is", {channels}, false, made.steps_bias) ||
      !read_floats(decay, "decays are", {channels, made.numbers}, false, made.decay) ||
      !read_floats(skip, "the skip's factors are", {channels}, false, made.skip)) {
    return nullptr;
  }
  Reference parts(
      PyTuple_Pack(9, enter, window, window_bias, select, low, steps_bias, decay, skip, leave));
  if (!parts) return nullptr;
  made.parts = Reference(PyTuple_Pack(4, parts.get(), low_norm, enter_norm, leave_norm));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

template <typename M>
PyObject* add_to(PyObject* self, PyObject* const* args) {
  return add_mixed(unbox<M>(self), args);
}

template <typename M>
PyMethodDef methods[] = {
    METHOD("add_to", add_to<M>, 4,
           "add_to($self, stream, x, states, layer, /)\n--\n\n"
           "Add what the mixer makes of rows to the stream; go on in the states of a layer."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const Mixer* scan_of(PyObject* object) {
  if (PyObject_TypeCheck(object, type_of<Dual>)) return &unbox<Dual>(object);
  if (PyObject_TypeCheck(object, type_of<Selective>)) return &unbox<Selective>(object);
  return nullptr;
}

bool add_scans(PyObject* module) {
  return add_type<Dual>(module, "asyncgen.native._kernels.DualMixer", make_dual, methods<Dual>,
                        "DualMixer(enter, window, window_bias, steps_bias, decay, skip, norm, "
                        "leave,\nfactors, *, heads, groups, numbers, least, most, norms_first, scale)\n--\n\n"
                        "The mixer of Mamba 2.") &&
         add_type<Selective>(module, "asyncgen.native._kernels.SelectiveMixer", make_selective,
                             methods<Selective>,
                             "SelectiveMixer(enter, window, window_bias, select, low, steps_bias, "
                             "decay,\nskip, leave, *, low_norm, enter_norm, leave_norm)\n--\n\n"
                             "The mixer of Mamba.");
}
