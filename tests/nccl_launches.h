/* NCCL's launches, as the harness plays them where HARNESS_LAUNCHES is set: `all`, or `odd`: some are not told of, some
 * are told of late, some are captured for a graph, some end before their calls have. CUDA is tests/played_cuda.c.
 *
 * A launch is for a batch of calls of one group, each of which is a communicator of its own. */
#ifndef NCCL_LAUNCHES_H
#define NCCL_LAUNCHES_H

#include "nccl/tables.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 4, MOST_BATCHES = 4096, COMMUNICATOR = 100 };
enum launched { PLAIN, UNTOLD, TOLD_LATE, CAPTURED, ENDS_EARLY, KINDS };

struct launches { /* of a communicator */
    void *context, *stream;
    _Atomic int *flag[MOST_BATCHES]; /* NCCL's kernel ends when it is set; NULL: it was */
};

static struct {
    const struct nccl_profiler_v5 *table;
    void (*kernel)(void *stream, _Atomic int *flag), (*capture)(void *stream, int captured);
    int (*alloc)(void **at, size_t bytes, unsigned flags), (*release)(void *at), (*stream)(void **made, unsigned, int);
    int odd;
} gpu;

static void launches_load(void *plugin)
{
    const char *const how = getenv("HARNESS_LAUNCHES");
    void *const cuda = how ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!how)
        return;
    gpu.odd = !strcmp(how, "odd");
    gpu.table = dlsym(plugin, "ncclProfiler_v5");
    if (!gpu.table)
        abort();
    if (!cuda)
        return; /* a machine without one */
    *(void **)(void *)&gpu.kernel = dlsym(cuda, "played_kernel");
    *(void **)(void *)&gpu.capture = dlsym(cuda, "played_capture");
    *(void **)(void *)&gpu.alloc = dlsym(cuda, "cuMemHostAlloc");
    *(void **)(void *)&gpu.release = dlsym(cuda, "cuMemFreeHost");
    *(void **)(void *)&gpu.stream = dlsym(cuda, "cuStreamCreateWithPriority");
}

/* As NCCL's buffers are: page-locked where there is a GPU. */
static void *buffer_of(size_t bytes)
{
    void *at = NULL;
    if (!gpu.alloc)
        return malloc(bytes);
    return gpu.alloc(&at, bytes, 0) ? abort(), NULL : at;
}

static void buffer_free(void *at)
{
    if (gpu.alloc)
        gpu.release(at);
    else
        free(at);
}

static void launches_open(struct launches *l, int number, int nodes, nccl_logger_t log)
{
    int mask = 0;
    memset(l, 0, sizeof *l);
    if (!gpu.table)
        return;
    if (gpu.table->init(&l->context, (uint64_t)(COMMUNICATOR + number), &mask, "", nodes, nodes, 0, log) != NCCL_SUCCESS)
        abort();
    if (gpu.stream && gpu.stream(&l->stream, 1, 0))
        abort();
}

static void launches_close(struct launches *l)
{
    for (int i = 0; i < MOST_BATCHES; i++)
        if (l->flag[i])
            atomic_store(l->flag[i], 1);
    if (gpu.table)
        gpu.table->finalize(l->context);
}

static void launch(struct launches *l, uint64_t batch, enum launched how, const char *type)
{
    const int captured = how == CAPTURED;
    void *group = NULL, *call = NULL, *kernel = NULL;
    struct nccl_event_v5 event = {.type = NCCL_EVENT_GROUP, .group = {.captured = captured}};
    gpu.capture(l->stream, captured);
    gpu.table->start(l->context, &group, &event);
    event = (struct nccl_event_v5){.type = NCCL_EVENT_CALL, .parent = group,
                                   .call = {.function = "AllReduce", .count = 1 << 20, .type = type, .stream = l->stream,
                                            .captured = captured}};
    gpu.table->start(l->context, &call, &event);
    event = (struct nccl_event_v5){.type = NCCL_EVENT_LAUNCH, .parent = group, .launch = {.stream = l->stream}};
    gpu.table->start(l->context, &kernel, &event);
    _Atomic int *const flag = calloc(1, sizeof *flag);
    l->flag[batch] = flag;
    gpu.kernel(l->stream, flag);
    if (kernel)
        gpu.table->stop(kernel);
    if (group)
        gpu.table->stop(group);
}

static enum launched how_launched(uint64_t random)
{
    return gpu.odd && random % 2 ? (enum launched)(random / 2 % KINDS) : PLAIN;
}

/* Before call `number` is made (`made`: after it), of a batch whose first AllReduce has this type. */
static void launches_at(struct launches *l, uint64_t number, int made, uint64_t random, const char *type)
{
    const uint64_t batch = number / BATCH;
    const enum launched how = how_launched(random);
    if (!gpu.kernel || number % BATCH || batch >= MOST_BATCHES)
        return;
    if (how != UNTOLD && made == (how == TOLD_LATE))
        launch(l, batch, how, type);
    if (made && how == ENDS_EARLY) {
        atomic_store(l->flag[batch], 1);
        l->flag[batch] = NULL;
    }
}

/* So many calls have ended. */
static void launches_ended(struct launches *l, uint64_t done)
{
    const uint64_t batch = (done - 1) / BATCH;
    if (done % BATCH == 0 && batch < MOST_BATCHES && l->flag[batch]) {
        atomic_store(l->flag[batch], 1);
        l->flag[batch] = NULL;
    }
}

#endif
