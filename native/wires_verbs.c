/* Wires over RDMA queue pairs: InfiniBand, and Ethernet with RoCE.
 *
 * Payloads. Each wire has a queue pair of the reliable kind (RC) at both ends. A segment is one send of two pieces: its
 * head, copied to a registered place, and its payload, read where it lies in the caller's memory; with `copies` the
 * payload is copied behind its head, and callers register nothing. It lands in a slot of registered memory, where the
 * engine reads it.
 *
 * All other frames go as datagrams (UD), by a queue pair that each NIC has for all its wires. Datagrams need no
 * connection. So a probe, an acknowledgement and a knock get through whatever has become of the wire's own queue pair
 * at either end, do not wait behind payloads, and may be lost, which the engine allows for. They take the same way, from
 * the same port to the same port, so that they tell whether it is there.
 *
 * Receives. A wire has R of them: window / segment + 1 + DATA_SPARE, SPAN + DATA_SPARE at most. With everything that an
 * end sends it tells how many it has posted again, in sixteen bits of the immediate value; the other end never has more
 * than R payloads out that it has not been told of. So a receive is always there, whatever is sent again and however
 * long the reader is away. What tells may be lost, and the engine hear by another wire that all has landed: who may not
 * send asks, by a datagram of its own, a `note`. Datagrams that find no receive are lost; a NIC has R + CONTROL_SPARE
 * for each of its wires, and a reader that keeps up acknowledges no segment twice.
 *
 * Lives. A fence puts the queue pair into the error state and waits until all that was posted has come back, FLUSH_NS at
 * most; then it is reset, or destroyed. A KNOCK or WELCOME begins the life that it names, before it is posted: reset,
 * and connected anew by packet numbers that follow from what the two ends have told each other at the beginning, and
 * from the number of the life. So packets of another life have wrong numbers, and nothing is exchanged for a new one.
 *
 * Opening, joining and a new life are system calls, and take what they take; posting and polling are not.
 */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"
#include "verbs.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    BATCH = 32,         /* completions taken from a NIC at once */
    LINE = 64,          /* bytes: what is registered begins at multiples of it */
    PAGE = 4096,        /* bytes */
    GRH_BYTES = 40,     /* in front of a datagram there is room for its route */
    DATA_SPARE = 4,     /* receives beyond the window: of segments that are shorter, or sent again */
    CONTROL_SPARE = 16, /* datagrams of a wire beside acknowledgements */
    CONTROL_SIGNAL = 16, /* one datagram in so many tells that it has gone */
    WRAPPING = 58,      /* bytes around what a packet carries: Ethernet 14, IPv4 20, UDP 8, transport 12, checksum 4 */
    NEVER_IDLE = 2,     /* payloads that a NIC may have whatever is said of its rate: one under way, one behind it */
    LEAST_DEPTH = 64,   /* datagrams that may be posted by a NIC, at the least; a multiple of CONTROL_SIGNAL */
    REGIONS = 64,       /* that callers may have registered at once */
    HOPS = 64,          /* routers that packets may pass */
    RNR_TIMER = 12, RNR_RETRIES = 6, /* receives are always there, so neither should ever matter */
    READS = 1,          /* there are none, but 0 is not taken by all devices */
    EVENTS = 64,        /* of a device, taken at once */
    LOOK_POLLS = 256,   /* events are looked for each so many polls, or when there is nothing, */
    DEVICE_BYTES = 64,  /* of a device's name */
    FAULT_BYTES = 256
};
static const uint64_t LEAD_NS = 50 * 1000;             /* a NIC is given a payload so long before it is free, by its
                                                          rate: what waking up takes. With less than half of it ranks
                                                          that share a processor wake up for every payload */
static const uint64_t LOOK_NS = 1000 * 1000;           /* and at most so often */
static const uint64_t FLUSH_NS = 1000 * 1000 * 1000;   /* a fence waits for what was posted; it takes microseconds */
static const uint32_t PACKETS = UINT32_C(1) << 24;     /* numbers of packets, and of queue pairs */
static const uint32_t STRIDE = UINT32_C(0x9e3779);     /* golden section of it: lives' first packets are far apart */
static const uint32_t HANDLE_MAGIC = UINT32_C(0x0cc70a12), HANDLE_VERSION = 1;

enum work { DATA_SEND, DATA_RECEIVE, CONTROL_SEND, CONTROL_RECEIVE }; /* what a completion is of */

/* ---- the library ------------------------------------------------------------------------------------------------- */

