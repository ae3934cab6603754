/* Plays NCCL without a GPU: loads the plugin and calls its tables as NCCL's threads do.
 *
 *   nccl_harness LIBRARY VERSION RANK RANKS FOLDER SEED MESSAGES CONNECTIONS CUTS [CALLS]
 *
 * Each process is a rank; FOLDER is where they exchange handles and meet. Between any two ranks, both ways, there are
 * CONNECTIONS connections with MESSAGES messages each, up to 8 in flight, tested in order, some empty, of odd sizes, in
 * buffers that are longer. Bytes follow from SEED, connection and number, so both ends know them. CUTS is how many
 * connections of NICs this process breaks, at random moments, by shutting the sockets of one NIC's address.
 *
 * With CALLS it plays CollNet in place of messages: CONNECTIONS groups of all ranks, a node each, with so many calls each,
 * as many in flight: AllReduces of all types and operations and odd sizes, and AllGathers and ReduceScatters in windows.
 * Numbers are whole and small, so that every result is exact. HARNESS_BYTES: AllReduces of float32 of that length alone,
 * which are timed and whose last is checked. HARNESS_OPEN_S: so long a plugin that does not open is opened again, as NICs
 * may be away. HARNESS_IDLE_S: so long nothing is connected, between two communicators. HARNESS_LEAVES: that rank ends amid
 * its messages, while a process forked from it lives on.
 * HARNESS_LAUNCHES: it has a GPU, and tells of its launches: nccl_launches.h.
 *
 * It prints one line, "right ..." or what is wrong, and ends with 0 or 1; 3: it took too long, or goes on long after
 * another has ended with 1.
 */
#define _GNU_SOURCE
#include "nccl_launches.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    IN_FLIGHT = 8,
    MOST_RANKS = 8,
    MOST_CONNECTIONS = 8,
    GUARD = 64,
    MOST_BYTES = 1 << 20,
    LIMIT_S = 240,
    GRACE_S = 10 /* after a rank has failed the others have heard of it */
};

/* ---- one interface for all versions -------------------------------------------------------------------------------- */

static struct {
    int version;
    const struct nccl_net_v8 *v8;
    const struct nccl_net_v9 *v9;
    const struct nccl_net_v10 *v10;
    const struct nccl_net_v11 *v11;
    const struct nccl_net_v12 *v12;
    nccl_devices_t *devices;
    nccl_accept_t *accept;
    nccl_register_t *reg;
    nccl_deregister_t *dereg;
    nccl_test_t *test;
    nccl_close_t *close_send, *close_receive, *close_listen;
    void *context;
} net;

static int rank, ranks;
static uint64_t seed;
static const char *folder;

static int in_folder(const char *name, int flags)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, flags, 0600);
}

static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("wrong: ");
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    close(in_folder("failed", O_CREAT | O_WRONLY)); /* see `late` */
    _exit(1);
}

static void check(nccl_result_t result, const char *what)
{
    if (result != NCCL_SUCCESS)
        fail("%s returned %d", what, result);
}

static void log_line(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    va_list list;
    char text[2048];
    (void)subsystems;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "[%d] %s %s:%d %s\n", rank, level == NCCL_WARNING ? "WARN" : "INFO", file, line, text);
}

#define COMMON(t)                                                                                                      \
    net.devices = t->devices, net.accept = t->accept, net.reg = t->register_memory, net.dereg = t->deregister,         \
    net.test = t->test, net.close_send = t->close_send, net.close_receive = t->close_receive,                          \
    net.close_listen = t->close_listen

static void load(void *library, int version)
{
    char name[32];
    snprintf(name, sizeof name, "ncclNetPlugin_v%d", version);
    const void *table = dlsym(library, name);
    if (!table)
        fail("no symbol %s", name);
    net.version = version;
    net.v8 = table, net.v9 = table, net.v10 = table, net.v11 = table, net.v12 = table;
    if (version == 8)
        COMMON(net.v8);
    else if (version == 9)
        COMMON(net.v9);
    else if (version == 10)
        COMMON(net.v10);
    else if (version == 11)
        COMMON(net.v11);
    else
        COMMON(net.v12);
}

static nccl_result_t start(void)
{
    int config = -1; /* NCCL's: a traffic class, undefined */
    switch (net.version) {
    case 8:
        return net.v8->init(log_line);
    case 9:
        return net.v9->init(log_line);
    case 10:
        return net.v10->init(log_line, NULL);
    case 11:
        return net.v11->init(&net.context, 7, &config, log_line, NULL);
    default:
        return net.v12->init(&net.context, 7, &config, log_line, NULL);
    }
}

/* A plugin, for a communicator. */
static void begin(void)
{
    const uint64_t pauses = getenv("HARNESS_OPEN_S") ? 100 * strtoull(getenv("HARNESS_OPEN_S"), NULL, 10) : 0;
    for (uint64_t i = 0; start() != NCCL_SUCCESS; i++) {
        if (i == pauses)
            fail("init");
        usleep(10000);
    }
}

static void finalize(void)
{
    if (net.version == 11)
        check(net.v11->finalize(net.context), "finalize");
    if (net.version == 12)
        check(net.v12->finalize(net.context), "finalize");
}

static nccl_result_t listen_on(int device, void *handle, void **listener)
{
    switch (net.version) {
    case 8:
        return net.v8->listen(device, handle, listener);
    case 9:
        return net.v9->listen(device, handle, listener);
    case 10:
        return net.v10->listen(device, handle, listener);
    case 11:
        return net.v11->listen(net.context, device, handle, listener);
    default:
        return net.v12->listen(net.context, device, handle, listener);
    }
}

