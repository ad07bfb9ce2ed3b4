// The Python module: a type for each kernel, and what the processor can do.

#include <omp.h>

#include "cpu.h"
#include "objects.h"
#include "team.h"

namespace {

PyObject* features(PyObject*, PyObject*) {
  return Py_BuildValue("{s:O,s:O,s:O,s:O}", "avx512", has_avx512() ? Py_True : Py_False,
                       "avx512_bf16", has_avx512_bf16() ? Py_True : Py_False, "amx_bf16",
                       has_amx_bf16() ? Py_True : Py_False, "avx512_vnni",
                       has_avx512_vnni() ? Py_True : Py_False);
}

// OpenMP keeps a number for each thread: other threads of the process notice nothing.
PyObject* begin_team(PyObject*, PyObject* threads) {
  const long count = PyLong_AsLong(threads);
  if (count == -1 && PyErr_Occurred()) return nullptr;
  if (count < 1 || count > MOST_MEMBERS) {
    return PyErr_Format(PyExc_ValueError, "a team has 1 to %d threads, not %ld", MOST_MEMBERS, count);
  }
  set_team_size(static_cast<int>(count));
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  return PyLong_FromLong(before);
}

PyObject* end_team(PyObject*, PyObject* before) {
  const long count = PyLong_AsLong(before);
  if (count == -1 && PyErr_Occurred()) return nullptr;
  set_team_size(0);
  omp_set_num_threads(static_cast<int>(count));
  Py_RETURN_NONE;
}

PyObject* has_team(PyObject*, PyObject*) { return PyBool_FromLong(is_team_set()); }

PyMethodDef methods[] = {
    {"begin_team", begin_team, METH_O,
     "begin_team(threads, /)\n--\n\n"
     "Let kernels that this thread calls compute on so many threads, and OpenMP on this one alone.\n"
     "Return how many it would have used."},
    {"end_team", end_team, METH_O,
     "end_team(before, /)\n--\n\nLet both use so many threads as OpenMP used before."},
    {"has_team", has_team, METH_NOARGS,
     "has_team()\n--\n\nSay whether this thread is between `begin_team` and `end_team`."},
    {"features", features, METH_NOARGS, "features()\n--\n\nSay what the processor can do, by name."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() {
  Reference made(PyModule_Create(&module));
  if (!made || !add_linear(made.get()) || !add_packed(made.get()) ||
      !add_panels(made.get()) || !add_blocks(made.get()) || !add_rows(made.get()) ||
      !add_attention(made.get()) || !add_experts(made.get()) || !add_latent(made.get()) ||
      !add_states(made.get()) || !add_scans(made.get()) || !add_delta(made.get()) ||
      !add_convolution(made.get()) || !add_lightning(made.get()) ||
      !add_griffin(made.get()) || !add_layers(made.get())) {
    return nullptr;
  }
  return Py_NewRef(made.get());
}
