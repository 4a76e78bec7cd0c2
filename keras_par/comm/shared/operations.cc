// TensorFlow operations that reduce, gather and exchange tensors over the processes of one host through memory they
// share: in C++, because neither Python nor another thread should stand between a step's gradients and their sums.

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

namespace keras_par {
namespace {

// The rings of this process by the numbers that operations know them by, which are not used again.
class Rings {
 public:
  // Takes part in the ring whose memory is this file; returns its number, or errno below 0.
  int join(int file, int rank, int size) {
    const size_t bytes = Ring::bytes(size);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return -errno;
    const std::lock_guard<std::mutex> lock(mutex_);
    rings_.emplace_back(new Ring(memory, rank, size), [memory, bytes](Ring* ring) {
      delete ring;
      munmap(memory, bytes);
    });
    return int(rings_.size()) - 1;
  }

  // Null for one that was left.
  std::shared_ptr<Ring> find(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return number >= 0 && number < int64_t(rings_.size()) ? rings_[number] : nullptr;
  }

  void leave(int number) {
    const std::shared_ptr<Ring> ring = find(number);
    if (ring == nullptr || !ring->is_own()) return;
    ring->leave();  // a collective of this process may be waiting
    const std::lock_guard<std::mutex> lock(mutex_);
    rings_[number] = nullptr;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Ring>> rings_;
};

Rings& rings() {
  static Rings* const all = new Rings;  // never destroyed: threads may be in a collective when the process ends
  return *all;
}

// What all ranks must have alike in a collective, as one number (FNV-1a).
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

using Dims = std::vector<int64_t>;

Dims dims_of(const TF_Tensor* tensor) {
  Dims dims(TF_NumDims(tensor));
  for (size_t dim = 0; dim < dims.size(); ++dim) dims[dim] = TF_Dim(tensor, int(dim));
  return dims;
}

size_t bytes_of(TF_DataType type, const Dims& dims) {
  size_t bytes = TF_DataTypeSize(type);
  for (const int64_t size : dims) bytes *= size;
  return bytes;
}

// An operation's attributes: what it is called, in which ring it is, and a third one.
struct Kernel {
  std::string collective;
  int64_t ring = 0;
  int64_t option = 0;  // which reduction, or which rank is the root
  TF_DataType sent_as = TF_FLOAT;  // of a reduction: the type in which numbers lie in the memory
};

// A run of an operation: its tensors, its results, and what went wrong. Its last two inputs and its last output set the
// order only.
class Run {
 public:
  Run(const Kernel& kernel, TF_OpKernelContext* context) : kernel(kernel), context_(context) {
    ring = rings().find(kernel.ring);
    if (ring == nullptr) fail("communication has been shut down");
    tag.add(kernel.collective.data(), kernel.collective.size());
    tag.add(kernel.option);
    tag.add(kernel.sent_as);
  }

  ~Run() {
    if (char* const token = is_well() ? output(num_inputs(), TF_INT32, {}) : nullptr) std::memset(token, 0, 4);
    if (!is_well()) TF_OpKernelContext_Failure(context_, status_);
    for (TF_Tensor* tensor : held_) TF_DeleteTensor(tensor);
    TF_DeleteStatus(status_);
  }

  bool is_well() const { return TF_GetCode(status_) == TF_OK; }

  int num_inputs() const { return TF_NumInputs(context_) - 2; }

  // Held until the run ends; null if something is wrong.
  TF_Tensor* input(int place) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, place, &tensor, status_);
    if (is_well()) held_.push_back(tensor);
    return is_well() ? tensor : nullptr;
  }

  // Where an output is.
  char* output(int place, TF_DataType type, const Dims& dims) {
    const size_t bytes = bytes_of(type, dims);
    return kept(TF_AllocateOutput(context_, place, type, dims.data(), int(dims.size()), bytes, status_));
  }

