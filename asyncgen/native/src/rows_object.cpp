// `Norm` and `Rotary`: what is done to each row by itself.

#include "parts.h"

namespace {

PyObject* make_norm(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"weight", "bias", "eps", "dtype", "is_centred", nullptr};
  PyObject *weight, *bias, *dtype;
  float eps;
  int is_centred;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO$fOp", const_cast<char**>(names), &weight,
                                   &bias, &eps, &dtype, &is_centred)) {
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
  if (bias != Py_None) {
    View summands;
    if (!look_at(bias, summands) || !read_kind(summands.dtype, kind)) return nullptr;
    if (!is_centred || !summands.is_cpu || kind != Kind::FLOAT32 ||
        !summands.has_shape({view.sizes[0], view.sizes[1]}) || !summands.is_dense_from(0)) {
      return refuse("the bias is", bias, "a norm by layer has [%lld, %lld] in float32",
                    static_cast<long long>(view.sizes[0]), static_cast<long long>(view.sizes[1]));
    }
    made.bias = Reference::to(bias);
    made.bias_at = summands.as<float>();
  }
  made.is_centred = is_centred;
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
Normalisation<T> normalisation_of(const Norm& norm, const Rows& x, const Rows& out) {
  return {reinterpret_cast<const T*>(x.data),
          x.stride,
          reinterpret_cast<T*>(out.data),
          out.stride,
          norm.weight_at,
          norm.bias_at,
          norm.is_centred,
          x.count,
          norm.groups,
          norm.features,
          norm.eps};
}

PyObject* into(PyObject* self, PyObject* const* args) {
  const Norm& norm = unbox<Norm>(self);
  View x, out;
  if (!look_at(args[0], x) || !look_at(args[1], out)) return nullptr;
  const bool fits = is_taken(norm, x);
  if (!fits || !is_taken(norm, out) || out.sizes[0] != x.sizes[0] || !out.has_rows_apart()) {
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
  const bool is_done = run_unlocked([&]() noexcept { normalise(norm, Rows(x), Rows(out)); });
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
Rotation<T> rotation_of(const Rows& heads, std::int64_t turned, const Angles& angles) {
  return {reinterpret_cast<T*>(heads.data),
          heads.stride,
          reinterpret_cast<const T*>(angles.cosines),
          reinterpret_cast<const T*>(angles.sines),
          angles.stride,
          heads.count,
          turned,
          angles.head_dim,
          reinterpret_cast<const T*>(angles.factors),
          angles.scaled};
}

// Cosines or sines of some tokens: [N, 1, 2, D / 2].
bool are_angles(const View& angles, const Rotary& rotary, std::int64_t tokens, std::int64_t half) {
  return angles.has_shape({tokens, 1, 2, half}) && angles.dtype == rotary.dtype && angles.is_cpu &&
         angles.is_dense_from(1);
}

PyObject* turn(PyObject* self, PyObject* const* args) {
  const Rotary& rotary = unbox<Rotary>(self);
  View heads;
  if (!look_at(args[0], heads)) return nullptr;
  if (heads.dims != 4 || heads.sizes[2] != 2 || heads.dtype != rotary.dtype || !heads.is_cpu ||
      !heads.is_dense_from(1) || !heads.has_rows_apart()) {
    return refuse("heads are", args[0], "[N, heads, 2, D / 2] %S on cpu are turned", rotary.dtype);
  }
  Angles angles;
  if (!read_angles(rotary, args[1], args[2], heads.sizes[0], 2 * heads.sizes[3], angles)) {
    return nullptr;
  }
#ifdef ASYNCGEN_CHECK
  if (!lies_within(args[0], heads, item_size(rotary.kind))) return nullptr;
#endif
  const bool is_done =
      run_unlocked([&]() noexcept { turn_heads(rotary, Rows(heads), heads.sizes[1], angles); });
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

PyObject* pass(PyObject*, PyObject* const* args) {
  View x, gates;
  Kind kind;
  if (!look_at(args[0], x) || !look_at(args[1], gates) || !read_kind(x.dtype, kind)) return nullptr;
  const bool is_x = x.dims == 2 && x.is_cpu && x.is_dense_from(1) && x.has_rows_apart();
  if (!is_x || !gates.has_shape({x.sizes[0], x.sizes[1]}) || gates.dtype != x.dtype ||
      !gates.is_cpu || !gates.is_dense_from(1)) {
    return refuse(is_x ? "gates are" : "rows are", args[is_x],
                  "rows and gates are [N, F] of one dtype on cpu");
  }
#ifdef ASYNCGEN_CHECK
  const std::int64_t item = item_size(kind);
  if (!lies_within(args[0], x, item) || !lies_within(args[1], gates, item)) return nullptr;
#endif
  if (!run_unlocked([&]() noexcept { pass_gates(kind, Rows(x), Rows(gates), x.sizes[1]); })) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Whether all of some numbers are rows of a tensor; false, and a Python error, if not.
bool are_rows(PyObject* places, const View& numbers, std::int64_t rows) {
  const std::int64_t* const all = numbers.as<std::int64_t>();
  for (std::int64_t at = 0; at < numbers.sizes[0]; ++at) {
    if (all[at] < 0 || all[at] >= rows) {
      refuse("places are", places, "there is no row %lld", static_cast<long long>(all[at]));
      return false;
    }
  }
  return true;
}

PyObject* ban(PyObject*, PyObject* const* args) {
  View scores, words, places;
  Kind kind;
  if (!look_at(args[0], scores) || !look_at(args[1], words) || !look_at(args[2], places) ||
      !read_kind(scores.dtype, kind)) {
    return nullptr;
  }
  if (scores.dims != 2 || kind != Kind::FLOAT32 || !scores.is_cpu || !scores.is_dense_from(1) ||
      !scores.has_rows_apart()) {
    return refuse("scores are", args[0], "scores are [R, V] in float32 on cpu");
  }
  const std::int64_t least = (scores.sizes[1] + 31) / 32;
  if (words.dims != 2 || !is_dtype(words.dtype, "torch.int32") || !words.is_cpu ||
      !words.is_dense_from(0) || words.sizes[1] < least) {
    return refuse("words are", args[1], "of these scores masks are [M, %lld] or more int32 on cpu",
                  static_cast<long long>(least));
  }
  if (!places.has_shape({words.sizes[0]}) || !is_dtype(places.dtype, "torch.int64") ||
      !places.is_cpu || !places.is_dense_from(0)) {
    return refuse("places are", args[2], "of these masks they are [%lld] int64 on cpu",
                  static_cast<long long>(words.sizes[0]));
  }
#ifdef ASYNCGEN_CHECK
  if (!lies_within(args[0], scores, 4) || !lies_within(args[1], words, 4) ||
      !lies_within(args[2], places, 8)) {
    return nullptr;
  }
#endif
  if (!are_rows(args[2], places, scores.sizes[0])) return nullptr;
  const Ban task{scores.as<float>(),        scores.strides[0], scores.sizes[1],
                 words.as<std::uint32_t>(), words.sizes[1],    places.as<std::int64_t>(),
                 words.sizes[0]};
  if (!run_unlocked([&]() noexcept { ban(task); })) return nullptr;
  Py_RETURN_NONE;
}

template <typename T>
Largest<T> largest_of(const View& scores, const View& values, const View& places) {
  return {scores.as<T>(),    scores.strides[0],  scores.sizes[0],
          scores.sizes[1],   values.as<float>(), places.as<std::int64_t>()};
}

PyObject* argmax(PyObject*, PyObject* const* args) {
  View scores, values, places;
  Kind kind;
  if (!look_at(args[0], scores) || !look_at(args[1], values) || !look_at(args[2], places) ||
      !read_kind(scores.dtype, kind)) {
    return nullptr;
  }
  if (scores.dims != 2 || scores.sizes[1] < 1 || !scores.is_cpu || !scores.is_dense_from(1)) {
    return refuse("scores are", args[0], "scores are [R, V] on cpu, V 1 or more");
  }
  const std::int64_t rows = scores.sizes[0];
  if (!values.has_shape({rows}) || !is_dtype(values.dtype, "torch.float32") || !values.is_cpu ||
      !values.is_dense_from(0)) {
    return refuse("values are", args[1], "of these scores they are [%lld] float32 on cpu",
                  static_cast<long long>(rows));
  }
  if (!places.has_shape({rows}) || !is_dtype(places.dtype, "torch.int64") || !places.is_cpu ||
      !places.is_dense_from(0)) {
    return refuse("places are", args[2], "of these scores they are [%lld] int64 on cpu",
                  static_cast<long long>(rows));
  }
#ifdef ASYNCGEN_CHECK
  if (!lies_within(args[0], scores, item_size(kind)) || !lies_within(args[1], values, 4) ||
      !lies_within(args[2], places, 8)) {
    return nullptr;
  }
#endif
  const bool is_done = run_unlocked([&]() noexcept {
    for_kind(kind, [&](auto number) {
      argmax(largest_of<decltype(number)>(scores, values, places));
    });
  });
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    METHOD("argmax", argmax, 3,
           "argmax(scores, values, places, /)\n--\n\n"
           "Find the largest score of each row, and the first place where it is; NaN counts as larger."),
    METHOD("ban", ban, 3,
           "ban(scores, words, places, /)\n--\n\n"
           "Make the scores of these rows -inf where the bit of a token is not set."),
    METHOD("pass_gates", pass, 2,
           "pass_gates(x, gates, /)\n--\n\nMultiply rows by the sigmoid of gates, in place."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void normalise(const Norm& norm, const Rows& x, const Rows& out) noexcept {
  for_kind(norm.kind, [&](auto number) {
    normalise(normalisation_of<decltype(number)>(norm, x, out));
  });
}

void add_rows(Kind kind, const Rows& x, std::int64_t features, float scale,
              const Rows& stream) noexcept {
  for_kind(kind, [&](auto number) {
    using T = decltype(number);
    add(Addition<T>{reinterpret_cast<T*>(x.data), x.stride, reinterpret_cast<T*>(stream.data),
                    stream.stride, x.count, features, scale});
  });
}

void pass_gates(Kind kind, const Rows& x, const Rows& gates, std::int64_t features) noexcept {
  for_kind(kind, [&](auto number) {
    using T = decltype(number);
    pass_gates(Gates<T>{reinterpret_cast<T*>(x.data), x.stride,
                        reinterpret_cast<const T*>(gates.data), gates.stride, x.count, features});
  });
}

bool read_angles(const Rotary& rotary, PyObject* cosines, PyObject* sines, std::int64_t tokens,
                 std::int64_t head_dim, Angles& angles) {
  View cos, sin;
  if (!look_at(cosines, cos) || !look_at(sines, sin)) return false;
  const bool are = are_angles(cos, rotary, tokens, head_dim / 2);
  if (!are || !are_angles(sin, rotary, tokens, head_dim / 2) || cos.strides[0] != sin.strides[0]) {
    refuse("angles are", are ? sines : cosines, "these heads are turned by [%lld, 1, 2, %lld] %S",
           static_cast<long long>(tokens), static_cast<long long>(head_dim / 2), rotary.dtype);
    return false;
  }
#ifdef ASYNCGEN_CHECK
  const std::int64_t item = item_size(rotary.kind);
  if (!lies_within(cosines, cos, item) || !lies_within(sines, sin, item)) return false;
#endif
  angles = {cos.data, sin.data, cos.strides[0], head_dim, nullptr, 0};
  return true;
}

void turn_heads(const Rotary& rotary, const Rows& heads, std::int64_t turned,
                const Angles& angles) noexcept {
  for_kind(rotary.kind, [&](auto number) {
    rotate(rotation_of<decltype(number)>(heads, turned, angles));
  });
}

bool add_rows(PyObject* module) {
  return add_type<Norm>(module, "asyncgen.native._kernels.Norm", make_norm, norm_methods,
                        "Norm(weight, bias, *, eps, dtype, is_centred)\n--\n\n"
                        "A norm by the root mean square, or by mean and variance.") &&
         add_type<Rotary>(module, "asyncgen.native._kernels.Rotary", make_rotary, rotary_methods,
                          "Rotary(dtype)\n--\n\nRotary positions of heads.") &&
         PyModule_AddFunctions(module, functions) == 0;
}
