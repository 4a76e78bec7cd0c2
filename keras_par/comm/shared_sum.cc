// Sums and gathers tensors over the processes of one host through memory they share: TensorFlow operations in C++,
// because neither Python nor another thread should stand between a step's gradients and their sums.
//
// Each rank owns a ring of slots. It copies its tensors, one after another, into its slots, chunk by chunk, and adds up
// the chunks of all ranks in the order of the ranks, so that all have the same bits, or copies them side by side. A
// chunk's tag says which collective it belongs to: ranks that are in different ones get an error instead of a wrong sum.

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
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
#include <vector>

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace {

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

struct Member {
  Progress published;  // chunks that this rank has put into its slots
  Progress consumed;   // chunks of all ranks that it has added up
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> left;
  uint64_t tags[kSlots];
};

struct Segment {
  alignas(64) char token[64];  // by which a rank that opens this memory knows it for the right one
  Member members[];
};

struct Piece {
  const char* source;
  char* result;  // of as many bytes; of a gathering, for each rank
  size_t bytes;
};

// Where a walk through the bytes of all pieces stands.
struct Walk {
  const std::vector<Piece>& pieces;
  size_t piece = 0, done = 0;

  template <class Action>
  void go(size_t bytes, Action action) {
    for (size_t offset = 0; offset < bytes;) {
      const Piece& here = pieces[piece];
      const size_t count = std::min(bytes - offset, here.bytes - done);
      action(here, done, offset, count);
      offset += count;
      done += count;
      if (done == here.bytes) ++piece, done = 0;
    }
  }
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// False once a process has ended, also while its parent has not taken notice.
bool is_alive(int32_t pid) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (file == nullptr) return errno != ENOENT;
  char text[512];
  text[std::fread(text, 1, sizeof text - 1, file)] = 0;
  std::fclose(file);
  const char* name_end = std::strrchr(text, ')');
  return name_end == nullptr || std::strlen(name_end) < 3 || (name_end[2] != 'Z' && name_end[2] != 'X');
}

class Group {
 public:
  static size_t bytes(int size) { return head(size) + size_t(size) * kSlots * kChunk; }

  Group(void* memory, int rank, int size)
      : segment_(static_cast<Segment*>(memory)),
        slots_(static_cast<char*>(memory) + head(size)),
        rank_(rank),
        size_(size) {
    own().pid.store(getpid());
  }

  // False in a child process, which must not speak for its parent.
  bool is_own() const { return pid_ == getpid(); }

  void leave() {
    own().left.store(1);
    wake(own().published);
    wake(own().consumed);
  }

  // Sums the pieces; returns an empty text, or what went wrong. After an error the group is of no use any more.
  template <class Number>
  std::string sum(const std::vector<Piece>& pieces, uint64_t tag, const std::string& name) {
    Walk walk{pieces};
    return exchange(pieces, tag, name, [&](uint32_t number, size_t length) { add_up<Number>(walk, number, length); });
  }

  // Puts all ranks' pieces one after another; returns as sum does.
  std::string gather(const Piece& piece, uint64_t tag, const std::string& name) {
    size_t done = 0;
    return exchange({piece}, tag, name, [&](uint32_t number, size_t length) {
      for (int rank = 0; rank < size_; ++rank)
        std::memcpy(piece.result + rank * piece.bytes + done, slot(rank, number), length);
      done += length;
    });
  }

  int size() const { return size_; }

 private:
  static size_t head(int size) { return (sizeof(Segment) + size * sizeof(Member) + 4095) / 4096 * 4096; }

  Member& own() { return segment_->members[rank_]; }

  char* slot(int rank, uint32_t number) { return slots_ + (size_t(rank) * kSlots + number % kSlots) * kChunk; }

  // Publishes the pieces chunk by chunk; `take` gets the number and length of each chunk that all ranks have published.
  template <class Take>
  std::string exchange(const std::vector<Piece>& pieces, uint64_t tag, const std::string& name, Take take) {
    if (!wrong_.empty()) return wrong_;
    size_t total = 0;
    for (const Piece& piece : pieces) total += piece.bytes;
    const uint32_t count = uint32_t((total + kChunk - 1) / kChunk);
    const auto length = [&](uint32_t chunk) { return std::min(kChunk, total - chunk * kChunk); };
    Walk walk{pieces};
    for (uint32_t chunk = 0; chunk <= count && wrong_.empty(); ++chunk) {
      if (chunk < count) publish(walk, begun_ + chunk, length(chunk), tag ^ chunk, name);
      if (chunk == 0 || !wrong_.empty()) continue;
      const uint32_t number = begun_ + chunk - 1;
      await_all(number, tag ^ (chunk - 1), name);
      if (!wrong_.empty()) break;
      take(number, length(chunk - 1));
      post(own().consumed, number + 1);
    }
    begun_ += count;
    if (!wrong_.empty()) leave();
    return wrong_;
  }

  void publish(Walk& walk, uint32_t number, size_t length, uint64_t tag, const std::string& name) {
    for (int rank = 0; rank < size_ && wrong_.empty(); ++rank)
      await(rank, segment_->members[rank].consumed, number + 1 - kSlots, name);
    if (!wrong_.empty()) return;
    char* slot = this->slot(rank_, number);
    walk.go(length, [&](const Piece& piece, size_t done, size_t offset, size_t count) {
      std::memcpy(slot + offset, piece.source + done, count);
    });
    own().tags[number % kSlots] = tag;
    post(own().published, number + 1);
  }

  // Returns once all ranks have published a chunk; sets wrong_ if one has another, or never will.
  void await_all(uint32_t number, uint64_t tag, const std::string& name) {
    for (int rank = 0; rank < size_ && wrong_.empty(); ++rank) {
      await(rank, segment_->members[rank].published, number + 1, name);
      if (wrong_.empty() && segment_->members[rank].tags[number % kSlots] != tag)
        wrong_ = "rank " + std::to_string(rank) + " is in another collective than " + name + " on rank " +
                 std::to_string(rank_) + ", or in it with other tensors";
    }
  }

  template <class Number>
  void add_up(Walk& walk, uint32_t number, size_t length) {
    walk.go(length, [&](const Piece& piece, size_t done, size_t offset, size_t count) {
      Number* __restrict sum = reinterpret_cast<Number*>(piece.result + done);
      const auto part = [&](int rank) { return reinterpret_cast<const Number*>(slot(rank, number) + offset); };
      const Number *__restrict first = part(0), *__restrict second = part(1);
      count /= sizeof(Number);
      for (size_t i = 0; i < count; ++i) sum[i] = first[i] + second[i];
      for (int rank = 2; rank < size_; ++rank) {
        const Number* __restrict next = part(rank);
        for (size_t i = 0; i < count; ++i) sum[i] += next[i];
      }
    });
  }

  static void wake(Progress& progress) {
    syscall(SYS_futex, &progress.value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }

  static void post(Progress& progress, uint32_t value) {
    progress.value.store(value);
    if (progress.waiters.load() > 0) wake(progress);
  }

  // Returns once a rank's progress has come to `value`; sets wrong_ if it never will.
  void await(int rank, Progress& progress, uint32_t value, const std::string& name) {
    const auto come = [&] { return int32_t(progress.value.load(std::memory_order_acquire) - value) >= 0; };
    for (int i = 0; i < kPauses; ++i) {
      if (come()) return;
      pause();
    }
    for (const double end = now() + kYieldSeconds; now() < end;) {
      if (come()) return;
      sched_yield();
    }
    Member& member = segment_->members[rank];
    const char* limit = std::getenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
    const double most = limit == nullptr ? 0 : std::atof(limit), begin = now();
    for (bool is_told = false; !come();) {
      const double seconds = now() - begin;
      if (seconds > kStallSeconds && !is_told) {
        is_told = true;
        std::fprintf(stderr, "keras-par: rank %d has waited %.0f s for rank %d in %s.\n", rank_, seconds, rank,
                     name.c_str());
      }
      if (most > 0 && seconds > most) {
        wrong_ = "rank " + std::to_string(rank_) + " has waited HOROVOD_STALL_SHUTDOWN_TIME_SECONDS for rank " +
                 std::to_string(rank) + " in " + name;
        return;
      }
      if (own().left.load()) {
        wrong_ = "communication was shut down while rank " + std::to_string(rank_) + " was in " + name;
        return;
      }
      if (member.left.load() || !is_alive(member.pid.load())) {
        if (come()) return;
        wrong_ = "rank " + std::to_string(rank) + " has left the job, so that rank " + std::to_string(rank_) +
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
  const int rank_, size_;
  const pid_t pid_ = getpid();
  uint32_t begun_ = 0;  // chunks of the collectives that are complete
  std::string wrong_;
};

std::mutex mutex;  // one collective at a time
Group* group = nullptr;
void* memory = MAP_FAILED;
size_t mapped = 0;

struct Kernel {
  std::string name;
  int64_t size = 0;  // number of ranks, for gatherings
};

// What a collective is known by: its name, and the types and shapes of its tensors, or a gathering's bytes (FNV-1a).
class Tag {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  }
  void add(int64_t number) { add(&number, sizeof number); }
  uint64_t value() const { return hash_ << 32; }  // the chunk's number goes below

 private:
  uint64_t hash_ = 14695981039346656037u;
};

void* create(TF_OpKernelConstruction* construction) {
  TF_Status* status = TF_NewStatus();
  int32_t list = 0, length = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, "collective", &list, &length, status);
  auto* kernel = new Kernel{std::string(std::max(length, 0), ' ')};
  TF_OpKernelConstruction_GetAttrString(construction, "collective", kernel->name.data(), kernel->name.size(), status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  return kernel;
}

std::string summed(const Kernel& kernel, const std::vector<Piece>& pieces, TF_DataType type, uint64_t tag) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (group == nullptr) return "communication has been shut down";
  switch (type) {
    case TF_FLOAT:
      return group->sum<float>(pieces, tag, kernel.name);
    case TF_DOUBLE:
      return group->sum<double>(pieces, tag, kernel.name);
    case TF_INT32:
      return group->sum<int32_t>(pieces, tag, kernel.name);
    default:
      return group->sum<int64_t>(pieces, tag, kernel.name);
  }
}

void compute(void* pointer, TF_OpKernelContext* context) {
  const Kernel& kernel = *static_cast<Kernel*>(pointer);
  TF_Status* status = TF_NewStatus();
  std::vector<TF_Tensor*> held;
  std::vector<Piece> pieces;
  Tag tag;
  tag.add(kernel.name.data(), kernel.name.size());
  TF_DataType type = TF_FLOAT;
  const auto take = [&](int input) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context, input, &tensor, status);
    return TF_GetCode(status) == TF_OK ? tensor : nullptr;
  };
  const int count = TF_NumInputs(context) - 1;  // the last input only sets the order
  for (int i = 0; i < count; ++i) {
    TF_Tensor* given = take(i);
    if (given == nullptr) break;
    type = TF_TensorType(given);
    const size_t bytes = TF_TensorByteSize(given);
    std::vector<int64_t> dims(TF_NumDims(given));
    for (size_t dim = 0; dim < dims.size(); ++dim) dims[dim] = TF_Dim(given, int(dim));
    tag.add(type);
    tag.add(dims.size());
    for (const int64_t size : dims) tag.add(size);
    TF_DeleteTensor(given);  // or its memory could not become the sum's
    int forwarded = -1;
    TF_Tensor* sum =
        TF_ForwardInputOrAllocateOutput(context, &i, 1, i, dims.data(), int(dims.size()), &forwarded, status);
    if (TF_GetCode(status) != TF_OK) break;
    held.push_back(sum);
    char* const to = static_cast<char*>(TF_TensorData(sum));
    const char* from = to;
    if (forwarded < 0) {
      given = take(i);
      if (given == nullptr) break;
      held.push_back(given);
      from = static_cast<const char*>(TF_TensorData(given));
    }
    if (bytes > 0) pieces.push_back({from, to, bytes});
  }
  if (TF_GetCode(status) == TF_OK) {
    const std::string wrong = summed(kernel, pieces, type, tag.value());
    if (!wrong.empty()) TF_SetStatus(status, TF_ABORTED, ("keras-par's shared memory: " + wrong).c_str());
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
  for (TF_Tensor* tensor : held) TF_DeleteTensor(tensor);
  TF_DeleteStatus(status);
}

void* create_gather(TF_OpKernelConstruction* construction) {
  auto* kernel = static_cast<Kernel*>(create(construction));
  TF_Status* status = TF_NewStatus();
  TF_OpKernelConstruction_GetAttrInt64(construction, "size", &kernel->size, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  return kernel;
}

std::string gathered(const Kernel& kernel, const Piece& piece, uint64_t tag) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (group == nullptr) return "communication has been shut down";
  if (group->size() != kernel.size) return "there are other ranks than when " + kernel.name + " was traced";
  return group->gather(piece, tag, kernel.name);
}

void compute_gather(void* pointer, TF_OpKernelContext* context) {
  const Kernel& kernel = *static_cast<Kernel*>(pointer);
  TF_Status* status = TF_NewStatus();
  TF_Tensor *given = nullptr, *result = nullptr;
  TF_GetInput(context, 0, &given, status);
  if (TF_GetCode(status) == TF_OK) {
    const size_t bytes = TF_TensorByteSize(given);
    const int64_t dims[] = {kernel.size, int64_t(bytes / sizeof(int32_t))};
    result = TF_AllocateOutput(context, 0, TF_INT32, dims, 2, kernel.size * bytes, status);
    if (TF_GetCode(status) == TF_OK) {
      Tag tag;
      tag.add(kernel.name.data(), kernel.name.size());
      tag.add(int64_t(bytes));
      const Piece piece{static_cast<const char*>(TF_TensorData(given)), static_cast<char*>(TF_TensorData(result)), bytes};
      const std::string wrong = bytes > 0 ? gathered(kernel, piece, tag.value()) : "";
      if (!wrong.empty()) TF_SetStatus(status, TF_ABORTED, ("keras-par's shared memory: " + wrong).c_str());
    }
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
  if (given != nullptr) TF_DeleteTensor(given);
  if (result != nullptr) TF_DeleteTensor(result);
  TF_DeleteStatus(status);
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = TF_ShapeInferenceContextNumInputs(context) - 1;
  for (int64_t i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeHandle* shape = TF_NewShapeHandle();
    TF_ShapeInferenceContextGetInput(context, int(i), shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, int(i), shape, status);
    TF_DeleteShapeHandle(shape);
  }
}

void infer_nothing(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

// Registers the operation that the definition describes, for processors; says what keeps it from that.
bool registered(const char* name, TF_OpDefinitionBuilder* operation, void* (*create)(TF_OpKernelConstruction*),
                void (*compute)(void*, TF_OpKernelContext*)) {
  TF_Status* status = TF_NewStatus();
  TF_OpDefinitionBuilderAddAttr(operation, "collective: string");
  TF_OpDefinitionBuilderAddInput(operation, "order: resource");  // operations with the same one run one by one
  TF_OpDefinitionBuilderSetIsStateful(operation, true);  // or TensorFlow would fold, merge, prune and reorder it
  TF_RegisterOpDefinition(operation, status);
  if (TF_GetCode(status) == TF_OK)
    TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", create, compute, destroy), status);
  if (TF_GetCode(status) != TF_OK) std::fprintf(stderr, "keras-par's shared memory: %s\n", TF_Message(status));
  const bool done = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  return done;
}

const bool sum_registered = [] {
  TF_OpDefinitionBuilder* operation = TF_NewOpDefinitionBuilder("KerasParSharedSum");
  TF_OpDefinitionBuilderAddAttr(operation, "n: int >= 1");
  TF_OpDefinitionBuilderAddAttr(operation, "T: {float, double, int32, int64}");
  TF_OpDefinitionBuilderAddInput(operation, "tensors: n * T");
  TF_OpDefinitionBuilderAddOutput(operation, "sums: n * T");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, infer_shapes);
  return registered("KerasParSharedSum", operation, create, compute);
}();

const bool gather_registered = [] {
  TF_OpDefinitionBuilder* operation = TF_NewOpDefinitionBuilder("KerasParSharedGather");
  TF_OpDefinitionBuilderAddAttr(operation, "size: int >= 1");
  TF_OpDefinitionBuilderAddInput(operation, "tensor: int32");
  TF_OpDefinitionBuilderAddOutput(operation, "gathered: int32");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, infer_nothing);
  return registered("KerasParSharedGather", operation, create_gather, compute_gather);
}();

}  // namespace

extern "C" {

// Bytes of memory that a number of ranks share.
int64_t keras_par_shared_bytes(int size) { return int64_t(Group::bytes(size)); }

// Takes part in the group whose memory is this file; returns 0, or errno.
int keras_par_shared_join(int file, int rank, int size) {
  const std::lock_guard<std::mutex> lock(mutex);
  mapped = Group::bytes(size);
  memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return errno;
  group = new Group(memory, rank, size);
  return 0;
}

// Leaves the group; ranks that wait for this one get an error.
void keras_par_shared_leave() {
  if (group != nullptr && !group->is_own()) return;
  if (group != nullptr) group->leave();  // a collective of this process may be waiting
  const std::lock_guard<std::mutex> lock(mutex);
  delete group;
  group = nullptr;
  if (memory != MAP_FAILED) munmap(memory, mapped);
  memory = MAP_FAILED;
}

}
