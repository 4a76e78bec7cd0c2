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

// A part of what a rank gives, in bytes as they are sent, where it goes, and where this rank's own is, to be reduced.
struct Part {
  size_t begin, bytes;
  char* to;
  const char* from = nullptr;
};

// Puts numbers into a slot in the type that ranks send.
template <class Number, class Sent>
void put_narrowed(const Ring& ring, Sent* slot, const Number* numbers, size_t count) {
  constexpr size_t kBlock = 4096;
  Sent room[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t length = std::min(kBlock, count - begin);
    const Sent* const narrowed = narrow(numbers + begin, room, length);
    ring.put(reinterpret_cast<char*>(slot + begin), reinterpret_cast<const char*>(narrowed), length * sizeof(Sent));
  }
}

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
      const ExactlySmall mode;
      const Number* const numbers = reinterpret_cast<const Number*>(from) + done_ / sizeof(Sent);
      put_narrowed(ring_, reinterpret_cast<Sent*>(slot), numbers, bytes / sizeof(Sent));
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

  // Calls action(offset within the chunk, bytes, the part, bytes of it before these) for what lies in the chunk.
  template <class Action>
  void operator()(uint32_t chunk, Action action) {
    const size_t begin = size_t(chunk) * kChunk, end = begin + kChunk;
    while (next_ < parts_.size() && parts_[next_].begin + parts_[next_].bytes <= begin) ++next_;
    for (size_t i = next_; i < parts_.size() && parts_[i].begin < end; ++i) {
      const Part& part = parts_[i];
      const size_t from = std::max(begin, part.begin), to = std::min(end, part.begin + part.bytes);
      if (from < to) action(from - begin, to - from, part, from - part.begin);
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
  using Sum = typename Wide<Sent>::type;
  const size_t bytes = given.bytes();
  Finder find(parts);
  Filler<Number, Sent> fill(ring, given);
  const auto sent = [&](int of, uint32_t number, size_t offset) {
    return reinterpret_cast<Sent*>(ring.slot(of, number) + offset);
  };
  if (!is_for_all || ring.size < kRanksOfParts || bytes < kBytesOfParts)
    return ring.pass(collective, bytes, fill, [&](uint32_t chunk, uint32_t number) {
      find(chunk, [&](size_t offset, size_t count, const Part& part, size_t before) {
        // A rank's own numbers it still has in a cache, which slots may have gone past.
        const Number* const own = reinterpret_cast<const Number*>(part.from) + before / sizeof(Sent);
        Number* const to = reinterpret_cast<Number*>(part.to) + before / sizeof(Sent);
        const auto at = [&](int of, size_t begin, Sum* room, size_t length) -> const Sum* {
          if (of != ring.rank) return widen(sent(of, number, offset) + begin, room, length);
          if constexpr (std::is_same_v<Number, Sent>) return widen(own + begin, room, length);
          else return round_to<Sent>(own + begin, room, length);
        };
        reduce_blocks<op, Sum>(count / sizeof(Sent), ring.size, at, [&](size_t begin, const Sum* sums, size_t length) {
          if constexpr (std::is_same_v<Number, Sent>) narrow_to(sums, to + begin, length);
          else round_to<Sent>(sums, to + begin, length);
        });
      });
    });
  // The part of a chunk that a rank adds up begins at a multiple of a cache's line.
  const auto begin_of = [&](int of, size_t length) { return of == ring.size ? length : length * of / ring.size / 64 * 64; };
  const auto length_of = [&](uint32_t chunk) { return std::min(kChunk, bytes - size_t(chunk) * kChunk); };
  return ring.pass(
      collective, bytes, fill,
      [&](uint32_t chunk, uint32_t number) {
        const size_t from = begin_of(ring.rank, length_of(chunk)), end = begin_of(ring.rank + 1, length_of(chunk));
        const auto at = [&](int of, size_t begin, Sum* room, size_t length) {
          return widen(sent(of, number, from) + begin, room, length);
        };
        Sent* const to = sent(ring.rank, number, from);
        reduce_blocks<op, Sum>((end - from) / sizeof(Sent), ring.size, at,
                               [&](size_t begin, const Sum* sums, size_t length) {
                                 put_narrowed(ring, to + begin, sums, length);
                               });
      },
      [&](uint32_t chunk, uint32_t number) {
        find(chunk, [&](size_t offset, size_t count, const Part& part, size_t before) {
          for (int of = 0; of < ring.size; ++of) {
            const size_t from = std::max(offset, begin_of(of, length_of(chunk)));
            const size_t end = std::min(offset + count, begin_of(of + 1, length_of(chunk)));
            if (from >= end) continue;
            Number* const to = reinterpret_cast<Number*>(part.to) + (before + from - offset) / sizeof(Sent);
            take(to, sent(of, number, from), (end - from) / sizeof(Sent));
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
      find[of](chunk, [&](size_t offset, size_t count, const Part& part, size_t before) {
        std::memcpy(part.to + before, ring.slot(of, number) + offset, count);
      });
  });
}

}  // namespace keras_par
