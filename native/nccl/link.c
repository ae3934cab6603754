/* A link: two processes, and the engine of two ranks between them. Rank 0 has made it, to send to ports of the other.
 *
 * Before there is an engine the two meet at one of the other's doors, sockets whose addresses and secret a handle tells:
 *
 *   who has the door   CHALLENGE  a random number
 *   who comes          OFFER      another one; which NICs it has, and a handle of its wires; code of all that
 *   who has the door   ANSWER     likewise
 *
 * The code is HMAC-SHA-256 under the secret of the handle. Both numbers and that secret make the secret of the wires
 * (wires_tcp.c), which is never sent. A door that does not answer is tried again after the others, and the other way.
 *   What that keeps out: whoever can reach the ports but has not got a handle. NCCL carries handles over its own
 * connections, without encryption: who reads these has the secret.
 *
 * A meeting is bounded in time, and what it reads in length. Links that nobody uses are closed by net.c.
 *
 * Over RDMA the connection of the meeting stays: it ends when the other process does, whatever way it ends, which queue
 * pairs do not tell. That it breaks otherwise means nothing.
 */
#define _GNU_SOURCE
#include "net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANDLE_MAGIC UINT32_C(0x0cc70a21)
#define MEETING_MAGIC UINT32_C(0x0cc70a22)
enum { LINK_VERSION = 5 };
enum { SURE_LOOKS = 5 }; /* a NIC of a peer is told after so many looks that agree */

static const uint64_t TRY_NS = UINT64_C(1000000000);  /* for one door */
static const uint64_t GUEST_NS = UINT64_C(3000000000); /* for who is at a door */
static const uint64_t PAUSE_NS = 20000000;            /* before the first door is tried again */
static const uint64_t LEFT_NS = UINT64_C(2000000000); /* after the end of a process its last words have come */
static const uint64_t ACK_NS = 100000;                /* short messages are acknowledged so late: some hops of a ring, of
                                                          which each brings an acknowledgement with it. A ring of four, 8
                                                          bytes: 169 us a call, with a millisecond the same, with none 244 */
static const uint64_t QUIET_NS = 20000000;            /* datagrams that nothing has followed for so long have left */
enum { /* of queue pairs */
    AHEAD = 16,                /* payloads that a NIC may have: with 4 one of 10 Gb/s was idle, with 64 urgent ones wait */
    TIMEOUT = 16, RETRIES = 6, /* a quarter of a second, seven times; the engine doubts a silent wire before */
    HANDLE_BYTES = 4096        /* room for that of 64 lanes */
};

struct challenge {
    uint32_t magic;
    uint8_t version, unused[3];
    uint8_t nonce[NONCE];
};

struct offer { /* and ANSWER */
    uint32_t magic;
    uint8_t version, nics, all_lanes, way;
    uint64_t process;
    uint32_t segment_bytes, handle_bytes;
    uint8_t nonce[NONCE];
    uint8_t family[OPTCC_MAX_NICS]; /* of each NIC's address */
    char host[PEER_HOST], nic[OPTCC_MAX_NICS][PEER_NIC];
    uint8_t handle[HANDLE_BYTES];
    uint8_t code[OPTCC_HMAC];
};
_Static_assert(sizeof(struct challenge) == 24 && sizeof(struct offer) == 40 + OPTCC_MAX_NICS + PEER_HOST + OPTCC_MAX_NICS * PEER_NIC +
                                                             HANDLE_BYTES + OPTCC_HMAC,
               "they travel without holes");
_Static_assert((int)OPTCC_TCP_MAX_HANDLE <= (int)HANDLE_BYTES, "either kind fits");

enum stage { CONNECTING, AWAITS_CHALLENGE, SENDS_OFFER, AWAITS_ANSWER, SENDS_CHALLENGE, AWAITS_OFFER, SENDS_ANSWER };

struct meeting {
    int fd; /* -1: none */
    uint32_t stage, door;
    uint64_t since_ns, again_ns;
    uint64_t done; /* bytes of what is sent or awaited */
    struct challenge challenge;
    struct offer offer, answer;
};

