/* Connections and requests, as NCCL sees them, and the thread that moves everything.
 *
 * A connection is a stream of the link between two processes. NCCL's threads leave requests in its ring and ring a bell;
 * the thread takes them, runs all engines, and marks what is done; NCCL's threads see the mark. A ring has one writer,
 * NCCL's thread of that connection, and one reader, who has the lock; so the writer takes none. What is rare (listen,
 * connect, accept, close) takes the lock that our thread holds while it works, and lets go after each round.
 *
 * NCCL's threads ask after a request again and again until it is done, and to wake our thread costs more than a short
 * message. So where they ask and nothing has moved for a while our thread gives way: it sleeps until its bell rings, for
 * WAY_NS at most, and who asks takes the lock if it is free and moves that request's link itself. Everything else stays our
 * thread's: doors, groups, what is rare. While a group has calls it does not give way.
 *
 * Bounded: requests of a connection (OPTCC_DEPTH), streams of a link, strangers at our doors.
 *
 * NCCL unloads a plugin with its last communicator: the library is linked to stay (-z nodelete), and `net_finalize` ends
 * the thread. NCCL older than 2.28 does not call that: then it ends with the process. Before the thread ends, what the
 * other side must still hear (the last acknowledgements, that streams are closed) has a moment to get there.
 */
#define _GNU_SOURCE
#include "net.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    STRANGERS = 128,     /* at our doors at a time */
    MOST_LINKS = 4096,
    MOST_CONNECTIONS = 65536
};
static const uint64_t WAY_NS = 1000000;             /* our thread gives way for so long, and then looks whether anybody has
                                                       asked */
static const uint64_t LONG_NS = 50000;              /* a round of a link by NCCL's thread after which ours is woken */
static const uint64_t AGAIN_NS = 2000;              /* NCCL asks after one request after another: of one link its sockets are
                                                       looked at once in so long, where nothing has been posted meanwhile.
                                                       Two processes, six hops of 8 bytes: 75 us, with 1 us 74, with 5 us 91 */
static const uint64_t HOLD_NS = 20000;              /* receives that NCCL posts one after another are told together: so
                                                       much later at the most, and at once where the sender has none. A ring
                                                       of four, 8 bytes: 133 us a call, with 8 us 130, with none 151 */
static const uint64_t ROUND_NS = 100000000;         /* between looks at what is rare */
static const uint64_t LINGER_NS = UINT64_C(2000000000); /* for the last words */
static const uint64_t UNUSED_NS = UINT64_C(20000000000); /* a link that nobody uses is closed after so long */

enum thread_is { AWAKE, SLEEPS, GIVES_WAY }; /* GIVES_WAY: it sleeps; who asks after a request moves that one's link */

struct route { /* a link, and who uses it */
    struct route *next;
    struct link *link;
    struct connection *first;
    uint32_t connections;
    uint64_t used_ns;
    uint64_t round_ns; /* its last round */
    int watched, told;
};

_Static_assert((int)OPTCC_DEPTH >= (int)NCCL_MAX_REQUESTS, "as many as NCCL makes");

struct connection {
    struct connection *next;
    struct route *route;
    uint32_t stream;
    int receiving;
    _Atomic uint64_t posted;
    uint64_t taken, oldest; /* of requests; the oldest that may not be done */
    uint64_t held_ns;       /* since when receives are held; 0: none is */
    struct request request[OPTCC_DEPTH];
};

struct listener {
    uint64_t port, communicator; /* number of the one that it is for; 0: not said */
};

static struct {
    pthread_mutex_t lock;
    _Atomic uint32_t waiting; /* threads that want the lock */
    nccl_logger_t log;
    uint32_t users;           /* communicators */
    pid_t pid;                /* a process that forked has no thread of ours */
    int running;
    pthread_t thread;
    _Atomic int stops;
    _Atomic uint64_t bell;    /* counts requests */
    _Atomic int is;           /* our thread: enum thread_is */
    _Atomic int asked;        /* NCCL has asked after a request that was not done, since our thread last gave way */
    int epoll, waker;
    struct process process;
    struct optcc_device device[OPTCC_MAX_NICS];
    struct route *routes;
    uint64_t ports;
} plugin = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll = -1, .waker = -1};

#define TELL(level, subsystems, ...)                                                                                   \
    do {                                                                                                               \
        if (plugin.log)                                                                                                \
            plugin.log(level, subsystems, __func__, __LINE__, __VA_ARGS__);                                            \
    } while (0)
#define WARN(...) TELL(NCCL_WARNING, NCCL_OF_ALL, "NET/optcc: " __VA_ARGS__)
#define INFO(...) TELL(NCCL_TOLD, NCCL_OF_INIT | NCCL_OF_NET, "NET/optcc: " __VA_ARGS__)

static void wake(void)
{
    const uint64_t once = 1;
    if (write(plugin.waker, &once, sizeof once) < 0 && errno != EAGAIN)
        WARN("cannot wake the thread: %s", strerror(errno));
}

