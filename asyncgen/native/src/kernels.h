// The kernels, each a function of one struct: asyncgen/native/src/*_object.cpp fill them in from
// tensors and see to it that the tensors are large enough. Sizes and strides count elements; memory
// is contiguous where no stride is given. Kernels run on a team of threads (team.h), without Python's
// lock, and allocate nothing: nothing is thrown through them. In several dtypes a kernel has one name
// and an overload for each; `for_kind` (parts.h) finds the one of a tensor.
#pragma once

#include <cstdint>

using bf16 = std::uint16_t;  // the upper half of a float's bits
struct f16 {                 // of IEEE 754: it is widened to be computed with, and rounded behind
  std::uint16_t bits;
};

// What becomes of a product.
enum Use : std::int64_t {
  STORE = 0,     // out = product
  ADD = 1,       // out += product
  // out = act(product of even halves of a panel) * product of odd ones, and act is
  GATE_SILU = 2,
  GATE_GELU = 3,
  GATE_GELU_TANH = 4,
  GATE_CLAMPED = 5,  // x * sigmoid(alpha * x) of both clamped, times one more than the odd ones
  // out = act(product), and act is
  SILU = 6,
  GELU = 7,
  GELU_TANH = 8,
  RELU = 9,
  RELU_SQUARED = 10
};
inline bool is_gate(Use use) { return use >= GATE_SILU && use <= GATE_CLAMPED; }
inline bool is_activation(Use use) { return use >= SILU; }

// Outputs of a panel: weights lie in panels, and within a panel by inputs.
constexpr std::int64_t PANEL = 32;

// The largest head that attention is computed for.
constexpr std::int64_t MOST_SIZE = 512;

// Numbers of type T by a weight of type W: the same, or one of 16 bits that widens to a float.
template <typename T, typename W = T>
struct Product {
  const T* x;  // [rows, inputs]
  std::int64_t x_stride, rows, inputs, outputs;
  const W* weight;    // in panels
  const float* bias;  // [panels * PANEL] or null
  T* out;             // [rows, outputs], half as many for a gate
  std::int64_t out_stride;
  Use use;
  float alpha, limit;  // of GATE_CLAMPED
};

void multiply(const Product<float>& product) noexcept;
void multiply(const Product<float, bf16>& product) noexcept;
void multiply(const Product<float, f16>& product) noexcept;
void multiply(const Product<f16>& product) noexcept;
void multiply(const Product<bf16>& product) noexcept;
void multiply_amx(const Product<bf16>& product) noexcept;

// Rows that lie together and are multiplied by the same matrix of several.
struct Group {
  std::int64_t matrix, first, rows;
  std::int64_t piece;  // of the work of all groups, its first
};

// Products of groups of rows, each by a matrix of its own; all matrices are of one size.
template <typename T, typename W = T>
struct Grouped {
  Product<T, W> all;         // of all rows, and the first matrix
  std::int64_t matrix_size;  // numbers from one matrix to the next
  const Group* groups;
  std::int64_t num_groups, num_pieces;
};

// The work of some rows by one matrix is cut into so many pieces.
std::int64_t pieces_of(std::int64_t rows, std::int64_t outputs);

void multiply(const Grouped<float>& products) noexcept;
void multiply(const Grouped<float, bf16>& products) noexcept;
void multiply(const Grouped<float, f16>& products) noexcept;
void multiply(const Grouped<f16>& products) noexcept;
void multiply(const Grouped<bf16>& products) noexcept;
void multiply_amx(const Grouped<bf16>& products) noexcept;

// The most experts that there is a choice of.
constexpr std::int64_t MOST_EXPERTS = 1024;

// How the experts of a token are chosen, and what each weighs.
enum class Scoring {
  SOFTMAX,
  SIGMOID,
  SPARSEMIXER  // two experts: each the largest of those that are not far below it
};
struct Routing {
  Scoring scoring;
  std::int64_t experts, chosen;
  // Only experts of the best groups are chosen; a group is worth the sum of so many of its best.
  std::int64_t groups, chosen_groups, best_of_group;
  bool is_normalised;       // weights of a token's experts sum up to `scale`
  bool weighs_inputs;       // they are factors on what experts are given, not on what they give
  bool corrects_logits;     // a correction is added to logits, not to scores
  float scale, tolerance;   // the latter of SPARSEMIXER
  const float* correction;  // [experts] added to scores for the choice alone, or null
};

