// What layers are made of, as C++ sees it: the Python types of this module hold these.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels.h"
#include "linear_packed.h"
#include "memory.h"
#include "objects.h"

// Calls `use` with a number of the type that a kind stands for; the type is all that it says.
template <typename Call>
auto for_kind(Kind kind, Call use) noexcept {
  if (kind == Kind::FLOAT32) return use(float{});
  if (kind == Kind::BFLOAT16) return use(bf16{});
  return use(f16{});
}

// Rows of a tensor, or of memory of our own; the stride counts elements.
struct Rows {
  char* data;
  std::int64_t stride, count;

  Rows(char* data, std::int64_t stride, std::int64_t count)
      : data(data), stride(stride), count(count) {}
  explicit Rows(const View& view) : Rows(view.data, view.strides[0], view.sizes[0]) {}
};

// What a weight's numbers are: those of its rows, of 16 bits for rows in float32, or of 4 or 8 bits;
// or it consists of others, which give some of the outputs each.
enum class Stored { AS_ROWS, BFLOAT16, FLOAT16, PACKED, JOINED };

// A weight in panels, and its bias; or several of one size, one behind the other.
struct Linear {
  Reference weight, bias;  // kept as long as their addresses are used
  const void* weight_at;
  const float* bias_at;
  PyObject* dtype;  // of rows and results
  Kind kind;
  Stored stored;
  bool is_gated;
  bool uses_tiles;  // AMX, at bfloat16
  Use use;  // what becomes of its product where nothing else is said
  std::int64_t inputs, outputs, matrices;
  std::int64_t matrix_size;  // numbers of a matrix in panels
  std::vector<PackedLayout> packed = {};  // one a matrix, of PACKED
  std::vector<Linear*> joined = {};       // in the order of their outputs, of JOINED
};

void multiply(const Linear& linear, const Rows& x, const Rows& out, Use use) noexcept;

// The same with a weight of 4 or 8 bits. Where there is no memory for the rows as integers, results
// are no numbers, which nothing is picked by.
void multiply_packed(const Linear& linear, const Rows& x, const Rows& out, Use use) noexcept;

// What a gate of some activation makes of a product; false, and a Python error, if it is not known.
bool read_gate(const char* activation, Use& use);

// What becomes of a product by an activation of all of it or of a gate, null for none; false, and a
// Python error, if it is not known.
bool read_activation(const char* name, bool is_gated, Use& use);

// What multiplies the groups of some rows, each by the matrix that it names.
struct Groups {
  const Group* groups;
  std::int64_t count, pieces;
};
struct Gate {
  Use use;
  float alpha, limit;
};
void multiply(const Linear& linear, const Rows& x, const Rows& out, const Gate& gate,
              const Groups& groups) noexcept;
void multiply_packed(const Linear& linear, const Rows& x, const Rows& out, const Gate& gate,
                     const Groups& groups) noexcept;

// A feed-forward of which each token uses a few of many, as a router chooses.
struct Experts {
  Reference parts;
  Linear *router, *gate_up, *down;        // the router's are in float32, and its last output
  Linear *shared_gate_up, *shared_down;   // may be the gate of these, which may be null
  Linear *enter, *leave;  // to the rows that experts take, and back from those they give, or null
  bool is_shared_gated;
  Gate gate;
  Routing routing;
  Memory memory;  // taken out while in use

  std::int64_t width() const { return router->inputs; }     // of the stream
  std::int64_t inner() const { return gate_up->inputs; }  // of what experts take and give
};

// Bytes that `mix_experts` needs for so many rows.
std::size_t memory_for(const Experts& experts, std::int64_t rows);

// Adds to the stream what the experts of each row make of it.
// A choice that was made before, [rows, chosen], takes the place of the router's.
void mix_experts(const Experts& experts, const Rows& x, const Rows& stream, char* memory,
                 const std::int32_t* ids = nullptr, const float* weights = nullptr) noexcept;

// A norm, by the root mean square or by mean and variance.
struct Norm {
  Reference weight, bias;
  const float *weight_at, *bias_at;  // the latter may be null
  bool is_centred;
  PyObject* dtype;
  Kind kind;
  std::int64_t groups, features;
  float eps;
};

void normalise(const Norm& norm, const Rows& x, const Rows& out) noexcept;

// Scales rows of so many features in place, and adds them to those of a stream.
void add_rows(Kind kind, const Rows& x, std::int64_t features, float scale,
              const Rows& stream) noexcept;

// Rotary positions.
struct Rotary {
  PyObject* dtype;
  Kind kind;
};

// What makes queries, keys and values of short rows of each token.
struct Latent {
  Reference parts;
  Linear *latents, *queries, *keys_values;
  Norm *query_norm, *latent_norm;  // the former is null where queries are made of the stream
  std::int64_t heads, turned, unturned, values, size;  // the last is that of a head
  Memory memory;                                       // taken out while in use