#define CALLS(C)                                                                                                      \
    C(struct ibv_device **, get_device_list, (int *))                                                                 \
    C(void, free_device_list, (struct ibv_device **))                                                                 \
    C(const char *, get_device_name, (struct ibv_device *))                                                           \
    C(struct ibv_context *, open_device, (struct ibv_device *))                                                       \
    C(int, close_device, (struct ibv_context *))                                                                      \
    C(int, query_device, (struct ibv_context *, struct ibv_device_attr *))                                            \
    C(int, query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *))                                       \
    C(int, query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *))                                          \
    C(struct ibv_pd *, alloc_pd, (struct ibv_context *))                                                              \
    C(int, dealloc_pd, (struct ibv_pd *))                                                                             \
    C(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int))                                                \
    C(int, dereg_mr, (struct ibv_mr *))                                                                               \
    C(struct ibv_comp_channel *, create_comp_channel, (struct ibv_context *))                                         \
    C(int, destroy_comp_channel, (struct ibv_comp_channel *))                                                         \
    C(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                \
    C(int, destroy_cq, (struct ibv_cq *))                                                                             \
    C(int, get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **))                                      \
    C(void, ack_cq_events, (struct ibv_cq *, unsigned))                                                               \
    C(int, get_async_event, (struct ibv_context *, struct ibv_async_event *))                                         \
    C(void, ack_async_event, (struct ibv_async_event *))                                                              \
    C(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))                                       \
    C(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                                                   \
    C(int, destroy_qp, (struct ibv_qp *))                                                                             \
    C(struct ibv_ah *, create_ah, (struct ibv_pd *, struct ibv_ah_attr *))                                            \
    C(int, destroy_ah, (struct ibv_ah *))

struct calls {
#define FIELD(result, name, arguments) result(*name) arguments;
    CALLS(FIELD)
};

/* ---- what there is ----------------------------------------------------------------------------------------------- */

struct handle { /* what a rank tells a peer: this, then an `end_told` for each lane */
    uint32_t magic, version, from, to; /* ranks */
    uint32_t segment_bytes, receives, lanes, unused;
};

struct end_told {
    uint32_t lane, nic, far_nic;
    uint32_t data_number, control_number; /* of queue pairs; 0: there is no such NIC */
    uint32_t control_key, first_packet;
    uint16_t lid;
    uint8_t mtu, global; /* enum ibv_mtu; goes by GID */
    uint8_t gid[16];
};
_Static_assert(sizeof(struct handle) == 32 && sizeof(struct end_told) == 48, "they travel, without holes");

enum end_is { OPEN, LOST, FENCING, FENCED };

struct end { /* of a wire, at this rank */
    struct optcc_wire ends;
    uint32_t index, is;              /* enum end_is */
    struct nic *nic;
    struct ibv_qp *pair;             /* NULL: it is no more, or never was */
    struct ibv_ah *route;            /* of datagrams to the far end's NIC; NULL: not known yet */
    struct end_told far;
    int joined;                      /* `far` is known, and there is such an end */
    uint32_t life, generation;       /* the life that it is connected in; how often it was reset */
    uint32_t first_packet;           /* see `packet_of` */
    uint32_t sends, receives;        /* posted, and not come back */
    uint16_t given, taken_there;     /* payloads of this life: posted; whose receives are posted again, as told */
    uint16_t taken_here;             /* likewise of the other way */
    uint32_t place;                  /* of the next head */
    unsigned char *heads, *slots;    /* R of each */
    uint64_t fence_ns, asked_ns;     /* when the fence began; when it was asked for receives last */
    int died, fenced, back;          /* to be said */
};

struct nic {
    char device[DEVICE_BYTES];
    struct optcc_verbs_nic name;
    uint32_t index;
    struct ibv_context *context;     /* the shared one; NULL: there was none; `why` tells */
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *queue;
    struct ibv_mr *region;           /* of `memory` */
    unsigned char *memory, *control_heads, *control_slots;
    struct ibv_qp *control;
    uint32_t control_key, control_generation;
    uint32_t control_sends, control_place, control_depth, control_receives; /* posted; next; most of both */
    int control_broken, gone, up, armed;
    struct ibv_port_attr port;
    union ibv_gid gid;
    uint32_t wires, in_hand;         /* that it has; payloads that it may read */
    struct optcc_device own, *shared; /* own: where nobody shares the NIC */
    uint64_t heard;                  /* of its events */
    int waits;                       /* for that time: there may be more to send */
    struct ibv_wc polled[BATCH];
    int next, count;                 /* of `polled` */
    char why[FAULT_BYTES];
};

struct region {
    const unsigned char *at;
    uint64_t bytes; /* 0: free */
    struct ibv_mr *of[OPTCC_MAX_NICS];
};

struct note { /* a datagram between wires: how many receives there are, as all tell */
    uint32_t life, asks; /* of the wire; 1: the writer wants to know, too */
};

struct held { /* what the frame told last lies in */
    struct nic *nic; /* NULL: nothing */
    struct end *end; /* NULL: a datagram */
    uint32_t slot, generation;
};

struct optcc_verbs {
    struct optcc_verbs_config config;
    struct calls call;
    struct nic *nic;
    struct end *end;
    struct optcc_wire *wire;
    uint32_t *wire_of; /* [peer * MAX_LANES + lane]: index + 1; 0: none */
    struct region region[REGIONS];
    uint32_t last_region; /* that a payload lay in */
    struct held held;
    uint32_t receives, slot_bytes; /* R; of a slot, from one to the next */
    uint32_t owed, next_nic, polls; /* still to be said; whose turn it is; since the last look */
    uint64_t now_ns, look_ns; /* the time as the engine was told it last; of the next look */
    int sleeper, timer, bed; /* descriptors: what NICs tell; when to get up in any case; both */
    char fault[FAULT_BYTES];
};

static _Thread_local char why[2 * FAULT_BYTES];

const char *optcc_verbs_why(void) { return why; }

__attribute__((format(printf, 2, 3))) static int because(int result, const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    vsnprintf(why, sizeof why, format, rest);
    va_end(rest);
    return result;
}

static uint64_t in_lines(uint64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }
static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- numbers of requests: what, of which generation, wire and place ------------------------------------------------ */

static const uint32_t GENERATIONS = UINT32_C(1) << 30;

static uint64_t request(enum work work, uint32_t generation, uint32_t wire, uint32_t place)
{
    return (uint64_t)work << 62 | (uint64_t)(generation % GENERATIONS) << 32 | (uint64_t)wire << 16 | place;
}
static enum work work_of(uint64_t id) { return (enum work)(id >> 62); }
static uint32_t generation_of(uint64_t id) { return (uint32_t)(id >> 32) % GENERATIONS; }
static uint32_t wire_of(uint64_t id) { return (uint32_t)(id >> 16) & 0xffff; }
static uint32_t place_of(uint64_t id) { return (uint32_t)id & 0xffff; }

/* ---- what is to be said ------------------------------------------------------------------------------------------ */

static void owe(struct optcc_verbs *v, int *what)
{
    v->owed += !*what;
    *what = 1;
}

static void owe_no_more(struct optcc_verbs *v, int *what)
{
    v->owed -= (uint32_t)*what;
    *what = 0;
}

static void lose(struct optcc_verbs *v, struct end *w)
{
    if (w->is != OPEN)
        return;
    w->is = LOST;
    owe(v, &w->died);
}

/* What no lost NIC explains. The first one is kept. */
__attribute__((format(printf, 2, 3))) static void wrong(struct optcc_verbs *v, const char *format, ...)
{
    va_list rest;
    if (v->fault[0])
        return;
    va_start(rest, format);
    vsnprintf(v->fault, sizeof v->fault, format, rest);
    va_end(rest);
}

static void nic_lost(struct optcc_verbs *v, struct nic *n, const char *what, int error)
{
    if (n->gone)
        return;
    n->gone = n->shared->dead = 1;
    n->up = 0;
    /* Nobody reads its events any more: who sleeps would be woken by them for ever. */
    epoll_ctl(v->sleeper, EPOLL_CTL_DEL, n->channel->fd, NULL);
    epoll_ctl(v->sleeper, EPOLL_CTL_DEL, n->context->async_fd, NULL);
    snprintf(n->why, sizeof n->why, "%s: %s: %s", n->name.device, what, strerror(error));
    for (uint32_t i = 0; i < v->config.wires; i++)
        if (v->end[i].nic == n)
            lose(v, &v->end[i]);
}

static int usable(const struct nic *n) { return n->context && !n->gone && n->up; }

/* ---- queue pairs ------------------------------------------------------------------------------------------------- */

static struct ibv_qp *make_pair(const struct optcc_verbs *v, const struct nic *n, int type, uint32_t sends,
                                uint32_t receives)
{
    struct ibv_qp_init_attr init = {.send_cq = n->queue, .recv_cq = n->queue, .qp_type = type,
                                    .cap = {.max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 2,
                                            .max_recv_sge = 1}};
    return v->call.create_qp(n->domain, &init);
}

static int into(const struct optcc_verbs *v, struct ibv_qp *pair, int state)
{
    struct ibv_qp_attr attributes = {.qp_state = state};
    return v->call.modify_qp(pair, &attributes, IBV_QP_STATE);
}

static int post_receive(const struct nic *n, struct ibv_qp *pair, uint64_t id, void *at, uint32_t bytes)
{
    struct ibv_sge piece = {.addr = (uintptr_t)at, .length = bytes, .lkey = n->region->lkey};
    struct ibv_recv_wr receive = {.wr_id = id, .sg_list = &piece, .num_sge = 1}, *bad;
    return n->context->ops.post_recv(pair, &receive, &bad);
}

static uint32_t control_slot_bytes(void) { return (uint32_t)in_lines(GRH_BYTES + sizeof(struct optcc_frame)); }
static uint32_t head_bytes(void) { return (uint32_t)in_lines(sizeof(struct optcc_frame)); }
/* Of a segment that goes: its head, and its payload where that is copied. */
static uint64_t place_bytes(const struct optcc_verbs *v) { return v->config.copies ? v->slot_bytes : head_bytes(); }

static int receive_data(struct optcc_verbs *v, struct end *w, uint32_t slot)
{
    const uint64_t id = request(DATA_RECEIVE, w->generation, w->index, slot);
    unsigned char *const at = w->slots + (uint64_t)slot * v->slot_bytes;
    const int failed =
        post_receive(w->nic, w->pair, id, at, (uint32_t)sizeof(struct optcc_frame) + v->config.segment_bytes);
    w->receives += !failed;
    return failed;
}

static int receive_control(const struct nic *n, uint32_t slot)
{
    return post_receive(n, n->control, request(CONTROL_RECEIVE, n->control_generation, 0, slot),
                        n->control_slots + (uint64_t)slot * control_slot_bytes(), control_slot_bytes());
}

/* From any state, with no work; what was posted is forgotten, and no completion of it believed. 0, or an errno. */
static int revive_control(struct optcc_verbs *v, struct nic *n)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)n->name.port,
                                     .qkey = n->control_key};
    int failed = into(v, n->control, IBV_QPS_RESET);
    n->control_generation++;
    n->control_sends = n->control_place = 0;
    if (!failed)
        failed = v->call.modify_qp(n->control, &attributes,
                                   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    for (uint32_t slot = 0; !failed && slot < n->control_receives; slot++)
        failed = receive_control(n, slot);
    if (!failed)
        failed = into(v, n->control, IBV_QPS_RTR);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    if (!failed)
        failed = v->call.modify_qp(n->control, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
    n->control_broken = failed != 0;
    return failed;
}

static struct ibv_ah_attr route_to(const struct end *w)
{
    const struct nic *n = w->nic;
    struct ibv_ah_attr route = {.dlid = w->far.lid, .port_num = (uint8_t)n->name.port};
    if (n->name.gid_index >= 0) {
        memcpy(route.grh.dgid.raw, w->far.gid, sizeof w->far.gid);
        route.grh.sgid_index = (uint8_t)n->name.gid_index;
        route.grh.hop_limit = HOPS;
        route.is_global = 1;
    }
    return route;
}

/* The number of the first packet in a life, of the end that told `first`. */
static uint32_t packet_of(uint32_t first, uint32_t life) { return (first + life * STRIDE) % PACKETS; }

/* Nothing that was posted is under way any more, and none of its completions will be believed. */
static void forget(struct end *w)
{
    w->generation++;
    w->nic->in_hand -= w->sends;
    w->nic->shared->in_hand -= w->sends;
    w->sends = w->receives = 0;
    w->given = w->taken_there = w->taken_here = 0;
}

static void destroy_pair(struct optcc_verbs *v, struct end *w)
{
    if (w->pair)
        v->call.destroy_qp(w->pair);
    w->pair = NULL;
    forget(w);
}

static int connect_pair(struct optcc_verbs *v, struct end *w, uint32_t life)
{
    const struct nic *n = w->nic;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)n->name.port};
    int failed = into(v, w->pair, IBV_QPS_RESET);
    forget(w);
    if (!failed)
        failed = v->call.modify_qp(w->pair, &attributes,
                                   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    for (uint32_t slot = 0; !failed && slot < v->receives; slot++)
        failed = receive_data(v, w, slot);
    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .ah_attr = route_to(w), .path_mtu = (int)least((uint32_t)n->port.active_mtu, w->far.mtu),
        .dest_qp_num = w->far.data_number, .rq_psn = packet_of(w->far.first_packet, life),
        .max_dest_rd_atomic = READS, .min_rnr_timer = RNR_TIMER};
    if (!failed)
        failed = v->call.modify_qp(w->pair, &attributes,
                                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = packet_of(w->first_packet, life),
                                      .timeout = (uint8_t)v->config.timeout, .retry_cnt = (uint8_t)v->config.retries,
                                      .rnr_retry = RNR_RETRIES, .max_rd_atomic = READS};
    if (!failed)
        failed = v->call.modify_qp(w->pair, &attributes,
                                   IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_MAX_QP_RD_ATOMIC);
    return failed;
}

