#include "team.h"

#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Times are counted in ticks of the processor's clock, two to four thousand of which are a
// microsecond.
using Ticks = std::uint64_t;
constexpr Ticks MICROSECOND = 2500;

Ticks now() { return __builtin_ia32_rdtsc(); }

// So long a member without work looks out for more before it sleeps: the next operator comes sooner.
constexpr Ticks LOOK_OUT = 60 * MICROSECOND;

// So long the one who called looks out for the last pieces of others before it sleeps.
constexpr Ticks WAIT = 20 * MICROSECOND;

// Who is waited for longer than this, and several times longer than a piece takes, was held up.
constexpr Ticks HELD_UP = 200 * MICROSECOND;
constexpr Ticks PIECES = 4;

// So long somebody rests who was held up: twice as long each time, unless it went well for a while.
constexpr Ticks LEAST_REST = 4000 * MICROSECOND;
constexpr Ticks MOST_REST = 128000 * MICROSECOND;
constexpr Ticks WELL = 4;  // times the last rest

using Word = std::atomic<std::uint32_t>;

void sleep_while(Word& word, std::uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(Word& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// A share: the first piece that nobody has begun, and behind it the end.
constexpr std::uint64_t share_of(std::uint64_t first, std::uint64_t end) { return first | end << 32; }
constexpr std::uint64_t first_of(std::uint64_t share) { return share & 0xffffffff; }
constexpr std::uint64_t end_of(std::uint64_t share) { return share >> 32; }

// What is to be done with the pieces of a share. It stays while one of them is not done.
struct Task {
  const void* state = nullptr;
  Compute compute = nullptr;
};

// A member and its share. What one thread writes and others wait for lies on lines of its own.
struct alignas(128) Member {
  std::atomic<std::uint64_t> share{0};
  Task task;
  alignas(128) Word done{0};  // pieces, since it was made
  Word is_at_work{0};
  alignas(128) Word rests{0};
  Ticks since = 0, rest = 0;  // of the last rest
  std::thread thread;
};

// Processes that were forked have none of the threads.
std::atomic<int> generation{0};

}  // namespace

class Team {
 public:
  explicit Team(int threads) : members_(threads), made_in_(generation) {
    late_.reserve(threads);
    sigset_t all, before;  // signals are for the threads that Python knows
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; size_ < threads; ++size_) {
        std::thread& thread = members_[size_].thread;
        thread = std::thread(&Team::serve, this, size_);
        pthread_setname_np(thread.native_handle(), "asyncgen-team");
      }
    } catch (const std::system_error&) {  // there are no more threads; fewer compute the same
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Team() {
    is_ending_ = true;
    wake_sleepers();
    for (int number = 1; number < size_; ++number) {
      end_rest(members_[number]);
      members_[number].thread.join();
    }
  }

  bool is_whole() const { return made_in_ == generation; }

  // A sleeper that is not seen goes on sleeping until the next call, and others do its share.
  void rouse() {
    if (sleepers_.load(std::memory_order_relaxed) != 0) wake_sleepers();
  }

  void compute(std::int64_t count, const Task& task) {
    const Ticks began = now();
    hand_out(count, task);
    rouse();
    std::int64_t first;
    if (!take(0, first)) return wait_for_others(count, 0);
    Pieces pieces(*this, 0, first);
    task.compute(task.state, pieces);
    const std::int64_t done = pieces.done();
    if (done < count) wait_for_others(count - done, (now() - began) / static_cast<Ticks>(done));
  }

  // A piece for a member, of its own share or of the one that `whose` names.
  bool take(int member, std::int64_t& piece, int* whose = nullptr) {
    if (take_first(members_[member].share, piece)) return true;
    for (int step = 1; step < size_; ++step) {
      const int other = (member + step) % size_;
      if (!take_last(members_[other].share, piece)) continue;
      if (whose != nullptr) *whose = other;
      return true;
    }
    return false;
  }

 private:
  static bool take_first(std::atomic<std::uint64_t>& from, std::int64_t& piece) {
    std::uint64_t share = from.load(std::memory_order_relaxed);
    while (first_of(share) < end_of(share)) {
      piece = static_cast<std::int64_t>(first_of(share));
      const std::uint64_t left = share_of(first_of(share) + 1, end_of(share));
      if (from.compare_exchange_weak(share, left, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  static bool take_last(std::atomic<std::uint64_t>& from, std::int64_t& piece) {
    std::uint64_t share = from.load(std::memory_order_relaxed);
    while (first_of(share) < end_of(share)) {
      piece = static_cast<std::int64_t>(end_of(share) - 1);
      const std::uint64_t left = share_of(first_of(share), end_of(share) - 1);
      if (from.compare_exchange_weak(share, left, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  // Gives each member that does not rest its share.
  void hand_out(std::int64_t count, const Task& task) {
    const int present = size_ - (resting_ > 0 ? let_rest() : 0);
    const std::uint64_t each = static_cast<std::uint64_t>(count);
    std::uint64_t number = 0, parts = static_cast<std::uint64_t>(present), begin = 0;
    for (int member = 0; member < size_; ++member) {
      Member& to = members_[member];
      if (to.rests.load(std::memory_order_relaxed) != 0) continue;
      const std::uint64_t end = each * ++number / parts;
      to.task = task;
      to.share.store(share_of(begin, end), std::memory_order_release);
      begin = end;
    }
  }

  // Ends what rests are over; returns how many are not.
  int let_rest() {
    for (int number = 1; number < size_; ++number) {
      Member& member = members_[number];
      const bool rests = member.rests.load(std::memory_order_relaxed) != 0;
      if (rests && now() - member.since > member.rest) {
        member.since = now();
        end_rest(member);
        --resting_;
      }
    }
    return resting_;
  }

  static void end_rest(Member& member) {
    member.rests.store(0);
    wake(member.rests, 1);
  }

  void wake_sleepers() {
    sleepers_.store(0);
    turn_.fetch_add(1);
    wake(turn_, size_);
  }

  // Waits until others have done so many pieces since the last time.
  void wait_for_others(std::int64_t count, Ticks piece) {
    done_before_ += static_cast<std::uint32_t>(count);
    const Ticks began = now();
    while (done_by_others() != done_before_) {
      if (now() - began < WAIT) {
        __builtin_ia32_pause();
        continue;
      }
      is_waiting_.store(1);
      const std::uint32_t seen = called_.load();
      if (done_by_others() != done_before_) {
        note_who_is_late();
        sleep_while(called_, seen);
      }
      is_waiting_.store(0);
    }
    if (late_.empty()) return;
    if (now() - began > std::max(HELD_UP, PIECES * piece)) send_to_rest();
    late_.clear();
  }

  std::uint32_t done_by_others() const {
    std::uint32_t done = 0;
    for (int number = 1; number < size_; ++number) done += members_[number].done.load();
    return done;
  }

  void note_who_is_late() {
    if (!late_.empty()) return;
    for (int number = 1; number < size_; ++number) {
      if (members_[number].is_at_work.load() != 0) late_.push_back(number);
    }
  }

  void send_to_rest() {
    for (const int number : late_) {
      Member& member = members_[number];
      const bool went_well = now() - member.since > WELL * member.rest;
      member.rest = went_well ? LEAST_REST : std::min(2 * member.rest, MOST_REST);
      member.since = now();
      member.rests.store(1);
      ++resting_;
    }
  }

  void serve(int number) {
    Member& me = members_[number];
    while (look_out(me)) {
      std::int64_t first;
      int whose = number;
      if (!take(number, first, &whose)) continue;
      me.is_at_work.store(1, std::memory_order_relaxed);
      const Task& task = members_[whose].task;
      Pieces pieces(*this, number, first);
      task.compute(task.state, pieces);
      me.is_at_work.store(0, std::memory_order_relaxed);
      me.done.fetch_add(static_cast<std::uint32_t>(pieces.done()));
      if (is_waiting_.load() != 0) {
        called_.fetch_add(1);
        wake(called_, 1);
      }
    }
  }

  // Waits until there is a share for a member; false at the end of the team.
  bool look_out(Member& me) {
    const auto is_needed = [&] {
      const std::uint64_t share = me.share.load(std::memory_order_acquire);
      return first_of(share) < end_of(share);
    };
    for (Ticks began = now(); !is_ending_.load(std::memory_order_relaxed);) {
      if (me.rests.load(std::memory_order_relaxed) != 0) {
        sleep_while(me.rests, 1);
        began = now();
      }
      if (is_needed()) return true;
      if (now() - began < LOOK_OUT) {
        __builtin_ia32_pause();
        continue;
      }
      const std::uint32_t seen = turn_.load();
      sleepers_.store(1);  // who wakes them takes it back
      if (is_needed() || is_ending_) continue;
      sleep_while(turn_, seen);
      began = now();
    }
    return false;
  }

  std::vector<Member> members_;
  const int made_in_;
  int size_ = 1;
  int resting_ = 0;
  std::uint32_t done_before_ = 0;
  std::vector<int> late_;
  alignas(128) Word is_waiting_{0};
  Word called_{0};
  alignas(128) Word sleepers_{0};
  Word turn_{0};
  std::atomic<bool> is_ending_{false};
};

namespace {

thread_local std::unique_ptr<Team> own;
thread_local int wanted = 0;
thread_local int made_for = 0;

// The team of this thread, or null where it computes alone.
Team* team() {
  static const int watching = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  (void)watching;
  const int threads = team_size();
  if (own != nullptr && !own->is_whole()) own.release();  // its threads are in another process
  if (own == nullptr || made_for != threads) {
    own.reset();
    made_for = threads;
    if (threads > 1) own = std::make_unique<Team>(threads);
  }
  return own.get();
}

}  // namespace

bool Pieces::take(std::int64_t& piece) { return team_->take(member_, piece); }

int team_size() {
  return wanted > 0 ? wanted : std::clamp(omp_get_max_threads(), 1, MOST_MEMBERS);
}

void set_team_size(int threads) { wanted = threads; }
bool is_team_set() { return wanted > 0; }

void rouse_team() {
  if (Team* all = team()) all->rouse();
}

void compute_pieces(std::int64_t count, const void* state, Compute compute) {
  Team* all = count > 1 ? team() : nullptr;
  if (all != nullptr) return all->compute(count, {state, compute});
  Pieces pieces(count);
  compute(state, pieces);
}
