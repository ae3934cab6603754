/* The plugin for NCCL: what its files share.
 *
 *   tables.c  the tables that NCCL looks for, each version's turned into the calls below
 *   net.c     connections and requests; the thread that moves everything
 *   link.c    two processes: how they meet, and the engine between them
 *   nics.c    which NICs there are
 *   groups.c  CollNet: the collectives of several processes, over connections of net.c
 *   plans.c   by which transfers: plans written beforehand, or a ring
 *   tuner.c   which collectives NCCL gives to CollNet
 *   gpu.c     sums on the GPU, by a kernel beside NCCL's
 *   report.c  what an operator sees: NICs that are lost and back, counters for Prometheus
 *
 * NCCL's threads never wait for a network: they leave requests and look whether these are done. One thread of the process
 * runs all engines; where it sleeps and NCCL's ask, these move the link that they wait for (net.c says when).
 */
#ifndef OPTCC_NCCL_NET_H
#define OPTCC_NCCL_NET_H

#include "../engine.h"
#include "tables.h"

#include <limits.h>
#include <stdatomic.h>

/* ---- nics.c ------------------------------------------------------------------------------------------------------ */

struct nic {
    char name[64]; /* of the interface, or the address that was given in its place */
    char pci_path[PATH_MAX]; /* empty: none */
    struct optcc_tcp_address address; /* of an interface */
    uint32_t port;                    /* of an RDMA device, `name`; 0: an interface */
    int32_t gid_index;                /* of it; -1: it goes by LID */
    uint32_t speed_mbps;
};

/* The NICs that OPTCC_NICS names, else those that NCCL's own sockets would take. Returns how many; 0: none, and `why`. */
uint32_t nics_find(struct nic nics[OPTCC_MAX_NICS], char *why, size_t room);
/* The ports of RDMA devices that have a link, and that NCCL_IB_HCA lets through: those of InfiniBand, or else those of
 * Ethernet. Likewise. */
uint32_t nics_find_rdma(struct nic nics[OPTCC_MAX_NICS], char *why, size_t room);

/* ---- what users set ----------------------------------------------------------------------------------------------- */

struct settings {
    uint32_t devices;       /* OPTCC_DEVICES: how many NCCL sees */
    uint32_t segment_bytes; /* OPTCC_SEGMENT_BYTES */
    uint32_t window_bytes;  /* OPTCC_WINDOW_BYTES */
    enum { BY_ANY, BY_RDMA, BY_TCP } wires; /* OPTCC_WIRES */
    enum { IF_DEGRADED, ALWAYS, NEVER } collnet; /* OPTCC_COLLNET */
    uint64_t collnet_bytes; /* OPTCC_COLLNET_BYTES: an AllReduce of fewer does not go by CollNet */
    uint32_t all_lanes;     /* OPTCC_LANES=all: from every NIC to every NIC; else NIC i to NIC i */
    uint64_t suspect_ns;    /* OPTCC_SUSPECT_MS */
    uint64_t return_ns;     /* OPTCC_RETURN_S: a process that does not answer by any NIC for so long is lost */
    uint64_t connect_ns;    /* OPTCC_CONNECT_S: a process that cannot be reached for so long is none */
    uint64_t spin_ns;       /* OPTCC_SPIN_US: the thread looks for so long before it sleeps */
    int gpu;                /* OPTCC_GPU: 0: off */
    const char *rates;      /* OPTCC_RATES: of the NICs, Gb/s, where the system does not know them; NULL: not said */
    const char *plans;      /* OPTCC_PLANS: a folder; NULL: none */
};

enum {
    MOST_NODES = 64,      /* of a group: a set of them is one word */
    MOST_SEGMENTS = 4096, /* of a message */
    MOST_STREAMS = 2048,  /* of one way between two processes */
    SECRET = 16,          /* bytes of a process' secret, which its handles carry */
    NONCE = 16,
    DOORS = 4,            /* addresses in a handle; whom one reaches by one of them tells the others */
    PEER_HOST = 64, PEER_NIC = 32 /* bytes of names that processes tell each other, for people */
};
static const uint64_t SECOND_NS = UINT64_C(1000000000), MILLISECOND_NS = 1000000;

