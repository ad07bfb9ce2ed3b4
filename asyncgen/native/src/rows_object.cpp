// `Norm` and `Rotary`: what is done to each row by itself.

#include "kernels.h"
#include "objects.h"

namespace {

struct Norm {
  Reference weight;
  const float* weight_at;
  PyObject* dtype;
  Kind kind;
  std::int64_t groups, features;
  float eps;
};

struct Rotary {
  PyObject* dtype;
  Kind kind;
};

PyObject* make_norm(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"weight", "eps", "dtype", nullptr};
  PyObject *weight, *dtype;
  float eps;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$fO", const_cast<char**>(names), &weight,
                                   &eps, &dtype)) {
    return nullptr;
  }
  Norm made{};
  View view;
  Kind kind;
  if (!read_kind(dtype, made.kind) || !look_at(weight, view) || !read_kind(view.dtype, kind)) {
    return nullptr;
  }
  if (!view.is_cpu || kind != Kind::FLOAT32 || view.dims != 2 || !view.is_dense_from(0)) {
    return refuse("the weight is", weight, "a norm needs [groups, features] in float32");
  }
  made.weight = Reference::to(weight);
  made.weight_at = view.as<float>();
  made.dtype = dtype;
  made.groups = view.sizes[0];
  made.features = view.sizes[1];
  made.eps = eps;
  return box(type, std::move(made));
}

// [N, features] for one group, [N, groups, features] for several: each row in one piece.
bool is_taken(const Norm& norm, const View& x) {
  const bool fits = norm.groups == 1 ? x.dims == 2 || (x.dims == 3 && x.sizes[1] == 1)
                                     : x.dims == 3 && x.sizes[1] == norm.groups;
  return fits && x.sizes[x.dims - 1] == norm.features && x.dtype == norm.dtype && x.is_cpu &&
         x.is_dense_from(1);
}

template <typename T>
Normalisation<T> normalisation_of(const Norm& norm, const View& x, const View& out) {
  return {x.as<T>(),   x.strides[0], out.as<T>(),   out.strides[0], norm.weight_at,
          x.sizes[0], norm.groups,  norm.features, norm.eps};
}

PyObject* into(PyObject* self, PyObject* const* args) {
  const Norm& norm = unbox<Norm>(self);
  View x, out;
  if (!look_at(args[0], x) || !look_at(args[1], out)) return nullptr;
  const bool fits = is_taken(norm, x);
  if (!fits || !is_taken(norm, out) || out.sizes[0] != x.sizes[0]) {
    return refuse(fits ? "results are" : "rows are", args[fits],
                  "this norm takes [N, %lld], or [N, %lld, %lld], %S on cpu",
                  static_cast<long long>(norm.groups * norm.features),
                  static_cast<long long>(norm.groups), static_cast<long long>(norm.features),
                  norm.dtype);
  }
#ifdef ASYNCGEN_CHECK
  const std::int64_t item = item_size(norm.kind);
  if (!lies_within(args[0], x, item) || !lies_within(args[1], out, item)) return nullptr;
#endif
  const bool is_done = run_unlocked([&]() noexcept {
    if (norm.kind == Kind::FLOAT32) {
      rms_norm_f32(normalisation_of<float>(norm, x, out));
    } else {
      rms_norm_bf16(normalisation_of<bf16>(norm, x, out));
    }
  });
  return is_done ? Py_NewRef(args[1]) : nullptr;
}

PyObject* make_rotary(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"dtype", nullptr};
  Rotary made{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O", const_cast<char**>(names), &made.dtype) ||
      !read_kind(made.dtype, made.kind)) {
    return nullptr;
  }
  return box(type, std::move(made));
}

template <typename T>
Rotation<T> rotation_of(const View& heads, const View& cosines, const View& sines) {
  return {heads.as<T>(),      heads.strides[0], cosines.as<T>(),  sines.as<T>(),
          cosines.strides[0], heads.sizes[0],   heads.sizes[1], 2 * heads.sizes[3]};
}

// Cosines or sines of as many tokens: [N, 1, 2, D / 2].
bool are_angles(const View& angles, const View& heads) {
  return angles.has_shape({heads.sizes[0], 1, 2, heads.sizes[3]}) && angles.dtype == heads.dtype &&
         angles.is_cpu && angles.is_dense_from(1);
}

PyObject* turn(PyObject* self, PyObject* const* args) {
  const Rotary& rotary = unbox<Rotary>(self);
  View heads, cosines, sines;
  if (!look_at(args[0], heads) || !look_at(args[1], cosines) || !look_at(args[2], sines)) {
    return nullptr;
  }
  if (heads.dims != 4 || heads.sizes[2] != 2 || heads.dtype != rotary.dtype || !heads.is_cpu ||
      !heads.is_dense_from(1)) {
    return refuse("heads are", args[0], "[N, heads, 2, D / 2] %S on cpu are turned", rotary.dtype);
  }
  const bool are = are_angles(cosines, heads);
  if (!are || !are_angles(sines, heads) || cosines.strides[0] != sines.strides[0]) {
    return refuse("angles are", args[are ? 2 : 1], "these heads are turned by [%lld, 1, 2, %lld] %S",
                  static_cast<long long>(heads.sizes[0]), static_cast<long long>(heads.sizes[3]),
                  rotary.dtype);
  }
#ifdef ASYNCGEN_CHECK
  const std::int64_t item = item_size(rotary.kind);
  if (!lies_within(args[0], heads, item) || !lies_within(args[1], cosines, item) ||
      !lies_within(args[2], sines, item)) {
    return nullptr;
  }
#endif
  const bool is_done = run_unlocked([&]() noexcept {
    if (rotary.kind == Kind::FLOAT32) {
      rotate_f32(rotation_of<float>(heads, cosines, sines));
    } else {
      rotate_bf16(rotation_of<bf16>(heads, cosines, sines));
    }
  });
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef norm_methods[] = {
    METHOD("into", into, 2, "into($self, x, out, /)\n--\n\nNormalise rows into `out`, and return it."),
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef rotary_methods[] = {
    METHOD("turn", turn, 3, "turn($self, heads, cosines, sines, /)\n--\n\nTurn heads in place."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_rows(PyObject* module) {
  return add_type<Norm>(module, "asyncgen.native._kernels.Norm", make_norm, norm_methods,
                        "Norm(weight, *, eps, dtype)\n--\n\n"
                        "A root-mean-square norm with a weight for each feature.") &&
         add_type<Rotary>(module, "asyncgen.native._kernels.Rotary", make_rotary, rotary_methods,
                          "Rotary(dtype)\n--\n\nRotary positions of heads.");
}