/* Our thread lets whoever waits go first. */
void net_lock(void)
{
    atomic_fetch_add(&plugin.waiting, 1);
    pthread_mutex_lock(&plugin.lock);
    atomic_fetch_sub(&plugin.waiting, 1);
}

void net_unlock(void)
{
    pthread_mutex_unlock(&plugin.lock);
    net_ring(); /* links may have something to do */
}

void net_ring(void)
{
    atomic_fetch_add(&plugin.bell, 1);
    if (atomic_load(&plugin.is) != AWAKE)
        wake();
}

const struct process *net_process(void) { return &plugin.process; }

void net_tell(int warns, const char *line)
{
    if (warns)
        WARN("%s", line);
    else
        INFO("%s", line);
}

/* ---- what users set ----------------------------------------------------------------------------------------------- */

static int number(const char *name, uint64_t low, uint64_t high, uint64_t *value)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return 1;
    errno = 0;
    const unsigned long long told = strtoull(text, &end, 10);
    if (errno || *end || *text == '-' || told < low || told > high) {
        WARN("%s=%s: expected a whole number from %llu to %llu", name, text, (unsigned long long)low,
             (unsigned long long)high);
        return 0;
    }
    *value = told;
    return 1;
}

/* One of some words: its number; nothing said: the first. */
static int choice(const char *name, const char *const words[3], const char *expected, uint32_t *value)
{
    const char *const text = getenv(name);
    *value = 0;
    if (!text || !*text)
        return 1;
    while (*value < 3 && words[*value] && strcmp(text, words[*value]))
        ++*value;
    if (*value < 3 && words[*value])
        return 1;
    WARN("%s=%s: expected %s", name, text, expected);
    return 0;
}

static int read_settings(struct settings *s)
{
    uint64_t devices = 1, segment = 128 << 10, window = 512 << 10, suspect_ms = 200, return_s = 120, connect_s = 60;
    uint64_t spin_us = 20, collnet_bytes = 4 << 20;
    uint32_t lanes, wires, collnet, no_gpu;
    const char *rates = getenv("OPTCC_RATES"), *plans = getenv("OPTCC_PLANS");
    if (!number("OPTCC_DEVICES", 1, OPTCC_MAX_NICS, &devices) ||
        !number("OPTCC_SEGMENT_BYTES", 4096, OPTCC_MAX_SEGMENT / 4, &segment) ||
        !number("OPTCC_WINDOW_BYTES", 4096, UINT64_C(1) << 30, &window) ||
        !number("OPTCC_SUSPECT_MS", 10, 60000, &suspect_ms) || !number("OPTCC_RETURN_S", 1, 86400, &return_s) ||
        !number("OPTCC_CONNECT_S", 1, 86400, &connect_s) || !number("OPTCC_SPIN_US", 0, 1000000, &spin_us) ||
        !number("OPTCC_COLLNET_BYTES", 0, UINT64_MAX, &collnet_bytes) ||
        !choice("OPTCC_LANES", (const char *const[3]){"rails", "all"},
                "rails (NIC i to NIC i) or all (from every NIC to every NIC)", &lanes) ||
        !choice("OPTCC_WIRES", (const char *const[3]){[BY_ANY] = "auto", [BY_RDMA] = "rdma", [BY_TCP] = "tcp"},
                "rdma, tcp, or auto (RDMA devices where there are any)", &wires) ||
        !choice("OPTCC_COLLNET", (const char *const[3]){[IF_DEGRADED] = "auto", [ALWAYS] = "always", [NEVER] = "never"},
                "auto (where now.plan has slow nodes), always or never", &collnet) ||
        !choice("OPTCC_GPU", (const char *const[3]){"auto", "off"}, "auto (sums on the GPU where that can be) or off",
                &no_gpu))
        return 0;
    if (segment % 4096) {
        WARN("OPTCC_SEGMENT_BYTES=%llu: expected a multiple of 4096", (unsigned long long)segment);
        return 0;
    }
    *s = (struct settings){.wires = wires, .collnet = collnet, .collnet_bytes = collnet_bytes, .devices = (uint32_t)devices,
                           .segment_bytes = (uint32_t)segment, .window_bytes = (uint32_t)window, .all_lanes = lanes,
                           .suspect_ns = suspect_ms * MILLISECOND_NS, .return_ns = return_s * SECOND_NS,
                           .connect_ns = connect_s * SECOND_NS, .spin_ns = spin_us * 1000,
                           .gpu = !no_gpu, .rates = rates && *rates ? rates : NULL,
                           .plans = plans && *plans ? plans : NULL};
    return 1;
}

/* ---- the thread --------------------------------------------------------------------------------------------------- */

void request_end(struct request *r, nccl_result_t result, uint64_t bytes)
{
    r->result = result;
    r->size = (int)(bytes > INT_MAX ? INT_MAX : bytes);
    atomic_store_explicit(&r->is, result == NCCL_SUCCESS ? ENDED : FAILED, memory_order_release);
}

