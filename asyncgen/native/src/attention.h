// Attention over pages: which thread attends for which queries to which keys. How scores and sums
// are computed is an engine's business (attention.cpp, attention_amx.cpp).
//
// A query's result depends on its text alone: the keys are cut at fixed positions into splits, each
// split has a softmax of its own, and splits are merged in order. Who computes them, when, and
// beside which other queries changes nothing.
//
// Merging softmaxes by their maxima and sums is Milakov and Gimelshein, "Online normalizer
// calculation for softmax" (2018), section 3.1, with the weighted sums of the values carried along
// as in Dao, Fu, Ermon, Rudra and Re, "FlashAttention" (2022), section 3.1. Splits of the keys on
// several threads, merged afterwards, are Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023). It
// differs in two ways: splits have a fixed size, whatever the work is, and within one the softmax
// is the plain kind in two passes, since its scores stay in the cache.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstring>

#include "check.h"
#include "vectors.h"

constexpr std::int64_t BLOCK = 32;    // keys that are read together
constexpr std::int64_t SPLIT = 256;   // keys of one softmax, a few blocks
constexpr std::int64_t QUERIES = 32;  // at most so many are computed together

// No task shall take more than a thread's share of the work divided by this.
constexpr std::int64_t TASKS_OF_THREAD = 4;

// From so many tasks for each thread on, up to so many are handed out together.
constexpr std::int64_t MANY_TASKS = 16;
constexpr std::int64_t MOST_TOGETHER = 8;

constexpr float MINUS_INFINITY = -__builtin_inff();

// What a query gathered of some keys: the largest score, the sum of all weights, and from SUMS on
// the weighted sum of the values.
constexpr std::int64_t SUMS = LANES;
constexpr std::int64_t MOST_RECORD = SUMS + MOST_SIZE;