static nccl_result_t connect_to(int device, void *handle, void **connection)
{
    int config = -1;
    void *offload = NULL;
    switch (net.version) {
    case 8:
        return net.v8->connect(device, handle, connection, &offload);
    case 9:
        return net.v9->connect(device, handle, connection, &offload);
    case 10:
        return net.v10->connect(device, &config, handle, connection, &offload);
    case 11:
        return net.v11->connect(net.context, device, handle, connection, &offload);
    default:
        return net.v12->connect(net.context, device, handle, connection, &offload);
    }
}

static nccl_result_t isend(void *connection, void *data, size_t size, void **request)
{
    switch (net.version) {
    case 8:
        return net.v8->isend(connection, data, (int)size, rank, NULL, request);
    case 9:
        return net.v9->isend(connection, data, size, rank, NULL, request);
    case 10:
        return net.v10->isend(connection, data, size, rank, NULL, NULL, request);
    case 11:
        return net.v11->isend(connection, data, size, rank, NULL, NULL, request);
    default:
        return net.v12->isend(connection, data, size, rank, NULL, NULL, request);
    }
}

static nccl_result_t irecv(void *connection, void *data, size_t size, int from, void **request)
{
    int narrow = (int)size, tag = from;
    void *region = NULL, *parent = NULL;
    if (net.version >= 9 && size % 2)
        *request = (void *)1; /* NCCL's sign that it can do without the completion (LL protocols) */
    switch (net.version) {
    case 8:
        return net.v8->irecv(connection, 1, &data, &narrow, &tag, &region, request);
    case 9:
        return net.v9->irecv(connection, 1, &data, &size, &tag, &region, request);
    case 10:
        return net.v10->irecv(connection, 1, &data, &size, &tag, &region, &parent, request);
    case 11:
        return net.v11->irecv(connection, 1, &data, &size, &tag, &region, &parent, request);
    default:
        return net.v12->irecv(connection, 1, &data, &size, &tag, &region, &parent, request);
    }
}

/* ---- CollNet, one interface for all versions ------------------------------------------------------------------------ */

static struct {
    const struct nccl_collective_v8 *v8;
    const struct nccl_collective_v9 *v9; /* and 10 */
    const struct nccl_collective_v11 *v11;
    const struct nccl_collective_v12 *v12;
    void *context;
} coll;

#define OF_COLL(MEMBER)                                                                                                \
    (net.version == 8      ? coll.v8->MEMBER                                                                           \
     : net.version <= 10   ? coll.v9->MEMBER                                                                           \
     : net.version == 11   ? coll.v11->MEMBER                                                                          \
                           : coll.v12->MEMBER)

static void load_coll(void *library)
{
    char name[32];
    snprintf(name, sizeof name, "ncclCollNetPlugin_v%d", net.version);
    const void *table = dlsym(library, name);
    if (!table)
        fail("no symbol %s", name);
    coll.v8 = table, coll.v9 = table, coll.v11 = table, coll.v12 = table;
}

static void start_coll(int number)
{
    const uint64_t communicator = (uint64_t)(COMMUNICATOR + number);
    if (net.version == 8)
        check(coll.v8->init(log_line), "init of CollNet");
    else if (net.version <= 10)
        check(coll.v9->init(log_line), "init of CollNet");
    else if (net.version == 11)
        check(coll.v11->init(&coll.context, communicator, log_line), "init of CollNet");
    else
        check(coll.v12->init(&coll.context, communicator, log_line), "init of CollNet");
}

static void end_coll(void)
{
    if (net.version == 11)
        check(coll.v11->finalize(coll.context), "finalize of CollNet");
    if (net.version == 12)
        check(coll.v12->finalize(coll.context), "finalize of CollNet");
}

static nccl_result_t listen_coll(int device, void *handle, void **listener)
{
    switch (net.version) {
    case 8:
        return coll.v8->listen(device, handle, listener);
    case 9:
    case 10:
        return coll.v9->listen(device, handle, listener);
    case 11:
        return coll.v11->listen(coll.context, device, handle, listener);
    default:
        return coll.v12->listen(coll.context, device, handle, listener);
    }
}

static nccl_result_t iallreduce(void *group, void *from, void *to, size_t count, int type, int op, void **request)
{
    switch (net.version) {
    case 8:
        return coll.v8->iallreduce(group, from, to, (int)count, type, op, NULL, NULL, request);
    case 9:
    case 10:
        return coll.v9->iallreduce(group, from, to, count, type, op, NULL, NULL, request);
    case 11:
        return coll.v11->iallreduce(group, from, to, count, type, op, NULL, NULL, request);
    default:
        return coll.v12->iallreduce(group, from, to, count, type, op, NULL, NULL, request);
    }
}

static nccl_result_t iallgather(void *group, void *from, void *to, size_t node, size_t offset, size_t bytes, void **request)
{
    struct nccl_part_v8 narrow = {.address = to, .size = (uint32_t)bytes};
    struct nccl_part part = {.address = to, .size = bytes};
    switch (net.version) {
    case 8:
        return coll.v8->iallgather(group, from, 1, &narrow, node, offset, bytes, NULL, request);
    case 9:
    case 10:
        return coll.v9->iallgather(group, from, 1, &part, node, offset, bytes, NULL, request);
    case 11:
        return coll.v11->iallgather(group, from, 1, &part, node, offset, bytes, NULL, request);
    default:
        return coll.v12->iallgather(group, from, 1, &part, node, offset, bytes, NULL, request);
    }
}