/* Requests that NCCL has left, into the stream. Returns when those that are held are to be taken; UINT64_MAX: none is. */
static uint64_t take_requests(struct connection *c, uint64_t now_ns, int *moved)
{
    struct optcc_messages *messages = link_messages(c->route->link);
    const uint64_t posted = atomic_load_explicit(&c->posted, memory_order_acquire);
    const uint64_t before = c->taken;
    const int may_wait = c->receiving && c->taken < posted && c->taken > c->oldest;
    if (may_wait && !c->held_ns)
        c->held_ns = now_ns;
    if (may_wait && now_ns < c->held_ns + HOLD_NS)
        return c->held_ns + HOLD_NS;
    c->held_ns = 0;
    for (; c->taken < posted; c->taken++) {
        struct request *r = &c->request[c->taken % OPTCC_DEPTH];
        const int result = c->receiving ? optcc_receive(messages, c->stream, r->data, r->bytes, &r->number)
                                        : optcc_send(messages, c->stream, r->data, r->bytes, r->tag, &r->number);
        if (result == OPTCC_AGAIN)
            break;
        if (result == OPTCC_OK)
            atomic_store_explicit(&r->is, TAKEN, memory_order_relaxed);
        else
            request_end(r, NCCL_INTERNAL_ERROR, 0);
    }
    *moved |= c->taken > before;
    return UINT64_MAX;
}

static int end_requests(struct connection *c, int lost)
{
    struct optcc_messages *messages = link_messages(c->route->link);
    const uint64_t end = lost ? atomic_load_explicit(&c->posted, memory_order_acquire) : c->taken;
    int moved = 0;
    for (uint64_t n = c->oldest; n < end; n++) {
        struct request *r = &c->request[n % OPTCC_DEPTH];
        const uint32_t is = atomic_load_explicit(&r->is, memory_order_relaxed);
        uint64_t bytes = r->bytes;
        if (is == TAKEN || (lost && is == POSTED)) {
            const int result = lost           ? OPTCC_LOST
                               : c->receiving ? optcc_received(messages, c->stream, r->number, &bytes, &r->tag)
                                              : optcc_sent(messages, c->stream, r->number);
            if (result == OPTCC_AGAIN)
                continue;
            if (result == OPTCC_BAD)
                WARN("a message of %llu bytes is longer than the buffer of its receiver",
                     (unsigned long long)r->bytes);
            request_end(r, result == OPTCC_OK ? NCCL_SUCCESS : result == OPTCC_BAD ? NCCL_INVALID_USAGE : NCCL_REMOTE_ERROR,
                   bytes);
            moved = 1;
        }
        if (n == c->oldest)
            c->oldest++;
    }
    if (lost)
        c->taken = end;
    return moved;
}

static void watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(plugin.epoll, EPOLL_CTL_ADD, fd, &event) && errno != EEXIST)
        WARN("cannot watch a link: %s", strerror(errno));
}

static struct route *add_route(struct link *link)
{
    struct route *route = link ? calloc(1, sizeof *route) : NULL;
    if (!route) {
        link_close(link);
        return NULL;
    }
    route->link = link;
    route->used_ns = clock_ns();
    route->next = plugin.routes;
    plugin.routes = route;
    return route;
}

static int answer_doors(void)
{
    uint32_t strangers = 0, links = 0;
    int moved = 0;
    for (const struct route *r = plugin.routes; r; r = r->next) {
        strangers += link_state(r->link) == LINK_MEETS && !link_is_ours(r->link);
        links++;
    }
    for (uint32_t door = 0; door < plugin.process.doors; door++)
        while (strangers < STRANGERS && links < MOST_LINKS && add_route(link_at_door(&plugin.process, door))) {
            strangers++;
            links++;
            moved = 1;
        }
    return moved;
}

/* Whether the link to us has one from us beside it, which tells what becomes of the peer's NICs. */
static int other_way(const struct route *route)
{
    const struct route *r = link_is_ours(route->link) ? NULL : plugin.routes;
    while (r && !(r->connections && link_is_ours(r->link) && link_process(r->link) == link_process(route->link)))
        r = r->next;
    return r != NULL;
}

/* A NIC that one link has left is asked after by all: where little is sent nobody would notice that it is silent, and the
 * next call's plan would count on it. */
static void doubt_together(void)
{
    for (struct route *r = plugin.routes; r; r = r->next) {
        const uint32_t lost = link_state(r->link) == LINK_OPEN ? link_newly_lost(r->link) : 0;
        for (struct route *other = lost ? plugin.routes : NULL; other; other = other->next)
            if (other != r && link_state(other->link) == LINK_OPEN)
                link_doubt(other->link, lost);
    }
}