struct Range {
  std::int64_t first, end;
};

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline std::int64_t parts(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

// A step, and what follows from its numbers.
template <typename T>
struct Step : Attention<T> {
  using Attention<T>::heads, Attention<T>::out, Attention<T>::pages, Attention<T>::num_heads;
  using Attention<T>::kv_heads, Attention<T>::size, Attention<T>::page_size, Attention<T>::window;
  std::int64_t most_splits;  // see `Division`

  std::int64_t record() const { return SUMS + parts(size, BLOCK) * BLOCK; }

  std::int64_t group() const { return num_heads / kv_heads; }
  std::int64_t token_size() const { return (num_heads + 2 * kv_heads) * size; }

  // Queries of a row that share a key head are numbered token by token.
  std::int64_t queries(const Row& row) const { return row.count * group(); }
  std::int64_t position(const Row& row, std::int64_t query) const {
    return row.start + query / group();
  }
  const T* query(const Row& row, std::int64_t head, std::int64_t number) const {
    const std::int64_t g = group();
    return heads + (row.token + number / g) * token_size() + (head * g + number % g) * size;
  }
  T* result(const Row& row, std::int64_t head, std::int64_t number) const {
    const std::int64_t g = group();
    return out + ((row.token + number / g) * num_heads + head * g + number % g) * size;
  }

  // Where a key or a value lies.
  std::int64_t place(const Row& row, std::int64_t head, std::int64_t position) const {
    CHECK_OR_RETURN(position >= 0 && position < row.start + row.count, 0)
    const std::int64_t page = pages[row.pages + position / page_size];
    CHECK_OR_RETURN(page >= 0 && page < this->num_pages && head >= 0 && head < kv_heads, 0)
    return ((page * kv_heads + head) * page_size + position % page_size) * size;
  }

  // Keys that a query sees.
  Range seen(std::int64_t position) const {
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
  std::int64_t blocks;  // of queries
  Range splits;         // of keys
  bool together;        // one task has all splits
  std::int64_t tasks;

  Cuts(const Step<T>& step, const Row& row) {
    const std::int64_t queries = step.queries(row);
    blocks = parts(queries, QUERIES);
    const Range seen = step.seen(row, 0, queries);
    splits = {seen.first / SPLIT, parts(seen.end, SPLIT)};
    together = splits.end - splits.first <= step.most_splits;
    tasks = blocks * step.kv_heads * (together ? 1 : splits.end - splits.first);
  }

  // Later queries, which see more, come first.
  Task task(const Step<T>& step, const Row& row, std::int64_t number) const {
    const std::int64_t each = together ? 1 : splits.end - splits.first;
    const std::int64_t block = blocks - 1 - number / (each * step.kv_heads);
    Task task;
    task.row = &row;
    task.head = number / each % step.kv_heads;
    task.first = block * QUERIES;
    task.count = least(step.queries(row) - task.first, QUERIES);
    task.seen = step.seen(row, task.first, task.count);
    task.splits = {task.seen.first / SPLIT, parts(task.seen.end, SPLIT)};
    if (!together) {
      const std::int64_t split = splits.first + number % each;
      task.splits = {most(task.splits.first, split), least(task.splits.end, split + 1)};
    }
    return task;
  }

  // Records that tasks leave for the merging: [head, query, split].
  std::int64_t records(const Step<T>& step, const Row& row) const {
    return together ? 0 : step.num_heads * row.count * (splits.end - splits.first);
  }
};

// Writes the keys and values of a thread's share of the tokens into their pages.
template <typename T>
void keep_keys(const Step<T>& step, std::int64_t first, std::int64_t end) {
  const std::size_t bytes = step.size * sizeof(T);
  for (std::int64_t number = 0; number < step.num_rows; ++number) {
    const Row& row = step.rows[number];
    const std::int64_t last = least(row.token + row.count, end);
    for (std::int64_t token = most(row.token, first); token < last; ++token) {
      const T* from = step.heads + token * step.token_size() + step.num_heads * step.size;
      for (std::int64_t head = 0; head < step.kv_heads; ++head, from += step.size) {
        const std::int64_t place = step.place(row, head, row.start + token - row.token);
        std::memcpy(step.keys + place, from, bytes);
        std::memcpy(step.values + place, from + step.kv_heads * step.size, bytes);
      }
    }
  }
}

// Reads blocks of keys or values of a task, in rows of `width` with zeros behind the head's size,
// and zeros for what none of its queries sees: what lies in such places may be NaN.
template <typename T>
struct Reader {
  const Step<T>& step;
  const Task& task;
  const T* from;
  std::int64_t width;

  // `space` has room for a block and is used if it does not lie in one piece.
  const T* block(std::int64_t at, T* space) const {
    const Row& row = *task.row;
    const bool whole = at >= task.seen.first && at + BLOCK <= task.seen.end;
    const bool one_page = at / step.page_size == (at + BLOCK - 1) / step.page_size;
    if (whole && one_page && width == step.size) return from + step.place(row, task.head, at);
    std::memset(space, 0, BLOCK * width * sizeof(T));
    const std::int64_t end = least(at + BLOCK, task.seen.end);
    for (std::int64_t position = most(at, task.seen.first); position < end;) {
      const std::int64_t in_page = step.page_size - position % step.page_size;
      const std::int64_t last = least(end, position + in_page);
      const T* key = from + step.place(row, task.head, position);
      for (; position < last; ++position, key += step.size)
        copy(key, space + (position - at) * width);
    }
    return space;
  }

  // Asks for what `block` will read.
  void fetch(std::int64_t at) const {
    const std::int64_t first = most(at, task.seen.first);
    const std::int64_t end = least(at + BLOCK, task.seen.end);
    for (std::int64_t begin = first; begin < end;) {
      const std::int64_t count = least(end - begin, step.page_size - begin % step.page_size);
      const char* byte =
          reinterpret_cast<const char*>(from + step.place(*task.row, task.head, begin));
      const char* last = byte + count * step.size * sizeof(T);
      for (; byte < last; byte += 64) _mm_prefetch(byte, _MM_HINT_T0);
      begin += count;
    }
  }

 private:
  void copy(const T* key, T* to) const {
    for (std::int64_t number = 0; number < step.size; number += LANES) {
      copy_lanes(key + number, first_lanes(step.size - number), to + number);
    }
  }
};

// Blocks that will be read soon, asked for one by one while others are computed.
template <typename T>
struct Ahead {
  Reader<T> reader;
  Range left;

  Ahead(const Step<T>& step, const Task& task, const T* from, std::int64_t split)
      : reader{step, task, from, step.size}, left(task.blocks(split)) {}

  void fetch() {
    if (left.first >= left.end) return;
    reader.fetch(left.first);
    left.first += BLOCK;
  }
};

// Turns a query's scores of `range` within its split into weights and notes their maximum and sum.
// Only those of `seen` count; the others get no weight.
inline void weigh(float* scores, Range range, Range seen, float scale, float* record) {
  const f32x16 factor = _mm512_set1_ps(scale), nothing = _mm512_set1_ps(MINUS_INFINITY);
  f32x16 largest = nothing;
  for (std::int64_t at = range.first; at < range.end; at += LANES) {
    const __mmask16 lanes = first_lanes(seen.end - at) & ~first_lanes(seen.first - at);
    const f32x16 score = _mm512_mask_mul_ps(nothing, lanes, _mm512_loadu_ps(scores + at), factor);
    _mm512_storeu_ps(scores + at, score);
    largest = _mm512_max_ps(score, largest);
  }
  record[0] = _mm512_reduce_max_ps(largest);
  const f32x16 shift = _mm512_set1_ps(record[0] == MINUS_INFINITY ? 0.0f : record[0]);
  f32x16 sum = _mm512_setzero_ps();
  for (std::int64_t at = range.first; at < range.end; at += LANES) {
    const f32x16 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + at), shift));
    _mm512_storeu_ps(scores + at, weight);
    sum = _mm512_add_ps(sum, weight);
  }
  record[1] = _mm512_reduce_add_ps(sum);
}

