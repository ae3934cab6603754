/* Sums on the GPU: a kernel of ours that comes and goes beside NCCL's.
 *
 * The thread of the engine calls nothing of CUDA: such a call may wait for a lock that a thread of the user's holds while
 * it waits for NCCL's kernel, which waits for us. But NCCL tells profilers right before and right after it launches a
 * kernel, by the thread that does it, and a profiler is what this library is, too (NCCL 2.28 and later). So
 *
 *   before   an event is recorded in the stream
 *   after    our kernel is launched on a stream of ours, behind that event; and one behind NCCL's that says: it is over
 *
 * In between the engine gives our kernel jobs by memory (folder_gpu.c), if it is there. It never waits for it. A launch
 * that is captured for a CUDA graph is left alone: its replays tell nobody.
 *
 * A seat is what a communicator has on one GPU: a stream, memory for jobs, the kernels. The CollNet groups of the
 * communicator share it. NCCL's memory, which is the host's and page-locked, the kernel reads where it is.
 *
 * libcuda is there already where NCCL is. The kernel's source is a part of this library; NVRTC compiles it, for the types
 * that are summed, in a thread that ends with that: until then, and wherever anything is missing, the processor adds.
 */
#define _GNU_SOURCE
#include "net.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const char optcc_fold_source[]; /* runtime/devices/kernels/fold.cu, by build.py */

/* The blocks are taken from the user's kernels: 16 of an H200's 132 multiprocessors.
 * A part is a segment, as the plugin has them unless told otherwise: what comes is one block's work, and blocks work at
 * several segments at once. Halved, there are twice as many, each with its cost: with parts of 32 KiB the same jobs took
 * twice as long in host memory, and five times in a GPU's (an H200, benchmarks/bench_nccl_gpu.py). */
enum { BLOCKS = 16, THREADS = 512, PART_BYTES = 131072, GROUPS = 256, LINE = 128 };
static const uint64_t GONE_NS = UINT64_C(5000000000); /* a kernel that has been told to end has ended by then */

/* ---- what libcuda and NVRTC have, as far as it is called ------------------------------------------------------------ */

enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76 };    /* CUdevice_attribute */
enum { PORTABLE = 1, MAPPED = 2 };                  /* CU_MEMHOSTALLOC_... */
enum { NON_BLOCKING = 1, NO_TIMING = 2 };           /* of a stream; of an event */

static struct {
    int (*cuCtxGetCurrent)(void **);
    int (*cuCtxGetDevice)(int *);
    int (*cuCtxPushCurrent_v2)(void *);
    int (*cuCtxPopCurrent_v2)(void **);
    int (*cuCtxGetStreamPriorityRange)(int *, int *);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuMemHostAlloc)(void **, size_t, unsigned);
    int (*cuMemFreeHost)(void *);
    int (*cuMemHostGetDevicePointer_v2)(uint64_t *, void *, unsigned);
    int (*cuStreamCreateWithPriority)(void **, unsigned, int);
    int (*cuStreamDestroy_v2)(void *);
    int (*cuStreamIsCapturing)(void *, int *);
    int (*cuStreamWaitEvent)(void *, void *, unsigned);
    int (*cuEventCreate)(void **, unsigned);
    int (*cuEventRecord)(void *, void *);
    int (*cuEventDestroy_v2)(void *);
    int (*cuModuleLoadData)(void **, const void *);
    int (*cuModuleUnload)(void *);
    int (*cuModuleGetFunction)(void **, void *, const char *);
    int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                          void **);
} cuda;

static struct {
    int (*nvrtcCreateProgram)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*nvrtcCompileProgram)(void *, int, const char *const *);
    int (*nvrtcGetCUBINSize)(void *, size_t *);
    int (*nvrtcGetCUBIN)(void *, char *);
    int (*nvrtcDestroyProgram)(void **);
} nvrtc;

#define FIND(TABLE, NAME) (*(void **)(void *)&TABLE.NAME = dlsym(library, #NAME))