/* What need not be seen at once: NICs lost and back; links that are over, or that nobody uses. */
static void look_around(uint64_t now_ns)
{
    struct route **at = &plugin.routes;
    doubt_together();
    report_begin(now_ns);
    while (*at) {
        struct route *r = *at;
        char words[512];
        link_look(r->link);
        const int used_now = r->connections && link_state(r->link) == LINK_OPEN;
        const int passes = link_process(r->link) != plugin.process.id; /* what goes to ourselves passes no NIC */
        while (link_state(r->link) == LINK_OPEN && link_news(r->link, report_lost(), words, sizeof words)) {
            if (used_now && !other_way(r)) /* a process that has ended is no news */
                WARN("%s", words);
            else
                INFO("%s", words);
        }
        const int over = link_state(r->link) == LINK_LOST;
        const int used = r->connections || (link_state(r->link) == LINK_OPEN && optcc_streams(link_messages(r->link))) ||
                         link_state(r->link) == LINK_MEETS;
        if (used)
            r->used_ns = now_ns;
        /* Who has made a link closes it; the other hears of it by silence. One that was lost is remembered for a while,
         * so that all who want it are told why. */
        const uint64_t patience_ns = over && !link_is_ours(r->link) ? 0 : UNUSED_NS;
        if (!used && (over || link_is_ours(r->link)) && now_ns - r->used_ns >= patience_ns) {
            *at = r->next;
            if (!over) {
                link_tell(r->link, words, sizeof words);
                INFO("%s", words);
            }
            if (passes)
                report_link_over(r->link);
            link_close(r->link);
            free(r);
        } else {
            if (passes)
                report_link(r->link, used_now);
            at = &r->next;
        }
    }
    report_end(&plugin.process, now_ns);
}

/* Before NCCL hears of it. */
static void tell_lost(struct route *r, uint64_t now_ns)
{
    if (link_state(r->link) != LINK_LOST || r->told)
        return;
    r->told = 1;
    r->used_ns = now_ns;
    if (link_left(r->link) && !r->connections) { /* as processes do */
        INFO("link to process %016llx: %s", (unsigned long long)link_process(r->link), link_why(r->link));
        return;
    }
    if (r->connections)
        report_link_lost();
    if (r->connections || link_is_ours(r->link))
        WARN("link to process %016llx: %s", (unsigned long long)link_process(r->link), link_why(r->link));
}

/* One round of a link: takes the requests that NCCL has left for it, does what can be done, ends requests. With the lock;
 * returns the time by which it is to be called again. */
static uint64_t route_progress(struct route *r, uint64_t now_ns, int *moved)
{
    uint64_t again_ns = UINT64_MAX;
    for (struct connection *c = link_state(r->link) == LINK_OPEN ? r->first : NULL; c; c = c->next) {
        const uint64_t held_ns = take_requests(c, now_ns, moved);
        again_ns = held_ns < again_ns ? held_ns : again_ns;
    }
    const uint64_t link_ns = link_progress(r->link, moved);
    again_ns = link_ns < again_ns ? link_ns : again_ns;
    r->round_ns = now_ns;
    const int lost = link_state(r->link) == LINK_LOST;
    tell_lost(r, now_ns);
    if (!r->watched && link_fd(r->link) >= 0) {
        watch(link_fd(r->link));
        r->watched = 1;
    }
    for (struct connection *c = r->first; c; c = c->next)
        if (c->oldest < c->taken || lost)
            *moved |= end_requests(c, lost);
    return again_ns;
}

/* Somebody asks after a request that is not done. Nothing here waits: if the lock is taken somebody else moves. Who asks no
 * more is not forgotten: our thread looks again after WAY_NS. */
static void help(const struct connection *c)
{
    int moved = 0, is_long = 0;
    if (!atomic_load_explicit(&plugin.asked, memory_order_relaxed))
        atomic_store_explicit(&plugin.asked, 1, memory_order_relaxed);
    if (atomic_load(&plugin.is) != GIVES_WAY || atomic_load(&plugin.waiting) || pthread_mutex_trylock(&plugin.lock))
        return;
    /* Still: our thread counts on what it has armed once it has had the lock. A process that forked has no link. */
    const uint64_t now_ns = clock_ns();
    const int due = c->route && ((!c->receiving && c->taken < atomic_load(&c->posted)) ||
                                  now_ns - c->route->round_ns >= AGAIN_NS);
    if (due && atomic_load(&plugin.is) == GIVES_WAY && plugin.pid == getpid()) {
        (void)route_progress(c->route, now_ns, &moved);
        is_long = clock_ns() - now_ns > LONG_NS;
    }
    pthread_mutex_unlock(&plugin.lock);
    if (is_long)
        net_ring();
}

