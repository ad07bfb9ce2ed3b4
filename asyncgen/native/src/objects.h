// What the Python types of this module share: references, tensors seen from C++, and the way from
// Python into a kernel and back.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <initializer_list>
#include <new>
#include <utility>

#include "check.h"

// One reference to a Python object.
class Reference {
 public:
  Reference() = default;
  explicit Reference(PyObject* owned) : object_(owned) {}
  static Reference to(PyObject* borrowed) { return Reference(Py_XNewRef(borrowed)); }
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// What kernels compute with.
enum class Kind { FLOAT32, BFLOAT16, FLOAT16 };

// Reads torch.float32, torch.bfloat16 or torch.float16; anything else raises ValueError.
bool read_kind(PyObject* dtype, Kind& kind);

// Whether an object is torch's dtype of a name, such as "torch.uint8".
bool is_dtype(PyObject* object, const char* name);

inline std::int64_t item_size(Kind kind) { return kind == Kind::FLOAT32 ? 4 : 2; }

// A tensor as C++ sees it: where it lies, and how.
struct View {
  static constexpr int MOST_DIMS = 6;

  char* data;
  int dims;
  std::int64_t sizes[MOST_DIMS], strides[MOST_DIMS];
  PyObject* dtype;  // torch keeps its dtypes for ever
  bool is_cpu;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  bool has_shape(std::initializer_list<std::int64_t> shape) const;
  // Whether what lies behind a number of dimensions is in one piece.
  bool is_dense_from(int dim) const;
  // Whether rows that are dense share no memory with each other: they can be written to.
  bool has_rows_apart() const;
};

// Looks at a tensor; false, and a Python error, if it is none or has more dimensions.
bool look_at(PyObject* tensor, View& view);

// Whether an item is a tuple; false, and a Python error, if not.
bool is_tuple(const char* what, PyObject* item);

// Raises ValueError: "<what> is <shape> <dtype> on <device>; <taken>", the latter a format. Null.
PyObject* refuse(const char* what, PyObject* tensor, const char* taken, ...);

// Whether the whole of a view lies inside the memory of its tensor, at a multiple of the size of an
// item. Debug builds ask; others take torch's word. False comes with a Python error.
bool lies_within(PyObject* tensor, const View& view, std::int64_t item);

// Raises the first failure that the kernels of a debug build have noted; false if there is one.
bool no_check_failed();

// Runs `compute`, which throws nothing, without Python's lock. False: a debug build found an error.
template <typename Compute>
bool run_unlocked(Compute compute) noexcept {
  Py_BEGIN_ALLOW_THREADS compute();
  Py_END_ALLOW_THREADS return no_check_failed();
}

// A Python object that holds a C++ object.
template <typename T>
struct Box {
  PyObject_HEAD T value;
};

template <typename T>
T& unbox(PyObject* object) {
  return reinterpret_cast<Box<T>*>(object)->value;
}

// The type of objects that hold a T, once the module has it.
template <typename T>
inline PyTypeObject* type_of = nullptr;

// What an object holds, if it is one of those; null, and a Python error, if not.
template <typename T>
T* unbox_as(PyObject* object) {
  if (PyObject_TypeCheck(object, type_of<T>)) return &unbox<T>(object);
  PyErr_Format(PyExc_TypeError, "%R is not of the type %R", object, type_of<T>);
  return nullptr;
}

// A new object of a type, around a value.
template <typename T>
PyObject* box(PyTypeObject* type, T&& value) {
  PyObject* object = type->tp_alloc(type, 0);
  if (object != nullptr) new (&unbox<T>(object)) T(std::move(value));
  return object;
}

template <typename T>
void drop(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  unbox<T>(object).~T();
  type->tp_free(object);
  Py_DECREF(type);
}

// Adds a type to the module: `name` with its package, a constructor, methods, a line of help.
template <typename T>
bool add_type(PyObject* module, const char* name, newfunc make, PyMethodDef* methods,
              const char* help) {
  PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(drop<T>)},
                         {Py_tp_methods, methods},
                         {Py_tp_doc, const_cast<char*>(help)},
                         {0, nullptr}};
  PyType_Spec spec{name, sizeof(Box<T>), 0, Py_TPFLAGS_DEFAULT, slots};
  Reference type(PyType_FromSpec(&spec));
  if (!type || PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) != 0) {
    return false;
  }
  // The module keeps it.
  type_of<T> = reinterpret_cast<PyTypeObject*>(type.get());
  return true;
}

// A method of a fixed number of positional arguments.
template <PyObject* (*method)(PyObject*, PyObject* const*), int COUNT>
PyObject* with_arguments(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count == COUNT) return method(self, args);
  return PyErr_Format(PyExc_TypeError, "%d arguments expected, got %zd", COUNT, count);
}

#define METHOD(name, method, count, help)                                      \
  {name,                                                                       \
   reinterpret_cast<PyCFunction>(                                              \
       reinterpret_cast<void (*)()>(with_arguments<method, count>)),           \
   METH_FASTCALL, help}

bool add_linear(PyObject* module);
bool add_packed(PyObject* module);
bool add_panels(PyObject* module);
bool add_blocks(PyObject* module);
bool add_rows(PyObject* module);
bool add_attention(PyObject* module);
bool add_experts(PyObject* module);
bool add_latent(PyObject* module);
bool add_states(PyObject* module);
bool add_scans(PyObject* module);
bool add_delta(PyObject* module);
bool add_convolution(PyObject* module);
bool add_lightning(PyObject* module);
bool add_griffin(PyObject* module);
bool add_layers(PyObject* module);
