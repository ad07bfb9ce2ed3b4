// `Layers`: the blocks of a decoder in one call, without Python between them. They compute what the
// types that they are made of compute one by one.

#include <algorithm>
#include <exception>

#include "parts.h"
#include "team.h"

namespace {

// One block: attention and a feed-forward, or experts. What is null is left out.
struct Block {
  Norm *input_norm, *output_norm, *post_norm, *down_norm;
  Norm *heads_norm, *keys_norm;  // the former of queries and keys together if the latter is null
  bool is_normed_turned;         // whether heads are normalised after they were turned
  Linear* qkv;                       // or, where it is null, what makes heads of latent rows
  Latent* latent;
  Linear *output, *up, *down;        // the last two are null if there are experts
  Experts* experts;
  std::int64_t rope;   // whose angles turn the heads, or -1
  const float* sinks;  // of the query heads
  std::int64_t num_sinks;
  bool is_parallel;  // whether both parts see the stream as it was before the block
  float output_scale, down_scale;  // of what each part adds to the stream
};

struct Layers {
  Reference parts;  // keeps the blocks' parts
  std::vector<Block> blocks;
  Rotary* rotary;
  std::int64_t width;  // of the stream
  Memory memory;       // taken out while in use
};

template <typename T>
bool read_part(PyObject* object, T*& part) {
  part = nullptr;
  return object == Py_None || (part = unbox_as<T>(object)) != nullptr;
}

// A product and one down, or experts and nothing.
bool read_feed_forward(PyObject* first, PyObject* down, Block& block) {
  block.up = block.down = nullptr;
  block.experts = nullptr;
  if (down == Py_None) return (block.experts = unbox_as<Experts>(first)) != nullptr;
  return (block.up = unbox_as<Linear>(first)) && (block.down = unbox_as<Linear>(down));
}

// What makes heads: a product, or latent rows.
bool read_heads(PyObject* object, Block& block) {
  const bool is_latent = PyObject_TypeCheck(object, type_of<Latent>);
  block.latent = is_latent ? &unbox<Latent>(object) : nullptr;
  block.qkv = is_latent ? nullptr : unbox_as<Linear>(object);
  return is_latent || block.qkv != nullptr;
}

// Numbers of a token's heads.
std::int64_t token_size(const Block& block) {
  return block.latent != nullptr ? block.latent->token_size() : block.qkv->outputs;
}

bool read_sinks(PyObject* sinks, Block& block) {
  block.sinks = nullptr;
  block.num_sinks = 0;
  if (sinks == Py_None) return true;
  View view;
  Kind kind;
  if (!look_at(sinks, view) || !read_kind(view.dtype, kind)) return false;
  if (kind != Kind::FLOAT32 || view.dims != 1 || !view.is_cpu || !view.is_dense_from(0)) {
    refuse("sinks are", sinks, "[heads] float32 on cpu is expected");
    return false;
  }
  block.sinks = view.as<float>();
  block.num_sinks = view.sizes[0];
  return true;
}

bool read_block(PyObject* item, Block& block) {
  PyObject *input, *qkv, *heads, *keys, *sinks, *output, *output_norm, *post, *up, *down, *down_norm;
  int is_normed_turned, is_parallel;
  long long rope;
  if (!PyArg_ParseTuple(item, "OOOOpLOOOOOOOpff", &input, &qkv, &heads, &keys, &is_normed_turned,
                        &rope, &sinks, &output, &output_norm, &post, &up, &down, &down_norm,
                        &is_parallel, &block.output_scale, &block.down_scale)) {
    return false;
  }
  block.is_normed_turned = is_normed_turned;
  block.is_parallel = is_parallel;
  block.rope = rope;
  return read_part(input, block.input_norm) && read_heads(qkv, block) &&
         read_part(heads, block.heads_norm) && read_part(keys, block.keys_norm) &&
         read_sinks(sinks, block) && (block.output = unbox_as<Linear>(output)) &&
         read_part(output_norm, block.output_norm) && read_part(post, block.post_norm) &&
         read_feed_forward(up, down, block) && read_part(down_norm, block.down_norm);
}

// Whether a block's parts fit together, and to the first block.
bool fits(const Block& block, const Layers& layers) {
  const Kind kind = layers.rotary->kind;
  const auto is_norm = [&](const Norm* norm) {
    return norm == nullptr ||
           (norm->kind == kind && norm->groups == 1 && norm->features == layers.width);
  };
  const auto is_linear = [&](const Linear& linear, std::int64_t inputs) {
    return linear.kind == kind && linear.inputs == inputs && linear.matrices == 1;
  };
  const auto is_plain = [&](const Linear& linear, std::int64_t inputs) {
    return is_linear(linear, inputs) && linear.use == STORE;
  };
  const auto is_feed_forward = [&] {
    if (block.experts != nullptr) {
      return block.experts->gate_up->kind == kind && block.experts->gate_up->inputs == layers.width;
    }
    return is_linear(*block.up, layers.width) && block.up->use != STORE &&
           is_plain(*block.down, block.up->outputs >> block.up->is_gated) &&
           block.down->outputs == layers.width;
  };
  const auto is_made = [&] {
    if (block.latent == nullptr) return is_plain(*block.qkv, layers.width);
    return is_plain(*block.latent->latents, layers.width);
  };
  const auto is_heads_norm = [&](const Norm* norm) {
    return norm == nullptr || norm->kind == kind;
  };
  return is_norm(block.input_norm) && is_norm(block.output_norm) && is_norm(block.post_norm) &&
         is_norm(block.down_norm) && is_made() &&
         token_size(block) == token_size(layers.blocks[0]) && is_heads_norm(block.heads_norm) &&
         is_heads_norm(block.keys_norm) && block.rope >= -1 &&
         is_plain(*block.output, layers.blocks[0].output->inputs) &&
         block.output->outputs == layers.width && is_feed_forward();
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"blocks", "rotary", "width", nullptr};
  PyObject *blocks, *rotary;
  long long width;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$OL", const_cast<char**>(names), &blocks,
                                   &rotary, &width)) {
    return nullptr;
  }
  Reference items(PySequence_Tuple(blocks));
  if (!items) return nullptr;
  try {
    Layers made{};
    made.rotary = unbox_as<Rotary>(rotary);
    if (made.rotary == nullptr) return nullptr;
    made.width = width;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items.get()); ++at) {
      Block block;
      if (!read_block(PyTuple_GET_ITEM(items.get(), at), block)) return nullptr;
      made.blocks.push_back(block);
      if (!fits(block, made)) {
        return PyErr_Format(PyExc_ValueError, "the parts of block %zd do not fit together", at);
      }
    }
    if (made.blocks.empty()) {
      PyErr_SetString(PyExc_ValueError, "there are no blocks");
      return nullptr;
    }
    made.parts = Reference(PyTuple_Pack(2, items.get(), rotary));
    return made.parts ? box(type, std::move(made)) : nullptr;
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// A step: the stream that blocks add to, and memory for what lies between.
struct Step {
  Rows stream, normed, branch, qkv, attended;
  std::vector<Angles> angles;  // of each rope
  char* memory;                // of the feed-forward, and before it of latent rows
};

