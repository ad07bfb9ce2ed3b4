// `Layers`: the blocks of a decoder in one call, without Python between them, and the logits of what
// they give. They compute what the types that they are made of compute one by one.

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include "layers.h"
#include "team.h"

namespace {

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"blocks", "rotary", "width", "norm", "head", nullptr};
  PyObject *blocks, *rotary, *norm, *head;
  long long width;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$OLOO", const_cast<char**>(names), &blocks,
                                   &rotary, &width, &norm, &head)) {
    return nullptr;
  }
  Reference items(PySequence_Tuple(blocks));
  if (!items) return nullptr;
  try {
    Layers made{};
    made.rotary = unbox_as<Rotary>(rotary);
    if (made.rotary == nullptr) return nullptr;
    made.width = width;
    if (!read_ends(norm, head, made)) return nullptr;
    made.attending = -1;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items.get()); ++at) {
      Block block;
      if (!read_block(PyTuple_GET_ITEM(items.get(), at), block)) return nullptr;
      made.blocks.push_back(block);
      if (made.attending < 0 && attends(block)) made.attending = at;
      if (!fits(block, made)) {
        return PyErr_Format(PyExc_ValueError, "the parts of block %zd do not fit together", at);
      }
    }
    if (made.blocks.empty()) {
      PyErr_SetString(PyExc_ValueError, "there are no blocks");
      return nullptr;
    }
    made.parts = Reference(PyTuple_Pack(4, items.get(), rotary, norm, head));
    return made.parts ? box(type, std::move(made)) : nullptr;
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// A step: the stream that blocks add to, and memory for what lies between.
struct Step {
  Rows stream, normed, branch;
  char* heads;  // with the gates behind them
  Rows attended;
  std::vector<Angles> angles;  // of each rope
  char* memory;                // of the feed-forward, and before it of latent rows and mixers

  // Keeps only some rows, in this order, side by side at the beginning; `space` has room for them.
  void narrow(const std::int64_t* wanted, std::int64_t count, std::int64_t item,
              char* space) noexcept {
    for (Rows* const rows : {&stream, &normed, &attended}) {
      const std::int64_t width = (rows == &attended ? attended.stride : normed.stride) * item;
      const auto row = [&](std::int64_t at) { return rows->data + at * rows->stride * item; };
      for (std::int64_t at = 0; rows->data != nullptr && at < count; ++at) {
        std::memcpy(space + at * width, row(wanted[at]), width);
      }
      for (std::int64_t at = 0; rows->data != nullptr && at < count; ++at) {
        std::memcpy(row(at), space + at * width, width);
      }
      rows->count = count;
    }
    branch.count = count;
  }
};

// The rows of a step that somebody asks for: what no other row needs of the last block is computed
// for these alone.
struct Wanted {
  bool are_all = true;
  const std::int64_t* rows = nullptr;
  std::int64_t count = 0;
  std::optional<Asked> asked;  // of them, where the last block's attention is for them alone

  // False comes with a Python error.
  bool read(PyObject* tensor, std::int64_t tokens) {
    if (tensor == Py_None) return true;
    View view;
    if (!look_at(tensor, view)) return false;
    if (view.dims != 1 || !is_dtype(view.dtype, "torch.int64") || !view.is_cpu ||
        (view.sizes[0] != 0 && !view.is_dense_from(0))) {
      refuse("wanted rows are", tensor, "[rows] torch.int64 on cpu is expected");
      return false;
    }
#ifdef ASYNCGEN_CHECK
    if (view.sizes[0] != 0 && !lies_within(tensor, view, sizeof(std::int64_t))) return false;
#endif
    are_all = false;
    rows = view.as<std::int64_t>();
    count = view.sizes[0];
    for (std::int64_t at = 0; at < count; ++at) {
      if (rows[at] >= 0 && rows[at] < tokens) continue;
      PyErr_Format(PyExc_ValueError, "wanted rows are of 0 to %lld, not %lld",
                   static_cast<long long>(tokens - 1), static_cast<long long>(rows[at]));
      return false;
    }
    if (count <= tokens) return true;
    PyErr_Format(PyExc_ValueError, "at most all %lld rows are wanted, not %lld",
                 static_cast<long long>(tokens), static_cast<long long>(count));
    return false;
  }

