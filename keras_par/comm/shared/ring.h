// Memory that the processes of one host share, and how they pass chunks of bytes to each other through it.
//
// Each rank owns a ring of slots, into which it puts what it gives, chunk by chunk, for all ranks to read. A chunk's tag
// says which collective it belongs to: ranks that are in different ones get an error instead of a wrong result.

#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

#include "writing.h"

namespace keras_par {

constexpr size_t kChunk = 256 << 10;  // bytes: two of them fit a core's second cache
constexpr uint32_t kSlots = 4;
constexpr int kPauses = 1000;               // of a processor's hint that it waits in a loop
constexpr double kYieldSeconds = 1e-3;      // in which a waiting rank offers its core to other threads
constexpr double kStallSeconds = 60;        // after which a rank says that it waits, as Horovod's does
constexpr long kLookAfter = 50 * 1000000L;  // nanoseconds between looks whether a rank is still alive

// A number that only its rank writes, and only upwards; it may wrap around.
struct alignas(64) Progress {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> waiters;
};

// What a chunk belongs to: the tag that all ranks must have alike, and the beginning of the collective's name.
struct Label {
  uint64_t tag;
  char name[120];
};

struct Member {
  Progress published;  // chunks that this rank has put into its slots
  Progress reduced;    // chunks of which it has put its part of the result into its slots
  Progress consumed;   // chunks of all ranks that it has read
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> left;
  std::atomic<Way> way;  // rank 0's: how all put bytes into slots
  Label labels[kSlots];
};

struct Segment {
  alignas(64) char token[64];  // by which a rank that opens this memory knows it for the right one
  Member members[];
};

// A collective, by what all ranks must have alike in it: the chunk's number goes into the lower half of its tag.
struct Collective {
  const std::string& name;
  uint64_t tag;
};

inline double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// False once a process has ended, also while its parent has not taken notice.
inline bool is_alive(int32_t pid) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (file == nullptr) return errno != ENOENT;
  char text[512];
  text[std::fread(text, 1, sizeof text - 1, file)] = 0;
  std::fclose(file);
  const char* name_end = std::strrchr(text, ')');
  return name_end == nullptr || std::strlen(name_end) < 3 || (name_end[2] != 'Z' && name_end[2] != 'X');
}

// One rank's view of the memory. After an error it is of no use any more.
class Ring {
 public:
  static size_t bytes(int size) { return head(size) + size_t(size) * kSlots * kChunk; }

  Ring(void* memory, int rank, int size)
      : rank(rank),
        size(size),
        segment_(static_cast<Segment*>(memory)),
        slots_(static_cast<char*>(memory) + head(size)) {
    own().pid.store(getpid());
  }

  const int rank, size;
  std::mutex mutex;  // one collective at a time

  // False in a child process, which must not speak for its parent.
  bool is_own() const { return pid_ == getpid(); }

  void leave() {
    own().left.store(1);
    for (Progress* progress : {&own().published, &own().reduced, &own().consumed}) wake(*progress);
  }

  // Copies into this rank's slots.
  void put(char* to, const char* from, size_t bytes) const { keras_par::put(to, from, bytes, way_); }

  // Where a rank's bytes of the chunk are that is being read.
  char* slot(int of, uint32_t number) const { return slots_ + (size_t(of) * kSlots + number % kSlots) * kChunk; }

  // Passes so many bytes on, in chunks. `fill` puts this rank's one, of a number from 0, into a slot; `read` gets the
  // number and the number by which `slot` knows it, once all ranks have put theirs. Returns an empty text, or what went
  // wrong.
  template <class Fill, class Read>
  std::string pass(const Collective& collective, size_t bytes, Fill fill, Read read) {
    return steps(collective, bytes, 1, fill, [&](int, uint32_t chunk, uint32_t number) { read(chunk, number); });
  }

  // As `pass`, with a step between, `reduce`, in which each rank may change a part of its own slot that no other reads
  // before all have done so.
  template <class Fill, class Reduce, class Read>
  std::string pass(const Collective& collective, size_t bytes, Fill fill, Reduce reduce, Read read) {
    return steps(collective, bytes, 2, fill, [&](int step, uint32_t chunk, uint32_t number) {
      if (step == 1)
        reduce(chunk, number);
      else
        read(chunk, number);
    });
  }

 private:
  static size_t head(int size) { return (sizeof(Segment) + size * sizeof(Member) + 4095) / 4096 * 4096; }

  Member& member(int of) const { return segment_->members[of]; }
  Member& own() const { return member(rank); }