static nccl_result_t ireducescatter(void *group, void *from, void *to, size_t node, size_t offset, size_t bytes, int type,
                                    int op, void **request)
{
    struct nccl_part_v8 narrow = {.address = from, .size = (uint32_t)bytes};
    struct nccl_part part = {.address = from, .size = bytes};
    switch (net.version) {
    case 8:
        return coll.v8->ireducescatter(group, 1, &narrow, to, node, offset, bytes, type, op, NULL, request);
    case 9:
    case 10:
        return coll.v9->ireducescatter(group, 1, &part, to, node, offset, bytes, type, op, NULL, request);
    case 11:
        return coll.v11->ireducescatter(group, 1, &part, to, node, offset, bytes, type, op, NULL, request);
    default:
        return coll.v12->ireducescatter(group, 1, &part, to, node, offset, bytes, type, op, NULL, request);
    }
}

static void check_properties(void)
{
    int devices = 0;
    check(net.devices(&devices), "devices");
    const int wanted = getenv("OPTCC_DEVICES") ? atoi(getenv("OPTCC_DEVICES")) : 1;
    if (devices != wanted)
        fail("%d devices, not %d", devices, wanted);
    for (int i = 0; i < devices; i++) {
        struct nccl_properties_v8 p8;
        struct nccl_properties_v9 p9 = {.force_flush = 9};
        struct nccl_properties_v11 p11;
        struct nccl_properties_v12 p12 = {.rail = 9};
        int good = 1;
        if (net.version == 8) {
            check(net.v8->properties(i, &p8), "properties");
            good = p8.pointers == NCCL_PTR_HOST && p8.most_grouped_receives == 1 && p8.speed_mbps > 0 && p8.name;
        } else if (net.version <= 10) {
            check(net.version == 9 ? net.v9->properties(i, &p9) : net.v10->properties(i, &p9), "properties");
            good = p9.pointers == NCCL_PTR_HOST && p9.merged.count == 1 && p9.merged.devices[0] == i &&
                   p9.most_p2p_bytes >= MOST_BYTES && p9.speed_mbps > 0 && !p9.force_flush;
        } else if (net.version == 11) {
            check(net.v11->properties(i, &p11), "properties");
            good = p11.pointers == NCCL_PTR_HOST && p11.merged.count == 1 && p11.merged.devices[0] == i &&
                   p11.most_requests_at_once == 1 && p11.most_p2p_bytes >= MOST_BYTES;
        } else {
            check(net.v12->properties(i, &p12), "properties");
            good = p12.pointers == NCCL_PTR_HOST && p12.merged.count == 1 && p12.merged.devices[0] == i &&
                   p12.rail == -1 && p12.plane == -1 && p12.most_p2p_bytes >= MOST_BYTES;
        }
        if (!good)
            fail("properties of device %d", i);
    }
}

/* ---- what ranks know of each other --------------------------------------------------------------------------------- */

static void put(const char *name, const void *bytes, size_t length)
{
    char path[512], part[520];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(part, sizeof part, "%s.part", path);
    const int fd = open(part, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, length) != (ssize_t)length || close(fd) || rename(part, path))
        fail("cannot write %s", path);
}

static void get(const char *name, void *bytes, size_t length)
{
    int fd;
    while ((fd = in_folder(name, O_RDONLY)) < 0)
        usleep(1000);
    if (read(fd, bytes, length) != (ssize_t)length)
        fail("cannot read %s", name);
    close(fd);
}

static void phase(const char *what) { fprintf(stderr, "[%d] %s\n", rank, what); }

static void meet(const char *where)
{
    char name[64];
    phase(where);
    char one = 1;
    snprintf(name, sizeof name, "%s.%d", where, rank);
    put(name, &one, 1);
    for (int i = 0; i < ranks; i++) {
        snprintf(name, sizeof name, "%s.%d", where, i);
        get(name, &one, 1);
    }
}

/* ---- traffic ------------------------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

struct end { /* of a connection */
    int from, to, number, round;
    void *listener, *connection;
    unsigned char handle[NCCL_HANDLE_BYTES];
    uint64_t posted, done;
    void *request[IN_FLIGHT];
    unsigned char *buffer; /* IN_FLIGHT slots, as NCCL has them */
};

static uint64_t key_of(const struct end *e, uint64_t message)
{
    return seed * 1000003 + (uint64_t)e->round * 9176 + (uint64_t)e->from * 7919 + (uint64_t)e->to * 104729 +
           (uint64_t)e->number * 1299709 + message * 15485863;
}

static size_t size_of(const struct end *e, uint64_t message)
{
    static const size_t LIMITS[] = {1, 2, 300, 5000, 70000, 140000, 400000, MOST_BYTES - 40000};
    uint64_t random = key_of(e, message);
    const size_t limit = LIMITS[draw(&random) % (sizeof LIMITS / sizeof *LIMITS)];
    return draw(&random) % limit + (limit == 2);
}

static size_t room_of(const struct end *e, uint64_t message)
{
    uint64_t random = ~key_of(e, message);
    return size_of(e, message) + draw(&random) % 30000;
}

static unsigned char *slot(const struct end *e, uint64_t message)
{
    return e->buffer + (message % IN_FLIGHT) * (size_t)(MOST_BYTES + GUARD);
}

static void fill(const struct end *e, uint64_t message, unsigned char *to, size_t size)
{
    uint64_t random = key_of(e, message);
    for (size_t i = 0; i < size; i += 8) {
        const uint64_t word = draw(&random);
        memcpy(to + i, &word, size - i < 8 ? size - i : 8);
    }
}