// Experts `ids` and their `weights`, [rows, chosen] each, of logits [rows, experts ...]. Logits of
// which one is not a number give weights that are not.
void choose_experts(const Routing& routing, const float* logits, std::int64_t stride,
                    std::int64_t rows, std::int32_t* ids, float* weights) noexcept;

// Rows of x at those places of `out` [pairs, features] that `places` [rows, chosen] tells, times
// their weights if there are any.
template <typename T>
struct Spread {
  const T* x;
  std::int64_t x_stride, rows, chosen, features;
  const std::int32_t* places;
  const float* weights;  // [rows, chosen] or null
  T* out;
};

void spread(const Spread<float>& spread) noexcept;
void spread(const Spread<bf16>& spread) noexcept;
void spread(const Spread<f16>& spread) noexcept;

// Adds to each row of a stream the weighted sum of what its experts gave, in their order, and what
// an expert of all gave, if there is one.
template <typename T>
struct Mixture {
  T* stream;
  std::int64_t stride, rows, chosen, features;
  const T* results;  // [pairs, features]
  const std::int32_t* places;
  const float* weights;  // [rows, chosen]
  const T* shared;       // [rows, features] or null
  const float* gates;    // logits of what lets those through, `gate_stride` apart, or null
  std::int64_t gate_stride;
};

void mix(const Mixture<float>& mixture) noexcept;
void mix(const Mixture<bf16>& mixture) noexcept;
void mix(const Mixture<f16>& mixture) noexcept;

// Rows in float32.
void widen_rows(const bf16* x, std::int64_t stride, std::int64_t rows, std::int64_t features,
                float* out) noexcept;
void widen_rows(const f16* x, std::int64_t stride, std::int64_t rows, std::int64_t features,
                float* out) noexcept;

// Norm of `groups` times `features` values of each row, with a weight for each of them: by their
// root mean square, or by mean and variance. `out` may be `x`.
template <typename T>
struct Normalisation {
  const T* x;
  std::int64_t x_stride;
  T* out;
  std::int64_t out_stride;
  const float* weight;  // [groups, features]
  const float* bias;    // the same, or null
  bool is_centred;      // by mean and variance
  std::int64_t rows, groups, features;
  float eps;
};

void normalise(const Normalisation<float>& norm) noexcept;
void normalise(const Normalisation<bf16>& norm) noexcept;
void normalise(const Normalisation<f16>& norm) noexcept;

// Scales rows in place, and adds them to those of a stream.
template <typename T>
struct Addition {
  T* x;
  std::int64_t x_stride;
  T* stream;
  std::int64_t stride, rows, features;
  float scale;
};

void add(const Addition<float>& addition) noexcept;
void add(const Addition<bf16>& addition) noexcept;
void add(const Addition<f16>& addition) noexcept;

// Rotary positions of the first `turned` heads of each token, in place. Cosines and sines are
// [tokens, 2, head_dim / 2], the sines of first halves negated. Of these heads the first `scaled`
// are then multiplied by their token's factor.
template <typename T>
struct Rotation {
  T* heads;
  std::int64_t stride;
  const T *cosines, *sines;
  std::int64_t angle_stride, tokens, turned, head_dim;
  const T* factors;  // [tokens], or null
  std::int64_t scaled;
};

void rotate(const Rotation<float>& rotation) noexcept;
void rotate(const Rotation<bf16>& rotation) noexcept;
void rotate(const Rotation<f16>& rotation) noexcept;

// Multiplies rows by the sigmoid of gates, in place.
template <typename T>
struct Gates {
  T* x;  // [rows, features]
  std::int64_t x_stride;
  const T* gates;
  std::int64_t stride, rows, features;
};

