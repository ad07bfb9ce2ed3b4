// `Linear`: a weight in panels, and its bias.

#include <cstring>

#include "parts.h"

namespace {

// The most inputs, outputs or matrices of one weight: products of two sizes are far from 64 bits.
constexpr std::int64_t MOST_OF_ONE = 1 << 30;

// Whether a tensor has so many elements: a product of numbers above zero, maybe beyond 64 bits.
bool has_elements(const View& view, std::initializer_list<std::int64_t> numbers) {
  std::int64_t left = 1;
  for (int at = 0; at < view.dims; ++at) left *= view.sizes[at];
  for (const std::int64_t number : numbers) {
    if (left % number != 0) return false;
    left /= number;
  }
  return left == 1;
}

// Reads what a weight is stored in, for rows of a kind; anything else raises ValueError.
bool read_stored(PyObject* dtype, const Linear& linear, Stored& stored) {
  stored = Stored::AS_ROWS;
  if (dtype == linear.dtype) return true;
  Reference text(PyObject_Str(dtype));
  if (!text) return false;
  if (PyUnicode_CompareWithASCIIString(text.get(), "torch.bfloat16") == 0) {
    stored = Stored::BFLOAT16;
  } else if (PyUnicode_CompareWithASCIIString(text.get(), "torch.float16") == 0) {
    stored = Stored::FLOAT16;
  }
  if (stored != Stored::AS_ROWS && linear.kind == Kind::FLOAT32) return true;
  PyErr_Format(PyExc_ValueError, "the weight's dtype is %S, which rows in %S are not multiplied by",
               dtype, linear.dtype);
  return false;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"weight",   "bias",       "dtype",    "inputs", "outputs",
                                "is_gated", "uses_tiles", "matrices", "activation",
                                nullptr};
  PyObject *weight, *bias, *dtype;
  long long inputs, outputs, matrices;
  int is_gated, uses_tiles;
  const char* activation;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO$OLLppLz", const_cast<char**>(names), &weight,
                                   &bias, &dtype, &inputs, &outputs, &is_gated, &uses_tiles,
                                   &matrices, &activation)) {
    return nullptr;
  }
  Linear made{};
  View view;
  made.dtype = dtype;
  if (!read_activation(activation, is_gated, made.use) || !look_at(weight, view) ||
      !read_kind(dtype, made.kind) ||
      !read_stored(view.dtype, made, made.stored)) {
    return nullptr;
  }
  for (const long long size : {inputs, outputs, matrices}) {
    if (size >= 1 && size <= MOST_OF_ONE) continue;
    return PyErr_Format(PyExc_ValueError,
                        "inputs, outputs and matrices are 1 to %lld each, not %lld",
                        static_cast<long long>(MOST_OF_ONE), size);
  }
  const std::int64_t filled = (outputs + PANEL - 1) / PANEL * PANEL;
  const std::int64_t wide =
      made.kind == Kind::BFLOAT16 ? (inputs + PANEL - 1) / PANEL * PANEL : inputs;
  if (!view.is_cpu || !view.is_dense_from(0) || !has_elements(view, {matrices, filled, wide}) ||
      (is_gated && outputs % 2 != 0)) {
    return refuse("the weight is", weight,
                  "%lld matrices of %lld inputs and %lld outputs need panels of %lld numbers each",
                  matrices, inputs, outputs, static_cast<long long>(filled * wide));
  }
  made.weight_at = view.data;
  if (bias != Py_None) {
    Kind kind;
    if (!look_at(bias, view) || !read_kind(view.dtype, kind)) return nullptr;
    if (!view.is_cpu || kind != Kind::FLOAT32 || !view.is_dense_from(0) ||
        !has_elements(view, {matrices, filled})) {
      return refuse("the bias is", bias, "%lld numbers in float32 are needed",
                    static_cast<long long>(matrices * filled));
    }
    made.bias_at = view.as<float>();
  }
  made.weight = Reference::to(weight);
  made.bias = Reference::to(bias);
  made.is_gated = is_gated;
  made.uses_tiles = uses_tiles && made.kind == Kind::BFLOAT16;
  made.inputs = inputs;
  made.outputs = outputs;
  made.matrices = matrices;
  made.matrix_size = filled * wide;
  return box(type, std::move(made));
}

template <typename T, typename W = T>
Product<T, W> product_of(const Linear& linear, const Rows& x, const Rows& out, Use use) {
  return {reinterpret_cast<const T*>(x.data),
          x.stride,
          x.count,
          linear.inputs,
          linear.outputs,
          static_cast<const W*>(linear.weight_at),
          linear.bias_at,
          reinterpret_cast<T*>(out.data),
          out.stride,
          use,
          0.0f,
          0.0f};
}

