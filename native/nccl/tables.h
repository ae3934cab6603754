/* NCCL's interface to network plugins, versions 8 to 12, to tuners, versions 4 and 5, and to profilers, version 5,
 * declared anew: the types that cross it, in the order and with the widths that NCCL has. Facts from NCCL's public headers and its page on plugins
 * (src/include/plugin/net/net_v8.h to net_v12.h, src/include/plugin/tuner/tuner_v4.h and tuner_v5.h,
 * src/include/plugin/nccl_profiler.h and profiler/profiler_v5.h, and plugins/net/README.md of github.com/NVIDIA/nccl,
 * 2.30.7).
 *
 * Which NCCL reads which: 2.20 to 2.23 version 8, 2.24 also 9, 2.26 also 10, 2.28 also 11, 2.30 also 12. The newest that
 * a library has is taken.
 */
#ifndef OPTCC_NCCL_TABLES_H
#define OPTCC_NCCL_TABLES_H

#include <stddef.h>
#include <stdint.h>

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6
};
typedef int nccl_result_t; /* an enum of C, which is an int */

enum nccl_log { NCCL_WARNING = 2, NCCL_TOLD = 3 };
enum nccl_subsystem { NCCL_OF_INIT = 1, NCCL_OF_NET = 16 };
#define NCCL_OF_ALL (~0UL)
typedef void (*nccl_logger_t)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

enum nccl_limit {
    NCCL_HANDLE_BYTES = 128,
    NCCL_MAX_REQUESTS = 32, /* of a connection; it was 8 up to 2.2x */
    NCCL_PTR_HOST = 1,
    NCCL_UNDEFINED_ID = -1,
    NCCL_MOST_DEVICES_V11 = 4, /* merged into one */
    NCCL_MOST_DEVICES_V12 = 8
};

enum nccl_type { /* of elements; those that follow (fp8) are not reduced here */
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64, NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64,
    NCCL_BFLOAT16, NCCL_TYPES
};

enum nccl_op { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_OPS }; /* an average comes as a sum of scaled numbers */

struct nccl_merged_v9 {
    int count;
    int devices[NCCL_MOST_DEVICES_V11];
};

struct nccl_merged_v12 {
    int count;
    int devices[NCCL_MOST_DEVICES_V12];
};

struct nccl_properties_v8 {
    char *name, *pci_path;
    uint64_t guid;
    int pointers, registration_is_global;
    int speed_mbps, port;
    float latency_us;
    int most_connections, most_grouped_receives;
    int device_type, device_version; /* of offload; 0: none */
};

struct nccl_properties_v9 { /* and version 10 */
    char *name, *pci_path;
    uint64_t guid;
    int pointers, registration_is_global, force_flush;
    int speed_mbps, port;
    float latency_us;
    int most_connections, most_grouped_receives;
    int device_type, device_version;
    struct nccl_merged_v9 merged;
    size_t most_p2p_bytes, most_collective_bytes;
};

struct nccl_properties_v11 {
    char *name, *pci_path;
    uint64_t guid;
    int pointers, registration_is_global, force_flush;
    int speed_mbps, port;
    float latency_us;
    int most_connections, most_grouped_receives;
    int device_type, device_version;
    struct nccl_merged_v9 merged;
    size_t most_p2p_bytes, most_collective_bytes;
    int most_requests_at_once;
};

struct nccl_properties_v12 {
    char *name, *pci_path;
    uint64_t guid;
    int pointers, registration_is_global, force_flush;
    int speed_mbps, port;
    float latency_us;
    int most_connections, most_grouped_receives;
    int device_type, device_version;
    struct nccl_merged_v12 merged;
    size_t most_p2p_bytes, most_collective_bytes;
    int most_requests_at_once;
    int16_t rail, plane;
};

/* What all versions have alike, from `accept` on; `isend` and `irecv` differ. */
typedef nccl_result_t nccl_accept_t(void *listener, void **connection, void **offload);
typedef nccl_result_t nccl_register_t(void *connection, void *data, size_t size, int type, void **region);
typedef nccl_result_t nccl_register_dmabuf_t(void *connection, void *data, size_t size, int type, uint64_t offset, int fd,
                                             void **region);
