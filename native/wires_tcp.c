/* Wires between machines: a TCP connection for each, from the address of a NIC here to that of a NIC there.
 *
 * A connection is one life of its wire. The lower rank connects and the higher one accepts. Before a frame is believed
 * each side proves that it knows the secret of the job:
 *
 *   who connects    HELLO   ranks, lane, NICs, number of the connection, a random number
 *   who accepts     ANSWER  another random number; code of HELLO and both numbers, named "accepts"
 *   who connects    PROOF   likewise, named "connects"
 *   who accepts     READY   likewise, named "ready"
 *
 * The code is HMAC-SHA-256 under the secret. It binds all that HELLO says, both random numbers, and who says it; so no
 * handshake, nor a part of one, is of use a second time, for another wire, or sent back. An older connection of a wire
 * never takes the place of a newer one.
 *   What that keeps out: processes that can reach the ports but do not know the secret, whatever they send; ranks of
 * another job; wires that are joined crosswise.
 *   What it does not: whoever can change packets on their way. Nothing is encrypted, and frames after the handshake
 * carry no code. Who knows the secret is believed to be the rank that it says it is.
 * Connections that have proved nothing yet are bounded in number and time, and take no memory beyond that of their
 * slots. When all slots are taken, one makes room: for a connection from the address of a NIC of the job the oldest one
 * that comes from elsewhere, so that a crowd of others does not keep the job's ranks out; else the oldest of all, when
 * it has had a moment, so that the job's ranks do not drive each other out when all connect at once.
 *
 * In a connection one frame follows another: head, payload, and zeros up to a multiple of eight bytes.
 *
 * What waits in the kernel unsent is bounded (TCP_NOTSENT_LOWAT), so a frame without payload waits for that much, and
 * for the rest of a payload that has been begun, at most. A payload has left when the kernel has all of it. It may arrive
 * after a fence: then it comes by a life that is over.
 *
 * The kernel tells when a NIC has lost its link or has it again (netlink): its wires die at once, without waiting for
 * silence, and are tried again at once. Where the kernel says nothing, silence and time do the same.
 *
 * That a connection is bound to the NIC's address makes it leave by that NIC only where routes say so: NICs in different
 * networks, or rules by source address.
 *
 * Memory: for each wire a buffer of a segment and a little, taken by the join.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

enum {
    ALIGNED = 8,       /* frames begin at multiples of it */
    LOOK_AHEAD = 4096, /* bytes read beyond the frame that is awaited */
    QUEUE = 16,        /* frames without payload of a wire that wait to be sent */
    EVENTS = 64,       /* taken from the kernel at once */
    ACCEPTS = 64,      /* connections taken from a listening socket at once */
    DRAINS = 64,       /* reads of what nobody wants, at the end */
    BACKLOG = 4096,
    NONCE = 32,
    STRANGERS = 64
};
static const uint64_t MILLISECOND_NS = 1000000;
static const uint64_t HANDSHAKE_NS = UINT64_C(2000000000), OPEN_NS = UINT64_C(10000000000);
static const uint64_t TICK_NS = UINT64_C(5000000);     /* between looks at what takes its time */
static const uint64_t MOMENT_NS = UINT64_C(100000000); /* a stranger has at least so much */

static const uint64_t RETRY_NS = UINT64_C(10000000), MOST_RETRY_NS = UINT64_C(640000000);

/* ---- what is said in a handshake, little-endian ------------------------------------------------------------------- */

#define HELLO_MAGIC UINT32_C(0x0cc70a12)
#define HANDLE_MAGIC UINT32_C(0x0cc70a13)
enum { TCP_VERSION = 1 };

struct hello {
    uint32_t magic;
    uint8_t version;
    uint8_t nic, far_nic; /* of who connects, of who accepts */
    uint8_t unused;
    uint32_t from, to;    /* ranks */
    uint32_t lane;
    uint32_t life;        /* number of the connection: 1, 2, ... for each wire */
    uint32_t segment_bytes;
    uint32_t unused_too;
    uint8_t nonce[NONCE];
};

struct answer {
    uint8_t nonce[NONCE];
    uint8_t code[OPTCC_HMAC];
};

struct said { /* what codes are made of */
    char who[16];
    struct hello hello;
    uint8_t nonce[NONCE];
};
_Static_assert(sizeof(struct hello) == 64 && sizeof(struct answer) == 64 && sizeof(struct said) == 112, "no holes");
_Static_assert(sizeof(struct optcc_frame) % ALIGNED == 0, "payloads begin aligned");

enum stage {
    NOBODY,
    CONNECTING, AWAITS_ANSWER, AWAITS_READY, /* who connects */
    AWAITS_HELLO, AWAITS_JOIN, AWAITS_PROOF  /* who accepts */
};

struct handshake {
    int fd;
    uint32_t stage;
    uint32_t nic;      /* of this rank */
    uint32_t have;     /* bytes of what it awaits */
    uint64_t since_ns;
    struct sockaddr_storage from; /* who accepts: where it comes from */
    int of_job;        /* that is the address of a NIC that this rank knows */
    struct said said;
    uint8_t bytes[64]; /* what has come of what it awaits */
};

struct nic {
    struct optcc_tcp_address address; /* with the port that it listens on */
    int fd;
    int listens; /* 0: it waits until strangers have gone */
    uint32_t takers; /* wires that would take a payload now */
    uint32_t device; /* index of its interface; 0: not known */
    int linked;      /* the device has a link, as far as is known */
};

struct one { /* a wire at this rank */
    struct optcc_wire ends;
    uint32_t state; /* enum optcc_tcp_wire_is */
    struct sockaddr_storage far;
    socklen_t far_length;
    uint64_t joined_ns;

    int fd;                           /* -1: none */
    int readable, writable;           /* as far as is known */
    int ending, broken;               /* the peer has said its last; no more can be written */
    unsigned char *bytes;             /* what came: frames from `at` to `filled` */
    uint64_t at, filled;
    struct optcc_frame queue[QUEUE];  /* without payload, to be sent */
    uint32_t first, queued;
    struct optcc_frame head;          /* of the payload to be sent */
    const unsigned char *payload;     /* NULL: none */
    int begun;                        /* of the payload's frame `sent` bytes have gone; else of the queue's first */
    uint64_t sent;
    int takes;                        /* it is counted in `takers` */

    int next;                         /* a newer connection, which waits until this one is done with; -1: none */
    uint32_t life;                    /* number of the newest connection that is proved, or that was tried */
    struct handshake attempt;         /* of who connects */
    uint64_t retry_ns, pause_ns;      /* while it opens: when to try again, and how long after that */

    uint32_t left;                    /* payloads whose LEFT is still to be said */
    int fenced, died, back;           /* likewise */
    int in_news, in_ready;            /* it is in that list */
};