static inline uint64_t clock_ns(void) { return optcc_now(NULL); }

/* Everything of this process that links need. */
enum way { WAY_TCP, WAY_INFINIBAND, WAY_ETHERNET }; /* sockets, or which kind of RDMA */
struct process {
    struct settings settings;
    enum way way;
    struct nic nic[OPTCC_MAX_NICS], meet[OPTCC_MAX_NICS]; /* what carries; interfaces by which processes meet */
    uint32_t nics, meets;
    struct optcc_device *device; /* of each NIC that is an RDMA device, for all links */
    uint64_t id;             /* random */
    char host[PEER_HOST];
    uint8_t secret[SECRET];  /* random; who has one of our handles knows it */
    int door[DOORS];         /* sockets where others meet us */
    struct optcc_tcp_address door_address[DOORS];
    uint32_t doors;
    struct plans *plans; /* NULL: none */
};

/* What NCCL carries from who listens to who connects. */
struct handle {
    uint32_t magic;
    uint8_t version, doors;
    uint8_t way, nics; /* enum way */
    uint64_t process, port;
    uint8_t secret[SECRET];
    struct {
        uint8_t family, unused;
        uint16_t port;
        uint8_t bytes[16];
    } door[DOORS];
};
_Static_assert(sizeof(struct handle) <= NCCL_HANDLE_BYTES, "NCCL gives no more room");

/* ---- link.c ------------------------------------------------------------------------------------------------------ */

enum link_is {
    LINK_MEETS, /* the two are about to know each other */
    LINK_OPEN,
    LINK_LOST   /* `why` */
};

struct link; /* of two processes: who connects to a port of the other, and the other */

/* Open the doors of this process; 0, or `why`. */
int doors_open(struct process *process, char *why, size_t room);
void doors_close(struct process *process);
/* The handle of a port. */
void handle_write(const struct process *process, uint64_t port, struct handle *handle);
/* Whether it may be one of ours, of this version; else `why`. */
int handle_read(const void *bytes, struct handle *handle, char *why, size_t room);

/* Somebody at a door: a link that meets, or NULL. */
struct link *link_at_door(struct process *process, uint32_t door);
/* A link to the process that made the handle. NULL: no memory. */
struct link *link_to(struct process *process, const struct handle *handle);
void link_close(struct link *link);

/* Do what can be done now; returns the time by which to be called again. `moved`: whether something has happened. */
uint64_t link_progress(struct link *link, int *moved);
enum link_is link_state(const struct link *link);
const char *link_why(const struct link *link);
uint64_t link_process(const struct link *link); /* id of the other one; 0: not known yet */
int link_is_ours(const struct link *link);      /* we made it: its streams go from here to there */
struct optcc_messages *link_messages(const struct link *link);
struct optcc_engine *link_engine(const struct link *link);
int link_fd(const struct link *link); /* -1: none; readable, once it is armed: link_progress has something to do */
int link_sent(const struct link *link);
int link_arm(struct link *link); /* before a sleep: 1: its descriptor tells; 0: call link_progress first */
int link_left(const struct link *link); /* it is lost since the other process has ended */
uint32_t link_wires(const struct link *link); /* that are not lost */
uint64_t link_flying(const struct link *link); /* bytes that wires have and that are not acknowledged */
/* A bit for each NIC of ours that has a wire; in `lost` for each that has none left. */
uint32_t link_nics(const struct link *link, uint32_t *lost);
/* Those of them that have none left since the last call, where another NIC has; and others have left these NICs: ask. */
uint32_t link_newly_lost(struct link *link);
void link_doubt(struct link *link, uint32_t nics);
/* Look at its wires, ten times a second; then `link_see` and `link_news` tell. */
void link_look(struct link *link);
struct wire_sight {
    uint32_t nic, far_nic;
    int lost;
    uint64_t acked_bytes; /* payload that it has carried */
    uint64_t full_bytes;  /* of it, in times between looks in which more waited than all wires took, two at least */
};
/* What its wires have done, and how many there are; `resent` grows by the segments that were sent again. */
uint32_t link_see(const struct link *link, struct wire_sight sight[OPTCC_MAX_LANES], uint64_t *resent);
/* Names of the other host, and of a NIC there. */
void link_far(const struct link *link, uint32_t far_nic, char host[PEER_HOST], char nic[PEER_NIC]);
/* A NIC of the peer that is lost or back while ours is not among `lost_here`, a bit each, in words: 1 or 0. */
int link_news(struct link *link, uint32_t lost_here, char *words, size_t room);
/* What it has carried, in words. */
void link_tell(const struct link *link, char *words, size_t room);

