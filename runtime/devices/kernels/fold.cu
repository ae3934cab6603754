// Copies and folds of arrays by a kernel that runs as long as a collective does, and what divides an average. Compiled
// once per element type: -DTYPE_<dtype>.
//
// Every fold is one operation per element, rounded once to the element's type (fp16 and bf16 too: native add.f16 and
// add.bf16, round to nearest even), so the bits depend on nothing but the operands: not on the grid, nor on the width.

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

// The resident kernel: it runs as long as a collective does and takes jobs from memory that it shares with the host.
// native/folder_gpu.c gives them and says how; its twin there does the same on the processor.

// Reads that see what others have written while this kernel runs: other blocks, other GPUs, the host.
template <class T>
__device__ __forceinline__ T fresh(const T* at) {
  T made;
  if constexpr (sizeof(T) == 16) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    made = *reinterpret_cast<T*>(&v);
  } else if constexpr (sizeof(T) == 8) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at));
    made = *reinterpret_cast<T*>(&v);
  } else if constexpr (sizeof(T) == 4) {
    unsigned v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at));
    made = *reinterpret_cast<T*>(&v);
  } else if constexpr (sizeof(T) == 2) {
    unsigned short v;
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(at));
    made = *reinterpret_cast<T*>(&v);
  } else {
    unsigned v;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(at));
    const unsigned char byte = (unsigned char)v;
    made = *reinterpret_cast<const T*>(&byte);
  }
  return made;
}

template <class A, class B> struct Same { static constexpr bool is = false; };
template <class A> struct Same<A, A> { static constexpr bool is = true; };

// to = to op from, by one block. A thread has several words on their way at a time, for one block has few threads.
template <class Op, int LANES>
__device__ __forceinline__ void part(Element* to, const Element* from, u64 count) {
  constexpr int AHEAD = 4;
  constexpr bool COPIES = Same<Op, Take>::is;
  typedef Word<LANES> W;
  const u64 width = LANES * sizeof(Element), past = (u64)to % width;
  const u64 before = past ? (width - past) / sizeof(Element) : 0, head = before < count ? before : count;
  const u64 words = (count - head) / LANES, tail = head + words * LANES;
  W* const into = reinterpret_cast<W*>(to + head);
  const W* const out = reinterpret_cast<const W*>(from + head);
  for (u64 first = threadIdx.x; first < words; first += AHEAD * blockDim.x) {
    W own[AHEAD], landed[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const u64 at = first + (u64)k * blockDim.x;
      if (at >= words) continue;
      landed[k] = fresh(out + at);
      if constexpr (!COPIES) own[k] = fresh(into + at);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const u64 at = first + (u64)k * blockDim.x;
      if (at < words) into[at] = COPIES ? landed[k] : Combine<Op, LANES>::of(own[k], landed[k]);
    }
  }
  for (u64 i = threadIdx.x; i < head + (count - tail); i += blockDim.x) {  // what does not fill a word, at either end
    const u64 at = i < head ? i : tail + i - head;
    to[at] = Op::of(fresh(to + at), fresh(from + at));
  }
}

template <class Op>
__device__ __forceinline__ void part_of_any_width(u64 to, u64 from, u64 bytes) {
  Element* const into = reinterpret_cast<Element*>(to);
  const Element* const out = reinterpret_cast<const Element*>(from);
  if ((to ^ from) % 16 == 0)
    part<Op, 16 / sizeof(Element)>(into, out, bytes / sizeof(Element));
  else
    part<Op, 1>(into, out, bytes / sizeof(Element));
}

enum Task { TASK_NOTHING, TASK_COPY, TASK_FOLD, TASK_END };  // as in folder_gpu.c, as is the form of a slot

template <class Op>
__device__ __forceinline__ void serve(const u64* slots, u64 count, u64* done, u64 first) {
  constexpr u64 LOW = (1ull << 48) - 1;
  __shared__ u64 said[3];
  const u64 blocks = gridDim.x;
  for (u64 number = first + (blockIdx.x + blocks - first % blocks) % blocks;; number += blocks) {
    if (threadIdx.x < 32) {
      const u64 round = (number / count + 1) & 0xffff;
      const u64* const word = slots + number % count * 4 + threadIdx.x % 4;
      u64 read = 0;
      for (;;) {  // four threads read the slot at once
        read = fresh(word);
        if (__all_sync(0xffffffffu, threadIdx.x % 4 == 3 || read >> 48 == round)) break;
        __nanosleep(40);
      }
      if (threadIdx.x < 3) said[threadIdx.x] = read & LOW;
      __threadfence_system();  // what the job is about was there before the job
    }
    __syncthreads();
    const u64 to = said[0], from = said[1], bytes = said[2] & 0xffffffffull;
    const unsigned task = (unsigned)(said[2] >> 32);
    if (task == TASK_FOLD)
      part_of_any_width<Op>(to, from, bytes);
    else if (task == TASK_COPY)
      part_of_any_width<Take>(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      *reinterpret_cast<volatile u64*>(done + blockIdx.x * 16) = number / blocks + 1;
    }
    if (task == TASK_END) return;
  }
}

#define SERVE(name, Op)                                                                                            \
  extern "C" __global__ void __launch_bounds__(512)                                                                \
      serve_##name(const u64* slots, u64 count, u64* done, u64 first) {                                            \
    serve<Op>(slots, count, done, first);                                                                          \
  }
SERVE(sum, Sum)
SERVE(prod, Prod)
SERVE(min, Min)
SERVE(max, Max)