// Adds what a query gathered of later keys.
inline void merge(float* record, const float* later, std::int64_t size) {
  const float largest = record[0] > later[0] ? record[0] : later[0];
  const float shift = largest == MINUS_INFINITY ? 0.0f : largest;
  const f32x16 before = exponential(_mm512_set1_ps(record[0] - shift));
  const f32x16 now = exponential(_mm512_set1_ps(later[0] - shift));
  record[0] = largest;
  record[1] = record[1] * _mm512_cvtss_f32(before) + later[1] * _mm512_cvtss_f32(now);
  for (std::int64_t at = SUMS; at < SUMS + size; at += LANES) {
    const f32x16 old = _mm512_mul_ps(_mm512_loadu_ps(record + at), before);
    _mm512_storeu_ps(record + at, _mm512_fmadd_ps(_mm512_loadu_ps(later + at), now, old));
  }
}

template <typename T>
void write_result(const float* record, std::int64_t size, T* out) {
  const f32x16 factor = _mm512_set1_ps(1.0f / record[1]);
  for (std::int64_t at = 0; at < size; at += LANES) {
    const f32x16 sum = _mm512_loadu_ps(record + SUMS + at);
    store(out + at, first_lanes(size - at), _mm512_mul_ps(sum, factor));
  }
}

// Memory of a thread.
struct Space {
  alignas(64) float scores[QUERIES * SPLIT];
  alignas(64) float gathered[QUERIES * MOST_RECORD];
  alignas(64) float later[QUERIES * MOST_RECORD];
};

// What a task does with its queries and keys.
template <typename T, typename Engine>
struct TaskRun {
  const Step<T>& step;
  const Task& task;
  const Task* next;  // of the same thread, or null
  Engine& engine;
  Space& space;

