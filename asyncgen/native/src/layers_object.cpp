// `Layers`: the blocks of a decoder in one call, without Python between them. They compute what the
// types that they are made of compute one by one.

#include <algorithm>
#include <exception>

#include "parts.h"
#include "team.h"

namespace {

// One pre-normalised block: attention, then a gated feed-forward, or experts.
struct Block {
  Norm *input_norm, *heads_norm, *post_norm;  // `heads_norm` may be null
  Linear *qkv, *output, *gate_up, *down;      // the last two are null if there are experts
  Experts* experts;
};

struct Layers {
  Reference parts;  // keeps the blocks' parts
  std::vector<Block> blocks;
  Rotary* rotary;
  std::int64_t width;  // of the stream
  Memory memory;       // taken out while in use
};

// A gated product and one down, or experts and nothing.
bool read_feed_forward(PyObject* first, PyObject* down, Block& block) {
  block.gate_up = block.down = nullptr;
  block.experts = nullptr;
  if (down == Py_None) return (block.experts = unbox_as<Experts>(first)) != nullptr;
  return (block.gate_up = unbox_as<Linear>(first)) && (block.down = unbox_as<Linear>(down));
}

bool read_block(PyObject* item, Block& block) {
  PyObject *norm, *qkv, *heads, *output, *post, *gate_up, *down;
  if (!PyArg_ParseTuple(item, "OOOOOOO", &norm, &qkv, &heads, &output, &post, &gate_up, &down)) {
    return false;
  }
  block.heads_norm = nullptr;
  return (block.input_norm = unbox_as<Norm>(norm)) && (block.qkv = unbox_as<Linear>(qkv)) &&
         (heads == Py_None || (block.heads_norm = unbox_as<Norm>(heads))) &&
         (block.output = unbox_as<Linear>(output)) && (block.post_norm = unbox_as<Norm>(post)) &&
         read_feed_forward(gate_up, down, block);
}

// Whether a block's parts fit together, and to the first block.
bool fits(const Block& block, const Layers& layers) {
  const Kind kind = layers.rotary->kind;
  const auto is_norm = [&](const Norm& norm) {
    return norm.kind == kind && norm.groups == 1 && norm.features == layers.width;
  };
  const auto is_linear = [&](const Linear& linear, std::int64_t inputs) {
    return linear.kind == kind && linear.inputs == inputs && linear.matrices == 1;
  };
  const auto is_feed_forward = [&] {
    if (block.experts != nullptr) {
      return block.experts->gate_up->kind == kind && block.experts->gate_up->inputs == layers.width;
    }
    return is_linear(*block.gate_up, layers.width) && block.gate_up->is_gated &&
           is_linear(*block.down, block.gate_up->outputs / 2) && !block.down->is_gated &&
           block.down->outputs == layers.width;
  };
  return is_norm(*block.input_norm) && is_norm(*block.post_norm) &&
         is_linear(*block.qkv, layers.width) && !block.qkv->is_gated &&
         block.qkv->outputs == layers.blocks[0].qkv->outputs &&
         (block.heads_norm == nullptr || block.heads_norm->kind == kind) &&
         is_linear(*block.output, layers.blocks[0].output->inputs) && !block.output->is_gated &&
         block.output->outputs == layers.width && is_feed_forward();
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"blocks", "rotary", nullptr};
  PyObject *blocks, *rotary;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$O", const_cast<char**>(names), &blocks,
                                   &rotary)) {
    return nullptr;
  }
  Reference items(PySequence_Tuple(blocks));
  if (!items) return nullptr;
  try {
    Layers made{};
    made.rotary = unbox_as<Rotary>(rotary);
    if (made.rotary == nullptr) return nullptr;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items.get()); ++at) {
      Block block;
      if (!read_block(PyTuple_GET_ITEM(items.get(), at), block)) return nullptr;
      made.blocks.push_back(block);
      made.width = made.blocks[0].input_norm->features;
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
  Rows stream, normed, qkv, attended;
  Angles angles;
  char* memory;  // of the feed-forward
};