  // In each round the newest chunk is published, the one before that goes through step 1, and so on.
  template <class Fill, class Step>
  std::string steps(const Collective& collective, size_t bytes, uint32_t num_steps, Fill& fill, Step step) {
    const uint32_t count = uint32_t((bytes + kChunk - 1) / kChunk);
    way_ = member(0).way.load(std::memory_order_relaxed);
    seconds_ = 0;
    for (uint32_t round = 0; round < count + num_steps && wrong_.empty(); ++round) {
      if (round < count) publish(collective, round, fill);
      for (uint32_t each = 1; each <= num_steps && wrong_.empty(); ++each) {
        if (round < each || round - each >= count) continue;
        const uint32_t chunk = round - each, number = begun_ + chunk;
        await_all(each == 1 ? &Member::published : &Member::reduced, number, chunk, collective);
        if (!wrong_.empty()) break;
        timed([&] { step(int(each), chunk, number); });
        post(each == num_steps ? own().consumed : own().reduced, number + 1);
      }
    }
    begun_ += count;
    if (rank == 0) own().way.store(choice_.note(way_, seconds_, bytes), std::memory_order_relaxed);
    if (num_steps == 1) own().reduced.value.store(begun_);
    if (!wrong_.empty()) leave();
    return wrong_;
  }

  // Adds to what this collective's copies have taken, without the waiting between them.
  template <class Action>
  void timed(Action action) {
    const double begin = now();
    action();
    seconds_ += now() - begin;
  }

  template <class Fill>
  void publish(const Collective& collective, uint32_t chunk, Fill& fill) {
    const uint32_t number = begun_ + chunk;
    for (int of = 0; of < size && wrong_.empty(); ++of)
      await(of, member(of).consumed, number + 1 - kSlots, collective.name);
    if (!wrong_.empty()) return;
    timed([&] { fill(chunk, slot(rank, number)); });
    Label& label = own().labels[number % kSlots];
    label.tag = collective.tag ^ chunk;
    label.name[collective.name.copy(label.name, sizeof label.name - 1)] = 0;
    post(own().published, number + 1);
  }

  // Returns once all ranks have come so far with a chunk; sets wrong_ if one has another, or never will.
  void await_all(Progress Member::*progress, uint32_t number, uint32_t chunk, const Collective& collective) {
    for (int of = 0; of < size && wrong_.empty(); ++of) {
      await(of, member(of).*progress, number + 1, collective.name);
      if (!wrong_.empty()) return;
      const Label& label = member(of).labels[number % kSlots];
      if (label.tag == (collective.tag ^ chunk)) continue;
      const std::string here = collective.name.substr(0, sizeof label.name - 1);
      wrong_ = "rank " + std::to_string(of) + " is in " + label.name + ", but rank " + std::to_string(rank) + " in " +
               (here == label.name ? "it with tensors of other shapes or types" : here);
    }
  }

  static void wake(Progress& progress) {
    syscall(SYS_futex, &progress.value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }

  static void post(Progress& progress, uint32_t value) {
    progress.value.store(value);
    if (progress.waiters.load() > 0) wake(progress);
  }

  // Returns once a rank's progress has come to `value`; sets wrong_ if it never will.
  void await(int of, Progress& progress, uint32_t value, const std::string& name) {
    const auto come = [&] { return int32_t(progress.value.load(std::memory_order_acquire) - value) >= 0; };
    for (int i = 0; i < kPauses; ++i) {
      if (come()) return;
      pause();
    }
    for (const double end = now() + kYieldSeconds; now() < end;) {
      if (come()) return;
      sched_yield();
    }
    const char* limit = std::getenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
    const double most = limit == nullptr ? 0 : std::atof(limit), begin = now();
    for (bool is_told = false; !come();) {
      const double seconds = now() - begin;
      if (seconds > kStallSeconds && !is_told) {
        is_told = true;
        std::fprintf(stderr, "keras-par: rank %d has waited %.0f s for rank %d in %s.\n", rank, seconds, of,
                     name.c_str());
      }
      if (most > 0 && seconds > most) {
        wrong_ = "rank " + std::to_string(rank) + " has waited HOROVOD_STALL_SHUTDOWN_TIME_SECONDS for rank " +
                 std::to_string(of) + " in " + name;
        return;
      }
      if (own().left.load()) {
        wrong_ = "communication was shut down while rank " + std::to_string(rank) + " was in " + name;
        return;
      }
      if (member(of).left.load() || !is_alive(member(of).pid.load())) {
        if (come()) return;
        wrong_ = "rank " + std::to_string(of) + " has left the job, so that rank " + std::to_string(rank) +
                 " waits for it in vain in " + name;
        return;
      }
      progress.waiters.fetch_add(1);
      const uint32_t seen = progress.value.load();
      const timespec pause{0, kLookAfter};
      if (int32_t(seen - value) < 0) syscall(SYS_futex, &progress.value, FUTEX_WAIT, seen, &pause, nullptr, 0);
      progress.waiters.fetch_sub(1);
    }
  }

  Segment* segment_;
  char* slots_;
  const pid_t pid_ = getpid();
  uint32_t begun_ = 0;  // chunks of the collectives that are complete
  Way way_ = Way::kCached;
  Choice choice_;       // rank 0's
  double seconds_ = 0;  // of this collective's copies
  std::string wrong_;
};

}  // namespace keras_par
