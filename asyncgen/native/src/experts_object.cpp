// `Experts`: a router, and a feed-forward of which each token uses a few of many.

#include <algorithm>
#include <cstring>

#include "parts.h"
#include "team.h"

namespace {

// Places in a call's memory.
struct Space {
  float *wide, *logits, *weights;
  std::int32_t *ids, *places;
  Group* groups;
  std::int64_t* counts;
  char *pairs, *activated, *shared_activated, *shared, *entered, *left;
  std::size_t bytes;
};

Space lay_out(const Experts& experts, std::int64_t rows, char* memory) {
  const std::int64_t item = item_size(experts.gate_up->kind), features = experts.width();
  const std::int64_t inner = experts.inner(), latent = experts.enter == nullptr ? 0 : rows * inner;
  const std::int64_t pairs = rows * experts.routing.chosen, matrices = experts.routing.experts;
  std::size_t used = 0;
  const auto take = [&](std::int64_t bytes) {
    char* const at = memory == nullptr ? nullptr : memory + used;
    used += Memory::rounded(static_cast<std::size_t>(bytes));
    return at;
  };
  const auto floats = [&](std::int64_t count) {
    return reinterpret_cast<float*>(take(count * static_cast<std::int64_t>(sizeof(float))));
  };
  const auto numbers = [&](std::int64_t count) {
    return reinterpret_cast<std::int32_t*>(take(count * static_cast<std::int64_t>(sizeof(int))));
  };
  const bool is_wide = experts.gate_up->kind == Kind::FLOAT32;
  const Linear* const shared = experts.shared_down;
  Space space;
  space.wide = floats(is_wide ? 0 : rows * features);
  space.logits = floats(rows * experts.router->outputs);
  space.weights = floats(pairs);
  space.ids = numbers(pairs);
  space.places = numbers(pairs);
  space.groups = reinterpret_cast<Group*>(take(matrices * std::int64_t{sizeof(Group)}));
  space.counts = reinterpret_cast<std::int64_t*>(take(matrices * std::int64_t{sizeof(matrices)}));
  space.pairs = take(pairs * inner * item);
  space.activated = take(pairs * experts.down->inputs * item);
  space.shared_activated = take(shared == nullptr ? 0 : rows * shared->inputs * item);
  space.shared = take(shared == nullptr ? 0 : rows * features * item);
  space.entered = take(latent * item);
  space.left = take(latent * item);
  space.bytes = used;
  return space;
}

// Groups of the pairs of rows and experts, by experts, and each pair's place among them.
std::int64_t group_pairs(const Space& space, std::int64_t pairs, std::int64_t matrices) {
  std::memset(space.counts, 0, static_cast<std::size_t>(matrices) * sizeof *space.counts);
  for (std::int64_t pair = 0; pair < pairs; ++pair) ++space.counts[space.ids[pair]];
  std::int64_t groups = 0, first = 0;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    const std::int64_t count = space.counts[matrix];
    if (count > 0) space.groups[groups++] = {matrix, first, count, 0};
    space.counts[matrix] = first;
    first += count;
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    space.places[pair] = static_cast<std::int32_t>(space.counts[space.ids[pair]]++);
  }
  return groups;
}

// Numbers the pieces of the work of all groups.
Groups count_pieces(Group* groups, std::int64_t count, std::int64_t outputs) {
  std::int64_t pieces = 0;
  for (std::int64_t number = 0; number < count; ++number) {
    groups[number].piece = pieces;
    pieces += pieces_of(groups[number].rows, outputs);
  }
  return {groups, count, pieces};
}

void spread(const Experts& experts, const Rows& x, const Space& space) noexcept {
  const std::int64_t chosen = experts.routing.chosen, features = experts.gate_up->inputs;
  const float* const weights = experts.routing.weighs_inputs ? space.weights : nullptr;
  for_kind(experts.gate_up->kind, [&](auto number) {
    using T = decltype(number);
    spread(Spread<T>{reinterpret_cast<const T*>(x.data), x.stride, x.count, chosen, features,
                     space.places, weights, reinterpret_cast<T*>(space.pairs)});
  });
}