static const char *load_cuda(void)
{
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return "there is no libcuda.so.1";
    if (!(FIND(cuda, cuCtxGetCurrent) && FIND(cuda, cuCtxGetDevice) && FIND(cuda, cuCtxPushCurrent_v2) &&
          FIND(cuda, cuCtxPopCurrent_v2) && FIND(cuda, cuCtxGetStreamPriorityRange) &&
          FIND(cuda, cuDeviceGetAttribute) && FIND(cuda, cuMemHostAlloc) && FIND(cuda, cuMemFreeHost) &&
          FIND(cuda, cuMemHostGetDevicePointer_v2) && FIND(cuda, cuStreamCreateWithPriority) &&
          FIND(cuda, cuStreamDestroy_v2) && FIND(cuda, cuStreamIsCapturing) && FIND(cuda, cuStreamWaitEvent) &&
          FIND(cuda, cuEventCreate) && FIND(cuda, cuEventRecord) && FIND(cuda, cuEventDestroy_v2) &&
          FIND(cuda, cuModuleLoadData) && FIND(cuda, cuModuleUnload) && FIND(cuda, cuModuleGetFunction) &&
          FIND(cuda, cuLaunchKernel)))
        return "libcuda.so.1 lacks a function";
    return NULL;
}

static void *nvrtc_in(const char *folder, int version)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/libnvrtc.so.%d", folder, version) >= (int)sizeof path || access(path, R_OK))
        return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* A part of NVRTC lies beside it, where it does not look when it compiles. */
static void load_builtins(const void *function)
{
    Dl_info of;
    char pattern[PATH_MAX];
    glob_t found;
    const char *const name = dladdr(function, &of) && of.dli_fname ? strrchr(of.dli_fname, '/') : NULL;
    if (name && snprintf(pattern, sizeof pattern, "%.*s/libnvrtc-builtins.so.*", (int)(name - of.dli_fname),
                         of.dli_fname) < (int)sizeof pattern &&
        !glob(pattern, 0, NULL, &found)) {
        (void)dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL);
        globfree(&found);
    }
}

/* Beside what the process has of CUDA already, as packages of Python lay it out. */
static int beside(struct dl_phdr_info *info, size_t size, void *found)
{
    static const char *const places[] = {"", "/../../cuda_nvrtc/lib", "/../../cu13/lib"};
    const char *const name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    char folder[PATH_MAX];
    (void)size;
    if (!name || (strncmp(name, "/libcudart.so", 13) && strncmp(name, "/libcublas.so", 13) &&
                  strncmp(name, "/libnccl.so", 11)))
        return 0;
    for (size_t i = 0; i < sizeof places / sizeof *places && !*(void **)found; i++)
        for (int version = 13; version >= 12 && !*(void **)found; version--)
            if (snprintf(folder, sizeof folder, "%.*s%s", (int)(name - info->dlpi_name), info->dlpi_name, places[i]) <
                (int)sizeof folder)
                *(void **)found = nvrtc_in(folder, version);
    return *(void **)found != NULL;
}

static const char *load_nvrtc(void)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    void *library = NULL;
    for (int i = 0; i < 4 && !library; i++)
        library = dlopen(names[i % 2], RTLD_NOW | RTLD_LOCAL | (i < 2 ? RTLD_NOLOAD : 0));
    if (!library)
        (void)dl_iterate_phdr(beside, &library);
    if (!library)
        return "there is no libnvrtc.so.13 or .12, which compiles kernels";
    if (!(FIND(nvrtc, nvrtcCreateProgram) && FIND(nvrtc, nvrtcCompileProgram) && FIND(nvrtc, nvrtcGetCUBINSize) &&
          FIND(nvrtc, nvrtcGetCUBIN) && FIND(nvrtc, nvrtcDestroyProgram)))
        return "NVRTC lacks a function";
    load_builtins(dlsym(library, "nvrtcCreateProgram"));
    return NULL;
}

static void tell_line(int warns, const char *format, const char *what, const char *why)
{
    char line[512];
    snprintf(line, sizeof line, format, what, why);
    net_tell(warns, line);
}

/* ---- compiling, by a thread that ends with it ----------------------------------------------------------------------- */

static const char *const NAMES[OPTCC_TYPES] = {"int8",  "uint8", "int16",   "uint16",   "int32",   "uint32",
                                               "int64", "uint64", "float16", "bfloat16", "float32", "float64"};
enum compiled_is { NOT_ASKED, ASKED, READY, FAILED_FOR_GOOD };

