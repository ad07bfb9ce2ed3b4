// Attention over pages: which thread attends for which queries to which keys. How scores and sums
// are computed is an engine's business (attention_vectors.h, attention_amx.cpp).
//
// A query's result depends on its text alone: the keys are cut at fixed positions into splits, each
// split has a softmax of its own, and splits are merged in order. Who computes them, when, and
// beside which other queries changes nothing.
//
// Splits of the keys on several threads, merged afterwards (attention_softmax.h), are
// Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023). It differs in two ways: splits have a fixed
// size, whatever the work is, and within one the softmax is the plain kind in two passes, since its
// scores stay in the cache.
#pragma once

#include <atomic>

#include "attention_chunk.h"
#include "team.h"

// No task shall take more than a thread's share of the work divided by this. Smaller ones would be
// shared more evenly, but each packs its keys.
constexpr std::int64_t TASKS_OF_THREAD = 3;

// Keys of so many tokens are written together: fewer are not worth handing out.
constexpr std::int64_t KEPT_TOKENS = 64;

// From so many tasks for each thread on, up to so many are handed out together.
constexpr std::int64_t MANY_TASKS = 16;
constexpr std::int64_t MOST_TOGETHER = 8;

// Writes one head's key or value.
template <typename T>
void keep_number(const T* from, const Store<T>& to, std::int64_t spot, std::int64_t size) {
  std::memcpy(to.numbers + spot * size, from, size * sizeof(T));
}

// Writes the keys and values of a thread's share of the tokens into their pages.
template <typename T>
void keep_keys(const Step<T>& step, std::int64_t first, std::int64_t end) {
  for (std::int64_t number = 0; number < step.num_rows; ++number) {
    const Row& row = step.rows[number];
    const std::int64_t last = least(row.token + row.count, end);
    for (std::int64_t token = most(row.token, first); token < last; ++token) {
      const Head<T>* from = step.heads + token * step.stride + step.num_heads * step.size;
      for (std::int64_t head = 0; head < step.kv_heads; ++head, from += step.size) {
        const std::int64_t spot = step.spot(row, head, row.start + token - row.token);
        keep_number(from, step.keys, spot, step.size);
        keep_number(from + step.kv_heads * step.size, step.values, spot, step.size);
      }
    }
  }
}

// Memory of a thread, for up to so many queries.
template <std::int64_t MOST>
struct Space {
  alignas(64) float scores[MOST * SPLIT];
  alignas(64) float gathered[MOST * MOST_RECORD];
  alignas(64) float later[MOST * MOST_RECORD];
};

// What a task does with its queries and keys.
template <typename T, typename Engine>
struct TaskRun {
  const Step<T>& step;
  const Task& task;
  const Task* next;  // of the same thread, or null
  Engine& engine;
  Space<Engine::MOST>& space;

