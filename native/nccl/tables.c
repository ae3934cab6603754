/* The tables that NCCL looks for by name: one for each version of the interface, all leading to net.c.
 *
 * A function that is not there is NULL where NCCL allows that: device offload, DMA-BUF and merged devices. */
#define _GNU_SOURCE
#include "net.h"

#include <string.h>

/* As NCCL's headers have them on 64-bit machines. */
_Static_assert(sizeof(struct nccl_properties_v8) == 64 && sizeof(struct nccl_properties_v9) == 104 &&
               sizeof(struct nccl_properties_v11) == 112 && sizeof(struct nccl_properties_v12) == 128, "as NCCL's");
_Static_assert(sizeof(struct nccl_collective_v8) == 136 && sizeof(struct nccl_collective_v9) == 144 &&
               sizeof(struct nccl_collective_v11) == 152 && sizeof(struct nccl_collective_v12) == 152 &&
               sizeof(struct nccl_part) == 24 && sizeof(struct nccl_part_v8) == 24 &&
               sizeof(struct nccl_tuner_v4) == 32 && sizeof(struct nccl_tuner_v5) == 32 &&
               sizeof(struct nccl_profiler_v5) == 48 && offsetof(struct nccl_event_v5, group) == 24, "as NCCL's");
_Static_assert(sizeof(struct nccl_net_v8) == 152 && sizeof(struct nccl_net_v9) == 160 &&
               sizeof(struct nccl_net_v10) == 160 && sizeof(struct nccl_net_v11) == 176 &&
               sizeof(struct nccl_net_v12) == 176, "as NCCL's");

enum { MOST_GROUPED = 1 }; /* receives in one request: see most_grouped_receives */

#define NAME "optcc"

/* ---- properties -------------------------------------------------------------------------------------------------- */

static nccl_result_t properties_v8(int device, struct nccl_properties_v8 *p)
{
    struct nccl_properties_v12 all;
    const nccl_result_t result = net_properties(device, &all);
    if (result == NCCL_SUCCESS)
        *p = (struct nccl_properties_v8){
            .name = all.name, .pci_path = all.pci_path, .guid = all.guid, .pointers = all.pointers,
            .registration_is_global = all.registration_is_global, .speed_mbps = all.speed_mbps, .port = all.port,
            .latency_us = all.latency_us, .most_connections = all.most_connections,
            .most_grouped_receives = all.most_grouped_receives, .device_type = all.device_type,
            .device_version = all.device_version};
    return result;
}

static nccl_result_t properties_v11(int device, struct nccl_properties_v11 *p)
{
    struct nccl_properties_v12 all;
    const nccl_result_t result = net_properties(device, &all);
    if (result == NCCL_SUCCESS)
        *p = (struct nccl_properties_v11){
            .name = all.name, .pci_path = all.pci_path, .guid = all.guid, .pointers = all.pointers,
            .registration_is_global = all.registration_is_global, .force_flush = all.force_flush,
            .speed_mbps = all.speed_mbps, .port = all.port, .latency_us = all.latency_us,
            .most_connections = all.most_connections, .most_grouped_receives = all.most_grouped_receives,
            .device_type = all.device_type, .device_version = all.device_version,
            .merged = {.count = 1, .devices = {device}}, .most_p2p_bytes = all.most_p2p_bytes,
            .most_collective_bytes = all.most_collective_bytes, .most_requests_at_once = all.most_requests_at_once};
    return result;
}

static nccl_result_t properties_v9(int device, struct nccl_properties_v9 *p)
{
    struct nccl_properties_v11 newer;
    const nccl_result_t result = properties_v11(device, &newer);
    if (result == NCCL_SUCCESS)
        memcpy(p, &newer, sizeof *p); /* version 11 has one field more, at the end */
    return result;
}
_Static_assert(offsetof(struct nccl_properties_v11, most_requests_at_once) == sizeof(struct nccl_properties_v9), "see above");

/* ---- calls that differ -------------------------------------------------------------------------------------------- */

static nccl_result_t init_v10(nccl_logger_t log, nccl_profiler_t *profiler)
{
    (void)profiler;
    return net_init(log);
}

