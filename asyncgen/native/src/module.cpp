// The Python module: each kernel as a function of numbers, pointers among them.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cpu.h"
#include "kernels.h"

namespace {

template <typename T>
T number(PyObject* value) {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(PyLong_AsVoidPtr(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(PyFloat_AsDouble(value));
  } else {
    return static_cast<T>(PyLong_AsLongLong(value));
  }
}

template <auto kernel, typename... Args, std::size_t... I>
PyObject* run(PyObject* const* args, void (*)(Args...), std::index_sequence<I...>) {
  std::tuple<Args...> numbers{number<Args>(args[I])...};
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS kernel(std::get<I>(numbers)...);
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

template <auto kernel, typename... Args>
PyObject* count_and_run(PyObject* const* args, Py_ssize_t count, void (*type)(Args...)) {
  if (count != sizeof...(Args)) {
    return PyErr_Format(PyExc_TypeError, "%zu numbers expected, got %zd", sizeof...(Args), count);
  }
  return run<kernel>(args, type, std::index_sequence_for<Args...>{});
}

template <auto kernel>
PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return count_and_run<kernel>(args, count, kernel);
}

PyObject* features(PyObject*, PyObject*) {
  return Py_BuildValue("{s:O,s:O,s:O}", "avx512", has_avx512() ? Py_True : Py_False, "avx512_bf16",
                       has_avx512_bf16() ? Py_True : Py_False, "amx_bf16",
                       has_amx_bf16() ? Py_True : Py_False);
}

#define KERNEL(name) {#name, reinterpret_cast<PyCFunction>(call<name>), METH_FASTCALL, nullptr}

PyMethodDef methods[] = {
    {"features", features, METH_NOARGS, nullptr},
    KERNEL(linear_f32),
    KERNEL(linear_bf16),
    KERNEL(linear_bf16_amx),
    KERNEL(rms_norm_f32),
    KERNEL(rms_norm_bf16),
    KERNEL(rotate_f32),
    KERNEL(rotate_bf16),
    KERNEL(attend_f32),
    KERNEL(attend_bf16),
    KERNEL(attend_bf16_amx),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() { return PyModule_Create(&module); }
