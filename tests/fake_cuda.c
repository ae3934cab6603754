/* A libcuda.so.1 without a GPU, as far as the played fabric and its tests call it. Device memory is a file in memory,
   whose addresses nobody may touch: a copy that is not CUDA's ends the process. Other processes map it by its handle. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 4096, INVALID = 1 };
typedef struct { char bytes[64]; } Handle;
static struct { char *at; size_t size; int fd; } known[MOST];
static void *current, *before;
static char context;

static int find(uint64_t at) {
  for (int i = 0; i < MOST; i++)
    if (known[i].at && at >= (uintptr_t)known[i].at && at - (uintptr_t)known[i].at < known[i].size) return i;
  return -1;
}
static int keep(uint64_t *out, int fd, size_t size) {
  void *at = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
  int i = 0;
  while (i < MOST && known[i].at) i++;
  if (fd < 0 || at == MAP_FAILED || i == MOST) return INVALID;
  known[i].at = at, known[i].size = size, known[i].fd = fd;
  *out = (uintptr_t)at;
  return 0;
}
static int drop(uint64_t at) {
  int i = find(at);
  if (i < 0 || (uintptr_t)known[i].at != at) return INVALID;
  munmap(known[i].at, known[i].size);
  close(known[i].fd);
  known[i].at = NULL;
  return 0;
}
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *out, int number) { return *out = number, number ? INVALID : 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { return *out = &context, device; }
int cuCtxSetCurrent(void *given) { return current = given, 0; }
int cuCtxPushCurrent_v2(void *given) { return before = current, current = given, given ? 0 : INVALID; }
int cuCtxPopCurrent_v2(void **out) { return *out = current, current = before, 0; }
int cuMemAlloc_v2(uint64_t *out, size_t size) {
  int fd = current ? memfd_create("device", 0) : -1;
  return fd < 0 || ftruncate(fd, (off_t)size) ? INVALID : keep(out, fd, size);
}
int cuMemFree_v2(uint64_t at) { return drop(at); }
int cuPointerGetAttribute(void *out, int what, uint64_t at) {
  if (find(at) < 0) return INVALID;
  if (what == 1) *(void **)out = &context;
  else if (what == 8) *(char *)out = 0;
  else *(int *)out = what == 2 ? 2 : 0;  /* on a device; of GPU 0 */
  return 0;
}
int cuPointerSetAttribute(const void *value, int what, uint64_t at) { return value && what == 6 && find(at) >= 0 ? 0 : INVALID; }
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t at) {
  int i = find(at);
  return i < 0 || !current ? INVALID : (*base = (uintptr_t)known[i].at, *size = known[i].size, 0);
}
int cuIpcGetMemHandle(Handle *out, uint64_t at) {
  int i = find(at);
  if (i < 0 || getenv("FAKE_CUDA_KEEPS_TO_ITSELF")) return INVALID;
  snprintf(out->bytes, sizeof out->bytes, "%d %d %zu", (int)getpid(), known[i].fd, known[i].size);
  return 0;
}
int cuIpcOpenMemHandle_v2(uint64_t *out, Handle handle, unsigned flags) {
  char path[64];
  int pid, fd;
  size_t size;
  if (!flags || sscanf(handle.bytes, "%d %d %zu", &pid, &fd, &size) != 3 || pid == getpid()) return INVALID;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  return keep(out, open(path, O_RDWR), size);
}
int cuIpcCloseMemHandle(uint64_t at) { return drop(at); }
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) { return at && size && flags ? 0 : INVALID; }
int cuStreamCreate(void **out, unsigned flags) { return *out = &context, flags ? 0 : INVALID; }
int cuStreamSynchronize(void *stream) { return stream ? 0 : INVALID; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) {
  int i = find(to);
  return i < 0 || pwrite(known[i].fd, from, n, (off_t)(to - (uintptr_t)known[i].at)) != (ssize_t)n ? INVALID : 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) {
  int i = find(from);
  return i < 0 || pread(known[i].fd, to, n, (off_t)(from - (uintptr_t)known[i].at)) != (ssize_t)n ? INVALID : 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream) { return stream ? cuMemcpyHtoD_v2(to, from, n) : INVALID; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream) { return stream ? cuMemcpyDtoH_v2(to, from, n) : INVALID; }
int cuGetErrorName(int error, const char **out) { return *out = error == INVALID ? "CUDA_ERROR_INVALID_VALUE" : "unknown", 0; }