/* The same of every communicator: no call needs to know which. */
static nccl_result_t init_v11(void **context, uint64_t communicator, void *config, nccl_logger_t log,
                              nccl_profiler_t *profiler)
{
    static char any;
    (void)communicator, (void)config, (void)profiler;
    *context = &any;
    return net_init(log);
}

static nccl_result_t finalize(void *context)
{
    (void)context;
    return net_finalize();
}

static nccl_result_t listen_v11(void *context, int device, void *handle, void **listener)
{
    (void)context;
    return net_listen(device, handle, listener);
}

static nccl_result_t connect_v8(int device, void *handle, void **connection, void **offload)
{
    (void)offload; /* NCCL's wish for device offload, which it has only where properties promise it */
    return net_connect(device, handle, connection);
}

static nccl_result_t connect_v10(int device, void *config, void *handle, void **connection, void **offload)
{
    (void)config, (void)offload;
    return net_connect(device, handle, connection);
}

static nccl_result_t connect_v11(void *context, int device, void *handle, void **connection, void **offload)
{
    (void)context, (void)offload;
    return net_connect(device, handle, connection);
}

static nccl_result_t accept_any(void *listener, void **connection, void **offload)
{
    (void)offload;
    return net_accept(listener, connection);
}

static nccl_result_t isend_v8(void *connection, void *data, int size, int tag, void *region, void **request)
{
    (void)tag, (void)region;
    return size < 0 ? NCCL_INVALID_ARGUMENT : net_send(connection, data, (size_t)size, request);
}

static nccl_result_t isend_v9(void *connection, void *data, size_t size, int tag, void *region, void **request)
{
    (void)tag, (void)region;
    return net_send(connection, data, size, request);
}

static nccl_result_t isend_v10(void *connection, void *data, size_t size, int tag, void *region, void *parent,
                               void **request)
{
    (void)tag, (void)region, (void)parent;
    return net_send(connection, data, size, request);
}

static nccl_result_t irecv_v8(void *connection, int n, void **data, int *sizes, int *tags, void **regions, void **request)
{
    size_t wide[MOST_GROUPED];
    (void)tags, (void)regions;
    if (n != MOST_GROUPED || sizes[0] < 0)
        return NCCL_INVALID_ARGUMENT;
    wide[0] = (size_t)sizes[0];
    return net_receive(connection, n, data, wide, request);
}

static nccl_result_t irecv_v9(void *connection, int n, void **data, size_t *sizes, int *tags, void **regions,
                              void **request)
{
    (void)tags, (void)regions;
    return net_receive(connection, n, data, sizes, request);
}

static nccl_result_t irecv_v10(void *connection, int n, void **data, size_t *sizes, int *tags, void **regions,
                               void **parents, void **request)
{
    (void)tags, (void)regions, (void)parents;
    return net_receive(connection, n, data, sizes, request);
}

static nccl_result_t flush_any(void *connection, int n, void **data, int *sizes, void **regions, void **request)
{
    (void)connection, (void)n, (void)data, (void)sizes, (void)regions;
    return net_flush(request);
}

static nccl_result_t listen_v8(int device, void *handle, void **listener) { return net_listen(device, handle, listener); }

/* ---- CollNet ------------------------------------------------------------------------------------------------------- */

/* Its context is the communicator's number, by which its groups find what the profiler's side knows. */
static nccl_result_t init_collective_v11(void **context, uint64_t communicator, nccl_logger_t log)
{
    *context = (void *)(uintptr_t)communicator;
    return net_init(log);
}

static nccl_result_t listen_collective_v11(void *context, int device, void *handle, void **listener)
{
    return net_listen_for((uintptr_t)context, device, handle, listener);
}

static nccl_result_t connect_group(void *handles[], int nodes, int rank, void *listener, void **group)
{
    return group_connect(handles, nodes, rank, listener, group);
}

static nccl_result_t iallreduce_v8(void *group, void *from, void *to, int count, int type, int op, void *from_region,
                                   void *to_region, void **request)
{
    (void)from_region, (void)to_region;
    return count < 0 ? NCCL_INVALID_ARGUMENT : group_allreduce(group, from, to, (size_t)count, type, op, request);
}