struct link {
    const struct process *process;
    enum link_is is;
    char why[256];
    uint32_t rank;
    uint64_t since_ns;
    struct handle far; /* of who is met */
    uint64_t far_process;
    struct meeting meeting;
    struct optcc_tcp *tcp;     /* one of the two */
    struct optcc_verbs *verbs;
    int lifeline;              /* with `verbs`: the connection of the meeting; -1: none */
    uint64_t moved_ns, left_ns; /* when anything has moved last; when the other process has ended, or 0 */
    int left;
    struct optcc_engine *engine;
    struct optcc_messages *messages;
    uint32_t wires;
    struct optcc_wire ends[OPTCC_MAX_LANES]; /* of the wires */
    struct optcc_counters counted;
    char far_host[PEER_HOST], far_nic[OPTCC_MAX_NICS][PEER_NIC];
    struct { /* a wire, as it was seen */
        int lost;
        uint64_t acked, full; /* bytes */
    } seen[OPTCC_MAX_LANES];
    struct { /* a NIC of the peer, lost when no wire to it carries */
        int told, silent; /* whether it is lost, as told last; told as a NIC of ours */
        uint32_t looks;   /* that differ from what was told */
    } far_seen[OPTCC_MAX_NICS];
    uint32_t lost_nics; /* of ours, as `link_newly_lost` saw them last */
    int idle; /* since the last look there was a moment at which nothing waited for a wire */
};

/* ---- doors and handles -------------------------------------------------------------------------------------------- */

int doors_open(struct process *p, char *why, size_t room)
{
    p->doors = 0;
    if (!optcc_draw(&p->id, sizeof p->id) || !optcc_draw(p->secret, sizeof p->secret)) {
        snprintf(why, room, "no random numbers (getrandom): %s", strerror(errno));
        return -1;
    }
    for (uint32_t i = 0; i < p->meets && p->doors < DOORS; i++) {
        p->door_address[p->doors] = p->meet[i].address;
        const int fd = optcc_tcp_listen(&p->door_address[p->doors], 1024);
        if (fd < 0) {
            snprintf(why, room, "NIC %s: cannot listen on its address: %s", p->meet[i].name, strerror(errno));
            doors_close(p);
            return -1;
        }
        p->door[p->doors++] = fd;
    }
    return 0;
}

void doors_close(struct process *p)
{
    for (uint32_t i = 0; i < p->doors; i++)
        close(p->door[i]);
    p->doors = 0;
}

void handle_write(const struct process *p, uint64_t port, struct handle *handle)
{
    *handle = (struct handle){.magic = HANDLE_MAGIC, .version = LINK_VERSION, .doors = (uint8_t)p->doors,
                              .way = (uint8_t)p->way, .nics = (uint8_t)p->nics, .process = p->id, .port = port};
    memcpy(handle->secret, p->secret, SECRET);
    for (uint32_t i = 0; i < p->doors; i++) {
        handle->door[i].family = (uint8_t)p->door_address[i].family;
        handle->door[i].port = (uint16_t)p->door_address[i].port;
        memcpy(handle->door[i].bytes, p->door_address[i].bytes, 16);
    }
}

int handle_read(const void *bytes, struct handle *handle, char *why, size_t room)
{
    memcpy(handle, bytes, sizeof *handle);
    if (handle->magic != HANDLE_MAGIC) {
        snprintf(why, room, "the peer's handle is not optcc's: all ranks need the same NCCL_NET_PLUGIN");
        return 0;
    }
    if (handle->version != LINK_VERSION) {
        snprintf(why, room, "the peer's plugin speaks version %u, this one %d: install the same optcc everywhere",
                 handle->version, LINK_VERSION);
        return 0;
    }
    int good = handle->doors >= 1 && handle->doors <= DOORS && handle->nics >= 1 && handle->nics <= OPTCC_MAX_NICS;
    for (uint32_t i = 0; good && i < handle->doors; i++)
        good = (handle->door[i].family == 4 || handle->door[i].family == 6) && handle->door[i].port;
    if (!good)
        snprintf(why, room, "the peer's handle is broken");
    return good;
}

/* ---- the engine of a link ----------------------------------------------------------------------------------------- */

static void lose(struct link *l, const char *why)
{
    l->is = LINK_LOST;
    snprintf(l->why, sizeof l->why, "%s", why);
    if (l->meeting.fd >= 0)
        close(l->meeting.fd);
    l->meeting.fd = -1;
}

static void code_of(const uint8_t *secret, const char *who, const uint8_t *challenge, const struct offer *offer,
                    const uint8_t *other, uint8_t code[OPTCC_HMAC])
{
    struct {
        char who[16];
        uint8_t challenge[NONCE], other[NONCE];
        struct offer offer;
    } said;
    memset(&said, 0, sizeof said);
    strncpy(said.who, who, sizeof said.who - 1);
    memcpy(said.challenge, challenge, NONCE);
    if (other)
        memcpy(said.other, other, NONCE);
    said.offer = *offer;
    memset(said.offer.code, 0, sizeof said.offer.code);
    optcc_hmac(secret, SECRET, &said, sizeof said, code);
}