/* Begin a life; OK or LOST. Before it there is nothing under way that anybody waits for. */
static int begin_life(struct optcc_verbs *v, struct end *w, uint32_t life)
{
    struct ibv_ah_attr route = route_to(w);
    if (!w->joined || !w->pair || !usable(w->nic))
        return OPTCC_LOST;
    if (!w->route)
        w->route = v->call.create_ah(w->nic->domain, &route);
    if (!w->route || connect_pair(v, w, life)) {
        if (into(v, w->pair, IBV_QPS_RESET)) /* else receives would stay posted */
            destroy_pair(v, w);
        else
            forget(w);
        return OPTCC_LOST;
    }
    w->life = life;
    w->is = OPEN;
    owe_no_more(v, &w->died);
    return OPTCC_OK;
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static uint64_t now(void *self)
{
    struct optcc_verbs *v = self;
    return v->now_ns = optcc_now(self);
}

static uint64_t lead_ns(const struct optcc_verbs *v, const struct nic *n)
{
    return LEAD_NS + (n->name.bytes_per_s ? v->config.lead_bytes * UINT64_C(1000000000) / n->name.bytes_per_s : 0);
}

/* More than it is about to send would only lie in front of what becomes ready meanwhile, and of acknowledgements. */
static uint32_t room(void *self, uint32_t nic)
{
    struct optcc_verbs *v = self;
    struct nic *n = &v->nic[nic];
    n->waits = n->shared->in_hand >= NEVER_IDLE && n->shared->free_ns > v->now_ns + lead_ns(v, n);
    return n->in_hand < v->config.ahead && !n->waits;
}

/* The NIC will send so many bytes. */
static void occupy(const struct optcc_verbs *v, struct nic *n, uint64_t bytes)
{
    const uint64_t packet = UINT64_C(128) << n->port.active_mtu, packets = (bytes + packet - 1) / packet;
    if (!n->name.bytes_per_s)
        return;
    if (n->shared->free_ns < v->now_ns)
        n->shared->free_ns = v->now_ns;
    n->shared->free_ns += (bytes + WRAPPING * packets) * UINT64_C(1000000000) / n->name.bytes_per_s;
}

static int lies_in(const struct region *r, const unsigned char *at, uint64_t bytes)
{
    return r->bytes >= bytes && at >= r->at && (uint64_t)(at - r->at) <= r->bytes - bytes;
}

static const struct region *region_of(struct optcc_verbs *v, const unsigned char *at, uint64_t bytes)
{
    for (uint32_t i = 0; i < REGIONS && !lies_in(&v->region[v->last_region], at, bytes); i++)
        v->last_region = i;
    const struct region *r = &v->region[v->last_region];
    return lies_in(r, at, bytes) ? r : NULL;
}

/* With what is posted: by whom, for which wire, and how many receives have been posted again. */
static uint32_t immediate(const struct optcc_verbs *v, const struct end *w)
{
    return htonl(v->config.rank << 22 | w->ends.lane << 16 | w->taken_here);
}

/* What came with something of life `life`: not less than was said before, and no more than was sent. */
static void take_immediate(struct end *w, uint32_t immediate_value, uint32_t life)
{
    const uint16_t more = (uint16_t)((uint16_t)ntohl(immediate_value) - w->taken_there);
    if (life == w->life && more <= (uint16_t)(w->given - w->taken_there))
        w->taken_there = (uint16_t)(w->taken_there + more);
}

static int post_send(struct optcc_verbs *v, struct nic *n, struct ibv_qp *pair, struct ibv_send_wr *send)
{
    struct ibv_send_wr *bad;
    const int failed = n->context->ops.post_send(pair, send, &bad);
    if (!failed || failed == ENOMEM)
        return failed ? OPTCC_AGAIN : OPTCC_OK;
    nic_lost(v, n, "refuses work", failed);
    return OPTCC_LOST;
}

static int post_datagram(struct optcc_verbs *v, struct end *w, const void *bytes, uint32_t length)
{
    struct nic *n = w->nic;
    if (!usable(n) || !w->route || n->control_broken)
        return OPTCC_LOST;
    if (n->control_sends == n->control_depth)
        return OPTCC_AGAIN;
    unsigned char *const copy = n->control_heads + (uint64_t)n->control_place * head_bytes();
    memcpy(copy, bytes, length);
    struct ibv_sge piece = {.addr = (uintptr_t)copy, .length = length, .lkey = n->region->lkey};
    struct ibv_send_wr send = {
        .wr_id = request(CONTROL_SEND, n->control_generation, 0, n->control_place), .sg_list = &piece, .num_sge = 1,
        .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = immediate(v, w),
        .wr.ud = {.ah = w->route, .remote_qpn = w->far.control_number, .remote_qkey = w->far.control_key}};
    /* The depth is a multiple of CONTROL_SIGNAL, so that places that tell are as far apart at its end as elsewhere. */
    if (n->control_place % CONTROL_SIGNAL == CONTROL_SIGNAL - 1)
        send.send_flags = IBV_SEND_SIGNALED;
    const int posted = post_send(v, n, n->control, &send);
    if (posted != OPTCC_OK)
        return posted;
    occupy(v, n, length);
    n->control_place = n->control_place + 1 == n->control_depth ? 0 : n->control_place + 1;
    n->control_sends++;
    return OPTCC_OK;
}

static void ask_for_receives(struct optcc_verbs *v, struct end *w)
{
    const struct note note = {.life = w->life, .asks = 1};
    if (v->now_ns - w->asked_ns < LOOK_NS)
        return;
    w->asked_ns = v->now_ns;
    post_datagram(v, w, &note, sizeof note);
}

static int post_data(struct optcc_verbs *v, struct end *w, const struct optcc_frame *head, const void *payload)
{
    struct nic *n = w->nic;
    if (w->is != OPEN) {
        if (w->is == LOST)
            owe(v, &w->died); /* it was lost before the engine took it for whole */
        return OPTCC_LOST;
    }
    if (w->sends == v->receives) /* heads are in use */
        return OPTCC_AGAIN;
    if ((uint16_t)(w->given - w->taken_there) >= v->receives) {
        ask_for_receives(v, w);
        return OPTCC_AGAIN;
    }
    const struct region *r = v->config.copies ? NULL : region_of(v, payload, head->length);
    if (!v->config.copies && (!r || !r->of[n->index])) {
        wrong(v, "wire %u to rank %u: a payload of %u bytes is not registered on %s; optcc_verbs_register it", w->index,
              w->ends.peer, head->length, n->name.device);
        lose(v, w);
        return OPTCC_LOST;
    }
    unsigned char *const copy = w->heads + (uint64_t)w->place * place_bytes(v);
    memcpy(copy, head, sizeof *head);
    struct ibv_sge pieces[2] = {{.addr = (uintptr_t)copy, .length = sizeof *head, .lkey = n->region->lkey}};
    if (v->config.copies) {
        memcpy(copy + sizeof *head, payload, head->length);
        pieces[0].length += head->length;
    } else {
        pieces[1] = (struct ibv_sge){.addr = (uintptr_t)payload, .length = head->length, .lkey = r->of[n->index]->lkey};
    }
    struct ibv_send_wr send = {.wr_id = request(DATA_SEND, w->generation, w->index, w->place), .sg_list = pieces,
                               .num_sge = v->config.copies ? 1 : 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = immediate(v, w),
                               .send_flags = IBV_SEND_SIGNALED};
    const int posted = post_send(v, n, w->pair, &send);
    if (posted != OPTCC_OK)
        return posted;
    occupy(v, n, sizeof *head + head->length);
    w->place = w->place + 1 == v->receives ? 0 : w->place + 1;
    w->given++;
    w->sends++;
    n->in_hand++;
    n->shared->in_hand++;
    return OPTCC_OK;
}

static int post_control(struct optcc_verbs *v, struct end *w, const struct optcc_frame *head)
{
    if ((head->kind == OPTCC_KNOCK || head->kind == OPTCC_WELCOME) && w->is != FENCING &&
        (w->is == FENCED || w->life != head->epoch) && begin_life(v, w, head->epoch) != OPTCC_OK) {
        w->is = LOST;
        owe(v, &w->died);
        return OPTCC_LOST;
    }
    return post_datagram(v, w, head, sizeof *head);
}

static int post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload, uint64_t ready_ns)
{
    (void)ready_ns;
    struct optcc_verbs *v = self;
    return payload ? post_data(v, &v->end[wire], head, payload) : post_control(v, &v->end[wire], head);
}

/* ---- fences, new lives ------------------------------------------------------------------------------------------- */