static struct {
    pthread_mutex_t lock;
    int arch; /* 90: compute capability 9.0; 0: none yet */
    int running, stops;
    pthread_t thread;
    char *cubin[OPTCC_TYPES];
    _Atomic int is[OPTCC_TYPES]; /* enum compiled_is */
} compiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static char *compile(enum optcc_type type)
{
    char arch[32], define[32], *cubin = NULL;
    void *program = NULL;
    size_t size = 0;
    snprintf(arch, sizeof arch, "-arch=sm_%d", compiler.arch);
    snprintf(define, sizeof define, "-DTYPE_%s", NAMES[type]);
    const char *const options[] = {arch, define, "-DLIFE_ALONE", "-std=c++17"};
    if (nvrtc.nvrtcCreateProgram(&program, optcc_fold_source, "fold.cu", 0, NULL, NULL))
        return NULL;
    if (!nvrtc.nvrtcCompileProgram(program, sizeof options / sizeof *options, options) &&
        !nvrtc.nvrtcGetCUBINSize(program, &size) && size && (cubin = malloc(size)) &&
        nvrtc.nvrtcGetCUBIN(program, cubin)) {
        free(cubin);
        cubin = NULL;
    }
    nvrtc.nvrtcDestroyProgram(&program);
    return cubin;
}

static void *compile_all(void *unused)
{
    (void)unused;
    for (;;) {
        int type = 0;
        pthread_mutex_lock(&compiler.lock);
        while (type < OPTCC_TYPES && atomic_load(&compiler.is[type]) != ASKED)
            type++;
        if (type == OPTCC_TYPES || compiler.stops)
            compiler.running = 2; /* to be joined */
        const int ends = compiler.running == 2;
        pthread_mutex_unlock(&compiler.lock);
        if (ends)
            return NULL;
        compiler.cubin[type] = compile((enum optcc_type)type);
        if (!compiler.cubin[type])
            tell_line(1, "sums of %s stay on the processor: NVRTC does not compile the kernel%s", NAMES[type], "");
        atomic_store(&compiler.is[type], compiler.cubin[type] ? READY : FAILED_FOR_GOOD);
    }
}

/* NULL: not yet, or never. By any thread. */
static const char *cubin_of(enum optcc_type type)
{
    const int is = atomic_load(&compiler.is[type]);
    if (is == READY)
        return compiler.cubin[type];
    if (is != NOT_ASKED)
        return NULL;
    pthread_mutex_lock(&compiler.lock);
    atomic_store(&compiler.is[type], ASKED);
    if (compiler.running == 2) {
        pthread_join(compiler.thread, NULL);
        compiler.running = 0;
    }
    if (!compiler.running && !compiler.stops)
        compiler.running = !pthread_create(&compiler.thread, NULL, compile_all, NULL);
    pthread_mutex_unlock(&compiler.lock);
    return NULL;
}

/* Before the process takes NVRTC apart. */
static void stop_compiling(void)
{
    pthread_mutex_lock(&compiler.lock);
    compiler.stops = 1;
    const int ran = compiler.running;
    pthread_mutex_unlock(&compiler.lock);
    if (ran)
        pthread_join(compiler.thread, NULL);
}

/* ---- seats ------------------------------------------------------------------------------------------------------------ */

struct seat {
    struct seat *next;
    uint64_t communicator;
    void *context, *stream, *event, *memory;
    void *module[OPTCC_TYPES], *life[OPTCC_TYPES], *over; /* functions */
    struct optcc_gpu *gpu;
    uint32_t groups, launches; /* that use it now; under the lock */
    uint64_t captured, late;   /* launches without a kernel of ours: for a graph; since it is not compiled, or dozens wait */
};