/* The lanes, the same at both ends: NIC i with NIC i, those of the shorter side again and again, or all with all. Only
 * addresses of the same family reach each other. */
static uint32_t lanes_of(const struct link *l, const struct offer *first, const struct offer *second,
                         struct optcc_wire *lanes)
{
    const uint32_t longer = first->nics > second->nics ? first->nics : second->nics;
    const uint32_t turns = first->all_lanes ? second->nics : 1;
    uint32_t count = 0;
    for (uint32_t turn = 0; turn < turns; turn++)
        for (uint32_t i = 0; i < (first->all_lanes ? first->nics : longer) && count < OPTCC_MAX_LANES; i++) {
            const uint32_t a = i % first->nics, b = (i + turn) % second->nics;
            if (first->family[a] != second->family[b])
                continue;
            lanes[count] = (struct optcc_wire){.peer = 1 - l->rank, .nic = l->rank ? b : a, .far_nic = l->rank ? a : b,
                                               .lane = count};
            count++;
        }
    return count;
}

/* Rank and secret are known: sockets for the wires, and what the other one must know of them. */
static int open_sockets(struct link *l, const uint8_t *secret, const uint8_t *first, const uint8_t *second,
                        struct offer *told)
{
    const struct process *p = l->process;
    struct {
        char who[16];
        uint8_t first[NONCE], second[NONCE];
    } said = {.who = "wires"};
    struct optcc_tcp_config config = {.rank = l->rank, .ranks = 2, .nics = p->nics,
                                      .segment_bytes = p->settings.segment_bytes};
    memcpy(said.first, first, NONCE);
    memcpy(said.second, second, NONCE);
    optcc_hmac(secret, SECRET, &said, sizeof said, config.secret);
    for (uint32_t i = 0; i < p->nics; i++)
        config.address[i] = p->nic[i].address;
    if (optcc_tcp_open(&config, &l->tcp) != OPTCC_OK) {
        char why[200];
        snprintf(why, sizeof why, "cannot listen on the addresses of the NICs: %s%s", strerror(errno),
                 errno == EMFILE ? " (ulimit -n)" : "");
        lose(l, why);
        return 0;
    }
    for (uint32_t i = 0; i < p->nics; i++)
        told->family[i] = (uint8_t)p->nic[i].address.family;
    told->handle_bytes = OPTCC_TCP_MAX_HANDLE;
    if (optcc_tcp_handle(l->tcp, told->handle, &told->handle_bytes) != OPTCC_OK) {
        lose(l, "too many NICs for a handle");
        return 0;
    }
    return 1;
}

/* Likewise queue pairs, one for each lane; so both must know how many NICs the other has. */
static int open_pairs(struct link *l, const struct offer *far, struct offer *told)
{
    const struct process *p = l->process;
    struct optcc_verbs_nic nic[OPTCC_MAX_NICS];
    struct optcc_wire lanes[OPTCC_MAX_LANES];
    for (uint32_t i = 0; i < p->nics; i++)
        nic[i] = (struct optcc_verbs_nic){.device = p->nic[i].name, .port = p->nic[i].port,
                                          .gid_index = p->nic[i].gid_index, .shared = &p->device[i],
                                          .bytes_per_s = (uint64_t)p->nic[i].speed_mbps * 125000};
    const struct optcc_verbs_config config = {
        .rank = l->rank, .ranks = 2, .nics = p->nics, .nic = nic, .wire = lanes,
        .wires = lanes_of(l, l->rank ? far : told, l->rank ? told : far, lanes),
        .segment_bytes = p->settings.segment_bytes, .window_bytes = p->settings.window_bytes, .ahead = AHEAD,
        .lead_bytes = p->settings.segment_bytes,
        .timeout = TIMEOUT, .retries = RETRIES, .copies = 1};
    uint64_t length = HANDLE_BYTES;
    if (optcc_verbs_open(&config, &l->verbs) != OPTCC_OK ||
        optcc_verbs_handle(l->verbs, 1 - l->rank, told->handle, &length) != OPTCC_OK) {
        lose(l, optcc_verbs_why());
        return 0;
    }
    told->handle_bytes = (uint32_t)length;
    return 1;
}

