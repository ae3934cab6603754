/* GPU memory, on the side of the library: what is registered, and what is asked of the process that copies; gpu.h. */
#define _GNU_SOURCE
#include "gpu.h"
#include "nic.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct GpuMemory { uint64_t base, offset; int device; IpcHandle handle; };  /* base: of the allocation, in the other process; device: the GPU's number */
struct GpuProcess { Desk *desk; pid_t pid; };

enum { CONTEXT = 1, MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };  /* CUpointer_attribute */
enum { ON_DEVICE = 2 };                                                     /* CUmemorytype */
extern char **environ;

/* One request. False: it failed, and `desk->failed` says why. */
static bool ask(struct GpuProcess *g, int what, int device, uint64_t address, uint64_t length) {
  Desk *d = g->desk;
  uint32_t answered = atomic_load(&d->answered);
  d->what = what, d->device = device, d->address = address, d->length = length;
  word_set(&d->asked, answered + 1);
  while (!word_changes(&d->answered, answered))
    if (waitpid(g->pid, NULL, WNOHANG)) return snprintf(d->failed, sizeof d->failed, "its process has ended"), false;
  return !d->failed[0];
}
static struct GpuProcess *start(void) {
  struct GpuProcess *g = calloc(1, sizeof *g);
  Dl_info here;
  char program[MAX_PATH], number[16], user[16];
  int fd = memfd_create("played-gpu", MFD_CLOEXEC), err = fd < 0 || !g ? ENOMEM : 0;
  if (!err && ftruncate(fd, sizeof(Desk))) err = errno;
  if (!err && (g->desk = mmap(NULL, sizeof(Desk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) err = errno;
  if (!err && !dladdr(&fabric, &here)) err = ENOENT;
  if (!err) {
    const char *end = strrchr(here.dli_fname, '/');
    snprintf(program, sizeof program, "%.*splayed_gpu", end ? (int)(end - here.dli_fname + 1) : 0, here.dli_fname);
    snprintf(number, sizeof number, "%d", fd);
    snprintf(user, sizeof user, "%d", (int)getpid());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, fd);  /* kept open */
    err = posix_spawn(&g->pid, program, &actions, NULL, (char *[]){program, number, user, NULL}, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (err) fprintf(stderr, "played fabric: %s, which copies GPU memory: %s\n", program, strerror(err));
  }
  if (fd >= 0) close(fd);
  if (!err) return g;
  free(g);
  errno = err;
  return NULL;
}
void gpu_stop(Port *p) {
  if (!p->gpu) return;
  kill(p->gpu->pid, SIGKILL);
  waitpid(p->gpu->pid, NULL, 0);
  munmap(p->gpu->desk, sizeof(Desk));
  free(p->gpu);
  p->gpu = NULL;
}

/* The memory is looked at without the NIC's lock: this may wait for the user's other threads, and they for the NIC. */
int gpu_find(struct GpuMemory **out, void *start, size_t length) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *context = NULL;
  *out = NULL;
  if (!library) return 0;  /* of a process that has not loaded it no memory is a GPU's */
#define FIND(type, name, symbol) CudaResult (*name) type = (CudaResult (*) type)dlsym(library, symbol)
  FIND((void *, int, uint64_t), attribute, "cuPointerGetAttribute");
  FIND((uint64_t *, size_t *, uint64_t), range_of, "cuMemGetAddressRange_v2");
  FIND((IpcHandle *, uint64_t), handle_of, "cuIpcGetMemHandle");
  FIND((void *), enter, "cuCtxPushCurrent_v2");
  FIND((void **), leave, "cuCtxPopCurrent_v2");
  uint64_t at = (uintptr_t)start, base;
  size_t size;
  int type = 0;
  bool managed = false;
  if (!attribute || !range_of || !handle_of || !enter || !leave) return 0;
  if (attribute(&type, MEMORY_TYPE, at) || type != ON_DEVICE || attribute(&managed, IS_MANAGED, at) || managed) return 0;
  struct GpuMemory found = {0};
  if (attribute(&found.device, DEVICE_ORDINAL, at) || attribute(&context, CONTEXT, at) || enter(context)) return EFAULT;
  bool within = !range_of(&base, &size, at) && at - base <= size && length <= size - (at - base);
  bool shown = within && !handle_of(&found.handle, base);
  leave(&context);
  if (!within) return EFAULT;
  if (!shown) {
    fprintf(stderr, "played fabric: GPU memory that no other process can map (CUDA IPC), as that of cuMemCreate, is not played\n");
    return EOPNOTSUPP;
  }
  if (!(*out = malloc(sizeof **out))) return ENOMEM;
  found.offset = at - base;
  **out = found;
  return 0;
}
int gpu_open(Port *p, struct GpuMemory *m) {
  if (!p->gpu && !(p->gpu = start())) return errno;
  p->gpu->desk->handle = m->handle;
  if (!ask(p->gpu, OPEN_MEMORY, m->device, 0, 0)) {
    fprintf(stderr, "played fabric: GPU memory cannot be registered: %s\n", p->gpu->desk->failed);
    return EFAULT;
  }
  m->base = p->gpu->desk->address;
  return 0;
}
void gpu_close(Port *p, struct GpuMemory *m) { ask(p->gpu, CLOSE_MEMORY, m->device, m->base, 0); }
void gpu_copy(Port *p, const Region *r, uint64_t offset, void *bytes, uint64_t n, int way) {
  Desk *d = p->gpu->desk;
  if (way == INTO_REGION) memcpy(d->bytes, bytes, n);
  if (!ask(p->gpu, way == INTO_REGION ? COPY_IN : COPY_OUT, r->gpu->device, r->gpu->base + r->gpu->offset + offset, n)) {
    fprintf(stderr, "played fabric: GPU memory cannot be copied any more: %s\n", d->failed);
    abort();  /* rather than bytes that are wrong */
  }
  if (way == FROM_REGION) memcpy(bytes, d->bytes, n);
}