void run_block(const Block& block, const Rotary& rotary, const Step& step, Pages& pages,
               const PagedLayer& layer) noexcept {
  normalise(*block.input_norm, step.stream, step.normed);
  multiply(*block.qkv, step.normed, step.qkv, STORE);
  if (block.heads_norm != nullptr) normalise(*block.heads_norm, step.qkv, step.qkv);
  turn_heads(rotary, step.qkv, pages.num_heads + pages.kv_heads, step.angles);
  attend_in(pages, layer, step.qkv.data, nullptr);
  multiply(*block.output, step.attended, step.stream, ADD);
  normalise(*block.post_norm, step.stream, step.normed);
  if (block.experts != nullptr) {
    mix_experts(*block.experts, step.normed, step.stream, step.memory);
    return;
  }
  const std::int64_t width = block.down->inputs;
  const Rows activated(step.memory, width, step.normed.count);
  multiply(*block.gate_up, step.normed, activated, GATE_SILU);
  multiply(*block.down, activated, step.stream, ADD);
}

// Whether a step's pages are those of these blocks.
bool are_of(const Pages& pages, const Layers& layers) {
  const Block& block = layers.blocks[0];
  const std::int64_t turned = pages.num_heads + pages.kv_heads;
  const bool is_normed = block.heads_norm != nullptr;
  for (const PagedLayer& layer : pages.layers) {
    if (layer.has_sinks) return false;  // which only their own blocks have
  }
  return pages.layers.size() == layers.blocks.size() && pages.kind == layers.rotary->kind &&
         pages.token_size() == block.qkv->outputs &&
         pages.num_heads * pages.size == block.output->inputs &&
         (!is_normed || (block.heads_norm->groups == turned &&
                         block.heads_norm->features == pages.size));
}

PyObject* run(PyObject* self, PyObject* const* args) {
  Layers& layers = unbox<Layers>(self);
  View stream;
  if (!look_at(args[0], stream)) return nullptr;
  Pages* pages = unbox_as<Pages>(args[3]);
  if (pages == nullptr || !is_free(*pages)) return nullptr;
  if (!are_of(*pages, layers)) {
    PyErr_SetString(PyExc_ValueError, "these pages are those of other blocks");
    return nullptr;
  }
  const std::int64_t tokens = pages->num_tokens;
  if (!stream.has_shape({tokens, layers.width}) || stream.dtype != layers.rotary->dtype ||
      !stream.is_cpu || !stream.is_dense_from(1)) {
    return refuse("the stream is", args[0], "the step that was laid out has [%lld, %lld] %S on cpu",
                  static_cast<long long>(tokens), static_cast<long long>(layers.width),
                  layers.rotary->dtype);
  }
  Angles angles;
  if (!read_angles(*layers.rotary, args[1], args[2], tokens, pages->size, angles)) return nullptr;
#ifdef ASYNCGEN_CHECK
  if (!lies_within(args[0], stream, item_size(layers.rotary->kind))) return nullptr;
#endif
  const std::int64_t item = item_size(layers.rotary->kind);
  const std::int64_t qkv = pages->token_size();
  const auto bytes = [&](std::int64_t width) {
    return Memory::rounded(static_cast<std::size_t>(tokens * width * item));
  };
  std::size_t most = 0;  // of all feed-forwards
  for (const Block& block : layers.blocks) {
    most = std::max(most, block.experts != nullptr ? memory_for(*block.experts, tokens)
                                                   : bytes(block.down->inputs));
  }
  Memory memory = std::exchange(layers.memory, {});
  if (!memory.hold(bytes(layers.width) + bytes(qkv) + most)) return PyErr_NoMemory();
  char* const normed_at = memory.data();
  char* const qkv_at = normed_at + bytes(layers.width);
  const Step step{Rows(stream),
                  Rows(normed_at, layers.width, tokens),
                  Rows(qkv_at, qkv, tokens),
                  Rows(pages->out_at, pages->num_heads * pages->size, tokens),
                  angles,
                  qkv_at + bytes(qkv)};
  pages->is_busy = true;
  const bool is_done = run_unlocked([&]() noexcept {
    rouse_team();
    for (std::size_t number = 0; number < layers.blocks.size(); ++number) {
      run_block(layers.blocks[number], *layers.rotary, step, *pages, pages->layers[number]);
    }
  });
  pages->is_busy = false;
  if (memory.is_small()) layers.memory = std::move(memory);
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    METHOD("run", run, 4,
           "run($self, stream, cosines, sines, attention, /)\n--\n\n"
           "Add what the blocks compute to the stream of the step that `attention` has laid out."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_layers(PyObject* module) {
  return add_type<Layers>(module, "asyncgen.native._kernels.Layers", make, methods,
                          "Layers(blocks, *, rotary)\n--\n\n"
                          "The blocks of a decoder, one after another.");
}