  // One split: a record for each query, `stride` floats apart.
  void split(std::int64_t split, float* records, std::int64_t stride) const {
    const std::int64_t base = split * SPLIT;
    const Range blocks = task.blocks(split), range{blocks.first - base, blocks.end - base};
    const Reader<T> keys{step, task, step.keys, engine.width()};
    const Reader<T> values{step, task, step.values, engine.width()};
    Ahead<T> own(step, task, step.values, split), following = after(split);
    engine.score(keys, base, range, task.count, space.scores, own);
    for (std::int64_t query = 0; query < task.count; ++query) {
      const Range seen = step.seen(step.position(*task.row, task.first + query));
      weigh(space.scores + query * SPLIT, range, {seen.first - base, seen.end - base}, step.scale,
            records + query * stride);
    }
    engine.gather(values, base, range, task.count, space.scores, records + SUMS, stride, following);
  }

  // All splits, and the results.
  void all() const {
    for (std::int64_t number = task.splits.first; number < task.splits.end; ++number) {
      const bool is_first = number == task.splits.first;
      split(number, is_first ? space.gathered : space.later, step.record());
      for (std::int64_t query = 0; !is_first && query < task.count; ++query) {
        merge(space.gathered + query * step.record(), space.later + query * step.record(),
              step.size);
      }
    }
    for (std::int64_t query = 0; query < task.count; ++query) {
      write_result(space.gathered + query * step.record(), step.size,
                   step.result(*task.row, task.head, task.first + query));
    }
  }

 private:
  // The keys that come after a split's values.
  Ahead<T> after(std::int64_t split) const {
    const bool is_last = split + 1 == task.splits.end;
    if (!is_last) return Ahead<T>(step, task, step.keys, split + 1);
    const Task& other = next == nullptr ? task : *next;
    Ahead<T> ahead(step, other, step.keys, other.splits.first);
    if (next == nullptr) ahead.left.first = ahead.left.end;
    return ahead;
  }
};

// Merges a query's records, which lie one after another for all splits of its row.
template <typename T>
void merge_row(const Step<T>& step, const Row& row, const Cuts<T>& cuts, float* records,
               std::int64_t thread, std::int64_t threads) {
  const std::int64_t queries = step.queries(row), each = cuts.splits.end - cuts.splits.first;
  for (std::int64_t number = thread; number < queries * step.kv_heads; number += threads) {
    const std::int64_t head = number / queries, query = number % queries;
    const Range seen = step.seen(step.position(row, query));
    float* all = records + number * each * step.record();
    float* own = all + (seen.first / SPLIT - cuts.splits.first) * step.record();
    float* end = all + (parts(seen.end, SPLIT) - cuts.splits.first) * step.record();
    for (float* later = own + step.record(); later < end; later += step.record())
      merge(own, later, step.size);
    write_result(own, step.size, step.result(row, head, query));
  }
}

// A task, and where its records go: null for a task that has all splits.
template <typename T>
struct Turn {
  Task task;
  float* records;
  std::int64_t stride;
};

// Hands the tasks of a step out; each thread has its own and all share the tickets. Where there are
// many tasks a ticket is for several, one after another: key heads of a page lie side by side.
template <typename T>
class Walk {
 public:
  Walk(const Step<T>& step, std::atomic<std::int64_t>& tickets, const Division& division,
       float* memory)
      : step_(step),
        tickets_(tickets),
        division_(division),
        row_(step.rows),
        cuts_(step, *row_),
        memory_(memory),
        records_(memory) {
    const bool are_many = division.num_tasks >= MANY_TASKS * omp_get_num_threads();
    each_ = are_many ? least(step.kv_heads, MOST_TOGETHER) : 1;
  }