/* Our end of the wires. `far` : what is known of the other; of who has the door, how many NICs it has. */
static int open_wires(struct link *l, const uint8_t *secret, const uint8_t *first, const uint8_t *second,
                      const struct offer *far, struct offer *told)
{
    const struct process *p = l->process;
    optcc_tcp_close(l->tcp); /* of an attempt before */
    optcc_verbs_close(l->verbs);
    l->tcp = NULL;
    l->verbs = NULL;
    *told = (struct offer){.magic = MEETING_MAGIC, .version = LINK_VERSION, .nics = (uint8_t)p->nics,
                           .all_lanes = (uint8_t)p->settings.all_lanes, .way = (uint8_t)p->way, .process = p->id,
                           .segment_bytes = p->settings.segment_bytes};
    memcpy(told->nonce, l->rank ? second : first, NONCE);
    snprintf(told->host, sizeof told->host, "%s", p->host);
    for (uint32_t i = 0; i < p->nics; i++)
        snprintf(told->nic[i], sizeof told->nic[i], "%.*s", PEER_NIC - 1, p->nic[i].name);
    return p->way == WAY_TCP ? open_sockets(l, secret, first, second, told) : open_pairs(l, far, told);
}

static int open_engine(struct link *l, const struct offer *first, const struct offer *second)
{
    const struct settings *s = &l->process->settings;
    const struct offer *far = l->rank ? first : second;
    struct optcc_wire lanes[OPTCC_MAX_LANES];
    const uint32_t count = lanes_of(l, first, second, lanes);
    if (!count) {
        lose(l, "no NIC here has an address of the same family (IPv4, IPv6) as one there: see NCCL_SOCKET_FAMILY");
        return 0;
    }
    const struct optcc_config config = {
        .segment_bytes = s->segment_bytes, .window_bytes = s->window_bytes, .job = far->process ^ l->process->id,
        .suspect_ns = s->suspect_ns, .grace_ns = s->suspect_ns / 2, .knock_ns = s->suspect_ns, .return_ns = s->return_ns,
        .ack_ns = ACK_NS};
    const struct optcc_messages_config messages = {.peer = 1 - l->rank, .streams = MOST_STREAMS,
                                                   .segment_bytes = s->segment_bytes,
                                                   .most_bytes = (uint64_t)MOST_SEGMENTS * s->segment_bytes};
    const uint32_t peer = 1 - l->rank;
    int joined;
    if (l->verbs)
        joined = optcc_verbs_join(l->verbs, peer, far->handle, far->handle_bytes) == OPTCC_OK &&
                 optcc_verbs_engine(l->verbs, &config, &l->engine) == OPTCC_OK;
    else
        joined = optcc_tcp_join(l->tcp, peer, far->handle, far->handle_bytes, lanes, count) == OPTCC_OK &&
                 optcc_tcp_engine(l->tcp, &config, &l->engine) == OPTCC_OK;
    if (!joined || optcc_messages_open(&messages, &l->messages) != OPTCC_OK ||
        optcc_begin_messages(l->engine, l->messages) != OPTCC_OK) {
        lose(l, !joined && l->verbs ? optcc_verbs_why() : "the two ends do not fit, or there is no memory");
        return 0;
    }
    l->wires = count;
    memcpy(l->ends, lanes, count * sizeof *lanes);
    l->far_process = far->process;
    snprintf(l->far_host, sizeof l->far_host, "%.*s", PEER_HOST - 1, far->host);
    report_name(l->far_host);
    for (uint32_t i = 0; i < far->nics; i++) {
        snprintf(l->far_nic[i], sizeof l->far_nic[i], "%.*s", PEER_NIC - 1, far->nic[i]);
        report_name(l->far_nic[i]);
    }
    l->is = LINK_OPEN;
    return 1;
}

/* ---- meeting ------------------------------------------------------------------------------------------------------ */

enum progress { WAITS, DONE, FAILS };

static enum progress move(struct meeting *m, void *bytes, uint64_t length, int sends)
{
    while (m->done < length) {
        unsigned char *const at = (unsigned char *)bytes + m->done;
        const ssize_t moved = sends ? send(m->fd, at, length - m->done, MSG_NOSIGNAL)
                                    : recv(m->fd, at, length - m->done, 0);
        if (moved > 0)
            m->done += (uint64_t)moved;
        else if (moved == 0 || (errno != EAGAIN && errno != EINTR))
            return FAILS;
        else if (errno == EAGAIN)
            return WAITS;
    }
    m->done = 0;
    return DONE;
}

