// The Python module: a type for each kernel, and what the processor can do.

#include "cpu.h"
#include "objects.h"

namespace {

PyObject* features(PyObject*, PyObject*) {
  return Py_BuildValue("{s:O,s:O,s:O}", "avx512", has_avx512() ? Py_True : Py_False, "avx512_bf16",
                       has_avx512_bf16() ? Py_True : Py_False, "amx_bf16",
                       has_amx_bf16() ? Py_True : Py_False);
}

PyMethodDef methods[] = {
    {"features", features, METH_NOARGS, "features()\n--\n\nSay what the processor can do, by name."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() {
  Reference made(PyModule_Create(&module));
  if (!made || !add_linear(made.get()) || !add_rows(made.get()) || !add_attention(made.get())) {
    return nullptr;
  }
  return Py_NewRef(made.get());
}
