// `States`: what layers keep of texts, and which text goes on from which place in a step.

#include <exception>

#include "mixers.h"

namespace {

// Whether a tensor lies in one piece; torch gives strides without meaning to one without numbers.
bool is_in_one_piece(const View& view) {
  std::int64_t numbers = 1;
  for (int at = 0; at < view.dims; ++at) numbers *= view.sizes[at];
  return numbers == 0 || view.is_dense_from(0);
}

bool read_layer(PyObject* item, States& made, StateLayer& layer) {
  if (item == Py_None) return true;
  PyObject *windows, *states;
  if (!is_tuple("a layer", item) || !PyArg_ParseTuple(item, "OO", &windows, &states)) return false;
  const auto is_new = [&](std::int64_t places) {
    const bool is_same = made.places == 0 || made.places == places;
    made.places = places;
    return is_same;
  };
  View view;
  Kind kind;
  if (windows != Py_None) {
    if (!look_at(windows, view) || !read_kind(view.dtype, kind)) return false;
    if (view.dims != 3 || kind != made.kind || !view.is_cpu || !is_in_one_piece(view) ||
        !is_new(view.sizes[0])) {
      refuse("windows are", windows, "[places, taps, channels] in the model's dtype are expected");
      return false;
    }
    layer.windows = Reference::to(windows);
    layer.windows_at = view.data;
    layer.taps = view.sizes[1];
    layer.channels = view.sizes[2];
  }
  if (states != Py_None) {
    if (!look_at(states, view) || !read_kind(view.dtype, kind)) return false;
    if (view.dims != 4 || kind != Kind::FLOAT32 || !view.is_cpu || !is_in_one_piece(view) ||
        !is_new(view.sizes[0])) {
      refuse("states are", states, "[places, heads, size, numbers] in float32 are expected");
      return false;
    }
    layer.states = Reference::to(states);
    layer.states_at = view.as<float>();
    layer.heads = view.sizes[1];
    layer.size = view.sizes[2];
    layer.numbers = view.sizes[3];
  }
  return true;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"layers", "dtype", nullptr};
  PyObject *layers, *dtype;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$O", const_cast<char**>(names), &layers,
                                   &dtype)) {
    return nullptr;
  }
  Reference items(PySequence_Tuple(layers));
  States made{};
  if (!items || !read_kind(dtype, made.kind)) return nullptr;
  try {
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items.get()); ++at) {
      made.layers.emplace_back();
      if (!read_layer(PyTuple_GET_ITEM(items.get(), at), made, made.layers.back())) return nullptr;
    }
    made.marks.assign(static_cast<std::size_t>(made.places), 0);
    made.num_tokens = -1;
    return box(type, std::move(made));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// Whether the runs of a step lie one behind the other, and no two of them meet in a place that one
// of them writes.
bool are_runs(States& states, const Runs& runs, std::int64_t& tokens) {
  constexpr std::int64_t READ = 1, WRITTEN = 2;
  bool are = true;
  const auto is_place = [&](std::int64_t place) { return place >= 0 && place < states.places; };
  const auto meets = [&](std::int64_t place, std::int64_t mark, std::int64_t others) {
    std::int64_t& marks = states.marks[static_cast<std::size_t>(place)];
    const bool met = (marks & others) != 0;
    marks |= mark;
    return met;
  };
  tokens = 0;
  for (std::int64_t at = 0; at < runs.count && are; ++at) {
    const Run& run = runs.first[at];
    are = run.token == tokens && run.count > 0 && is_place(run.source) && is_place(run.target);
    if (!are) break;
    tokens += run.count;
    are = !meets(run.target, WRITTEN, READ | WRITTEN) &&
          (run.source == run.target || !meets(run.source, READ, WRITTEN));
  }
  for (std::int64_t at = 0; at < runs.count; ++at) {
    for (const std::int64_t place : {runs.first[at].source, runs.first[at].target}) {
      if (is_place(place)) states.marks[static_cast<std::size_t>(place)] = 0;
    }
  }
  return are;
}

PyObject* lay_out(PyObject* self, PyObject* const* args) {
  States& states = unbox<States>(self);
  Numbers rows;
  if (!rows.read(args[0])) return nullptr;
  if (states.is_busy) {
    PyErr_SetString(PyExc_RuntimeError, "these states are in use by another thread");
    return nullptr;
  }
  const std::int64_t numbers = sizeof(Run) / sizeof(std::int64_t);
  const Runs runs{reinterpret_cast<const Run*>(rows.data()), rows.count() / numbers};
  std::int64_t tokens;
  if (rows.count() % numbers != 0 || !are_runs(states, runs, tokens)) {
    PyErr_Format(PyExc_ValueError,
                 "rows are (token, count, source, target) each, one behind the other, in places of "
                 "their own below %lld",
                 static_cast<long long>(states.places));
    return nullptr;
  }
  states.rows = std::move(rows);
  states.num_tokens = tokens;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    METHOD("lay_out", lay_out, 1,
           "lay_out($self, rows, /)\n--\n\n"
           "Get ready for a step of rows: for each the number of its first token, how many there\n"
           "are, the place that they go on from and the one that they leave their state in."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

HeldStates::HeldStates(States& states) : states_(nullptr) {
  if (states.is_busy || states.num_tokens < 0) {
    PyErr_SetString(PyExc_RuntimeError, states.is_busy
                                            ? "these states are in use by another thread"
                                            : "lay out the rows of a step first");
    return;
  }
  states_ = &states;
  states_->is_busy = true;
}

bool add_states(PyObject* module) {
  return add_type<States>(module, "asyncgen.native._kernels.States", make, methods,
                          "States(layers, *, dtype)\n--\n\n"
                          "What layers keep of texts: windows and states, or None.");
}