struct list { /* of wires, each at most once */
    uint32_t *wire;
    uint32_t first, count;
};

struct optcc_tcp {
    struct optcc_tcp_config config;
    int epoll, clock;
    int links;            /* news of devices; -1: there are none */
    int watched;          /* somebody sleeps on the epoll */
    int gathered;         /* the kernel was asked since the caller heard that there is nothing */
    int has_engine;
    struct nic nic[OPTCC_MAX_NICS];
    struct one *one;
    struct optcc_wire *wire;
    uint32_t wires, opening, attempts, strangers;
    uint8_t *joined;      /* by rank */
    uint32_t *first_wire; /* by rank: of a joined one */
    uint32_t *lanes;      /* by rank */
    struct handshake *stranger;
    struct list news, ready;
    uint32_t polled;      /* wire whose frame is being read; UINT32_MAX: none */
    uint64_t polled_bytes;
    uint64_t timer_ns;    /* when to look at what takes its time */
    uint64_t told;        /* news of any kind */
    struct optcc_tcp_counters counters;
};

enum tag { LISTENER, STRANGER, ATTEMPT, WIRE, CLOCK, LINKS };

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

static uint64_t buffer_bytes(const struct optcc_tcp *t)
{
    return sizeof(struct optcc_frame) + aligned(t->config.segment_bytes) + LOOK_AHEAD;
}

/* ---- lists -------------------------------------------------------------------------------------------------------- */

static void push(const struct optcc_tcp *t, struct list *list, uint32_t wire, int *in)
{
    if (*in)
        return;
    *in = 1;
    list->wire[(list->first + list->count++) % t->wires] = wire;
}

static uint32_t pop(const struct optcc_tcp *t, struct list *list)
{
    const uint32_t wire = list->wire[list->first];
    list->first = (list->first + 1) % t->wires;
    list->count--;
    return wire;
}

static uint32_t index_of(const struct optcc_tcp *t, const struct one *w) { return (uint32_t)(w - t->one); }

static void has_news(struct optcc_tcp *t, struct one *w) { push(t, &t->news, index_of(t, w), &w->in_news); }
static void is_ready(struct optcc_tcp *t, struct one *w) { push(t, &t->ready, index_of(t, w), &w->in_ready); }

/* ---- sockets ------------------------------------------------------------------------------------------------------ */

static int watch(const struct optcc_tcp *t, int how, int fd, uint32_t events, enum tag tag, uint32_t index)
{
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)tag << 32 | index};
    return epoll_ctl(t->epoll, how, fd, &event);
}

static void set(int fd, int level, int option, int value) { (void)setsockopt(fd, level, option, &value, sizeof value); }

/* What the kernel still has of it is dropped, and the peer hears so. */
static void cut(int *fd)
{
    const struct linger drop = {.l_onoff = 1, .l_linger = 0};
    if (*fd < 0)
        return;
    (void)setsockopt(*fd, SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
    close(*fd);
    *fd = -1;
}

static socklen_t as_socket(const struct optcc_tcp_address *a, uint32_t scope, uint32_t port, struct sockaddr_storage *s)
{
    memset(s, 0, sizeof *s);
    if (a->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)s;
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        memcpy(&v4->sin_addr, a->bytes, 4);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)s;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)port);
    memcpy(&v6->sin6_addr, a->bytes, 16);
    v6->sin6_scope_id = scope;
    return sizeof *v6;
}

static int new_socket(const struct optcc_tcp_address *a)
{
    return socket(a->family == 4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

int optcc_tcp_listen(struct optcc_tcp_address *a, int backlog)
{
    struct sockaddr_storage here;
    socklen_t length = as_socket(a, a->scope, a->port, &here);
    int fd = new_socket(a);
    if (fd < 0)
        return -1;
    if (a->port) /* where none is named the kernel looks for one that nobody has */
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (a->family == 6)
        set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(fd, (const struct sockaddr *)&here, length) || listen(fd, backlog) ||
        getsockname(fd, (struct sockaddr *)&here, &length)) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    a->port = here.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)(void *)&here)->sin_port)
                                        : ntohs(((struct sockaddr_in6 *)(void *)&here)->sin6_port);
    return fd;
}

int optcc_tcp_call(const struct optcc_tcp_address *a)
{
    struct sockaddr_storage there;
    const socklen_t length = as_socket(a, a->scope, a->port, &there);
    const int fd = new_socket(a);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&there, length) && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

/* ---- a wire's connection ------------------------------------------------------------------------------------------ */

static void count_taker(struct optcc_tcp *t, struct one *w)
{
    const int takes = w->state == OPTCC_TCP_LIVE && w->writable && !w->payload;
    t->nic[w->ends.nic].takers += (uint32_t)takes - (uint32_t)w->takes;
    w->takes = takes;
}

static void drop(struct optcc_tcp *t, struct one *w)
{
    cut(&w->fd);
    w->payload = NULL;
    w->queued = 0;
    w->begun = 0;
    w->sent = 0;
    w->at = w->filled = 0;
    w->readable = w->writable = w->broken = w->ending = 0;
    if (t->polled == index_of(t, w))
        t->polled = UINT32_MAX;
    t->opening -= w->state == OPTCC_TCP_OPENING;
    w->state = OPTCC_TCP_GONE;
    count_taker(t, w);
}

static void die(struct optcc_tcp *t, struct one *w)
{
    t->counters.died += w->state == OPTCC_TCP_LIVE;
    drop(t, w);
    w->died = 1;
    has_news(t, w);
}

static void add(struct iovec *parts, int *count, const void *bytes, uint64_t length, uint64_t *skip)
{
    const uint64_t skipped = *skip < length ? *skip : length;
    *skip -= skipped;
    if (length > skipped)
        parts[(*count)++] = (struct iovec){.iov_base = (unsigned char *)(uintptr_t)bytes + skipped,
                                           .iov_len = length - skipped};
}

static void add_payload(const struct one *w, struct iovec *parts, int *count, uint64_t skip)
{
    static const unsigned char zeros[ALIGNED];
    add(parts, count, &w->head, sizeof w->head, &skip);
    add(parts, count, w->payload, w->head.length, &skip);
    add(parts, count, zeros, aligned(w->head.length) - w->head.length, &skip);
}

/* `bytes` more are with the kernel: the payload that has been begun, then what is queued, then the payload. */
static void went(struct optcc_tcp *t, struct one *w, uint64_t bytes)
{
    while (bytes) {
        const int payload = w->begun || !w->queued;
        const uint64_t whole = sizeof w->head + (payload ? aligned(w->head.length) : 0), rest = whole - w->sent;
        const uint64_t taken = bytes < rest ? bytes : rest;
        w->begun = payload;
        w->sent += taken;
        bytes -= taken;
        if (w->sent < whole)
            continue;
        w->sent = 0;
        w->begun = 0;
        if (payload) {
            w->payload = NULL;
            w->left++;
            has_news(t, w);
        } else {
            w->first = (w->first + 1) % QUEUE;
            w->queued--;
        }
    }
}