typedef nccl_result_t nccl_deregister_t(void *connection, void *region);
typedef nccl_result_t nccl_flush_t(void *connection, int n, void **data, int *sizes, void **regions, void **request);
typedef nccl_result_t nccl_test_t(void *request, int *done, int *sizes);
typedef nccl_result_t nccl_close_t(void *what);
typedef nccl_result_t nccl_device_region_t(void *connection, void *region, void **device_region);
typedef nccl_result_t nccl_consumed_t(void *connection, int n, void *request);
typedef nccl_result_t nccl_devices_t(int *count);

struct nccl_net_v8 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t log);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v8 *properties);
    nccl_result_t (*listen)(int device, void *handle, void **listener);
    nccl_result_t (*connect)(int device, void *handle, void **connection, void **offload);
    nccl_accept_t *accept;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_result_t (*isend)(void *connection, void *data, int size, int tag, void *region, void **request);
    nccl_result_t (*irecv)(void *connection, int n, void **data, int *sizes, int *tags, void **regions, void **request);
    nccl_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_send, *close_receive, *close_listen;
    nccl_device_region_t *device_region;
    nccl_consumed_t *consumed;
};

struct nccl_net_v9 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t log);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v9 *properties);
    nccl_result_t (*listen)(int device, void *handle, void **listener);
    nccl_result_t (*connect)(int device, void *handle, void **connection, void **offload);
    nccl_accept_t *accept;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_result_t (*isend)(void *connection, void *data, size_t size, int tag, void *region, void **request);
    nccl_result_t (*irecv)(void *connection, int n, void **data, size_t *sizes, int *tags, void **regions,
                           void **request);
    nccl_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_send, *close_receive, *close_listen;
    nccl_device_region_t *device_region;
    nccl_consumed_t *consumed;
    nccl_result_t (*merge_devices)(int *device, struct nccl_merged_v9 *merged);
};

typedef nccl_result_t nccl_profiler_t(void **event, int type, void *parent, int64_t plugin, void *data);

struct nccl_net_v10 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t log, nccl_profiler_t *profiler);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v9 *properties);
    nccl_result_t (*listen)(int device, void *handle, void **listener);
    nccl_result_t (*connect)(int device, void *config, void *handle, void **connection, void **offload);
    nccl_accept_t *accept;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_result_t (*isend)(void *connection, void *data, size_t size, int tag, void *region, void *parent,
                           void **request);
    nccl_result_t (*irecv)(void *connection, int n, void **data, size_t *sizes, int *tags, void **regions,
                           void **parents, void **request);
    nccl_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_send, *close_receive, *close_listen;
    nccl_device_region_t *device_region;
    nccl_consumed_t *consumed;
    nccl_result_t (*merge_devices)(int *device, struct nccl_merged_v9 *merged);
};

struct nccl_net_v11 {
    const char *name;
    nccl_result_t (*init)(void **context, uint64_t communicator, void *config, nccl_logger_t log,
                          nccl_profiler_t *profiler);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v11 *properties);
    nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);
    nccl_result_t (*connect)(void *context, int device, void *handle, void **connection, void **offload);
    nccl_accept_t *accept;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_result_t (*isend)(void *connection, void *data, size_t size, int tag, void *region, void *parent,
                           void **request);
    nccl_result_t (*irecv)(void *connection, int n, void **data, size_t *sizes, int *tags, void **regions,
                           void **parents, void **request);
    nccl_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_send, *close_receive, *close_listen;
    nccl_device_region_t *device_region;
    nccl_consumed_t *consumed;
    nccl_result_t (*merge_devices)(int *device, struct nccl_merged_v9 *merged);
    nccl_result_t (*finalize)(void *context);
    nccl_result_t (*set_attributes)(void *context, void *attributes);
};