static nccl_result_t iallreduce_v9(void *group, void *from, void *to, size_t count, int type, int op, void *from_region,
                                   void *to_region, void **request)
{
    (void)from_region, (void)to_region;
    return group_allreduce(group, from, to, count, type, op, request);
}

static nccl_result_t iallgather_v9(void *group, void *from, int parts, struct nccl_part *to, size_t node_bytes,
                                   size_t window_offset, size_t window_bytes, void *from_region, void **request)
{
    (void)from_region;
    return parts != 1 ? NCCL_INVALID_ARGUMENT
                      : group_allgather(group, from, to, node_bytes, window_offset, window_bytes, request);
}

static nccl_result_t iallgather_v8(void *group, void *from, int parts, struct nccl_part_v8 *to, size_t node_bytes,
                                   size_t window_offset, size_t window_bytes, void *from_region, void **request)
{
    struct nccl_part part = {.address = to->address, .size = to->size};
    return iallgather_v9(group, from, parts, &part, node_bytes, window_offset, window_bytes, from_region, request);
}

static nccl_result_t ireducescatter_v9(void *group, int parts, struct nccl_part *from, void *to, size_t node_bytes,
                                       size_t window_offset, size_t window_bytes, int type, int op, void *to_region,
                                       void **request)
{
    (void)to_region;
    return parts != 1 ? NCCL_INVALID_ARGUMENT
                      : group_reduce_scatter(group, from, to, node_bytes, window_offset, window_bytes, type, op, request);
}

static nccl_result_t ireducescatter_v8(void *group, int parts, struct nccl_part_v8 *from, void *to, size_t node_bytes,
                                       size_t window_offset, size_t window_bytes, int type, int op, void *to_region,
                                       void **request)
{
    struct nccl_part part = {.address = from->address, .size = from->size};
    return ireducescatter_v9(group, parts, &part, to, node_bytes, window_offset, window_bytes, type, op, to_region,
                             request);
}

static nccl_result_t flush_group(void *group, void *data, int size, void *region, void **request)
{
    (void)group, (void)data, (void)size, (void)region;
    return net_flush(request);
}

/* ---- the tuner ----------------------------------------------------------------------------------------------------- */

static nccl_result_t tuner_init_v4(size_t ranks, size_t nodes, nccl_logger_t log, void **context)
{
    (void)ranks;
    return tuner_init(nodes, log, context);
}

static nccl_result_t tuner_init_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger_t log,
                                   void *domains, void *constants)
{
    (void)communicator, (void)ranks, (void)domains, (void)constants;
    return tuner_init(nodes, log, context);
}

/* ---- the profiler, by which we hear of launches ---------------------------------------------------------------------- */

static nccl_result_t profiler_init(void **context, uint64_t communicator, int *mask, const char *called, int nodes,
                                   int all_ranks, int rank, nccl_logger_t log)
{
    (void)called, (void)all_ranks, (void)rank, (void)log;
    return hook_init(context, communicator, mask, nodes);
}

static nccl_result_t profiler_state(void *handle, int state, void *arguments)
{
    (void)handle, (void)state, (void)arguments;
    return NCCL_SUCCESS;
}

/* ---- the tables --------------------------------------------------------------------------------------------------- */

#define SHOWN __attribute__((visibility("default")))
#define ALIKE                                                                                                           \
    .name = NAME, .devices = net_devices, .accept = accept_any, .register_memory = net_register,                       \
    .deregister = net_deregister, .flush = flush_any, .test = net_test, .close_send = net_close,                       \
    .close_receive = net_close, .close_listen = net_close_listen

extern const struct nccl_net_v8 ncclNetPlugin_v8;
extern const struct nccl_net_v9 ncclNetPlugin_v9;
extern const struct nccl_net_v10 ncclNetPlugin_v10;
extern const struct nccl_net_v11 ncclNetPlugin_v11;
extern const struct nccl_net_v12 ncclNetPlugin_v12;

SHOWN const struct nccl_net_v8 ncclNetPlugin_v8 = {ALIKE, .init = net_init, .properties = properties_v8,
                                                   .listen = listen_v8, .connect = connect_v8, .isend = isend_v8,
                                                   .irecv = irecv_v8};