/* ---- net.c ------------------------------------------------------------------------------------------------------- */

enum request_is { FREE, POSTED, TAKEN, ENDED, FAILED };

struct connection;
struct request { /* what `request_test` looks at */
    _Atomic uint32_t is;
    int size;             /* bytes, when it has ENDED */
    nccl_result_t result; /* when it has FAILED */
    void *data;
    uint64_t bytes, number;
    struct optcc_tag tag; /* of a group's message; once a receive has ENDED, until the next is posted */
    const struct connection *connection; /* NULL: a call of a group */
};
void request_end(struct request *request, nccl_result_t result, uint64_t bytes);
nccl_result_t request_test(void *request, int *done, int *sizes);

/* Of the one lock, and of the thread, for groups.c. */
void net_lock(void);
void net_unlock(void);
void net_ring(void); /* there is something to do */
const struct process *net_process(void);
struct link *net_link(const void *connection); /* with the lock; NULL: none any more */
void net_tell(int warns, const char *line);
int net_too_long(uint64_t bytes); /* for a message or a call; it is told */

nccl_result_t net_init(nccl_logger_t log);
nccl_result_t net_finalize(void);
nccl_result_t net_devices(int *count);
nccl_result_t net_properties(int device, struct nccl_properties_v12 *properties);
nccl_result_t net_listen(int device, void *handle, void **listener);
nccl_result_t net_listen_for(uint64_t communicator, int device, void *handle, void **listener);
uint64_t net_communicator(const void *listener);
nccl_result_t net_connect(int device, const void *handle, void **connection);
nccl_result_t net_accept(void *listener, void **connection);
nccl_result_t net_register(void *connection, void *data, size_t size, int type, void **region);
nccl_result_t net_deregister(void *connection, void *region);
nccl_result_t net_send(void *connection, void *data, size_t size, void **request);
nccl_result_t net_send_tagged(void *connection, const void *data, size_t size, struct optcc_tag tag, void **request);
nccl_result_t net_receive(void *connection, int n, void **data, const size_t *sizes, void **request);
nccl_result_t net_flush(void **request);
nccl_result_t net_test(void *request, int *done, int *sizes); /* by NCCL's threads: it may move the request's link */
nccl_result_t net_close(void *connection);
nccl_result_t net_close_listen(void *listener);

/* ---- report.c ------------------------------------------------------------------------------------------------------ */

/* With the lock. 1, or 0 and `why`: OPTCC_METRICS is no folder to write to. */
int report_start(const struct process *process, char *why, size_t room);
void report_stop(void);
/* A look: begin, each link (used: NCCL has connections by it), end. */
void report_begin(uint64_t now_ns);
void report_link(const struct link *link, int used);
void report_end(const struct process *process, uint64_t now_ns);
void report_link_over(const struct link *link); /* before it is closed */
void report_link_lost(void);
uint32_t report_lost(void);   /* our NICs that are lost, a bit each */
void report_name(char *name); /* only what may stand in a log and in a file of metrics stays as it is */

/* ---- groups.c ----------------------------------------------------------------------------------------------------- */