static void call(struct link *l)
{
    struct meeting *m = &l->meeting;
    /* A link-local address is one of an interface; that of our NIC of the same number is as good a guess as any. */
    struct optcc_tcp_address there = {.family = l->far.door[m->door].family, .port = l->far.door[m->door].port,
                                      .scope = l->process->meet[m->door % l->process->meets].address.scope};
    memcpy(there.bytes, l->far.door[m->door].bytes, sizeof there.bytes);
    m->done = 0;
    m->stage = CONNECTING;
    m->since_ns = clock_ns();
    m->fd = optcc_tcp_call(&there);
}

static void next_door(struct link *l, uint64_t now_ns)
{
    struct meeting *m = &l->meeting;
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
    m->door = (m->door + 1) % l->far.doors;
    m->again_ns = now_ns + (m->door ? 0 : PAUSE_NS);
}

/* NULL, or what is wrong. */
static const char *bad_offer(const struct link *l, const struct offer *o)
{
    if (o->magic != MEETING_MAGIC || o->version != LINK_VERSION || !o->nics || o->nics > OPTCC_MAX_NICS ||
        o->handle_bytes > HANDLE_BYTES)
        return "the peer says what cannot be: install the same optcc everywhere";
    if (o->way != (uint8_t)l->process->way)
        return "the peer goes by another kind of wires (sockets, RDMA over InfiniBand, RDMA over Ethernet): "
               "OPTCC_WIRES=tcp makes all the same, NCCL_IB_HCA chooses devices";
    if (o->segment_bytes != l->process->settings.segment_bytes)
        return "the peer has another OPTCC_SEGMENT_BYTES: set the same everywhere";
    return NULL;
}

/* Who comes. */
static enum progress visit(struct link *l)
{
    struct meeting *m = &l->meeting;
    enum progress done;
    uint8_t code[OPTCC_HMAC];
    if (m->stage == CONNECTING || m->stage == AWAITS_CHALLENGE) {
        if ((done = move(m, &m->challenge, sizeof m->challenge, 0)) != DONE)
            return done == FAILS && m->stage == CONNECTING && errno == ENOTCONN ? WAITS : done;
        if (m->challenge.magic != MEETING_MAGIC || m->challenge.version != LINK_VERSION)
            return FAILS;
        uint8_t nonce[NONCE];
        if (!optcc_draw(nonce, sizeof nonce))
            return FAILS;
        const struct offer far = {.nics = l->far.nics, .all_lanes = (uint8_t)l->process->settings.all_lanes};
        if (!open_wires(l, l->far.secret, nonce, m->challenge.nonce, &far, &m->offer))
            return WAITS; /* lost */
        code_of(l->far.secret, "offer", m->challenge.nonce, &m->offer, NULL, m->offer.code);
        m->stage = SENDS_OFFER;
    }
    if (m->stage == SENDS_OFFER) {
        if ((done = move(m, &m->offer, sizeof m->offer, 1)) != DONE)
            return done;
        m->stage = AWAITS_ANSWER;
    }
    if ((done = move(m, &m->answer, sizeof m->answer, 0)) != DONE)
        return done;
    code_of(l->far.secret, "answer", m->challenge.nonce, &m->answer, m->offer.nonce, code);
    if (!optcc_same_secret(code, m->answer.code, OPTCC_HMAC))
        return FAILS;
    if (bad_offer(l, &m->answer)) {
        lose(l, bad_offer(l, &m->answer));
        return WAITS;
    }
    open_engine(l, &m->offer, &m->answer);
    return DONE;
}

/* Who has the door. */
static enum progress host(struct link *l)
{
    struct meeting *m = &l->meeting;
    const uint8_t *const secret = l->process->secret;
    enum progress done;
    uint8_t code[OPTCC_HMAC];
    if (m->stage == SENDS_CHALLENGE) {
        if ((done = move(m, &m->challenge, sizeof m->challenge, 1)) != DONE)
            return done;
        m->stage = AWAITS_OFFER;
    }
    if (m->stage == AWAITS_OFFER) {
        if ((done = move(m, &m->offer, sizeof m->offer, 0)) != DONE)
            return done;
        code_of(secret, "offer", m->challenge.nonce, &m->offer, NULL, code);
        if (!optcc_same_secret(code, m->offer.code, OPTCC_HMAC))
            return FAILS;
        if (!m->offer.nics || m->offer.nics > OPTCC_MAX_NICS ||
            !open_wires(l, secret, m->offer.nonce, m->challenge.nonce, &m->offer, &m->answer))
            return FAILS;
        code_of(secret, "answer", m->challenge.nonce, &m->answer, m->offer.nonce, m->answer.code);
        m->stage = SENDS_ANSWER;
    }
    if ((done = move(m, &m->answer, sizeof m->answer, 1)) != DONE)
        return done;
    if (bad_offer(l, &m->offer))
        return FAILS;
    open_engine(l, &m->offer, &m->answer);
    return DONE;
}