  // The type and dims of an input, which is not held: or its memory could not become an output's.
  std::pair<TF_DataType, Dims> look(int place) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, place, &tensor, status_);
    if (!is_well()) return {};
    const std::pair<TF_DataType, Dims> found{TF_TensorType(tensor), dims_of(tensor)};
    TF_DeleteTensor(tensor);
    return found;
  }

  // Where an output of an input's shape is, and the input, which may be in the same place: nobody else needs it then.
  std::pair<char*, const char*> output_like_input(int place, const Dims& dims) {
    int from = -1;
    char* const to = kept(
        TF_ForwardInputOrAllocateOutput(context_, &place, 1, place, dims.data(), int(dims.size()), &from, status_));
    if (to == nullptr || from >= 0) return {to, to};
    TF_Tensor* const given = input(place);
    return {to, given == nullptr ? nullptr : static_cast<const char*>(TF_TensorData(given))};
  }

  // Adds to the tag what ranks must have alike of an input.
  void expect(TF_DataType type, const Dims& dims, size_t first_dim = 0) {
    tag.add(type);
    tag.add(dims.size());
    for (size_t dim = first_dim; dim < dims.size(); ++dim) tag.add(dims[dim]);
  }

  // Runs a collective of the ring, which returns what went wrong.
  template <class Action>
  void pass(Action action) {
    if (!is_well()) return;
    const std::lock_guard<std::mutex> lock(ring->mutex);
    const std::string wrong = action(Collective{kernel.collective, tag.value()});
    if (!wrong.empty()) fail(wrong);
  }

  void fail(const std::string& wrong) {
    TF_SetStatus(status_, TF_ABORTED, ("keras-par's shared memory: " + wrong).c_str());
  }

  const Kernel& kernel;
  std::shared_ptr<Ring> ring;
  Tag tag;

 private:
  char* kept(TF_Tensor* tensor) {
    if (!is_well()) return nullptr;
    held_.push_back(tensor);
    return static_cast<char*>(TF_TensorData(tensor));
  }

  TF_OpKernelContext* context_;
  TF_Status* status_ = TF_NewStatus();
  std::vector<TF_Tensor*> held_;
};

// How many bytes of the memory a tensor of so many bytes takes.
size_t sent_bytes(size_t bytes, TF_DataType type, TF_DataType sent_as) {
  return bytes / TF_DataTypeSize(type) * TF_DataTypeSize(sent_as);
}

template <class Number>
std::string reduced(Ring& ring, const Collective& collective, const Given& given, const std::vector<Part>& parts,
                    bool is_for_all, Op op) {
  switch (op) {
    case Op::kMin:
      return reduce<Op::kMin, Number>(ring, collective, given, parts, is_for_all);
    case Op::kMax:
      return reduce<Op::kMax, Number>(ring, collective, given, parts, is_for_all);
    default:
      return reduce<Op::kSum, Number>(ring, collective, given, parts, is_for_all);
  }
}

std::string reduced(Ring& ring, const Collective& collective, const Given& given, const std::vector<Part>& parts,
                    bool is_for_all, Op op, TF_DataType type, TF_DataType sent_as) {
  if (type == TF_FLOAT && op == Op::kSum) {
    if (sent_as == TF_HALF) return reduce<Op::kSum, float, Half>(ring, collective, given, parts, is_for_all);
    if (sent_as == TF_BFLOAT16) return reduce<Op::kSum, float, Bfloat16>(ring, collective, given, parts, is_for_all);
  }
  if (type != sent_as) return collective.name + " cannot send its tensors as numbers of that type";
  switch (type) {
    case TF_FLOAT:
      return reduced<float>(ring, collective, given, parts, is_for_all, op);
    case TF_DOUBLE:
      return reduced<double>(ring, collective, given, parts, is_for_all, op);
    case TF_INT32:
      return reduced<int32_t>(ring, collective, given, parts, is_for_all, op);
    case TF_INT64:
      return reduced<int64_t>(ring, collective, given, parts, is_for_all, op);
    case TF_HALF:
      return reduced<Half>(ring, collective, given, parts, is_for_all, op);
    default:
      return reduced<Bfloat16>(ring, collective, given, parts, is_for_all, op);
  }
}

