// Memory of our own, at a multiple of a cache line.
#pragma once

#include <cstdlib>
#include <memory>

// Memory for what lies between, kept from call to call.
class Memory {
 public:
  // Makes room for so many bytes; false if there are not so many.
  bool hold(std::size_t bytes) {
    if (bytes <= size_) return true;
    size_ = rounded(bytes);
    data_.reset(static_cast<char*>(std::aligned_alloc(LINE, size_)));
    if (data_ == nullptr) size_ = 0;
    return data_ != nullptr;
  }
  char* data() const { return data_.get(); }

  // Whether it is little enough to be kept.
  bool is_small() const { return size_ <= MOST_KEPT; }

  // Bytes up to the next cache line.
  static std::size_t rounded(std::size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

 private:
  static constexpr std::size_t LINE = 64, MOST_KEPT = 8 << 20;
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  std::unique_ptr<char, Free> data_;
  std::size_t size_ = 0;
};