static void see_drained(struct optcc_verbs *v, struct end *w)
{
    if (w->is != FENCING || w->sends || w->receives)
        return;
    w->is = FENCED;
    owe(v, &w->fenced);
}

/* What was posted does not come back: without work nothing is read any more, either. */
static void abandon(struct optcc_verbs *v, struct end *w)
{
    if (!w->pair || into(v, w->pair, IBV_QPS_RESET))
        destroy_pair(v, w);
    else
        forget(w);
    see_drained(v, w);
}

static void fence(void *self, uint32_t wire)
{
    struct optcc_verbs *v = self;
    struct end *w = &v->end[wire];
    owe_no_more(v, &w->died);
    owe_no_more(v, &w->fenced);
    w->is = FENCING;
    w->fence_ns = optcc_now(v);
    if ((w->sends || w->receives) && (w->nic->gone || into(v, w->pair, IBV_QPS_ERR)))
        abandon(v, w);
    see_drained(v, w);
}

static int renew(void *self, uint32_t wire)
{
    struct optcc_verbs *v = self;
    struct end *w = &v->end[wire];
    struct nic *n = w->nic;
    struct ibv_port_attr port;
    if (w->is == FENCING || !w->joined || !w->pair || !usable(n))
        return OPTCC_LOST;
    if (v->call.query_port(n->context, (uint8_t)n->name.port, &port) || port.state != IBV_PORT_ACTIVE)
        return OPTCC_LOST;
    if (w->is == LOST) /* in a life that the peer has not begun */
        w->is = FENCED;
    owe_no_more(v, &w->died);
    return OPTCC_OK;
}

/* ---- events of devices ------------------------------------------------------------------------------------------- */

static void take_event(struct optcc_verbs *v, struct nic *n, const struct optcc_device_event *event)
{
    const int about_port = event->type == IBV_EVENT_PORT_ERR || event->type == IBV_EVENT_PORT_ACTIVE;
    if (about_port && event->port != n->name.port)
        return;
    if (event->type == IBV_EVENT_DEVICE_FATAL) {
        nic_lost(v, n, "device fatal", EIO);
        return;
    }
    if (event->type == IBV_EVENT_CQ_ERR && event->object == n->queue) {
        wrong(v, "%s: its completion queue has overrun; this is a bug", n->name.device);
        nic_lost(v, n, "completion queue", EOVERFLOW);
        return;
    }
    if (about_port)
        n->up = event->type == IBV_EVENT_PORT_ACTIVE;
    const int about_pair = event->type >= IBV_EVENT_QP_FATAL && event->type <= IBV_EVENT_QP_ACCESS_ERR;
    if (about_pair && event->object == n->control)
        n->control_broken = 1;
    for (uint32_t i = 0; i < v->config.wires; i++) {
        struct end *w = &v->end[i];
        if (w->nic != n)
            continue;
        if (event->type == IBV_EVENT_PORT_ERR || (about_pair && event->object == w->pair))
            lose(v, w);
        else if (event->type == IBV_EVENT_PORT_ACTIVE)
            owe(v, &w->back);
    }
}

/* Whoever looks first takes a device's events, for all that share it. */
static void hear(struct optcc_verbs *v, struct nic *n)
{
    struct optcc_device *const d = n->shared;
    struct ibv_async_event event;
    for (int taken = 0; taken < EVENTS && v->call.get_async_event(d->context, &event) == 0; taken++) {
        const int about_port = event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE;
        struct optcc_device_event *const told = &d->event[d->told++ % OPTCC_DEVICE_EVENTS];
        *told = (struct optcc_device_event){.type = event.event_type};
        if (about_port)
            told->port = (uint32_t)event.element.port_num;
        else
            told->object = event.element.qp;
        v->call.ack_async_event(&event);
    }
    if (d->told - n->heard > OPTCC_DEVICE_EVENTS) { /* nobody knows what was missed: all is as after a loss */
        const struct optcc_device_event lost = {.type = IBV_EVENT_PORT_ERR, .port = n->name.port};
        const struct optcc_device_event back = {.type = IBV_EVENT_PORT_ACTIVE, .port = n->name.port};
        struct ibv_port_attr port;
        n->heard = d->told - OPTCC_DEVICE_EVENTS;
        n->control_broken = 1;
        take_event(v, n, &lost);
        if (!v->call.query_port(d->context, (uint8_t)n->name.port, &port) && port.state == IBV_PORT_ACTIVE)
            take_event(v, n, &back);
    }
    while (n->heard != d->told && !n->gone)
        take_event(v, n, &d->event[n->heard++ % OPTCC_DEVICE_EVENTS]);
}

/* Whether another has taken events that are ours, too. */
static int unheard(const struct optcc_verbs *v)
{
    int some = 0;
    for (uint32_t i = 0; i < v->config.nics; i++)
        some |= v->nic[i].context && !v->nic[i].gone && v->nic[i].heard != v->nic[i].shared->told;
    return some;
}

/* What nobody tells by a completion. */
static void look(struct optcc_verbs *v)
{
    const uint64_t now_ns = v->now_ns;
    v->polls = 0;
    if (now_ns < v->look_ns && !unheard(v))
        return;
    v->look_ns = now_ns + LOOK_NS;
    for (uint32_t i = 0; i < v->config.nics; i++) {
        struct nic *n = &v->nic[i];
        if (!n->context || n->gone)
            continue;
        hear(v, n);
        if (n->control_broken && n->up)
            revive_control(v, n);
    }
    for (uint32_t i = 0; i < v->config.wires; i++) {
        struct end *w = &v->end[i];
        if (w->is == FENCING && (w->nic->gone || now_ns - w->fence_ns > FLUSH_NS))
            abandon(v, w);
    }
}

/* ---- polling ----------------------------------------------------------------------------------------------------- */

static int is_bug(int status) /* a wrong address, key or length, or no receive where one must be */
{
    return status == IBV_WC_LOC_LEN_ERR || status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_MW_BIND_ERR ||
           status == IBV_WC_BAD_RESP_ERR || status == IBV_WC_LOC_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
           status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR;
}

static void failed(struct optcc_verbs *v, struct end *w, const struct ibv_wc *done)
{
    if (is_bug(done->status))
        wrong(v, "wire %u to rank %u on %s: completion status %d, vendor's code %u; this is a bug, not a lost NIC",
              w->index, w->ends.peer, w->nic->name.device, done->status, done->vendor_err);
    lose(v, w);
}

/* The frame told last has been read: its slot takes the next one. */
static void give_back(struct optcc_verbs *v)
{
    const struct held held = v->held;
    v->held.nic = NULL;
    if (!held.nic || held.nic->gone)
        return;
    int error = 0;
    if (!held.end && held.generation == held.nic->control_generation)
        error = receive_control(held.nic, held.slot);
    else if (held.end && held.generation == held.end->generation && held.end->is == OPEN) {
        error = receive_data(v, held.end, held.slot);
        held.end->taken_here += !error;
    }
    if (error)
        nic_lost(v, held.nic, "refuses work", error);
}

static int data_sent(struct optcc_verbs *v, struct end *w, const struct ibv_wc *done, struct optcc_event *event)
{
    if (generation_of(done->wr_id) != w->generation % GENERATIONS || !w->sends)
        return 0;
    w->sends--;
    w->nic->in_hand--;
    w->nic->shared->in_hand--;
    if (done->status != IBV_WC_SUCCESS)
        failed(v, w, done);
    see_drained(v, w);
    *event = (struct optcc_event){.news = OPTCC_LEFT, .wire = w->index};
    return done->status == IBV_WC_SUCCESS;
}

static int data_came(struct optcc_verbs *v, struct end *w, const struct ibv_wc *done, struct optcc_event *event)
{
    if (generation_of(done->wr_id) != w->generation % GENERATIONS || !w->receives)
        return 0;
    w->receives--;
    if (done->status != IBV_WC_SUCCESS)
        failed(v, w, done);
    see_drained(v, w);
    if (done->status != IBV_WC_SUCCESS || w->is != OPEN)
        return 0;
    const uint32_t slot = place_of(done->wr_id);
    occupy(v, w->nic, 4); /* its acknowledgement */
    if (done->wc_flags & IBV_WC_WITH_IMM)
        take_immediate(w, done->imm_data, w->life);
    v->held = (struct held){.nic = w->nic, .end = w, .slot = slot, .generation = w->generation};
    *event = (struct optcc_event){.news = OPTCC_FRAME, .wire = w->index, .length = done->byte_len,
                                  .bytes = w->slots + (uint64_t)slot * v->slot_bytes};
    return 1;
}

/* The wire by which a datagram has come: as it says, if that NIC here and that queue pair there belong to it. */
static struct end *end_of(struct optcc_verbs *v, const struct nic *n, const struct ibv_wc *done)
{
    const uint32_t said = ntohl(done->imm_data);
    const uint32_t rank = said >> 22, lane = said >> 16 & (OPTCC_MAX_LANES - 1);
    if (!(done->wc_flags & IBV_WC_WITH_IMM) || rank >= v->config.ranks || !v->wire_of[rank * OPTCC_MAX_LANES + lane])
        return NULL;
    struct end *w = &v->end[v->wire_of[rank * OPTCC_MAX_LANES + lane] - 1];
    return w->joined && w->nic == n && w->far.control_number == done->src_qp ? w : NULL;
}

