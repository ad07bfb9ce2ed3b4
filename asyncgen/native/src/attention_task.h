// The work of attention over pages in tasks: some queries of a row over some of its keys, and how
// they are read.
#pragma once

#include <cstring>
#include <type_traits>

#include "attention_softmax.h"
#include "check.h"

constexpr std::int64_t BLOCK = 32;    // keys that are read together
constexpr std::int64_t SPLIT = 256;   // keys of one softmax, a few blocks
constexpr std::int64_t LINE = 64;     // bytes that come from memory together

// A task has at most so many queries. Up to FEW_QUERIES of a row are one task. Tasks of no more
// queries than an engine says (`MOST`) are computed block of keys by block of keys, those of more in
// tiles (attention_chunk.h).
constexpr std::int64_t MOST_QUERIES = 384;
constexpr std::int64_t FEW_QUERIES = 32;
constexpr std::int64_t MOST_TILE = 16;

// Where a row has more than few, its tasks have so many or a multiple: whole tiles of any engine.
constexpr std::int64_t TILES = 48;

// A step, and what follows from its numbers.
template <typename T>
struct Step : Attention<T> {
  using Attention<T>::heads, Attention<T>::stride, Attention<T>::out, Attention<T>::pages;
  using Attention<T>::num_heads, Attention<T>::kv_heads, Attention<T>::size;
  using Attention<T>::page_size, Attention<T>::window;
  using Attention<T>::scale, Attention<T>::cap, Attention<T>::slopes, Attention<T>::sinks;
  std::int64_t most_splits, most_queries;  // see `Division`

  std::int64_t record() const { return SUMS + parts(size, BLOCK) * BLOCK; }

  std::int64_t group() const { return num_heads / kv_heads; }

  // Queries of a row that share a key head are numbered token by token.
  std::int64_t queries(const Row& row) const { return row.count * group(); }
  std::int64_t position(const Row& row, std::int64_t query) const {
    return row.start + query / group();
  }
  const Head<T>* query(const Row& row, std::int64_t head, std::int64_t number) const {
    const std::int64_t g = group();
    return heads + (row.token + number / g) * stride + (head * g + number % g) * size;
  }
  Head<T>* result(const Row& row, std::int64_t head, std::int64_t number) const {
    const std::int64_t g = group();
    return out + ((row.token + number / g) * num_heads + head * g + number % g) * size;
  }

  // Where a key or a value lies, counted in those of one head.
  std::int64_t spot(const Row& row, std::int64_t head, std::int64_t position) const {
    CHECK_OR_RETURN(position >= 0 && position < row.start + row.count, 0)
    const std::int64_t page = pages[row.pages + position / page_size];
    CHECK_OR_RETURN(page >= 0 && page < this->num_pages && head >= 0 && head < kv_heads, 0)
    return (page * kv_heads + head) * page_size + position % page_size;
  }

  // The weights of a query's scores of `range` within the split of the keys from `base` on: of W,
  // from where the scores began.
  template <typename W>
  void weigh_query(float* scores, Range range, std::int64_t base, const Row& row,
                   std::int64_t head, std::int64_t number, float* record) const {
    const std::int64_t at = position(row, number);
    const Range visible = seen(at), own{visible.first - base, visible.end - base};
    const bool is_bent = cap != 0.0f || slopes != nullptr;
    if (is_bent) {
      const float slope = slopes == nullptr ? 0.0f : slopes[head * group() + number % group()];
      bend(scores, range, scale, cap, slope, at - base);
    }
    weigh<W>(scores, range, own, is_bent ? 1.0f : scale, record);
  }

  // Writes what a query gathered of all its keys.
  void finish(const float* record, const Row& row, std::int64_t head, std::int64_t number) const {
    const float* sink = sinks == nullptr ? nullptr : sinks + head * group() + number % group();
    write_result(record, sink, size, result(row, head, number));
  }