static void rest(enum thread_is how, uint64_t until_ns, uint64_t bell)
{
    struct pollfd wakes = {.fd = how == GIVES_WAY ? plugin.waker : plugin.epoll, .events = POLLIN};
    uint64_t rung;
    atomic_store(&plugin.is, how);
    const uint64_t now_ns = clock_ns(), ns = until_ns <= now_ns ? 0 : how == GIVES_WAY ? WAY_NS : until_ns - now_ns;
    const struct timespec most = {.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    if (ns && atomic_load(&plugin.bell) == bell && !atomic_load(&plugin.waiting) && !atomic_load(&plugin.stops))
        (void)ppoll(&wakes, 1, &most, NULL);
    atomic_store(&plugin.is, AWAKE);
    while (read(plugin.waker, &rung, sizeof rung) > 0)
        ;
}

/* Whether the links' descriptors tell of what comes from now on; if not, all is to be looked at once more. */
static int arm(void)
{
    int armed = 1;
    pthread_mutex_lock(&plugin.lock);
    for (const struct route *r = plugin.routes; r; r = r->next)
        armed &= link_arm(r->link);
    pthread_mutex_unlock(&plugin.lock);
    return armed;
}

static void *run(void *unused)
{
    uint64_t moved_ns = clock_ns(), round_ns = 0, doors_ns = 0;
    (void)unused;
    while (!atomic_load(&plugin.stops)) {
        while (atomic_load(&plugin.waiting))
            sched_yield();
        const uint64_t bell = atomic_load(&plugin.bell), now_ns = clock_ns();
        uint64_t again_ns = now_ns + ROUND_NS;
        pthread_mutex_lock(&plugin.lock);
        int moved = 0;
        if (now_ns >= doors_ns) {
            moved = answer_doors();
            doors_ns = now_ns + MILLISECOND_NS;
        }
        for (struct route *r = plugin.routes; r; r = r->next) {
            const uint64_t link_ns = route_progress(r, now_ns, &moved);
            if (link_ns < again_ns)
                again_ns = link_ns;
        }
        moved |= groups_progress(now_ns);
        const int groups = groups_run();
        if (now_ns >= round_ns) {
            look_around(now_ns);
            round_ns = now_ns + ROUND_NS;
        }
        pthread_mutex_unlock(&plugin.lock);
        const int rests = !moved && now_ns - moved_ns >= plugin.process.settings.spin_ns;
        if (moved)
            moved_ns = now_ns;
        if (rests && !groups && atomic_exchange(&plugin.asked, 0))
            rest(GIVES_WAY, again_ns, bell);
        else if (rests && arm())
            rest(SLEEPS, again_ns, bell);
    }
    return NULL;
}

/* ---- beginning and end -------------------------------------------------------------------------------------------- */

static void tell_nics(const struct process *p)
{
    char line[2048];
    size_t at = 0;
    for (uint32_t i = 0; i < p->nics && at < sizeof line; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, " [%u]%s %u Mb/s", i, p->nic[i].name, p->nic[i].speed_mbps);
    INFO("using%s, by %s, segments of %u KiB, windows of %u KiB; every message may go by each of them", line,
         p->way == WAY_TCP ? "TCP" : p->way == WAY_INFINIBAND ? "RDMA over InfiniBand" : "RDMA over Ethernet",
         p->settings.segment_bytes >> 10, p->settings.window_bytes >> 10);
}

/* Rates that are told, in place of what the system says: a number for each NIC. */
static int told_rates(struct process *p, char *why, size_t room)
{
    const char *at = p->settings.rates;
    for (uint32_t i = 0; at && i < p->nics; i++) {
        char *end;
        const double gbps = strtod(at, &end);
        if (end == at || !(gbps >= 0.001 && gbps <= 1e6) || *end != (i + 1 < p->nics ? ',' : 0)) {
            snprintf(why, room, "OPTCC_RATES=%s: expected Gb/s for each of %u NICs, such as 400,200", p->settings.rates,
                     p->nics);
            return 0;
        }
        p->nic[i].speed_mbps = (uint32_t)(gbps * 1000);
        at = end + 1;
    }
    return 1;
}

/* What carries, and by which interfaces processes meet. Interfaces that are named are meant to carry. 0: and `why`. */
static int find_nics(struct process *p, char *why, size_t room)
{
    const char *named = getenv("OPTCC_NICS");
    const int rdma = p->settings.wires == BY_RDMA || (p->settings.wires == BY_ANY && !(named && *named));
    if (!(p->meets = nics_find(p->meet, why, room)))
        return 0;
    if (rdma && (p->nics = nics_find_rdma(p->nic, why, room))) {
        p->way = p->nic[0].gid_index < 0 ? WAY_INFINIBAND : WAY_ETHERNET;
        return 1;
    }
    if (p->settings.wires == BY_RDMA)
        return 0;
    if (rdma)
        INFO("no RDMA: %s", why);
    memcpy(p->nic, p->meet, sizeof p->nic);
    p->nics = p->meets;
    return 1;
}

/* What the process has beside its thread and links. */
static void let_go(struct process *p)
{
    report_stop();
    doors_close(p);
    plans_close(p->plans);
    p->plans = NULL;
    if (plugin.epoll >= 0)
        close(plugin.epoll);
    if (plugin.waker >= 0)
        close(plugin.waker);
    plugin.epoll = plugin.waker = -1;
}

/* Called with the lock. */
static nccl_result_t start(void)
{
    struct process *p = &plugin.process;
    char why[1200] = "";
    sigset_t all, before;
    memset(p, 0, sizeof *p);
    memset(plugin.device, 0, sizeof plugin.device);
    p->device = plugin.device;
    if (!read_settings(&p->settings))
        return NCCL_INVALID_USAGE;
    if (gethostname(p->host, sizeof p->host - 1) || !p->host[0])
        snprintf(p->host, sizeof p->host, "unknown");
    report_name(p->host);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int good = find_nics(p, why, sizeof why) && told_rates(p, why, sizeof why) &&
               (!p->settings.plans || plans_open(p->settings.plans, &p->plans, why, sizeof why)) &&
               !doors_open(p, why, sizeof why) && report_start(p, why, sizeof why);
    if (good) {
        plugin.epoll = epoll_create1(EPOLL_CLOEXEC);
        plugin.waker = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        atomic_store(&plugin.stops, 0);
        good = plugin.epoll >= 0 && plugin.waker >= 0 && !pthread_create(&plugin.thread, NULL, run, NULL);
        if (!good)
            snprintf(why, sizeof why, "cannot start its thread: %s", strerror(errno));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!good) {
        WARN("%s", why);
        let_go(p);
        return NCCL_SYSTEM_ERROR;
    }
    pthread_setname_np(plugin.thread, "optcc-net");
    for (uint32_t i = 0; i < p->doors; i++)
        watch(p->door[i]);
    watch(plugin.waker);
    plugin.pid = getpid();
    plugin.running = 1;
    tell_nics(p);
    return NCCL_SUCCESS;
}

/* Whether somebody waits for a last word of ours: that a stream to us is closed at both ends, since then its sender knows
 * that all has come; or anything that is still on its way. Who cannot be reached does not wait. */
static int has_last_words(void)
{
    int words = 0;
    for (const struct route *r = plugin.routes; r; r = r->next) {
        const int opens = !link_is_ours(r->link) && link_state(r->link) == LINK_OPEN &&
                          optcc_streams(link_messages(r->link)) > r->connections;
        words |= link_wires(r->link) && (opens || !link_sent(r->link));
    }
    return words;
}

/* Called with the lock, which it gives up in between. */
static void stop(void)
{
    const uint64_t begun_ns = clock_ns();
    char words[512];
    while (has_last_words() && clock_ns() - begun_ns < LINGER_NS) {
        net_unlock();
        usleep(200);
        net_lock();
    }
    atomic_store(&plugin.stops, 1);
    net_unlock();
    wake();
    pthread_join(plugin.thread, NULL);
    net_lock();
    groups_stop();
    while (plugin.routes) {
        struct route *r = plugin.routes;
        plugin.routes = r->next;
        for (struct connection *c = r->first; c; c = c->next) { /* closed by its owner, later */
            for (uint32_t i = 0; i < OPTCC_DEPTH; i++)
                if (atomic_load(&c->request[i].is) == POSTED || atomic_load(&c->request[i].is) == TAKEN)
                    request_end(&c->request[i], NCCL_REMOTE_ERROR, 0);
            c->route = NULL;
        }
        link_tell(r->link, words, sizeof words);
        INFO("%s", words);
        link_close(r->link);
        free(r);
    }
    let_go(&plugin.process);
    plugin.running = 0;
}

/* At the end of the process NCCL's logger may be gone. */
__attribute__((destructor)) static void end(void)
{
    if (!plugin.running || plugin.pid != getpid())
        return;
    plugin.log = NULL;
    net_lock();
    stop();
    net_unlock();
}

nccl_result_t net_init(nccl_logger_t log)
{
    if (plugin.pid && plugin.pid != getpid()) { /* forked: all this is the parent's */
        memset(&plugin, 0, sizeof plugin);
        pthread_mutex_init(&plugin.lock, NULL);
        plugin.epoll = plugin.waker = -1;
    }
    net_lock();
    plugin.log = log;
    const nccl_result_t result = plugin.running ? NCCL_SUCCESS : start();
    plugin.users += result == NCCL_SUCCESS;
    pthread_mutex_unlock(&plugin.lock);
    return result;
}

nccl_result_t net_finalize(void)
{
    net_lock();
    if (plugin.users && --plugin.users == 0 && plugin.running)
        stop();
    pthread_mutex_unlock(&plugin.lock);
    return NCCL_SUCCESS;
}

nccl_result_t net_devices(int *count)
{
    *count = (int)plugin.process.settings.devices;
    return NCCL_SUCCESS;
}

/* Every device is all NICs; so NCCL may spread over devices as it likes. */
nccl_result_t net_properties(int device, struct nccl_properties_v12 *properties)
{
    static char names[OPTCC_MAX_NICS][16];
    struct process *p = &plugin.process;
    const uint32_t devices = p->settings.devices;
    uint64_t speed = 0;
    if (device < 0 || (uint32_t)device >= devices)
        return NCCL_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < p->nics; i++)
        speed += p->nic[i].speed_mbps;
    snprintf(names[device], sizeof names[device], "optcc%d", device);
    const size_t most = (size_t)MOST_SEGMENTS * p->settings.segment_bytes;
    /* NCCL puts a device beside the GPUs of its PCI path: of use only where each stands for a NIC. */
    char *const path = devices == p->nics && p->nic[device].pci_path[0] ? p->nic[device].pci_path : NULL;
    *properties = (struct nccl_properties_v12){
        .name = names[device], .pci_path = path, .guid = (uint64_t)device, .pointers = NCCL_PTR_HOST,
        .speed_mbps = (int)(speed / devices > INT_MAX ? INT_MAX : speed / devices),
        .most_connections = MOST_CONNECTIONS, .most_grouped_receives = 1,
        .merged = {.count = 1, .devices = {device}}, .most_p2p_bytes = most, .most_collective_bytes = most,
        .most_requests_at_once = 1, .rail = NCCL_UNDEFINED_ID, .plane = NCCL_UNDEFINED_ID};
    return NCCL_SUCCESS;
}

