// `Attention`: the pages of all layers, and a step over them.

#include <algorithm>
#include <exception>
#include <utility>

#include "parts.h"

namespace {

// More than a model has layers.
constexpr Py_ssize_t MOST_TABLES = 1 << 16;

// More than a layer has.
constexpr long long MOST_HEADS = 1 << 20;

// The slopes of a layer's query heads, if it has any.
bool read_slopes(PyObject* numbers, std::int64_t num_heads, std::vector<float>& slopes) {
  if (numbers == Py_None) return true;
  Reference items(PySequence_Fast(numbers, "slopes must be a sequence"));
  if (!items) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.get());
  if (count != num_heads) {
    PyErr_Format(PyExc_ValueError, "there are %zd slopes for %lld heads", count,
                 static_cast<long long>(num_heads));
    return false;
  }
  for (Py_ssize_t at = 0; at < count; ++at) {
    const double slope = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items.get(), at));
    if (slope == -1.0 && PyErr_Occurred()) return false;
    slopes.push_back(static_cast<float>(slope));
  }
  return true;
}

// Takes a layer's keys, or its values, and how many pages there are if it is the first.
bool read_pages(Pages& made, PyObject* tensor, Reference& held, char*& at) {
  View view;
  if (!look_at(tensor, view)) return false;
  if (made.dtype == nullptr) {
    if (!read_kind(view.dtype, made.kind)) return false;
    made.dtype = view.dtype;
  }
  if (made.num_pages < 0) made.num_pages = view.dims > 0 ? view.sizes[0] / made.kv_heads : 0;
  const bool is_of = made.are_coded ? is_dtype(view.dtype, "torch.int8") : view.dtype == made.dtype;
  if (!view.has_shape({made.num_pages * made.kv_heads, made.page_size, made.size}) || !is_of ||
      !view.is_cpu || !view.is_dense_from(0)) {
    refuse("pages are", tensor, "[pages * %lld, %lld, %lld] is expected, of one dtype on cpu",
           static_cast<long long>(made.kv_heads), static_cast<long long>(made.page_size),
           static_cast<long long>(made.size));
    return false;
  }
  held = Reference::to(tensor);
  at = view.data;
  return true;
}

// Takes the scales of one or the other.
bool read_scales(const Pages& made, PyObject* tensor, Reference& held, float*& at) {
  View view;
  if (!look_at(tensor, view)) return false;
  if (!view.has_shape({made.num_pages * made.kv_heads, made.page_size}) || !view.is_cpu ||
      !is_dtype(view.dtype, "torch.float32") || !view.is_dense_from(0)) {
    refuse("scales are", tensor, "[%lld, %lld] float32 on cpu is expected",
           static_cast<long long>(made.num_pages * made.kv_heads),
           static_cast<long long>(made.page_size));
    return false;
  }
  held = Reference::to(tensor);
  at = view.as<float>();
  return true;
}

// A layer's (keys, values), and where these are codes their scales behind them.
bool read_store(Pages& made, PyObject* item, PagedLayer& layer) {
  PyObject *keys, *values, *key_scales = nullptr, *value_scales = nullptr;
  if (!is_tuple("what a layer keeps", item)) return false;
  if (made.are_coded ? !PyArg_ParseTuple(item, "OOOO", &keys, &values, &key_scales, &value_scales)
                     : !PyArg_ParseTuple(item, "OO", &keys, &values)) {
    return false;
  }
  layer.key_scales_at = layer.value_scales_at = nullptr;
  if (!read_pages(made, keys, layer.keys, layer.keys_at) ||
      !read_pages(made, values, layer.values, layer.values_at)) {
    return false;
  }
  return !made.are_coded ||
         (read_scales(made, key_scales, layer.key_scales, layer.key_scales_at) &&
          read_scales(made, value_scales, layer.value_scales, layer.value_scales_at));
}