static void flush(struct optcc_tcp *t, struct one *w)
{
    while (w->writable && (w->queued || w->payload)) {
        struct iovec parts[QUEUE + 6];
        int count = 0;
        uint64_t skip = w->begun ? 0 : w->sent;
        if (w->begun)
            add_payload(w, parts, &count, w->sent);
        for (uint32_t i = 0; i < w->queued; i++)
            add(parts, &count, &w->queue[(w->first + i) % QUEUE], sizeof *w->queue, &skip);
        if (w->payload && !w->begun)
            add_payload(w, parts, &count, skip);
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        const ssize_t sent = sendmsg(w->fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            went(t, w, (uint64_t)sent);
        } else if (errno != EINTR) {
            w->writable = 0;
            if (errno != EAGAIN) { /* it dies when all is read that came before */
                w->broken = w->readable = 1;
                is_ready(t, w);
            }
        }
    }
    count_taker(t, w);
}

/* A newer connection takes its place, once the engine knows that the one before is over. */
static void settle(struct optcc_tcp *t, struct one *w)
{
    if (w->next < 0 || w->state == OPTCC_TCP_LIVE || w->died || w->fenced)
        return;
    t->opening -= w->state == OPTCC_TCP_OPENING;
    w->fd = w->next;
    w->next = -1;
    w->state = OPTCC_TCP_LIVE;
    w->readable = w->writable = 1;
    w->back = 1;
    count_taker(t, w);
    const uint32_t unsent = t->config.unsent_bytes ? t->config.unsent_bytes : t->config.segment_bytes;
    set(w->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)unsent);
    if (watch(t, EPOLL_CTL_MOD, w->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, WIRE, index_of(t, w)))
        w->broken = 1;
    is_ready(t, w);
    has_news(t, w);
    flush(t, w); /* what was said while it opened */
}

/* `fd` is proved to lead to the wire's peer. */
static void proved(struct optcc_tcp *t, struct one *w, int fd)
{
    t->counters.proved++;
    cut(&w->next);
    w->next = fd;
    if (w->state == OPTCC_TCP_LIVE)
        die(t, w); /* its peer has given it up */
    settle(t, w);
}

/* The next frame of a wire: 1; 0: none yet; -1: the connection is over. */
static int next_frame(struct optcc_tcp *t, struct one *w, struct optcc_event *event)
{
    for (;;) {
        const uint64_t have = w->filled - w->at;
        uint64_t need = sizeof(struct optcc_frame);
        if (have >= need) {
            struct optcc_frame head;
            memcpy(&head, w->bytes + w->at, sizeof head);
            if (head.magic != OPTCC_MAGIC || head.version != OPTCC_VERSION ||
                head.length > t->config.segment_bytes) {
                t->counters.malformed++;
                return -1;
            }
            need += aligned(head.length);
            if (have >= need) {
                t->polled = index_of(t, w);
                t->polled_bytes = need;
                *event = (struct optcc_event){.news = OPTCC_FRAME, .wire = t->polled,
                                              .length = sizeof head + head.length, .bytes = w->bytes + w->at};
                return 1;
            }
        }
        if (!w->readable)
            return w->broken ? -1 : 0;
        if (w->at) {
            memmove(w->bytes, w->bytes + w->at, have);
            w->at = 0;
            w->filled = have;
        }
        const uint64_t want = need - have + LOOK_AHEAD;
        const ssize_t came = recv(w->fd, w->bytes + have, want, 0);
        if (came > 0) {
            w->filled += (uint64_t)came;
            if ((uint64_t)came < want && !w->ending && !w->broken)
                w->readable = 0; /* until the kernel says that there is more */
        } else if (came == 0 || (errno != EINTR && errno != EAGAIN)) {
            return -1;
        } else if (errno == EAGAIN) {
            w->readable = 0;
        }
    }
}

/* ---- handshakes --------------------------------------------------------------------------------------------------- */

static void code(const struct optcc_tcp *t, struct handshake *h, const char *who, uint8_t made[OPTCC_HMAC])
{
    memset(h->said.who, 0, sizeof h->said.who);
    memcpy(h->said.who, who, strlen(who));
    optcc_hmac(t->config.secret, OPTCC_TCP_SECRET, &h->said, sizeof h->said, made);
}

static int code_is(const struct optcc_tcp *t, struct handshake *h, const char *who, const uint8_t *told)
{
    uint8_t right[OPTCC_HMAC];
    code(t, h, who, right);
    return optcc_same_secret(right, told, OPTCC_HMAC);
}

enum progress { WAITS, DONE, FAILS };

static enum progress await(struct handshake *h, uint32_t length)
{
    while (h->have < length) {
        const ssize_t came = recv(h->fd, h->bytes + h->have, length - h->have, 0);
        if (came > 0)
            h->have += (uint32_t)came;
        else if (came == 0 || (errno != EINTR && errno != EAGAIN))
            return FAILS;
        else if (errno == EAGAIN)
            return WAITS;
    }
    h->have = 0;
    return DONE;
}

/* So little always fits into a connection on which next to nothing was sent. */
static enum progress say_once(const struct handshake *h, const void *bytes, uint32_t length)
{
    const ssize_t sent = send(h->fd, bytes, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN)
        return WAITS;
    return sent == (ssize_t)length ? DONE : FAILS;
}

/* When to look at what takes its time; who sleeps on the epoll is woken then. */
static void set_timer(struct optcc_tcp *t, uint64_t at_ns)
{
    t->timer_ns = at_ns;
    if (!t->watched)
        return;
    const uint64_t second_ns = UINT64_C(1000000000), at = at_ns == UINT64_MAX ? 0 : at_ns; /* 0: never */
    const struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at / second_ns), .tv_nsec = (long)(at % second_ns)}};
    (void)timerfd_settime(t->clock, TFD_TIMER_ABSTIME, &when, NULL);
}

static void look_soon(struct optcc_tcp *t)
{
    if (t->timer_ns == UINT64_MAX)
        set_timer(t, optcc_now(t) + TICK_NS);
}

static void end_attempt(struct optcc_tcp *t, struct one *w)
{
    if (w->attempt.stage == NOBODY)
        return;
    w->attempt.stage = NOBODY;
    cut(&w->attempt.fd);
    t->attempts--;
    w->retry_ns = optcc_now(t) + w->pause_ns;
    if (w->pause_ns < MOST_RETRY_NS)
        w->pause_ns *= 2;
}