template <typename T, typename W = T>
Grouped<T, W> grouped(const Linear& linear, const Rows& x, const Rows& out, const Gate& gate,
                      const Groups& groups) {
  Product<T, W> all = product_of<T, W>(linear, x, out, gate.use);
  all.alpha = gate.alpha;
  all.limit = gate.limit;
  return {all, linear.matrix_size, groups.groups, groups.count, groups.pieces};
}

// Calls `use` with a number of the rows' type and one of the weight's, in panels.
template <typename Call>
void for_numbers(const Linear& linear, Call use) noexcept {
  if (linear.stored == Stored::BFLOAT16) return use(float{}, bf16{});
  if (linear.stored == Stored::FLOAT16) return use(float{}, f16{});
  for_kind(linear.kind, [&](auto number) { use(number, number); });
}

#ifdef ASYNCGEN_CHECK
bool is_safe(const Linear& linear, PyObject* x, const View& from, PyObject* out, const View& to) {
  const std::int64_t item = item_size(linear.kind);
  if (!lies_within(x, from, item) || !lies_within(out, to, item)) return false;
  const char* from_end = from.data + ((from.sizes[0] - 1) * from.strides[0] + from.sizes[1]) * item;
  const char* to_end = to.data + ((to.sizes[0] - 1) * to.strides[0] + to.sizes[1]) * item;
  if (from.data >= to_end || to.data >= from_end || from.sizes[0] == 0) return true;
  PyErr_SetString(PyExc_RuntimeError, "a product was to be written over its own rows");
  return false;
}
#endif

bool multiply_tensors(const Linear& linear, PyObject* rows, PyObject* out, Use use) {
  View x, to;
  if (linear.matrices != 1) {
    PyErr_SetString(PyExc_ValueError, "rows are multiplied by one matrix, not by several");
    return false;
  }
  if (!look_at(rows, x)) return false;
  if (x.dims != 2 || x.sizes[1] != linear.inputs || x.dtype != linear.dtype || !x.is_cpu) {
    refuse("rows are", rows, "this weight takes [N, %lld] %S on cpu",
           static_cast<long long>(linear.inputs), linear.dtype);
    return false;
  }
  Reference dense;
  if (x.strides[1] != 1) {
    dense = Reference(PyObject_CallMethod(rows, "contiguous", nullptr));
    if (!dense || !look_at(dense.get(), x)) return false;
    rows = dense.get();
  }
  const std::int64_t columns = linear.outputs >> is_gate(use);
  if (!look_at(out, to)) return false;
  if (!to.has_shape({x.sizes[0], columns}) || to.dtype != linear.dtype || !to.is_cpu ||
      !to.is_dense_from(1) || !to.has_rows_apart()) {
    refuse("results are", out, "this weight gives [%lld, %lld] %S on cpu",
           static_cast<long long>(x.sizes[0]), static_cast<long long>(columns), linear.dtype);
    return false;
  }
#ifdef ASYNCGEN_CHECK
  if (!is_safe(linear, rows, x, out, to)) return false;
#endif
  return run_unlocked([&]() noexcept { multiply(linear, Rows(x), Rows(to), use); });
}

PyObject* into(PyObject* self, PyObject* const* args) {
  const Linear& linear = unbox<Linear>(self);
  if (!multiply_tensors(linear, args[0], args[1], linear.use)) return nullptr;
  return Py_NewRef(args[1]);
}