struct nccl_net_v12 {
    const char *name;
    nccl_result_t (*init)(void **context, uint64_t communicator, void *config, nccl_logger_t log,
                          nccl_profiler_t *profiler);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v12 *properties);
    nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);
    nccl_result_t (*connect)(void *context, int device, void *handle, void **connection, void **offload);
    nccl_accept_t *accept;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_result_t (*isend)(void *connection, void *data, size_t size, int tag, void *region, void *parent,
                           void **request);
    nccl_result_t (*irecv)(void *connection, int n, void **data, size_t *sizes, int *tags, void **regions,
                           void **parents, void **request);
    nccl_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_send, *close_receive, *close_listen;
    nccl_device_region_t *device_region;
    nccl_consumed_t *consumed;
    nccl_result_t (*merge_devices)(int *device, struct nccl_merged_v12 *merged);
    nccl_result_t (*finalize)(void *context);
    nccl_result_t (*set_attributes)(void *context, void *attributes);
};

/* ---- collective networks ------------------------------------------------------------------------------------------ */

struct nccl_part { /* memory of iallgather and ireducescatter */
    void *region, *address;
    size_t size;
};

struct nccl_part_v8 {
    void *region, *address;
    uint32_t size;
};

typedef nccl_result_t nccl_group_t(void *handles[], int nodes, int rank, void *listener, void **group);
typedef nccl_result_t nccl_reduces_t(int type, int op, int *does);
typedef nccl_result_t nccl_allreduce_t(void *group, void *from, void *to, size_t count, int type, int op,
                                       void *from_region, void *to_region, void **request);
typedef nccl_result_t nccl_allgather_t(void *group, void *from, int parts, struct nccl_part *to, size_t node_bytes,
                                       size_t window_offset, size_t window_bytes, void *from_region, void **request);
typedef nccl_result_t nccl_reduce_scatter_t(void *group, int parts, struct nccl_part *from, void *to, size_t node_bytes,
                                            size_t window_offset, size_t window_bytes, int type, int op,
                                            void *to_region, void **request);
typedef nccl_result_t nccl_group_flush_t(void *group, void *data, int size, void *region, void **request);

struct nccl_collective_v8 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t log);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v8 *properties);
    nccl_result_t (*listen)(int device, void *handle, void **listener);
    nccl_group_t *connect;
    nccl_reduces_t *reduces;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_result_t (*iallreduce)(void *group, void *from, void *to, int count, int type, int op, void *from_region,
                                void *to_region, void **request);
    nccl_result_t (*iallgather)(void *group, void *from, int parts, struct nccl_part_v8 *to, size_t node_bytes,
                                size_t window_offset, size_t window_bytes, void *from_region, void **request);
    nccl_result_t (*ireducescatter)(void *group, int parts, struct nccl_part_v8 *from, void *to, size_t node_bytes,
                                    size_t window_offset, size_t window_bytes, int type, int op, void *to_region,
                                    void **request);
    nccl_group_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_group, *close_listen;
};

struct nccl_collective_v9 { /* and version 10 */
    const char *name;
    nccl_result_t (*init)(nccl_logger_t log);
    nccl_devices_t *devices;
    nccl_result_t (*properties)(int device, struct nccl_properties_v9 *properties);
    nccl_result_t (*listen)(int device, void *handle, void **listener);
    nccl_group_t *connect;
    nccl_reduces_t *reduces;
    nccl_register_t *register_memory;
    nccl_register_dmabuf_t *register_dmabuf;
    nccl_deregister_t *deregister;
    nccl_allreduce_t *iallreduce;
    nccl_allgather_t *iallgather;
    nccl_reduce_scatter_t *ireducescatter;
    nccl_group_flush_t *flush;
    nccl_test_t *test;
    nccl_close_t *close_group, *close_listen;
    nccl_result_t (*merge_devices)(int *device, struct nccl_merged_v9 *merged);
};

