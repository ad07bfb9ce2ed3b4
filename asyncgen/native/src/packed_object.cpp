// `Linear` with weights of 4 and 8 bits, and one that consists of others.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>

#include "parts.h"

namespace {

constexpr std::int64_t MOST_OF_ONE = 1 << 30;
constexpr std::int64_t SUPER = 256, HALF = PANEL / 2;

// Rows that become integers at once.
constexpr std::int64_t MOST_ROWS = 256;

// Each thread that multiplies has memory for the rows of one product after another.
thread_local Memory integers;

std::int64_t bytes_of(Scale scale) {
  const std::int64_t bytes[] = {0, 2, 2, 4, 1, 1};
  return HALF * bytes[static_cast<int>(scale)];
}

bool read_scale(const char* name, Scale& scale) {
  const struct {
    const char* name;
    Scale scale;
  } known[] = {{"none", Scale::NONE},
               {"float16", Scale::FLOAT16},
               {"bfloat16", Scale::BFLOAT16},
               {"float32", Scale::FLOAT32},
               {"int8", Scale::INT8},
               {"int4", Scale::INT4}};
  for (const auto& one : known) {
    if (std::strcmp(name, one.name) != 0) continue;
    scale = one.scale;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "scales are '%s', which is not known", name);
  return false;
}

// Bytes of half a panel.
std::int64_t half_bytes(const PackedLayout& layout) {
  const std::int64_t scales = (layout.groups + layout.groups_per_scale - 1) / layout.groups_per_scale;
  const std::int64_t supers = (layout.groups + layout.groups_per_super - 1) / layout.groups_per_super;
  const std::int64_t large = (is_two_level(layout.scales) + is_two_level(layout.minimums)) *
                             bytes_of(Scale::FLOAT16);
  const std::int64_t small = bytes_of(layout.scales) +
                             (layout.minimums == Scale::INT4 ? 0 : bytes_of(layout.minimums)) +
                             (layout.has_zeros ? bytes_of(Scale::INT8) : 0);
  const std::int64_t codes = layout.group * HALF / (layout.has_table ? 2 : 1);
  return scales * small + supers * large + layout.groups * codes;
}

bool read_table(PyObject* table, PackedLayout& layout) {
  layout.has_table = table != Py_None;
  layout.least = layout.most = 0;
  if (!layout.has_table) return true;
  Reference numbers(PySequence_Tuple(table));
  if (!numbers) return false;
  if (PyTuple_GET_SIZE(numbers.get()) != 16) {
    PyErr_SetString(PyExc_ValueError, "a table has 16 numbers");
    return false;
  }
  for (int at = 0; at < 32; ++at) {
    const long number = PyLong_AsLong(PyTuple_GET_ITEM(numbers.get(), at % 16));
    if (number == -1 && PyErr_Occurred()) return false;
    if (number < -INT16_MAX || number > INT16_MAX) {
      PyErr_Format(PyExc_ValueError, "%ld in a table is beyond 16 bits", number);
      return false;
    }
    layout.table[at] = static_cast<std::int16_t>(number);
    layout.least = std::min<std::int64_t>(layout.least, number);
    layout.most = std::max<std::int64_t>(layout.most, number);
  }
  return true;
}

bool read_order(PyObject* order, std::int64_t inputs, PackedLayout& layout) {
  layout.order = nullptr;
  if (order == Py_None) return true;
  View view;
  if (!look_at(order, view)) return false;
  if (!view.has_shape({inputs}) || !is_dtype(view.dtype, "torch.int32") || !view.is_cpu ||
      !view.is_dense_from(0)) {
    refuse("the order is", order, "[%lld] torch.int32 on cpu is expected",
           static_cast<long long>(inputs));
    return false;
  }
  layout.order = view.as<std::int32_t>();
  for (std::int64_t at = 0; at < inputs; ++at) {
    if (layout.order[at] >= 0 && layout.order[at] < inputs) continue;
    PyErr_Format(PyExc_ValueError, "the order names input %d of %lld",
                 static_cast<int>(layout.order[at]), static_cast<long long>(inputs));
    return false;
  }
  return true;
}

bool read_bias(PyObject* bias, std::int64_t panels, Linear& made) {
  made.bias_at = nullptr;
  if (bias == Py_None) return true;
  View view;
  Kind kind;
  if (!look_at(bias, view) || !read_kind(view.dtype, kind)) return false;
  if (!view.has_shape({panels, 2, HALF}) || kind != Kind::FLOAT32 || !view.is_cpu ||
      !view.is_dense_from(0)) {
    refuse("the bias is", bias, "[%lld, 2, %lld] in float32 is expected",
           static_cast<long long>(panels), static_cast<long long>(HALF));
    return false;
  }
  made.bias_at = view.as<float>();
  return true;
}

PyObject* packed_linear(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"data",  "bias",   "dtype",    "inputs", "outputs",   "is_gated",
                                "group", "table",  "scales",   "zeros",  "minimums",  "is_by_row",
                                "order", "activation", "matrices", nullptr};
  PyObject *data, *bias, *dtype, *table, *order;
  long long inputs, outputs, group, matrices;
  int is_gated, has_zeros, is_by_row;
  const char *scales, *minimums, *activation;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO$OLLpLOspspOzL", const_cast<char**>(names),
                                   &data, &bias, &dtype, &inputs, &outputs, &is_gated, &group,
                                   &table, &scales, &has_zeros, &minimums, &is_by_row, &order,
                                   &activation, &matrices)) {
    return nullptr;
  }
  if (inputs < 1 || inputs > MOST_OF_ONE || outputs < 1 || outputs > MOST_OF_ONE ||
      matrices < 1 || matrices > MOST_OF_ONE || (is_gated && outputs % 2 != 0) ||
      (group != 16 && group != 32 && group != 64 && group != MOST_GROUP)) {
    return PyErr_Format(PyExc_ValueError, "there are no %lld weights of %lld by %lld by groups of %lld",
                        matrices, outputs, inputs, group);
  }
  try {
    Linear made{};
    PackedLayout layout{};
    if (!read_activation(activation, is_gated, made.use) || !read_kind(dtype, made.kind) ||
        !read_scale(scales, layout.scales) || !read_scale(minimums, layout.minimums) ||
        !read_table(table, layout) || !read_order(order, inputs, layout)) {
      return nullptr;
    }
    layout.group = group;
    layout.groups = (inputs + group - 1) / group;
    layout.groups_per_super = SUPER / group;
    layout.groups_per_scale = is_by_row ? layout.groups : 1;
    layout.has_zeros = has_zeros;
    layout.takes_bytes = may_take_bytes(layout, made.kind == Kind::BFLOAT16);
    const bool has_levels = is_two_level(layout.scales) || is_two_level(layout.minimums);
    const bool shares = layout.scales == Scale::INT4;
    if (layout.scales == Scale::NONE || (is_by_row && has_levels) ||
        shares != (layout.minimums == Scale::INT4) || (shares && has_zeros)) {
      PyErr_SetString(PyExc_ValueError,
                      "scales are floats, a row's too, or two-level by group; those of four bits "
                      "share bytes with minimums, and no zero points are there");
      return nullptr;
    }
    layout.half_bytes = half_bytes(layout);
    const std::int64_t panels = (outputs + PANEL - 1) / PANEL;
    View view;
    if (!look_at(data, view)) return nullptr;
    if (!view.has_shape({matrices * panels, 2, layout.half_bytes}) || !is_dtype(view.dtype, "torch.uint8") ||
        !view.is_cpu || !view.is_dense_from(0)) {
      return refuse("the weight is", data, "[%lld, 2, %lld] torch.uint8 on cpu is expected",
                    static_cast<long long>(matrices * panels),
                    static_cast<long long>(layout.half_bytes));
    }
    if (!read_bias(bias, matrices * panels, made)) return nullptr;
    made.dtype = dtype;
    made.stored = Stored::PACKED;
    made.weight = Reference(PyTuple_Pack(2, data, order));
    if (!made.weight) return nullptr;
    made.bias = Reference::to(bias);
    made.weight_at = view.data;
    made.is_gated = is_gated;
    made.inputs = inputs;
    made.outputs = outputs;
    made.matrices = matrices;
    made.matrix_size = 1;
    for (long long matrix = 0; matrix < matrices; ++matrix) {
      layout.data = view.data + matrix * panels * 2 * layout.half_bytes;
      made.packed.push_back(layout);
    }
    return box(type_of<Linear>, std::move(made));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

PyObject* joined_linear(PyObject*, PyObject* parts) {
  Reference items(PySequence_Tuple(parts));
  if (!items) return nullptr;
  try {
    Linear made{};
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items.get()); ++at) {
      Linear* part = unbox_as<Linear>(PyTuple_GET_ITEM(items.get(), at));
      if (part == nullptr) return nullptr;
      if (made.joined.empty()) {
        made.dtype = part->dtype;
        made.kind = part->kind;
        made.inputs = part->inputs;
        made.use = part->use;
      }
      if (part->is_gated || part->matrices != 1 || part->kind != made.kind ||
          part->inputs != made.inputs || part->use != made.use) {
        PyErr_SetString(PyExc_ValueError,
                        "what is joined has the same inputs, dtype and activation, and no gate");
        return nullptr;
      }
      made.outputs += part->outputs;
      made.joined.push_back(part);
    }
    if (made.joined.empty() || made.outputs > MOST_OF_ONE) {
      PyErr_SetString(PyExc_ValueError, "there is nothing to join, or too much");
      return nullptr;
    }
    made.stored = Stored::JOINED;
    made.matrices = 1;
    made.weight = std::move(items);
    return box(type_of<Linear>, std::move(made));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

template <typename T>
void multiply_rows(const Linear& linear, const Rows& x, const Rows& out, Use use) noexcept {
  const std::int64_t columns = linear.outputs >> is_gate(use);
  for (std::int64_t first = 0; first < x.count; first += MOST_ROWS) {
    const std::int64_t count = std::min(MOST_ROWS, x.count - first);
    T* to = reinterpret_cast<T*>(out.data) + first * out.stride;
    const std::int64_t bytes = packed_bytes(linear.packed[0], count);
    if (!integers.hold(static_cast<std::size_t>(bytes))) {
      for (std::int64_t row = 0; row < count; ++row) {
        std::memset(to + row * out.stride, 0xff, static_cast<std::size_t>(columns) * sizeof(T));
      }
      continue;
    }
    const T* from = reinterpret_cast<const T*>(x.data) + first * x.stride;
    linear_packed(Product<T, PackedLayout>{from, x.stride, count, linear.inputs, linear.outputs,
                                           linear.packed.data(), linear.bias_at, to, out.stride,
                                           use, 0.0f, 0.0f},
                  integers.data());
  }
}

template <typename T>
void multiply_groups(const Linear& linear, const Rows& x, const Rows& out, const Gate& gate,
                     const Groups& groups) noexcept {
  T* to = reinterpret_cast<T*>(out.data);
  const std::int64_t columns = linear.outputs >> is_gate(gate.use);
  const std::int64_t bytes = packed_bytes(linear.packed[0], x.count);
  if (!integers.hold(static_cast<std::size_t>(bytes))) {
    for (std::int64_t row = 0; row < x.count; ++row) {
      std::memset(to + row * out.stride, 0xff, static_cast<std::size_t>(columns) * sizeof(T));
    }
    return;
  }
  const Product<T, PackedLayout> all{reinterpret_cast<const T*>(x.data), x.stride, x.count,
                                     linear.inputs, linear.outputs, linear.packed.data(),
                                     linear.bias_at, to, out.stride, gate.use, gate.alpha,
                                     gate.limit};
  linear_packed(Grouped<T, PackedLayout>{all, linear.matrix_size, groups.groups, groups.count,
                                         groups.pieces},
                integers.data());
}

PyMethodDef functions[] = {
    {"packed_linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(packed_linear)),
     METH_VARARGS | METH_KEYWORDS,
     "packed_linear(data, bias, *, dtype, inputs, outputs, is_gated, group, table, scales, zeros,\n"
     "minimums, is_by_row, order, activation, matrices)\n--\n\nA `Linear` with a weight of 4 or 8 bits."},
    {"joined_linear", joined_linear, METH_O,
     "joined_linear(parts, /)\n--\n\nA `Linear` of the outputs of several, in their order."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void multiply_packed(const Linear& linear, const Rows& x, const Rows& out, Use use) noexcept {
  for_kind(linear.kind, [&](auto number) { multiply_rows<decltype(number)>(linear, x, out, use); });
}

void multiply_packed(const Linear& linear, const Rows& x, const Rows& out, const Gate& gate,
                     const Groups& groups) noexcept {
  for_kind(linear.kind, [&](auto number) {
    multiply_groups<decltype(number)>(linear, x, out, gate, groups);
  });
}

bool add_packed(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