  // One split: a record for each query, `stride` floats apart.
  void split(std::int64_t split, float* records, std::int64_t stride) const {
    const std::int64_t base = split * SPLIT;
    const Range blocks = task.blocks(split), range{blocks.first - base, blocks.end - base};
    const Reader<T> keys{step, task, step.keys, engine.width()};
    const Reader<T> values{step, task, step.values, engine.width()};
    Ahead<T> own(step, task, step.values, split), following = after(split);
    engine.score(keys, base, range, task.count, space.scores, own);
    for (std::int64_t query = 0; query < task.count; ++query) {
      step.template weigh_query<typename Engine::Weight>(space.scores + query * SPLIT, range, base,
                                                         *task.row, task.head, task.first + query,
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
      step.finish(space.gathered + query * step.record(), *task.row, task.head,
                  task.first + query);
    }
  }

 private:
  // The keys that come after a split's values.
  Ahead<T> after(std::int64_t split) const {
    const bool is_last = split + 1 == task.splits.end;
    if (!is_last) return Ahead<T>(step, task, step.keys, split + 1);
    if (next == nullptr) return Ahead<T>(step, task);
    return Ahead<T>(step, *next, step.keys, next->splits.first);
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
    step.finish(own, row, head, query);
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
        row_(step.asked),
        cuts_(step, *row_),
        memory_(memory),
        records_(memory) {
    const bool are_many = division.num_tasks >= MANY_TASKS * team_size();
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
  for (std::int64_t number = 0; number < step.num_asked; ++number) {
    work += Cuts<T>(step, step.asked[number]).tasks;
  }
  return most(work / (TASKS_OF_THREAD * team_size()), 1);
}

// How many queries of a key head one task has, if they are more than few: as many as leave enough
// tasks for all threads, in whole tiles.
template <typename T>
std::int64_t queries_of_task(const Attention<T>& attention) {
  const Step<T> step{attention, 1, 1};
  std::int64_t queries = 0;
  for (std::int64_t number = 0; number < step.num_asked; ++number) {
    queries += step.queries(step.asked[number]) * step.kv_heads;
  }
  const std::int64_t share = queries / (TASKS_OF_THREAD * team_size());
  return most(least(share, MOST_QUERIES) / TILES, 1) * TILES;
}

template <typename T>
Division division_of(const Attention<T>& attention) {
  Step<T> step{attention, 1, queries_of_task(attention)};
  step.most_splits = share_of_task(step);
  Division division{step.most_splits, step.most_queries, 0, 0, 0};
  for (std::int64_t number = 0; number < step.num_rows; ++number) {
    division.num_tokens += step.rows[number].count;
  }
  for (std::int64_t number = 0; number < step.num_asked; ++number) {
    const Row& row = step.asked[number];
    const Cuts<T> cuts(step, row);
    division.num_tasks += cuts.tasks;
    division.memory += cuts.records(step, row) * step.record();
  }
  return division;
}

template <typename T, typename Run>
void run_turn(const Turn<T>& turn, const Run& run) {
  run.engine.take(turn.task);
  if (turn.records == nullptr) {
    run.all();
  } else {
    run.split(turn.task.splits.first, turn.records, turn.stride);
  }
}

// Takes tasks and computes them, as long as there are any.
template <typename Engine, typename T>
void attend_some(const Step<T>& step, Walk<T> walk) {
  static thread_local Space<decltype(Engine::few)::MOST> space;
  Engine engine(step);
  // One task in advance, whose keys are asked for in time.
  Turn<T> turn, next;
  bool is_there = walk.take(turn);
  while (is_there) {
    const bool is_next = walk.take(next);
    const Task* following = is_next ? &next.task : nullptr;
    if (turn.task.count > decltype(Engine::few)::MOST) {
      using Run = ChunkRun<T, decltype(engine.many)>;
      run_turn(turn, Run{step, turn.task, following, engine.many});
    } else {
      using Run = TaskRun<T, decltype(engine.few)>;
      run_turn(turn, Run{step, turn.task, following, engine.few, space});
    }
    turn = next;
    is_there = is_next;
  }
}

template <typename Engine, typename T>
void attend_step(const Attention<T>& attention, const Division& division, float* memory) {
  const Step<T> step{attention, division.most_splits, division.most_queries};
  const std::int64_t threads = team_size(), blocks = parts(division.num_tokens, KEPT_TOKENS);
  for_each_piece(blocks, [&](std::int64_t block) {
    keep_keys(step, division.num_tokens * block / blocks,
              division.num_tokens * (block + 1) / blocks);
  });
  if (division.num_tasks == 0) return;
  std::atomic<std::int64_t> tickets{0};
  for_each_piece(least(threads, division.num_tasks), [&](std::int64_t) {
    attend_some<Engine>(step, Walk<T>(step, tickets, division, memory));
  });
  if (division.memory == 0) return;
  for_each_piece(threads, [&](std::int64_t thread) {
    float* records = memory;
    for (std::int64_t number = 0; number < step.num_asked; ++number) {
      const Row& row = step.asked[number];
      const Cuts<T> own(step, row);
      if (own.together) continue;
      merge_row(step, row, own, records, thread, threads);
      records += own.records(step, row) * step.record();
    }
  });
}