static enum progress step_attempt(struct optcc_tcp *t, struct one *w)
{
    struct handshake *h = &w->attempt;
    enum progress done;
    if (h->stage == CONNECTING) {
        if ((done = say_once(h, &h->said.hello, sizeof h->said.hello)) != DONE)
            return done;
        h->stage = AWAITS_ANSWER;
    }
    if (h->stage == AWAITS_ANSWER) {
        struct answer answer;
        uint8_t proof[OPTCC_HMAC];
        if ((done = await(h, sizeof answer)) != DONE)
            return done;
        memcpy(&answer, h->bytes, sizeof answer);
        memcpy(h->said.nonce, answer.nonce, sizeof answer.nonce);
        if (!code_is(t, h, "accepts", answer.code))
            return FAILS;
        code(t, h, "connects", proof);
        if (say_once(h, proof, sizeof proof) != DONE)
            return FAILS;
        h->stage = AWAITS_READY;
    }
    if ((done = await(h, OPTCC_HMAC)) != DONE)
        return done;
    return code_is(t, h, "ready", h->bytes) ? DONE : FAILS;
}

static void go_on_with_attempt(struct optcc_tcp *t, struct one *w)
{
    if (w->attempt.stage == NOBODY)
        return;
    const enum progress done = step_attempt(t, w);
    if (done == FAILS)
        end_attempt(t, w);
    if (done != DONE)
        return;
    w->attempt.stage = NOBODY;
    t->attempts--;
    w->pause_ns = RETRY_NS;
    const int fd = w->attempt.fd;
    w->attempt.fd = -1;
    proved(t, w, fd);
}

static int connects(const struct optcc_tcp *t, const struct one *w) { return t->config.rank < w->ends.peer; }

static void attempt(struct optcc_tcp *t, struct one *w)
{
    struct handshake *h = &w->attempt;
    const struct optcc_tcp_address *own = &t->nic[w->ends.nic].address;
    struct sockaddr_storage here;
    const socklen_t length = as_socket(own, own->scope, 0, &here);
    *h = (struct handshake){.fd = new_socket(own), .stage = CONNECTING, .nic = w->ends.nic, .since_ns = optcc_now(t)};
    t->attempts++;
    t->counters.tried++;
    h->said.hello = (struct hello){.magic = HELLO_MAGIC, .version = TCP_VERSION, .nic = (uint8_t)w->ends.nic,
                                   .far_nic = (uint8_t)w->ends.far_nic, .from = t->config.rank, .to = w->ends.peer,
                                   .lane = w->ends.lane, .life = ++w->life,
                                   .segment_bytes = t->config.segment_bytes};
    look_soon(t);
    if (h->fd < 0) {
        end_attempt(t, w);
        return;
    }
    set(h->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    set(h->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (!optcc_draw(h->said.hello.nonce, NONCE) || bind(h->fd, (const struct sockaddr *)&here, length) ||
        (connect(h->fd, (const struct sockaddr *)&w->far, w->far_length) && errno != EINPROGRESS) ||
        watch(t, EPOLL_CTL_ADD, h->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, ATTEMPT, index_of(t, w)))
        end_attempt(t, w);
}

static void send_away(struct optcc_tcp *t, struct handshake *h, uint64_t *counter)
{
    cut(&h->fd);
    h->stage = NOBODY;
    t->strangers--;
    ++*counter;
}

/* The wire that a hello means; NULL and WAITS: not joined yet; NULL and FAILS: there can be none. */
static struct one *meant(const struct optcc_tcp *t, const struct handshake *h, enum progress *done)
{
    const struct hello *o = &h->said.hello;
    *done = FAILS;
    if (o->magic != HELLO_MAGIC || o->version != TCP_VERSION || o->to != t->config.rank || o->from >= o->to ||
        o->segment_bytes != t->config.segment_bytes)
        return NULL;
    if (!t->joined[o->from])
        *done = WAITS;
    if (!t->joined[o->from] || o->lane >= t->lanes[o->from])
        return NULL;
    struct one *w = &t->one[t->first_wire[o->from] + o->lane];
    if (w->ends.nic != o->far_nic || w->ends.nic != h->nic || w->ends.far_nic != o->nic || o->life <= w->life)
        return NULL;
    *done = DONE;
    return w;
}

static enum progress step_stranger(struct optcc_tcp *t, struct handshake *h, struct one **w)
{
    enum progress done;
    if (h->stage == AWAITS_HELLO) {
        if ((done = await(h, sizeof h->said.hello)) != DONE)
            return done;
        memcpy(&h->said.hello, h->bytes, sizeof h->said.hello);
        h->stage = AWAITS_JOIN;
    }
    if (h->stage == AWAITS_JOIN) {
        struct answer answer;
        if (!meant(t, h, &done))
            return done;
        if (!optcc_draw(h->said.nonce, NONCE))
            return FAILS;
        memcpy(answer.nonce, h->said.nonce, NONCE);
        code(t, h, "accepts", answer.code);
        if (say_once(h, &answer, sizeof answer) != DONE)
            return FAILS;
        h->stage = AWAITS_PROOF;
    }
    if ((done = await(h, OPTCC_HMAC)) != DONE)
        return done;
    uint8_t ready[OPTCC_HMAC];
    if (!code_is(t, h, "connects", h->bytes) || !(*w = meant(t, h, &done)))
        return FAILS;
    code(t, h, "ready", ready);
    return say_once(h, ready, sizeof ready) == DONE ? DONE : FAILS;
}

static void go_on_with_stranger(struct optcc_tcp *t, struct handshake *h)
{
    struct one *w = NULL;
    if (h->stage == NOBODY)
        return;
    const enum progress done = step_stranger(t, h, &w);
    if (done == FAILS)
        send_away(t, h, &t->counters.refused);
    if (done != DONE)
        return;
    const int fd = h->fd;
    w->life = h->said.hello.life;
    h->stage = NOBODY;
    t->strangers--;
    proved(t, w, fd);
}

static int is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return 0;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return !memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                   &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr));
}

/* Whether it comes from the address of a NIC of a rank that is joined. */
static int is_of_job(const struct optcc_tcp *t, const struct sockaddr_storage *from)
{
    for (uint32_t i = 0; i < t->wires; i++)
        if (is_same_host(&t->one[i].far, from))
            return 1;
    return 0;
}

/* A slot for one more; NULL: there is none for it. Without a slot that is free the oldest makes room: one that is not of
 * the job at once for one that is, else one that has had its moment. */