// One layer's ((keys, values), window, is_chunked, scale, cap, slopes, has_sinks,
// table).
bool read_layer(Pages& made, PyObject* item) {
  PyObject *store, *slopes;
  long long window;
  int is_chunked, has_sinks;
  float scale, cap;
  Py_ssize_t table;
  if (!is_tuple("a layer", item) ||
      !PyArg_ParseTuple(item, "OLpffOpn", &store, &window, &is_chunked, &scale, &cap, &slopes,
                        &has_sinks, &table)) {
    return false;
  }
  if (table < 0 || table >= MOST_TABLES) {
    PyErr_Format(PyExc_ValueError, "table is %zd and may be 0 to %zd", table, MOST_TABLES - 1);
    return false;
  }
  made.num_tables = std::max<std::int64_t>(made.num_tables, table + 1);
  PagedLayer layer{};
  layer.window = window;
  layer.is_chunked = is_chunked;
  layer.scale = scale;
  layer.cap = cap;
  layer.has_sinks = has_sinks;
  layer.table = table;
  if (!read_slopes(slopes, made.num_heads, layer.slopes)) return false;
  if (window < 0 || (is_chunked && window == 0) || !(cap >= 0)) {
    PyErr_Format(PyExc_ValueError, "window %lld and the cap of a layer cannot be computed", window);
    return false;
  }
  if (!read_store(made, store, layer)) return false;
  made.layers.push_back(std::move(layer));
  return true;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"layers",    "num_heads",  "kv_heads",   "head_dim",
                                "page_size", "uses_tiles", "codes_of", nullptr};
  PyObject *layers, *codes_of;
  long long num_heads, kv_heads, size, page_size;
  int uses_tiles;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$LLLLpO", const_cast<char**>(names), &layers,
                                   &num_heads, &kv_heads, &size, &page_size, &uses_tiles,
                                   &codes_of)) {
    return nullptr;
  }
  if (kv_heads < 1 || num_heads < 1 || num_heads > MOST_HEADS || num_heads % kv_heads != 0 ||
      size < 1 || size > MOST_SIZE || page_size < 1) {
    return PyErr_Format(PyExc_ValueError,
                        "%lld heads for %lld key heads, of size %lld (at most %lld), in pages of "
                        "%lld keys cannot be computed",
                        num_heads, kv_heads, size, static_cast<long long>(MOST_SIZE), page_size);
  }
  Reference items(PySequence_Fast(layers, "layers must be a sequence"));
  if (!items) return nullptr;
  try {
    Pages made{};
    made.num_tables = 1;
    made.num_pages = -1;
    made.num_tokens = -1;
    made.num_heads = num_heads;
    made.kv_heads = kv_heads;
    made.size = size;
    made.page_size = page_size;
    made.are_coded = codes_of != Py_None;
    if (made.are_coded) {
      if (!read_kind(codes_of, made.kind)) return nullptr;
      made.dtype = codes_of;
    }
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(items.get()); ++at) {
      if (!read_layer(made, PySequence_Fast_GET_ITEM(items.get(), at))) return nullptr;
    }
    made.uses_tiles = uses_tiles && made.kind == Kind::BFLOAT16 && !made.are_coded;
    return box(type, std::move(made));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

#ifdef ASYNCGEN_CHECK
bool wrong(const char* what, std::int64_t row, std::int64_t number) {
  PyErr_Format(PyExc_RuntimeError, "row %lld of a step: %s %lld", static_cast<long long>(row), what,
               static_cast<long long>(number));
  return false;
}

// Whether a layer's rows are those of a step and every page that it sees exists.
bool is_safe(const Pages& pages, const PagedLayer& layer, const Numbers& rows, const Numbers& table,
             std::int64_t tokens) {
  const std::int64_t num_rows = rows.count() / 4 / pages.num_tables;
  const Row* row = reinterpret_cast<const Row*>(rows.data()) + layer.table * num_rows;
  std::int64_t token = 0;
  for (std::int64_t number = 0; number < num_rows; ++number, ++row) {
    if (row->token != token) return wrong("it does not begin where the last one ends,", number, token);
    if (row->count < 1) return wrong("tokens are", number, row->count);
    if (row->start < 0) return wrong("it starts at", number, row->start);
    const std::int64_t end = (row->start + row->count - 1) / pages.page_size + 1;
    const std::int64_t seen =
        layer.window == 0 ? 0 : std::max<std::int64_t>(row->start + 1 - layer.window, 0);
    const std::int64_t first = seen / pages.page_size;
    if (row->pages + first < 0 || row->pages + end > table.count())
      return wrong("its page table is too short for", number, end);
    for (std::int64_t at = first; at < end; ++at) {
      const std::int64_t page = table.data()[row->pages + at];
      if (page < 0 || page >= pages.num_pages) return wrong("there is no page", number, page);
    }
    token += row->count;
  }
  return token == tokens || wrong("tokens in all are", num_rows, token);
}
#endif

// The rows of a step by the table of a layer, and how many they are.
std::pair<const Row*, std::int64_t> rows_of(const Pages& pages, const PagedLayer& layer) {
  const std::int64_t count = pages.rows.count() / 4 / pages.num_tables;
  return {reinterpret_cast<const Row*>(pages.rows.data()) + layer.table * count, count};
}