struct hook { /* a communicator, as the profiler's side has it */
    struct hook *next;
    uint64_t communicator;
    uint32_t nodes;
    struct seat *seat; /* between before and after a launch */
    void *stream;
    enum optcc_type type;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* no CUDA is called with it, and the engine's thread wants it never */
static struct seat *seats, *left; /* left: over, and a kernel may use them yet, so they stay */
static struct hook *hooks;

struct optcc_gpu *gpu_of(struct seat *seat) { return seat->gpu; }

void *gpu_room(struct seat *seat, size_t bytes)
{
    void *room = NULL, *before = NULL;
    if (cuda.cuCtxPushCurrent_v2(seat->context))
        return NULL;
    if (cuda.cuMemHostAlloc(&room, bytes, PORTABLE | MAPPED))
        room = NULL;
    cuda.cuCtxPopCurrent_v2(&before);
    return room;
}

void gpu_unroom(struct seat *seat, void *room)
{
    void *before = NULL;
    if (!room || cuda.cuCtxPushCurrent_v2(seat->context))
        return;
    cuda.cuMemFreeHost(room);
    cuda.cuCtxPopCurrent_v2(&before);
}

int gpu_reaches(const struct seat *seat, void *memory)
{
    uint64_t address = 0;
    void *before = NULL;
    if (cuda.cuCtxPushCurrent_v2(seat->context))
        return 0;
    const int result = cuda.cuMemHostGetDevicePointer_v2(&address, memory, 0);
    cuda.cuCtxPopCurrent_v2(&before);
    return !result && address == (uintptr_t)memory;
}

/* With its context current. What cannot be freed any more, as CUDA is gone, stays. */
static void free_seat(struct seat *s)
{
    for (int i = 0; i < OPTCC_TYPES; i++)
        if (s->module[i])
            cuda.cuModuleUnload(s->module[i]);
    if (s->stream)
        cuda.cuStreamDestroy_v2(s->stream);
    if (s->event)
        cuda.cuEventDestroy_v2(s->event);
    if (s->memory)
        cuda.cuMemFreeHost(s->memory);
    optcc_gpu_close(s->gpu);
    free(s);
}

/* NULL, or what is missing. */
static const char *fill(struct seat *s)
{
    int device, major, minor, least, most;
    if (cuda.cuCtxGetDevice(&device) || cuda.cuDeviceGetAttribute(&major, COMPUTE_MAJOR, device) ||
        cuda.cuDeviceGetAttribute(&minor, COMPUTE_MINOR, device) || cuda.cuCtxGetStreamPriorityRange(&least, &most))
        return "the GPU does not answer";
    if (!compiler.arch)
        compiler.arch = 10 * major + minor;
    if (compiler.arch != 10 * major + minor)
        return "this process has another kind of GPU, too";
    const size_t bytes = optcc_gpu_bytes(BLOCKS);
    if (cuda.cuMemHostAlloc(&s->memory, bytes, PORTABLE | MAPPED) ||
        cuda.cuStreamCreateWithPriority(&s->stream, NON_BLOCKING, most) || cuda.cuEventCreate(&s->event, NO_TIMING))
        return "the GPU has no more memory or streams";
    if ((uintptr_t)s->memory % LINE || optcc_gpu_open(s->memory, BLOCKS, PART_BYTES, &s->gpu) != OPTCC_OK)
        return "no memory";
    optcc_gpu_look(s->gpu, clock_ns()); /* from the first job on */
    return NULL;
}

static const char *load_all(void)
{
    static int tried;
    static const char *missing;
    if (!tried) {
        tried = 1;
        if (!(missing = load_cuda()) && !(missing = load_nvrtc()))
            atexit(stop_compiling); /* after NVRTC was loaded: so before it is taken apart */
    }
    return missing;
}

static const struct hook *hook_of(uint64_t communicator)
{
    const struct hook *h = hooks;
    while (h && h->communicator != communicator)
        h = h->next;
    return h;
}

struct seat *gpu_open(uint64_t communicator)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    const char *why = NULL;
    void *context = NULL;
    struct seat *s = NULL;
    pthread_mutex_lock(&one_at_a_time);
    pthread_mutex_lock(&lock);
    const int told = hook_of(communicator) != NULL;
    pthread_mutex_unlock(&lock);
    if (!net_process()->settings.gpu)
        why = "OPTCC_GPU=off";
    else if (!communicator || !told)
        why = "NCCL is older than 2.28, or NCCL_PROFILER_PLUGIN names another library, and does not say when it launches "
              "kernels";
    else if (!(why = load_all()) && (cuda.cuCtxGetCurrent(&context) || !context))
        why = "the thread that connects has no GPU";
    pthread_mutex_lock(&lock);
    for (s = why ? NULL : seats; s && !(s->communicator == communicator && s->context == context);)
        s = s->next;
    if (s)
        s->groups++;
    pthread_mutex_unlock(&lock);
    if (!why && !s) {
        if (!(s = calloc(1, sizeof *s)))
            why = "no memory";
        else if ((why = fill(s))) {
            free_seat(s);
            s = NULL;
        } else {
            s->communicator = communicator;
            s->context = context;
            s->groups = 1;
            pthread_mutex_lock(&lock);
            s->next = seats;
            seats = s;
            pthread_mutex_unlock(&lock);
        }
    }
    pthread_mutex_unlock(&one_at_a_time);
    tell_line(0, "sums of this group are the %s%s",
              s ? "GPU's, while a kernel of ours runs beside NCCL's" : "processor's: ", s ? "" : why);
    return s;
}