template <typename T>
Mixture<T> mixture_of(const Experts& experts, const Rows& stream, const Space& space) {
  const bool is_shared = experts.shared_down != nullptr && experts.leave == nullptr;
  return {reinterpret_cast<T*>(stream.data),
          stream.stride,
          stream.count,
          experts.routing.chosen,
          experts.gate_up->inputs,
          reinterpret_cast<const T*>(space.pairs),
          space.places,
          space.weights,
          is_shared ? reinterpret_cast<const T*>(space.shared) : nullptr,
          experts.is_shared_gated ? space.logits + experts.routing.experts : nullptr,
          experts.router->outputs};
}

bool read_routing(PyObject* options, Experts& made, PyObject*& correction) {
  static const char* names[] = {"scoring",       "chosen",          "groups",     "chosen_groups",
                                "best_of_group", "is_normalised",   "scale",      "tolerance",
                                "weighs_inputs", "corrects_logits", "correction", nullptr};
  Routing& routing = made.routing;
  const char* scoring;
  long long chosen, groups, chosen_groups, best;
  int is_normalised, weighs_inputs, corrects_logits;
  Reference none(PyTuple_New(0));
  if (!none || !PyArg_ParseTupleAndKeywords(
                   none.get(), options, "$sLLLLpffppO", const_cast<char**>(names), &scoring,
                   &chosen, &groups, &chosen_groups, &best, &is_normalised, &routing.scale,
                   &routing.tolerance, &weighs_inputs, &corrects_logits, &correction)) {
    return false;
  }
  const bool is_softmax = std::strcmp(scoring, "softmax") == 0;
  const bool is_sparse = std::strcmp(scoring, "sparsemixer") == 0;
  if (!is_softmax && !is_sparse && std::strcmp(scoring, "sigmoid") != 0) {
    PyErr_Format(PyExc_ValueError, "scoring is '%s' and must be softmax, sigmoid or sparsemixer",
                 scoring);
    return false;
  }
  routing.scoring = is_softmax  ? Scoring::SOFTMAX
                    : is_sparse ? Scoring::SPARSEMIXER
                                : Scoring::SIGMOID;
  const long long experts = made.gate_up->matrices;
  if (experts > MOST_EXPERTS || groups < 1 || experts % groups != 0 || chosen_groups < 1 ||
      chosen_groups > groups || chosen < 1 || chosen > experts / groups * chosen_groups ||
      (best != 1 && best != 2)) {
    PyErr_Format(PyExc_ValueError,
                 "%lld of %lld experts cannot be chosen from %lld of %lld groups (most are %lld)",
                 chosen, experts, chosen_groups, groups, static_cast<long long>(MOST_EXPERTS));
    return false;
  }
  routing.experts = experts;
  routing.chosen = chosen;
  routing.groups = groups;
  routing.chosen_groups = chosen_groups;
  routing.best_of_group = std::min(best, experts / groups);
  routing.is_normalised = is_normalised;
  routing.weighs_inputs = weighs_inputs;
  routing.corrects_logits = corrects_logits;
  return true;
}

bool read_correction(PyObject* correction, Experts& made) {
  if (correction == Py_None) return true;
  View view;
  Kind kind;
  if (!look_at(correction, view) || !read_kind(view.dtype, kind)) return false;
  if (!view.is_cpu || kind != Kind::FLOAT32 || !view.has_shape({made.routing.experts}) ||
      !view.is_dense_from(0)) {
    refuse("the correction is", correction, "[%lld] in float32 is needed",
           static_cast<long long>(made.routing.experts));
    return false;
  }
  made.routing.correction = view.as<float>();
  return true;
}

