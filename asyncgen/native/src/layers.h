// The blocks of a decoder as C++ sees them: what one is made of.
#pragma once

#include <vector>

#include "mixers.h"

// One block: attention, or what goes on from a state, or both; and a feed-forward, or experts. What
// is null is left out.
struct Block {
  Norm *input_norm, *output_norm, *post_norm, *down_norm;
  Norm *heads_norm, *keys_norm;  // the former of queries and keys together if the latter is null
  bool is_normed_turned;         // whether heads are normalised after they were turned
  Linear* qkv;                   // or, where it is null, what makes heads of latent rows
  Latent* latent;
  const Mixer* mixer;
  bool has_gates;              // whether gates of what attention gives lie behind the heads
  Linear *output, *up, *down;  // the last two are null if there are experts
  Experts* experts;
  std::int64_t rope;   // whose angles turn the heads, or -1
  const float* sinks;  // of the query heads
  std::int64_t num_sinks;
  bool is_parallel;  // whether both parts see the stream as it was before the block
  float output_scale, down_scale;  // of what each part adds to the stream
  Norm *input_stay, *post_stay;  // what takes the stream's place once its norm was made; or null
};

struct Layers {
  Reference parts;  // keeps the blocks' parts
  std::vector<Block> blocks;
  Rotary* rotary;
  std::int64_t width;      // of the stream
  Norm* norm;              // behind the blocks, or null
  Linear* head;            // behind the norm: what makes logits; or null
  std::int64_t attending;  // the first block that attends, or -1
  Memory memory;           // taken out while in use
};

inline bool attends(const Block& block) { return block.latent != nullptr || block.qkv != nullptr; }

// Numbers of a token's heads.
inline std::int64_t token_size(const Block& block) {
  if (block.latent != nullptr) return block.latent->token_size();
  return block.qkv->outputs - (block.has_gates ? block.output->inputs : 0);
}

// The same with the gates behind them.
inline std::int64_t heads_width(const Block& block) {
  return block.latent != nullptr ? block.latent->token_size() : block.qkv->outputs;
}

inline bool feeds(const Block& block) { return block.experts != nullptr || block.up != nullptr; }

// Reads a block, a tuple; false, and a Python error, if it is none.
bool read_block(PyObject* item, Block& block);

// Reads the last norm and the head, None both or neither; false, and a Python error, if they do not
// fit to the rotary and the width that are known.
bool read_ends(PyObject* norm, PyObject* head, Layers& layers);

// Whether a block's parts fit together, and to the first block that attends.
bool fits(const Block& block, const Layers& layers);