static uint64_t meet(struct link *l, int *moved)
{
    struct meeting *m = &l->meeting;
    const uint64_t now_ns = clock_ns();
    if (l->rank) {
        if (host(l) == FAILS || (l->is == LINK_MEETS && now_ns - l->since_ns > GUEST_NS))
            lose(l, "who came to our door is not one of us, or went away");
    } else {
        const struct offer known = {.magic = MEETING_MAGIC, .version = LINK_VERSION, .nics = l->far.nics, .way = l->far.way,
                                    .segment_bytes = l->process->settings.segment_bytes};
        if (bad_offer(l, &known)) {
            lose(l, bad_offer(l, &known));
            return now_ns;
        }
        if (now_ns - l->since_ns > l->process->settings.connect_ns) {
            lose(l, "the peer answers at none of its addresses: is a firewall between the two? (OPTCC_CONNECT_S)");
            return now_ns;
        }
        if (m->fd < 0 && now_ns >= m->again_ns)
            call(l);
        if (m->fd >= 0 && (visit(l) == FAILS || (l->is == LINK_MEETS && now_ns > m->since_ns + TRY_NS)))
            next_door(l, now_ns);
    }
    if (l->is == LINK_OPEN && l->verbs) {
        l->lifeline = m->fd;
        m->fd = -1;
    } else if (l->is != LINK_MEETS && m->fd >= 0) {
        close(m->fd);
        m->fd = -1;
    }
    *moved |= l->is != LINK_MEETS;
    return now_ns + MILLISECOND_NS;
}

/* ---- making one --------------------------------------------------------------------------------------------------- */

static struct link *new_link(const struct process *process, uint32_t rank)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->process = process;
    l->rank = rank;
    l->since_ns = clock_ns();
    l->meeting.fd = l->lifeline = -1;
    return l;
}

struct link *link_to(struct process *process, const struct handle *handle)
{
    struct link *l = new_link(process, 0);
    if (l) {
        l->far = *handle;
        l->far_process = handle->process;
    }
    return l;
}