#define NCCL_COLLECTIVE_SINCE_11(PROPERTIES, MERGED)                                                                   \
    const char *name;                                                                                                  \
    nccl_result_t (*init)(void **context, uint64_t communicator, nccl_logger_t log);                                   \
    nccl_devices_t *devices;                                                                                           \
    nccl_result_t (*properties)(int device, struct PROPERTIES *properties);                                            \
    nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);                                 \
    nccl_group_t *connect;                                                                                             \
    nccl_reduces_t *reduces;                                                                                           \
    nccl_register_t *register_memory;                                                                                  \
    nccl_register_dmabuf_t *register_dmabuf;                                                                           \
    nccl_deregister_t *deregister;                                                                                     \
    nccl_allreduce_t *iallreduce;                                                                                      \
    nccl_allgather_t *iallgather;                                                                                      \
    nccl_reduce_scatter_t *ireducescatter;                                                                             \
    nccl_group_flush_t *flush;                                                                                         \
    nccl_test_t *test;                                                                                                 \
    nccl_close_t *close_group, *close_listen;                                                                          \
    nccl_result_t (*merge_devices)(int *device, struct MERGED *merged);                                                \
    nccl_result_t (*finalize)(void *context)

struct nccl_collective_v11 {
    NCCL_COLLECTIVE_SINCE_11(nccl_properties_v11, nccl_merged_v9);
};

struct nccl_collective_v12 {
    NCCL_COLLECTIVE_SINCE_11(nccl_properties_v12, nccl_merged_v12);
};

/* ---- tuners -------------------------------------------------------------------------------------------------------- */

enum nccl_function { NCCL_ALLREDUCE = 4 }; /* of the collectives, in NCCL's order */
enum nccl_algorithm { NCCL_COLLNET_DIRECT = 2, NCCL_COLLNET_CHAIN = 3, NCCL_NVLS = 4 };
enum nccl_protocol { NCCL_SIMPLE = 2 };
#define NCCL_IGNORED (-1.0f) /* in the table of costs: that cannot be */

/* costs : of algorithms x protocols, microseconds, in one piece; the least is taken */
typedef nccl_result_t nccl_tune_t(void *context, int function, size_t bytes, int operations, float **costs,
                                  int algorithms, int protocols, int registered, int *channels);

struct nccl_tuner_v4 {
    const char *name;
    nccl_result_t (*init)(size_t ranks, size_t nodes, nccl_logger_t log, void **context);
    nccl_tune_t *tune;
    nccl_result_t (*destroy)(void *context);
};

struct nccl_tuner_v5 {
    const char *name;
    nccl_result_t (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger_t log,
                          void *domains, void *constants);
    nccl_tune_t *tune;
    nccl_result_t (*finalize)(void *context);
};

/* ---- profilers ----------------------------------------------------------------------------------------------------- */

/* Which events are told of, a bit each. By the thread of the user's that launches: a group of calls begins; within it its
 * calls; a kernel is about to be launched (start), and was (stop). */
enum nccl_event { NCCL_EVENT_GROUP = 1 << 8, NCCL_EVENT_CALL = 1 << 9, NCCL_EVENT_LAUNCH = 1 << 11 };

struct nccl_event_v5 {
    uint64_t type;
    void *parent; /* of calls and launches: what `start` said of their group */
    int rank;
    union {
        struct {
            _Bool captured; /* for a CUDA graph */
            int depth;
        } group;
        struct {
            const char *function;
            size_t count;
            const char *type;
            int root;
            void *stream;
            _Bool captured;
        } call;
        struct {
            void *stream;
        } launch;
        uint64_t room[12]; /* as long as those of other events */
    };
};

struct nccl_profiler_v5 {
    const char *name;
    nccl_result_t (*init)(void **context, uint64_t communicator, int *mask, const char *called, int nodes, int ranks,
                          int rank, nccl_logger_t log);
    /* *handle stays NULL: nothing more is told of this event */
    nccl_result_t (*start)(void *context, void **handle, const struct nccl_event_v5 *event);
    nccl_result_t (*stop)(void *handle);
    nccl_result_t (*state)(void *handle, int state, void *arguments);
    nccl_result_t (*finalize)(void *context);
};

#endif