// The rows of dim 0 that a rank has of so many: as many as others, or one more (as Horovod has it).
std::pair<int64_t, int64_t> rows_of(int rank, int size, int64_t rows) {
  const int64_t least = rows / size, rest = rows % size;
  return {rank * least + std::min<int64_t>(rank, rest), least + (rank < rest)};
}

// Each tensor reduced over the ranks.
void all_reduce(void* kernel, TF_OpKernelContext* context) {
  Run run(*static_cast<Kernel*>(kernel), context);
  Given given;
  std::vector<Part> parts;
  TF_DataType type = TF_FLOAT;
  for (int i = 0; i < run.num_inputs() && run.is_well(); ++i) {
    const auto [its_type, dims] = run.look(i);
    run.expect(type = its_type, dims);
    const auto [to, from] = run.output_like_input(i, dims);
    const size_t bytes = sent_bytes(bytes_of(type, dims), type, run.kernel.sent_as);
    parts.push_back({given.bytes(), bytes, to, from});
    given.pieces.push_back({from, bytes});
  }
  run.pass([&](const Collective& collective) {
    return reduced(*run.ring, collective, given, parts, true, Op(run.kernel.option), type, run.kernel.sent_as);
  });
}

// This rank's rows of each tensor's sum.
void reduce_scatter(void* kernel, TF_OpKernelContext* context) {
  Run run(*static_cast<Kernel*>(kernel), context);
  Given given;
  std::vector<Part> parts;
  TF_DataType type = TF_FLOAT;
  for (int i = 0; i < run.num_inputs() && run.is_well(); ++i) {
    TF_Tensor* const tensor = run.input(i);
    if (tensor == nullptr) break;
    Dims dims = dims_of(tensor);
    run.expect(type = TF_TensorType(tensor), dims);
    const size_t bytes = sent_bytes(TF_TensorByteSize(tensor), type, run.kernel.sent_as);
    const size_t row = dims[0] == 0 ? 0 : bytes / dims[0];
    const size_t own_row = dims[0] == 0 ? 0 : TF_TensorByteSize(tensor) / dims[0];
    const auto [first, count] = rows_of(run.ring->rank, run.ring->size, dims[0]);
    dims[0] = count;
    const char* const from = static_cast<const char*>(TF_TensorData(tensor));
    parts.push_back({given.bytes() + first * row, count * row, run.output(i, type, dims), from + first * own_row});
    given.pieces.push_back({from, bytes});
  }
  run.pass([&](const Collective& collective) {
    return reduced(*run.ring, collective, given, parts, false, Op::kSum, type, run.kernel.sent_as);
  });
}