static void verify(const struct end *e, uint64_t message, const unsigned char *got, int told)
{
    static unsigned char right[MOST_BYTES];
    const size_t size = size_of(e, message), room = room_of(e, message);
    if ((size_t)told != size)
        fail("message %llu of %d->%d: %d bytes, not %zu", (unsigned long long)message, e->from, e->to, told, size);
    fill(e, message, right, size);
    if (memcmp(got, right, size))
        fail("message %llu of %d->%d has other bytes", (unsigned long long)message, e->from, e->to);
    for (size_t i = 0; i < GUARD; i++)
        if (got[room + i] != 0x5c)
            fail("message %llu of %d->%d: bytes behind its buffer", (unsigned long long)message, e->from, e->to);
}

static int step_send(struct end *e, uint64_t messages)
{
    int moved = 0;
    if (e->posted < messages && e->posted < e->done + IN_FLIGHT) {
        void *request = NULL;
        const size_t size = size_of(e, e->posted);
        fill(e, e->posted, slot(e, e->posted), size);
        check(isend(e->connection, slot(e, e->posted), size, &request), "isend");
        if (request) {
            e->request[e->posted++ % IN_FLIGHT] = request;
            moved = 1;
        }
    }
    if (e->done < e->posted) {
        int done = 0, size = -1;
        check(net.test(e->request[e->done % IN_FLIGHT], &done, &size), "test of a send");
        if (done) {
            if ((size_t)size != size_of(e, e->done))
                fail("a send of %d bytes, not %zu", size, size_of(e, e->done));
            memset(slot(e, e->done), 0xa5, MOST_BYTES);
            e->done++;
            moved = 1;
        }
    }
    return moved;
}

static int step_receive(struct end *e, uint64_t messages)
{
    int moved = 0;
    if (e->posted < messages && e->posted < e->done + IN_FLIGHT) {
        void *request = NULL;
        memset(slot(e, e->posted), 0x5c, room_of(e, e->posted) + GUARD);
        check(irecv(e->connection, slot(e, e->posted), room_of(e, e->posted), e->from, &request), "irecv");
        if (request) {
            e->request[e->posted++ % IN_FLIGHT] = request;
            moved = 1;
        }
    }
    if (e->done < e->posted) {
        int done = 0, size = -1;
        check(net.test(e->request[e->done % IN_FLIGHT], &done, &size), "test of a receive");
        if (done) {
            verify(e, e->done, slot(e, e->done), size);
            e->done++;
            moved = 1;
        }
    }
    return moved;
}

/* ---- cuts ---------------------------------------------------------------------------------------------------------- */

static _Atomic int traffic;
static unsigned cuts_made;

static void cut_nic(const char *address)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_storage here, there;
        socklen_t length = sizeof here, other = sizeof there;
        char text[INET6_ADDRSTRLEN] = "";
        if (getsockname(fd, (struct sockaddr *)&here, &length) || getpeername(fd, (struct sockaddr *)&there, &other))
            continue;
        if (here.ss_family == AF_INET)
            inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)&here)->sin_addr, text, sizeof text);
        if (!strcmp(text, address) && shutdown(fd, SHUT_RDWR) == 0)
            cuts_made++;
    }
}

static void *cutter(void *cuts)
{
    uint64_t random = seed ^ (uint64_t)rank * 31337;
    char list[512];
    char *nics[16];
    int count = 0;
    char *rest;
    snprintf(list, sizeof list, "%s", getenv("OPTCC_NICS"));
    for (char *one = strtok_r(list, ",", &rest); one && count < 16; one = strtok_r(NULL, ",", &rest))
        nics[count++] = one;
    for (int left = *(int *)cuts; left && traffic; left--) {
        usleep((useconds_t)(draw(&random) % 60000));
        cut_nic(nics[draw(&random) % (uint64_t)count]);
    }
    return NULL;
}

/* ---- groups -------------------------------------------------------------------------------------------------------- */

enum { MOST_CALL = 3 << 20, GROUP_KINDS = 8 };

struct plays { /* a group */
    int number;
    void *listener, *group;
    uint64_t posted, done;
    void *request[IN_FLIGHT];
    unsigned char *from[IN_FLIGHT], *to[IN_FLIGHT];
    void *region[IN_FLIGHT], *from_region[IN_FLIGHT];
    struct launches launches;
    int launched; /* what goes before the next call has been */
};

struct call { /* what it is follows from group and number */
    int kind, type, op, in_place; /* kind: 0 AllGather, 1 ReduceScatter, else AllReduce */
    size_t item, count;    /* AllReduce: elements */
    size_t node, offset, bytes; /* of the others: a node's bytes, and the window */
};

