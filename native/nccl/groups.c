/* Collectives of several processes, a node each, which NCCL calls CollNet: plans run over messages.
 *
 * A group has a connection (net.c) from every node to every other. What travels by one is notes, and pieces of transfers,
 * each with a tag that says which. So a cut NIC, shares by rate and who may speak to whom are the links' matter.
 *
 *   HELLO   who connects: its rank; the code of its plans, which must be the same everywhere
 *   READY   to node 0: I am connected to all, and my NICs carry `row` Mb/s;  OPEN  from node 0: so are all
 *   RATE    to node 0: what my NICs that live carry together
 *   GRANT   from node 0: calls below `offset`, from `call` on, go by plan `row`, with nodes in these roles
 *
 * Calls are numbered as NCCL makes them, in the same order on all nodes, and many run at once. A call begins when it is
 * made here and node 0 has said by which plan; that is said for some calls ahead. It is a program of the engine, whose
 * rules hold: what is ready goes, the lowest transfer and the oldest call first; sums are made in the order of transfers.
 * A piece of a call that has not begun here is kept aside, within bounds.
 *
 * Where the group has a seat on a GPU (gpu.c) copies and folds are jobs: a call's input is brought to where it runs before
 * the call begins, and a piece stays where it came until its job is done.
 *
 * A call ends when all has come and everything it has sent has been acknowledged. Where anything is wrong, or a node is
 * given up by its link, the group is lost: all its calls end with an error.
 */
#define _GNU_SOURCE
#include "net.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTE_MAGIC UINT32_C(0x0cc70a23)
enum {
    GROUP_VERSION = 4,
    SLOTS = OPTCC_DEPTH,       /* messages of a connection on their way, at most; of which there is room for so many */
    NIC_SLOTS = 16,            /* for each NIC: twice the pieces of a window. With a half of it eight NICs took 1.13 of the
                                  bound in place of 1.08 (played NICs, one run) */
    LEAST_SLOTS = 32,
    MOST_CALLS = 32,           /* that run, or wait, in a group; NCCL makes 8 for each 8 channels */
    AHEAD = 8,                 /* calls that node 0 grants before they are made */
    GRANTS = 8,                /* that are remembered: those of the calls that may run */
    KEPT = 2 * MOST_CALLS,     /* programs, for calls alike */
    TCP_WINDOWS = 3,
    RDMA_PIECES = 2,           /* of a segment: these took 1.11 of the bound, whole ones 1.19, quarters 1.36, which keep
                                  the thread busy (played NICs, one of four nodes without 3 of 8, one run) */
    CALL_PIECES = 32,          /* of a call, at the least: NCCL has eight calls under way, and where they are short, as it
                                  makes them for slow NICs, these are all that keeps NICs busy. Of 512 KiB, 32 pieces took
                                  1.16 of the bound, 16 1.21, 8 1.30 (likewise) */
    LEAST_PIECE = 16 << 10,    /* bytes, unless segments are shorter: so many has a call of 512 KiB, and shorter ones are
                                  an AllReduce's last */
    PIECES_BEGIN = 4096        /* at multiples of it, from the beginning of a transfer */
};
static const uint64_t MOST_EARLY = UINT64_C(256) << 20; /* bytes kept aside of one node */
static const uint64_t GONE_NS = UINT64_C(2000000000);  /* acknowledgements of who has gone come at once, or never */
static const uint64_t LOOK_NS = 50000000;              /* between looks at our NICs */

enum note_kind { HELLO = 1, READY, OPEN, RATE, GRANT };

struct note {
    uint32_t magic, kind;
    uint64_t call, offset;
    uint32_t row, unused;
    uint16_t node_of[MOST_NODES]; /* of a GRANT alone */
};
struct piece { /* of transfer `row` of `call`, from `offset` on, bytes */
    uint64_t call, offset;
    uint32_t row, length;
};
struct hello {
    uint32_t magic, version, rank, nodes;
    uint64_t process;
    uint8_t plans[OPTCC_HMAC];
};
enum { SHORT_NOTE = 32 };
_Static_assert(offsetof(struct note, node_of) == SHORT_NOTE && sizeof(struct note) == 160 && sizeof(struct hello) == 56,
               "they travel without holes");

struct early { /* a piece of a call that has not begun here */
    struct early *next;
    struct piece piece;
    unsigned char bytes[];
};

struct peer {
    void *out, *in; /* connections */
    int gone;       /* it has closed them, or its link is lost: all that matters is whether anything is missing of it */
    uint64_t gone_ns;
    /* what comes */
    unsigned char *room; /* `slots` of a segment each */
    uint32_t slots;      /* receives that are posted */
    void *receive[SLOTS];
    uint64_t heard, posted; /* messages */
    uint64_t freed;         /* messages: their slots are free. Of those from here to `heard` some are `read` still */
    uint8_t read[SLOTS];
    struct optcc_tag tag;   /* of message `heard`, where it has come and could not be taken yet, and */
    uint32_t bytes_heard;   /* its length */
    struct early *early;
    uint64_t early_bytes;
    /* what goes */
    struct note note[SLOTS];
    void *send[SLOTS];
    struct call *of[SLOTS]; /* NULL: a note */
    uint64_t bytes[SLOTS];
    uint64_t sent, acked; /* messages */
    uint64_t flying;      /* bytes */
    uint64_t most;        /* of them, by the windows of the wires that live */
    uint64_t waiting;     /* of them, that wires have not taken */
};

enum call_kind { ALLREDUCE, ALLGATHER, REDUCE_SCATTER };
enum call_is { UNUSED, WAITS, COMES, RUNS }; /* COMES: a copy of its input is under way */

struct call {
    uint32_t is, kind;
    uint64_t number;
    const unsigned char *from;
    unsigned char *to, *work; /* work: where the program runs */
    unsigned char *scratch;   /* of a reduce-scatter, where that is ours */
    uint64_t bytes;           /* of `work` */
    uint64_t node_bytes, window; /* of the others: each node's, and where the window begins */
    enum optcc_type type;
    enum optcc_op op;
    struct optcc_program *program;
    struct kept *kept; /* NULL: the program is this call's alone */
    uint32_t sending;  /* pieces that are not acknowledged */
    uint64_t ticket;   /* of the copy */
    struct request request;
};

struct kept { /* a program, to be used again */
    struct optcc_program *program;
    uint64_t bytes, turn;
    uint32_t grant, busy; /* grant: number of the mapping that it was made for */
};

struct grant {
    uint64_t first, until; /* calls */
    uint32_t plan, number; /* number: counts what differs from the one before */
    uint16_t node_of[MOST_NODES];
};