template <typename T>
Attention<T> step_of(const Pages& pages, const PagedLayer& layer, const char* heads,
                     std::int64_t stride, const float* sinks,
                     const std::vector<Row>* asked = nullptr) {
  const auto [rows, num_rows] = rows_of(pages, layer);
  return {reinterpret_cast<const Head<T>*>(heads),
          stride,
          reinterpret_cast<Head<T>*>(pages.out_at),
          {reinterpret_cast<Page<T>*>(layer.keys_at), layer.key_scales_at},
          {reinterpret_cast<Page<T>*>(layer.values_at), layer.value_scales_at},
          rows,
          asked == nullptr ? rows : asked->data(),
          pages.pages.data(),
          num_rows,
          asked == nullptr ? num_rows : static_cast<std::int64_t>(asked->size()),
          pages.num_pages,
          pages.num_heads,
          pages.kv_heads,
          pages.size,
          pages.page_size,
          layer.window,
          layer.is_chunked,
          layer.scale,
          layer.cap,
          layer.slopes.empty() ? nullptr : layer.slopes.data(),
          sinks};
}

// Divides the work of each layer, and takes the memory that any of them needs.
void divide_work(Pages& pages) {
  const PagedLayer* like = nullptr;
  std::int64_t needed = 0;
  for (PagedLayer& layer : pages.layers) {
    if (like != nullptr && like->window == layer.window &&
        like->is_chunked == layer.is_chunked) {
      layer.division = like->division;
    } else {
      layer.division = for_kind(pages.kind, [&](auto number) {
        return divide(step_of<decltype(number)>(pages, layer, nullptr, 0, nullptr));
      });
    }
    like = &layer;
    needed = std::max(needed, layer.division.memory);
  }
  if (pages.memory.size() < static_cast<std::size_t>(needed)) pages.memory.resize(needed);
}