  // Keys that a query sees.
  Range seen(std::int64_t position) const {
    if (this->is_chunked) return {position / window * window, position + 1};
    return {window == 0 ? 0 : most(position + 1 - window, 0), position + 1};
  }
  // Keys that any of some queries of a row sees.
  Range seen(const Row& row, std::int64_t first, std::int64_t count) const {
    return {seen(position(row, first)).first, seen(position(row, first + count - 1)).end};
  }
};

// Some queries of a row over some splits of its keys.
struct Task {
  const Row* row;
  std::int64_t head, first, count;
  Range seen, splits;

  // Positions of the blocks that hold what is seen of a split; none if nothing is.
  Range blocks(std::int64_t split) const {
    const std::int64_t base = split * SPLIT;
    return {most(seen.first, base) / BLOCK * BLOCK,
            parts(least(seen.end, base + SPLIT), BLOCK) * BLOCK};
  }
};

// How a row is cut into tasks.
template <typename T>
struct Cuts {
  std::int64_t each;    // queries of a block
  std::int64_t blocks;  // of queries
  Range splits;         // of keys
  bool together;        // one task has all splits
  std::int64_t tasks;

  Cuts(const Step<T>& step, const Row& row) {
    const std::int64_t queries = step.queries(row);
    each = queries;
    if (queries > FEW_QUERIES) {
      each = parts(parts(queries, parts(queries, step.most_queries)), TILES) * TILES;
    }
    blocks = parts(queries, each);
    const Range seen = step.seen(row, 0, queries);
    splits = {seen.first / SPLIT, parts(seen.end, SPLIT)};
    together = splits.end - splits.first <= step.most_splits;
    tasks = blocks * step.kv_heads * (together ? 1 : splits.end - splits.first);
  }

  // Later queries, which see more, come first.
  Task task(const Step<T>& step, const Row& row, std::int64_t number) const {
    const std::int64_t tasks_of_head = together ? 1 : splits.end - splits.first;
    const std::int64_t block = blocks - 1 - number / (tasks_of_head * step.kv_heads);
    Task task;
    task.row = &row;
    task.head = number / tasks_of_head % step.kv_heads;
    task.first = block * each;
    task.count = least(step.queries(row) - task.first, each);
    task.seen = step.seen(row, task.first, task.count);
    task.splits = {task.seen.first / SPLIT, parts(task.seen.end, SPLIT)};
    if (!together) {
      const std::int64_t split = splits.first + number % tasks_of_head;
      task.splits = {most(task.splits.first, split), least(task.splits.end, split + 1)};
    }
    return task;
  }

  // Records that tasks leave for the merging: [head, query, split].
  std::int64_t records(const Step<T>& step, const Row& row) const {
    return together ? 0 : step.num_heads * row.count * (splits.end - splits.first);
  }
};

// Reads blocks of keys or values of a task, in rows of `width` with zeros behind the head's size,
// and zeros for what none of its queries sees: what lies in such places may be NaN. Codes there may
// be any, and their scales are zero.
template <typename T>
struct Reader {
  const Step<T>& step;
  const Task& task;
  const Store<T>& from;
  std::int64_t width;

  // `space` has room for a block and is used if it does not lie in one piece.
  const Page<T>* block(std::int64_t at, Page<T>* space) const {
    constexpr bool takes_any = !std::is_same_v<Page<T>, Head<T>>;
    if ((takes_any || is_seen(at)) && is_in_page(at) && width == step.size) {
      return from.numbers + spot(at) * step.size;
    }
    std::memset(space, 0, BLOCK * width * sizeof(Page<T>));
    for_pieces(at, [&](std::int64_t position, std::int64_t last) {
      const Page<T>* key = from.numbers + spot(position) * step.size;
      for (; position < last; ++position, key += step.size)
        copy(key, space + (position - at) * width);
    });
    return space;
  }

  // The scales of a block of codes; `space` is used as above.
  const float* scales(std::int64_t at, float* space) const {
    if (is_seen(at) && is_in_page(at)) return from.scales + spot(at);
    std::memset(space, 0, BLOCK * sizeof(float));
    for_pieces(at, [&](std::int64_t position, std::int64_t last) {
      std::memcpy(space + position - at, from.scales + spot(position),
                  (last - position) * sizeof(float));
    });
    return space;
  }