struct link *link_at_door(struct process *process, uint32_t door)
{
    const int fd = accept4(process->door[door], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct link *l = new_link(process, 1);
    if (!l) {
        close(fd);
        return NULL;
    }
    l->meeting.fd = fd;
    l->meeting.stage = SENDS_CHALLENGE;
    l->meeting.challenge = (struct challenge){.magic = MEETING_MAGIC, .version = LINK_VERSION};
    if (!optcc_draw(l->meeting.challenge.nonce, NONCE))
        lose(l, "no random numbers");
    return l;
}

void link_close(struct link *l)
{
    if (!l)
        return;
    if (l->meeting.fd >= 0)
        close(l->meeting.fd);
    optcc_close(l->engine);
    optcc_messages_close(l->messages);
    optcc_tcp_close(l->tcp);
    optcc_verbs_close(l->verbs);
    if (l->lifeline >= 0) { /* last: the other takes it for our end; a child that was forked may have it, too */
        shutdown(l->lifeline, SHUT_RDWR);
        close(l->lifeline);
    }
    free(l);
}

/* ---- running it --------------------------------------------------------------------------------------------------- */

uint64_t link_progress(struct link *l, int *moved)
{
    struct optcc_counters c;
    uint32_t lost;
    if (l->is == LINK_MEETS)
        return meet(l, moved);
    if (!l->engine)
        return UINT64_MAX;
    uint64_t again_ns = optcc_progress(l->engine);
    const uint64_t free_ns = l->verbs ? optcc_verbs_free(l->verbs) : UINT64_MAX;
    if (again_ns > free_ns)
        again_ns = free_ns;
    optcc_count(l->engine, &c);
    const int moves = c.sent_bytes != l->counted.sent_bytes || c.landed_segments != l->counted.landed_segments ||
                      c.duplicates != l->counted.duplicates;
    *moved |= moves;
    if (moves && l->verbs)
        l->moved_ns = clock_ns();
    l->counted = c;
    l->idle |= OPTCC_MESSAGES_SOURCE.ready(l->messages, OPTCC_NONE) == OPTCC_NONE;
    if (l->is == LINK_OPEN && optcc_test(l->engine, &lost) == OPTCC_LOST)
        lose(l, "the peer does not answer by any NIC, or has given us up (OPTCC_RETURN_S)");
    return again_ns;
}

enum link_is link_state(const struct link *l) { return l->is; }
const char *link_why(const struct link *l) { return l->why; }
uint64_t link_process(const struct link *l) { return l->far_process; }
int link_is_ours(const struct link *l) { return l->rank == 0; }
struct optcc_messages *link_messages(const struct link *l) { return l->messages; }
struct optcc_engine *link_engine(const struct link *l) { return l->engine; }
int link_left(const struct link *l) { return l->left; }

int link_fd(const struct link *l)
{
    return l->is == LINK_MEETS ? -1 : l->tcp ? optcc_tcp_fd(l->tcp) : l->verbs ? optcc_verbs_fd(l->verbs) : -1;
}

int link_arm(struct link *l)
{
    return l->is == LINK_MEETS || !l->engine || (l->verbs ? optcc_verbs_arm(l->verbs) : optcc_tcp_arm(l->tcp)) == OPTCC_OK;
}

int link_sent(const struct link *l)
{
    struct optcc_verbs_state state;
    if (l->engine && optcc_owes(l->engine))
        return 0;
    if (!l->verbs || !l->engine)
        return !l->tcp || optcc_tcp_sent(l->tcp) == OPTCC_OK;
    for (uint32_t i = 0; i < l->process->nics; i++)
        if (optcc_verbs_look(l->verbs, i, &state) == OPTCC_OK && state.there && state.up && state.in_hand)
            return 0;
    return clock_ns() - l->moved_ns > QUIET_NS;
}

/* Whether the other process has ended, over RDMA. */
static void see_end(struct link *l)
{
    char byte;
    if (l->lifeline >= 0) {
        const ssize_t got = recv(l->lifeline, &byte, 1, MSG_DONTWAIT);
        if (got == 0)
            l->left_ns = clock_ns();
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            close(l->lifeline);
            l->lifeline = -1;
        }
    }
    const uint64_t last_ns = l->left_ns > l->moved_ns ? l->left_ns : l->moved_ns;
    if (l->left_ns && l->is == LINK_OPEN && clock_ns() - last_ns > LEFT_NS) {
        l->left = 1;
        lose(l, "its process has ended");
    }
    if (l->is == LINK_OPEN && optcc_verbs_fault(l->verbs))
        lose(l, optcc_verbs_fault(l->verbs));
}

static int is_lost(const struct link *l, uint32_t wire)
{
    struct optcc_wire_state state;
    return optcc_wire_look(l->engine, wire, &state) != OPTCC_OK || state.state == OPTCC_DOWN ||
           state.state == OPTCC_FENCING;
}

uint32_t link_wires(const struct link *l)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < l->wires; i++)
        alive += !is_lost(l, i);
    return alive;
}

uint64_t link_flying(const struct link *l)
{
    struct optcc_wire_state state;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->wires; i++)
        bytes += optcc_wire_look(l->engine, i, &state) == OPTCC_OK ? state.flying : 0;
    return bytes;
}

uint32_t link_nics(const struct link *l, uint32_t *lost)
{
    uint32_t all = 0, alive = 0;
    for (uint32_t i = 0; l->engine && i < l->wires; i++) {
        all |= UINT32_C(1) << l->ends[i].nic;
        alive |= (uint32_t)!is_lost(l, i) << l->ends[i].nic;
    }
    *lost = all & ~alive;
    return all;
}

uint32_t link_newly_lost(struct link *l)
{
    uint32_t lost;
    const uint32_t all = link_nics(l, &lost), newly = lost & ~l->lost_nics;
    l->lost_nics = lost;
    return lost == all ? 0 : newly;
}

void link_doubt(struct link *l, uint32_t nics)
{
    for (uint32_t i = 0; l->engine && nics >> i; i++)
        if (nics >> i & 1)
            optcc_doubt(l->engine, i);
}

/* ---- what an operator sees of it ----------------------------------------------------------------------------------- */