static struct call call_of(const struct plays *g, uint64_t number)
{
    static const size_t ITEMS[NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    static const size_t LIMITS[] = {1, 16, 1000, 8192, 70000, 300000, MOST_CALL / 8};
    uint64_t random = seed * 7919 + (uint64_t)g->number * 104729 + number * 15485863;
    struct call c = {.kind = (int)(draw(&random) % GROUP_KINDS), .type = (int)(draw(&random) % NCCL_TYPES),
                     .op = (int)(draw(&random) % NCCL_OPS), .in_place = draw(&random) % 4 == 0};
    c.item = ITEMS[c.type];
    c.count = 1 + draw(&random) % LIMITS[draw(&random) % (sizeof LIMITS / sizeof *LIMITS)];
    c.node = c.count * c.item;
    if (c.node > (size_t)(MOST_CALL / MOST_RANKS))
        c.node = MOST_CALL / MOST_RANKS / c.item * c.item;
    c.offset = draw(&random) % (c.node * (size_t)ranks / c.item) * c.item;
    c.bytes = (1 + draw(&random) % ((c.node * (size_t)ranks - c.offset) / c.item)) * c.item;
    return c;
}

/* The number that a node gives to an element: whole, small, of few bits where it is multiplied. */
static unsigned number_of(const struct plays *g, uint64_t call, const struct call *c, int node, size_t i)
{
    uint64_t random = seed + (uint64_t)g->number * 977 + call * 104729 + (uint64_t)node * 7919 + i * 15485863;
    const uint64_t mixed = draw(&random);
    return (unsigned)(mixed >> 40) % (c->op == NCCL_PROD ? 2 : 4) + (c->op == NCCL_PROD);
}

static void write_number(int type, unsigned char *at, unsigned value)
{
    const float single = (float)value;
    const double twice = value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    const uint16_t brain = (uint16_t)(bits >> 16);
    const uint16_t half = value ? (uint16_t)(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff)) : 0;
    const uint64_t wide = value;
    switch (type) {
    case NCCL_FLOAT16: memcpy(at, &half, 2); break;
    case NCCL_BFLOAT16: memcpy(at, &brain, 2); break;
    case NCCL_FLOAT32: memcpy(at, &single, 4); break;
    case NCCL_FLOAT64: memcpy(at, &twice, 8); break;
    case NCCL_INT8: case NCCL_UINT8: memcpy(at, &wide, 1); break;
    case NCCL_INT32: case NCCL_UINT32: memcpy(at, &wide, 4); break;
    default: memcpy(at, &wide, 8);
    }
}

static unsigned reduced(const struct plays *g, uint64_t call, const struct call *c, size_t i)
{
    unsigned all = number_of(g, call, c, 0, i);
    for (int node = 1; node < ranks; node++) {
        const unsigned one = number_of(g, call, c, node, i);
        all = c->op == NCCL_SUM ? all + one : c->op == NCCL_PROD ? all * one
              : c->op == NCCL_MAX ? (one > all ? one : all) : one < all ? one : all;
    }
    return all;
}

/* What of a window is a node's: bytes, and where in the window they begin. */
static size_t part_of(const struct call *c, int node, size_t *at)
{
    const size_t low = (size_t)node * c->node, high = low + c->node, end = c->offset + c->bytes;
    const size_t first = low > c->offset ? low : c->offset, last = high < end ? high : end;
    *at = first < last ? first - c->offset : 0;
    return first < last ? last - first : 0;
}

static void make_call(struct plays *g, uint64_t number, void **request)
{
    const struct call c = call_of(g, number);
    unsigned char *from = g->from[number % IN_FLIGHT], *to = g->to[number % IN_FLIGHT];
    size_t at, own = part_of(&c, rank, &at);
    memset(to, 0x5c, MOST_CALL + GUARD);
    if (c.kind == 0) {
        for (size_t i = 0; i < own; i++)
            from[i] = (unsigned char)number_of(g, number, &c, rank, c.offset + at + i);
        if (c.in_place)
            memcpy(to + at, from, own);
        check(iallgather(g->group, c.in_place ? to + at : from, to, c.node, c.offset, c.bytes, request), "iallgather");
        return;
    }
    const size_t first = c.kind == 1 ? c.offset / c.item : 0, count = c.kind == 1 ? c.bytes / c.item : c.count;
    unsigned char *const data = c.kind != 1 && c.in_place ? to : from;
    for (size_t i = 0; i < count; i++)
        write_number(c.type, data + i * c.item, number_of(g, number, &c, rank, first + i));
    if (c.kind == 1)
        check(ireducescatter(g->group, from, to, c.node, c.offset, c.bytes, c.type, c.op, request), "ireducescatter");
    else
        check(iallreduce(g->group, data, to, c.count, c.type, c.op, request), "iallreduce");
}

static void verify_call(const struct plays *g, uint64_t number)
{
    const struct call c = call_of(g, number);
    const unsigned char *to = g->to[number % IN_FLIGHT];
    size_t at, end, own = part_of(&c, rank, &at);
    unsigned char right[8];
    if (c.kind == 0) {
        end = c.bytes;
        for (int node = 0; node < ranks; node++) {
            const size_t part = part_of(&c, node, &at);
            for (size_t i = 0; i < part; i++)
                if (to[at + i] != (unsigned char)number_of(g, number, &c, node, c.offset + at + i))
                    fail("call %llu, an AllGather, has another byte %zu of node %d", (unsigned long long)number, i, node);
        }
    } else {
        const size_t first = c.kind == 1 ? (c.offset + at) / c.item : 0, count = c.kind == 1 ? own / c.item : c.count;
        end = count * c.item;
        for (size_t i = 0; i < count; i++) {
            write_number(c.type, right, reduced(g, number, &c, first + i));
            if (memcmp(to + i * c.item, right, c.item))
                fail("call %llu, kind %d, type %d, operation %d, %zu elements: element %zu is wrong",
                     (unsigned long long)number, c.kind, c.type, c.op, count, i);
        }
    }
    for (size_t i = 0; i < GUARD; i++)
        if (to[end + i] != 0x5c)
            fail("call %llu, kind %d: bytes behind its buffer", (unsigned long long)number, c.kind);
}