static int control_came(struct optcc_verbs *v, struct nic *n, const struct ibv_wc *done, struct optcc_event *event)
{
    const uint32_t slot = place_of(done->wr_id);
    const unsigned char *const bytes = n->control_slots + (uint64_t)slot * control_slot_bytes() + GRH_BYTES;
    const uint32_t length = done->byte_len - least(done->byte_len, GRH_BYTES);
    struct end *w = end_of(v, n, done);
    struct optcc_frame head;
    struct note note;
    v->held = (struct held){.nic = n, .slot = slot, .generation = n->control_generation};
    if (w && length == sizeof head) {
        memcpy(&head, bytes, sizeof head);
        take_immediate(w, done->imm_data, head.epoch);
        *event = (struct optcc_event){.news = OPTCC_FRAME, .wire = w->index, .length = length, .bytes = bytes};
        return 1;
    }
    if (w && length == sizeof note) {
        memcpy(&note, bytes, sizeof note);
        take_immediate(w, done->imm_data, note.life);
        if (note.asks == 1 && note.life == w->life) {
            note.asks = 0;
            post_datagram(v, w, &note, sizeof note);
        }
    }
    give_back(v);
    return 0;
}

/* One completion; whether it makes an event. */
static int take(struct optcc_verbs *v, struct nic *n, const struct ibv_wc *done, struct optcc_event *event)
{
    const enum work work = work_of(done->wr_id);
    if (work == DATA_SEND || work == DATA_RECEIVE) {
        struct end *w = &v->end[wire_of(done->wr_id)];
        return work == DATA_SEND ? data_sent(v, w, done, event) : data_came(v, w, done, event);
    }
    if (generation_of(done->wr_id) != n->control_generation % GENERATIONS)
        return 0;
    if (done->status != IBV_WC_SUCCESS) {
        n->control_broken = 1; /* to be revived at the next look */
        return 0;
    }
    if (work == CONTROL_RECEIVE)
        return control_came(v, n, done, event);
    n->control_sends -= CONTROL_SIGNAL;
    return 0;
}

/* Whether a NIC has completions that have not been looked at. */
static int has_news(struct optcc_verbs *v, struct nic *n)
{
    if (n->context && n->next == n->count) {
        n->next = 0;
        n->count = n->context->ops.poll_cq(n->queue, BATCH, n->polled);
        if (n->count < 0) {
            nic_lost(v, n, "cannot be polled", -n->count);
            n->count = 0;
        }
    }
    return n->next < n->count;
}

static int poll_nic(struct optcc_verbs *v, struct nic *n, struct optcc_event *event)
{
    if (!has_news(v, n))
        return 0;
    while (n->next < n->count)
        if (take(v, n, &n->polled[n->next++], event))
            return 1;
    return 0;
}

static int say_of(struct optcc_verbs *v, struct end *w, int *what, enum optcc_news news, struct optcc_event *event)
{
    if (!*what)
        return 0;
    owe_no_more(v, what);
    *event = (struct optcc_event){.wire = w->index, .news = news,
                                  .cause = w->nic->gone ? OPTCC_DEVICE : w->nic->up ? OPTCC_ERROR : OPTCC_PORT};
    return 1;
}

static int say(struct optcc_verbs *v, struct optcc_event *event)
{
    for (uint32_t i = 0; v->owed && i < v->config.wires; i++) {
        struct end *w = &v->end[i];
        if (say_of(v, w, &w->died, OPTCC_DIED, event) || say_of(v, w, &w->fenced, OPTCC_FENCED, event) ||
            say_of(v, w, &w->back, OPTCC_BACK, event))
            return 1;
    }
    return 0;
}

static void poll(void *self, struct optcc_event *event)
{
    struct optcc_verbs *v = self;
    give_back(v);
    if (++v->polls >= LOOK_POLLS)
        look(v);
    if (say(v, event))
        return;
    for (uint32_t i = 0; i < v->config.nics; i++) {
        struct nic *n = &v->nic[v->next_nic];
        v->next_nic = v->next_nic + 1 == v->config.nics ? 0 : v->next_nic + 1;
        if (poll_nic(v, n, event))
            return;
    }
    look(v);
    if (!say(v, event))
        *event = (struct optcc_event){.news = OPTCC_NOTHING};
}

uint64_t optcc_verbs_free(struct optcc_verbs *v)
{
    uint64_t first_ns = UINT64_MAX;
    for (uint32_t i = 0; i < v->config.nics; i++) {
        struct nic *n = &v->nic[i];
        if (n->waits && first_ns > n->shared->free_ns - lead_ns(v, n))
            first_ns = n->shared->free_ns - lead_ns(v, n);
        n->waits = 0; /* else nobody would sleep any more when all has been sent */
    }
    return first_ns;
}

/* By a timer that is set to a time of the clock: a wait with a timeout looks at the clock several times, which in a
 * machine where that is slow costs more than the rest of a segment's work. */
static void sleep_for(void *self, uint64_t ns)
{
    struct optcc_verbs *v = self;
    struct epoll_event unused;
    uint64_t until_ns = v->now_ns + ns;
    const uint64_t free_ns = optcc_verbs_free(v);
    if (until_ns > free_ns)
        until_ns = free_ns;
    const struct itimerspec t = {.it_value = {.tv_sec = (time_t)(until_ns / 1000000000),
                                              .tv_nsec = (long)(until_ns % 1000000000)}};
    while (optcc_verbs_arm(v) != OPTCC_OK) {
        for (uint32_t i = 0; i < v->config.nics; i++)
            if (has_news(v, &v->nic[i]))
                return;
        if (v->owed || unheard(v))
            return;
    }
    if (timerfd_settime(v->timer, TFD_TIMER_ABSTIME, &t, NULL) == 0)
        epoll_wait(v->bed, &unused, 1, -1);
}

static const struct optcc_wires CONTRACT = {now, room, post, poll, fence, renew, sleep_for, NULL, NULL};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int load(struct optcc_verbs *v)
{
    const char *const name = v->config.library ? v->config.library : "libibverbs.so.1";
    /* It stays loaded: it loads the providers of devices, and those cannot be unloaded. */
    void *const library = dlopen(name, RTLD_NOW);
    if (!library)
        return because(OPTCC_BAD, "%s cannot be loaded: %s; on Debian and Ubuntu: apt install libibverbs1 "
                                  "ibverbs-providers", name, dlerror());
    const struct { const char *name; void *into; } found[] = {
#define FOUND(result, name, arguments) {"ibv_" #name, &v->call.name},
        CALLS(FOUND)};
    for (uint32_t i = 0; i < sizeof found / sizeof *found; i++) {
        void *const function = dlsym(library, found[i].name);
        if (!function)
            return because(OPTCC_BAD, "%s has no %s: expected rdma-core's library", name, found[i].name);
        memcpy(found[i].into, &function, sizeof function);
    }
    if (getenv("PLAYED_FABRIC") && !dlsym(library, "played_get")) /* real NICs would be taken for played ones */
        return because(OPTCC_BAD, "%s is not the played one, though PLAYED_FABRIC is set: expected the environment that "
                                  "`optcc fabric env` prints", name);
    /* Kernels before 5.12 could move registered pages away when a process forks. What is kept from a child is our own
     * memory then; that of callers, which a child may want, stays as it is. If it is too late, nothing is worse. */
    int (*fork_init)(void);
    void *const function = v->config.copies ? dlsym(library, "ibv_fork_init") : NULL;
    memcpy(&fork_init, &function, sizeof function);
    if (fork_init)
        (void)fork_init();
    return OPTCC_OK;
}

/* ---- which ports there are ---------------------------------------------------------------------------------------- */

static uint32_t speed_of(const struct ibv_port_attr *port)
{
    static const struct { uint8_t code; uint32_t is; } WIDTHS[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}},
        SPEEDS[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    uint32_t width = 0, speed = 0;
    for (uint32_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++)
        width = WIDTHS[i].code == port->active_width ? WIDTHS[i].is : width;
    for (uint32_t i = 0; i < sizeof SPEEDS / sizeof *SPEEDS; i++)
        speed = SPEEDS[i].code == port->active_speed ? SPEEDS[i].is : speed;
    return width * speed;
}