/* By the thread, with the lock: do what can be done now; whether something has happened. */
int groups_progress(uint64_t now_ns);
int groups_run(void); /* whether a call is under way */
/* The thread has ended: so does everything that runs. */
void groups_stop(void);

nccl_result_t group_connect(void *const *handles, int nodes, int rank, void *listener, void **group);
nccl_result_t group_reduces(int type, int op, int *does);
nccl_result_t group_allreduce(void *group, void *from, void *to, size_t count, int type, int op, void **request);
nccl_result_t group_allgather(void *group, void *from, const struct nccl_part *to, size_t node_bytes,
                              size_t window_offset, size_t window_bytes, void **request);
nccl_result_t group_reduce_scatter(void *group, const struct nccl_part *from, void *to, size_t node_bytes,
                                   size_t window_offset, size_t window_bytes, int type, int op, void **request);
nccl_result_t group_register(void *group, void *data, size_t size, int type, void **region);
nccl_result_t group_deregister(void *group, void *region);
nccl_result_t group_close(void *group);

/* ---- plans.c ------------------------------------------------------------------------------------------------------ */

struct plans;
/* Read and check a folder; 0, and `why`. */
int plans_open(const char *folder, struct plans **plans, char *why, size_t room);
void plans_close(struct plans *plans);
uint32_t plans_count(const struct plans *plans);
const char *plans_name(const struct plans *plans, uint32_t plan); /* of its file */
void plans_code(const struct plans *plans, uint8_t code[OPTCC_HMAC]); /* the same of the same files */
int plans_slow(const struct plans *plans, uint32_t plan); /* whether it has slow nodes */
uint32_t plans_slowest(const struct plans *plans); /* the slowest node's rate in now.plan, thousandths of the fastest */
/* The plan for nodes with these rates, and which node has which role in it; OPTCC_NONE: none suits, take a ring. */
uint32_t plans_choose(const struct plans *plans, uint32_t nodes, const uint32_t *mbps, uint16_t *node_of);
uint32_t plans_cycle(const struct plans *plans, uint32_t plan); /* how many programs it has */
/* What a node does in the `turn`-th call of so many bytes: OK, BAD or MEMORY. */
int plans_program(const struct plans *plans, uint32_t plan, uint64_t turn, const uint16_t *node_of, uint32_t nodes,
                  uint32_t rank, uint64_t bytes, uint32_t segment_bytes, struct optcc_program **program);

/* ---- gpu.c -------------------------------------------------------------------------------------------------------- */

/* By NCCL's thread that connects a group, with its GPU current: what the communicator has on it, or NULL, and a line says
 * why. `gpu_close` once the engine's thread does not know it any more. Both wait for nothing that waits for the engine. */
struct seat *gpu_open(uint64_t communicator);
void gpu_close(struct seat *seat);
struct optcc_gpu *gpu_of(struct seat *seat);
/* Page-locked memory, or NULL; whether the GPU reaches memory of NCCL's at its own address. */
void *gpu_room(struct seat *seat, size_t bytes);
void gpu_unroom(struct seat *seat, void *room);
int gpu_reaches(const struct seat *seat, void *memory);

/* What NCCL tells a profiler, by threads of the user's. */
nccl_result_t hook_init(void **context, uint64_t communicator, int *mask, int nodes);
nccl_result_t hook_start(void *context, void **handle, const struct nccl_event_v5 *event);
nccl_result_t hook_stop(void *handle);
nccl_result_t hook_end(void *context);

/* ---- tuner.c ------------------------------------------------------------------------------------------------------ */

/* Whether a collective of so many bytes goes by CollNet, where NCCL has one. */
int tuner_takes(size_t nodes, int function, uint64_t bytes);
nccl_result_t tuner_init(size_t nodes, nccl_logger_t log, void **context);
nccl_result_t tuner_tune(void *context, int function, size_t bytes, int operations, float **costs, int algorithms,
                         int protocols, int registered, int *channels);
nccl_result_t tuner_end(void *context);

#endif