  std::int64_t key() const { return turned + unturned; }
  std::int64_t query_rank() const { return query_norm == nullptr ? 0 : query_norm->features; }
  std::int64_t rank() const { return latent_norm->features; }
  std::int64_t token_size() const { return 3 * heads * size; }
};

// Bytes that `make_heads` needs for so many rows.
std::size_t memory_for(const Latent& latent, std::int64_t rows);

// Makes heads [rows, 3, heads, size], not turned yet, of rows of the stream.
void make_heads(const Latent& latent, const Rows& x, const Rows& out, char* memory) noexcept;

// Cuts off the zeros behind what was gathered of values: [rows, heads, size] becomes, in place and
// with the same stride, [rows, heads, values].
void cut_values(const Latent& latent, const Rows& gathered) noexcept;

// Cosines and sines of some tokens, and factors on the first `scaled` heads, or null.
struct Angles {
  const char *cosines, *sines;
  std::int64_t stride, head_dim;
  const char* factors;
  std::int64_t scaled;
};

// False, and a Python error, if they are not those of so many tokens.
bool read_angles(const Rotary& rotary, PyObject* cosines, PyObject* sines, std::int64_t tokens,
                 std::int64_t head_dim, Angles& angles);
void turn_heads(const Rotary& rotary, const Rows& heads, std::int64_t turned,
                const Angles& angles) noexcept;

// Numbers of an array of Python's, kept as long as they are read.
class Numbers {
 public:
  Numbers() = default;
  Numbers(Numbers&& other) noexcept : buffer_(other.buffer_) { other.buffer_ = {}; }
  Numbers& operator=(Numbers&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~Numbers() { PyBuffer_Release(&buffer_); }

  bool read(PyObject* array) {
    if (PyObject_GetBuffer(array, &buffer_, PyBUF_CONTIG_RO | PyBUF_FORMAT) != 0) return false;
    const char* format = buffer_.format;
    const bool is_integer = format != nullptr && (*format == 'q' || *format == 'l');
    if (is_integer && buffer_.itemsize == sizeof(std::int64_t)) return true;
    PyErr_SetString(PyExc_ValueError, "an array of 64-bit integers is expected");
    return false;
  }
  const std::int64_t* data() const { return static_cast<const std::int64_t*>(buffer_.buf); }
  std::int64_t count() const { return buffer_.len / static_cast<Py_ssize_t>(sizeof(std::int64_t)); }

 private:
  Py_buffer buffer_{};
};

// A layer's pages and its attention, and which of the step's page tables is its own; layers of one
// window divide a step's work alike.
struct PagedLayer {
  Reference keys, values, key_scales, value_scales;  // the latter two of codes alone
  char *keys_at, *values_at;
  float *key_scales_at, *value_scales_at;
  std::int64_t window;
  bool is_chunked;
  float scale, cap;
  bool has_sinks;
  std::vector<float> slopes;  // of query heads, or none
  std::int64_t table;
  Division division;
};

// The pages of all layers, and the step that was laid out.
struct Pages {
  std::vector<PagedLayer> layers;
  PyObject* dtype;  // of heads, and of pages that hold no codes
  Kind kind;
  bool are_coded;
  bool uses_tiles;  // AMX, at bfloat16 and of no codes
  std::int64_t num_pages, num_heads, kv_heads, size, page_size, num_tables;
  Numbers rows, pages;  // of each table all rows, one table after another
  Reference out;
  char* out_at;
  std::int64_t num_tokens;  // -1 before a step was laid out
  std::vector<float> memory;
  bool is_busy;

  std::int64_t token_size() const { return (num_heads + 2 * kv_heads) * size; }
};

// Pages in one thread's hands, as long as this exists.
class Hold {
 public:
  // A Python error, and nothing held, while another thread has them.
  explicit Hold(Pages& pages);
  Hold(const Hold&) = delete;
  ~Hold() {
    if (pages_ != nullptr) pages_->is_busy = false;
  }
  explicit operator bool() const { return pages_ != nullptr; }

 private:
  Pages* pages_;
};

// Some tokens of a step that alone attend in a layer, as rows, and how their work is divided.
struct Asked {
  std::vector<Row> rows;
  Division division;
};

// Finds the rows of tokens, in any order, and takes the memory that they need; throws where there is
// none.
Asked ask(Pages& pages, const PagedLayer& layer, const std::int64_t* tokens, std::int64_t count);

// Attends in one layer for `heads` [tokens, num_heads + 2 * kv_heads, size], tokens so many numbers
// apart. All their keys and values are kept; results are those of `asked` alone, if it is not null.
//
// `sinks` are those of the query heads, null where the layer has none.
void attend_in(Pages& pages, const PagedLayer& layer, const char* heads, std::int64_t stride,
               const float* sinks, const Asked* asked = nullptr) noexcept;

// Multiplies rows of so many features by the sigmoid of gates, in place.
void pass_gates(Kind kind, const Rows& x, const Rows& gates, std::int64_t features) noexcept;