/* Whether sysfs says that an address is one of RoCE v1; played NICs have no sysfs, and v2 alone. */
static int is_old(const char *device, uint32_t port, int gid)
{
    char path[256], text[32] = "";
    snprintf(path, sizeof path, "/sys/class/infiniband/%.64s/ports/%u/gid_attrs/types/%d", device, port, gid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    const int old = !fgets(text, sizeof text, file) || strncmp(text, "RoCE v2", 7);
    fclose(file);
    return old;
}

/* The address of an Ethernet port that goes furthest: RoCE v2 with IPv4, then with IPv6, then of the link alone. */
static int32_t best_gid(const struct calls *call, struct ibv_context *context, const char *device, uint32_t number,
                        int count)
{
    static const uint8_t V4[12] = {[10] = 0xff, [11] = 0xff}, NONE[16];
    int32_t best = -1;
    int best_rank = 0;
    for (int i = 0; i < count && i <= UINT8_MAX; i++) {
        union ibv_gid gid;
        if (call->query_gid(context, (uint8_t)number, i, &gid) || !memcmp(gid.raw, NONE, sizeof NONE) ||
            is_old(device, number, i))
            continue;
        const int of_link = gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
        const int rank = !memcmp(gid.raw, V4, sizeof V4) ? 3 : of_link ? 1 : 2;
        if (rank > best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}

int optcc_verbs_ports(const char *library, struct optcc_verbs_port *ports, uint32_t *count)
{
    const uint32_t most = *count;
    struct optcc_verbs *v = calloc(1, sizeof *v);
    int devices = 0;
    *count = 0;
    if (!v)
        return because(OPTCC_MEMORY, "the system has no memory");
    v->config.library = library;
    int result = load(v);
    struct ibv_device **const list = result == OPTCC_OK ? v->call.get_device_list(&devices) : NULL;
    for (int i = 0; list && i < devices; i++) {
        const char *const name = v->call.get_device_name(list[i]);
        struct ibv_context *const context = strlen(name) < sizeof ports->device ? v->call.open_device(list[i]) : NULL;
        struct ibv_port_attr port;
        for (uint32_t number = 1; context && *count < most && !v->call.query_port(context, (uint8_t)number, &port); number++) {
            struct optcc_verbs_port *const p = &ports[(*count)++];
            *p = (struct optcc_verbs_port){.port = number, .gid_index = -1, .up = port.state == IBV_PORT_ACTIVE,
                                           .ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET, .mbps = speed_of(&port)};
            snprintf(p->device, sizeof p->device, "%s", name);
            if (p->ethernet)
                p->gid_index = best_gid(&v->call, context, name, number, port.gid_tbl_len);
            if (number == UINT8_MAX)
                break;
        }
        if (context)
            v->call.close_device(context);
    }
    if (list)
        v->call.free_device_list(list);
    free(v);
    return result;
}

static int draw(uint32_t *number)
{
    return optcc_draw(number, sizeof *number) ? OPTCC_OK : because(OPTCC_BAD, "no random numbers (getrandom): %s", strerror(errno));
}

static int dont_block(int file) { return fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK) < 0; }

static struct ibv_context *open_device(const struct optcc_verbs *v, struct nic *n) /* NULL, and `why` */
{
    int count = 0;
    struct ibv_device **const devices = v->call.get_device_list(&count);
    struct ibv_context *context = NULL;
    snprintf(n->why, sizeof n->why, "no RDMA device %s", n->name.device);
    for (int i = 0; devices && i < count; i++) {
        if (strcmp(v->call.get_device_name(devices[i]), n->name.device))
            continue;
        context = v->call.open_device(devices[i]);
        if (!context)
            snprintf(n->why, sizeof n->why, "%s cannot be opened: %s", n->name.device, strerror(errno));
    }
    if (devices)
        v->call.free_device_list(devices);
    return context;
}

/* How others reach it. */
static int ask_port(struct optcc_verbs *v, struct nic *n)
{
    int error = v->call.query_port(n->context, (uint8_t)n->name.port, &n->port);
    if (!error && n->name.gid_index >= 0 &&
        v->call.query_gid(n->context, (uint8_t)n->name.port, n->name.gid_index, &n->gid))
        error = errno;
    if (error)
        return because(OPTCC_BAD, "%s has no port %u with GID %d: %s", n->name.device, n->name.port, n->name.gid_index,
                       strerror(error));
    n->up = n->port.state == IBV_PORT_ACTIVE;
    if (n->port.active_mtu < 1 || n->port.active_mtu > 5)
        n->port.active_mtu = 1;
    return OPTCC_OK;
}

static int refused(const struct nic *n, const char *what)
{
    return because(errno == ENOMEM ? OPTCC_MEMORY : OPTCC_BAD,
                   "%s: no %s for %u wires: %s; compare the device's limits (ibv_devinfo -v) and the memory that a "
                   "process may lock (ulimit -l)", n->name.device, what, n->wires, strerror(errno));
}

static void leave_device(const struct optcc_verbs *v, struct optcc_device *d)
{
    if (--d->users)
        return;
    if (d->domain)
        v->call.dealloc_pd(d->domain);
    v->call.close_device(d->context);
    d->context = NULL;
    d->domain = NULL;
}

/* The device is open once for all that share it. OK, also without one, and `why`. */
static int share_device(struct optcc_verbs *v, struct nic *n)
{
    struct optcc_device *const d = n->shared;
    if (d->users && d->dead) {
        snprintf(n->why, sizeof n->why, "%s is lost, and others have not left it yet", n->name.device);
        return OPTCC_OK;
    }
    if (!d->users) {
        if (!(d->context = open_device(v, n)))
            return OPTCC_OK;
        d->dead = 0;
        d->told = 0;
        d->domain = dont_block(d->context->async_fd) ? NULL : v->call.alloc_pd(d->context);
    }
    d->users++;
    n->context = d->context;
    n->domain = d->domain;
    n->heard = d->told;
    return n->domain ? OPTCC_OK : refused(n, "protection domain");
}

static int open_nic(struct optcc_verbs *v, struct nic *n)
{
    struct ibv_device_attr limits;
    if (share_device(v, n) != OPTCC_OK)
        return OPTCC_BAD;
    if (!n->context)
        return OPTCC_OK; /* its wires are lost, and others may do */
    n->why[0] = 0;
    if (v->call.query_device(n->context, &limits))
        return because(OPTCC_BAD, "%s does not tell its limits", n->name.device);
    const uint32_t most = limits.max_qp_wr > 0 ? (uint32_t)limits.max_qp_wr : 0;
    if (v->receives > most || most < LEAST_DEPTH)
        return because(OPTCC_BAD, "%s: a queue pair may have %u requests (max_qp_wr), and a window needs %u; take a "
                                  "smaller window, or longer segments", n->name.device, most, v->receives);
    if (ask_port(v, n) != OPTCC_OK)
        return OPTCC_BAD;
    n->control_receives = least(least(n->wires * (v->receives + CONTROL_SPARE) + 1, most), UINT16_MAX);
    n->control_depth = least(n->control_receives, most) / CONTROL_SIGNAL * CONTROL_SIGNAL;
    if (n->control_depth < LEAST_DEPTH)
        n->control_depth = LEAST_DEPTH;
    if (!(n->channel = v->call.create_comp_channel(n->context)) || dont_block(n->channel->fd))
        return refused(n, "completion channel");
    /* Twice what can be posted: completions of what was forgotten may still be there. */
    const uint64_t entries = 2 * (2 * (uint64_t)n->wires * v->receives + n->control_receives + n->control_depth);
    if (entries > INT32_MAX || !(n->queue = v->call.create_cq(n->context, (int)entries, NULL, n->channel, 0)))
        return refused(n, "completion queue");
    const uint64_t bytes = (uint64_t)n->control_depth * head_bytes() + (uint64_t)n->control_receives * control_slot_bytes() +
                           (uint64_t)n->wires * v->receives * (place_bytes(v) + (uint64_t)v->slot_bytes);
    n->memory = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (!n->memory)
        return refused(n, "memory");
    memset(n->memory, 0, bytes);
    if (!(n->region = v->call.reg_mr(n->domain, n->memory, bytes, IBV_ACCESS_LOCAL_WRITE)))
        return refused(n, "memory region");
    n->control_heads = n->memory;
    n->control_slots = n->control_heads + (uint64_t)n->control_depth * head_bytes();
    if (!(n->control = make_pair(v, n, IBV_QPT_UD, n->control_depth, n->control_receives)))
        return refused(n, "queue pair for datagrams");
    if (draw(&n->control_key) != OPTCC_OK)
        return OPTCC_BAD;
    n->control_key &= INT32_MAX; /* the highest bit has a meaning of its own */
    errno = revive_control(v, n);
    return errno ? refused(n, "datagrams") : OPTCC_OK;
}

static int open_ends(struct optcc_verbs *v, struct nic *n)
{
    unsigned char *at = n->control_slots + (uint64_t)n->control_receives * control_slot_bytes();
    for (uint32_t i = 0; i < v->config.wires; i++) {
        struct end *w = &v->end[i];
        if (w->nic != n)
            continue;
        w->heads = at;
        w->slots = at + (uint64_t)v->receives * place_bytes(v);
        at = w->slots + (uint64_t)v->receives * v->slot_bytes;
        if (draw(&w->first_packet) != OPTCC_OK)
            return OPTCC_BAD;
        w->first_packet %= PACKETS;
        if (!(w->pair = make_pair(v, n, IBV_QPT_RC, v->receives, v->receives)))
            return refused(n, "queue pairs");
    }
    return OPTCC_OK;
}

static int watch(struct optcc_verbs *v, int file)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(v->sleeper, EPOLL_CTL_ADD, file, &event);
}

static int check(const struct optcc_verbs_config *c)
{
    if (c->ranks > OPTCC_MAX_RANKS || c->rank >= c->ranks)
        return because(OPTCC_BAD, "rank %u of %u: expected less than their number, %u at most", c->rank, c->ranks,
                       OPTCC_MAX_RANKS);
    if (!c->nics || c->nics > OPTCC_MAX_NICS)
        return because(OPTCC_BAD, "%u NICs: expected 1 to %u", c->nics, OPTCC_MAX_NICS);
    if (!c->segment_bytes || c->segment_bytes % 8 || c->segment_bytes > OPTCC_MAX_SEGMENT)
        return because(OPTCC_BAD, "segments of %u bytes: expected a multiple of 8, %u at most", c->segment_bytes,
                       OPTCC_MAX_SEGMENT);
    if (!c->ahead)
        return because(OPTCC_BAD, "ahead 0: expected how many payloads a NIC may have at once, 1 or more");
    if (c->timeout < 1 || c->timeout > 31 || c->retries > 6)
        return because(OPTCC_BAD, "timeout %u, retries %u: expected 1 to 31 and 0 to 6", c->timeout, c->retries);
    for (uint32_t i = 0; i < c->nics; i++)
        if (!c->nic[i].device || strlen(c->nic[i].device) >= DEVICE_BYTES || c->nic[i].port < 1 || c->nic[i].port > UINT8_MAX || c->nic[i].gid_index > UINT8_MAX)
            return because(OPTCC_BAD, "NIC %u: expected a device's name, a port from 1 to 255 and the index of a GID",
                           i);
    return OPTCC_OK;
}

static int take_wires(struct optcc_verbs *v, const struct optcc_wire *wires)
{
    for (uint32_t i = 0; i < v->config.wires; i++) {
        const struct optcc_wire *w = &wires[i];
        const int fits = w->peer < v->config.ranks && w->peer != v->config.rank && w->nic < v->config.nics &&
                         w->far_nic < OPTCC_MAX_NICS && w->lane < OPTCC_MAX_LANES;
        uint32_t *const of = fits ? &v->wire_of[w->peer * OPTCC_MAX_LANES + w->lane] : NULL;
        if (!fits || *of || (w->lane && !of[-1]))
            return because(OPTCC_BAD, "wire %u, lane %u to rank %u: expected lanes from 0 in their order, another rank "
                                      "and a NIC that is there", i, w->lane, w->peer);
        *of = i + 1;
        v->wire[i] = *w;
        v->end[i] = (struct end){.ends = *w, .index = i, .is = LOST, .nic = &v->nic[w->nic]};
        v->nic[w->nic].wires++;
    }
    return OPTCC_OK;
}

static void name_nic(struct nic *n, const struct optcc_verbs_nic *name, uint32_t index)
{
    *n = (struct nic){.name = *name, .index = index};
    snprintf(n->device, sizeof n->device, "%s", name->device);
    n->name.device = n->device;
    n->shared = name->shared ? name->shared : &n->own;
}

int optcc_verbs_open(const struct optcc_verbs_config *config, struct optcc_verbs **verbs)
{
    *verbs = NULL;
    int result = check(config);
    if (result != OPTCC_OK)
        return result;
    struct optcc_verbs *v = calloc(1, sizeof *v);
    if (!v)
        return because(OPTCC_MEMORY, "the system has no memory");
    v->config = *config;
    v->sleeper = epoll_create1(EPOLL_CLOEXEC);
    v->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    v->bed = epoll_create1(EPOLL_CLOEXEC);
    v->receives = least(config->window_bytes / config->segment_bytes + 1, OPTCC_SPAN) + DATA_SPARE;
    v->slot_bytes = (uint32_t)in_lines(sizeof(struct optcc_frame) + config->segment_bytes);
    v->nic = calloc(config->nics, sizeof *v->nic);
    v->end = calloc(config->wires + 1, sizeof *v->end);
    v->wire = calloc(config->wires + 1, sizeof *v->wire);
    v->wire_of = calloc((size_t)config->ranks * OPTCC_MAX_LANES, sizeof *v->wire_of);
    if (!v->nic || !v->end || !v->wire || !v->wire_of || v->sleeper < 0 || v->timer < 0 || v->bed < 0)
        result = because(OPTCC_MEMORY, "the system has no memory, or no descriptors: %s", strerror(errno));
    struct epoll_event event = {.events = EPOLLIN};
    if (result == OPTCC_OK && (epoll_ctl(v->bed, EPOLL_CTL_ADD, v->sleeper, &event) ||
                               epoll_ctl(v->bed, EPOLL_CTL_ADD, v->timer, &event)))
        result = because(OPTCC_MEMORY, "no descriptor to sleep by: %s", strerror(errno));
    for (uint32_t i = 0; result == OPTCC_OK && i < config->nics; i++)
        name_nic(&v->nic[i], &config->nic[i], i);
    if (result == OPTCC_OK)
        result = take_wires(v, config->wire);
    if (result == OPTCC_OK)
        result = load(v);
    uint32_t there = 0;
    for (uint32_t i = 0; result == OPTCC_OK && i < config->nics; i++) {
        struct nic *n = &v->nic[i];
        result = open_nic(v, n);
        if (result != OPTCC_OK || !n->context)
            continue;
        there++;
        result = open_ends(v, n);
        if (result == OPTCC_OK && (watch(v, n->channel->fd) || watch(v, n->context->async_fd)))
            result = refused(n, "place among what is slept on");
    }
    if (result == OPTCC_OK && !there)
        result = because(OPTCC_BAD, "none of %u NICs is there: %s", config->nics, v->nic[0].why);
    v->config.nic = NULL; /* they are the caller's */
    v->config.wire = NULL;
    v->config.library = NULL;
    if (result == OPTCC_OK)
        *verbs = v;
    else
        optcc_verbs_close(v);
    return result;
}

static void close_nic(const struct optcc_verbs *v, struct nic *n)
{
    if (n->shared)
        n->shared->in_hand -= n->in_hand;
    if (n->control)
        v->call.destroy_qp(n->control);
    for (uint32_t i = 0; i < REGIONS; i++)
        if (v->region[i].of[n->index])
            v->call.dereg_mr(v->region[i].of[n->index]);
    if (n->region)
        v->call.dereg_mr(n->region);
    free(n->memory);
    if (n->queue)
        v->call.destroy_cq(n->queue);
    if (n->channel)
        v->call.destroy_comp_channel(n->channel);
    if (n->context)
        leave_device(v, n->shared);
}

void optcc_verbs_close(struct optcc_verbs *v)
{
    if (!v)
        return;
    for (uint32_t i = 0; v->end && i < v->config.wires; i++) {
        if (v->end[i].pair)
            v->call.destroy_qp(v->end[i].pair);
        if (v->end[i].route)
            v->call.destroy_ah(v->end[i].route);
    }
    for (uint32_t i = 0; v->nic && i < v->config.nics; i++)
        close_nic(v, &v->nic[i]);
    const int own[] = {v->bed, v->timer, v->sleeper};
    for (uint32_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i] >= 0)
            close(own[i]);
    free(v->nic);
    free(v->end);
    free(v->wire);
    free(v->wire_of);
    free(v);
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

static struct end *lane_to(struct optcc_verbs *v, uint32_t peer, uint32_t lane)
{
    const uint32_t of = lane < OPTCC_MAX_LANES ? v->wire_of[peer * OPTCC_MAX_LANES + lane] : 0;
    return of ? &v->end[of - 1] : NULL;
}

static uint32_t lanes_to(struct optcc_verbs *v, uint32_t peer)
{
    uint32_t lanes = 0;
    while (lane_to(v, peer, lanes))
        lanes++;
    return lanes;
}

static int check_peer(struct optcc_verbs *v, uint32_t peer)
{
    if (peer >= v->config.ranks || !lanes_to(v, peer))
        return because(OPTCC_BAD, "rank %u: expected one to which there are wires", peer);
    return OPTCC_OK;
}

int optcc_verbs_handle(struct optcc_verbs *v, uint32_t peer, void *bytes, uint64_t *length)
{
    if (check_peer(v, peer) != OPTCC_OK)
        return OPTCC_BAD;
    const uint32_t lanes = lanes_to(v, peer);
    const uint64_t needed = sizeof(struct handle) + lanes * sizeof(struct end_told), given = *length;
    *length = needed;
    if (given < needed)
        return because(OPTCC_BAD, "%llu bytes for a handle: expected %llu", (unsigned long long)given,
                       (unsigned long long)needed);
    const struct handle handle = {.magic = HANDLE_MAGIC, .version = HANDLE_VERSION, .from = v->config.rank, .to = peer,
                                  .segment_bytes = v->config.segment_bytes, .receives = v->receives, .lanes = lanes};
    unsigned char *at = bytes;
    memcpy(at, &handle, sizeof handle);
    at += sizeof handle;
    for (uint32_t lane = 0; lane < lanes; lane++, at += sizeof(struct end_told)) {
        const struct end *w = lane_to(v, peer, lane);
        const struct nic *n = w->nic;
        struct end_told told = {.lane = lane, .nic = w->ends.nic, .far_nic = w->ends.far_nic};
        if (w->pair) {
            told.data_number = w->pair->qp_num;
            told.control_number = n->control->qp_num;
            told.control_key = n->control_key;
            told.first_packet = w->first_packet;
            told.lid = n->port.lid;
            told.mtu = (uint8_t)n->port.active_mtu;
            told.global = n->name.gid_index >= 0;
            memcpy(told.gid, n->gid.raw, sizeof told.gid);
        }
        memcpy(at, &told, sizeof told);
    }
    return OPTCC_OK;
}

static int check_told(const struct end *w, const struct end_told *told)
{
    const struct nic *n = w->nic;
    if (told->nic != w->ends.far_nic || told->far_nic != w->ends.nic || told->lane != w->ends.lane)
        return because(OPTCC_BAD, "rank %u, lane %u: it goes from NIC %u to %u there, and from %u to %u here",
                       w->ends.peer, w->ends.lane, told->far_nic, told->nic, w->ends.nic, w->ends.far_nic);
    if (!told->data_number || !w->pair)
        return OPTCC_OK;
    if (told->data_number >= PACKETS || !told->control_number || told->control_number >= PACKETS ||
        told->first_packet >= PACKETS || told->control_key > INT32_MAX || told->mtu < 1 || told->mtu > 5)
        return because(OPTCC_BAD, "rank %u, lane %u: what it tells is no queue pair", w->ends.peer, w->ends.lane);
    if (told->global != (n->name.gid_index >= 0))
        return because(OPTCC_BAD, "rank %u, lane %u: one end goes by GID, the other by LID; give both an index of a "
                                  "GID, or neither", w->ends.peer, w->ends.lane);
    return OPTCC_OK;
}

int optcc_verbs_join(struct optcc_verbs *v, uint32_t peer, const void *bytes, uint64_t length)
{
    struct handle handle;
    struct end_told told[OPTCC_MAX_LANES];
    if (check_peer(v, peer) != OPTCC_OK)
        return OPTCC_BAD;
    const uint32_t lanes = lanes_to(v, peer);
    if (length != sizeof handle + lanes * sizeof *told)
        return because(OPTCC_BAD, "the handle of rank %u has %llu bytes: expected %llu, for %u lanes", peer,
                       (unsigned long long)length, (unsigned long long)(sizeof handle + lanes * sizeof *told), lanes);
    memcpy(&handle, bytes, sizeof handle);
    memcpy(told, (const unsigned char *)bytes + sizeof handle, lanes * sizeof *told);
    if (handle.magic != HANDLE_MAGIC || handle.version != HANDLE_VERSION || handle.from != peer ||
        handle.to != v->config.rank || handle.lanes != lanes)
        return because(OPTCC_BAD, "the handle of rank %u is none of this version for rank %u", peer, v->config.rank);
    if (handle.segment_bytes != v->config.segment_bytes || handle.receives != v->receives)
        return because(OPTCC_BAD, "rank %u has segments of %u bytes and %u receives a wire, this one %u and %u: expected "
                                  "the same segments and window at all ranks", peer, handle.segment_bytes,
                       handle.receives, v->config.segment_bytes, v->receives);
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const struct end *w = lane_to(v, peer, lane);
        if (w->joined)
            return because(OPTCC_BAD, "rank %u has been joined before", peer);
        if (check_told(w, &told[lane]) != OPTCC_OK)
            return OPTCC_BAD;
    }
    for (uint32_t lane = 0; lane < lanes; lane++) {
        struct end *w = lane_to(v, peer, lane);
        w->far = told[lane];
        w->joined = told[lane].data_number && w->pair;
        if (begin_life(v, w, 1) != OPTCC_OK)
            owe(v, &w->died); /* it may come later, if there are such NICs */
    }
    return OPTCC_OK;
}