struct group {
    struct group *next;
    const struct process *process;
    struct seat *seat;     /* NULL: none, the processor does all */
    struct optcc_gpu *gpu; /* of it */
    uint32_t reading;      /* pieces that jobs read */
    struct early *read;    /* of them, those that came early */
    uint32_t nodes, rank;
    struct peer *peer[MOST_NODES]; /* NULL: ourselves */
    _Atomic int lost;
    _Atomic uint64_t made; /* calls */
    uint64_t begun;         /* calls below have begun */
    _Atomic uint64_t ended; /* calls below have ended, and their places are free */
    struct call call[MOST_CALLS];
    struct kept kept[KEPT];
    struct grant grant[GRANTS];
    uint64_t grants;
    int slow;                  /* the last one's plan has slow nodes */
    uint32_t mbps[MOST_NODES]; /* at node 0: of each node, as it has said */
    uint32_t own_mbps;
    uint64_t look_ns;
    uint64_t waiting; /* bytes, of all peers */
    uint64_t carried; /* bytes of calls that have ended */
};

static struct group *groups; /* under the lock */

static void tell(int warns, const char *format, ...)
{
    char line[512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    net_tell(warns, line);
}

static void lose(struct group *g, const char *why)
{
    if (!atomic_load(&g->lost))
        tell(1, "group of %u nodes, this is node %u: %s", g->nodes, g->rank, why);
    atomic_store(&g->lost, 1);
}

/* ---- types and operations ------------------------------------------------------------------------------------------ */

static const enum optcc_type TYPES[NCCL_TYPES] = {
    [NCCL_INT8] = OPTCC_INT8, [NCCL_UINT8] = OPTCC_UINT8, [NCCL_INT32] = OPTCC_INT32, [NCCL_UINT32] = OPTCC_UINT32,
    [NCCL_INT64] = OPTCC_INT64, [NCCL_UINT64] = OPTCC_UINT64, [NCCL_FLOAT16] = OPTCC_FLOAT16,
    [NCCL_FLOAT32] = OPTCC_FLOAT32, [NCCL_FLOAT64] = OPTCC_FLOAT64, [NCCL_BFLOAT16] = OPTCC_BFLOAT16};
static const enum optcc_op OPERATIONS[NCCL_OPS] = {
    [NCCL_SUM] = OPTCC_SUM, [NCCL_PROD] = OPTCC_PROD, [NCCL_MAX] = OPTCC_MAX, [NCCL_MIN] = OPTCC_MIN};

nccl_result_t group_reduces(int type, int op, int *does)
{
    *does = type >= 0 && type < NCCL_TYPES && op >= 0 && op < NCCL_OPS;
    return NCCL_SUCCESS;
}

/* ---- sending ------------------------------------------------------------------------------------------------------- */

/* The longest piece of any transfer; and of one of a call of so many bytes, the same on all nodes. */
static uint32_t most_piece(const struct group *g)
{
    return g->process->settings.segment_bytes / (g->process->way == WAY_TCP ? 1 : RDMA_PIECES);
}

static uint32_t piece_bytes(const struct group *g, uint64_t bytes)
{
    const uint64_t part = bytes / CALL_PIECES / PIECES_BEGIN * PIECES_BEGIN, piece = part > LEAST_PIECE ? part : LEAST_PIECE;
    return g->process->way == WAY_TCP || piece > most_piece(g) ? most_piece(g) : (uint32_t)piece;
}

static uint32_t free_sends(const struct peer *p) { return SLOTS - (uint32_t)(p->sent - p->acked); }

/* What a message says of itself: a piece, or a note, whose tag is 0. */
static struct optcc_tag tag_of(uint64_t call, uint32_t row, uint64_t offset)
{
    return (struct optcc_tag){call + 1, (uint64_t)row << 32 | offset};
}

static struct piece piece_of(struct optcc_tag tag, uint32_t length)
{
    return (struct piece){.call = tag.first - 1, .row = (uint32_t)(tag.second >> 32), .offset = (uint32_t)tag.second,
                          .length = length};
}

/* There is a free one. Who is gone is sent nothing. */
static void post(struct group *g, struct peer *p, const void *bytes, uint64_t length, struct optcc_tag tag, struct call *of)
{
    const uint64_t slot = p->sent % SLOTS;
    void *request = NULL;
    if (p->gone)
        return;
    if (net_send_tagged(p->out, bytes, length, tag, &request) != NCCL_SUCCESS || !request) {
        lose(g, "a message could not be posted");
        return;
    }
    p->send[slot] = request;
    p->of[slot] = of;
    p->bytes[slot] = length;
    p->flying += length;
    if (of)
        of->sending++;
    p->sent++;
}

static void post_note(struct group *g, struct peer *p, const struct note *note)
{
    struct note *kept = &p->note[p->sent % SLOTS];
    *kept = *note;
    kept->magic = NOTE_MAGIC;
    post(g, p, kept, note->kind == GRANT ? sizeof *kept : SHORT_NOTE, (struct optcc_tag){0}, NULL);
}

static int acknowledge(struct peer *p)
{
    int moved = 0;
    while (p->acked < p->sent) {
        const uint64_t slot = p->acked % SLOTS;
        int done = 0;
        if (request_test(p->send[slot], &done, NULL) != NCCL_SUCCESS)
            p->gone = done = 1;
        if (!done)
            break;
        if (p->of[slot])
            p->of[slot]->sending--;
        p->flying -= p->bytes[slot];
        p->acked++;
        moved = 1;
    }
    return moved;
}

/* How much links are given ahead: enough for their wires, and not so much that what is urgent waits behind it.
 *
 * Over RDMA what is sent next is decided late, by all that is ready and for all links that share the NICs, which tell by
 * their rates when they are free: a link is given what the windows of its wires hold, and all links together a segment for
 * each NIC beyond what wires have taken. With three windows, and a quarter of the slots, calls took 1.08 to 1.2 times as
 * long on played NICs (eight to a node, 500 Mb/s, one run). A link where nothing waits is always given something, so that
 * none waits for another one's peer.
 *
 * Over TCP the kernel has what a wire was given, and waking up for each segment costs more than that: a link is given
 * three windows of each wire. A plan with slow nodes has more that is urgent: there it is one, and half of one is under
 * way. As over RDMA four whole nodes took 1.42 of the bound, and 1.04 so (4 Gb/s a NIC, 256 MiB, two runs). */
static int decides_late(const struct group *g) { return g->process->way != WAY_TCP; }

/* Short where a plan has slow nodes. Over RDMA always: with long ones four whole nodes took 1.20 of the bound, and 1.03 so
 * (soft NICs of 250 Mb/s in virtual time). */
static uint32_t window_of(const struct group *g)
{
    return g->process->settings.window_bytes >> (g->slow || decides_late(g));
}

static void look_at_links(struct group *g)
{
    const uint64_t window = window_of(g) * (uint64_t)(decides_late(g) ? 1 : g->slow ? 2 : TCP_WINDOWS);
    g->waiting = 0;
    for (uint32_t n = 0; n < g->nodes; n++) {
        struct peer *p = g->peer[n];
        const struct link *link = p ? net_link(p->out) : NULL;
        const uint32_t wires = link ? link_wires(link) : 0;
        const uint64_t flying = link && decides_late(g) ? link_flying(link) : UINT64_MAX;
        if (!p)
            continue;
        p->most = (wires ? wires : 1) * window;
        p->waiting = p->flying > flying ? p->flying - flying : 0;
        g->waiting += p->waiting;
    }
}

static int may_go(const struct group *g, const struct peer *p, uint64_t bytes)
{
    const uint64_t ahead = (uint64_t)g->process->nics * g->process->settings.segment_bytes;
    return free_sends(p) >= 2 && /* one is for a GRANT */
           (!p->flying || p->flying + bytes <= p->most) && (!p->waiting || g->waiting + bytes <= ahead);
}

static int send_pieces(struct group *g, struct call *c)
{
    const struct optcc_source *rows = &OPTCC_ROWS_SOURCE;
    int moved = 0;
    for (uint32_t send = rows->ready(c->program, OPTCC_NONE); send != OPTCC_NONE;) {
        struct optcc_piece piece;
        rows->next(c->program, send, &piece);
        struct peer *p = g->peer[piece.peer];
        if (!p->gone && !may_go(g, p, piece.length)) {
            send = rows->ready(c->program, send);
            continue;
        }
        post(g, p, piece.bytes, piece.length, tag_of(c->number, piece.row, piece.offset), c);
        if (atomic_load(&g->lost))
            return 1;
        rows->taken(c->program, send);
        if (decides_late(g)) {
            p->waiting += piece.length;
            g->waiting += piece.length;
        }
        moved = 1;
        send = rows->ready(c->program, send ? send - 1 : OPTCC_NONE); /* this one again, where it has more */
    }
    return moved;
}

/* ---- which plan ---------------------------------------------------------------------------------------------------- */

static const struct grant *grant_of(const struct group *g, uint64_t call)
{
    for (uint64_t i = g->grants > GRANTS ? g->grants - GRANTS : 0; i < g->grants; i++)
        if (call >= g->grant[i % GRANTS].first && call < g->grant[i % GRANTS].until)
            return &g->grant[i % GRANTS];
    return NULL;
}

static uint64_t granted(const struct group *g) { return g->grants ? g->grant[(g->grants - 1) % GRANTS].until : 0; }

/* With the lock. */
static void set_windows(const struct group *g, uint32_t bytes)
{
    for (uint32_t n = 0; n < g->nodes; n++) {
        const struct link *link = g->peer[n] ? net_link(g->peer[n]->out) : NULL;
        if (link && link_engine(link))
            optcc_narrow(link_engine(link), bytes);
    }
}

static void add_grant(struct group *g, uint32_t plan, uint64_t until, const uint16_t *node_of)
{
    const struct grant *last = g->grants ? &g->grant[(g->grants - 1) % GRANTS] : NULL;
    struct grant new = {.first = granted(g), .until = until, .plan = plan};
    memcpy(new.node_of, node_of, g->nodes * sizeof *node_of);
    new.number = !last                                                                                     ? 0
                 : last->plan == plan && !memcmp(last->node_of, new.node_of, sizeof new.node_of) ? last->number
                                                                                                           : last->number + 1;
    if (!last || new.number != last->number) {
        g->slow = plans_slow(g->process->plans, plan);
        set_windows(g, window_of(g));
        tell(0, "group of %u nodes, this is node %u: from call %llu on by %s (windows of %u KiB)", g->nodes, g->rank,
             (unsigned long long)new.first, plans_name(g->process->plans, plan), window_of(g) >> 10);
    }
    g->grant[g->grants++ % GRANTS] = new;
}

/* Node 0: the plan for what lives now, for the calls to come. */
static int give_grants(struct group *g)
{
    const uint64_t made = atomic_load(&g->made);
    struct note note = {.kind = GRANT};
    if (granted(g) >= made + AHEAD / 2 || (made == 0 && granted(g)))
        return 0;
    for (uint32_t n = 1; n < g->nodes; n++)
        if (!free_sends(g->peer[n]))
            return 0;
    note.call = granted(g);
    note.offset = made + AHEAD;
    note.row = plans_choose(g->process->plans, g->nodes, g->mbps, note.node_of);
    for (uint32_t n = 1; n < g->nodes; n++)
        post_note(g, g->peer[n], &note);
    add_grant(g, note.row, note.offset, note.node_of);
    return 1;
}

static int take_grant(struct group *g, const struct note *note)
{
    uint64_t seen = 0;
    if (g->rank == 0 || note->call != granted(g) || note->offset <= note->call ||
        note->offset - note->call > MOST_CALLS + AHEAD ||
        (note->row != OPTCC_NONE && note->row >= plans_count(g->process->plans)))
        return 0;
    for (uint32_t i = 0; i < g->nodes; i++) {
        if (note->node_of[i] >= g->nodes || seen >> note->node_of[i] & 1)
            return 0;
        seen |= UINT64_C(1) << note->node_of[i];
    }
    add_grant(g, note->row, note->offset, note->node_of);
    return 1;
}

/* What our NICs that live carry together, at least 1; a NIC is lost when no link has a wire of it left. With the lock. */
static uint32_t live_mbps(const struct group *g)
{
    uint32_t all = 0, alive = 0;
    uint64_t mbps = 0;
    for (uint32_t n = 0; n < g->nodes; n++) {
        const struct link *link = g->peer[n] ? net_link(g->peer[n]->out) : NULL;
        uint32_t lost = 0;
        if (!link)
            continue;
        const uint32_t has = link_nics(link, &lost);
        all |= has;
        alive |= has & ~lost;
    }
    for (uint32_t i = 0; i < g->process->nics; i++)
        if (!(all >> i & 1) || alive >> i & 1)
            mbps += g->process->nic[i].speed_mbps;
    return mbps > UINT32_MAX ? UINT32_MAX : mbps ? (uint32_t)mbps : 1;
}

/* Where that has changed, node 0 is told. */
static int look_at_nics(struct group *g, uint64_t now_ns)
{
    if (now_ns < g->look_ns)
        return 0;
    g->look_ns = now_ns + LOOK_NS;
    const uint32_t now = live_mbps(g);
    if (now == g->own_mbps)
        return 0;
    if (g->rank == 0) {
        g->mbps[0] = now;
    } else {
        const struct note note = {.kind = RATE, .row = now};
        if (!free_sends(g->peer[0])) {
            g->look_ns = now_ns;
            return 0;
        }
        post_note(g, g->peer[0], &note);
    }
    g->own_mbps = now;
    return 1;
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static struct call *call_of(struct group *g, uint64_t number)
{
    struct call *c = &g->call[number % MOST_CALLS];
    return c->is != UNUSED && c->number == number ? c : NULL;
}

/* What node `node` has of a window: its bytes, and where in the window they begin. */
static uint64_t part_of(const struct call *c, uint32_t node, uint64_t *at)
{
    const uint64_t begin = node * c->node_bytes, end = begin + c->node_bytes, last = c->window + c->bytes;
    const uint64_t from = begin > c->window ? begin : c->window, to = end < last ? end : last;
    *at = from < to ? from - c->window : 0;
    return from < to ? to - from : 0;
}

/* From every node to every other: its own part, or the other's to be added up there. */
static int open_direct(const struct group *g, struct call *c)
{
    const uint32_t most = g->nodes * (g->nodes - 1);
    int32_t *src = calloc(3 * (size_t)most + 1, sizeof *src), *dst = src ? src + most : NULL;
    int64_t *offset = calloc(3 * (size_t)most + 2, sizeof *offset), *length = offset ? offset + most : NULL;
    uint8_t *reduce = calloc(most + (size_t)1, 1);
    int result = OPTCC_MEMORY;
    if (src && offset && reduce) {
        struct optcc_rows rows = {.routes = 1, .src = src, .dst = dst, .route = dst + most, .offset = offset,
                                  .length = length, .reduce = reduce, .dep_ptr = length + most, .dep_idx = offset};
        for (uint32_t step = 1; step < g->nodes; step++)
            for (uint32_t n = 0; n < g->nodes; n++) {
                const uint32_t to = (n + step) % g->nodes;
                uint64_t at;
                const uint64_t bytes = part_of(c, c->kind == ALLGATHER ? n : to, &at);
                if (!bytes)
                    continue;
                src[rows.rows] = (int32_t)n;
                dst[rows.rows] = (int32_t)to;
                offset[rows.rows] = (int64_t)at;
                length[rows.rows] = (int64_t)bytes;
                reduce[rows.rows++] = c->kind == REDUCE_SCATTER;
            }
        result = optcc_program_open(&rows, g->rank, g->nodes, NULL, c->bytes, piece_bytes(g, c->bytes), &c->program);
    }
    free(src);
    free(offset);
    free(reduce);
    return result;
}

static int open_planned(struct group *g, struct call *c, const struct grant *grant)
{
    const uint64_t turn = c->number % plans_cycle(g->process->plans, grant->plan);
    struct kept *unused = NULL;
    for (uint32_t i = 0; i < KEPT; i++) {
        struct kept *k = &g->kept[i];
        if (k->busy)
            continue;
        if (k->program && k->bytes == c->bytes && k->turn == turn && k->grant == grant->number) {
            c->kept = k;
            break;
        }
        if (!unused || (unused->program && !k->program) || (unused->program && k->grant != grant->number))
            unused = k;
    }
    if (!c->kept) { /* one is unused: there are more than calls */
        optcc_program_close(unused->program);
        *unused = (struct kept){.bytes = c->bytes, .turn = turn, .grant = grant->number};
        const int result = plans_program(g->process->plans, grant->plan, turn, grant->node_of, g->nodes, g->rank, c->bytes,
                                         piece_bytes(g, c->bytes), &unused->program);
        if (result != OPTCC_OK)
            return result;
        /* What the GPU cannot do of it, as where rows land beside, the processor does. */
        if (g->gpu && optcc_gpu_use(g->gpu, unused->program, NULL) == OPTCC_MEMORY)
            return OPTCC_MEMORY;
        c->kept = unused;
    }
    c->kept->busy = 1;
    c->program = c->kept->program;
    return OPTCC_OK;
}

/* An AllReduce's input goes to where it runs: whether it is on its way, or there. */
static int bring(struct group *g, struct call *c)
{
    const struct optcc_job copy = {.to = c->to, .from = c->from, .bytes = c->bytes};
    c->ticket = 0;
    if (c->kind == ALLREDUCE && c->from != c->to) {
        if (!g->gpu)
            memcpy(c->to, c->from, c->bytes);
        else if (optcc_gpu_job(g->gpu, &copy, &c->ticket) != OPTCC_OK)
            return 0;
    }
    c->is = COMES;
    return 1;
}

static int begin(struct group *g, struct call *c, const struct grant *grant)
{
    uint64_t at;
    c->work = c->to;
    if (c->kind == ALLGATHER) {
        const uint64_t own = part_of(c, g->rank, &at);
        if (c->to + at != c->from && own)
            memmove(c->to + at, c->from, own);
    } else if (c->kind == REDUCE_SCATTER) {
        if (!(c->scratch = malloc(c->bytes + 1)))
            return OPTCC_MEMORY;
        memcpy(c->scratch, c->from, c->bytes);
        c->work = c->scratch;
    }
    const struct optcc_call call = {.buffer = c->work, .type = c->type, .op = c->op};
    int result = c->kind == ALLREDUCE ? open_planned(g, c, grant) : open_direct(g, c);
    if (result == OPTCC_OK)
        result = optcc_program_begin(c->program, &call, 0);
    c->is = RUNS;
    return result;
}

static void let_go(struct call *c)
{
    if (c->kept)
        c->kept->busy = 0;
    else
        optcc_program_close(c->program);
    free(c->scratch);
    c->program = NULL;
    c->kept = NULL;
    c->scratch = NULL;
    c->is = UNUSED;
}

/* The name of what a job reads: a slot of a peer's, or a piece that came early, whose address is even. */
static uint64_t name_of(uint32_t from, uint64_t message) { return ((uint64_t)from * SLOTS + message % SLOTS) << 1 | 1; }

/* OK; AGAIN: a job reads `bytes` until `read_on` meets its name; or it is wrong. */
static int land(struct group *g, struct call *c, uint32_t from, const struct piece *piece, const void *bytes,
                uint64_t name)
{
    const struct optcc_frame head = {.row = piece->row, .offset = piece->offset, .length = piece->length};
    const int result = OPTCC_ROWS_SOURCE.land(c->program, from, &head, bytes, name, 0);
    g->reading += result == OPTCC_AGAIN;
    return result;
}

/* Jobs go on; what they have read is free. */
static int read_on(struct group *g, struct call *c)
{
    uint64_t name;
    int moved = 0;
    while (OPTCC_ROWS_SOURCE.late(c->program) && OPTCC_ROWS_SOURCE.landed(c->program, &name) == OPTCC_OK) {
        struct early **at = &g->read;
        while (!(name & 1) && *at && (uintptr_t)*at != name)
            at = &(*at)->next;
        if (name & 1) {
            g->peer[(name >> 1) / SLOTS]->read[(name >> 1) % SLOTS] = 0;
        } else if (*at) {
            struct early *e = *at;
            *at = e->next;
            free(e);
        }
        g->reading--;
        moved = 1;
    }
    return moved;
}

/* What came before the call had begun. */
static void land_early(struct group *g, struct call *c)
{
    for (uint32_t n = 0; n < g->nodes; n++)
        for (struct early **at = g->peer[n] ? &g->peer[n]->early : NULL; at && *at;) {
            struct early *e = *at;
            if (e->piece.call != c->number) {
                at = &e->next;
                continue;
            }
            const int landed = land(g, c, n, &e->piece, e->bytes, (uintptr_t)e);
            g->peer[n]->early_bytes -= e->piece.length;
            *at = e->next;
            if (landed == OPTCC_AGAIN) {
                e->next = g->read;
                g->read = e;
                continue;
            }
            if (landed != OPTCC_OK)
                lose(g, "a node has sent what is not part of a call");
            free(e);
        }
}

static int begin_calls(struct group *g)
{
    const uint64_t made = atomic_load_explicit(&g->made, memory_order_acquire);
    int moved = 0;
    for (uint64_t number = g->begun; number < made && (g->gpu || number == g->begun); number++) {
        struct call *c = &g->call[number % MOST_CALLS];
        if (c->is == WAITS && !bring(g, c))
            break;
    }
    for (; g->begun < made && !atomic_load(&g->lost); g->begun++) {
        struct call *c = &g->call[g->begun % MOST_CALLS];
        const struct grant *grant = grant_of(g, g->begun);
        if (!grant || (c->is == WAITS && !bring(g, c)))
            break;
        if (g->gpu && optcc_gpu_done(g->gpu, c->ticket) != OPTCC_OK)
            return 1; /* soon */
        if (begin(g, c, grant) != OPTCC_OK) {
            lose(g, "a call cannot begin: no memory, or parts that cut elements");
            break;
        }
        land_early(g, c);
        moved = 1;
    }
    return moved;
}

static int end_calls(struct group *g)
{
    int moved = 0;
    for (uint64_t number = atomic_load(&g->ended); number < g->begun; number++) {
        struct call *c = call_of(g, number);
        uint32_t done, rows;
        uint64_t at, own;
        if (c && c->is == RUNS) {
            optcc_program_done(c->program, &done, &rows);
            if (done == rows && !c->sending) {
                if (c->kind == REDUCE_SCATTER && (own = part_of(c, g->rank, &at)))
                    memcpy(c->to, c->scratch + at, own);
                g->carried += c->bytes;
                let_go(c);
                request_end(&c->request, NCCL_SUCCESS, c->bytes);
                moved = 1;
            }
        }
        if (number == atomic_load(&g->ended) && (!c || c->is == UNUSED))
            atomic_store(&g->ended, number + 1);
    }
    return moved;
}

/* ---- what comes ---------------------------------------------------------------------------------------------------- */

static uint64_t slot_bytes(const struct group *g)
{
    return most_piece(g) > sizeof(struct note) ? most_piece(g) : sizeof(struct note);
}

static unsigned char *slot_of(const struct group *g, const struct peer *p, uint64_t message)
{
    return p->room + message % p->slots * slot_bytes(g);
}

/* A piece that is here whole. 1: it is dealt with; 0: not now; -1: it is wrong. */
static int take_piece(struct group *g, uint32_t from, const struct piece *piece, const void *bytes)
{
    struct peer *p = g->peer[from];
    struct call *c = piece->call < g->begun ? call_of(g, piece->call) : NULL;
    if (piece->length > most_piece(g))
        return -1;
    if (piece->call < g->begun) {
        const int landed = c && c->is == RUNS ? land(g, c, from, piece, bytes, name_of(from, p->heard)) : OPTCC_BAD;
        p->read[p->heard % SLOTS] = landed == OPTCC_AGAIN;
        return landed == OPTCC_OK || landed == OPTCC_AGAIN ? 1 : -1;
    }
    if (piece->call >= g->begun + MOST_CALLS + AHEAD)
        return -1;
    if (p->early_bytes + piece->length > MOST_EARLY)
        return 0;
    struct early *e = malloc(sizeof *e + piece->length), **last = &p->early;
    if (!e)
        return -1;
    e->next = NULL;
    e->piece = *piece;
    memcpy(e->bytes, bytes, piece->length);
    p->early_bytes += piece->length;
    while (*last)
        last = &(*last)->next;
    *last = e;
    return 1;
}

static int take_note(struct group *g, uint32_t from, const unsigned char *bytes, uint64_t length)
{
    struct note note = {0};
    if (length != SHORT_NOTE && length != sizeof note)
        return 0;
    memcpy(&note, bytes, length);
    if (note.magic != NOTE_MAGIC || (note.kind == GRANT) != (length == sizeof note))
        return 0;
    switch (note.kind) {
    case GRANT:
        return from == 0 && take_grant(g, &note);
    case RATE:
        if (g->rank != 0 || !note.row)
            return 0;
        g->mbps[from] = note.row;
        return 1;
    default:
        return 0;
    }
}

static int hear(struct group *g, uint32_t from)
{
    struct peer *p = g->peer[from];
    int moved = 0, size = 0, done = 0;
    while (!p->gone) {
        while (p->freed < p->heard && !p->read[p->freed % SLOTS])
            p->freed++;
        while (p->posted < p->freed + p->slots) {
            void *data = slot_of(g, p, p->posted), *request = NULL;
            const size_t room = slot_bytes(g);
            if (net_receive(p->in, 1, &data, &room, &request) != NCCL_SUCCESS || !request) {
                lose(g, "a receive could not be posted");
                return 1;
            }
            p->receive[p->posted++ % SLOTS] = request;
        }
        void **request = &p->receive[p->heard % SLOTS];
        if (p->heard == p->posted)
            break; /* all slots are read */
        if (*request) {
            if (request_test(*request, &done, &size) != NCCL_SUCCESS) {
                p->gone = 1;
                *request = NULL;
                return 1;
            }
            if (!done)
                break;
            p->tag = ((const struct request *)*request)->tag;
            p->bytes_heard = (uint32_t)size;
            *request = NULL;
        }
        const unsigned char *bytes = slot_of(g, p, p->heard);
        const struct piece piece = piece_of(p->tag, p->bytes_heard);
        const int noted = !p->tag.first && take_note(g, from, bytes, p->bytes_heard) ? 1 : -1;
        const int taken = p->tag.first ? take_piece(g, from, &piece, bytes) : noted;
        if (taken == 0)
            break;
        if (taken < 0 || atomic_load(&g->lost)) {
            lose(g, "a node has sent what cannot be");
            return 1;
        }
        p->heard++;
        moved = 1;
    }
    return moved;
}

/* ---- a round of the thread ----------------------------------------------------------------------------------------- */

/* Nodes close their ends as they get ready; that is an error only for who misses something. */
static void miss_the_gone(struct group *g, uint64_t now_ns)
{
    struct optcc_missing missing;
    uint32_t gone = 0;
    for (uint32_t n = 0; n < g->nodes; n++) {
        struct peer *p = g->peer[n];
        if (!p || !p->gone)
            continue;
        gone++;
        if (!p->gone_ns)
            p->gone_ns = now_ns;
        for (uint64_t m = p->acked; m < p->sent && now_ns - p->gone_ns > GONE_NS; m++)
            if (p->of[m % SLOTS])
                lose(g, "a node has gone that takes no more of what is sent to it");
    }
    if (gone && g->peer[0] && g->peer[0]->gone && g->begun < atomic_load(&g->made))
        lose(g, "node 0 has gone, or the link to it is lost");
    for (uint64_t number = atomic_load(&g->ended); gone && number < g->begun; number++) {
        struct call *c = call_of(g, number);
        if (!c || c->is != RUNS)
            continue;
        optcc_program_missing(c->program, &missing);
        if (missing.receives && g->peer[missing.peer]->gone)
            lose(g, "a node has gone, or the link to it is lost");
    }
}

/* All calls end with an error. */
static void fail_calls(struct group *g)
{
    const uint64_t made = atomic_load_explicit(&g->made, memory_order_acquire);
    for (uint64_t number = atomic_load(&g->ended); number < made; number++) {
        struct call *c = &g->call[number % MOST_CALLS];
        const uint32_t is = atomic_load(&c->request.is);
        if ((is == POSTED || is == TAKEN) && c->number == number)
            request_end(&c->request, NCCL_REMOTE_ERROR, 0);
    }
}

static int group_progress(struct group *g, uint64_t now_ns)
{
    int moved = g->reading != 0;
    if (g->gpu)
        (void)optcc_gpu_look(g->gpu, now_ns);
    for (uint64_t number = atomic_load(&g->ended); g->gpu && number < g->begun && !atomic_load(&g->lost); number++) {
        struct call *c = call_of(g, number);
        if (c && c->is == RUNS)
            moved |= read_on(g, c);
    }
    for (uint32_t n = 0; n < g->nodes && !atomic_load(&g->lost); n++)
        if (g->peer[n])
            moved |= acknowledge(g->peer[n]) | hear(g, n);
    if (!atomic_load(&g->lost)) {
        moved |= look_at_nics(g, now_ns);
        if (g->rank == 0)
            moved |= give_grants(g);
        moved |= begin_calls(g);
    }
    if (!atomic_load(&g->lost))
        look_at_links(g);
    for (uint64_t number = atomic_load(&g->ended); number < g->begun && !atomic_load(&g->lost); number++) {
        struct call *c = call_of(g, number);
        if (c && c->is == RUNS)
            moved |= (g->gpu && read_on(g, c)) | send_pieces(g, c);
    }
    if (!atomic_load(&g->lost)) {
        moved |= end_calls(g);
        miss_the_gone(g, now_ns);
    }
    if (atomic_load(&g->lost))
        fail_calls(g);
    return moved;
}

int groups_progress(uint64_t now_ns)
{
    int moved = 0;
    for (struct group *g = groups; g; g = g->next)
        moved |= group_progress(g, now_ns);
    return moved;
}

int groups_run(void)
{
    int run = 0;
    for (const struct group *g = groups; g; g = g->next)
        run |= atomic_load(&g->ended) < atomic_load(&g->made);
    return run;
}

void groups_stop(void)
{
    for (struct group *g = groups; g; g = g->next) {
        atomic_store(&g->lost, 1);
        fail_calls(g);
    }
}

/* ---- NCCL's calls -------------------------------------------------------------------------------------------------- */

/* *request stays NULL where too many run: NCCL asks again. */
static nccl_result_t make_call(struct group *g, enum call_kind kind, const void *from, void *to, uint64_t bytes,
                               uint64_t node_bytes, uint64_t window, int type, int op, void **request)
{
    const uint64_t number = atomic_load_explicit(&g->made, memory_order_relaxed);
    struct call *c = &g->call[number % MOST_CALLS];
    int does;
    *request = NULL;
    group_reduces(type, op, &does);
    if (atomic_load(&g->lost))
        return NCCL_REMOTE_ERROR;
    if (!does || net_too_long(bytes))
        return NCCL_INVALID_ARGUMENT;
    if (number >= atomic_load(&g->ended) + MOST_CALLS || atomic_load(&c->request.is) != FREE)
        return NCCL_SUCCESS;
    c->is = WAITS;
    c->kind = kind;
    c->number = number;
    c->from = from;
    c->to = to;
    c->bytes = bytes;
    c->node_bytes = node_bytes;
    c->window = window;
    c->type = TYPES[type];
    c->op = OPERATIONS[op];
    c->sending = 0;
    atomic_store_explicit(&c->request.is, POSTED, memory_order_relaxed);
    atomic_store_explicit(&g->made, number + 1, memory_order_release);
    *request = &c->request;
    net_ring();
    return NCCL_SUCCESS;
}

nccl_result_t group_allreduce(void *group, void *from, void *to, size_t count, int type, int op, void **request)
{
    const uint64_t item = type >= 0 && type < NCCL_TYPES ? (uint64_t)optcc_type_bytes(TYPES[type]) : 0;
    return make_call(group, ALLREDUCE, from, to, count > SIZE_MAX / 8 ? UINT64_MAX : count * item, 0, 0, type, op, request);
}

nccl_result_t group_allgather(void *group, void *from, const struct nccl_part *to, size_t node_bytes,
                              size_t window_offset, size_t window_bytes, void **request)
{
    return make_call(group, ALLGATHER, from, to->address, window_bytes, node_bytes, window_offset, NCCL_INT8, NCCL_SUM,
                     request);
}

nccl_result_t group_reduce_scatter(void *group, const struct nccl_part *from, void *to, size_t node_bytes,
                                   size_t window_offset, size_t window_bytes, int type, int op, void **request)
{
    return make_call(group, REDUCE_SCATTER, from->address, to, window_bytes, node_bytes, window_offset, type, op, request);
}

/* ---- connecting, by NCCL's thread, which waits ------------------------------------------------------------------------ */

struct limit {
    uint64_t until_ns;
    char why[256];
};

static int late(struct limit *limit, const char *what)
{
    if (clock_ns() < limit->until_ns) {
        usleep(100);
        return 0;
    }
    snprintf(limit->why, sizeof limit->why, "%s (OPTCC_CONNECT_S)", what);
    return 1;
}

static int wait_for(void *request, int *size, struct limit *limit, const char *what)
{
    int done = 0;
    while (request) {
        if (request_test(request, &done, size) != NCCL_SUCCESS) {
            snprintf(limit->why, sizeof limit->why, "%s: the other has gone", what);
            return 0;
        }
        if (done)
            return 1;
        if (late(limit, what))
            return 0;
    }
    return 0;
}

static int send_now(void *connection, const void *bytes, size_t length, struct limit *limit, const char *what)
{
    void *request = NULL;
    return net_send(connection, (void *)(uintptr_t)bytes, length, &request) == NCCL_SUCCESS &&
           wait_for(request, NULL, limit, what);
}

static int receive_now(void *connection, void *bytes, size_t length, struct limit *limit, const char *what)
{
    void *request = NULL;
    int size = 0;
    if (net_receive(connection, 1, &bytes, &length, &request) != NCCL_SUCCESS ||
        !wait_for(request, &size, limit, what))
        return 0;
    if ((size_t)size == length)
        return 1;
    snprintf(limit->why, sizeof limit->why, "%s: %d bytes in place of %zu", what, size, length);
    return 0;
}

/* Who has connected: a hello that is right. */
static struct peer *greeted(struct group *g, const struct handle *handles, void *in, const struct hello *hello,
                            const struct hello *own, struct limit *limit)
{
    net_lock();
    const struct link *link = net_link(in);
    const uint64_t process = link ? link_process(link) : 0;
    net_unlock();
    if (hello->magic != NOTE_MAGIC || hello->version != GROUP_VERSION || hello->nodes != g->nodes ||
        hello->rank >= g->nodes || hello->rank == g->rank || hello->process != process ||
        handles[hello->rank].process != process || g->peer[hello->rank]->in) {
        snprintf(limit->why, sizeof limit->why, "who connects is no node of this group: install the same optcc everywhere");
        return NULL;
    }
    if (memcmp(hello->plans, own->plans, sizeof own->plans)) {
        snprintf(limit->why, sizeof limit->why, "OPTCC_PLANS has other plans on node %u: the same files everywhere",
                 hello->rank);
        return NULL;
    }
    return g->peer[hello->rank];
}

/* Connections both ways to all, and everybody knows that all have them. */
static int meet(struct group *g, void *const *raw, void *listener, struct limit *limit)
{
    struct handle *handles = calloc(g->nodes, sizeof *handles);
    struct hello own = {.magic = NOTE_MAGIC, .version = GROUP_VERSION, .rank = g->rank, .nodes = g->nodes,
                        .process = g->process->id};
    void *said[MOST_NODES] = {NULL};
    int good = handles != NULL;
    plans_code(g->process->plans, own.plans);
    for (uint32_t n = 0; good && n < g->nodes; n++)
        good = handle_read(raw[n], &handles[n], limit->why, sizeof limit->why);
    for (uint32_t n = 0; good && n < g->nodes; n++) {
        while (g->peer[n] && good && !g->peer[n]->out)
            good = net_connect(0, raw[n], &g->peer[n]->out) == NCCL_SUCCESS &&
                   (g->peer[n]->out || !late(limit, "a node cannot be reached"));
        if (good && g->peer[n]) /* it waits until the other has taken the connection */
            good = net_send(g->peer[n]->out, &own, sizeof own, &said[n]) == NCCL_SUCCESS;
    }
    for (uint32_t count = 1; good && count < g->nodes; count++) {
        struct hello hello;
        void *in = NULL;
        while (good && !in)
            good = net_accept(listener, &in) == NCCL_SUCCESS && (in || !late(limit, "a node has not come"));
        struct peer *p = good && receive_now(in, &hello, sizeof hello, limit, "the hello of a node")
                             ? greeted(g, handles, in, &hello, &own, limit)
                             : NULL;
        good = p != NULL;
        if (p)
            p->in = in;
        else
            net_close(in);
    }
    for (uint32_t n = 0; good && n < g->nodes; n++)
        good = !g->peer[n] || wait_for(said[n], NULL, limit, "our hello to a node");
    net_lock();
    g->own_mbps = g->mbps[g->rank] = live_mbps(g);
    net_unlock();
    struct note note = {.magic = NOTE_MAGIC};
    if (g->rank == 0) { /* all are ready, then all may go on */
        for (uint32_t n = 1; good && n < g->nodes; n++)
            good = receive_now(g->peer[n]->in, &note, SHORT_NOTE, limit, "a node that is ready") &&
                   note.magic == NOTE_MAGIC && note.kind == READY && (g->mbps[n] = note.row);
        note.kind = OPEN;
        for (uint32_t n = 1; good && n < g->nodes; n++)
            good = send_now(g->peer[n]->out, &note, SHORT_NOTE, limit, "to say that all are ready");
    } else if (good) {
        note.kind = READY;
        note.row = g->own_mbps;
        good = send_now(g->peer[0]->out, &note, SHORT_NOTE, limit, "to say that we are ready") &&
               receive_now(g->peer[0]->in, &note, SHORT_NOTE, limit, "that all nodes are ready") &&
               note.magic == NOTE_MAGIC && note.kind == OPEN;
    }
    free(handles);
    return good;
}

/* No job of ours reads or writes any more, or the GPU does not answer. What has not begun never does: the memory that it
 * is about may be gone. */
static void settle(struct group *g)
{
    const struct optcc_source *rows = &OPTCC_ROWS_SOURCE;
    int works = g->gpu != NULL;
    for (const uint64_t until_ns = clock_ns() + GONE_NS; works && clock_ns() < until_ns; usleep(works ? 100 : 0)) {
        works = 0;
        net_lock();
        (void)optcc_gpu_look(g->gpu, clock_ns());
        for (uint32_t i = 0; i < MOST_CALLS; i++) {
            const struct call *c = &g->call[i];
            uint64_t name;
            if (c->is == COMES)
                works |= optcc_gpu_done(g->gpu, c->ticket) != OPTCC_OK;
            if (c->is != RUNS || !rows->late(c->program))
                continue;
            rows->stop(c->program);
            while (rows->landed(c->program, &name) == OPTCC_OK)
                ;
            works |= rows->due_ns(c->program) != UINT64_MAX;
        }
        net_unlock();
    }
}

static void free_early(struct early **list)
{
    while (*list) {
        struct early *e = *list;
        *list = e->next;
        free(e);
    }
}

static void free_group(struct group *g)
{
    settle(g);
    free_early(&g->read);
    for (uint32_t n = 0; n < g->nodes; n++) {
        struct peer *p = g->peer[n];
        if (!p)
            continue;
        net_close(p->out);
        net_close(p->in);
        free_early(&p->early);
        if (g->seat) {
            net_lock();
            optcc_gpu_forget(g->gpu, p->room);
            net_unlock();
            gpu_unroom(g->seat, p->room);
        } else
            free(p->room);
        free(p);
    }
    for (uint32_t i = 0; i < MOST_CALLS; i++)
        if (g->call[i].is != UNUSED)
            let_go(&g->call[i]);
    for (uint32_t i = 0; i < KEPT; i++)
        optcc_program_close(g->kept[i].program);
    gpu_close(g->seat);
    free(g);
}

/* Slots for what comes of each node, where the GPU reaches them if there is one. */
static int make_rooms(struct group *g)
{
    const uint32_t wanted = NIC_SLOTS * g->process->nics, least = wanted < LEAST_SLOTS ? LEAST_SLOTS : wanted;
    const uint32_t slots = least < SLOTS ? least : SLOTS;
    const uint64_t bytes = slots * slot_bytes(g);
    for (uint32_t n = 0; n < g->nodes; n++) {
        struct peer *p = n == g->rank ? NULL : calloc(1, sizeof *p);
        g->peer[n] = p;
        if (n == g->rank)
            continue;
        if (p)
            p->slots = slots;
        if (!p || !(p->room = g->seat ? gpu_room(g->seat, bytes) : aligned_alloc(64, bytes)))
            return 0;
        if (g->seat) {
            net_lock();
            const int known = optcc_gpu_reach(g->gpu, p->room, bytes) == OPTCC_OK;
            net_unlock();
            if (!known)
                tell(0, "sums of this group: the processor adds what comes from node %u", n);
        }
    }
    return 1;
}

nccl_result_t group_connect(void *const *handles, int nodes, int rank, void *listener, void **group)
{
    const struct process *process = net_process();
    struct limit limit = {.until_ns = clock_ns() + process->settings.connect_ns, .why = "no memory"};
    *group = NULL;
    if (nodes < 1 || nodes > MOST_NODES || rank < 0 || rank >= nodes) {
        tell(1, "a group of %d nodes: at most %d", nodes, MOST_NODES);
        net_close_listen(listener);
        return NCCL_INVALID_USAGE;
    }
    struct group *g = calloc(1, sizeof *g);
    int good = g != NULL;
    if (g) {
        g->process = process;
        g->nodes = (uint32_t)nodes;
        g->rank = (uint32_t)rank;
        g->seat = gpu_open(net_communicator(listener));
        g->gpu = g->seat ? gpu_of(g->seat) : NULL;
        good = make_rooms(g);
    }
    if (good)
        good = meet(g, handles, listener, &limit);
    if (!good) {
        tell(1, "no CollNet among these %d nodes: %s", nodes, limit.why);
        if (g)
            free_group(g);
        net_close_listen(listener); /* NCCL forgets it */
        return NCCL_SYSTEM_ERROR;
    }
    net_lock();
    g->next = groups;
    groups = g;
    net_unlock();
    tell(0, "group of %u nodes, this is node %u; %u plans", g->nodes, g->rank, plans_count(process->plans));
    *group = g;
    return NCCL_SUCCESS;
}

/* NCCL's memory: all of it is host memory, and needs nothing but that the GPU's kernel may be told of it. NCCL must ask
 * for it back (which it does not for a region of NULL): it frees it after that, and closes the group only then. */
nccl_result_t group_register(void *group, void *data, size_t size, int type, void **region)
{
    struct group *g = group;
    const nccl_result_t result = net_register(group, data, size, type, region);
    *region = result == NCCL_SUCCESS ? data : NULL;
    if (result == NCCL_SUCCESS && g && g->seat && gpu_reaches(g->seat, data)) {
        net_lock();
        (void)optcc_gpu_reach(g->gpu, data, size); /* where there is no room for it the processor does its jobs */
        net_unlock();
    }
    return result;
}

nccl_result_t group_deregister(void *group, void *region)
{
    struct group *g = group;
    net_lock();
    if (g && g->gpu)
        optcc_gpu_forget(g->gpu, region);
    const int runs = g && !atomic_load(&g->lost) && atomic_load(&g->ended) < atomic_load(&g->made);
    if (runs) {
        lose(g, "NCCL takes its memory back while calls run");
        fail_calls(g);
    }
    net_unlock();
    if (g && atomic_load(&g->lost))
        settle(g);
    for (uint32_t n = 0; g && atomic_load(&g->lost) && n < g->nodes; n++)
        if (g->peer[n]) { /* when these are closed no wire reads it any more */
            net_close(g->peer[n]->out);
            g->peer[n]->out = NULL;
        }
    return NCCL_SUCCESS;
}

nccl_result_t group_close(void *group)
{
    struct group *g = group;
    if (!g)
        return NCCL_SUCCESS;
    net_lock();
    for (struct group **at = &groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    set_windows(g, g->process->settings.window_bytes);
    net_unlock();
    tell(0, "group of %u nodes, this is node %u: closed after %llu calls, %.1f MB", g->nodes, g->rank,
         (unsigned long long)atomic_load(&g->ended), (double)g->carried / 1e6);
    free_group(g);
    return NCCL_SUCCESS;
}
