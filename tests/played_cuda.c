/* What the plugin for NCCL calls of CUDA, on the processor: libcuda.so.1 and libnvrtc.so.13 for tests, in one file.
 *
 * A stream is a thread that does what it was given in order. Kernels are known by name: `serve_life` is the twin of
 * native/folder_gpu.c, `tell_over` writes a word. PLAYED_CUDA_LATE_US: each kernel of ours begins up to so much later, drawn
 * from PLAYED_CUDA_SEED. PLAYED_CUDA_NEVER: it begins when it is over. PLAYED_CUDA_BROKEN names a function that fails.
 *
 * `played_kernel` is NCCL's kernel: it lasts until a word is set. `played_capture`: the stream is captured, or not any more.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BUFFERS = 4096, FAILED = 1, NOT_READY = 600 };
enum what { WAIT, RECORD, SERVE, TELL, LAST };

struct event {
    _Atomic uint64_t recorded, reached;
};

struct op {
    struct op *next;
    enum what what;
    struct event *event;
    uint64_t until;
    void *memory, *over;
    uint64_t life;
    unsigned blocks;
    enum optcc_type type;
    _Atomic int *flag;
};

struct stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given; /* something to do, or its end */
    struct op *first, **last;
    int ends;
    _Atomic int captured;
};

struct function {
    enum what what;
    enum optcc_type type;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *at;
    size_t bytes;
} buffer[MOST_BUFFERS];
static _Atomic int buffers;
static _Atomic uint64_t draws;

static int broken(const char *name)
{
    const char *const told = getenv("PLAYED_CUDA_BROKEN");
    return told && !strcmp(told, name);
}

static uint64_t number(const char *name) { return getenv(name) ? strtoull(getenv(name), NULL, 10) : 0; }

static uint64_t drawn(void)
{
    uint64_t z = (number("PLAYED_CUDA_SEED") + atomic_fetch_add(&draws, 1)) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 31;
}

static void serve(const struct op *op)
{
    struct optcc_gpu_twin *twin;
    const uint64_t late_us = number("PLAYED_CUDA_LATE_US");
    if (late_us)
        usleep((useconds_t)(drawn() % late_us));
    while (getenv("PLAYED_CUDA_NEVER") && atomic_load((_Atomic uint64_t *)op->over) != op->life)
        usleep(100);
    if (optcc_gpu_twin_life(op->memory, op->blocks, op->type, op->life, drawn(), &twin) != OPTCC_OK)
        abort();
    while (optcc_gpu_twin_step(twin, 64))
        usleep(drawn() % 8 ? 1 : 100);
    optcc_gpu_twin_close(twin);
}

static void *run(void *self)
{
    struct stream *s = self;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->first && !s->ends)
            pthread_cond_wait(&s->given, &s->lock);
        struct op *op = s->first;
        if (op && !(s->first = op->next))
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        if (!op)
            return NULL;
        switch (op->what) {
        case WAIT:
            while (atomic_load(&op->event->reached) < op->until)
                usleep(20);
            break;
        case RECORD:
            atomic_store(&op->event->reached, op->until);
            break;
        case SERVE:
            serve(op);
            break;
        case TELL:
            atomic_store((_Atomic uint64_t *)op->over, op->life);
            break;
        default:
            while (!atomic_load(op->flag))
                usleep(20);
            free((void *)op->flag);
        }
        free(op);
    }
}

static void push(struct stream *s, struct op given)
{
    struct op *op = malloc(sizeof *op);
    *op = given;
    pthread_mutex_lock(&s->lock);
    *s->last = op;
    s->last = &op->next;
    pthread_cond_signal(&s->given);
    pthread_mutex_unlock(&s->lock);
}

/* ---- for the program that plays NCCL --------------------------------------------------------------------------------- */

#define SHOWN __attribute__((visibility("default")))
SHOWN void played_kernel(struct stream *s, _Atomic int *flag) { push(s, (struct op){.what = LAST, .flag = flag}); }
SHOWN void played_capture(struct stream *s, int captured) { atomic_store(&s->captured, captured); }

/* ---- libcuda ----------------------------------------------------------------------------------------------------------- */

SHOWN int cuCtxGetCurrent(void **context)
{
    static char one;
    *context = broken(__func__) ? NULL : &one;
    return 0;
}
SHOWN int cuCtxGetDevice(int *device) { return *device = 0, 0; }
SHOWN int cuCtxPushCurrent_v2(void *context) { return !context; }
SHOWN int cuCtxPopCurrent_v2(void **context) { return *context = NULL, 0; }
SHOWN int cuCtxGetStreamPriorityRange(int *least, int *most) { return *least = 0, *most = -5, 0; }
SHOWN int cuDeviceGetAttribute(int *value, int what, int device) { return *value = what == 75 ? 9 : device, 0; }

SHOWN int cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    (void)flags;
    if (broken(__func__) || posix_memalign(at, 4096, bytes))
        return FAILED;
    pthread_mutex_lock(&lock);
    const int i = atomic_fetch_add(&buffers, 1);
    if (i >= MOST_BUFFERS)
        abort();
    buffer[i].at = *at, buffer[i].bytes = bytes;
    pthread_mutex_unlock(&lock);
    return 0;
}

