// Copies and folds of arrays by a kernel that runs as long as a collective does, and what divides an average. Compiled
// once per element type: -DTYPE_<dtype>. -DLIFE_ALONE leaves out what the plugin for NCCL does not run.
//
// Every fold is one operation per element, rounded once to the element's type (fp16 and bf16 too, to nearest even), so the
// bits depend on nothing but the operands: not on the grid, nor on the width.
//
// It needs no header: the plugin for NCCL (native/nccl/gpu.c) compiles it where there may be none.

#if defined(TYPE_float16) || defined(TYPE_bfloat16)
struct Element {
  unsigned short bits;
};
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
__device__ inline Element settled(Element x) { return (x.bits & 0x7fff) > 0x7c00 ? Element{0x7e00} : x; }
#elif defined(TYPE_bfloat16)
__device__ inline Element settled(Element x) { return (x.bits & 0x7fff) > 0x7f80 ? Element{0x7fc0} : x; }
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
#if defined(TYPE_float16)
__device__ inline float widened(Element x) {
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(x.bits));
  return made;
}
__device__ inline Element narrowed(float x) {
  Element made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made.bits) : "f"(x));
  return made;
}
#else
__device__ inline float widened(Element x) { return __int_as_float((int)x.bits << 16); }
__device__ inline Element narrowed(float x) {
  const unsigned bits = (unsigned)__float_as_int(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return Element{0x7fc0};
  return Element{(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
#endif

// In their own type where the GPU can. Else by way of float32, which changes no bit: it has more than twice as many.
#define NARROW(name, instruction, wide, since)                                                          \
  struct name {                                                                                         \
    __device__ static Element of(Element a, Element b) {                                                \
      Element made;                                                                                     \
      NARROW_##since(asm(instruction " %0, %1, %2;" : "=h"(made.bits) : "h"(a.bits), "h"(b.bits)), wide) \
      return settled(made);                                                                             \
    }                                                                                                   \
  };
#define WIDELY(wide)                                                                                \
  float sum;                                                                                        \
  asm(wide " %0, %1, %2;" : "=f"(sum) : "f"(widened(a)), "f"(widened(b)));                          \
  made = narrowed(sum);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NARROW_90(natively, wide) natively;
#else
#define NARROW_90(natively, wide) WIDELY(wide)
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define NARROW_80(natively, wide) natively;
#else
#define NARROW_80(natively, wide) WIDELY(wide)
#endif
#define NARROW_50(natively, wide) natively;
#if defined(TYPE_float16)
NARROW(Sum, "add.rn.f16", "add.rn.f32", 50)
NARROW(Prod, "mul.rn.f16", "mul.rn.f32", 50)
NARROW(Min, "min.f16", "min.f32", 80)
NARROW(Max, "max.f16", "max.f32", 80)
#else
NARROW(Sum, "add.rn.bf16", "add.rn.f32", 90)
NARROW(Prod, "mul.rn.bf16", "mul.rn.f32", 90)
NARROW(Min, "min.bf16", "min.f32", 80)
NARROW(Max, "max.bf16", "max.f32", 80)
#endif
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

#if !defined(LIFE_ALONE)
// An average's last step: every element divided by the number of contributions. Floats round once (fp16 and bf16 from
// float32's quotient), integers are cut towards zero.
__device__ inline float ratio(float x, float by) {
  float made;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(made) : "f"(x), "f"(by));
  return made;
}

__device__ inline Element quotient(Element x, u64 by) {
#if defined(TYPE_float16) || defined(TYPE_bfloat16)
  return narrowed(ratio(widened(x), (float)by));
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
#endif

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

// Orders what is before and behind it as seen by other GPUs and the host, too. __threadfence_system() is more: it puts all
// fences of all blocks into one order.
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

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

// What a job's fold does: always one operation, or the one that the job says.
template <class Op>
struct Always {
  __device__ static void fold(unsigned, u64 to, u64 from, u64 bytes) { part_of_any_width<Op>(to, from, bytes); }
};
struct AsSaid {
  __device__ static void fold(unsigned op, u64 to, u64 from, u64 bytes) {
    switch (op) {
      case 0: part_of_any_width<Sum>(to, from, bytes); break;
      case 1: part_of_any_width<Prod>(to, from, bytes); break;
      case 2: part_of_any_width<Min>(to, from, bytes); break;
      default: part_of_any_width<Max>(to, from, bytes); break;
    }
  }
};

// Whether a life's word says that it is over, or by its highest bit that it is to leave.
__device__ __forceinline__ bool at_end(u64 word, u64 life) { return (word & ~(1ull << 63)) == life; }

// Until a job says END; or, where there is a word `over`, until that says that `life` ends and there is no job.
template <class Folds>
__device__ __forceinline__ void serve(const u64* slots, u64 count, u64* done, u64 first, const u64* over, u64 life) {
  constexpr u64 LOW = (1ull << 48) - 1;
  __shared__ u64 said[3];
  __shared__ int ends;
  const u64 blocks = gridDim.x;
  for (u64 number = first + (blockIdx.x + blocks - first % blocks) % blocks;; number += blocks) {
    if (threadIdx.x < 32) {
      const u64 round = (number / count + 1) & 0xffff;
      const int lane = threadIdx.x % 4;  // four threads read the slot at once, and whether all is over
      const u64* const word = lane == 3 && over ? over : slots + number % count * 4 + lane;
      u64 read = 0;
      int last = 0;
      for (;;) {
        read = fresh(word);
        if (__all_sync(0xffffffffu, lane == 3 || read >> 48 == round)) break;
        last = over && !__all_sync(0xffffffffu, lane != 3 || !at_end(read, life));
        if (last) break;
        __nanosleep(40);
      }
      if (threadIdx.x < 3) said[threadIdx.x] = read & LOW;
      if (threadIdx.x == 0) ends = last;
      fence();  // what the job is about was there before the job
    }
    __syncthreads();
    if (ends) return;
    const u64 to = said[0], from = said[1], bytes = said[2] & 0xffffffffull;
    const unsigned task = (unsigned)(said[2] >> 32) & 0xff, op = (unsigned)(said[2] >> 40) & 0xf;
    if (task == TASK_FOLD)
      Folds::fold(op, to, from, bytes);
    else if (task == TASK_COPY)
      part_of_any_width<Take>(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
      fence();
      *reinterpret_cast<volatile u64*>(done + blockIdx.x * 16) = number / blocks + 1;
    }
    if (task == TASK_END) return;
  }
}

#if !defined(LIFE_ALONE)
#define SERVE(name, Op)                                                                                            \
  extern "C" __global__ void __launch_bounds__(512)                                                                \
      serve_##name(const u64* slots, u64 count, u64* done, u64 first) {                                            \
    serve<Always<Op>>(slots, count, done, first, nullptr, 0);                                                      \
  }
SERVE(sum, Sum)
SERVE(prod, Prod)
SERVE(min, Min)
SERVE(max, Max)
#endif

// What block 0 has seen of the host's memory, for the others: the life that may take jobs, its first job; the life that
// ends. So a loaded module is one folder's: numbers of lives never come again. Each read of the host's memory is a way
// there and back, and those of one word by all blocks seem to go one after another: where all read `over`, an H200 folded
// 97 GB/s in its own memory, and 249 where block 0 alone does.
__device__ u64 relayed[3];

// A life of a kernel that comes and goes: it says that it is there, waits until the engine has said with which job it
// begins, or that all is over, and says that it has gone.
extern "C" __global__ void __launch_bounds__(512)
    serve_life(const u64* slots, u64 count, u64* lines, const u64* lives, const u64* over, u64 life) {
  __shared__ u64 first;
  __shared__ int goes;
  volatile u64* const line = lines + blockIdx.x * 16;
  volatile u64* const relay = blockIdx.x ? nullptr : relayed;
  const u64* const may = relay ? lives : relayed;
  const u64* const end = relay ? over : relayed + 2;
  if (threadIdx.x == 0) {
    line[1] = life;
    for (goes = 0; !goes && !at_end(fresh(end), life); __nanosleep(100)) goes = fresh(may) == life;
    fence();
    first = fresh(may + 1);
    if (relay && goes) {
      relay[1] = first;
      fence();
      relay[0] = life;
    }
  }
  __syncthreads();
  if (goes) serve<AsSaid>(slots, count, lines, first, end, life);
  __syncthreads();
  if (threadIdx.x == 0) {
    if (relay) relay[2] = life;
    fence();
    line[2] = life;
  }
}

// Behind what the kernel was there for.
extern "C" __global__ void tell_over(u64* over, u64 life) {
  fence();
  *reinterpret_cast<volatile u64*>(over) = life;
}
