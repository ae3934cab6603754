/* GPU memory. A process of its own, `played_gpu`, copies it for each opened NIC, as a real NIC is nobody's thread: copies
   by the user's process would wait while that is in cudaFree or loads a kernel, and it may wait for them. It maps what is
   registered by CUDA IPC, and ends with its user. Requests and bytes go over a desk that both processes share. */
#ifndef GPU_H
#define GPU_H
#include "fabric.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { char bytes[64]; } IpcHandle;                       /* CUipcMemHandle */
enum { OPEN_MEMORY = 1, CLOSE_MEMORY, COPY_OUT, COPY_IN };
typedef struct {
  _Atomic uint32_t asked, answered;  /* how many requests */
  int what, device;                  /* OPEN_MEMORY: of a GPU by its number, by a handle; the answer is `address` */
  IpcHandle handle;
  uint64_t address, length;          /* in the other process */
  char failed[128];                  /* why; "" if it has not */
  _Alignas(4096) uint8_t bytes[MOST_FRAGMENT];
} Desk;

/* Set `*word`, and wake who waits for that. */
static inline void word_set(_Atomic uint32_t *word, uint32_t value) {
  atomic_store(word, value);
  syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
/* Wait until `*word` is not `was`: for a copy's time awake, then asleep. False: it still is after a fifth of a second. */
static inline bool word_changes(_Atomic uint32_t *word, uint32_t was) {
  enum { AWAKE = 50 * 1000, ASLEEP = 200 * 1000 * 1000 };
  for (uint64_t until = now_ns() + AWAKE; now_ns() < until;)
    if (atomic_load(word) != was) return true;
  syscall(SYS_futex, word, FUTEX_WAIT, was, &(struct timespec){0, ASLEEP}, NULL, 0);
  return atomic_load(word) != was;
}

/* What libcuda has, as far as it is called; cuda.h without the package. 0: it went well. */
typedef int CudaResult;
#endif