bool read_linear(PyObject* object, Linear*& linear) {
  linear = nullptr;
  return object == Py_None || (linear = unbox_as<Linear>(object)) != nullptr;
}

// Whether products fit together.
bool fits(const Experts& made) {
  const Linear &router = *made.router, &gate_up = *made.gate_up, &down = *made.down;
  const Linear *shared = made.shared_gate_up, *shared_down = made.shared_down;
  const auto is_pair = [&](const Linear& first, const Linear& second) {
    return first.kind == gate_up.kind && second.kind == gate_up.kind &&
           first.is_gated == gate_up.is_gated && second.use == STORE &&
           second.inputs == first.outputs >> first.is_gated && second.outputs == first.inputs;
  };
  const auto leads = [&](const Linear& linear, std::int64_t inputs, std::int64_t outputs) {
    return linear.kind == gate_up.kind && linear.use == STORE && linear.matrices == 1 &&
           linear.inputs == inputs && linear.outputs == outputs;
  };
  const std::int64_t width = made.width(), inner = made.inner();
  const bool is_latent = made.enter != nullptr && made.leave != nullptr && !made.is_shared_gated;
  const bool is_routed = router.kind == Kind::FLOAT32 && router.use == STORE &&
                         router.matrices == 1 &&
                         (is_latent ? leads(*made.enter, width, inner) &&
                                          leads(*made.leave, inner, width)
                                    : made.enter == made.leave && width == inner) &&
                         router.outputs == gate_up.matrices + made.is_shared_gated;
  const bool is_shared =
      shared != nullptr && shared_down != nullptr && made.gate.use != GATE_CLAMPED;
  return is_routed && is_pair(gate_up, down) && down.matrices == gate_up.matrices &&
         (is_shared ? is_pair(*shared, *shared_down) && shared->inputs == width &&
                          shared->matrices == 1 &&
                          shared_down->matrices == 1
                    : shared == nullptr && shared_down == nullptr && !made.is_shared_gated);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"router",         "gate_up",     "down",  "routing",
                                "gate",           "alpha",       "limit", "enter",
                                "leave",          "shared_gate_up", "shared_down",
                                "is_shared_gated", nullptr};
  PyObject *router, *gate_up, *down, *options, *enter, *leave, *shared, *shared_down, *correction;
  const char* gate;
  Experts made{};
  int is_shared_gated;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO$O!sffOOOOp", const_cast<char**>(names),
                                   &router, &gate_up, &down, &PyDict_Type, &options, &gate,
                                   &made.gate.alpha, &made.gate.limit, &enter, &leave, &shared,
                                   &shared_down, &is_shared_gated)) {
    return nullptr;
  }
  made.is_shared_gated = is_shared_gated;
  if (!(made.router = unbox_as<Linear>(router)) || !(made.gate_up = unbox_as<Linear>(gate_up)) ||
      !(made.down = unbox_as<Linear>(down)) || !read_linear(shared, made.shared_gate_up) ||
      !read_linear(shared_down, made.shared_down) || !read_linear(enter, made.enter) ||
      !read_linear(leave, made.leave) ||
      !(made.gate_up->is_gated ? read_gate(gate, made.gate.use)
                               : read_activation(gate, false, made.gate.use)) ||
      !read_routing(options, made, correction) || !read_correction(correction, made)) {
    return nullptr;
  }
  if (!fits(made)) {
    PyErr_SetString(PyExc_ValueError, "the products of these experts do not fit together");
    return nullptr;
  }
  made.parts = Reference(
      PyTuple_Pack(8, router, gate_up, down, enter, leave, shared, shared_down, correction));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