static struct handshake *slot(struct optcc_tcp *t, int of_job, uint64_t now_ns)
{
    struct handshake *oldest[2] = {NULL, NULL}; /* of others; of the job */
    for (uint32_t i = 0; i < t->config.strangers; i++) {
        struct handshake *h = &t->stranger[i], **old = &oldest[h->of_job];
        if (h->stage == NOBODY)
            return h;
        if (!*old || h->since_ns < (*old)->since_ns)
            *old = h;
    }
    struct handshake *goes = oldest[0] ? oldest[0] : of_job ? oldest[1] : NULL;
    if (!goes || (!(of_job && goes == oldest[0]) && now_ns - goes->since_ns < MOMENT_NS))
        return NULL;
    send_away(t, goes, &t->counters.late);
    return goes;
}

/* Whether all slots are taken by the job's own, which are soon done: the next ones wait in the kernel. */
static int is_busy(const struct optcc_tcp *t, uint64_t now_ns)
{
    for (uint32_t i = 0; i < t->config.strangers; i++)
        if (t->stranger[i].stage == NOBODY || !t->stranger[i].of_job ||
            now_ns - t->stranger[i].since_ns >= MOMENT_NS)
            return 0;
    return 1;
}

static void listen_again(struct optcc_tcp *t, uint32_t nic, int listens)
{
    t->nic[nic].listens = listens;
    (void)watch(t, EPOLL_CTL_MOD, t->nic[nic].fd, listens ? EPOLLIN : 0, LISTENER, nic);
    look_soon(t);
}

static void take_strangers(struct optcc_tcp *t, uint32_t nic)
{
    for (int i = 0; i < ACCEPTS; i++) {
        const uint64_t now_ns = optcc_now(t);
        struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
        socklen_t length = sizeof from;
        if (is_busy(t, now_ns)) {
            listen_again(t, nic, 0);
            return;
        }
        int fd = accept4(t->nic[nic].fd, (struct sockaddr *)&from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
                listen_again(t, nic, 0); /* no descriptors, no memory: not now */
            return;
        }
        t->counters.accepted++;
        const int of_job = is_of_job(t, &from);
        struct handshake *h = slot(t, of_job, now_ns);
        if (!h) {
            cut(&fd);
            t->counters.late++;
            continue;
        }
        t->strangers++;
        *h = (struct handshake){.fd = fd, .stage = AWAITS_HELLO, .nic = nic, .since_ns = now_ns, .from = from,
                                .of_job = of_job};
        look_soon(t);
        set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        if (watch(t, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, STRANGER, (uint32_t)(h - t->stranger)))
            send_away(t, h, &t->counters.refused);
    }
}

/* ---- links -------------------------------------------------------------------------------------------------------- */

static void link_is(struct optcc_tcp *t, uint32_t device, int linked)
{
    for (uint32_t nic = 0; nic < t->config.nics; nic++) {
        struct nic *n = &t->nic[nic];
        if (n->device != device || n->linked == linked)
            continue;
        n->linked = linked;
        for (uint32_t i = 0; i < t->wires; i++) {
            struct one *w = &t->one[i];
            if (w->ends.nic != nic)
                continue;
            if (!linked && w->state == OPTCC_TCP_LIVE) {
                die(t, w);
            } else if (linked && w->state == OPTCC_TCP_GONE) {
                end_attempt(t, w); /* it may wait for long for what was sent without a link */
                w->back = 1;
                has_news(t, w);
            }
        }
    }
}

/* What comes is the kernel's: the socket is bound, and others need rights to send to it. */
static void hear_of_links(struct optcc_tcp *t)
{
    _Alignas(struct nlmsghdr) unsigned char bytes[8192];
    ssize_t came;
    for (int i = 0; i < DRAINS && (came = recv(t->links, bytes, sizeof bytes, 0)) > 0; i++) {
        unsigned left = (unsigned)came;
        for (const struct nlmsghdr *m = (const struct nlmsghdr *)(const void *)bytes; NLMSG_OK(m, left);
             m = NLMSG_NEXT(m, left)) {
            struct ifinfomsg told;
            if ((m->nlmsg_type != RTM_NEWLINK && m->nlmsg_type != RTM_DELLINK) || m->nlmsg_len < NLMSG_LENGTH(sizeof told))
                continue;
            memcpy(&told, NLMSG_DATA(m), sizeof told);
            if (told.ifi_index > 0)
                link_is(t, (uint32_t)told.ifi_index, m->nlmsg_type == RTM_NEWLINK && told.ifi_flags & IFF_RUNNING);
        }
    }
}

