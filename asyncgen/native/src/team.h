// The threads that compute. Every thread that calls kernels has a team of its own, which is made
// when it is first needed and ends with that thread; between two calls it is asleep.
//
// Work is cut into pieces. Each member begins with a share of them, so that the same one reads the
// same weights in every step, and takes from the shares of others when its own is done. Nobody
// waits for a member that has not come yet: only for pieces that somebody has begun. So a thread
// that the system holds up (a neighbour wants its core) holds up the one piece that it is at, and
// then rests for a while. Who computes a piece changes no result.
//
// Taking from others is work stealing as of Blumofe and Leiserson, "Scheduling Multithreaded
// Computations by Work Stealing" (1999), with ranges of numbers in the place of queues.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

constexpr int MOST_MEMBERS = 512;

class Team;

// Pieces as one member sees them.
class Pieces {
 public:
  // All of them, alone.
  explicit Pieces(std::int64_t count) : count_(count) {}
  // Whatever is left, beside others, after a first one.
  Pieces(Team& team, int member, std::int64_t first)
      : team_(&team), member_(member), at_(first), count_(first + 1) {}

  // The next piece, if there is one; with the call the last one is done.
  bool next(std::int64_t& piece) {
    ++asked_;
    if (at_ < count_) {
      piece = at_++;
      return true;
    }
    return team_ != nullptr && take(piece);
  }

  // How many are done, when none was left.
  std::int64_t done() const { return asked_ - 1; }

 private:
  bool take(std::int64_t& piece);

  Team* team_ = nullptr;
  int member_ = 0;
  std::int64_t at_ = 0, count_, asked_ = 0;
};

// Threads of the calling thread's team, itself included.
int team_size();

// How many they shall be from now on; 0: as many as OpenMP would use.
void set_team_size(int threads);
bool is_team_set();

// Lets members that sleep wake up: work will come in a moment.
void rouse_team();

// Calls `compute(state, pieces)` on the threads that are free; returns when all pieces are done.
using Compute = void (*)(const void* state, Pieces& pieces);
void compute_pieces(std::int64_t count, const void* state, Compute compute);

// The same for a function object; it asks `pieces` until there are no more.
template <typename Function>
inline void for_pieces(std::int64_t count, const Function& function) {
  compute_pieces(count, &function, [](const void* state, Pieces& pieces) {
    (*static_cast<const Function*>(state))(pieces);
  });
}

// Calls `function(piece)` for each.
template <typename Function>
inline void for_each_piece(std::int64_t count, const Function& function) {
  for_pieces(count, [&](Pieces& pieces) {
    for (std::int64_t piece; pieces.next(piece);) function(piece);
  });
}

// Elements of a piece: so few are done sooner by one thread than handed out.
constexpr std::int64_t PIECE_ELEMENTS = 1 << 14;

// Calls `function(row)` for all rows of so many elements.
template <typename Function>
inline void for_rows(std::int64_t rows, std::int64_t elements, const Function& function) {
  const std::int64_t pieces = rows * elements / PIECE_ELEMENTS + 1;
  for_each_piece(pieces, [&](std::int64_t piece) {
    for (std::int64_t row = rows * piece / pieces; row < rows * (piece + 1) / pieces; ++row) {
      function(row);
    }
  });
}
