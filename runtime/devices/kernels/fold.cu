// Folds of two arrays, 16 bytes at a time where the addresses allow it. Compiled once per element type: -DTYPE_<dtype>.
//
// Every fold is one operation per element, rounded once to the element's type (fp16 and bf16 too: native add.f16 and
// add.bf16, round to nearest even), so the bits depend on nothing but the operands: not on the grid, nor on the width.
// A thread folds one word: more words per thread, or fewer blocks that go around, gain nothing (docs/hardware.md).

#if defined(TYPE_float16)
#include <cuda_fp16.h>
typedef __half Element;
#elif defined(TYPE_bfloat16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
#elif defined(TYPE_float32)
typedef float Element;
#elif defined(TYPE_float64)
typedef double Element;
#elif defined(TYPE_int8)
typedef signed char Element;
#elif defined(TYPE_uint8)
typedef unsigned char Element;
#elif defined(TYPE_int16)
typedef short Element;
#elif defined(TYPE_uint16)
typedef unsigned short Element;
#elif defined(TYPE_int32)
typedef int Element;
#elif defined(TYPE_uint32)
typedef unsigned int Element;
#elif defined(TYPE_int64)
typedef long long Element;
#elif defined(TYPE_uint64)
typedef unsigned long long Element;
#endif

typedef unsigned long long u64;

// Every NaN that comes out is quiet with sign and payload 0, and minima and maxima take -0 for less than +0 and leave a
// NaN aside where there is a number: the same bits as in host memory (float_bits.py).
#if defined(TYPE_float16)
__device__ inline Element settled(Element x) { return __hisnan(x) ? __ushort_as_half(0x7e00) : x; }
#elif defined(TYPE_bfloat16)
__device__ inline Element settled(Element x) { return __hisnan(x) ? __ushort_as_bfloat16(0x7fc0) : x; }
#elif defined(TYPE_float32)
__device__ inline Element settled(Element x) {  // on the bits: a comparison would be one with -ftz
  return (__float_as_int(x) & 0x7fffffff) > 0x7f800000 ? __int_as_float(0x7fc00000) : x;
}
#elif defined(TYPE_float64)
__device__ inline Element settled(Element x) { return x != x ? __longlong_as_double(0x7ff8000000000000ll) : x; }
#else
__device__ inline Element settled(Element x) { return x; }
#endif

#if defined(TYPE_float16) || defined(TYPE_bfloat16)
// The _rn forms are never merged into a multiply-add.
struct Sum { __device__ static Element of(Element a, Element b) { return settled(__hadd_rn(a, b)); } };
struct Prod { __device__ static Element of(Element a, Element b) { return settled(__hmul_rn(a, b)); } };
struct Min { __device__ static Element of(Element a, Element b) { return settled(__hmin(a, b)); } };
struct Max { __device__ static Element of(Element a, Element b) { return settled(__hmax(a, b)); } };
#elif defined(TYPE_float32) || defined(TYPE_float64)
// In PTX, because cupy compiles everything with -ftz=true, which would make zeros of float32's subnormal operands and
// results, and because PTX says of min and max what is said above.
#if defined(TYPE_float32)
#define WIDTH "f32"
#define REGISTER "f"
#else
#define WIDTH "f64"
#define REGISTER "d"
#endif
#define PTX(name, instruction)                                                               \
  struct name {                                                                              \
    __device__ static Element of(Element a, Element b) {                                     \
      Element made;                                                                          \
      asm(instruction "." WIDTH " %0, %1, %2;" : "=" REGISTER(made) : REGISTER(a), REGISTER(b)); \
      return settled(made);                                                                  \
    }                                                                                        \
  };
PTX(Sum, "add.rn")
PTX(Prod, "mul.rn")
PTX(Min, "min")
PTX(Max, "max")
#else
// Sums and products wrap around. They are made in unsigned numbers, for which that is defined: in u64, whose low bits
// are the same whatever the width.
struct Sum { __device__ static Element of(Element a, Element b) { return (Element)((u64)a + (u64)b); } };
struct Prod { __device__ static Element of(Element a, Element b) { return (Element)((u64)a * (u64)b); } };
struct Min { __device__ static Element of(Element a, Element b) { return b < a ? b : a; } };
struct Max { __device__ static Element of(Element a, Element b) { return a < b ? b : a; } };
#endif

// A copy: what has landed.
struct Take { __device__ static Element of(Element, Element b) { return b; } };

template <int LANES>
struct alignas(LANES * sizeof(Element)) Word {
  Element lane[LANES];
};

template <class Op, int LANES>
struct Combine {
  __device__ static Word<LANES> of(const Word<LANES>& a, const Word<LANES>& b) {
    Word<LANES> made;
#pragma unroll
    for (int k = 0; k < LANES; ++k) made.lane[k] = Op::of(a.lane[k], b.lane[k]);
    return made;
  }
};

template <int LANES>
struct Combine<Take, LANES> {
  __device__ static Word<LANES> of(const Word<LANES>&, const Word<LANES>& b) { return b; }
};