static const char *type_of_batch(const struct plays *g, uint64_t number)
{
    static const char *const names[NCCL_TYPES] = {"ncclInt8",   "ncclUint8",   "ncclInt32",   "ncclUint32",  "ncclInt64",
                                                  "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
    for (uint64_t i = number; i < number + BATCH; i++)
        if (call_of(g, i).kind > 1)
            return names[call_of(g, i).type];
    return names[0];
}

static int step_group(struct plays *g, uint64_t calls)
{
    int moved = 0;
    if (g->posted < calls && g->posted < g->done + IN_FLIGHT) {
        void *request = NULL;
        uint64_t random = seed + g->posted * 7 + (uint64_t)g->number;
        const uint64_t how = draw(&random);
        if (!g->launched++)
            launches_at(&g->launches, g->posted, 0, how, type_of_batch(g, g->posted));
        make_call(g, g->posted, &request);
        if (request) {
            launches_at(&g->launches, g->posted, 1, how, type_of_batch(g, g->posted));
            g->launched = 0;
            g->request[g->posted++ % IN_FLIGHT] = request;
            moved = 1;
        }
    }
    if (g->done < g->posted) {
        int done = 0, size = -1;
        check(OF_COLL(test)(g->request[g->done % IN_FLIGHT], &done, &size), "test of a collective");
        if (done) {
            verify_call(g, g->done++);
            launches_ended(&g->launches, g->done);
            moved = 1;
        }
    }
    return moved;
}

static void open_group(struct plays *g, int number)
{
    unsigned char handle[MOST_RANKS][NCCL_HANDLE_BYTES];
    void *handles[MOST_RANKS];
    char name[64];
    *g = (struct plays){.number = number};
    launches_open(&g->launches, number, ranks, log_line);
    if (number)
        start_coll(number);
    check(listen_coll(0, handle[rank], &g->listener), "listen of CollNet");
    snprintf(name, sizeof name, "group.%d.%d", number, rank);
    put(name, handle[rank], NCCL_HANDLE_BYTES);
    for (int node = 0; node < ranks; node++) {
        snprintf(name, sizeof name, "group.%d.%d", number, node);
        get(name, handle[node], NCCL_HANDLE_BYTES);
        handles[node] = handle[node];
    }
    const nccl_result_t connected = OF_COLL(connect)(handles, ranks, rank, g->listener, &g->group);
    if (connected != NCCL_SUCCESS)
        sleep(1); /* NCCL would go on without CollNet, so that others hear of it */
    check(connected, "connect of CollNet");
    check(OF_COLL(close_listen)(g->listener), "closeListen of CollNet");
    for (int i = 0; i < IN_FLIGHT; i++) {
        g->from[i] = buffer_of(MOST_CALL + GUARD);
        g->to[i] = buffer_of(MOST_CALL + GUARD);
        check(OF_COLL(register_memory)(g->group, g->from[i], MOST_CALL, NCCL_PTR_HOST, &g->from_region[i]), "regMr");
        check(OF_COLL(register_memory)(g->group, g->to[i], MOST_CALL, NCCL_PTR_HOST, &g->region[i]), "regMr of CollNet");
        if (!g->region[i]) /* NCCL would not ask for the memory back before it frees it */
            fail("a region of NULL");
    }
}

static void close_group(struct plays *g)
{
    /* in NCCL's order: memory is gone before the group is closed */
    launches_close(&g->launches);
    for (int i = 0; i < IN_FLIGHT; i++) {
        check(OF_COLL(deregister)(g->group, g->region[i]), "deregMr of CollNet");
        check(OF_COLL(deregister)(g->group, g->from_region[i]), "deregMr of CollNet");
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        if (!gpu.alloc)
            memset(g->to[i], 0xa5, MOST_CALL);
        buffer_free(g->from[i]);
        buffer_free(g->to[i]);
    }
    usleep(2000);
    check(OF_COLL(close_group)(g->group), "closeColl");
    if (g->number)
        end_coll();
}

/* Calls are in flight when NCCL aborts. */
static void abandon_group(void)
{
    static struct plays g;
    open_group(&g, 99);
    launches_at(&g.launches, 0, 0, 0, "ncclFloat32");
    for (int i = 0; i < 6; i++) {
        void *request = NULL;
        memset(g.from[i], 1, MOST_CALL);
        if (iallreduce(g.group, g.from[i], g.to[i], MOST_CALL / 4, NCCL_FLOAT32, NCCL_SUM, &request) != NCCL_SUCCESS)
            break; /* others have abandoned it before */
    }
    usleep((useconds_t)(rank * 700));
    close_group(&g);
}

/* AllReduces of one length, in buffers that stay: seconds of all. */
static double time_group(struct plays *g, size_t bytes, uint64_t calls)
{
    unsigned char *from[IN_FLIGHT], *to[IN_FLIGHT];
    struct timespec begun, ended;
    for (int i = 0; i < IN_FLIGHT; i++) {
        from[i] = malloc(bytes);
        to[i] = malloc(bytes);
        for (size_t k = 0; k < bytes / 4; k++)
            write_number(NCCL_FLOAT32, from[i] + 4 * k, (unsigned)(k + (size_t)rank) % 5);
        memset(to[i], 0, bytes);
    }
    meet("timed");
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (g->done < calls) {
        if (g->posted < calls && g->posted < g->done + IN_FLIGHT) {
            void *request = NULL;
            const uint64_t slot = g->posted % IN_FLIGHT;
            check(iallreduce(g->group, from[slot], to[slot], bytes / 4, NCCL_FLOAT32, NCCL_SUM, &request), "iallreduce");
            if (request)
                g->request[g->posted++ % IN_FLIGHT] = request;
        }
        int done = 0, size;
        if (g->done < g->posted)
            check(OF_COLL(test)(g->request[g->done % IN_FLIGHT], &done, &size), "test of a collective");
        if (done)
            g->done++;
        else
            usleep(10);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    for (size_t k = 0; k < bytes / 4; k++) {
        unsigned char right[4];
        unsigned all = 0;
        for (int node = 0; node < ranks; node++)
            all += (unsigned)(k + (size_t)node) % 5;
        write_number(NCCL_FLOAT32, right, all);
        if (memcmp(to[(calls - 1) % IN_FLIGHT] + 4 * k, right, 4))
            fail("element %zu is wrong", k);
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        free(from[i]);
        free(to[i]);
    }
    return (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) * 1e-9;
}

static void play_groups(void *library, int groups, uint64_t calls, int cuts)
{
    static struct plays all[MOST_CONNECTIONS];
    const char *timed = getenv("HARNESS_BYTES");
    int devices = 0, does = -1, wanted = 1;
    double seconds = 0;
    load_coll(library);
    start_coll(0);
    check(OF_COLL(devices)(&devices), "devices of CollNet");
    for (int type = -1; type < NCCL_TYPES + 2; type++)
        for (int op = 0; op < NCCL_OPS + 2; op++) {
            check(OF_COLL(reduces)(type, op, &does), "reduceSupport");
            wanted = wanted && does == (type >= 0 && type < NCCL_TYPES && op < NCCL_OPS);
        }
    if (!wanted || devices < 1)
        fail("reduceSupport or devices of CollNet");
    for (int i = 0; i < groups; i++)
        open_group(&all[i], i);
    phase("calls");
    pthread_t thread;
    traffic = 1;
    if (cuts && pthread_create(&thread, NULL, cutter, &cuts))
        fail("no thread");
    if (timed)
        seconds = time_group(&all[0], strtoull(timed, NULL, 10), calls);
    for (int open_groups = !timed; open_groups;) {
        int moved = 0;
        open_groups = 0;
        for (int i = 0; i < groups; i++) {
            moved |= step_group(&all[i], calls);
            open_groups += all[i].done < calls;
        }
        if (!moved)
            usleep(20);
    }
    traffic = 0;
    if (cuts)
        pthread_join(thread, NULL);
    phase("closes");
    for (int i = 0; i < groups; i++) /* at once: others may still be at their last call */
        close_group(&all[i]);
    if (!timed)
        abandon_group();
    if (timed)
        fprintf(stderr, "[%d] took %.6f s\n", rank, seconds);
    meet("over");
    end_coll();
}

/* ---- a communicator ------------------------------------------------------------------------------------------------ */

static void *late(void *unused)
{
    int left_s = getenv("HARNESS_LIMIT_S") ? atoi(getenv("HARNESS_LIMIT_S")) : LIMIT_S, failed = 0;
    (void)unused;
    for (; left_s > 0; left_s--) {
        if (!failed && (failed = in_folder("failed", O_RDONLY) >= 0) && left_s > GRACE_S)
            left_s = GRACE_S;
        sleep(1);
    }
    printf("wrong: %s\n", failed ? "another rank has failed" : "it took too long");
    fflush(stdout);
    _exit(3);
}

/* Over RDMA: whether libibverbs was asked that a fork leaves registered memory in place. */
static void tell_fork(void)
{
    void *const verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *const found = verbs ? dlsym(verbs, "ibv_is_fork_initialized") : NULL;
    int (*asked)(void);
    memcpy(&asked, &found, sizeof asked);
    if (asked)
        fprintf(stderr, "[%d] fork: %d\n", rank, asked());
}

/* A played NIC has one where it is opened. */
static void tell_threads(void)
{
    int count = 0;
    DIR *const folder_of = opendir("/proc/self/task");
    while (folder_of && readdir(folder_of))
        count++;
    if (folder_of)
        closedir(folder_of);
    fprintf(stderr, "[%d] threads: %d\n", rank, count - 2); /* but "." and ".." */
}

static void leave(void)
{
    if (fork() == 0) { /* it has what its parent has, until the run is over */
        close(1);
        close(2);
        while (access(folder, F_OK) == 0)
            usleep(10000);
        _exit(0);
    }
    exit(0);
}

static void communicate(int round, uint64_t messages, int connections, int cuts)
{
    const char *const leaves = getenv("HARNESS_LEAVES");
    static struct end out[MOST_RANKS * MOST_CONNECTIONS], in[MOST_RANKS * MOST_CONNECTIONS];
    int count = 0, open = 0, devices = 1;
    char name[64];
    memset(out, 0, sizeof out);
    memset(in, 0, sizeof in);
    check(net.devices(&devices), "devices");
    for (int peer = 0; peer < ranks; peer++)
        for (int k = 0; k < connections; k++) {
            if (peer == rank && k) /* one to itself */
                continue;
            out[count] = (struct end){.from = rank, .to = peer, .number = k, .round = round};
            in[count] = (struct end){.from = peer, .to = rank, .number = k, .round = round};
            check(listen_on(k % devices, in[count].handle, &in[count].listener), "listen");
            if (!in[count].listener)
                fail("no listener");
            snprintf(name, sizeof name, "handle.%d.%d.%d.%d", round, rank, peer, k);
            put(name, in[count].handle, NCCL_HANDLE_BYTES);
            count++;
        }
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "handle.%d.%d.%d.%d", round, out[i].to, rank, out[i].number);
        get(name, out[i].handle, NCCL_HANDLE_BYTES);
    }
    phase("connects");
    while (open < 2 * count) {
        for (int i = 0; i < count; i++) {
            void *offload = NULL;
            if (!out[i].connection) {
                check(connect_to(0, out[i].handle, &out[i].connection), "connect");
                open += out[i].connection != NULL;
            }
            if (!in[i].connection) {
                check(net.accept(in[i].listener, &in[i].connection, &offload), "accept");
                open += in[i].connection != NULL;
            }
        }
        usleep(100);
    }
    for (int i = 0; i < count; i++) {
        void *region = &region;
        out[i].buffer = malloc((size_t)IN_FLIGHT * (MOST_BYTES + GUARD));
        in[i].buffer = malloc((size_t)IN_FLIGHT * (MOST_BYTES + GUARD));
        check(net.close_listen(in[i].listener), "closeListen");
        check(net.reg(out[i].connection, out[i].buffer, IN_FLIGHT * MOST_BYTES, NCCL_PTR_HOST, &region), "regMr");
        check(net.dereg(out[i].connection, region), "deregMr");
        if (net.reg(in[i].connection, in[i].buffer, 1, 2, &region) == NCCL_SUCCESS)
            fail("GPU memory was taken");
    }
    phase("sends and receives");
    pthread_t thread;
    traffic = 1;
    if (cuts && pthread_create(&thread, NULL, cutter, &cuts))
        fail("no thread");
    for (int open_ends = 1; open_ends;) {
        int moved = 0;
        open_ends = 0;
        for (int i = 0; i < count; i++) {
            moved |= step_receive(&in[i], messages) | step_send(&out[i], messages);
            open_ends += in[i].done < messages || out[i].done < messages;
        }
        if (leaves && atoi(leaves) == rank && in[0].done > 9)
            leave();
        if (!moved)
            usleep(20);
    }
    traffic = 0;
    phase("closes");
    if (cuts)
        pthread_join(thread, NULL);
    for (int i = 0; i < count; i++) {
        check(net.close_send(out[i].connection), "closeSend");
        check(net.close_receive(in[i].connection), "closeRecv");
        free(out[i].buffer);
        free(in[i].buffer);
    }
}

