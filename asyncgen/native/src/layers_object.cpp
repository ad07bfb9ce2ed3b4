// `Layers`: the blocks of a decoder in one call, without Python between them. They compute what the
// types that they are made of compute one by one.

#include <cstdlib>
#include <exception>
#include <memory>

#include "parts.h"
#include "team.h"

namespace {

// Memory of the last call is kept for the next, up to so many bytes.
constexpr std::size_t MOST_KEPT = 8 << 20;

// What lies in a call's memory begins on a cache line.
constexpr std::size_t LINE = 64;

// One pre-normalised block: attention, then a gated feed-forward.
struct Block {
  Norm *input_norm, *heads_norm, *post_norm;  // `heads_norm` may be null
  Linear *qkv, *output, *gate_up, *down;
};

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

struct Memory {
  std::unique_ptr<char, Free> data;
  std::size_t size = 0;

  bool hold(std::size_t bytes) {
    if (bytes <= size) return true;
    size = (bytes + LINE - 1) / LINE * LINE;
    data.reset(static_cast<char*>(std::aligned_alloc(LINE, size)));
    if (data == nullptr) size = 0;
    return data != nullptr;
  }
};

struct Layers {
  Reference parts;  // keeps the blocks' parts
  std::vector<Block> blocks;
  Rotary* rotary;
  std::int64_t width;  // of the stream
  Memory memory;       // taken out while in use
};

bool read_block(PyObject* item, Block& block) {
  PyObject *norm, *qkv, *heads, *output, *post, *gate_up, *down;
  if (!PyArg_ParseTuple(item, "OOOOOOO", &norm, &qkv, &heads, &output, &post, &gate_up, &down)) {
    return false;
  }
  block.heads_norm = nullptr;
  return (block.input_norm = unbox_as<Norm>(norm)) && (block.qkv = unbox_as<Linear>(qkv)) &&
         (heads == Py_None || (block.heads_norm = unbox_as<Norm>(heads))) &&
         (block.output = unbox_as<Linear>(output)) && (block.post_norm = unbox_as<Norm>(post)) &&
         (block.gate_up = unbox_as<Linear>(gate_up)) && (block.down = unbox_as<Linear>(down));
}

// Whether a block's parts fit together, and to the first block.
bool fits(const Block& block, const Layers& layers) {
  const Kind kind = layers.rotary->kind;
  const auto is_norm = [&](const Norm& norm) {
    return norm.kind == kind && norm.groups == 1 && norm.features == layers.width;
  };
  const auto is_linear = [&](const Linear& linear, std::int64_t inputs) {
    return linear.kind == kind && linear.inputs == inputs;
  };
  return is_norm(*block.input_norm) && is_norm(*block.post_norm) &&
         is_linear(*block.qkv, layers.width) && !block.qkv->is_gated &&
         block.qkv->outputs == layers.blocks[0].qkv->outputs &&
         (block.heads_norm == nullptr || block.heads_norm->kind == kind) &&
         is_linear(*block.output, layers.blocks[0].output->inputs) && !block.output->is_gated &&
         block.output->outputs == layers.width && is_linear(*block.gate_up, layers.width) &&
         block.gate_up->is_gated && block.gate_up->outputs == layers.blocks[0].gate_up->outputs &&
         is_linear(*block.down, block.gate_up->outputs / 2) && !block.down->is_gated &&
         block.down->outputs == layers.width;
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
  Rows stream, normed, qkv, attended, activated;
  Angles angles;
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
  multiply(*block.gate_up, step.normed, step.activated, GATE_SILU);
  multiply(*block.down, step.activated, step.stream, ADD);
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
  const std::int64_t qkv = pages->token_size(), gated = layers.blocks[0].down->inputs;
  const auto bytes = [&](std::int64_t width) {
    return (static_cast<std::size_t>(tokens * width * item) + LINE - 1) / LINE * LINE;
  };
  Memory memory = std::exchange(layers.memory, {});
  if (!memory.hold(bytes(layers.width) + bytes(qkv) + bytes(gated))) return PyErr_NoMemory();
  char* const normed_at = memory.data.get();
  char* const qkv_at = normed_at + bytes(layers.width);
  const Step step{Rows(stream),
                  Rows(normed_at, layers.width, tokens),
                  Rows(qkv_at, qkv, tokens),
                  Rows(pages->out_at, pages->num_heads * pages->size, tokens),
                  Rows(qkv_at + bytes(qkv), gated, tokens),
                  angles};
  pages->is_busy = true;
  const bool is_done = run_unlocked([&]() noexcept {
    rouse_team();
    for (std::size_t number = 0; number < layers.blocks.size(); ++number) {
      run_block(layers.blocks[number], *layers.rotary, step, *pages, pages->layers[number]);
    }
  });
  pages->is_busy = false;
  if (memory.size <= MOST_KEPT) layers.memory = std::move(memory);
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