/* ---- connections -------------------------------------------------------------------------------------------------- */

nccl_result_t net_listen(int device, void *handle, void **listener)
{
    return net_listen_for(0, device, handle, listener);
}

uint64_t net_communicator(const void *listener) { return listener ? ((const struct listener *)listener)->communicator : 0; }

nccl_result_t net_listen_for(uint64_t communicator, int device, void *handle, void **listener)
{
    struct handle told;
    *listener = NULL;
    if (device < 0 || (uint32_t)device >= plugin.process.settings.devices)
        return NCCL_INVALID_ARGUMENT;
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return NCCL_SYSTEM_ERROR;
    l->communicator = communicator;
    net_lock();
    l->port = ++plugin.ports;
    handle_write(&plugin.process, l->port, &told);
    net_unlock();
    memset(handle, 0, NCCL_HANDLE_BYTES);
    memcpy(handle, &told, sizeof told);
    *listener = l;
    return NCCL_SUCCESS;
}

struct link *net_link(const void *connection)
{
    const struct connection *c = connection;
    return c && c->route ? c->route->link : NULL;
}

static struct connection *add_connection(struct route *route, uint32_t stream, int receiving)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->route = route;
    c->stream = stream;
    c->receiving = receiving;
    c->next = route->first;
    route->first = c;
    route->connections++;
    return c;
}