bool has_branch(const Block& block) {
  return block.output_norm != nullptr || block.down_norm != nullptr ||
         block.output_scale != 1.0f || block.down_scale != 1.0f;
}

// Adds the branch to the stream, normalised and scaled.
void add_branch(const Norm* norm, float scale, Kind kind, const Step& step) noexcept {
  if (norm != nullptr) normalise(*norm, step.branch, step.branch);
  add_rows(kind, step.branch, step.branch.stride, scale, step.stream);
}

// Adds a product to it, by way of the branch where it is not added as it is.
void add_product(const Linear& linear, const Norm* norm, float scale, const Rows& x,
                 const Step& step) noexcept {
  if (norm == nullptr && scale == 1.0f) return multiply(linear, x, step.stream, ADD);
  multiply(linear, x, step.branch, STORE);
  add_branch(norm, scale, linear.kind, step);
}

void normalise_heads(const Block& block, const Step& step) noexcept {
  if (block.heads_norm == nullptr) return;
  normalise(*block.heads_norm, step.qkv, step.qkv);
  if (block.keys_norm == nullptr) return;
  const std::int64_t first = block.heads_norm->groups * block.heads_norm->features;
  const Rows keys(step.qkv.data + first * item_size(block.keys_norm->kind), step.qkv.stride,
                  step.qkv.count);
  normalise(*block.keys_norm, keys, keys);
}

void feed_forward(const Block& block, const Rows& x, const Step& step) noexcept {
  if (block.experts == nullptr) {
    const Rows activated(step.memory, block.down->inputs, x.count);
    multiply(*block.up, x, activated, block.up->use);
    return add_product(*block.down, block.down_norm, block.down_scale, activated, step);
  }
  if (block.down_norm == nullptr && block.down_scale == 1.0f) {
    return mix_experts(*block.experts, x, step.stream, step.memory);
  }
  const Kind kind = block.experts->gate_up->kind;
  std::fill_n(step.branch.data, step.branch.count * step.branch.stride * item_size(kind), 0);
  mix_experts(*block.experts, x, step.branch, step.memory);
  add_branch(block.down_norm, block.down_scale, kind, step);
}

