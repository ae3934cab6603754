// What lets g++ compile fold.cu and run one block of its resident kernel, a thread of the processor for each of the
// block's. Shared variables are static: each block needs a copy of the library. The test puts these in place of reads
// and fences in PTX.
#include <barrier>
#include <thread>
#include <unistd.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)

struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; };
static thread_local Index threadIdx;
static Index blockIdx, blockDim, gridDim;
static std::barrier<>* all;
static std::barrier<>* warp;
static int votes[32];

inline void __syncthreads() { all->arrive_and_wait(); }
inline void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { usleep(20); }
inline int __all_sync(unsigned, int mine) {
  votes[threadIdx.x] = mine;
  warp->arrive_and_wait();
  int whole = 1;
  for (int lane = 0; lane < 32; ++lane) whole &= votes[lane];
  warp->arrive_and_wait();
  return whole;
}

template <class T>
inline T fresh(const T* at) {
  T made;
  __asm__ __volatile__("" ::: "memory");
  __builtin_memcpy(&made, at, sizeof made);
  return made;
}