// Whether a tensor has the rows of these experts.
bool are_rows(const Experts& experts, PyObject* tensor, const View& view, std::int64_t rows) {
  if (!view.has_shape({rows, experts.width()}) || view.dtype != experts.gate_up->dtype ||
      !view.is_cpu || !view.is_dense_from(1)) {
    refuse("rows are", tensor, "these experts take and give [N, %lld] %S on cpu",
           static_cast<long long>(experts.width()), experts.gate_up->dtype);
    return false;
  }
#ifdef ASYNCGEN_CHECK
  return lies_within(tensor, view, item_size(experts.gate_up->kind));
#else
  return true;
#endif
}

// Whether ids and weights are those of a choice for so many rows.
bool are_chosen(const Experts& experts, PyObject* const* tensors, const View& ids,
                const View& weights, std::int64_t rows) {
  const std::int64_t chosen = experts.routing.chosen;
  Reference text(PyObject_Str(ids.dtype));
  Kind kind;
  if (!text || !read_kind(weights.dtype, kind)) return false;
  const bool are_numbers = PyUnicode_CompareWithASCIIString(text.get(), "torch.int32") == 0;
  if (!are_numbers || !ids.is_cpu || !ids.has_shape({rows, chosen}) || !ids.is_dense_from(0)) {
    refuse("ids are", tensors[0], "[%lld, %lld] in int32 are needed", static_cast<long long>(rows),
           static_cast<long long>(chosen));
    return false;
  }
  if (kind != Kind::FLOAT32 || !weights.is_cpu || !weights.has_shape({rows, chosen}) ||
      !weights.is_dense_from(0)) {
    refuse("weights are", tensors[1], "[%lld, %lld] in float32 are needed",
           static_cast<long long>(rows), static_cast<long long>(chosen));
    return false;
  }
  for (std::int64_t pair = 0; pair < rows * chosen; ++pair) {
    const std::int32_t id = ids.as<const std::int32_t>()[pair];
    if (id < 0 || id >= experts.routing.experts) {
      PyErr_Format(PyExc_ValueError, "there is no expert %d", static_cast<int>(id));
      return false;
    }
  }
  return true;
}