/* Closes with requests in flight, as NCCL does when it aborts, and frees the buffers at once. */
static void abandon(void)
{
    phase("abandons");
    struct end out = {.from = rank, .to = (rank + 1) % ranks, .number = 99}, in = {.to = rank, .number = 99};
    char name[64];
    in.from = (rank + ranks - 1) % ranks;
    check(listen_on(0, in.handle, &in.listener), "listen");
    snprintf(name, sizeof name, "abandon.%d", rank);
    put(name, in.handle, NCCL_HANDLE_BYTES);
    snprintf(name, sizeof name, "abandon.%d", out.to);
    get(name, out.handle, NCCL_HANDLE_BYTES);
    while (!out.connection || !in.connection) {
        void *offload = NULL;
        if (!out.connection)
            check(connect_to(0, out.handle, &out.connection), "connect");
        if (!in.connection)
            check(net.accept(in.listener, &in.connection, &offload), "accept");
        usleep(100);
    }
    check(net.close_listen(in.listener), "closeListen");
    unsigned char *sent = malloc(8 * MOST_BYTES), *received = malloc(MOST_BYTES);
    memset(sent, 7, 8 * MOST_BYTES);
    for (int i = 0; i < 8; i++) {
        void *request = NULL;
        check(isend(out.connection, sent + (size_t)i * MOST_BYTES, MOST_BYTES, &request), "isend");
    }
    for (int i = 0; i < 2; i++) {
        void *request = NULL;
        check(irecv(in.connection, received, MOST_BYTES, in.from, &request), "irecv");
    }
    usleep(500);
    check(net.close_send(out.connection), "closeSend");
    memset(sent, 0xa5, 8 * MOST_BYTES);
    free(sent);
    check(net.close_receive(in.connection), "closeRecv");
    memset(received, 0xa5, MOST_BYTES);
    free(received);
}

