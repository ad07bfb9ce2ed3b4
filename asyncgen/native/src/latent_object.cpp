// `Latent`: queries, keys and values of all heads, made of short rows of each token.

#include <cstring>

#include "parts.h"
#include "team.h"

namespace {

bool fits(const Latent& made) {
  const Kind kind = made.latents->kind;
  const auto is_linear = [&](const Linear& linear, std::int64_t inputs, std::int64_t outputs) {
    return linear.kind == kind && linear.matrices == 1 && !linear.is_gated &&
           linear.inputs == inputs && linear.outputs == outputs;
  };
  const auto is_norm = [&](const Norm* norm) {
    return norm == nullptr || (norm->kind == kind && norm->groups == 1);
  };
  const std::int64_t hidden = made.latents->inputs;
  const std::int64_t asked = made.query_norm == nullptr ? hidden : made.query_rank();
  return is_norm(made.query_norm) && is_norm(made.latent_norm) && made.heads > 0 &&
         made.turned > 0 && made.unturned > 0 && made.values > 0 && made.turned % 2 == 0 &&
         made.unturned % 2 == 0 && made.size % 2 == 0 && made.size >= made.key() &&
         made.size >= made.values &&
         is_linear(*made.latents, hidden, made.query_rank() + made.rank() + made.turned) &&
         is_linear(*made.queries, asked, made.heads * made.key()) &&
         is_linear(*made.keys_values, made.rank(), made.heads * (made.unturned + made.values));
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"latents",     "query_norm", "queries", "latent_norm",
                                "keys_values", "heads",      "turned",  "unturned",
                                "values",      "head_dim",   nullptr};
  PyObject *latents, *query_norm, *queries, *latent_norm, *keys_values;
  long long heads, turned, unturned, values, size;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO$LLLLL", const_cast<char**>(names),
                                   &latents, &query_norm, &queries, &latent_norm, &keys_values,
                                   &heads, &turned, &unturned, &values, &size)) {
    return nullptr;
  }
  Latent made{};
  if (!(made.latents = unbox_as<Linear>(latents)) || !(made.queries = unbox_as<Linear>(queries)) ||
      !(made.keys_values = unbox_as<Linear>(keys_values)) ||
      !(made.latent_norm = unbox_as<Norm>(latent_norm)) ||
      !(query_norm == Py_None || (made.query_norm = unbox_as<Norm>(query_norm)))) {
    return nullptr;
  }
  made.heads = heads;
  made.turned = turned;
  made.unturned = unturned;
  made.values = values;
  made.size = size;
  if (!fits(made)) {
    PyErr_SetString(PyExc_ValueError, "the parts of this latent attention do not fit together");
    return nullptr;
  }
  made.parts = Reference(PyTuple_Pack(5, latents, query_norm, queries, latent_norm, keys_values));
  return made.parts ? box(type, std::move(made)) : nullptr;
}

// Where a step's intermediate rows lie.
struct Space {
  Rows latents, asked, latent, queries, made;
  std::size_t bytes;
};

Space lay_out(const Latent& latent, std::int64_t tokens, char* memory) {
  std::size_t bytes = 0;
  const auto rows = [&](std::int64_t width) {
    const Rows made(memory + bytes, width, tokens);
    bytes += Memory::rounded(
        static_cast<std::size_t>(tokens * width * item_size(latent.latents->kind)));
    return made;
  };
  const Rows latents = rows(latent.latents->outputs), asked = rows(latent.query_rank());
  const Rows normed = rows(latent.rank());
  const Rows queries = rows(latent.size > latent.key() ? latent.queries->outputs : 0);
  const Rows made = rows(latent.keys_values->outputs);
  return {latents, asked, normed, queries, made, bytes};
}

// Copies so many numbers, and fills the rest of their place with zeros; sizes are in bytes.
void place(char* to, const char* from, std::size_t bytes, std::size_t room) {
  std::memcpy(to, from, bytes);
  if (bytes < room) std::memset(to + bytes, 0, room - bytes);
}