  // Where what belongs to a position lies, as `Step::spot` counts.
  std::int64_t spot(std::int64_t position) const {
    return step.spot(*task.row, task.head, position);
  }

 private:
  bool is_seen(std::int64_t at) const {
    return at >= task.seen.first && at + BLOCK <= task.seen.end;
  }
  bool is_in_page(std::int64_t at) const {
    return at / step.page_size == (at + BLOCK - 1) / step.page_size;
  }

  // Calls `use(first, end)` for what is seen of a block, page by page.
  template <typename Use>
  void for_pieces(std::int64_t at, Use use) const {
    const std::int64_t end = least(at + BLOCK, task.seen.end);
    for (std::int64_t position = most(at, task.seen.first); position < end;) {
      const std::int64_t in_page = step.page_size - position % step.page_size;
      const std::int64_t last = least(end, position + in_page);
      use(position, last);
      position = last;
    }
  }

  void copy(const Page<T>* key, Page<T>* to) const {
    for (std::int64_t number = 0; number < step.size; number += LANES) {
      copy_lanes(key + number, first_lanes(step.size - number), to + number);
    }
  }
};

// Memory that will be read soon, asked for line by line while other things are computed: many
// requests at once would hold up the loads of what is computed now. What few queries ask for comes
// as far as the second cache: the first one has places for a few requests at a time only, and pieces
// as long as a page come from memory at half of the speed by way of them (Zen 4: 12 instead of
// 21 GB/s). Many queries wait for no memory, and whole blocks are asked for as it was measured with
// AMX: both into the first cache.
struct Lines {
  const char *at = nullptr, *end = nullptr;

  template <auto TO = _MM_HINT_T1>
  void ask() {
    if (at >= end) return;
    _mm_prefetch(at, TO);
    at += LINE;
  }
  void ask(std::int64_t count) {
    for (; count > 0; --count) ask();
  }
  void ask_all() {
    while (at < end) ask<_MM_HINT_T0>();
  }
};

// What a task will read of a split, block by block.
template <typename T>
struct Ahead {
  Reader<T> reader;
  Range left{0, 0};
  Lines lines;  // of the block that was begun

  // Nothing.
  Ahead(const Step<T>& step, const Task& task) : reader{step, task, step.keys, 0} {}

  Ahead(const Step<T>& step, const Task& task, const Store<T>& from, std::int64_t split)
      : reader{step, task, from, step.size}, left(task.blocks(split)) {}

  // The next block, if there is one. What does not lie in one piece is asked for at once.
  Lines next_block() {
    const Range seen{most(left.first, reader.task.seen.first),
                     least(left.end, reader.task.seen.end)};
    const std::int64_t end = least(left.first + BLOCK, seen.end);
    left.first += BLOCK;
    Lines piece;
    for (std::int64_t first = seen.first; first < end;) {
      piece.ask_all();
      const std::int64_t in_page = reader.step.page_size - first % reader.step.page_size;
      const std::int64_t count = least(end - first, in_page);
      const std::int64_t spot = reader.spot(first);
      const Page<T>* numbers = reader.from.numbers + spot * reader.step.size;
      piece.at = reinterpret_cast<const char*>(numbers);
      piece.end = piece.at + count * reader.step.size * sizeof(Page<T>);
      if (reader.from.scales != nullptr) ask_for(reader.from.scales + spot, count);
      first += count;
    }
    return piece;
  }

  // A block's scales are two lines, which nothing else would bring in time.
  static void ask_for(const float* scales, std::int64_t count) {
    const char* at = reinterpret_cast<const char*>(scales);
    Lines{at, at + count * sizeof(float)}.ask_all();
  }

  // Some more lines, of block after block, beside much that is computed.
  void ask(std::int64_t count) {
    for (; count > 0; --count) {
      if (lines.at >= lines.end) lines = next_block();
      lines.ask<_MM_HINT_T0>();
    }
  }
};