int optcc_verbs_engine(struct optcc_verbs *v, const struct optcc_config *config, struct optcc_engine **engine)
{
    struct optcc_config own = *config;
    *engine = NULL;
    own.rank = v->config.rank;
    own.ranks = v->config.ranks;
    own.nics = v->config.nics;
    own.wires = v->config.wires;
    if (own.segment_bytes != v->config.segment_bytes || own.window_bytes != v->config.window_bytes)
        return because(OPTCC_BAD, "segments of %u bytes and a window of %u: expected %u and %u, as these wires have",
                       own.segment_bytes, own.window_bytes, v->config.segment_bytes, v->config.window_bytes);
    const int result = optcc_open(&own, v->wire, &CONTRACT, v, engine);
    return result == OPTCC_OK ? result : because(result, "these settings are not an engine's");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void let_go(const struct optcc_verbs *v, struct region *r)
{
    for (uint32_t i = 0; i < v->config.nics; i++)
        if (r->of[i])
            v->call.dereg_mr(r->of[i]);
    *r = (struct region){0};
}

int optcc_verbs_register(struct optcc_verbs *v, void *memory, uint64_t bytes)
{
    struct region *r = NULL;
    for (uint32_t i = 0; i < REGIONS && !r; i++)
        if (!v->region[i].bytes)
            r = &v->region[i];
    if (!bytes || !r)
        return because(OPTCC_BAD, "%llu bytes: expected some, in %d regions at most; unregister others",
                       (unsigned long long)bytes, REGIONS);
    r->at = memory;
    r->bytes = bytes;
    for (uint32_t i = 0; i < v->config.nics; i++) {
        struct nic *n = &v->nic[i];
        if (!n->context || n->gone)
            continue;
        r->of[i] = v->call.reg_mr(n->domain, memory, bytes, 0);
        if (!r->of[i] && (errno == EIO || errno == ENODEV)) {
            nic_lost(v, n, "registers no memory", errno);
        } else if (!r->of[i]) {
            const int error = errno;
            let_go(v, r);
            return because(error == ENOMEM ? OPTCC_MEMORY : OPTCC_BAD,
                           "%llu bytes cannot be registered on %s: %s; compare the memory that a process may lock "
                           "(ulimit -l)", (unsigned long long)bytes, n->name.device, strerror(error));
        }
    }
    return OPTCC_OK;
}

int optcc_verbs_unregister(struct optcc_verbs *v, const void *memory)
{
    for (uint32_t i = 0; i < REGIONS; i++)
        if (v->region[i].bytes && v->region[i].at == memory) {
            let_go(v, &v->region[i]);
            return OPTCC_OK;
        }
    return because(OPTCC_BAD, "nothing that begins there is registered");
}

/* ---- sleeping, looking ------------------------------------------------------------------------------------------- */

int optcc_verbs_fd(const struct optcc_verbs *v) { return v->sleeper; }

int optcc_verbs_arm(struct optcc_verbs *v)
{
    int quiet = 1;
    for (uint32_t i = 0; i < v->config.nics; i++) {
        struct nic *n = &v->nic[i];
        struct ibv_cq *queue;
        void *context;
        if (!n->context || n->gone)
            continue;
        while (v->call.get_cq_event(n->channel, &queue, &context) == 0) {
            v->call.ack_cq_events(queue, 1);
            n->armed = 0;
        }
        if (n->armed)
            continue;
        const int error = n->context->ops.req_notify_cq(n->queue, 0);
        if (error)
            nic_lost(v, n, "tells of no completions", error);
        n->armed = !error;
        quiet = 0;
    }
    return quiet && !v->owed && !unheard(v) ? OPTCC_OK : OPTCC_AGAIN;
}

int optcc_verbs_cut(struct optcc_verbs *v, uint32_t nic, int device)
{
    if (nic >= v->config.nics)
        return OPTCC_BAD;
    struct nic *n = &v->nic[nic];
    if (!n->context || n->gone)
        return OPTCC_OK;
    if (into(v, n->control, IBV_QPS_ERR)) /* then nothing of it can be trusted */
        device = 1;
    for (uint32_t i = 0; i < v->config.wires; i++)
        if (v->end[i].nic == n && v->end[i].pair && v->end[i].is == OPEN && into(v, v->end[i].pair, IBV_QPS_ERR))
            device = 1;
    if (device)
        nic_lost(v, n, "cut", EIO);
    n->up = 0; /* and nobody says that it is back */
    for (uint32_t i = 0; i < v->config.wires; i++)
        if (v->end[i].nic == n)
            lose(v, &v->end[i]);
    return OPTCC_OK;
}

const char *optcc_verbs_fault(const struct optcc_verbs *v) { return v->fault[0] ? v->fault : NULL; }

int optcc_verbs_look(const struct optcc_verbs *v, uint32_t nic, struct optcc_verbs_state *state)
{
    if (nic >= v->config.nics)
        return OPTCC_BAD;
    const struct nic *n = &v->nic[nic];
    *state = (struct optcc_verbs_state){.there = n->context && !n->gone, .up = (uint32_t)n->up, .in_hand = n->in_hand,
                                        .why = n->why};
    return OPTCC_OK;
}