// The heads of one token; in each half of a head what is turned lies first.
void place_token(const Latent& latent, const Space& space, std::int64_t token, char* out) {
  const std::int64_t item = item_size(latent.latents->kind);
  const auto row = [&](const Rows& rows, std::int64_t first) {
    return rows.data + (token * rows.stride + first) * item;
  };
  const std::size_t size = latent.size * item, half = size / 2, key = latent.key() * item / 2;
  const std::size_t turned = latent.turned * item / 2, unturned = latent.unturned * item / 2;
  const std::size_t values = latent.values * item;
  const char* shared = row(space.latents, latent.query_rank() + latent.rank());
  for (std::int64_t head = 0; head < latent.heads; ++head) {
    const char* made = row(space.made, head * (latent.unturned + latent.values));
    char* const query_at = out + head * size;
    char* const key_at = query_at + latent.heads * size;
    for (int part = 0; part < 2; ++part) {
      if (latent.size > latent.key()) {
        const char* asked = row(space.queries, head * latent.key()) + part * key;
        place(query_at + part * half, asked, key, half);
      }
      std::memcpy(key_at + part * half, shared + part * turned, turned);
      place(key_at + part * half + turned, made + part * unturned, unturned, half - turned);
    }
    place(key_at + latent.heads * size, made + 2 * unturned, values, size);
  }
}

// Whether a tensor has so many rows of a width.
bool are_rows(const Latent& latent, PyObject* tensor, const View& view, std::int64_t rows,
              std::int64_t width) {
  if (!view.has_shape({rows, width}) || view.dtype != latent.latents->dtype || !view.is_cpu ||
      !view.is_dense_from(1)) {
    refuse("rows are", tensor, "these heads are made of [N, %lld] as [N, %lld] %S on cpu",
           static_cast<long long>(latent.latents->inputs),
           static_cast<long long>(latent.token_size()), latent.latents->dtype);
    return false;
  }
#ifdef ASYNCGEN_CHECK
  return lies_within(tensor, view, item_size(latent.latents->kind));
#else
  return true;
#endif
}

PyObject* into(PyObject* self, PyObject* const* args) {
  Latent& latent = unbox<Latent>(self);
  View x, out;
  if (!look_at(args[0], x) || !look_at(args[1], out)) return nullptr;
  const std::int64_t tokens = x.dims > 0 ? x.sizes[0] : 0;
  if (!are_rows(latent, args[0], x, tokens, latent.latents->inputs) ||
      !are_rows(latent, args[1], out, tokens, latent.token_size())) {
    return nullptr;
  }
  if (tokens == 0) return Py_NewRef(args[1]);
  Memory memory = std::exchange(latent.memory, {});
  if (!memory.hold(memory_for(latent, tokens))) return PyErr_NoMemory();
  const bool is_done = run_unlocked([&]() noexcept {
    make_heads(latent, Rows(x), Rows(out), memory.data());
  });
  if (memory.is_small()) latent.memory = std::move(memory);
  return is_done ? Py_NewRef(args[1]) : nullptr;
}

PyMethodDef methods[] = {
    METHOD("into", into, 2,
           "into($self, x, out, /)\n--\n\nMake heads of rows, in `out`, and return it."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::size_t memory_for(const Latent& latent, std::int64_t rows) {
  return lay_out(latent, rows, nullptr).bytes;
}

void make_heads(const Latent& latent, const Rows& x, const Rows& out, char* memory) noexcept {
  const Space space = lay_out(latent, x.count, memory);
  const std::int64_t item = item_size(latent.latents->kind);
  multiply(*latent.latents, x, space.latents, STORE);
  const auto part = [&](std::int64_t first) {
    return Rows(space.latents.data + first * item, space.latents.stride, x.count);
  };
  if (latent.query_norm != nullptr) normalise(*latent.query_norm, part(0), space.asked);
  const Rows& asked = latent.query_norm != nullptr ? space.asked : x;
  multiply(*latent.queries, asked, latent.size > latent.key() ? space.queries : out, STORE);
  normalise(*latent.latent_norm, part(latent.query_rank()), space.latent);
  multiply(*latent.keys_values, space.latent, space.made, STORE);
  for_rows(x.count, latent.token_size(), [&](std::int64_t token) {
    place_token(latent, space, token, out.data + token * out.stride * item);
  });
}

void cut_values(const Latent& latent, const Rows& gathered) noexcept {
  if (latent.values == latent.size) return;
  const std::int64_t item = item_size(latent.latents->kind), size = latent.size * item;
  for_rows(gathered.count, latent.heads * latent.size, [&](std::int64_t token) {
    char* const row = gathered.data + token * gathered.stride * item;
    for (std::int64_t head = 1; head < latent.heads; ++head) {
      std::memmove(row + head * latent.values * item, row + head * size, latent.values * item);
    }
  });
}

bool add_latent(PyObject* module) {
  return add_type<Latent>(
      module, "asyncgen.native._kernels.Latent", make, methods,
      "Latent(latents, query_norm, queries, latent_norm, keys_values, *, heads, turned, unturned,\n"
      "values, head_dim)\n--\n\nQueries, keys and values that are made of short rows.");
}