/* The engine's thread does not know it any more. */
void gpu_close(struct seat *seat)
{
    struct optcc_gpu_counts counts;
    void *before = NULL;
    char line[512];
    if (!seat)
        return;
    pthread_mutex_lock(&lock);
    const int last = --seat->groups == 0;
    for (struct seat **at = &seats; last && *at; at = &(*at)->next)
        if (*at == seat) {
            *at = seat->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    int launches = 1;
    for (const uint64_t until_ns = clock_ns() + GONE_NS; clock_ns() < until_ns; usleep(100)) {
        pthread_mutex_lock(&lock);
        launches = seat->launches != 0;
        pthread_mutex_unlock(&lock);
        if (!launches && (optcc_gpu_look(seat->gpu, clock_ns()), optcc_gpu_gone(seat->gpu) == OPTCC_OK))
            break;
    }
    optcc_gpu_count(seat->gpu, &counts);
    snprintf(line, sizeof line,
             "sums: %.1f MB by the GPU in %llu kernels, %.1f MB by the processor; %llu jobs of kernels that had gone; %llu "
             "launches for graphs and %llu others without a kernel, %llu kernels that came late, %llu that left with nothing "
             "to do",
             (double)counts.given_bytes / 1e6, (unsigned long long)counts.lives, (double)counts.beside_bytes / 1e6,
             (unsigned long long)counts.left, (unsigned long long)seat->captured, (unsigned long long)seat->late,
             (unsigned long long)counts.missed, (unsigned long long)counts.idle);
    net_tell(0, line);
    if (launches || optcc_gpu_gone(seat->gpu) != OPTCC_OK) {
        net_tell(1, "a kernel of ours has not ended: its memory stays");
        pthread_mutex_lock(&lock);
        seat->next = left;
        left = seat;
        pthread_mutex_unlock(&lock);
        return;
    }
    if (cuda.cuCtxPushCurrent_v2(seat->context))
        return; /* CUDA is gone */
    free_seat(seat);
    cuda.cuCtxPopCurrent_v2(&before);
}

/* ---- what NCCL tells of its launches ---------------------------------------------------------------------------------- */

/* Of a group of calls that NCCL launches together: handles are numbers, so none can be told of too late. */
static struct {
    _Atomic uint64_t bytes; /* of AllReduces */
    _Atomic int type;
} group_of[GROUPS];
static _Atomic uint64_t group_count;

static int type_named(const char *name)
{
    static const struct {
        const char *name;
        enum optcc_type type;
    } types[] = {{"ncclInt8", OPTCC_INT8},     {"ncclUint8", OPTCC_UINT8},     {"ncclInt32", OPTCC_INT32},
                 {"ncclUint32", OPTCC_UINT32}, {"ncclInt64", OPTCC_INT64},     {"ncclUint64", OPTCC_UINT64},
                 {"ncclFloat16", OPTCC_FLOAT16}, {"ncclFloat32", OPTCC_FLOAT32}, {"ncclFloat64", OPTCC_FLOAT64},
                 {"ncclBfloat16", OPTCC_BFLOAT16}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, types[i].name))
            return (int)types[i].type;
    return -1;
}

nccl_result_t hook_init(void **context, uint64_t communicator, int *mask, int nodes)
{
    struct hook *h = calloc(1, sizeof *h);
    *context = h;
    *mask = 0;
    if (!h)
        return NCCL_SYSTEM_ERROR;
    h->communicator = communicator;
    h->nodes = nodes > 0 ? (uint32_t)nodes : 1;
    pthread_mutex_lock(&lock);
    h->next = hooks;
    hooks = h;
    pthread_mutex_unlock(&lock);
    /* One mask for all communicators of the process, so it depends on nothing of this one. */
    if (net_process()->settings.gpu && net_process()->settings.collnet != NEVER)
        *mask = NCCL_EVENT_GROUP | NCCL_EVENT_CALL | NCCL_EVENT_LAUNCH;
    return NCCL_SUCCESS;
}