#if defined(TYPE_int8) || defined(TYPE_uint8)
// Four bytes at a time, else instructions are the limit and not memory.
#if defined(TYPE_int8)
#define LEAST __vmins4
#define MOST __vmaxs4
#else
#define LEAST __vminu4
#define MOST __vmaxu4
#endif
#define BY_FOUR(Op, four)                                                                        \
  template <int LANES>                                                                           \
  struct Combine<Op, LANES> {                                                                    \
    __device__ static Word<LANES> of(const Word<LANES>& a, const Word<LANES>& b) {               \
      Word<LANES> made;                                                                          \
      const unsigned* x = reinterpret_cast<const unsigned*>(&a);                                 \
      const unsigned* y = reinterpret_cast<const unsigned*>(&b);                                 \
      unsigned* z = reinterpret_cast<unsigned*>(&made);                                          \
      _Pragma("unroll") for (int k = 0; k < LANES / 4; ++k) z[k] = four(x[k], y[k]);             \
      return made;                                                                               \
    }                                                                                            \
  };                                                                                             \
  template <>                                                                                    \
  struct Combine<Op, 1> {                                                                        \
    __device__ static Word<1> of(const Word<1>& a, const Word<1>& b) {                           \
      return Word<1>{{Op::of(a.lane[0], b.lane[0])}};                                            \
    }                                                                                            \
  };
__device__ inline unsigned product4(unsigned a, unsigned b) {
  // A product's lowest byte depends on the factors' lowest bytes alone.
  const unsigned low = __byte_perm(a * b, (a >> 8) * (b >> 8), 0x0040);
  const unsigned high = __byte_perm((a >> 16) * (b >> 16), (a >> 24) * (b >> 24), 0x0040);
  return __byte_perm(low, high, 0x5410);
}
BY_FOUR(Sum, __vadd4)
BY_FOUR(Prod, product4)
BY_FOUR(Min, LEAST)
BY_FOUR(Max, MOST)
#endif

// What was written before is there for all, other GPUs and the host too, before `ticket` is in the word `done`: the
// last block to arrive writes it. Null: nobody waits for it. Blocks of one stream's kernels count in one `arrived`.
__device__ __forceinline__ void tell(unsigned* arrived, volatile u64* done, u64 ticket) {
  if (!done) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    if (atomicAdd(arrived, 1) == gridDim.x - 1) {
      *arrived = 0;
      __threadfence_system();
      *done = ticket;
    }
  }
}

// out[i] = own[i] op landed[i], and also[i] likewise unless `also` is null. `out` and `also` may be `own` or `landed`
// itself; apart from that nothing overlaps. The first `head` elements bring all addresses to a whole word.
template <class Op, int LANES>
__device__ __forceinline__ void fold(const Element* own, const Element* landed, Element* out, Element* also, u64 count,
                                     u64 head) {
  typedef Word<LANES> W;
  const u64 words = (count - head) / LANES, tail = head + words * LANES;
  const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (thread < words) {
    const u64 at = head + thread * LANES;
    const W made = Combine<Op, LANES>::of(*reinterpret_cast<const W*>(own + at), *reinterpret_cast<const W*>(landed + at));
    *reinterpret_cast<W*>(out + at) = made;
    if (also) *reinterpret_cast<W*>(also + at) = made;
  }
  if (thread < head + (count - tail)) {  // what does not fill a word, at either end
    const u64 at = thread < head ? thread : tail + thread - head;
    const Element made = Op::of(own[at], landed[at]);
    out[at] = made;
    if (also) also[at] = made;
  }
}

#define FOLD(name, Op, LANES)                                                                                     \
  extern "C" __global__ void name(const Element* own, const Element* landed, Element* out, Element* also, u64 count, \
                                  u64 head, unsigned* arrived, volatile u64* done, u64 ticket) {                  \
    fold<Op, LANES>(own, landed, out, also, count, head);                                                         \
    tell(arrived, done, ticket);                                                                                  \
  }
// By the width of a word in bytes; 0 is one element.
#define FOLDS(name, Op)                          \
  FOLD(name##_16, Op, 16 / sizeof(Element))      \
  FOLD(name##_8, Op, 8 / sizeof(Element))        \
  FOLD(name##_0, Op, 1)

FOLDS(sum, Sum)
FOLDS(prod, Prod)
FOLDS(min, Min)
FOLDS(max, Max)
FOLDS(take, Take)

// An average's last step: every element divided by the number of contributions. Floats round once (fp16 and bf16 from
// float32's quotient), integers are cut towards zero.
__device__ inline float ratio(float x, float by) {
  float made;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(made) : "f"(x), "f"(by));
  return made;
}

__device__ inline Element quotient(Element x, u64 by) {
#if defined(TYPE_float16)
  return __float2half_rn(ratio(__half2float(x), (float)by));
#elif defined(TYPE_bfloat16)
  return __float2bfloat16_rn(ratio(__bfloat162float(x), (float)by));
#elif defined(TYPE_float32)
  return ratio(x, (float)by);
#elif defined(TYPE_float64)
  return __ddiv_rn(x, (double)by);
#elif defined(TYPE_uint64)
  return x / by;
#else
  return (Element)((long long)x / (long long)by);
#endif
}

extern "C" __global__ void divide(Element* array, u64 count, u64 head, u64 by) {
  constexpr int LANES = 16 / sizeof(Element);
  const u64 words = (count - head) / LANES, tail = head + words * LANES;
  const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (thread < words) {
    Word<LANES>* word = reinterpret_cast<Word<LANES>*>(array + head + thread * LANES);
    Word<LANES> w = *word;
#pragma unroll
    for (int k = 0; k < LANES; ++k) w.lane[k] = settled(quotient(w.lane[k], by));
    *word = w;
  }
  if (thread < head + (count - tail)) {
    const u64 at = thread < head ? thread : tail + thread - head;
    array[at] = settled(quotient(array[at], by));
  }
}
