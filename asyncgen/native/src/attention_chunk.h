// Attention of many queries of a row, as those of a prompt's chunk: the keys and values of a split
// are packed once for all of them, and then the queries are computed a few at a time, so that their
// scores stay in the innermost cache. What is wholly hidden from those few is left out.
//
// Each number is the same sum in the same order as where there are few queries (attention.h).
#pragma once

#include <new>

#include "attention_task.h"

constexpr std::int64_t SCORES = SPLIT + LANES;  // between the scores of two queries

// Numbers between two queries as they are multiplied.
constexpr std::int64_t QUERY = MOST_SIZE + 2 * LANES;

// Copies a task's queries, `stride` numbers apart, with zeros behind the head's size up to `width`,
// as numbers that may be wider.
template <typename T, typename Number>
void keep_queries(const Step<T>& step, const Task& task, std::int64_t width, std::int64_t stride,
                  Number* to) {
  for (std::int64_t query = 0; query < task.count; ++query, to += stride) {
    const Head<T>* from = step.query(*task.row, task.head, task.first + query);
    if (width != step.size) std::memset(to, 0, width * sizeof(Number));
    for (std::int64_t at = 0; at < step.size; at += LANES) {
      copy_lanes(from + at, first_lanes(step.size - at), to + at);
    }
  }
}

// What the engines' memories begin with.
struct ChunkSpace {
  alignas(64) float scores[MOST_TILE * SCORES];
  alignas(64) float gathered[MOST_QUERIES * MOST_RECORD];
  alignas(64) float later[MOST_TILE * MOST_RECORD];
};

// A thread's memory for many queries, whichever engine it is that computes.
struct ThreadMemory {
  alignas(64) unsigned char bytes[2880 * 1024];
};

inline ThreadMemory& thread_memory() {
  static thread_local ThreadMemory memory;
  return memory;
}

template <typename Memory>
Memory* chunk_memory() {
  static_assert(sizeof(Memory) <= sizeof(ThreadMemory));
  return new (thread_memory().bytes) Memory;
}

// What a task does with its queries and keys.
template <typename T, typename Engine>
struct ChunkRun {
  const Step<T>& step;
  const Task& task;
  const Task* next;  // of the same thread, or null
  Engine& engine;

  // One split: a record for each query, `stride` floats apart.
  void split(std::int64_t split, float* records, std::int64_t stride) const {
    for_tiles(split, [&](const Tile& tile, auto meanwhile) {
      compute(tile, split, records + tile.first * stride, stride, meanwhile);
    });
  }

  // All splits, and the results.
  void all() const {
    const std::int64_t stride = step.record();
    ChunkSpace& space = engine.space();
    for (std::int64_t number = task.splits.first; number < task.splits.end; ++number) {
      for_tiles(number, [&](const Tile& tile, auto meanwhile) {
        float* gathered = space.gathered + tile.first * stride;
        const bool is_first = tile.seen.first / SPLIT == number;
        compute(tile, number, is_first ? gathered : space.later, stride, meanwhile);
        if (is_first) return;
        for (std::int64_t query = 0; query < tile.count; ++query) {
          merge(gathered + query * stride, space.later + query * stride, step.size);
        }
      });
    }
    for (std::int64_t query = 0; query < task.count; ++query) {
      step.finish(space.gathered + query * stride, *task.row, task.head, task.first + query);
    }
  }

 private:
  // Some queries of the task, from `first` on.
  struct Tile {
    std::int64_t first, count;
    Range seen;
  };

  // Packs a split and calls `use` for each tile that sees something of it, with what is to be
  // called for each query: it asks for the next split's keys and values.
  template <typename Use>
  void for_tiles(std::int64_t split, Use use) const {
    const std::int64_t base = split * SPLIT, tiles = parts(task.count, Engine::TILE_QUERIES);
    CHECK_OR_RETURN(task.count <= MOST_QUERIES && Engine::TILE_QUERIES <= MOST_TILE, )
    const Range blocks = task.blocks(split), range{blocks.first - base, blocks.end - base};
    engine.pack_keys(Reader<T>{step, task, step.keys, engine.width()}, base, range);
    engine.pack_values(Reader<T>{step, task, step.values, engine.width()}, base, range);
    Ahead<T> keys = ahead(step.keys, split), values = ahead(step.values, split);
    // Of each, what a query of the task is to ask for.
    const std::int64_t lines = parts(step.size * SPLIT * sizeof(Page<T>), LINE * task.count);
    const auto meanwhile = [&] {
      keys.ask(lines);
      values.ask(lines);
    };
    for (std::int64_t number = 0; number < tiles; ++number) {
      Tile tile;
      tile.first = task.count * number / tiles;
      tile.count = task.count * (number + 1) / tiles - tile.first;
      tile.seen = step.seen(*task.row, task.first + tile.first, tile.count);
      if (tile.seen.first < base + SPLIT && tile.seen.end > base) use(tile, meanwhile);
    }
  }

  template <typename Meanwhile>
  void compute(const Tile& tile, std::int64_t split, float* records, std::int64_t stride,
               Meanwhile meanwhile) const {
    const std::int64_t base = split * SPLIT;
    ChunkSpace& space = engine.space();
    const Range seen{most(tile.seen.first - base, 0), least(tile.seen.end - base, SPLIT)};
    const Range range{seen.first / BLOCK * BLOCK, parts(seen.end, BLOCK) * BLOCK};
    engine.score(tile.first, tile.count, range, space.scores);
    for (std::int64_t query = 0; query < tile.count; ++query) {
      meanwhile();
      const std::int64_t number = task.first + tile.first + query;
      step.template weigh_query<typename Engine::Weight>(space.scores + query * SCORES, range,
                                                         base, *task.row, task.head, number,
                                                         records + query * stride);
    }
    engine.gather(seen, tile.count, space.scores, records + SUMS, stride);
  }

  // What comes after a split: the next one of this task, or the first one of the next.
  Ahead<T> ahead(const Store<T>& from, std::int64_t split) const {
    const bool is_last = split + 1 == task.splits.end;
    if (!is_last) return Ahead<T>(step, task, from, split + 1);
    if (next == nullptr) return Ahead<T>(step, task);
    return Ahead<T>(step, *next, from, next->splits.first);
  }
};