/* Without news of links, or for an address that is on no device, silence has to do. */
static void follow_links(struct optcc_tcp *t)
{
    const struct sockaddr_nl here = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    struct ifaddrs *all;
    t->links = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (t->links < 0)
        return;
    if (bind(t->links, (const struct sockaddr *)&here, sizeof here) ||
        watch(t, EPOLL_CTL_ADD, t->links, EPOLLIN, LINKS, 0) || getifaddrs(&all)) {
        close(t->links);
        t->links = -1;
        return;
    }
    for (const struct ifaddrs *a = all; a; a = a->ifa_next)
        for (uint32_t nic = 0; a->ifa_addr && nic < t->config.nics; nic++) {
            struct nic *n = &t->nic[nic];
            struct sockaddr_storage own, told = {.ss_family = AF_UNSPEC};
            as_socket(&n->address, n->address.scope, 0, &own);
            if (a->ifa_addr->sa_family != own.ss_family)
                continue;
            memcpy(&told, a->ifa_addr, own.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
            if (is_same_host(&own, &told)) {
                n->device = if_nametoindex(a->ifa_name);
                n->linked = (a->ifa_flags & IFF_RUNNING) != 0;
            }
        }
    freeifaddrs(all);
}

/* ---- what the kernel and time tell -------------------------------------------------------------------------------- */

static void tick(struct optcc_tcp *t, uint64_t now_ns)
{
    int waiting = 0;
    for (uint32_t i = 0; t->strangers && i < t->config.strangers; i++)
        if (t->stranger[i].stage != NOBODY && now_ns - t->stranger[i].since_ns >= t->config.handshake_ns)
            send_away(t, &t->stranger[i], &t->counters.late);
    for (uint32_t nic = 0; nic < t->config.nics; nic++)
        if (!t->nic[nic].listens)
            listen_again(t, nic, 1);
    for (uint32_t i = 0; (t->opening || t->attempts) && i < t->wires; i++) {
        struct one *w = &t->one[i];
        if (w->attempt.stage != NOBODY && now_ns - w->attempt.since_ns >= t->config.handshake_ns)
            end_attempt(t, w);
        if (w->state != OPTCC_TCP_OPENING)
            continue;
        if (now_ns - w->joined_ns >= t->config.open_ns) {
            end_attempt(t, w);
            die(t, w);
        } else if (connects(t, w) && w->attempt.stage == NOBODY && now_ns >= w->retry_ns) {
            attempt(t, w);
        }
    }
    waiting = t->strangers || t->opening || t->attempts;
    set_timer(t, waiting ? now_ns + TICK_NS : UINT64_MAX);
}

static void take_event(struct optcc_tcp *t, const struct epoll_event *event)
{
    const uint32_t index = (uint32_t)event->data.u64;
    switch ((enum tag)(event->data.u64 >> 32)) {
    case LISTENER:
        take_strangers(t, index);
        break;
    case STRANGER:
        go_on_with_stranger(t, &t->stranger[index]);
        break;
    case ATTEMPT:
        go_on_with_attempt(t, &t->one[index]);
        break;
    case WIRE: {
        struct one *w = &t->one[index];
        if (w->state != OPTCC_TCP_LIVE)
            break;
        if (event->events & ~(uint32_t)EPOLLOUT) {
            w->readable = 1;
            w->ending |= (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
            is_ready(t, w);
        }
        if (event->events & EPOLLOUT && !w->broken) {
            w->writable = 1;
            flush(t, w);
        }
        break;
    }
    case CLOCK: { /* what it is for follows */
        uint64_t rings;
        (void)!read(t->clock, &rings, sizeof rings);
        break;
    }
    case LINKS:
        hear_of_links(t);
        break;
    }
}

/* Returns whether anything came. */
static int gather(struct optcc_tcp *t, int wait_ms)
{
    struct epoll_event events[EVENTS];
    const int count = epoll_wait(t->epoll, events, EVENTS, wait_ms);
    for (int i = 0; i < count; i++)
        take_event(t, &events[i]);
    if (t->timer_ns != UINT64_MAX) {
        const uint64_t now_ns = optcc_now(t);
        if (now_ns >= t->timer_ns)
            tick(t, now_ns);
    }
    return count > 0;
}

/* ---- the contract ------------------------------------------------------------------------------------------------- */

static uint32_t room(void *self, uint32_t nic) { return ((struct optcc_tcp *)self)->nic[nic].takers; }

static int post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload, uint64_t ready_ns)
{
    (void)ready_ns;
    struct optcc_tcp *t = self;
    struct one *w = &t->one[wire];
    if (w->state == OPTCC_TCP_GONE)
        return OPTCC_LOST;
    if (payload) {
        if (!w->takes)
            return OPTCC_AGAIN;
        w->head = *head;
        w->payload = payload;
    } else {
        if (w->queued == QUEUE)
            return OPTCC_AGAIN;
        w->queue[(w->first + w->queued++) % QUEUE] = *head;
    }
    flush(t, w);
    return OPTCC_OK;
}

/* The next thing that a wire has to say itself: whether there was one. */
static int say(struct optcc_tcp *t, struct optcc_event *event)
{
    while (t->news.count) {
        const uint32_t wire = pop(t, &t->news);
        struct one *w = &t->one[wire];
        w->in_news = 0;
        settle(t, w);
        if (!w->left && !w->fenced && !w->died && !w->back)
            continue;
        *event = (struct optcc_event){.wire = wire};
        if (w->left) {
            event->news = OPTCC_LEFT;
            w->left--;
        } else if (w->fenced) {
            event->news = OPTCC_FENCED;
            w->fenced = 0;
        } else if (w->died) {
            event->news = OPTCC_DIED;
            event->cause = OPTCC_CLOSED;
            w->died = 0;
        } else {
            event->news = OPTCC_BACK;
            w->back = 0;
        }
        has_news(t, w); /* whether it has more to say, or can begin anew, is seen when the engine has taken this */
        return 1;
    }
    return 0;
}

static int look(struct optcc_tcp *t, struct optcc_event *event)
{
    while (t->ready.count) {
        const uint32_t wire = pop(t, &t->ready);
        struct one *w = &t->one[wire];
        w->in_ready = 0;
        if (w->state != OPTCC_TCP_LIVE)
            continue;
        const int came = next_frame(t, w, event);
        if (came > 0) {
            is_ready(t, w);
            return 1;
        }
        if (came < 0) {
            die(t, w);
            return say(t, event);
        }
    }
    return 0;
}

static void poll(void *self, struct optcc_event *event)
{
    struct optcc_tcp *t = self;
    if (t->polled != UINT32_MAX) {
        t->one[t->polled].at += t->polled_bytes;
        t->polled = UINT32_MAX;
    }
    int found = say(t, event) || look(t, event);
    if (!found && !t->gathered) {
        gather(t, 0);
        t->gathered = 1;
        found = say(t, event) || look(t, event);
    }
    if (!found) {
        t->gathered = 0;
        *event = (struct optcc_event){.news = OPTCC_NOTHING};
    }
    t->told += (uint64_t)found;
}

static void fence(void *self, uint32_t wire)
{
    struct optcc_tcp *t = self;
    struct one *w = &t->one[wire];
    end_attempt(t, w);
    drop(t, w);
    w->left = 0;
    w->died = w->back = 0;
    w->fenced = 1;
    has_news(t, w);
}

static int renew(void *self, uint32_t wire)
{
    struct optcc_tcp *t = self;
    struct one *w = &t->one[wire];
    if (w->state == OPTCC_TCP_LIVE)
        return OPTCC_OK;
    if (connects(t, w) && w->attempt.stage == NOBODY && w->next < 0)
        attempt(t, w);
    return OPTCC_LOST;
}

static void sleep_for(void *self, uint64_t ns)
{
    struct optcc_tcp *t = self;
    if (!t->news.count && !t->ready.count)
        gather(t, (int)(ns / MILLISECOND_NS) + 1);
}

static const struct optcc_wires CONTRACT = {optcc_now, room, post, poll, fence, renew, sleep_for, NULL, NULL};

/* ---- handles ------------------------------------------------------------------------------------------------------ */

struct handle {
    uint32_t magic;
    uint8_t version, nics;
    uint16_t rank;
    uint32_t segment_bytes;
    /* for each NIC: family, port (two bytes), four or sixteen bytes of address; then the first bytes of a code of it all */
};

enum { HANDLE_CODE = 16, HANDLE_NIC = 3 };

static uint32_t address_bytes(uint32_t family) { return family == 4 ? 4 : family == 6 ? 16 : 0; }

static void handle_code(const struct optcc_tcp *t, const unsigned char *bytes, uint32_t length, uint8_t made[OPTCC_HMAC])
{
    unsigned char all[OPTCC_TCP_MAX_HANDLE + sizeof(((struct said *)0)->who)] = "handle";
    memcpy(all + sizeof(((struct said *)0)->who), bytes, length);
    optcc_hmac(t->config.secret, OPTCC_TCP_SECRET, all, sizeof(((struct said *)0)->who) + length, made);
}

int optcc_tcp_handle(const struct optcc_tcp *t, void *bytes, uint32_t *length)
{
    unsigned char made[OPTCC_TCP_MAX_HANDLE];
    const struct handle head = {.magic = HANDLE_MAGIC, .version = TCP_VERSION, .nics = (uint8_t)t->config.nics,
                                .rank = (uint16_t)t->config.rank, .segment_bytes = t->config.segment_bytes};
    uint32_t at = sizeof head;
    uint8_t whole[OPTCC_HMAC];
    memcpy(made, &head, sizeof head);
    for (uint32_t nic = 0; nic < t->config.nics; nic++) {
        const struct optcc_tcp_address *a = &t->nic[nic].address;
        made[at] = (unsigned char)a->family;
        made[at + 1] = (unsigned char)a->port;
        made[at + 2] = (unsigned char)(a->port >> 8);
        memcpy(made + at + HANDLE_NIC, a->bytes, address_bytes(a->family));
        at += HANDLE_NIC + address_bytes(a->family);
    }
    handle_code(t, made, at, whole);
    memcpy(made + at, whole, HANDLE_CODE);
    at += HANDLE_CODE;
    const int fits = *length >= at;
    if (fits)
        memcpy(bytes, made, at);
    *length = at;
    return fits ? OPTCC_OK : OPTCC_BAD;
}

/* The NICs of a handle; 0: it is not one that `rank` of this job has made. */
static uint32_t read_handle(const struct optcc_tcp *t, uint32_t rank, const unsigned char *bytes, uint32_t length,
                            struct optcc_tcp_address far[OPTCC_MAX_NICS])
{
    struct handle head;
    uint8_t right[OPTCC_HMAC];
    if (length < sizeof head + HANDLE_CODE || length > OPTCC_TCP_MAX_HANDLE)
        return 0;
    memcpy(&head, bytes, sizeof head);
    const uint32_t end = length - HANDLE_CODE;
    handle_code(t, bytes, end, right);
    if (head.magic != HANDLE_MAGIC || head.version != TCP_VERSION || head.nics > OPTCC_MAX_NICS || head.rank != rank ||
        head.segment_bytes != t->config.segment_bytes || !optcc_same_secret(right, bytes + end, HANDLE_CODE))
        return 0;
    uint32_t at = sizeof head;
    for (uint32_t nic = 0; nic < head.nics; nic++) {
        if (at + HANDLE_NIC > end)
            return 0;
        const uint32_t family = bytes[at], size = address_bytes(family);
        if (!size || at + HANDLE_NIC + size > end)
            return 0;
        far[nic] = (struct optcc_tcp_address){.family = family, .port = bytes[at + 1] | (uint32_t)bytes[at + 2] << 8};
        memcpy(far[nic].bytes, bytes + at + HANDLE_NIC, size);
        at += HANDLE_NIC + size;
    }
    return at == end ? head.nics : 0;
}

/* ---- the interface ------------------------------------------------------------------------------------------------ */

static int start_listening(struct optcc_tcp *t, uint32_t nic)
{
    struct nic *n = &t->nic[nic];
    n->fd = optcc_tcp_listen(&n->address, BACKLOG);
    if (n->fd < 0)
        return -1;
    n->listens = 1;
    return watch(t, EPOLL_CTL_ADD, n->fd, EPOLLIN, LISTENER, nic);
}

int optcc_tcp_open(const struct optcc_tcp_config *config, struct optcc_tcp **tcp)
{
    *tcp = NULL;
    if (!config->ranks || config->ranks > OPTCC_MAX_RANKS || config->rank >= config->ranks || !config->nics ||
        config->nics > OPTCC_MAX_NICS || !config->segment_bytes || config->segment_bytes % ALIGNED ||
        config->segment_bytes > OPTCC_MAX_SEGMENT || config->unsent_bytes > INT32_MAX ||
        config->strangers > OPTCC_TCP_MAX_STRANGERS)
        return OPTCC_BAD;
    for (uint32_t i = 0; i < config->nics; i++)
        if (!address_bytes(config->address[i].family) || config->address[i].port > UINT16_MAX)
            return OPTCC_BAD;
    struct optcc_tcp *t = calloc(1, sizeof *t);
    if (!t)
        return OPTCC_MEMORY;
    t->config = *config;
    if (!t->config.strangers)
        t->config.strangers = STRANGERS;
    if (!t->config.handshake_ns)
        t->config.handshake_ns = HANDSHAKE_NS;
    if (!t->config.open_ns)
        t->config.open_ns = OPEN_NS;
    t->polled = UINT32_MAX;
    t->timer_ns = UINT64_MAX;
    t->links = -1;
    for (uint32_t i = 0; i < OPTCC_MAX_NICS; i++)
        t->nic[i] = (struct nic){.address = config->address[i], .fd = -1};
    t->joined = calloc(config->ranks, sizeof *t->joined);
    t->first_wire = calloc(config->ranks, sizeof *t->first_wire);
    t->lanes = calloc(config->ranks, sizeof *t->lanes);
    t->stranger = calloc(t->config.strangers, sizeof *t->stranger);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->clock = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int result = t->joined && t->first_wire && t->lanes && t->stranger ? OPTCC_OK : OPTCC_MEMORY;
    if (result == OPTCC_OK && (t->epoll < 0 || t->clock < 0 || watch(t, EPOLL_CTL_ADD, t->clock, EPOLLIN, CLOCK, 0)))
        result = OPTCC_BAD;
    for (uint32_t nic = 0; result == OPTCC_OK && nic < config->nics; nic++)
        if (start_listening(t, nic))
            result = OPTCC_BAD;
    if (result != OPTCC_OK) {
        const int why = errno;
        optcc_tcp_close(t);
        errno = why;
        return result;
    }
    follow_links(t);
    *tcp = t;
    return OPTCC_OK;
}

/* What was sent goes on its way; what has come is read, since the kernel would else take back what is on its way. */
static void part(int fd)
{
    unsigned char unwanted[LOOK_AHEAD];
    (void)shutdown(fd, SHUT_WR);
    for (int i = 0; i < DRAINS && recv(fd, unwanted, sizeof unwanted, 0) > 0; i++)
        ;
    close(fd);
}

void optcc_tcp_close(struct optcc_tcp *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->wires; i++) {
        struct one *w = &t->one[i];
        if (w->fd >= 0)
            part(w->fd);
        cut(&w->next);
        cut(&w->attempt.fd);
        free(w->bytes);
    }
    for (uint32_t i = 0; t->stranger && i < t->config.strangers; i++)
        if (t->stranger[i].stage != NOBODY)
            cut(&t->stranger[i].fd);
    for (uint32_t i = 0; i < t->config.nics; i++)
        if (t->nic[i].fd >= 0)
            close(t->nic[i].fd);
    if (t->epoll >= 0)
        close(t->epoll);
    if (t->clock >= 0)
        close(t->clock);
    if (t->links >= 0)
        close(t->links);
    free(t->one);
    free(t->wire);
    free(t->joined);
    free(t->first_wire);
    free(t->lanes);
    free(t->stranger);
    free(t->news.wire);
    free(t->ready.wire);
    free(t);
}

