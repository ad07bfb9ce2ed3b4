// What the blocks of `Layers` are made of, as Python hands it over.

#include "layers.h"

namespace {

template <typename T>
bool read_part(PyObject* object, T*& part) {
  part = nullptr;
  return object == Py_None || (part = unbox_as<T>(object)) != nullptr;
}

// A product and one down, or experts and nothing, or nothing at all.
bool read_feed_forward(PyObject* first, PyObject* down, Block& block) {
  block.up = block.down = nullptr;
  block.experts = nullptr;
  if (first == Py_None && down == Py_None) return true;
  if (down == Py_None) return (block.experts = unbox_as<Experts>(first)) != nullptr;
  return (block.up = unbox_as<Linear>(first)) && (block.down = unbox_as<Linear>(down));
}

// What goes on from a state, if there is anything.
bool read_mixer(PyObject* object, Block& block) {
  block.mixer = object == Py_None ? nullptr : mixer_of(object);
  if (object == Py_None || block.mixer != nullptr) return true;
  PyErr_Format(PyExc_TypeError, "%R is no mixer", object);
  return false;
}

// What makes heads, a product or latent rows; nothing where the block does not attend.
bool read_heads(PyObject* object, Block& block) {
  block.latent = nullptr;
  block.qkv = nullptr;
  if (object == Py_None) return true;
  const bool is_latent = PyObject_TypeCheck(object, type_of<Latent>);
  block.latent = is_latent ? &unbox<Latent>(object) : nullptr;
  block.qkv = is_latent ? nullptr : unbox_as<Linear>(object);
  return is_latent || block.qkv != nullptr;
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

}  // namespace

bool read_block(PyObject* item, Block& block) {
  PyObject *input, *qkv, *heads, *keys, *sinks, *output, *output_norm, *post, *up, *down, *down_norm;
  PyObject *mixer, *input_stay, *post_stay;
  int is_normed_turned, is_parallel, has_gates;
  long long rope;
  if (!is_tuple("a block", item) ||
      !PyArg_ParseTuple(item, "OOOOpLOOOOOOOpffOpOO", &input, &qkv, &heads, &keys, &is_normed_turned,
                        &rope, &sinks, &output, &output_norm, &post, &up, &down, &down_norm,
                        &is_parallel, &block.output_scale, &block.down_scale, &mixer, &has_gates,
                        &input_stay, &post_stay)) {
    return false;
  }
  block.is_normed_turned = is_normed_turned;
  block.is_parallel = is_parallel;
  block.has_gates = has_gates;
  block.rope = rope;
  return read_part(input, block.input_norm) && read_heads(qkv, block) &&
         read_part(heads, block.heads_norm) && read_part(keys, block.keys_norm) &&
         read_sinks(sinks, block) && read_part(output, block.output) && read_mixer(mixer, block) &&
         read_part(output_norm, block.output_norm) && read_part(post, block.post_norm) &&
         read_feed_forward(up, down, block) && read_part(down_norm, block.down_norm) &&
         read_part(input_stay, block.input_stay) && read_part(post_stay, block.post_stay);
}

bool read_ends(PyObject* norm, PyObject* head, Layers& layers) {
  if (!read_part(norm, layers.norm) || !read_part(head, layers.head)) return false;
  if (layers.norm == nullptr && layers.head == nullptr) return true;
  const Kind kind = layers.rotary->kind;
  if (layers.norm != nullptr && layers.head != nullptr && layers.norm->kind == kind &&
      layers.norm->groups == 1 && layers.norm->features == layers.width &&
      layers.head->kind == kind && layers.head->inputs == layers.width &&
      layers.head->matrices == 1 && layers.head->use == STORE) {
    return true;
  }
  PyErr_SetString(PyExc_ValueError, "the last norm and the head do not fit to the blocks");
  return false;
}

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
    if (!feeds(block)) return !block.is_parallel;
    if (block.experts != nullptr) {
      return block.experts->gate_up->kind == kind && block.experts->width() == layers.width;
    }
    return is_linear(*block.up, layers.width) && block.up->use != STORE &&
           is_plain(*block.down, block.up->outputs >> block.up->is_gated) &&
           block.down->outputs == layers.width;
  };
  const auto is_made = [&] {
    if (block.latent == nullptr) return is_plain(*block.qkv, layers.width);
    return is_plain(*block.latent->latents, layers.width) && !block.has_gates;
  };
  const auto is_attention = [&] {
    if (!attends(block)) {
      return block.output == nullptr && block.heads_norm == nullptr && block.sinks == nullptr &&
             !block.has_gates && !block.is_parallel && block.rope == -1;
    }
    if (block.output == nullptr || !is_made()) return false;
    const Block& first = layers.blocks[static_cast<std::size_t>(layers.attending)];
    return token_size(block) == token_size(first) &&
           is_plain(*block.output, first.output->inputs) && block.output->outputs == layers.width;
  };
  const auto is_mixer = [&] {
    return block.mixer == nullptr ||
           (block.mixer->kind == kind && block.mixer->width == layers.width && !block.is_parallel);
  };
  const auto is_heads_norm = [&](const Norm* norm) {
    return norm == nullptr || norm->kind == kind;
  };
  // A norm of the stream is elsewhere before another one takes the stream's place.
  const auto is_stay = [&](const Norm* stay, const Norm* norm) {
    return stay == nullptr || (is_norm(stay) && norm != nullptr && !block.is_parallel);
  };
  // Without any norm the second of parallel parts would see what the first has added.
  const bool is_seen =
      !block.is_parallel || block.input_norm != nullptr || block.post_norm != nullptr;
  return is_stay(block.input_stay, block.input_norm) &&
         is_stay(block.post_stay, block.post_norm) && is_norm(block.input_norm) && is_norm(block.output_norm) && is_norm(block.post_norm) &&
         is_norm(block.down_norm) && is_seen && is_attention() && is_mixer() &&
         is_heads_norm(block.heads_norm) && is_heads_norm(block.keys_norm) && block.rope >= -1 &&
         is_feed_forward();
}