void link_look(struct link *l)
{
    int back = 0;
    uint32_t alive = 0, far = 0, far_alive = 0; /* wires; NICs of the peer, a bit each */
    if (!l->engine)
        return;
    if (l->verbs)
        see_end(l);
    for (uint32_t i = 0; i < l->wires; i++) {
        const int lost = is_lost(l, i);
        l->idle |= lost != l->seen[i].lost; /* what it carried is moved */
        back |= l->seen[i].lost && !lost;
        l->seen[i].lost = lost;
        alive += !lost;
        far |= UINT32_C(1) << l->ends[i].far_nic;
        far_alive |= (uint32_t)!lost << l->ends[i].far_nic;
    }
    for (uint32_t i = 0; i < OPTCC_MAX_NICS; i++) {
        const int lost = (far & ~far_alive) >> i & 1;
        l->far_seen[i].looks = lost != l->far_seen[i].told ? l->far_seen[i].looks + 1 : 0;
    }
    /* While there are pieces that no wire has taken all that live are busy, and shares tell rates. */
    for (uint32_t i = 0; i < l->wires; i++) {
        struct optcc_wire_state state = {0};
        (void)optcc_wire_look(l->engine, i, &state);
        if (back) /* shares are of times in which all had theirs */
            l->seen[i].full = 0;
        if (!l->idle && alive > 1)
            l->seen[i].full += state.acked_bytes - l->seen[i].acked;
        l->seen[i].acked = state.acked_bytes;
    }
    l->idle = 0;
}

uint32_t link_see(const struct link *l, struct wire_sight sight[OPTCC_MAX_LANES], uint64_t *resent)
{
    if (!l->engine)
        return 0;
    *resent += l->counted.resent_segments;
    for (uint32_t i = 0; i < l->wires; i++)
        sight[i] = (struct wire_sight){.nic = l->ends[i].nic, .far_nic = l->ends[i].far_nic, .lost = l->seen[i].lost,
                                       .acked_bytes = l->seen[i].acked, .full_bytes = l->seen[i].full};
    return l->wires;
}

void link_far(const struct link *l, uint32_t far_nic, char host[PEER_HOST], char nic[PEER_NIC])
{
    memcpy(host, l->far_host, PEER_HOST);
    memcpy(nic, far_nic < OPTCC_MAX_NICS ? l->far_nic[far_nic] : "", far_nic < OPTCC_MAX_NICS ? PEER_NIC : 1);
}

int link_news(struct link *l, uint32_t lost_here, char *words, size_t room)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < l->wires; i++)
        alive += !l->seen[i].lost;
    for (uint32_t far = 0; alive && far < OPTCC_MAX_NICS; far++) {
        if (l->far_seen[far].looks < SURE_LOOKS)
            continue;
        const int lost = !l->far_seen[far].told;
        const char *from = ""; /* a NIC of ours that sees it */
        for (uint32_t i = 0; i < l->wires && !*from; i++)
            if (l->ends[i].far_nic == far && l->seen[i].lost == lost && !(lost && lost_here >> l->ends[i].nic & 1))
                from = l->process->nic[l->ends[i].nic].name;
        const int silent = l->far_seen[far].silent; /* it was told as ours when it was lost */
        l->far_seen[far].looks = 0;
        l->far_seen[far].told = lost;
        l->far_seen[far].silent = lost && !*from;
        if (silent || l->far_seen[far].silent)
            continue;
        snprintf(words, room, "NIC %s of host %s (process %016llx) is %s, as seen from %s; %u of %u wires carry on",
                 l->far_nic[far], l->far_host, (unsigned long long)l->far_process, lost ? "lost" : "back", from, alive,
                 l->wires);
        return 1;
    }
    return 0;
}

void link_tell(const struct link *l, char *words, size_t room)
{
    size_t at = 0;
    if (!l->engine) {
        snprintf(words, room, "link to process %016llx: nothing carried", (unsigned long long)l->far_process);
        return;
    }
    at += (size_t)snprintf(words, room, "link %s process %016llx: %llu bytes sent, %llu segments sent again, MB by wire:",
                           l->rank ? "from" : "to", (unsigned long long)l->far_process,
                           (unsigned long long)l->counted.sent_bytes, (unsigned long long)l->counted.resent_segments);
    for (uint32_t i = 0; i < l->wires && at < room; i++) {
        struct optcc_wire_state state;
        optcc_wire_look(l->engine, i, &state);
        at += (size_t)snprintf(words + at, room - at, " %s %.1f", l->process->nic[l->ends[i].nic].name,
                               (double)state.acked_bytes / 1e6);
    }
}