static int grow(void **memory, uint64_t bytes)
{
    void *more = realloc(*memory, bytes);
    if (more)
        *memory = more;
    return more != NULL;
}

/* Lists begin anew in the larger ring. */
static int grow_list(struct optcc_tcp *t, struct list *list, uint32_t count)
{
    uint32_t *wire = calloc(count, sizeof *wire);
    if (!wire)
        return 0;
    for (uint32_t i = 0; i < list->count; i++)
        wire[i] = list->wire[(list->first + i) % t->wires];
    free(list->wire);
    *list = (struct list){.wire = wire, .count = list->count};
    return 1;
}

static int add_wire(struct optcc_tcp *t, const struct optcc_wire *ends, const struct optcc_tcp_address *far)
{
    const uint32_t count = t->wires + 1;
    void *one = t->one, *wire = t->wire;
    const int grown = grow(&one, count * sizeof *t->one);
    t->one = one;
    const int grown_too = grow(&wire, count * sizeof *t->wire);
    t->wire = wire;
    unsigned char *bytes = malloc(buffer_bytes(t));
    if (!grown || !grown_too || !bytes || !grow_list(t, &t->news, count) || !grow_list(t, &t->ready, count)) {
        free(bytes);
        return OPTCC_MEMORY;
    }
    struct one *w = &t->one[t->wires];
    *w = (struct one){.ends = *ends, .state = OPTCC_TCP_OPENING, .fd = -1, .next = -1, .attempt.fd = -1,
                      .bytes = bytes, .joined_ns = optcc_now(t), .pause_ns = RETRY_NS};
    w->far_length = as_socket(far, t->nic[ends->nic].address.scope, far->port, &w->far);
    t->wire[t->wires++] = *ends;
    t->opening++;
    return OPTCC_OK;
}