SHOWN const struct nccl_net_v9 ncclNetPlugin_v9 = {ALIKE, .init = net_init, .properties = properties_v9,
                                                   .listen = listen_v8, .connect = connect_v8, .isend = isend_v9,
                                                   .irecv = irecv_v9};
SHOWN const struct nccl_net_v10 ncclNetPlugin_v10 = {ALIKE, .init = init_v10, .properties = properties_v9,
                                                     .listen = listen_v8, .connect = connect_v10, .isend = isend_v10,
                                                     .irecv = irecv_v10};
SHOWN const struct nccl_net_v11 ncclNetPlugin_v11 = {ALIKE, .init = init_v11, .properties = properties_v11,
                                                     .listen = listen_v11, .connect = connect_v11, .isend = isend_v10,
                                                     .irecv = irecv_v10, .finalize = finalize};
SHOWN const struct nccl_net_v12 ncclNetPlugin_v12 = {ALIKE, .init = init_v11, .properties = net_properties,
                                                     .listen = listen_v11, .connect = connect_v11, .isend = isend_v10,
                                                     .irecv = irecv_v10, .finalize = finalize};

#define ALIKE_COLLECTIVE                                                                                               \
    .name = NAME, .devices = net_devices, .connect = connect_group, .reduces = group_reduces,                          \
    .register_memory = group_register, .deregister = group_deregister, .flush = flush_group, .test = net_test,             \
    .close_group = group_close, .close_listen = net_close_listen
#define SINCE_9 .iallreduce = iallreduce_v9, .iallgather = iallgather_v9, .ireducescatter = ireducescatter_v9

extern const struct nccl_collective_v8 ncclCollNetPlugin_v8;
extern const struct nccl_collective_v9 ncclCollNetPlugin_v9, ncclCollNetPlugin_v10;
extern const struct nccl_collective_v11 ncclCollNetPlugin_v11;
extern const struct nccl_collective_v12 ncclCollNetPlugin_v12;

SHOWN const struct nccl_collective_v8 ncclCollNetPlugin_v8 = {
    ALIKE_COLLECTIVE, .init = net_init, .properties = properties_v8, .listen = listen_v8, .iallreduce = iallreduce_v8,
    .iallgather = iallgather_v8, .ireducescatter = ireducescatter_v8};
SHOWN const struct nccl_collective_v9 ncclCollNetPlugin_v9 = {
    ALIKE_COLLECTIVE, SINCE_9, .init = net_init, .properties = properties_v9, .listen = listen_v8};
SHOWN const struct nccl_collective_v9 ncclCollNetPlugin_v10 = {
    ALIKE_COLLECTIVE, SINCE_9, .init = net_init, .properties = properties_v9, .listen = listen_v8};
SHOWN const struct nccl_collective_v11 ncclCollNetPlugin_v11 = {
    ALIKE_COLLECTIVE, SINCE_9, .init = init_collective_v11, .properties = properties_v11,
    .listen = listen_collective_v11, .finalize = finalize};
SHOWN const struct nccl_collective_v12 ncclCollNetPlugin_v12 = {
    ALIKE_COLLECTIVE, SINCE_9, .init = init_collective_v11, .properties = net_properties,
    .listen = listen_collective_v11, .finalize = finalize};

extern const struct nccl_tuner_v4 ncclTunerPlugin_v4;
extern const struct nccl_tuner_v5 ncclTunerPlugin_v5;

SHOWN const struct nccl_tuner_v4 ncclTunerPlugin_v4 = {
    .name = NAME, .init = tuner_init_v4, .tune = tuner_tune, .destroy = tuner_end};
SHOWN const struct nccl_tuner_v5 ncclTunerPlugin_v5 = {
    .name = NAME, .init = tuner_init_v5, .tune = tuner_tune, .finalize = tuner_end};

extern const struct nccl_profiler_v5 ncclProfiler_v5;

SHOWN const struct nccl_profiler_v5 ncclProfiler_v5 = {
    .name = NAME, .init = profiler_init, .start = hook_start, .stop = hook_stop, .state = profiler_state,
    .finalize = hook_end};
