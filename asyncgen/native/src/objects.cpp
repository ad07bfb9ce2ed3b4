// Tensors seen from C++, through Python's own way to ask them: the module is compiled without
// torch's headers, and so fits any version of it.

#include "objects.h"

#include <cstdarg>
#include <cstring>

namespace {

// The names of attributes, made once.
PyObject* name_of(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) Py_FatalError("no memory for the name of an attribute");
  return name;
}

Reference ask(PyObject* object, PyObject* method) {
  return Reference(PyObject_CallMethodNoArgs(object, method));
}

bool read_numbers(PyObject* tuple, std::int64_t* numbers, int& count) {
  if (tuple == nullptr) return false;
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > View::MOST_DIMS) {
    PyErr_Format(PyExc_ValueError, "a tensor of at most %d dimensions is expected, not one of %R",
                 View::MOST_DIMS, tuple);
    return false;
  }
  count = static_cast<int>(PyTuple_GET_SIZE(tuple));
  for (int at = 0; at < count; ++at) numbers[at] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, at));
  return PyErr_Occurred() == nullptr;
}

bool read_number(const Reference& number, std::int64_t& read) {
  if (!number) return false;
  read = PyLong_AsLongLong(number.get());
  return PyErr_Occurred() == nullptr;
}

}  // namespace

bool is_dtype(PyObject* object, const char* name) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "torch.dtype") != 0) return false;
  Reference text(PyObject_Str(object));
  const bool is_it = text && PyUnicode_CompareWithASCIIString(text.get(), name) == 0;
  PyErr_Clear();
  return is_it;
}

bool read_kind(PyObject* dtype, Kind& kind) {
  Reference text(PyObject_Str(dtype));
  if (!text) return false;
  const bool is_dtype = std::strcmp(Py_TYPE(dtype)->tp_name, "torch.dtype") == 0;
  if (is_dtype && PyUnicode_CompareWithASCIIString(text.get(), "torch.float32") == 0) {
    kind = Kind::FLOAT32;
  } else if (is_dtype && PyUnicode_CompareWithASCIIString(text.get(), "torch.bfloat16") == 0) {
    kind = Kind::BFLOAT16;
  } else if (is_dtype && PyUnicode_CompareWithASCIIString(text.get(), "torch.float16") == 0) {
    kind = Kind::FLOAT16;
  } else {
    PyErr_Format(PyExc_ValueError,
                 "dtype is %R and must be torch.float32, torch.bfloat16 or torch.float16", dtype);
    return false;
  }
  return true;
}

bool look_at(PyObject* tensor, View& view) {
  static PyObject *const shape = name_of("shape"), *const stride = name_of("stride");
  static PyObject *const dtype = name_of("dtype"), *const is_cpu = name_of("is_cpu");
  static PyObject* const data_ptr = name_of("data_ptr");
  int strides = 0;
  if (!read_numbers(Reference(PyObject_GetAttr(tensor, shape)).get(), view.sizes, view.dims) ||
      !read_numbers(ask(tensor, stride).get(), view.strides, strides)) {
    return false;
  }
  Reference kind(PyObject_GetAttr(tensor, dtype)), here(PyObject_GetAttr(tensor, is_cpu));
  if (!kind || !here) return false;
  view.dtype = kind.get();
  view.is_cpu = here.get() == Py_True;
  if (!view.is_cpu) return true;  // its address would mean nothing here
  Reference address = ask(tensor, data_ptr);
  if (!address) return false;
  view.data = static_cast<char*>(PyLong_AsVoidPtr(address.get()));
  return PyErr_Occurred() == nullptr;
}

bool View::has_shape(std::initializer_list<std::int64_t> shape) const {
  if (dims != static_cast<int>(shape.size())) return false;
  int at = 0;
  for (const std::int64_t size : shape) {
    if (sizes[at++] != size) return false;
  }
  return true;
}

bool View::is_dense_from(int dim) const {
  std::int64_t expected = 1;
  for (int at = dims - 1; at >= dim; --at) {
    if (sizes[at] != 1 && strides[at] != expected) return false;
    expected *= sizes[at];
  }
  return true;
}

bool View::has_rows_apart() const {
  std::int64_t width = 1;
  for (int at = 1; at < dims; ++at) width *= sizes[at];
  return dims > 0 && (sizes[0] < 2 || strides[0] >= width);
}

bool is_tuple(const char* what, PyObject* item) {
  if (PyTuple_Check(item)) return true;
  PyErr_Format(PyExc_TypeError, "%s is a tuple, not %R", what, item);
  return false;
}

PyObject* refuse(const char* what, PyObject* tensor, const char* taken, ...) {
  std::va_list numbers;
  va_start(numbers, taken);
  Reference limits(PyUnicode_FromFormatV(taken, numbers));
  va_end(numbers);
  Reference size(PyObject_GetAttrString(tensor, "shape"));
  Reference shape(size ? PySequence_List(size.get()) : nullptr);
  Reference dtype(PyObject_GetAttrString(tensor, "dtype"));
  Reference device(PyObject_GetAttrString(tensor, "device"));
  if (limits && shape && dtype && device) {
    PyErr_Format(PyExc_ValueError, "%s %R %S on %S; %U", what, shape.get(), dtype.get(),
                 device.get(), limits.get());
  }
  return nullptr;
}

bool lies_within(PyObject* tensor, const View& view, std::int64_t item) {
  Reference storage(PyObject_CallMethod(tensor, "untyped_storage", nullptr));
  if (!storage) return false;
  std::int64_t begin = 0, bytes = 0;
  if (!read_number(Reference(PyObject_CallMethod(storage.get(), "data_ptr", nullptr)), begin) ||
      !read_number(Reference(PyObject_CallMethod(storage.get(), "nbytes", nullptr)), bytes)) {
    return false;
  }
  std::int64_t last = 0;
  for (int at = 0; at < view.dims; ++at) {
    if (view.sizes[at] == 0) return true;
    last += (view.sizes[at] - 1) * view.strides[at];
  }
  const std::int64_t first = reinterpret_cast<std::int64_t>(view.data);
  const std::int64_t end = first + (last + 1) * item;
  if (first % item == 0 && first >= begin && end <= begin + bytes) return true;
  PyErr_Format(PyExc_RuntimeError,
               "a kernel was given %lld bytes at %p, but the tensor's memory is %lld bytes at %p",
               static_cast<long long>(end - first), view.data, static_cast<long long>(bytes),
               reinterpret_cast<void*>(begin));
  return false;
}

bool no_check_failed() {
#ifdef ASYNCGEN_CHECK
  if (const char* failed = failed_check.exchange(nullptr)) {
    PyErr_Format(PyExc_RuntimeError, "a check inside a kernel failed: %s", failed);
    return false;
  }
#endif
  return true;
}
