// Collectives over a ring: each makes its results of what all ranks have put into their slots.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "arithmetic.h"
#include "ring.h"

namespace keras_par {

// From so many ranks and bytes on each rank adds up a part of a sum, which the others copy; before, each adds up all.
constexpr int kRanksOfParts = 4;
constexpr size_t kBytesOfParts = 64 << 10;

// What a rank gives: tensors, one after the other.
struct Given {
  std::vector<std::pair<const char*, size_t>> pieces;  // where, and bytes

  size_t bytes() const {
    size_t total = 0;
    for (const auto& piece : pieces) total += piece.second;
    return total;
  }
};

// A part of what a rank gives, and where it goes.
struct Part {
  size_t begin, bytes;
  char* to;
};

// Puts what is given into slots, in their order.
class Filler {
 public:
  Filler(const Ring& ring, const Given& given) : ring_(ring), given_(given) {}

  void operator()(uint32_t, char* slot) {
    for (size_t left = kChunk; left > 0 && piece_ < given_.pieces.size();) {
      const auto& [from, bytes] = given_.pieces[piece_];
      const size_t count = std::min(left, bytes - done_);
      ring_.put(slot, from + done_, count);
      slot += count;
      left -= count;
      done_ += count;
      if (done_ == bytes) ++piece_, done_ = 0;
    }
  }

 private:
  const Ring& ring_;
  const Given& given_;
  size_t piece_ = 0, done_ = 0;
};

// Finds the parts that lie in chunks, which must be asked for in their order.
class Finder {
 public:
  explicit Finder(const std::vector<Part>& parts) : parts_(parts) {}

  // Calls action(offset within the chunk, bytes, where they go) for what lies in the chunk.
  template <class Action>
  void operator()(uint32_t chunk, Action action) {
    const size_t begin = size_t(chunk) * kChunk, end = begin + kChunk;
    while (next_ < parts_.size() && parts_[next_].begin + parts_[next_].bytes <= begin) ++next_;
    for (size_t i = next_; i < parts_.size() && parts_[i].begin < end; ++i) {
      const Part& part = parts_[i];
      const size_t from = std::max(begin, part.begin), to = std::min(end, part.begin + part.bytes);
      if (from < to) action(from - begin, to - from, part.to + (from - part.begin));
    }
  }

 private:
  const std::vector<Part>& parts_;
  size_t next_ = 0;
};

// Reduces all that is given, and puts the parts of it that this rank wants where they go.
template <Op op, class Number>
std::string reduce(Ring& ring, const Collective& collective, const Given& given, const std::vector<Part>& parts,
                   bool is_for_all) {
  const size_t bytes = given.bytes();
  Finder find(parts);
  Filler fill(ring, given);
  const auto add_up = [&](uint32_t number, size_t offset, size_t count, char* to, auto put) {
    const auto source = [&](int of) { return reinterpret_cast<const Number*>(ring.slot(of, number) + offset); };
    reduce_numbers<op>(reinterpret_cast<Number*>(to), count / sizeof(Number), ring.size, source, put);
  };
  if (!is_for_all || ring.size < kRanksOfParts || bytes < kBytesOfParts)
    return ring.pass(collective, bytes, fill, [&](uint32_t chunk, uint32_t number) {
      find(chunk, [&](size_t offset, size_t count, char* to) { add_up(number, offset, count, to, std::memcpy); });
    });
  // The part of a chunk that a rank adds up begins at a multiple of a cache's line.
  const auto begin_of = [&](int of, size_t length) { return of == ring.size ? length : length * of / ring.size / 64 * 64; };
  const auto length_of = [&](uint32_t chunk) { return std::min(kChunk, bytes - size_t(chunk) * kChunk); };
  return ring.pass(
      collective, bytes, fill,
      [&](uint32_t chunk, uint32_t number) {
        const size_t begin = begin_of(ring.rank, length_of(chunk)), end = begin_of(ring.rank + 1, length_of(chunk));
        const auto put = [&](void* to, const void* from, size_t count) {
          ring.put(static_cast<char*>(to), static_cast<const char*>(from), count);
        };
        add_up(number, begin, end - begin, ring.slot(ring.rank, number) + begin, put);
      },
      [&](uint32_t chunk, uint32_t number) {
        find(chunk, [&](size_t offset, size_t count, char* to) {
          for (int of = 0; of < ring.size; ++of) {
            const size_t from = std::max(offset, begin_of(of, length_of(chunk)));
            const size_t end = std::min(offset + count, begin_of(of + 1, length_of(chunk)));
            if (from < end) std::memcpy(to + (from - offset), ring.slot(of, number) + from, end - from);
          }
        });
      });
}

// Copies parts of what the ranks give, listed for each of them in their order, `bytes` from the one that gives most.
inline std::string copy(Ring& ring, const Collective& collective, const Given& given,
                        const std::vector<std::vector<Part>>& parts, size_t bytes) {
  std::vector<Finder> find(parts.begin(), parts.end());
  return ring.pass(collective, bytes, Filler(ring, given), [&](uint32_t chunk, uint32_t number) {
    for (int of = 0; of < ring.size; ++of)
      find[of](chunk, [&](size_t offset, size_t count, char* to) {
        std::memcpy(to, ring.slot(of, number) + offset, count);
      });
  });
}

}  // namespace keras_par
