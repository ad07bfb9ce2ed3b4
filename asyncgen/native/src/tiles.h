// The tiles of AMX for the time of a computation: of rows of 64 bytes, 16 of them at first.
#pragma once

#include "vectors.h"

constexpr std::int64_t TILE_ROWS = 16;
constexpr std::int64_t TILE_WIDTH = 32;  // numbers in a row, in bfloat16
constexpr std::int64_t TILE = TILE_ROWS * TILE_WIDTH;

struct __attribute__((packed)) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// The intrinsics do not tell the compiler all that they read and write.
inline void settle_memory(const void* pointer) { asm volatile("" ::"r"(pointer) : "memory"); }

// What the thread's tiles were before comes back in the end: others may count on it.
class Tiles {
 public:
  Tiles() {
    _tile_storeconfig(&before_);
    settle_memory(&before_);
    const std::uint8_t rows[8] = {16, 16, 16, 16, 16, 16, 16, 16};
    shape(rows);
  }
  ~Tiles() { _tile_loadconfig(&before_); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Gives each tile its number of rows; what was in them is lost.
  void shape(const std::uint8_t (&rows)[8]) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = rows[tile];
    }
    settle_memory(&config);
    _tile_loadconfig(&config);
  }

 private:
  TileConfig before_;
};