  // The next task for this thread, if there is one.
  bool take(Turn<T>& turn) {
    while (number_ < end_ || draw()) {
      const std::int64_t ticket = number_++;
      while (ticket - before_ >= cuts_.tasks) {
        before_ += cuts_.tasks;
        records_ += cuts_.records(step_, *row_) * step_.record();
        cuts_ = Cuts<T>(step_, *++row_);
      }
      turn.task = cuts_.task(step_, *row_, ticket - before_);
      if (turn.task.splits.first >= turn.task.splits.end) continue;
      place_records(turn);
      return true;
    }
    return false;
  }

 private:
  bool draw() {
    number_ = tickets_.fetch_add(each_);
    end_ = least(number_ + each_, division_.num_tasks);
    return number_ < end_;
  }

  void place_records(Turn<T>& turn) const {
    turn.records = nullptr;
    if (cuts_.together) return;
    const Task& task = turn.task;
    const std::int64_t each = cuts_.splits.end - cuts_.splits.first;
    const std::int64_t query = task.head * step_.queries(*row_) + task.first;
    turn.records =
        records_ + (query * each + task.splits.first - cuts_.splits.first) * step_.record();
    turn.stride = each * step_.record();
    CHECK_OR_RETURN(turn.records >= memory_ &&
                        turn.records + (task.count - 1) * turn.stride + step_.record() <=
                            memory_ + division_.memory, )
  }

  const Step<T>& step_;
  std::atomic<std::int64_t>& tickets_;
  const Division& division_;
  std::int64_t each_, number_ = 0, end_ = 0, before_ = 0;
  const Row* row_;
  Cuts<T> cuts_;
  float *memory_, *records_;
};

// How many splits of a text one task has. Where there are enough texts it has all: who computes
// what does not change the results.
template <typename T>
std::int64_t share_of_task(Step<T> step) {
  std::int64_t work = 0;
  step.most_splits = 1;
  for (std::int64_t number = 0; number < step.num_rows; ++number) {
    work += Cuts<T>(step, step.rows[number]).tasks;
  }
  return most(work / (TASKS_OF_THREAD * omp_get_max_threads()), 1);
}

template <typename T>
Division divide(const Attention<T>& attention) {
  Step<T> step{attention, 1};
  step.most_splits = share_of_task(step);
  Division division{step.most_splits, 0, 0, 0};
  for (std::int64_t number = 0; number < step.num_rows; ++number) {
    const Row& row = step.rows[number];
    const Cuts<T> cuts(step, row);
    division.num_tokens += row.count;
    division.num_tasks += cuts.tasks;
    division.memory += cuts.records(step, row) * step.record();
  }
  return division;
}

template <typename Engine, typename T>
void attend_step(const Attention<T>& attention, const Division& division, float* memory) {
  const Step<T> step{attention, division.most_splits};
  std::atomic<std::int64_t> tickets{0};
#pragma omp parallel
  {
    const std::int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    keep_keys(step, division.num_tokens * thread / threads,
              division.num_tokens * (thread + 1) / threads);
#pragma omp barrier
    static thread_local Space space;
    Engine engine(step);
    Walk<T> walk(step, tickets, division, memory);
    // One task in advance, whose keys are asked for in time.
    Turn<T> turn, next;
    bool is_there = walk.take(turn);
    while (is_there) {
      const bool is_next = walk.take(next);
      engine.take(turn.task);
      const TaskRun<T, Engine> run{step, turn.task, is_next ? &next.task : nullptr, engine, space};
      if (turn.records == nullptr) {
        run.all();
      } else {
        run.split(turn.task.splits.first, turn.records, turn.stride);
      }
      turn = next;
      is_there = is_next;
    }
    if (division.memory > 0) {
#pragma omp barrier
      float* records = memory;
      for (std::int64_t number = 0; number < step.num_rows; ++number) {
        const Cuts<T> own(step, step.rows[number]);
        if (own.together) continue;
        merge_row(step, step.rows[number], own, records, thread, threads);
        records += own.records(step, step.rows[number]) * step.record();
      }
    }
  }
}
