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
  std::vector<std::pair<const char*, size_t>> pieces;  // where, and bytes as they are sent

  size_t bytes() const {
    size_t total = 0;
    for (const auto& piece : pieces) total += piece.second;
    return total;
  }
};

// A part of what a rank gives, in bytes as they are sent, and where it goes.
struct Part {
  size_t begin, bytes;
  char* to;
};

// Puts what is given into slots, in their order, as numbers of the type `Sent` where the tensors have another one.
template <class Number, class Sent = Number>
class Filler {
 public:
  Filler(const Ring& ring, const Given& given) : ring_(ring), given_(given) {}

  void operator()(uint32_t, char* slot) {
    for (size_t left = kChunk; left > 0 && piece_ < given_.pieces.size();) {
      const auto& [from, bytes] = given_.pieces[piece_];
      const size_t count = std::min(left, bytes - done_);
      put(slot, from, count);
      slot += count;
      left -= count;
      done_ += count;
      if (done_ == bytes) ++piece_, done_ = 0;
    }
  }

 private:
  void put(char* slot, const char* from, size_t bytes) const {
    if constexpr (std::is_same_v<Number, Sent>) {
      ring_.put(slot, from + done_, bytes);
    } else {
      constexpr size_t kBlock = 4096;
      Sent narrowed[kBlock];
      const ExactlySmall mode;
      const Number* numbers = reinterpret_cast<const Number*>(from) + done_ / sizeof(Sent);
      for (size_t begin = 0, count = bytes / sizeof(Sent); begin < count; begin += kBlock) {
        const size_t length = std::min(kBlock, count - begin);
        narrow(numbers + begin, narrowed, length);
        ring_.put(slot + begin * sizeof(Sent), reinterpret_cast<const char*>(narrowed), length * sizeof(Sent));
      }
    }
  }

  const Ring& ring_;
  const Given& given_;
  size_t piece_ = 0, done_ = 0;
};

// Copies numbers, into another type where the result has one.
template <class Number, class Sent>
void take(Number* to, const Sent* from, size_t count) {
  if constexpr (std::is_same_v<Number, Sent>) {
    std::memcpy(to, from, count * sizeof(Sent));
  } else {
    const ExactlySmall mode;
    widen(from, to, count);
  }
}

// Finds the parts that lie in chunks, which must be asked for in their order.
class Finder {
 public:
  explicit Finder(const std::vector<Part>& parts) : parts_(parts) {}

  // Calls action(offset within the chunk, bytes, where the part goes, bytes of it before these) for what lies in the
  // chunk.
  template <class Action>
  void operator()(uint32_t chunk, Action action) {
    const size_t begin = size_t(chunk) * kChunk, end = begin + kChunk;
    while (next_ < parts_.size() && parts_[next_].begin + parts_[next_].bytes <= begin) ++next_;
    for (size_t i = next_; i < parts_.size() && parts_[i].begin < end; ++i) {
      const Part& part = parts_[i];
      const size_t from = std::max(begin, part.begin), to = std::min(end, part.begin + part.bytes);
      if (from < to) action(from - begin, to - from, part.to, from - part.begin);
    }
  }

 private:
  const std::vector<Part>& parts_;
  size_t next_ = 0;
};

// Reduces all that is given, sent as numbers of the type `Sent`, and puts the parts of it that this rank wants where they
// go.
template <Op op, class Number, class Sent = Number>
std::string reduce(Ring& ring, const Collective& collective, const Given& given, const std::vector<Part>& parts,
                   bool is_for_all) {
  const size_t bytes = given.bytes();
  Finder find(parts);
  Filler<Number, Sent> fill(ring, given);
  const auto at = [](char* to, size_t sent_bytes) { return reinterpret_cast<Number*>(to) + sent_bytes / sizeof(Sent); };
  const auto sent = [&](int of, uint32_t number, size_t offset) {
    return reinterpret_cast<Sent*>(ring.slot(of, number) + offset);
  };
  const auto add_up = [&](uint32_t number, size_t offset, size_t bytes, auto* to, auto put) {
    const auto source = [&](int of) { return sent(of, number, offset); };
    reduce_numbers<op, Sent>(to, bytes / sizeof(Sent), ring.size, source, put);
  };
  if (!is_for_all || ring.size < kRanksOfParts || bytes < kBytesOfParts)
    return ring.pass(collective, bytes, fill, [&](uint32_t chunk, uint32_t number) {
      find(chunk, [&](size_t offset, size_t count, char* to, size_t before) {
        add_up(number, offset, count, at(to, before), take<Number, Sent>);
      });
    });
  // The part of a chunk that a rank adds up begins at a multiple of a cache's line.
  const auto begin_of = [&](int of, size_t length) { return of == ring.size ? length : length * of / ring.size / 64 * 64; };
  const auto length_of = [&](uint32_t chunk) { return std::min(kChunk, bytes - size_t(chunk) * kChunk); };
  return ring.pass(
      collective, bytes, fill,
      [&](uint32_t chunk, uint32_t number) {
        const size_t begin = begin_of(ring.rank, length_of(chunk)), end = begin_of(ring.rank + 1, length_of(chunk));
        const auto put = [&](Sent* to, const Sent* from, size_t count) {
          ring.put(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), count * sizeof(Sent));
        };
        add_up(number, begin, end - begin, sent(ring.rank, number, begin), put);
      },
      [&](uint32_t chunk, uint32_t number) {
        find(chunk, [&](size_t offset, size_t count, char* to, size_t before) {
          for (int of = 0; of < ring.size; ++of) {
            const size_t from = std::max(offset, begin_of(of, length_of(chunk)));
            const size_t end = std::min(offset + count, begin_of(of + 1, length_of(chunk)));
            if (from < end)
              take<Number, Sent>(at(to, before + (from - offset)), sent(of, number, from), (end - from) / sizeof(Sent));
          }
        });
      });
}

// Copies parts of what the ranks give, listed for each of them in their order, `bytes` from the one that gives most.
inline std::string copy(Ring& ring, const Collective& collective, const Given& given,
                        const std::vector<std::vector<Part>>& parts, size_t bytes) {
  std::vector<Finder> find(parts.begin(), parts.end());
  return ring.pass(collective, bytes, Filler<char>(ring, given), [&](uint32_t chunk, uint32_t number) {
    for (int of = 0; of < ring.size; ++of)
      find[of](chunk, [&](size_t offset, size_t count, char* to, size_t before) {
        std::memcpy(to + before, ring.slot(of, number) + offset, count);
      });
  });
}

}  // namespace keras_par