/* Called with the lock. `connection` stays NULL where it must be asked again. */
static nccl_result_t connect_to(const struct handle *handle, void **connection)
{
    struct route *route = plugin.routes;
    uint32_t stream, links = 0;
    for (const struct route *r = plugin.routes; r; r = r->next)
        links++;
    while (route && (!link_is_ours(route->link) || link_process(route->link) != handle->process))
        route = route->next;
    if (!route) {
        if (links >= MOST_LINKS) {
            WARN("links to more than %d processes", MOST_LINKS);
            return NCCL_SYSTEM_ERROR;
        }
        return add_route(link_to(&plugin.process, handle)) ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
    }
    if (link_state(route->link) == LINK_LOST) {
        WARN("cannot connect: %s", link_why(route->link));
        return NCCL_REMOTE_ERROR;
    }
    if (link_state(route->link) == LINK_MEETS)
        return NCCL_SUCCESS;
    const int result = optcc_stream_open(link_messages(route->link), handle->port, &stream);
    if (result == OPTCC_AGAIN)
        return NCCL_SUCCESS;
    *connection = result == OPTCC_OK ? add_connection(route, stream, 0) : NULL;
    return *connection ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

nccl_result_t net_connect(int device, const void *handle, void **connection)
{
    struct handle told;
    char why[256];
    *connection = NULL;
    if (device < 0 || (uint32_t)device >= plugin.process.settings.devices)
        return NCCL_INVALID_ARGUMENT;
    if (!handle_read(handle, &told, why, sizeof why)) {
        WARN("%s", why);
        return NCCL_INVALID_USAGE;
    }
    net_lock();
    const nccl_result_t result = connect_to(&told, connection);
    net_unlock();
    return result;
}

nccl_result_t net_accept(void *listener, void **connection)
{
    const struct listener *l = listener;
    uint32_t stream;
    nccl_result_t result = NCCL_SUCCESS;
    *connection = NULL;
    net_lock();
    for (struct route *r = plugin.routes; r; r = r->next)
        if (!link_is_ours(r->link) && link_state(r->link) == LINK_OPEN &&
            optcc_stream_take(link_messages(r->link), l->port, &stream) == OPTCC_OK) {
            *connection = add_connection(r, stream, 1);
            result = *connection ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
            break;
        }
    net_unlock();
    return result;
}

/* Whoever has come and was not accepted is sent away. */
nccl_result_t net_close_listen(void *listener)
{
    const struct listener *l = listener;
    uint32_t stream;
    net_lock();
    for (struct route *r = l ? plugin.routes : NULL; r; r = r->next)
        while (!link_is_ours(r->link) && link_state(r->link) == LINK_OPEN &&
               optcc_stream_take(link_messages(r->link), l->port, &stream) == OPTCC_OK)
            optcc_stream_close(link_messages(r->link), 1, stream);
    net_unlock();
    free(listener);
    return NCCL_SUCCESS;
}

nccl_result_t net_close(void *connection)
{
    const uint64_t begun_ns = clock_ns();
    struct connection *c = connection;
    if (!c)
        return NCCL_SUCCESS;
    net_lock();
    struct route *route = c->route;
    for (struct connection **at = route ? &route->first : NULL; at && *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    if (route && link_state(route->link) == LINK_OPEN) {
        struct optcc_messages *messages = link_messages(route->link);
        uint64_t lanes = 0;
        optcc_stream_close(messages, c->receiving, c->stream);
        /* NCCL frees its buffers after this: a wire that may still read one is waited for, and then cut. */
        while (!c->receiving && (lanes = optcc_stream_held(messages, c->stream)) &&
               link_state(route->link) == LINK_OPEN && clock_ns() - begun_ns < LINGER_NS) {
            net_unlock();
            usleep(100);
            net_lock();
        }
        for (; lanes; lanes &= lanes - 1)
            optcc_leave(link_engine(route->link), (uint32_t)__builtin_ctzll(lanes));
    }
    if (route)
        route->connections--;
    net_unlock();
    free(c);
    return NCCL_SUCCESS;
}

/* ---- memory and requests ------------------------------------------------------------------------------------------ */

nccl_result_t net_register(void *connection, void *data, size_t size, int type, void **region)
{
    (void)connection, (void)data, (void)size;
    if (region)
        *region = NULL;
    if (type == NCCL_PTR_HOST)
        return NCCL_SUCCESS;
    WARN("memory of kind %d: only host memory is known, and nothing else is promised to NCCL", type);
    return NCCL_INTERNAL_ERROR;
}

nccl_result_t net_deregister(void *connection, void *region)
{
    (void)connection, (void)region;
    return NCCL_SUCCESS;
}

static nccl_result_t post(struct connection *c, void *data, size_t size, struct optcc_tag tag, void **request)
{
    const uint64_t posted = atomic_load_explicit(&c->posted, memory_order_relaxed);
    struct request *r = &c->request[posted % OPTCC_DEPTH];
    *request = NULL; /* which says on entry whether NCCL can do without the completion: it gets it */
    if (atomic_load_explicit(&r->is, memory_order_acquire) != FREE)
        return NCCL_SUCCESS;
    r->data = data;
    r->bytes = size;
    r->tag = tag;
    r->connection = c;
    atomic_store_explicit(&r->is, POSTED, memory_order_relaxed);
    atomic_store_explicit(&c->posted, posted + 1, memory_order_release);
    atomic_fetch_add(&plugin.bell, 1);
    if (atomic_load(&plugin.is) == SLEEPS)
        wake();
    *request = r;
    return NCCL_SUCCESS;
}

int net_too_long(uint64_t bytes)
{
    const uint64_t most = (uint64_t)MOST_SEGMENTS * plugin.process.settings.segment_bytes;
    if (bytes > most)
        WARN("%llu bytes at once: at most %llu, as properties say", (unsigned long long)bytes, (unsigned long long)most);
    return bytes > most;
}

nccl_result_t net_send(void *connection, void *data, size_t size, void **request)
{
    return net_send_tagged(connection, data, size, (struct optcc_tag){0}, request);
}

nccl_result_t net_send_tagged(void *connection, const void *data, size_t size, struct optcc_tag tag, void **request)
{
    return net_too_long(size) ? NCCL_INVALID_ARGUMENT : post(connection, (void *)(uintptr_t)data, size, tag, request);
}

nccl_result_t net_receive(void *connection, int n, void **data, const size_t *sizes, void **request)
{
    const size_t most = (size_t)MOST_SEGMENTS * plugin.process.settings.segment_bytes;
    if (n != 1)
        return NCCL_INVALID_ARGUMENT;
    /* A buffer may be longer than any message. */
    return post(connection, data[0], sizes[0] < most ? sizes[0] : most, (struct optcc_tag){0}, request);
}

nccl_result_t net_flush(void **request)
{
    *request = NULL; /* host memory needs none */
    return NCCL_SUCCESS;
}

nccl_result_t request_test(void *request, int *done, int *sizes)
{
    struct request *r = request;
    const uint32_t is = atomic_load_explicit(&r->is, memory_order_acquire);
    *done = is == ENDED || is == FAILED;
    if (!*done)
        return NCCL_SUCCESS;
    const nccl_result_t result = is == FAILED ? r->result : NCCL_SUCCESS;
    if (sizes)
        sizes[0] = is == ENDED ? r->size : 0;
    atomic_store_explicit(&r->is, FREE, memory_order_release);
    return result;
}

nccl_result_t net_test(void *request, int *done, int *sizes)
{
    const struct request *r = request;
    const uint32_t is = atomic_load_explicit(&r->is, memory_order_acquire);
    if (r->connection && (is == POSTED || is == TAKEN))
        help(r->connection);
    return request_test(request, done, sizes);
}