PyObject* add_to(PyObject* self, PyObject* const* args) {
  const Linear& linear = unbox<Linear>(self);
  if (linear.use != STORE) {
    PyErr_SetString(PyExc_ValueError, "what an activation lets through cannot be added to rows");
    return nullptr;
  }
  if (!multiply_tensors(linear, args[1], args[0], ADD)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* look_up(PyObject* self, PyObject* const* args) {
  const Linear& linear = unbox<Linear>(self);
  View ids, out;
  if (linear.stored != Stored::PACKED || linear.matrices != 1 || linear.is_gated) {
    PyErr_SetString(PyExc_ValueError, "rows are looked up in a packed matrix that is no gate's");
    return nullptr;
  }
  if (!look_at(args[0], ids) || !look_at(args[1], out)) return nullptr;
  if (!is_dtype(ids.dtype, "torch.int64") || ids.dims != 1 || !ids.is_cpu || !ids.is_dense_from(0)) {
    return refuse("ids are", args[0], "[N] torch.int64 on cpu is expected");
  }
  if (!out.has_shape({ids.sizes[0], linear.inputs}) || out.dtype != linear.dtype || !out.is_cpu ||
      !out.is_dense_from(0)) {
    return refuse("results are", args[1], "this weight gives [%lld, %lld] %S on cpu",
                  static_cast<long long>(ids.sizes[0]), static_cast<long long>(linear.inputs),
                  linear.dtype);
  }
  for (std::int64_t row = 0; row < ids.sizes[0]; ++row) {
    const std::int64_t id = ids.as<std::int64_t>()[row];
    if (id < 0 || id >= linear.outputs) {
      return PyErr_Format(PyExc_IndexError, "row %lld of %lld", static_cast<long long>(id),
                          static_cast<long long>(linear.outputs));
    }
    for_kind(linear.kind, [&](auto number) {
      auto* const to = out.as<decltype(number)>() + row * linear.inputs;
      packed_row(linear.packed[0], linear.inputs, id, to);
    });
  }
  return Py_NewRef(args[1]);
}

PyMethodDef methods[] = {
    METHOD("into", into, 2, "into($self, x, out, /)\n--\n\nMultiply rows into `out`, and return it."),
    METHOD("add_to", add_to, 2, "add_to($self, residual, x, /)\n--\n\nAdd the product to `residual`."),
    METHOD("look_up", look_up, 2,
           "look_up($self, ids, out, /)\n--\n\n"
           "Write those rows of a packed matrix, int64, into `out`, and return it."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void multiply(const Linear& linear, const Rows& x, const Rows& out, Use use) noexcept {
  if (linear.stored == Stored::PACKED) {
    multiply_packed(linear, x, out, use);
  } else if (linear.stored == Stored::JOINED) {
    char* at = out.data;
    for (const Linear* part : linear.joined) {
      multiply(*part, x, Rows(at, out.stride, out.count), use);
      at += part->outputs * item_size(linear.kind);
    }
  } else if (linear.uses_tiles) {
    multiply_amx(product_of<bf16>(linear, x, out, use));
  } else {
    for_numbers(linear, [&](auto number, auto weight) {
      multiply(product_of<decltype(number), decltype(weight)>(linear, x, out, use));
    });
  }
}

void multiply(const Linear& linear, const Rows& x, const Rows& out, const Gate& gate,
              const Groups& groups) noexcept {
  if (linear.stored == Stored::PACKED) {
    multiply_packed(linear, x, out, gate, groups);
  } else if (linear.uses_tiles) {
    multiply_amx(grouped<bf16>(linear, x, out, gate, groups));
  } else {
    for_numbers(linear, [&](auto number, auto weight) {
      multiply(grouped<decltype(number), decltype(weight)>(linear, x, out, gate, groups));
    });
  }
}

bool read_gate(const char* activation, Use& use) {
  const struct {
    const char* name;
    Use use;
  } known[] = {{"silu", GATE_SILU},
               {"gelu", GATE_GELU},
               {"gelu_tanh", GATE_GELU_TANH},
               {"clamped", GATE_CLAMPED}};
  for (const auto& one : known) {
    if (std::strcmp(activation, one.name) == 0) {
      use = one.use;
      return true;
    }
  }
  PyErr_Format(PyExc_ValueError, "the gate is '%s' and must be silu, gelu, gelu_tanh or clamped",
               activation);
  return false;
}

bool read_activation(const char* name, bool is_gated, Use& use) {
  use = is_gated ? GATE_SILU : STORE;
  if (name == nullptr) return true;
  if (is_gated && std::strcmp(name, "clamped") != 0) return read_gate(name, use);
  const struct {
    const char* name;
    Use use;
  } known[] = {{"silu", SILU},
               {"gelu", GELU},
               {"gelu_tanh", GELU_TANH},
               {"relu", RELU},
               {"relu2", RELU_SQUARED}};
  for (const auto& one : known) {
    if (std::strcmp(name, one.name) == 0) {
      use = one.use;
      return true;
    }
  }
  PyErr_Format(PyExc_ValueError,
               "the activation is '%s' and must be silu, gelu, gelu_tanh, relu or relu2", name);
  return false;
}

bool add_linear(PyObject* module) {
  return add_type<Linear>(module, "asyncgen.native._kernels.Linear", make, methods,
                          "Linear(weight, bias, *, dtype, inputs, outputs, is_gated, uses_tiles,\n"
                          "matrices, activation)\n--\n\nA weight in panels, and its bias.");
}