int main(int argc, char **argv)
{
    pthread_t watchdog;
    if (argc != 10 && argc != 11)
        return 2;
    rank = atoi(argv[3]);
    ranks = atoi(argv[4]);
    folder = argv[5];
    seed = strtoull(argv[6], NULL, 10);
    const uint64_t messages = strtoull(argv[7], NULL, 10);
    const int connections = atoi(argv[8]), cuts = atoi(argv[9]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_create(&watchdog, NULL, late, NULL);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail("%s", dlerror());
    launches_load(library);
    load(library, atoi(argv[2]));
    begin();
    check_properties();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose locks a fork beside a thread may leave locked */
    const pid_t child = fork(); /* as data loaders do: a child that ends must disturb nobody */
    if (child == 0)
        exit(0);
    waitpid(child, NULL, 0);
#endif
    if (argc == 11) {
        play_groups(library, connections, strtoull(argv[10], NULL, 10), cuts);
        finalize();
        printf("right: %u sockets cut\n", cuts_made);
        fflush(stdout);
        return 0;
    }
    communicate(0, messages, connections, cuts);
    tell_fork();
    tell_threads();
    if (getenv("HARNESS_IDLE_S"))
        sleep((unsigned)atoi(getenv("HARNESS_IDLE_S")));
    /* A second communicator, while the first is there. */
    if (net.version >= 11)
        begin();
    communicate(1, messages / 4 + 1, 1, cuts ? 1 : 0);
    if (net.version >= 11)
        finalize();
    abandon();
    meet("over");
    finalize();
    /* NCCL unloads the library with the last communicator, threads or not, and loads it again for the next one. */
    dlclose(library);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail("%s", dlerror());
    load(library, atoi(argv[2]));
    begin();
    communicate(2, 3, 1, 0);
    meet("end");
    finalize();
    printf("right: %u sockets cut\n", cuts_made);
    fflush(stdout);
    return 0;
}
