// Writes packed weights in the panels that linear_packed.h draws.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "linear_packed.h"
#include "objects.h"
#include "team.h"

namespace {

constexpr std::int64_t HALF = PANEL / 2, SUPER = 256;

// What a group of inputs has, in the order in which a panel has it.
enum Part { SUPER_SCALES, SUPER_MINIMUMS, SCALES, ZEROS, MINIMUMS, CODES, PARTS };

// One of the parts of some rows: where the first row's is, and how many bytes it has of a group.
struct Rows {
  const char* data;
  std::int64_t row_bytes;
};

struct Weight {
  Rows parts[PARTS];
  std::int64_t first;  // which of all rows is its first
};

struct Plan {
  std::vector<Weight> weights;
  const std::int64_t* rows;  // of each output of the panels, -1 where there is none
  char* panels;
  std::int64_t halves, half_bytes, group, groups;
  std::int64_t every[PARTS];  // a part is there before the first of so many groups
  std::int64_t items[PARTS];  // bytes of one, 0 where there is none
  bool has_table, shares;     // scales and minimums have half a byte each
};

// Codes of inputs 0 to 7 in four bits each, as those of the even ones, then those of the odd ones.
inline std::uint32_t evens_first(std::uint32_t codes) {
  std::uint32_t even = codes & 0x0f0f0f0f, odd = codes >> 4 & 0x0f0f0f0f;
  even = (even | even >> 4) & 0x00ff00ff;
  odd = (odd | odd >> 4) & 0x00ff00ff;
  even = (even | even >> 8) & 0xffff;
  odd = (odd | odd >> 8) & 0xffff;
  return even | odd << 16;
}

// Items of `count` inputs of 16 rows: all of the first, then all of the second.
template <typename Item, typename Change>
char* turn(const char* const (&from)[HALF], std::int64_t begin, std::int64_t count, char* to,
           Change change) {
  for (std::int64_t at = begin; at < begin + count; ++at, to += HALF * sizeof(Item)) {
    Item items[HALF];
    for (int row = 0; row < HALF; ++row) {
      std::memcpy(&items[row], from[row] + at * sizeof(Item), sizeof(Item));
    }
    for (int row = 0; row < HALF; ++row) items[row] = change(items[row]);
    std::memcpy(to, items, sizeof items);
  }
  return to;
}

template <typename Item>
char* turn(const char* const (&from)[HALF], std::int64_t begin, std::int64_t count, char* to) {
  return turn<Item>(from, begin, count, to, [](Item item) { return item; });
}

char* turn_items(const char* const (&from)[HALF], std::int64_t at, std::int64_t bytes, char* to) {
  if (bytes == 1) return turn<std::uint8_t>(from, at, 1, to);
  if (bytes == 2) return turn<std::uint16_t>(from, at, 1, to);
  return turn<std::uint32_t>(from, at, 1, to);
}

// A scale in the lower half of a byte and the minimum, which is negative, in the upper one.
char* turn_shared(const char* const (&scales)[HALF], const char* const (&minimums)[HALF],
                  std::int64_t at, char* to) {
  for (int row = 0; row < HALF; ++row) {
    const int scale = static_cast<signed char>(scales[row][at]);
    const int minimum = static_cast<signed char>(minimums[row][at]);
    *to++ = static_cast<char>(scale | -minimum << 4);
  }
  return to;
}

void write_half(const Plan& plan, std::int64_t half, const char* zeros) {
  const char* from[PARTS][HALF];
  for (int row = 0; row < HALF; ++row) {
    const std::int64_t number = plan.rows[half * HALF + row];
    const Weight* weight = nullptr;
    if (number >= 0) {
      const auto next = std::upper_bound(
          plan.weights.begin(), plan.weights.end(), number,
          [](std::int64_t row, const Weight& other) { return row < other.first; });
      weight = plan.weights.data() + (next - plan.weights.begin() - 1);
    }
    for (int part = 0; part < PARTS; ++part) {
      from[part][row] = zeros;
      if (weight == nullptr || plan.items[part] == 0) continue;
      const Rows& rows = weight->parts[part];
      from[part][row] = rows.data + (number - weight->first) * rows.row_bytes;
    }
  }
  char* to = plan.panels + half * plan.half_bytes;
  for (std::int64_t group = 0; group < plan.groups; ++group) {
    for (int part = 0; part < CODES; ++part) {
      if (plan.items[part] == 0 || group % plan.every[part] != 0) continue;
      const std::int64_t at = group / plan.every[part];
      if (part == SCALES && plan.shares) {
        to = turn_shared(from[SCALES], from[MINIMUMS], at, to);
      } else if (part != MINIMUMS || !plan.shares) {
        to = turn_items(from[part], at, plan.items[part], to);
      }
    }
    if (plan.has_table) {
      const std::int64_t words = plan.group / 8;
      to = turn<std::uint32_t>(from[CODES], group * words, words, to, evens_first);
    } else {
      to = turn<std::uint16_t>(from[CODES], group * plan.group / 2, plan.group / 2, to);
    }
  }
}

std::int64_t ceil_of(std::int64_t count, std::int64_t of) { return (count + of - 1) / of; }

// What a part may be made of, and how many of a row there are.
bool read_part(PyObject* tensor, int part, Plan& plan, Weight& weight, std::int64_t& outputs) {
  if (tensor == Py_None && part != SCALES && part != CODES) return true;
  const struct {
    const char* dtype;
    std::int64_t bytes;
  } known[] = {{"torch.float16", 2}, {"torch.bfloat16", 2}, {"torch.float32", 4},
               {"torch.int8", 1},    {"torch.uint8", 1}};
  View view;
  if (!look_at(tensor, view)) return false;
  std::int64_t item = 0;
  for (const auto& one : known) {
    if (is_dtype(view.dtype, one.dtype)) item = one.bytes;
  }
  std::int64_t count = ceil_of(plan.groups, plan.every[part]);
  if (part == CODES) count = plan.groups * plan.group / (plan.has_table ? 2 : 1);
  const bool is_first = plan.weights.empty();
  if (is_first) plan.items[part] = item;
  if (part == SUPER_SCALES) outputs = view.sizes[0];
  if (item == 0 || item != plan.items[part] || (part == CODES && item != 1) || view.dims != 2 ||
      view.sizes[1] != count || (outputs >= 0 && view.sizes[0] != outputs) || !view.is_cpu ||
      !view.is_dense_from(1) || view.strides[0] < 0) {
    refuse("a part of a weight is", tensor, "[outputs, %lld] on cpu is expected, as of the first",
           static_cast<long long>(count));
    return false;
  }
  outputs = view.sizes[0];
  weight.parts[part] = {view.data, view.strides[0] * item};
  return true;
}

bool read_weights(PyObject* weights, Plan& plan, std::int64_t& total) {
  Reference items(PySequence_Tuple(weights));
  if (!items) return false;
  total = 0;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items.get()); ++at) {
    PyObject* parts = PyTuple_GET_ITEM(items.get(), at);
    if (!is_tuple("a weight", parts)) return false;
    Weight weight{};
    weight.first = total;
    std::int64_t outputs = -1;
    if (PyTuple_GET_SIZE(parts) != PARTS) {
      PyErr_Format(PyExc_ValueError, "a weight has %d parts", PARTS);
      return false;
    }
    for (int part = 0; part < PARTS; ++part) {
      PyObject* tensor = PyTuple_GET_ITEM(parts, part);
      if (at > 0 && (tensor == Py_None) != (plan.items[part] == 0)) {
        PyErr_SetString(PyExc_ValueError, "weights that lie together have the same parts");
        return false;
      }
      if (!read_part(tensor, part, plan, weight, outputs)) return false;
    }
    plan.weights.push_back(weight);
    total += outputs;
  }
  if (!plan.weights.empty()) return true;
  PyErr_SetString(PyExc_ValueError, "there is no weight");
  return false;
}