int optcc_tcp_join(struct optcc_tcp *t, uint32_t rank, const void *handle, uint32_t length,
                   const struct optcc_wire *lanes, uint32_t count)
{
    struct optcc_tcp_address far[OPTCC_MAX_NICS];
    struct optcc_wire rail[OPTCC_MAX_NICS];
    if (t->has_engine || rank >= t->config.ranks || rank == t->config.rank || t->joined[rank])
        return OPTCC_BAD;
    const uint32_t nics = read_handle(t, rank, handle, length, far);
    if (!nics)
        return OPTCC_BAD;
    if (!lanes) {
        count = nics < t->config.nics ? nics : t->config.nics;
        for (uint32_t i = 0; i < count; i++)
            rail[i] = (struct optcc_wire){.peer = rank, .nic = i, .far_nic = i, .lane = i};
        lanes = rail;
    }
    if (!count || count > OPTCC_MAX_LANES)
        return OPTCC_BAD;
    for (uint32_t i = 0; i < count; i++)
        if (lanes[i].peer != rank || lanes[i].lane != i || lanes[i].nic >= t->config.nics || lanes[i].far_nic >= nics ||
            far[lanes[i].far_nic].family != t->nic[lanes[i].nic].address.family)
            return OPTCC_BAD;
    t->first_wire[rank] = t->wires;
    for (uint32_t i = 0; i < count; i++) {
        const int result = add_wire(t, &lanes[i], &far[lanes[i].far_nic]);
        if (result != OPTCC_OK)
            return result;
    }
    t->joined[rank] = 1;
    t->lanes[rank] = count;
    for (uint32_t i = 0; i < count; i++)
        if (connects(t, &t->one[t->first_wire[rank] + i]))
            attempt(t, &t->one[t->first_wire[rank] + i]);
    for (uint32_t i = 0; i < t->config.strangers; i++) {
        struct handshake *h = &t->stranger[i];
        if (h->stage != NOBODY)
            h->of_job = is_of_job(t, &h->from);
        if (h->stage == AWAITS_JOIN)
            go_on_with_stranger(t, h);
    }
    look_soon(t);
    return OPTCC_OK;
}

uint32_t optcc_tcp_wires(const struct optcc_tcp *t) { return t->wires; }

int optcc_tcp_wire(const struct optcc_tcp *t, uint32_t wire, struct optcc_wire *ends)
{
    if (wire >= t->wires)
        return OPTCC_BAD;
    *ends = t->wire[wire];
    return OPTCC_OK;
}

int optcc_tcp_engine(struct optcc_tcp *t, const struct optcc_config *config, struct optcc_engine **engine)
{
    struct optcc_config own = *config;
    own.rank = t->config.rank;
    own.ranks = t->config.ranks;
    own.nics = t->config.nics;
    own.wires = t->wires;
    *engine = NULL;
    if (t->has_engine || own.segment_bytes != t->config.segment_bytes)
        return OPTCC_BAD;
    const int result = optcc_open(&own, t->wire, &CONTRACT, t, engine);
    t->has_engine = result == OPTCC_OK;
    return result;
}

int optcc_tcp_ready(struct optcc_tcp *t)
{
    gather(t, 0);
    uint32_t live = 0;
    for (uint32_t i = 0; i < t->wires; i++)
        live += t->one[i].state == OPTCC_TCP_LIVE;
    return t->opening ? OPTCC_AGAIN : live == t->wires ? OPTCC_OK : OPTCC_LOST;
}

int optcc_tcp_look(const struct optcc_tcp *t, uint32_t wire)
{
    return wire < t->wires ? (int)t->one[wire].state : -1;
}

int optcc_tcp_fd(struct optcc_tcp *t)
{
    t->watched = 1;
    set_timer(t, t->timer_ns);
    return t->epoll;
}

int optcc_tcp_arm(const struct optcc_tcp *t) { return t->news.count || t->ready.count ? OPTCC_AGAIN : OPTCC_OK; }

int optcc_tcp_sent(const struct optcc_tcp *t)
{
    for (uint32_t i = 0; i < t->wires; i++) {
        const struct one *w = &t->one[i];
        int unsent = 0;
        if (w->state != OPTCC_TCP_LIVE || w->broken)
            continue;
        if (w->queued || w->payload || (ioctl(w->fd, SIOCOUTQ, &unsent) == 0 && unsent))
            return OPTCC_AGAIN;
    }
    return OPTCC_OK;
}

void optcc_tcp_count(const struct optcc_tcp *t, struct optcc_tcp_counters *counters) { *counters = t->counters; }