SHOWN int cuMemFreeHost(void *at)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&buffers); i++)
        if (buffer[i].at == at) {
            memset(at, 0xdd, buffer[i].bytes);
            buffer[i].at = NULL;
            free(at);
            pthread_mutex_unlock(&lock);
            return 0;
        }
    pthread_mutex_unlock(&lock);
    fprintf(stderr, "played CUDA: memory that is none is freed\n");
    abort();
}

SHOWN int cuMemHostGetDevicePointer_v2(uint64_t *there, void *here, unsigned flags)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&buffers); i++)
        found |= buffer[i].at && (char *)here >= buffer[i].at && (char *)here < buffer[i].at + buffer[i].bytes;
    pthread_mutex_unlock(&lock);
    *there = (uintptr_t)here;
    return flags || !found;
}

SHOWN int cuStreamCreateWithPriority(struct stream **made, unsigned flags, int priority)
{
    struct stream *s = calloc(1, sizeof *s);
    (void)flags, (void)priority;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->given, NULL);
    s->last = &s->first;
    *made = s;
    return pthread_create(&s->thread, NULL, run, s);
}

SHOWN int cuStreamDestroy_v2(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->ends = 1;
    pthread_cond_signal(&s->given);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free(s);
    return 0;
}

SHOWN int cuStreamIsCapturing(struct stream *s, int *captured) { return *captured = atomic_load(&s->captured), 0; }
SHOWN int cuEventCreate(struct event **made, unsigned flags)
{
    (void)flags;
    return !(*made = calloc(1, sizeof **made));
}
SHOWN int cuEventDestroy_v2(struct event *event) { return free(event), 0; }

SHOWN int cuEventRecord(struct event *event, struct stream *s)
{
    push(s, (struct op){.what = RECORD, .event = event, .until = atomic_fetch_add(&event->recorded, 1) + 1});
    return 0;
}

SHOWN int cuStreamWaitEvent(struct stream *s, struct event *event, unsigned flags)
{
    (void)flags;
    push(s, (struct op){.what = WAIT, .event = event, .until = atomic_load(&event->recorded)});
    return 0;
}

SHOWN int cuModuleLoadData(void **module, const void *cubin)
{
    if (broken(__func__))
        return FAILED;
    *module = calloc(2, sizeof(struct function));
    ((struct function *)*module)[0] = (struct function){SERVE, (enum optcc_type)atoi(cubin)};
    ((struct function *)*module)[1] = (struct function){.what = TELL};
    return 0;
}
SHOWN int cuModuleUnload(void *module) { return free(module), 0; }

SHOWN int cuModuleGetFunction(void **found, void *module, const char *name)
{
    *found = (struct function *)module + !strcmp(name, "tell_over");
    return strcmp(name, "tell_over") && strcmp(name, "serve_life");
}

SHOWN int cuLaunchKernel(struct function *f, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty,
                         unsigned tz, unsigned shared, struct stream *s, void **with, void **more)
{
    (void)y, (void)z, (void)threads, (void)ty, (void)tz, (void)shared, (void)more;
    if (broken(f->what == SERVE ? "serve_life" : "tell_over"))
        return FAILED;
    if (f->what == TELL)
        push(s, (struct op){.what = TELL, .over = *(void **)with[0], .life = *(uint64_t *)with[1]});
    else
        push(s, (struct op){.what = SERVE, .memory = *(void **)with[2], .over = *(void **)with[4],
                            .life = *(uint64_t *)with[5], .blocks = blocks, .type = f->type});
    return 0;
}

/* ---- NVRTC: a cubin is the number of a type ---------------------------------------------------------------------------- */

SHOWN int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *texts,
                             const char *const *names)
{
    (void)name, (void)headers, (void)texts, (void)names;
    *program = calloc(1, 16);
    return !strstr(source, "serve_life");
}

SHOWN int nvrtcCompileProgram(void *program, int options, const char *const *option)
{
    static const char *const names[OPTCC_TYPES] = {"int8",  "uint8", "int16",   "uint16",   "int32",   "uint32",
                                                   "int64", "uint64", "float16", "bfloat16", "float32", "float64"};
    if (broken(__func__))
        return FAILED;
    for (int i = 0; i < options; i++)
        for (int type = 0; type < OPTCC_TYPES; type++)
            if (!strncmp(option[i], "-DTYPE_", 7) && !strcmp(option[i] + 7, names[type]))
                return snprintf(program, 16, "%d", type), 0;
    return FAILED;
}
SHOWN int nvrtcGetCUBINSize(void *program, size_t *size) { return *size = strlen(program) + 1, 0; }
SHOWN int nvrtcGetCUBIN(void *program, char *cubin) { return strcpy(cubin, program), 0; }
SHOWN int nvrtcDestroyProgram(void **program) { return free(*program), 0; }