void pass_gates(const Gates<float>& gates) noexcept;
void pass_gates(const Gates<bf16>& gates) noexcept;
void pass_gates(const Gates<f16>& gates) noexcept;

// Bans tokens of some rows: the score becomes -inf wherever the bit of a token is not set.
struct Ban {
  float* scores;  // [all rows, vocab]
  std::int64_t stride, vocab;
  const std::uint32_t* words;  // [rows, num_words], a bit for each token
  std::int64_t num_words;
  const std::int64_t* places;  // [rows] which rows of the scores they are
  std::int64_t rows;
};

void ban(const Ban& ban) noexcept;

// The largest score of each row, and the first place where it is. Of a row with NaN, NaN and the place
// of the first one.
template <typename T>
struct Largest {
  const T* scores;  // [rows, vocab]
  std::int64_t stride, rows, vocab;
  float* values;         // [rows]
  std::int64_t* places;  // [rows]
};

void argmax(const Largest<float>& largest) noexcept;
void argmax(const Largest<bf16>& largest) noexcept;
void argmax(const Largest<f16>& largest) noexcept;

// Some tokens of one text: the first one's number in the step, how many there are, the position of
// the first, and where the text's page table begins in the step's list of pages.
struct Row {
  std::int64_t token, count, start, pages;
};

// Heads of type T over pages of codes of 8 bits (asyncgen/cache/codes.py), where T alone stands for
// pages of what heads are.
template <typename T>
struct Coded;

template <typename T>
struct Kept {
  using Head = T;
  using Page = T;
};
template <typename T>
struct Kept<Coded<T>> {
  using Head = T;
  using Page = std::int8_t;
};
template <typename T>
using Head = typename Kept<T>::Head;
template <typename T>
using Page = typename Kept<T>::Page;

// Keys, or values, of all pages.
template <typename T>
struct Store {
  Page<T>* numbers;  // [num_pages, kv_heads, page_size, size]
  float* scales;     // [num_pages, kv_heads, page_size] of codes; others have none
};

// Writes the keys and values of a step's tokens into their pages, and attends for those that are
// asked for.
template <typename T>
struct Attention {
  const Head<T>* heads;  // [tokens, num_heads + 2 * kv_heads, size]
  std::int64_t stride;   // from token to token
  Head<T>* out;          // [tokens, num_heads * size]
  Store<T> keys, values;
  const Row *rows, *asked;  // whose keys are kept, and whose queries attend
  const std::int64_t* pages;
  std::int64_t num_rows, num_asked, num_pages, num_heads, kv_heads;
  std::int64_t size;  // of a head, at most MOST_SIZE
  std::int64_t page_size;
  std::int64_t window;  // keys that a query sees, itself included, or 0 for all
  bool is_chunked;      // whether they are those of its chunk of so many
  float scale;
  float cap;            // soft cap of the scores, or 0
  const float* slopes;  // [num_heads] by distance (ALiBi), or null
  const float* sinks;   // [num_heads] scores without a key, or null
};

// How a step's work is divided; it changes no result.
struct Division {
  std::int64_t most_splits;  // of keys that one task has; of texts with more, each has its own
  std::int64_t most_queries;  // of a key head that one task has
  std::int64_t num_tokens, num_tasks;
  std::int64_t memory;  // floats for what tasks leave to be merged
};

Division divide(const Attention<float>& attention) noexcept;
Division divide(const Attention<bf16>& attention) noexcept;
Division divide(const Attention<f16>& attention) noexcept;

// `memory` has as many floats as the division says.
void attend(const Attention<float>& step, const Division& division, float* memory) noexcept;
void attend(const Attention<bf16>& step, const Division& division, float* memory) noexcept;
void attend(const Attention<f16>& step, const Division& division, float* memory) noexcept;
void attend(const Attention<Coded<float>>& step, const Division& division, float* memory) noexcept;
void attend(const Attention<Coded<bf16>>& step, const Division& division, float* memory) noexcept;
void attend(const Attention<Coded<f16>>& step, const Division& division, float* memory) noexcept;
void attend_amx(const Attention<bf16>& step, const Division& division, float* memory) noexcept;
