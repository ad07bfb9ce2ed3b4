// The tiles of AMX for the time of a computation.
#pragma once

#include "vectors.h"

struct __attribute__((packed)) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Tiles 0 to 5 have a number of rows up to 16, tiles 6 and 7 have 16. What the thread's tiles were
// before comes back in the end: others may count on it.
class Tiles {
 public:
  Tiles() {
    _tile_storeconfig(&before_);
    asm volatile("" ::"r"(&before_) : "memory");
  }
  ~Tiles() { _tile_loadconfig(&before_); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  void shape(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = tile < 6 ? static_cast<std::uint8_t>(rows) : 16;
    }
    // The intrinsic names the first eight bytes only, and the compiler may forget the rest.
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
  }

 private:
  TileConfig before_;
  std::int64_t rows_ = 0;
};