std::int64_t bytes_of_half(const Plan& plan) {
  std::int64_t bytes = plan.groups * plan.group * HALF / (plan.has_table ? 2 : 1);
  for (int part = 0; part < CODES; ++part) {
    if (plan.shares && part == MINIMUMS) continue;
    bytes += ceil_of(plan.groups, plan.every[part]) * plan.items[part] * HALF;
  }
  return bytes;
}

PyObject* write_panels(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"panels",    "rows",   "weights",   "inputs", "group",
                                "has_table", "shares", "is_by_row", nullptr};
  PyObject *panels, *rows, *weights;
  long long inputs, group;
  int has_table, shares, is_by_row;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO$LLppp", const_cast<char**>(names), &panels,
                                   &rows, &weights, &inputs, &group, &has_table, &shares,
                                   &is_by_row)) {
    return nullptr;
  }
  if (inputs < 1 || group < 16 || group > MOST_GROUP || (group & (group - 1)) != 0) {
    return PyErr_Format(PyExc_ValueError, "there are no %lld inputs by groups of %lld", inputs,
                        group);
  }
  try {
    Plan plan{};
    plan.group = group;
    plan.groups = ceil_of(inputs, group);
    plan.has_table = has_table;
    plan.shares = shares;
    const std::int64_t own = is_by_row ? plan.groups : 1;
    const std::int64_t every[] = {SUPER / group, SUPER / group, own, own, own, 1};
    std::copy(every, every + PARTS, plan.every);
    std::int64_t total;
    if (!read_weights(weights, plan, total)) return nullptr;
    if (shares && (plan.items[SCALES] != 1 || plan.items[MINIMUMS] != 1)) {
      PyErr_SetString(PyExc_ValueError, "scales and minimums that share bytes are of 8 bits");
      return nullptr;
    }
    plan.half_bytes = bytes_of_half(plan);
    View to, chosen;
    if (!look_at(panels, to) || !look_at(rows, chosen)) return nullptr;
    if (to.dims != 3 || !to.has_shape({to.sizes[0], 2, plan.half_bytes}) || !to.is_cpu ||
        !is_dtype(to.dtype, "torch.uint8") || !to.is_dense_from(0)) {
      return refuse("panels are", panels, "[panels, 2, %lld] torch.uint8 on cpu is expected",
                    static_cast<long long>(plan.half_bytes));
    }
    if (!chosen.has_shape({to.sizes[0] * PANEL}) || !is_dtype(chosen.dtype, "torch.int64") ||
        !chosen.is_cpu || !chosen.is_dense_from(0)) {
      return refuse("rows are", rows, "[%lld] torch.int64 on cpu is expected",
                    static_cast<long long>(to.sizes[0] * PANEL));
    }
    plan.rows = chosen.as<std::int64_t>();
    plan.panels = to.data;
    plan.halves = to.sizes[0] * 2;
    for (std::int64_t at = 0; at < to.sizes[0] * PANEL; ++at) {
      if (plan.rows[at] >= -1 && plan.rows[at] < total) continue;
      return PyErr_Format(PyExc_IndexError, "row %lld of %lld",
                          static_cast<long long>(plan.rows[at]), static_cast<long long>(total));
    }
    const std::vector<char> zeros(static_cast<std::size_t>(plan.groups * group) * 4);
    if (!run_unlocked([&]() noexcept {
          for_rows(plan.halves, plan.half_bytes,
                   [&](std::int64_t half) { write_half(plan, half, zeros.data()); });
        })) {
      return nullptr;
    }
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"write_panels", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(write_panels)),
     METH_VARARGS | METH_KEYWORDS,
     "write_panels(panels, rows, weights, *, inputs, group, has_table, shares, is_by_row)\n--\n\n"
     "Write those rows, int64, of packed weights one below the other; -1 becomes zeros."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_panels(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
