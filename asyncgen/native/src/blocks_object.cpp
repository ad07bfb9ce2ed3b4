// Takes blocks of GGUF files apart: codes, scales and minimums of packed weights.
//
// The blocks are those of ggml-common.h in https://github.com/ggml-org/ggml; what becomes of each is
// said in asyncgen/checkpoints/gguf/blocks.py, whose numbers these are, bit for bit.

#include <cstdint>
#include <cstring>

#include "objects.h"
#include "team.h"

namespace {

using u8 = std::uint8_t;
using i8 = std::int8_t;

// Where the parts of one block go.
struct To {
  u8* codes;
  char *scales, *minimums, *super_scales, *super_minimums;
};

inline i8* small(char* to) { return reinterpret_cast<i8*>(to); }
inline void copy_half(char* to, const u8* from) { std::memcpy(to, from, 2); }

// Lower halves of bytes, two in one, and then upper ones.
template <int BYTES>
inline void halves_of(const u8* from, u8* to) {
  for (int at = 0; at < BYTES / 2; ++at) {
    const unsigned both = from[2 * at] | static_cast<unsigned>(from[2 * at + 1]) << 8;
    to[at] = static_cast<u8>((both & 15) | (both >> 4 & 0xf0));
    to[BYTES / 2 + at] = static_cast<u8>((both >> 4 & 15) | (both >> 8 & 0xf0));
  }
}

// Two codes a byte.
template <int CODES>
inline void pair_up(const u8 (&codes)[CODES], u8* to) {
  for (int at = 0; at < CODES / 2; ++at) {
    to[at] = static_cast<u8>(codes[2 * at] | codes[2 * at + 1] << 4);
  }
}

// Two bits each of 64 bytes: all lowest of 32 bytes, then the next.
inline void pairs_of_bits(const u8* from, u8 (&to)[256]) {
  for (int half = 0; half < 2; ++half) {
    for (int shift = 0; shift < 4; ++shift) {
      for (int at = 0; at < 32; ++at) {
        to[half * 128 + shift * 32 + at] = from[half * 32 + at] >> 2 * shift & 3;
      }
    }
  }
}

// A bit each of 32 bytes, at a place in codes: all lowest, then the next.
inline void add_bits(const u8* from, int place, u8 (&to)[256]) {
  for (int bit = 0; bit < 8; ++bit) {
    for (int at = 0; at < 32; ++at) {
      to[bit * 32 + at] = static_cast<u8>(to[bit * 32 + at] | (from[at] >> bit & 1) << place);
    }
  }
}

void q4_0(const u8* block, const To& to) {
  copy_half(to.scales, block);
  halves_of<16>(block + 2, to.codes);
}

void q4_1(const u8* block, const To& to) {
  copy_half(to.scales, block);
  copy_half(to.minimums, block + 2);
  halves_of<16>(block + 4, to.codes);
}

inline void five_bits(const u8* block, const u8* fifth, int less, u8* to) {
  std::uint32_t bits;
  std::memcpy(&bits, fifth, sizeof bits);
  for (int at = 0; at < 16; ++at) {
    to[at] = static_cast<u8>(((block[at] & 15) | (bits >> at & 1) << 4) - less);
    to[16 + at] = static_cast<u8>((block[at] >> 4 | (bits >> (16 + at) & 1) << 4) - less);
  }
}

void q5_0(const u8* block, const To& to) {
  copy_half(to.scales, block);
  five_bits(block + 6, block + 2, 16, to.codes);
}

void q5_1(const u8* block, const To& to) {
  copy_half(to.scales, block);
  copy_half(to.minimums, block + 2);
  five_bits(block + 8, block + 4, 0, to.codes);
}

void q8_0(const u8* block, const To& to) {
  copy_half(to.scales, block);
  std::memcpy(to.codes, block + 2, 32);
}

void q2_k(const u8* block, const To& to) {
  u8 codes[256];
  pairs_of_bits(block + 16, codes);
  pair_up(codes, to.codes);
  for (int at = 0; at < 16; ++at) {
    small(to.scales)[at] = static_cast<i8>(block[at] & 15);
    small(to.minimums)[at] = static_cast<i8>(-(block[at] >> 4));
  }
  copy_half(to.super_scales, block + 80);
  copy_half(to.super_minimums, block + 82);
}

void q3_k(const u8* block, const To& to) {
  u8 codes[256];
  pairs_of_bits(block + 32, codes);
  add_bits(block, 2, codes);
  pair_up(codes, to.codes);
  const u8* packed = block + 96;
  for (int at = 0; at < 16; ++at) {
    const int low = at < 8 ? packed[at] & 15 : packed[at - 8] >> 4;
    const int high = packed[8 + at % 4] >> at / 4 * 2 & 3;
    small(to.scales)[at] = static_cast<i8>((low | high << 4) - 32);
  }
  copy_half(to.super_scales, block + 108);
}

// Eight scales and eight minimums of six bits in twelve bytes, and their factors before them.
inline void six_bits(const u8* block, const To& to) {
  const u8 *first = block + 4, *second = block + 8, *rest = block + 12;
  i8 *scales = small(to.scales), *minimums = small(to.minimums);
  for (int at = 0; at < 4; ++at) {
    scales[at] = static_cast<i8>(first[at] & 63);
    minimums[at] = static_cast<i8>(-(second[at] & 63));
    scales[4 + at] = static_cast<i8>((rest[at] & 15) | first[at] >> 6 << 4);
    minimums[4 + at] = static_cast<i8>(-(rest[at] >> 4 | second[at] >> 6 << 4));
  }
  copy_half(to.super_scales, block);
  copy_half(to.super_minimums, block + 2);
}

void q4_k(const u8* block, const To& to) {
  six_bits(block, to);
  for (int part = 0; part < 4; ++part) halves_of<32>(block + 16 + part * 32, to.codes + part * 32);
}

void q5_k(const u8* block, const To& to) {
  six_bits(block, to);
  u8 codes[256];
  for (int part = 0; part < 4; ++part) {
    for (int at = 0; at < 32; ++at) {
      codes[part * 64 + at] = block[48 + part * 32 + at] & 15;
      codes[part * 64 + 32 + at] = block[48 + part * 32 + at] >> 4;
    }
  }
  add_bits(block + 16, 4, codes);
  std::memcpy(to.codes, codes, sizeof codes);
}

void q6_k(const u8* block, const To& to) {
  u8 codes[256];
  pairs_of_bits(block + 128, codes);
  for (int part = 0; part < 2; ++part) {
    for (int at = 0; at < 64; ++at) {
      u8 &low = codes[part * 128 + at], &high = codes[part * 128 + 64 + at];
      low = static_cast<u8>((low << 4 | (block[part * 64 + at] & 15)) - 32);
      high = static_cast<u8>((high << 4 | block[part * 64 + at] >> 4) - 32);
    }
  }
  std::memcpy(to.codes, codes, sizeof codes);
  std::memcpy(to.scales, block + 192, 16);
  copy_half(to.super_scales, block + 208);
}

void iq4_xs(const u8* block, const To& to) {
  for (int at = 0; at < 8; ++at) {
    const int low = block[4 + at / 2] >> at % 2 * 4 & 15;
    const int high = block[2 + at / 4] >> at % 4 * 2 & 3;
    small(to.scales)[at] = static_cast<i8>((low | high << 4) - 32);
    halves_of<16>(block + 8 + at * 16, to.codes + at * 16);
  }
  copy_half(to.super_scales, block);
}

// The power of two, halved, in bfloat16: two of them are below its normal numbers.
void mxfp4(const u8* block, const To& to) {
  const int power = *block;
  const std::uint16_t bits = static_cast<std::uint16_t>(power > 1 ? (power - 1) << 7 : 32 << power);
  std::memcpy(to.scales, &bits, sizeof bits);
  halves_of<16>(block + 1, to.codes);
}

// A type, the bytes of a block, and of what becomes of one.
struct Type {
  const char* name;
  std::int64_t bytes, codes, scales, minimums, supers;  // the last: of scales, and of minimums if any
  void (*take)(const u8* block, const To& to);
};
constexpr Type TYPES[] = {
    {"Q4_0", 18, 16, 2, 0, 0, q4_0},      {"Q4_1", 20, 16, 2, 2, 0, q4_1},
    {"Q5_0", 22, 32, 2, 0, 0, q5_0},      {"Q5_1", 24, 32, 2, 2, 0, q5_1},
    {"Q8_0", 34, 32, 2, 0, 0, q8_0},      {"Q2_K", 84, 128, 16, 16, 2, q2_k},
    {"Q3_K", 110, 128, 16, 0, 2, q3_k},   {"Q4_K", 144, 128, 8, 8, 2, q4_k},
    {"Q5_K", 176, 256, 8, 8, 2, q5_k},    {"Q6_K", 210, 256, 16, 0, 2, q6_k},
    {"IQ4_NL", 18, 16, 2, 0, 0, q4_0},    {"IQ4_XS", 136, 128, 8, 0, 2, iq4_xs},
    {"MXFP4", 17, 16, 2, 0, 0, mxfp4},
};

// A part of `count` blocks of so many bytes each; there is none of no bytes.
bool read_part(const char* name, PyObject* tensor, std::int64_t count, std::int64_t bytes,
               char*& data) {
  data = nullptr;
  if (bytes == 0 && tensor == Py_None) return true;
  View view;
  if (!look_at(tensor, view)) return false;
  const bool is_byte = is_dtype(view.dtype, "torch.uint8") || is_dtype(view.dtype, "torch.int8");
  const bool is_half =
      is_dtype(view.dtype, "torch.float16") || is_dtype(view.dtype, "torch.bfloat16");
  std::int64_t size = is_byte ? 1 : is_half ? 2 : 0;
  for (int at = 0; at < view.dims; ++at) size *= view.sizes[at];
  if (bytes == 0 || size != count * bytes || !view.is_cpu || !view.is_dense_from(0)) {
    refuse(name, tensor, "%lld bytes on cpu, in one piece, are expected",
           static_cast<long long>(count * bytes));
    return false;
  }
  data = view.data;
  return true;
}

PyObject* take_blocks_apart(PyObject*, PyObject* args) {
  const char* name;
  PyObject *blocks, *codes, *scales, *minimums, *super_scales, *super_minimums;
  if (!PyArg_ParseTuple(args, "sOOOOOO", &name, &blocks, &codes, &scales, &minimums,
                        &super_scales, &super_minimums)) {
    return nullptr;
  }
  const Type* type = nullptr;
  for (const Type& one : TYPES) {
    if (std::strcmp(one.name, name) == 0) type = &one;
  }
  if (type == nullptr) return PyErr_Format(PyExc_ValueError, "blocks of '%s' are not known", name);
  View view;
  if (!look_at(blocks, view)) return nullptr;
  if (!view.has_shape({view.sizes[0], type->bytes}) || !is_dtype(view.dtype, "torch.uint8") ||
      !view.is_cpu || !view.is_dense_from(0)) {
    return refuse("blocks are", blocks, "[blocks, %lld] torch.uint8 on cpu is expected",
                  static_cast<long long>(type->bytes));
  }
  const std::int64_t count = view.sizes[0];
  char *code, *scale, *minimum, *large, *least;
  const std::int64_t of_minimums = type->minimums == 0 ? 0 : type->supers;
  if (!read_part("codes are", codes, count, type->codes, code) ||
      !read_part("scales are", scales, count, type->scales, scale) ||
      !read_part("minimums are", minimums, count, type->minimums, minimum) ||
      !read_part("factors of scales are", super_scales, count, type->supers, large) ||
      !read_part("factors of minimums are", super_minimums, count, of_minimums, least)) {
    return nullptr;
  }
  const u8* from = view.as<u8>();
  if (!run_unlocked([&]() noexcept {
        for_rows(count, type->bytes, [&](std::int64_t at) {
          const To to{reinterpret_cast<u8*>(code) + at * type->codes, scale + at * type->scales,
                      minimum + at * type->minimums, large + at * type->supers,
                      least + at * of_minimums};
          type->take(from + at * type->bytes, to);
        });
      })) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"take_blocks_apart", take_blocks_apart, METH_VARARGS,
     "take_blocks_apart(name, blocks, codes, scales, minimums, super_scales, super_minimums, /)\n"
     "--\n\nWrite what blocks of a GGUF type hold; `None` for what it has none of."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_blocks(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