PyObject* lay_out(PyObject* self, PyObject* const* args) {
  Pages& pages = unbox<Pages>(self);
  Numbers rows, table;
  View out;
  if (!rows.read(args[0]) || !table.read(args[1]) || !look_at(args[2], out)) return nullptr;
  Hold hold(pages);
  if (!hold) return nullptr;
  if (rows.count() % (4 * pages.num_tables) != 0) {
    return PyErr_Format(PyExc_ValueError,
                        "rows are four numbers each in each of %lld tables, not %lld in all",
                        static_cast<long long>(pages.num_tables),
                        static_cast<long long>(rows.count()));
  }
  if (out.dims != 2 || out.sizes[1] != pages.num_heads * pages.size || out.dtype != pages.dtype ||
      !out.is_cpu || !out.is_dense_from(0)) {
    return refuse("results are", args[2], "[tokens, %lld] %S on cpu is expected",
                  static_cast<long long>(pages.num_heads * pages.size), pages.dtype);
  }
  if ((rows.count() == 0) != (out.sizes[0] == 0)) {
    return PyErr_Format(PyExc_ValueError, "there are %lld rows for %lld tokens",
                        static_cast<long long>(rows.count() / 4 / pages.num_tables),
                        static_cast<long long>(out.sizes[0]));
  }
#ifdef ASYNCGEN_CHECK
  for (const PagedLayer& layer : pages.layers) {
    if (!is_safe(pages, layer, rows, table, out.sizes[0])) return nullptr;
  }
  if (!lies_within(args[2], out, item_size(pages.kind))) return nullptr;
#endif
  pages.rows = std::move(rows);
  pages.pages = std::move(table);
  pages.out = Reference::to(args[2]);
  pages.out_at = out.data;
  pages.num_tokens = out.sizes[0];
  try {
    divide_work(pages);
  } catch (const std::exception&) {  // bad_alloc or length_error
    pages.num_tokens = -1;
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

// The sinks that a block hands over, if its layer has any.
bool read_sinks(const Pages& pages, const PagedLayer& layer, PyObject* tensor, View& sinks) {
  sinks.data = nullptr;
  if (layer.has_sinks == (tensor != Py_None)) {
    if (!layer.has_sinks) return true;
    Kind kind;
    if (!look_at(tensor, sinks) || !read_kind(sinks.dtype, kind)) return false;
    if (sinks.has_shape({pages.num_heads}) && kind == Kind::FLOAT32 && sinks.is_cpu &&
        sinks.is_dense_from(0)) {
      return true;
    }
    refuse("sinks are", tensor, "[%lld] float32 on cpu is expected",
           static_cast<long long>(pages.num_heads));
    return false;
  }
  PyErr_SetString(PyExc_ValueError, layer.has_sinks ? "this layer has sinks, and none are given"
                                                    : "this layer has no sinks, and some are given");
  return false;
}

PyObject* attend(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 && count != 3) {
    return PyErr_Format(PyExc_TypeError, "2 or 3 arguments expected, got %zd", count);
  }
  Pages& pages = unbox<Pages>(self);
  const Py_ssize_t number = PyLong_AsSsize_t(args[0]);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  if (number < 0 || number >= static_cast<Py_ssize_t>(pages.layers.size())) {
    return PyErr_Format(PyExc_IndexError, "layer is %zd and there are %zu", number,
                        pages.layers.size());
  }
  View heads;
  Hold hold(pages);
  if (!hold || !look_at(args[1], heads)) return nullptr;
  if (!heads.has_shape({pages.num_tokens, pages.num_heads + 2 * pages.kv_heads, pages.size}) ||
      heads.dtype != pages.dtype || !heads.is_cpu) {
    return refuse("heads are", args[1], "the step that was laid out has [%lld, %lld, %lld] %S",
                  static_cast<long long>(pages.num_tokens),
                  static_cast<long long>(pages.num_heads + 2 * pages.kv_heads),
                  static_cast<long long>(pages.size), pages.dtype);
  }
  Reference dense = Reference::to(args[1]);
  if (!heads.is_dense_from(0)) {
    dense = Reference(PyObject_CallMethod(args[1], "contiguous", nullptr));
    if (!dense || !look_at(dense.get(), heads)) return nullptr;
  }
#ifdef ASYNCGEN_CHECK
  if (!lies_within(dense.get(), heads, item_size(pages.kind))) return nullptr;
#endif
  const PagedLayer& layer = pages.layers[number];
  View sinks;
  if (!read_sinks(pages, layer, count == 3 ? args[2] : Py_None, sinks)) return nullptr;
#ifdef ASYNCGEN_CHECK
  if (layer.has_sinks && !lies_within(args[2], sinks, sizeof(float))) return nullptr;
#endif
  const float* sinks_at = reinterpret_cast<const float*>(sinks.data);
  const bool is_done =
      run_unlocked([&]() noexcept { attend_in(pages, layer, heads.data, heads.strides[0], sinks_at); });
  return is_done ? Py_NewRef(pages.out.get()) : nullptr;
}

PyMethodDef methods[] = {
    METHOD("lay_out", lay_out, 3,
           "lay_out($self, rows, pages, out, /)\n--\n\n"
           "Say what the next step computes, the rows of one page table after another, and where its "
           "results go."),
    {"attend", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(attend)), METH_FASTCALL,
     "attend($self, layer, heads, sinks=None, /)\n--\n\nAttend in one layer, and return `out`."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Hold::Hold(Pages& pages) : pages_(pages.is_busy ? nullptr : &pages) {
  if (pages.is_busy) PyErr_SetString(PyExc_RuntimeError, "another thread attends over these pages");
  pages.is_busy = true;
}

Asked ask(Pages& pages, const PagedLayer& layer, const std::int64_t* tokens, std::int64_t count) {
  const auto [rows, num_rows] = rows_of(pages, layer);
  Asked asked{};
  std::vector<std::int64_t> sorted(tokens, tokens + count);
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  const Row* last_row = nullptr;
  for (const std::int64_t token : sorted) {
    const auto begins_behind = [](std::int64_t place, const Row& row) { return place < row.token; };
    const Row* row = std::upper_bound(rows, rows + num_rows, token, begins_behind) - 1;
    if (row == last_row && asked.rows.back().token + asked.rows.back().count == token) {
      ++asked.rows.back().count;
    } else {
      asked.rows.push_back({token, 1, row->start + token - row->token, row->pages});
    }
    last_row = row;
  }
  asked.division = for_kind(pages.kind, [&](auto number) {
    return divide(step_of<decltype(number)>(pages, layer, nullptr, 0, nullptr, &asked.rows));
  });
  const auto needed = static_cast<std::size_t>(asked.division.memory);
  if (pages.memory.size() < needed) pages.memory.resize(needed);
  return asked;
}

// Stands for a type.
template <typename T>
struct Of {
  using Type = T;
};

void attend_in(Pages& pages, const PagedLayer& layer, const char* heads, std::int64_t stride,
               const float* sinks, const Asked* asked) noexcept {
  float* memory = pages.memory.data();
  const std::vector<Row>* rows = asked == nullptr ? nullptr : &asked->rows;
  const Division& division = asked == nullptr ? layer.division : asked->division;
  const auto step = [&](auto number) {
    return step_of<typename decltype(number)::Type>(pages, layer, heads, stride, sinks, rows);
  };
  if (pages.uses_tiles) return attend_amx(step(Of<bf16>{}), division, memory);
  for_kind(pages.kind, [&](auto number) {
    using T = decltype(number);
    if (pages.are_coded) {
      attend(step(Of<Coded<T>>{}), division, memory);
    } else {
      attend(step(Of<T>{}), division, memory);
    }
  });
}

bool add_attention(PyObject* module) {
  return add_type<Pages>(module, "asyncgen.native._kernels.Attention", make, methods,
                         "Attention(layers, *, num_heads, kv_heads, head_dim, page_size, uses_tiles, "
                         "codes_of)\n"
                         "--\n\nAttention over the pages of all layers.");
}