void run_block(const Block& block, const Rotary& rotary, const Step& step, Pages& pages,
               const PagedLayer& layer) noexcept {
  const auto normed = [&](const Norm* norm) -> const Rows& {
    if (norm == nullptr) return step.stream;
    normalise(*norm, step.stream, step.normed);
    return step.normed;
  };
  const Rows* x = &normed(block.input_norm);
  if (block.latent != nullptr) {
    make_heads(*block.latent, *x, step.qkv, step.memory);
  } else {
    multiply(*block.qkv, *x, step.qkv, STORE);
  }
  if (!block.is_normed_turned) normalise_heads(block, step);
  if (block.rope >= 0) {
    turn_heads(rotary, step.qkv, pages.num_heads + pages.kv_heads, step.angles[block.rope]);
  }
  if (block.is_normed_turned) normalise_heads(block, step);
  attend_in(pages, layer, step.qkv.data, block.sinks);
  if (block.latent != nullptr) cut_values(*block.latent, step.attended);
  // Of parallel parts the second sees what the first saw, or another norm of it.
  if (block.is_parallel && block.post_norm != nullptr) x = &normed(block.post_norm);
  add_product(*block.output, block.output_norm, block.output_scale, step.attended, step);
  if (!block.is_parallel) x = &normed(block.post_norm);
  feed_forward(block, *x, step);
}

// Whether a block's heads are those of some pages, and its sinks those of a layer of them.
bool is_of(const Block& block, const Pages& pages, const PagedLayer& layer) {
  const std::int64_t size = pages.size, turned = pages.num_heads + pages.kv_heads;
  const auto is_norm = [](const Norm* norm, std::int64_t groups, std::int64_t features) {
    return norm->groups == groups && norm->features == features;
  };
  const bool has_norms =
      block.keys_norm != nullptr
          ? block.heads_norm != nullptr && is_norm(block.heads_norm, 1, pages.num_heads * size) &&
                is_norm(block.keys_norm, 1, pages.kv_heads * size)
          : block.heads_norm == nullptr || is_norm(block.heads_norm, turned, size);
  const Latent* latent = block.latent;
  const std::int64_t values = latent != nullptr ? latent->values : size;
  const bool has_heads =
      latent == nullptr || (latent->heads == pages.num_heads && latent->heads == pages.kv_heads &&
                            latent->size == size);
  return has_heads && has_norms && pages.num_heads * values == block.output->inputs &&
         block.num_sinks == (layer.has_sinks ? pages.num_heads : 0);
}

// Whether a step's pages are those of these blocks.
bool are_of(const Pages& pages, const Layers& layers) {
  if (pages.layers.size() != layers.blocks.size() || pages.kind != layers.rotary->kind ||
      pages.token_size() != token_size(layers.blocks[0])) {
    return false;
  }
  for (std::size_t number = 0; number < layers.blocks.size(); ++number) {
    if (!is_of(layers.blocks[number], pages, pages.layers[number])) return false;
  }
  return true;
}

// Reads the angles of one rope, (cosines, sines) or (cosines, sines, factors on queries).
bool read_rope(PyObject* item, const Layers& layers, const Pages& pages, Angles& angles) {
  PyObject *cosines, *sines, *factors = nullptr;
  const std::int64_t tokens = pages.num_tokens;
  if (!PyTuple_Check(item)) {
    PyErr_Format(PyExc_TypeError, "the angles of a rope are a tuple of tensors, not %R", item);
    return false;
  }
  if (!PyArg_ParseTuple(item, "OO|O", &cosines, &sines, &factors) ||
      !read_angles(*layers.rotary, cosines, sines, tokens, pages.size, angles)) {
    return false;
  }
  if (factors == nullptr) return true;
  View view;
  if (!look_at(factors, view)) return false;
  if (!view.has_shape({tokens, 1, 1}) || view.dtype != layers.rotary->dtype || !view.is_cpu ||
      !view.is_dense_from(0)) {
    refuse("factors are", factors, "these queries have [%lld, 1, 1] %S on cpu",
           static_cast<long long>(tokens), layers.rotary->dtype);
    return false;
  }
  angles.factors = view.data;
  angles.scaled = pages.num_heads;
  return true;
}