PyObject* add(PyObject* self, PyObject* const* args, bool is_chosen) {
  Experts& experts = unbox<Experts>(self);
  View stream, x, ids, weights;
  if (!look_at(args[0], stream) || !look_at(args[1], x)) return nullptr;
  const std::int64_t rows = x.dims > 0 ? x.sizes[0] : 0;
  if (!are_rows(experts, args[1], x, rows) || !are_rows(experts, args[0], stream, rows)) {
    return nullptr;
  }
  if (!stream.has_rows_apart()) return refuse("rows are", args[0], "they share memory");
  const std::int32_t* chosen_ids = nullptr;
  const float* chosen_weights = nullptr;
  if (is_chosen) {
    if (experts.is_shared_gated) {
      PyErr_SetString(PyExc_ValueError, "the router makes the gate of the shared expert as well");
      return nullptr;
    }
    if (!look_at(args[2], ids) || !look_at(args[3], weights) ||
        !are_chosen(experts, args + 2, ids, weights, rows)) {
      return nullptr;
    }
    chosen_ids = ids.as<const std::int32_t>();
    chosen_weights = weights.as<const float>();
  }
  if (rows == 0) Py_RETURN_NONE;
  Memory memory = std::exchange(experts.memory, {});
  if (!memory.hold(memory_for(experts, rows))) return PyErr_NoMemory();
  const bool is_done = run_unlocked([&]() noexcept {
    mix_experts(experts, Rows(x), Rows(stream), memory.data(), chosen_ids, chosen_weights);
  });
  if (memory.is_small()) experts.memory = std::move(memory);
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

PyObject* add_to(PyObject* self, PyObject* const* args) { return add(self, args, false); }

PyObject* add_chosen(PyObject* self, PyObject* const* args) { return add(self, args, true); }

PyMethodDef methods[] = {
    METHOD("add_chosen", add_chosen, 4,
           "add_chosen($self, stream, x, ids, weights, /)\n--\n\nAdd to `stream` what the experts "
           "that were chosen make of rows."),
    METHOD("add_to", add_to, 2,
           "add_to($self, stream, x, /)\n--\n\nAdd to `stream` what the experts make of rows."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::size_t memory_for(const Experts& experts, std::int64_t rows) {
  return lay_out(experts, rows, nullptr).bytes;
}

void mix_experts(const Experts& experts, const Rows& x, const Rows& stream, char* memory,
                 const std::int32_t* ids, const float* weights) noexcept {
  const Space space = lay_out(experts, x.count, memory);
  const Routing& routing = experts.routing;
  const std::int64_t rows = x.count, pairs = rows * routing.chosen;
  const std::int64_t features = experts.width(), inner = experts.inner();
  const std::int64_t width = experts.down->inputs;
  const bool is_wide = experts.gate_up->kind == Kind::FLOAT32;
  if (ids != nullptr) {
    std::copy_n(ids, pairs, space.ids);
    std::copy_n(weights, pairs, space.weights);
  } else {
    if (experts.gate_up->kind == Kind::BFLOAT16) {
      widen_rows(reinterpret_cast<const bf16*>(x.data), x.stride, rows, features, space.wide);
    } else if (!is_wide) {
      widen_rows(reinterpret_cast<const f16*>(x.data), x.stride, rows, features, space.wide);
    }
    const Rows wide = is_wide ? x : Rows(reinterpret_cast<char*>(space.wide), features, rows);
    const std::int64_t outputs = experts.router->outputs;
    multiply(*experts.router, wide, Rows(reinterpret_cast<char*>(space.logits), outputs, rows),
             STORE);
    choose_experts(routing, space.logits, outputs, rows, space.ids, space.weights);
  }
  const std::int64_t count = group_pairs(space, pairs, routing.experts);
  Rows taken = x, given = stream;
  if (experts.enter != nullptr) {
    taken = Rows(space.entered, inner, rows);
    multiply(*experts.enter, x, taken, STORE);
    given = Rows(space.left, inner, rows);
    std::memset(space.left, 0, static_cast<std::size_t>(rows * inner) *
                                   item_size(experts.gate_up->kind));
  }
  // The only row is every group's, unless each weighs it.
  Rows from(taken.data, 0, pairs);
  if (rows > 1 || routing.weighs_inputs) {
    spread(experts, taken, space);
    from = Rows(space.pairs, inner, pairs);
  }
  if (routing.weighs_inputs) std::fill_n(space.weights, pairs, 1.0f);
  const Rows activated(space.activated, width, pairs);
  multiply(*experts.gate_up, from, activated, experts.gate,
           count_pieces(space.groups, count, experts.gate_up->outputs));
  multiply(*experts.down, activated, Rows(space.pairs, inner, pairs), Gate{STORE, 0, 0},
           count_pieces(space.groups, count, inner));
  if (experts.shared_down != nullptr) {
    const Rows shared(space.shared_activated, experts.shared_down->inputs, rows);
    multiply(*experts.shared_gate_up, x, shared, experts.gate.use);
    multiply(*experts.shared_down, shared, Rows(space.shared, features, rows), STORE);
  }
  for_kind(experts.gate_up->kind, [&](auto number) {
    mix(mixture_of<decltype(number)>(experts, given, space));
  });
  if (experts.leave == nullptr) return;
  multiply(*experts.leave, given, stream, ADD);
  if (experts.shared_down != nullptr) {
    add_rows(experts.gate_up->kind, Rows(space.shared, features, rows), features, 1.0f, stream);
  }
}

bool add_experts(PyObject* module) {
  return add_type<Experts>(
      module, "asyncgen.native._kernels.Experts", make, methods,
      "Experts(router, gate_up, down, *, routing, gate, alpha, limit, enter, leave,\n"
      "shared_gate_up, shared_down, is_shared_gated)\n--\n\nA feed-forward of which each row uses a few of many.");
}
