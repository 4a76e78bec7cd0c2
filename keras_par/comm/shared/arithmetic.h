// Sums, minima and maxima of ranks' numbers, in the order of the ranks, so that all have the same bits.
//
// Numbers of 16 bits are added up in 32 and rounded once, to the nearest, halves to even.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace keras_par {

// While there is one, numbers too small to be normal count as what they are. TensorFlow lets some of its threads take them
// for zeros, and ranks must not add up in different ways.
class ExactlySmall {
 public:
#if defined(__x86_64__)
  ExactlySmall() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
  ~ExactlySmall() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
#elif defined(__aarch64__)
  ExactlySmall() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ & ~uint64_t(1 << 24)));
  }
  ~ExactlySmall() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#endif
};

enum class Op { kSum, kMin, kMax };

struct Bfloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

template <Op op, class Number>
Number both(Number one, Number other) {
  if (op == Op::kSum) return one + other;
  // A rank's NaN is the result, as it is of a sum.
  if (op == Op::kMin) return one < other || one != one ? one : other;
  return one > other || one != one ? one : other;
}

inline float float_of(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

inline uint32_t bits_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

inline float widened(Bfloat16 number) { return float_of(uint32_t(number.bits) << 16); }

// The bits of the nearest number whose lower half is empty.
inline uint32_t rounded_bits(float number) {
  const uint32_t bits = bits_of(number);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return (number != number ? bits | 0x400000 : rounded) & 0xffff0000;
}

inline void narrowed(float number, Bfloat16& result) { result.bits = uint16_t(rounded_bits(number) >> 16); }

// The power of two moves the exponent from one type's range to the other's, also of what is below the least normal one.
inline float widened(Half number) {
  const uint32_t sign = uint32_t(number.bits & 0x8000) << 16, rest = uint32_t(number.bits & 0x7fff) << 13;
  const uint32_t bits = bits_of(float_of(rest) * float_of(0x77800000));  // 2^112
  return float_of(sign | bits | (rest >= 0x0f800000 ? 0x7f800000 : 0));
}

inline void narrowed(float number, Half& result) {
  const uint32_t sign = bits_of(number) & 0x80000000, rest = bits_of(number) ^ sign;
  const uint32_t below = bits_of(float_of(rest) + 0.5f) - 0x3f000000;  // the addition rounds
  const uint32_t normal = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
  const uint32_t bits = rest > 0x7f800000 ? 0x7e00 : rest >= 0x47800000 ? 0x7c00 : rest < 0x38800000 ? below : normal;
  result.bits = uint16_t(sign >> 16 | bits);
}

// The type in which numbers of another one are reduced.
template <class Number>
struct Wide {
  using type = Number;
};

template <>
struct Wide<Half> {
  using type = float;
};

template <>
struct Wide<Bfloat16> {
  using type = float;
};

// Where `count` numbers are in the type in which they are reduced; those of 16 bits go to `room`.
template <class Number, class Sum>
const Sum* widen(const Number* numbers, [[maybe_unused]] Sum* room, [[maybe_unused]] size_t count) {
  if constexpr (std::is_same_v<Number, Sum>) {
    return numbers;
  } else {
    size_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<Number, Half>)
      for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(room + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i))));
#endif
    for (; i < count; ++i) room[i] = widened(numbers[i]);
    return room;
  }
}

// Where `count` sums are in the type that ranks send; those of 16 bits go to `room`.
template <class Number, class Sum>
const Number* narrow(const Sum* sums, [[maybe_unused]] Number* room, [[maybe_unused]] size_t count) {
  if constexpr (std::is_same_v<Number, Sum>) {
    return sums;
  } else {
    size_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<Number, Half>)
      for (; i + 8 <= count; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(room + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(sums + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; ++i) narrowed(sums[i], room[i]);
    return room;
  }
}

// As `narrow`, with the results at `to`.
template <class Number, class Sum>
void narrow_to(const Sum* sums, Number* to, size_t count) {
  const Number* const results = narrow(sums, to, count);
  if (results != to) std::memcpy(to, results, count * sizeof(Number));
}

// Rounds `count` numbers to those that ranks send, but leaves them in their own type. Returns `to`, where they are.
template <class Sent>
const float* round_to(const float* from, float* to, size_t count) {
  if constexpr (std::is_same_v<Sent, Bfloat16>) {
    for (size_t i = 0; i < count; ++i) to[i] = float_of(rounded_bits(from[i]));
  } else {
    constexpr size_t kBlock = 1024;
    Sent room[kBlock];
    for (size_t begin = 0; begin < count; begin += kBlock) {
      const size_t length = std::min(kBlock, count - begin);
      narrow(from + begin, room, length);
      widen(room, to + begin, length);
    }
  }
  return to;
}

// Reduces `count` numbers of each of `size` ranks and calls `put(at, sums, how many)` for each block of them, where
// `at(rank, begin, room, length)` says where these numbers of a rank are in the type in which they are reduced.
template <Op op, class Sum, class At, class Put>
void reduce_blocks(size_t count, int size, At at, Put put) {
  constexpr size_t kBlock = 1024;
  Sum sums[kBlock], room[kBlock];
  const ExactlySmall mode;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t length = std::min(kBlock, count - begin);
    const Sum* first = at(0, begin, sums, length);
    for (int rank = 1; rank < size; ++rank) {
      const Sum* next = at(rank, begin, room, length);
      for (size_t i = 0; i < length; ++i) sums[i] = both<op>(first[i], next[i]);
      first = sums;
    }
    put(begin, first, length);
  }
}

}  // namespace keras_par