// Reads those of all ropes that the blocks turn by.
bool read_ropes(PyObject* items, const Layers& layers, const Pages& pages,
                std::vector<Angles>& angles) {
  Reference ropes(PySequence_Tuple(items));
  if (!ropes) return false;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(ropes.get()); ++at) {
    angles.emplace_back();
    if (!read_rope(PyTuple_GET_ITEM(ropes.get(), at), layers, pages, angles.back())) return false;
  }
  for (const Block& block : layers.blocks) {
    if (block.rope < static_cast<std::int64_t>(angles.size())) continue;
    PyErr_Format(PyExc_ValueError, "a block turns by rope %lld of %zu",
                 static_cast<long long>(block.rope), angles.size());
    return false;
  }
  return true;
}

// Whether the stream is that of the step that was laid out.
bool is_stream(PyObject* tensor, const View& stream, const Layers& layers, const Pages& pages) {
  if (!stream.has_shape({pages.num_tokens, layers.width}) || stream.dtype != layers.rotary->dtype ||
      !stream.is_cpu || !stream.is_dense_from(1)) {
    refuse("the stream is", tensor, "the step that was laid out has [%lld, %lld] %S on cpu",
           static_cast<long long>(pages.num_tokens), static_cast<long long>(layers.width),
           layers.rotary->dtype);
    return false;
  }
#ifdef ASYNCGEN_CHECK
  return lies_within(tensor, stream, item_size(layers.rotary->kind));
#else
  return true;
#endif
}

// Runs the blocks over a step in memory of theirs; false: a debug build found an error.
bool run_blocks(const Layers& layers, const Step& step, Pages& pages) {
  pages.is_busy = true;
  const bool is_done = run_unlocked([&]() noexcept {
    rouse_team();
    for (std::size_t number = 0; number < layers.blocks.size(); ++number) {
      run_block(layers.blocks[number], *layers.rotary, step, pages, pages.layers[number]);
    }
  });
  pages.is_busy = false;
  return is_done;
}

PyObject* run(PyObject* self, PyObject* const* args) {
  Layers& layers = unbox<Layers>(self);
  View stream;
  if (!look_at(args[0], stream)) return nullptr;
  Pages* pages = unbox_as<Pages>(args[2]);
  if (pages == nullptr || !is_free(*pages)) return nullptr;
  if (!are_of(*pages, layers)) {
    PyErr_SetString(PyExc_ValueError, "these pages are those of other blocks");
    return nullptr;
  }
  std::vector<Angles> angles;
  if (!is_stream(args[0], stream, layers, *pages) ||
      !read_ropes(args[1], layers, *pages, angles)) {
    return nullptr;
  }
  const std::int64_t tokens = pages->num_tokens, qkv = pages->token_size();
  const std::int64_t item = item_size(layers.rotary->kind);
  const auto bytes = [&](std::int64_t width) {
    return Memory::rounded(static_cast<std::size_t>(tokens * width * item));
  };
  std::size_t most = 0, branch = 0;  // of what lies between, and of branches
  for (const Block& block : layers.blocks) {
    most = std::max(most, block.experts != nullptr ? memory_for(*block.experts, tokens)
                                                   : bytes(block.down->inputs));
    if (block.latent != nullptr) most = std::max(most, memory_for(*block.latent, tokens));
    if (has_branch(block)) branch = bytes(layers.width);
  }
  Memory memory = std::exchange(layers.memory, {});
  if (!memory.hold(bytes(layers.width) + branch + bytes(qkv) + most)) return PyErr_NoMemory();
  char* const branch_at = memory.data() + bytes(layers.width);
  char* const qkv_at = branch_at + branch;
  const Step step{Rows(stream),
                  Rows(memory.data(), layers.width, tokens),
                  Rows(branch_at, layers.width, tokens),
                  Rows(qkv_at, qkv, tokens),
                  Rows(pages->out_at, pages->num_heads * pages->size, tokens),
                  std::move(angles),
                  qkv_at + bytes(qkv)};
  const bool is_done = run_blocks(layers, step, *pages);
  if (memory.is_small()) layers.memory = std::move(memory);
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    METHOD("run", run, 3,
           "run($self, stream, angles, attention, /)\n--\n\n"
           "Add what the blocks compute to the stream of the step that `attention` has laid out."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_layers(PyObject* module) {
  return add_type<Layers>(module, "asyncgen.native._kernels.Layers", make, methods,
                          "Layers(blocks, *, rotary, width)\n--\n\n"
                          "The blocks of a decoder, one after another.");
}