  // False comes with a Python error.
  bool ask_for(Pages& pages) {
    try {
      asked = ask(pages, pages.layers.back(), rows, count);
      return true;
    } catch (const std::exception&) {
      PyErr_NoMemory();
      return false;
    }
  }
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

void normalise_heads(const Block& block, const Rows& heads) noexcept {
  if (block.heads_norm == nullptr) return;
  normalise(*block.heads_norm, heads, heads);
  if (block.keys_norm == nullptr) return;
  const std::int64_t first = block.heads_norm->groups * block.heads_norm->features;
  const Rows keys(heads.data + first * item_size(block.keys_norm->kind), heads.stride, heads.count);
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

// What attention gives of rows, in the memory that the step's pages have for it; where some are
// asked for, of these alone.
void attend(const Block& block, const Rotary& rotary, const Rows& x, const Step& step, Pages& pages,
            const PagedLayer& layer, const Asked* asked) noexcept {
  const Rows heads(step.heads, heads_width(block), x.count);
  if (block.latent != nullptr) {
    make_heads(*block.latent, x, heads, step.memory);
  } else {
    multiply(*block.qkv, x, heads, STORE);
  }
  if (!block.is_normed_turned) normalise_heads(block, heads);
  if (block.rope >= 0) {
    turn_heads(rotary, heads, pages.num_heads + pages.kv_heads, step.angles[block.rope]);
  }
  if (block.is_normed_turned) normalise_heads(block, heads);
  attend_in(pages, layer, heads.data, heads.stride, block.sinks, asked);
  if (block.latent != nullptr) cut_values(*block.latent, step.attended);
  if (block.has_gates) {
    const Rows gates(heads.data + token_size(block) * item_size(rotary.kind), heads.stride,
                     heads.count);
    pass_gates(rotary.kind, step.attended, gates, block.output->inputs);
  }
}

// Adds what goes on from a state to the stream.
void mix(const Block& block, const Rows& x, const Step& step, const States& states,
         std::size_t place) noexcept {
  const StateLayer& layer = states.layers[place];
  const Mixer& mixer = *block.mixer;
  if (block.output_scale == 1.0f) {
    return mixer.mix(x, step.stream, ADD, layer, states.runs(), step.memory);
  }
  mixer.mix(x, step.branch, STORE, layer, states.runs(), step.memory);
  add_branch(nullptr, block.output_scale, mixer.kind, step);
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
  const auto first = static_cast<std::size_t>(layers.attending);
  if (pages.layers.size() != layers.blocks.size() || pages.kind != layers.rotary->kind ||
      pages.token_size() != token_size(layers.blocks[first])) {
    return false;
  }
  for (std::size_t number = first; number < layers.blocks.size(); ++number) {
    const Block& block = layers.blocks[number];
    if (attends(block) && !is_of(block, pages, pages.layers[number])) return false;
  }
  return true;
}

// Whether a step's states are those of these blocks' mixers, one after another.
bool are_of(const States& states, const Layers& layers) {
  std::size_t place = 0;
  if (states.kind != layers.rotary->kind) return false;
  for (const Block& block : layers.blocks) {
    if (block.mixer == nullptr) continue;
    if (place == states.layers.size() || !block.mixer->is_of(states.layers[place])) return false;
    ++place;
  }
  return place == states.layers.size();
}

// Reads the angles of one rope, (cosines, sines) or (cosines, sines, factors on queries).
bool read_rope(PyObject* item, const Layers& layers, const Pages& pages, Angles& angles) {
  PyObject *cosines, *sines, *factors = nullptr;
  const std::int64_t tokens = pages.num_tokens;
  if (!is_tuple("what a rope has of cosines and sines", item) ||
      !PyArg_ParseTuple(item, "OO|O", &cosines, &sines, &factors) ||
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
bool read_ropes(const Reference& ropes, const Layers& layers, const Pages& pages,
                std::vector<Angles>& angles) {
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
bool is_stream(PyObject* tensor, const View& stream, const Layers& layers, std::int64_t tokens) {
  if (!stream.has_shape({tokens, layers.width}) || stream.dtype != layers.rotary->dtype ||
      !stream.is_cpu || !stream.is_dense_from(1) || !stream.has_rows_apart()) {
    refuse("the stream is", tensor, "the step that was laid out has [%lld, %lld] %S on cpu",
           static_cast<long long>(tokens), static_cast<long long>(layers.width),
           layers.rotary->dtype);
    return false;
  }
#ifdef ASYNCGEN_CHECK
  return lies_within(tensor, stream, item_size(layers.rotary->kind));
#else
  return true;
#endif
}

// What a step's rows have of earlier tokens, pages or states or both, in this thread's hands.
class Held {
 public:
  // False comes with a Python error.
  bool take(PyObject* context) {
    if (!PyTuple_Check(context)) return take_one(context);
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(context); ++at) {
      if (!take_one(PyTuple_GET_ITEM(context, at))) return false;
    }
    return true;
  }
  // Whether it is what these layers need, and of one step.
  bool fits(const Layers& layers) const {
    bool mixes = false;
    for (const Block& block : layers.blocks) mixes = mixes || block.mixer != nullptr;
    if ((pages_ != nullptr) != (layers.attending >= 0) || (states_ != nullptr) != mixes) {
      return false;
    }
    if (pages_ != nullptr && states_ != nullptr && pages_->num_tokens != states_->num_tokens) {
      return false;
    }
    return (pages_ == nullptr || are_of(*pages_, layers)) &&
           (states_ == nullptr || are_of(*states_, layers));
  }
  std::int64_t num_tokens() const {
    return pages_ != nullptr ? pages_->num_tokens : states_->num_tokens;
  }
  Pages* pages() const { return pages_; }
  States* states() const { return states_; }

 private:
  bool take_one(PyObject* object) {
    if (PyObject_TypeCheck(object, type_of<States>)) {
      states_ = &unbox<States>(object);
      held_states_.emplace(*states_);
      return static_cast<bool>(*held_states_);
    }
    if ((pages_ = unbox_as<Pages>(object)) == nullptr) return false;
    held_pages_.emplace(*pages_);
    return static_cast<bool>(*held_pages_);
  }

  Pages* pages_ = nullptr;
  States* states_ = nullptr;
  std::optional<Hold> held_pages_;
  std::optional<HeldStates> held_states_;
};

// Where logits of the rows that are wanted go, if anywhere.
struct Logits {
  char* data = nullptr;
  std::int64_t stride = 0;

  // False comes with a Python error.
  bool read(PyObject* tensor, const Layers& layers, std::int64_t count) {
    if (tensor == Py_None) return true;
    if (layers.head == nullptr) {
      PyErr_SetString(PyExc_ValueError, "these layers have no head to make logits with");
      return false;
    }
    View view;
    if (!look_at(tensor, view)) return false;
    if (!view.has_shape({count, layers.head->outputs}) || view.dtype != layers.head->dtype ||
        !view.is_cpu || !view.is_dense_from(1) || !view.has_rows_apart()) {
      refuse("logits are", tensor, "[%lld, %lld] %S on cpu is expected",
             static_cast<long long>(count), static_cast<long long>(layers.head->outputs),
             layers.head->dtype);
      return false;
    }
    data = view.data;
    stride = view.strides[0];
#ifdef ASYNCGEN_CHECK
    return lies_within(tensor, view, item_size(layers.head->kind));
#else
    return true;
#endif
  }
};

// Runs the blocks over a step in memory of theirs.
void run_blocks(const Layers& layers, Step& step, const Held& held, const Wanted& wanted) noexcept {
  std::size_t mixers = 0;
  for (std::size_t number = 0; number < layers.blocks.size(); ++number) {
    const Block& block = layers.blocks[number];
    const bool is_narrowed = !wanted.are_all && number + 1 == layers.blocks.size();
    const auto narrow = [&] {
      const std::int64_t item = item_size(layers.rotary->kind);
      if (is_narrowed) step.narrow(wanted.rows, wanted.count, item, step.memory);
    };
    const auto normed = [&](const Norm* norm) -> const Rows& {
      if (norm == nullptr) return step.stream;
      normalise(*norm, step.stream, step.normed);
      return step.normed;
    };
    const auto stay = [&](const Norm* norm) {
      if (norm != nullptr) normalise(*norm, step.stream, step.stream);
    };
    const Rows* x = &normed(block.input_norm);
    stay(block.input_stay);
    if (attends(block)) {
      const Asked* asked = is_narrowed && wanted.asked ? &*wanted.asked : nullptr;
      attend(block, *layers.rotary, *x, step, *held.pages(), held.pages()->layers[number], asked);
      if (block.mixer == nullptr) narrow();
      if (step.stream.count == 0) return;
      // Of parallel parts the second sees what the first saw, or another norm of it.
      if (block.is_parallel && block.post_norm != nullptr) x = &normed(block.post_norm);
      add_product(*block.output, block.output_norm, block.output_scale, step.attended, step);
    }
    if (block.mixer != nullptr) mix(block, *x, step, *held.states(), mixers++);
    if (block.mixer != nullptr || !attends(block)) narrow();
    if (step.stream.count == 0) return;
    if (!feeds(block)) continue;
    // What feeds forward alone has one norm, and without any sees the stream behind attention.
    const bool is_second = attends(block) && block.mixer == nullptr;
    if (!block.is_parallel && (is_second || block.post_norm != nullptr)) {
      x = &normed(block.post_norm);
      stay(block.post_stay);
    }
    feed_forward(block, *x, step);
  }
}

// The same, and the logits; false: a debug build found an error.
bool run_step(const Layers& layers, Step& step, const Held& held, const Wanted& wanted,
              const Logits& logits) {
  return run_unlocked([&]() noexcept {
    rouse_team();
    run_blocks(layers, step, held, wanted);
    if (logits.data == nullptr || step.stream.count == 0) return;
    normalise(*layers.norm, step.stream, step.normed);
    multiply(*layers.head, step.normed, Rows(logits.data, logits.stride, step.stream.count), STORE);
  });
}

PyObject* run(PyObject* self, PyObject* const* args) {
  Layers& layers = unbox<Layers>(self);
  View stream;
  if (!look_at(args[0], stream)) return nullptr;
  Held held;
  if (!held.take(args[2])) return nullptr;
  if (!held.fits(layers)) {
    PyErr_SetString(PyExc_ValueError, "these pages and states are those of other blocks");
    return nullptr;
  }
  Wanted wanted;
  if (!wanted.read(args[3], held.num_tokens())) return nullptr;
  const Block& last = layers.blocks.back();
  if (!wanted.are_all && attends(last) && last.mixer == nullptr && !wanted.ask_for(*held.pages())) {
    return nullptr;
  }
  Logits logits;
  if (!logits.read(args[4], layers, wanted.are_all ? held.num_tokens() : wanted.count)) {
    return nullptr;
  }
  const Reference ropes(PySequence_Tuple(args[1]));  // perhaps nobody else has them
  std::vector<Angles> angles;
  if (!ropes || !is_stream(args[0], stream, layers, held.num_tokens()) ||
      (held.pages() != nullptr && !read_ropes(ropes, layers, *held.pages(), angles))) {
    return nullptr;
  }
  const std::int64_t tokens = held.num_tokens(), item = item_size(layers.rotary->kind);
  const auto bytes = [&](std::int64_t width) {
    return Memory::rounded(static_cast<std::size_t>(tokens * width * item));
  };
  std::size_t most = 0, branch = 0;  // of what lies between, and of branches
  std::int64_t qkv = 0;
  for (const Block& block : layers.blocks) {
    if (block.experts != nullptr) most = std::max(most, memory_for(*block.experts, tokens));
    if (block.down != nullptr) most = std::max(most, bytes(block.down->inputs));
    if (block.latent != nullptr) most = std::max(most, memory_for(*block.latent, tokens));
    if (block.mixer != nullptr) most = std::max(most, block.mixer->memory_for(tokens));
    if (attends(block)) qkv = std::max(qkv, heads_width(block));
    if (has_branch(block)) branch = bytes(layers.width);
  }
  const Pages* const pages = held.pages();
  const std::int64_t attended = pages == nullptr ? 0 : pages->num_heads * pages->size;
  const std::int64_t widest = std::max(layers.width, attended);
  most = std::max(most, static_cast<std::size_t>(wanted.count * widest * item));
  Memory memory = std::exchange(layers.memory, {});
  if (!memory.hold(bytes(layers.width) + branch + bytes(qkv) + most)) return PyErr_NoMemory();
  char* const branch_at = memory.data() + bytes(layers.width);
  char* const qkv_at = branch_at + branch;
  Step step{Rows(stream),
            Rows(memory.data(), layers.width, tokens),
            Rows(branch_at, layers.width, tokens),
            qkv_at,
            pages == nullptr ? Rows(nullptr, 0, tokens)
                             : Rows(pages->out_at, pages->num_heads * pages->size, tokens),
            std::move(angles),
            qkv_at + bytes(qkv)};
  const bool is_done = run_step(layers, step, held, wanted, logits);
  if (memory.is_small()) layers.memory = std::move(memory);
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    METHOD("run", run, 5,
           "run($self, stream, angles, attention, wanted, logits, /)\n--\n\n"
           "Add what the blocks compute to the stream of the step that `attention` has laid out. Of\n"
           "rows that are wanted, int64 in any order, the results lie at its beginning. Their logits\n"
           "go to `logits`, where it is a tensor."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_layers(PyObject* module) {
  return add_type<Layers>(module, "asyncgen.native._kernels.Layers", make, methods,
                          "Layers(blocks, *, rotary, width, norm, head)\n--\n\n"
                          "The blocks of a decoder, one after another, its last norm and head.");
}