// The ranks' rows of each tensor, of which they may have different numbers.
void all_gather(void* kernel, TF_OpKernelContext* context) {
  Run run(*static_cast<Kernel*>(kernel), context);
  if (!run.is_well()) return;
  const int count = run.num_inputs(), size = run.ring->size;
  Given given;
  std::vector<TF_Tensor*> tensors;
  std::vector<int64_t> own_rows;
  for (int i = 0; i < count && run.is_well(); ++i) {
    TF_Tensor* const tensor = run.input(i);
    if (tensor == nullptr) return;
    const Dims dims = dims_of(tensor);
    run.expect(TF_TensorType(tensor), dims, 1);
    own_rows.push_back(dims[0]);
    tensors.push_back(tensor);
    given.pieces.push_back({static_cast<const char*>(TF_TensorData(tensor)), TF_TensorByteSize(tensor)});
  }
  std::vector<int64_t> rows(size_t(size) * count);  // of each rank, of each tensor
  const size_t bytes = count * sizeof(int64_t);
  std::vector<std::vector<Part>> parts(size);
  for (int rank = 0; rank < size; ++rank) parts[rank] = {{0, bytes, reinterpret_cast<char*>(&rows[rank * count])}};
  run.pass([&](const Collective& collective) {
    return copy(*run.ring, collective, {{{reinterpret_cast<const char*>(own_rows.data()), bytes}}}, parts, bytes);
  });
  if (!run.is_well()) return;

  for (auto& each : parts) each.clear();
  std::vector<size_t> given_by(size);
  for (int i = 0; i < count && run.is_well(); ++i) {
    Dims dims = dims_of(tensors[i]);
    dims[0] = 1;
    const size_t row = bytes_of(TF_TensorType(tensors[i]), dims);
    dims[0] = 0;
    for (int rank = 0; rank < size; ++rank) dims[0] += rows[rank * count + i];
    char* to = run.output(i, TF_TensorType(tensors[i]), dims);
    for (int rank = 0; rank < size; ++rank) {
      const size_t its_bytes = rows[rank * count + i] * row;
      parts[rank].push_back({given_by[rank], its_bytes, to});
      given_by[rank] += its_bytes;
      to += its_bytes;
    }
  }
  run.pass([&](const Collective& collective) {
    return copy(*run.ring, collective, given, parts, *std::max_element(given_by.begin(), given_by.end()));
  });
}

// Of each rank the part of dim 0 that is for this one.
void all_to_all(void* kernel, TF_OpKernelContext* context) {
  Run run(*static_cast<Kernel*>(kernel), context);
  TF_Tensor* const tensor = run.is_well() ? run.input(0) : nullptr;
  if (tensor == nullptr) return;
  const Dims dims = dims_of(tensor);
  run.expect(TF_TensorType(tensor), dims);
  const size_t bytes = TF_TensorByteSize(tensor), part = bytes / run.ring->size;
  if (dims[0] % run.ring->size != 0) run.fail(run.kernel.collective + " has rows that cannot be divided by the ranks");
  char* const to = run.is_well() ? run.output(0, TF_TensorType(tensor), dims) : nullptr;
  std::vector<std::vector<Part>> parts(run.ring->size);
  for (int rank = 0; rank < run.ring->size; ++rank) parts[rank] = {{part * run.ring->rank, part, to + part * rank}};
  run.pass([&](const Collective& collective) {
    return copy(*run.ring, collective, {{{static_cast<const char*>(TF_TensorData(tensor)), bytes}}}, parts, bytes);
  });
}

// The root's tensors.
void broadcast(void* kernel, TF_OpKernelContext* context) {
  Run run(*static_cast<Kernel*>(kernel), context);
  if (!run.is_well()) return;
  const int64_t root = run.kernel.option;
  Given given;
  std::vector<std::vector<Part>> parts(run.ring->size);
  size_t total = 0;
  for (int i = 0; i < run.num_inputs() && run.is_well(); ++i) {
    const auto [type, dims] = run.look(i);
    run.expect(type, dims);
    const auto [to, from] = run.output_like_input(i, dims);
    const size_t bytes = bytes_of(type, dims);
    if (run.ring->rank == root)
      given.pieces.push_back({from, bytes});
    if (run.ring->rank != root || from != to) parts[root].push_back({total, bytes, to});
    total += bytes;
  }
  run.pass([&](const Collective& collective) { return copy(*run.ring, collective, given, parts, total); });
}

constexpr char kSentAs[] = "sent_as";

