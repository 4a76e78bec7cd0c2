// How a rank puts bytes into memory that others read: through its cache, or past it.
//
// Where the ranks' cores share a cache, the other finds the bytes there. Where they do not, a core waits longer for what
// another one's cache holds than for memory. Which it is no rank can know: a virtual machine's cores also move. So the
// time of both ways is taken.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace keras_par {

enum class Way : uint32_t { kCached, kStreamed };

// Copies, past the cache if the processor has instructions for it that are known here.
inline void put(char* to, const char* from, size_t bytes, [[maybe_unused]] Way way) {
#if defined(__x86_64__)
  if (way == Way::kStreamed) {
    constexpr size_t kLine = 64, kWord = sizeof(__m128i);
    const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
    std::memcpy(to, from, head);
    size_t done = head;
    for (; done + kLine <= bytes; done += kLine)
      for (size_t word = done; word < done + kLine; word += kWord)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + word),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + word)));
    std::memcpy(to + done, from + done, bytes - done);
    _mm_sfence();  // before others are told
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// Chooses the way that took less time for each byte lately, and tries the other one time and again.
class Choice {
 public:
  // Takes in what a collective's copies took; returns the way for the next one.
  Way note(Way way, double seconds, size_t bytes) {
    if (bytes < kLeastBytes) return next_;
    double& cost = costs_[int(way)];
    cost = cost == 0 ? seconds / bytes : (cost + seconds / bytes) / 2;
    const bool is_trial = ++count_ % kTrial == 0;
    return next_ = (costs_[1] < costs_[0]) != is_trial ? Way::kStreamed : Way::kCached;
  }

 private:
  static constexpr size_t kLeastBytes = 16 << 10;  // whose time says something
  static constexpr uint32_t kTrial = 32;           // collectives from one trial to the next
  double costs_[2] = {0, 0};                       // seconds for each byte, 0 of a way that was not taken yet
  uint32_t count_ = 0;
  Way next_ = Way::kCached;
};

}  // namespace keras_par
