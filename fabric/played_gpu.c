/* The process that copies GPU memory for one opened NIC: gpu.h. Arguments: the desk's descriptor, the user's process. */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_GPUS = 64, LAZY_PEER_ACCESS = 1, NON_BLOCKING = 1, PORTABLE = 1 };

static struct {
  CudaResult (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *);
  CudaResult (*cuIpcOpenMemHandle_v2)(uint64_t *, IpcHandle, unsigned), (*cuIpcCloseMemHandle)(uint64_t), (*cuMemHostRegister_v2)(void *, size_t, unsigned);
  CudaResult (*cuStreamCreate)(void **, unsigned), (*cuStreamSynchronize)(void *);
  CudaResult (*cuMemcpyHtoDAsync_v2)(uint64_t, const void *, size_t, void *), (*cuMemcpyDtoHAsync_v2)(void *, uint64_t, size_t, void *);
  CudaResult (*cuGetErrorName)(CudaResult, const char **);
} cuda;
static struct { void *context, *stream; } gpus[MAX_GPUS];
static Desk *desk;

/* Whether it went well; else the desk says what did not. */
static bool done(const char *what, CudaResult result) {
  const char *name = NULL;
  if (!result) return true;
  if (cuda.cuGetErrorName) cuda.cuGetErrorName(result, &name);
  snprintf(desk->failed, sizeof desk->failed, "%s: %s (%d)", what, name ? name : "no such error", result);
  return false;
}
#define DO(call, ...) done(#call, cuda.call(__VA_ARGS__))

static bool load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) { snprintf(desk->failed, sizeof desk->failed, "%s", dlerror()); return false; }
#define FIND(name) if (!(*(void **)&cuda.name = dlsym(library, #name))) { snprintf(desk->failed, sizeof desk->failed, "libcuda.so.1 has no " #name); return false; }
  FIND(cuGetErrorName) FIND(cuInit) FIND(cuDeviceGet) FIND(cuDevicePrimaryCtxRetain) FIND(cuCtxSetCurrent) FIND(cuIpcOpenMemHandle_v2) FIND(cuIpcCloseMemHandle)
  FIND(cuMemHostRegister_v2) FIND(cuStreamCreate) FIND(cuStreamSynchronize) FIND(cuMemcpyHtoDAsync_v2) FIND(cuMemcpyDtoHAsync_v2)
  return DO(cuInit, 0);
}
static bool use(int number) {  /* a GPU, whose context is the current one from here on */
  int device;
  if (number < 0 || number >= MAX_GPUS) return done("the number of a GPU", -1);
  if (!cuda.cuInit && !load()) return false;
  if (gpus[number].stream) return DO(cuCtxSetCurrent, gpus[number].context);
  if (!DO(cuDeviceGet, &device, number) || !DO(cuDevicePrimaryCtxRetain, &gpus[number].context, device) || !DO(cuCtxSetCurrent, gpus[number].context)) return false;
  static bool registered;
  if (!registered && !(registered = DO(cuMemHostRegister_v2, desk->bytes, sizeof desk->bytes, PORTABLE))) return false;
  return DO(cuStreamCreate, &gpus[number].stream, NON_BLOCKING);
}
static void serve(void) {
  desk->failed[0] = 0;
  if (!use(desk->device)) return;
  void *stream = gpus[desk->device].stream;
  if (desk->what == OPEN_MEMORY) DO(cuIpcOpenMemHandle_v2, &desk->address, desk->handle, LAZY_PEER_ACCESS);
  else if (desk->what == CLOSE_MEMORY) DO(cuIpcCloseMemHandle, desk->address);
  else if (desk->length > sizeof desk->bytes) done("the length of a copy", -1);
  else if (desk->what == COPY_OUT ? DO(cuMemcpyDtoHAsync_v2, desk->bytes, desk->address, desk->length, stream)
                                  : DO(cuMemcpyHtoDAsync_v2, desk->address, desk->bytes, desk->length, stream))
    DO(cuStreamSynchronize, stream);
}

int main(int count, char **arguments) {
  if (count != 3) return fprintf(stderr, "the library of the played fabric starts this, nobody else does\n"), 2;
  pid_t user = (pid_t)atoi(arguments[2]);
  desk = mmap(NULL, sizeof *desk, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(arguments[1]), 0);
  if (desk == MAP_FAILED) return perror("the desk of a played NIC"), 1;
  signal(SIGINT, SIG_IGN);  /* it is the user's to end */
  while (getppid() == user) {
    uint32_t answered = atomic_load(&desk->answered);
    if (!word_changes(&desk->asked, answered)) continue;
    serve();
    word_set(&desk->answered, answered + 1);
  }
  return 0;
}