void* create(TF_OpKernelConstruction* construction) {
  auto* kernel = new Kernel;
  TF_Status* status = TF_NewStatus();
  int32_t list = 0, length = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, "collective", &list, &length, status);
  kernel->collective.resize(std::max(length, 0));
  TF_OpKernelConstruction_GetAttrString(construction, "collective", kernel->collective.data(), length, status);
  if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrInt64(construction, "ring", &kernel->ring, status);
  if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrInt64(construction, "option", &kernel->option, status);
  if (TF_GetCode(status) == TF_OK && TF_OpKernelConstruction_HasAttr(construction, kSentAs, status))
    TF_OpKernelConstruction_GetAttrType(construction, kSentAs, &kernel->sent_as, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  return kernel;
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Results have their tensors' shapes.
void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = TF_ShapeInferenceContextNumInputs(context) - 2;
  for (int64_t i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeHandle* shape = TF_NewShapeHandle();
    TF_ShapeInferenceContextGetInput(context, int(i), shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, int(i), shape, status);
    TF_DeleteShapeHandle(shape);
  }
  TF_ShapeHandle* const scalar = TF_ShapeInferenceContextScalar(context);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, int(count), scalar, status);
  TF_DeleteShapeHandle(scalar);
}

void infer_nothing(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

// Registers an operation for processors; says what keeps it from that.
bool registered(const char* name, const std::vector<const char*>& types, const char* tensors,
                void (*compute)(void*, TF_OpKernelContext*),
                void (*infer)(TF_ShapeInferenceContext*, TF_Status*)) {
  TF_Status* status = TF_NewStatus();
  TF_OpDefinitionBuilder* operation = TF_NewOpDefinitionBuilder(name);
  const bool is_list = std::string(tensors).find('*') != std::string::npos;
  if (is_list) TF_OpDefinitionBuilderAddAttr(operation, "n: int >= 1");
  for (const char* attribute : types) TF_OpDefinitionBuilderAddAttr(operation, attribute);
  for (const char* attribute : {"collective: string", "ring: int", "option: int = 0"})
    TF_OpDefinitionBuilderAddAttr(operation, attribute);
  TF_OpDefinitionBuilderAddInput(operation, (std::string("tensors: ") + tensors).c_str());
  // In a graph a token is handed on: TensorFlow's optimizers may drop an edge of control beside a path that they cut
  // later. Between graphs the resource is left: operations with the same one run one by one.
  TF_OpDefinitionBuilderAddInput(operation, "after: int32");
  TF_OpDefinitionBuilderAddInput(operation, "order: resource");
  TF_OpDefinitionBuilderAddOutput(operation, (std::string("results: ") + tensors).c_str());
  TF_OpDefinitionBuilderAddOutput(operation, "token: int32");
  TF_OpDefinitionBuilderSetIsStateful(operation, true);  // or TensorFlow would fold, merge, prune and reorder it
  TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, infer);
  TF_RegisterOpDefinition(operation, status);
  if (TF_GetCode(status) == TF_OK)
    TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", create, compute, destroy), status);
  if (TF_GetCode(status) != TF_OK) std::fprintf(stderr, "keras-par's shared memory: %s\n", TF_Message(status));
  const bool done = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  return done;
}

const std::vector<const char*> kNumbers = {"T: {float, double, int32, int64, half, bfloat16}", "sent_as: type"};
const bool are_registered = registered("KerasParSharedAllReduce", kNumbers, "n * T", all_reduce, infer_shapes) &&
                            registered("KerasParSharedReduceScatter", kNumbers, "n * T", reduce_scatter, infer_nothing) &&
                            registered("KerasParSharedAllGather", {"T: list(type)"}, "T", all_gather, infer_nothing) &&
                            registered("KerasParSharedAllToAll", {"T: type"}, "T", all_to_all, infer_shapes) &&
                            registered("KerasParSharedBroadcast", {"T: list(type)"}, "T", broadcast, infer_shapes);

}  // namespace
}  // namespace keras_par

extern "C" {

// Bytes of memory that a number of ranks share.
int64_t keras_par_shared_bytes(int size) { return int64_t(keras_par::Ring::bytes(size)); }

// Takes part in the ring whose memory is this file; returns the number by which operations know it, or -errno.
int keras_par_shared_join(int file, int rank, int size) { return keras_par::rings().join(file, rank, size); }

// Leaves a ring; ranks that wait for this one get an error.
void keras_par_shared_leave(int ring) { keras_par::rings().leave(ring); }

}