nccl_result_t hook_end(void *context)
{
    pthread_mutex_lock(&lock);
    for (struct hook **at = &hooks; *at; at = &(*at)->next)
        if (*at == context) {
            *at = (*at)->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(context);
    return NCCL_SUCCESS;
}

/* The kernels of a type, in the current context. */
static int loaded(struct seat *s, enum optcc_type type)
{
    if (s->life[type])
        return 1;
    const char *const cubin = cubin_of(type);
    if (!cubin || s->module[type]) /* a module without its functions is none */
        return 0;
    void *life = NULL, *over = NULL;
    if (cuda.cuModuleLoadData(&s->module[type], cubin)) {
        s->module[type] = NULL;
        return 0;
    }
    if (cuda.cuModuleGetFunction(&life, s->module[type], "serve_life") ||
        cuda.cuModuleGetFunction(&over, s->module[type], "tell_over"))
        return 0;
    s->over = over;
    s->life[type] = life;
    return 1;
}

static void leave(struct seat *s)
{
    pthread_mutex_lock(&lock);
    s->launches--;
    pthread_mutex_unlock(&lock);
}

/* Right before NCCL launches a kernel: whether to call `after`. */
static int before_launch(struct hook *h, void *stream)
{
    void *context = NULL;
    int captures = 0;
    if (h->seat || !cuda.cuCtxGetCurrent || cuda.cuCtxGetCurrent(&context) || !context)
        return 0;
    pthread_mutex_lock(&lock);
    struct seat *s = seats;
    while (s && !(s->communicator == h->communicator && s->context == context))
        s = s->next;
    if (s)
        s->launches++;
    pthread_mutex_unlock(&lock);
    if (!s)
        return 0;
    if (cuda.cuStreamIsCapturing(stream, &captures) || captures)
        s->captured++;
    else if (!loaded(s, h->type))
        s->late++;
    else if (!cuda.cuEventRecord(s->event, stream)) {
        h->seat = s;
        h->stream = stream;
        return 1;
    }
    leave(s);
    return 0;
}

static void after_launch(struct hook *h)
{
    struct seat *const s = h->seat;
    struct optcc_gpu_life life;
    h->seat = NULL;
    if (optcc_gpu_ask(s->gpu, h->type, &life) != OPTCC_OK) {
        s->late++;
    } else {
        void *serves[] = {&life.slots, &life.count, &life.lines, &life.lives, &life.over, &life.number};
        void *tells[] = {&life.over, &life.number};
        if (cuda.cuStreamWaitEvent(s->stream, s->event, 0) ||
            cuda.cuLaunchKernel(s->life[h->type], BLOCKS, 1, 1, THREADS, 1, 1, 0, s->stream, serves, NULL)) {
            optcc_gpu_unask(s->gpu);
            s->late++;
        } else if (cuda.cuLaunchKernel(s->over, 1, 1, 1, 1, 1, 1, 0, h->stream, tells, NULL)) {
            atomic_store((_Atomic uint64_t *)life.over, life.number); /* nothing else would end it */
        }
        net_ring();
    }
    leave(s);
}

nccl_result_t hook_start(void *context, void **handle, const struct nccl_event_v5 *event)
{
    struct hook *h = context;
    const uint64_t parent = (uintptr_t)event->parent / 2;
    *handle = NULL;
    if (!h)
        return NCCL_SUCCESS;
    if (event->type == NCCL_EVENT_GROUP) {
        const uint64_t number = atomic_fetch_add(&group_count, 1) + 1;
        atomic_store(&group_of[number % GROUPS].bytes, 0);
        *handle = (void *)(uintptr_t)(2 * number + 1);
    } else if (event->type == NCCL_EVENT_CALL && parent) {
        const int type = type_named(event->call.type);
        if (type >= 0 && event->call.function && !strcmp(event->call.function, "AllReduce")) {
            const uint64_t bytes = event->call.count * optcc_type_bytes((enum optcc_type)type);
            if (atomic_fetch_add(&group_of[parent % GROUPS].bytes, bytes) == 0)
                atomic_store(&group_of[parent % GROUPS].type, type);
        }
    } else if (event->type == NCCL_EVENT_LAUNCH && parent) {
        h->type = (enum optcc_type)atomic_load(&group_of[parent % GROUPS].type);
        if (tuner_takes(h->nodes, NCCL_ALLREDUCE, atomic_load(&group_of[parent % GROUPS].bytes)) &&
            before_launch(h, event->launch.stream))
            *handle = h;
    }
    return NCCL_SUCCESS;
}

/* A handle is a group's number, which is odd as no address is, or the hook of a launch. */
nccl_result_t hook_stop(void *handle)
{
    struct hook *const h = (uintptr_t)handle % 2 ? NULL : handle;
    if (h && h->seat)
        after_launch(h);
    return NCCL_SUCCESS;
}
