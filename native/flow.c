/* Segments from rank to rank, each exactly once, over NICs that come and go.
 *
 * A flow is what one rank sends to another: segments, numbered for ever. There are two of them between two ranks, and up
 * to 64 wires, each from a NIC here to a NIC there. Any segment may go by any wire, and again by another one.
 *
 * The receiver is the only authority on what has landed. It keeps `floor` (all below are here) and a bit for each of the
 * next SPAN segments, and every frame that it sends says both. What it has seen it takes for a duplicate, whatever wire
 * and life it comes from, and says so once more; so nothing is folded twice, and a lost acknowledgement does no harm.
 * The sender keeps a segment until it is acknowledged, by whichever wire. So sending again is always safe, and what
 * happens to a wire is a question of speed, never of correctness.
 *
 * A NIC that is free pulls the next segment: what must be sent again first, then the lowest row that is ready and may go
 * by one of its wires. So shares follow the rates that NICs really have, and a plan is not cut anew after a loss. A wire
 * has at most a window of bytes that are not acknowledged, so that queues stay short. A rank that has not begun the
 * operation is sent nothing: `begun` in its frames tells.
 *
 * A wire at one end is in one of four states; the table `RULES` says what happens in each.
 *
 *   UP       carries.
 *   DOUBTED  it owes something, an acknowledgement or a payload given back, and nothing has moved for `suspect_ns`.
 *            Nothing new goes by it. The peer is asked by all wires whether it lives; it answers each question by the
 *            wire that it came by. An answer by this wire: it is UP again, and what it has lost is sent again. Answers
 *            by others alone, for `grace_ns`: it is left. No answer at all: the peer is paused, or all is cut, and
 *            nothing happens. So a slow peer never costs a NIC.
 *   FENCING  it is left. Its segments are already on their way by others; its end here is being drained, until no
 *            payload is read any more. The peer is told, and all wires that share a NIC with it are doubted at once.
 *   DOWN     fenced. A new life is asked for, in growing intervals, by the wire itself (KNOCK); the peer fences its own
 *            end, takes the new epoch, and says WELCOME. Frames of another epoch are ghosts and change nothing.
 *
 * Where no wire is left, these questions go on. A peer that owes something and gives no sign by any wire for `return_ns`
 * is given up, and with it the operation; everybody is told, so that nobody waits.
 *
 * What a peer says is checked before it is believed: lengths, rank, job, life, that it acknowledges nothing that was not
 * sent, begins nothing too early, and sends what the program expects and has not had. Else the frame changes nothing.
 */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(struct optcc_frame) == 128, "it travels between machines, without holes");

enum {
    LOOKS = 8,        /* in suspect_ns */
    SEQ_BITS = 48,    /* of a segment's number; above are 1024 ranks */
    IN_VAIN = 2,      /* a wire is left that was trusted so often after a doubt, and has brought over nothing since */
    SLACK = 3,        /* a segment is lost when one sent so much later by the same wire has landed */
    NEWS = 4096,      /* taken in one call of progress at most */
    TIMED = 8,        /* of them are told the same time: a look at the clock costs as much as some news */
    MOST_KNOCKS = 16, /* the pause between knocks grows to so many times the first */
    SMOOTH = 4,       /* of a measured pace a new value counts one part in so many */
    PATIENCE = 256,   /* rounds of `optcc_wait` from one look at `watch` and the limit to the next */
    MOST_OWED = 4,    /* segments that wait to be acknowledged: over RDMA a wire has receives for five at the least */
    OWED_PART = 8,    /* and no more bytes than this part of a window: what fills windows is acknowledged at once */
    NOTES = 1024      /* kept until they are read; the oldest go */
};
static const uint64_t NAP_NS = 1000000; /* at most, between two looks at `watch`: who speaks there is heard so late */

enum kept { FREE, FLYING, AGAIN };

struct out { /* a segment that is not acknowledged */
    uint64_t seq;
    uint32_t send, segment, length; /* of the program; bytes */
    uint32_t wire;                  /* it went by last */
    uint32_t order;                 /* its place among what went by that wire */
    uint8_t is;                     /* enum kept */
    uint8_t tries;
    uint64_t sent_ns, ahead;        /* the last time; bytes that flew to that NIC then, with its own */
};

struct coming { /* a segment that is being taken in */
    uint64_t held;         /* of its payload, to be released */
    uint32_t wire, answer; /* it came by; its latest copy did, and so goes the acknowledgement */
};

struct peer {
    uint32_t rank, lanes;
    uint32_t wire[OPTCC_MAX_LANES];        /* by lane */
    uint64_t up, with_nic[OPTCC_MAX_NICS]; /* sets of lanes */
    uint64_t heading_for[OPTCC_MAX_NICS];  /* bytes that fly to each of its NICs */
    double ns_per_byte[OPTCC_MAX_NICS];    /* how long one takes with all that fly there before it, as measured */
    struct out out[OPTCC_SPAN];            /* by seq % SPAN */
    uint64_t low, next;                    /* all below are acknowledged; the next segment's number */
    uint32_t again;                        /* of `out`, those to be sent again */
    uint64_t floor, landed[OPTCC_SPAN / 64]; /* what has come: see optcc_frame */
    uint64_t taking[OPTCC_SPAN / 64];        /* likewise, what is being taken in */
    struct coming coming[OPTCC_SPAN];        /* by seq % SPAN */
    uint64_t begun, far_begun;             /* operations with each other, here and there */
    uint64_t to_ack, to_come;              /* segments of this operation */
    uint64_t answered_ns, heard_ns;        /* the last sign that it hears us; that we hear it */
    uint32_t doubt;                        /* number of the last one */
    int takes_part, quiet;                 /* in this operation; nothing of it has come yet */
    uint64_t sign, far_sign;               /* of the call begun last, here and there */
    uint64_t signed_;                      /* the operation that `far_sign` is of; 0: none */
    uint64_t alone_ns;                     /* since when no wire leads there; 0: one does */
};

struct wire {
    struct optcc_wire ends;
    uint32_t index, state;
    uint32_t epoch;             /* its life */
    uint32_t called, knocked;   /* lives asked for by the peer and by us; 0: none */
    uint64_t flying, acked, sent; /* bytes */
    uint32_t in_hand;           /* payloads that may be read */
    uint32_t order, best;       /* of the next segment; above all that have landed and went once */
    uint64_t moved_ns;          /* something it owes has moved, or it began to owe */
    uint64_t elsewhere_ns;      /* another wire answered this doubt; 0: none yet */
    uint64_t knock_ns, pause_ns; /* when to knock next, and how long after that again */
    uint32_t doubt;             /* number of its doubt */
    uint32_t in_vain;           /* how often it was trusted again since it has brought something over */
    uint32_t cause;             /* of its last loss: enum optcc_cause */
    uint64_t moving;            /* bytes that it has lost and that are to go again by others */
    uint64_t refused;           /* the `fill` in which it took no segment; it is asked once in each */
    uint32_t owed;              /* segments that it brought and that no frame of it has acknowledged, */
    uint64_t owed_bytes, owed_ns; /* their bytes, and since when */
    int moves;                  /* MOVED is still to be noted */
};

struct optcc_engine {
    struct optcc_config config;
    const struct optcc_wires *wires;
    void *self;
    struct wire *wire;
    struct peer *peer; /* by rank */
    const struct optcc_source *source; /* of pieces; what runs by it, NULL: nothing */
    void *program;
    uint64_t now_ns, look_ns;
    uint64_t in_hand;  /* payloads of all wires */
    uint32_t again;    /* segments of all peers that are to be sent again */
    uint32_t unwell;   /* wires that are not UP */
    uint32_t lost_rank; /* UINT32_MAX: none */
    uint32_t odd_rank;  /* that has called something else; UINT32_MAX: none */
    uint32_t cause;     /* of the loss that is being handled: enum optcc_cause */
    uint32_t movers;    /* wires with a MOVED to be noted */
    uint64_t happened;  /* grows with whatever comes, goes or changes */
    uint64_t flying[OPTCC_MAX_NICS]; /* bytes of its wires */
    uint64_t barren[OPTCC_MAX_NICS]; /* `happened` as it was when the NIC found nothing to send */
    uint64_t fills;     /* calls of `fill` */
    uint32_t turn;      /* the NIC after the one that took a segment last */
    int refused;        /* wires have not taken a segment: when they will they do not tell */
    int finished;       /* the last operation, whole */
    int abandoned;
    int owing;          /* some wire may owe an acknowledgement */
    struct optcc_note note[NOTES];
    uint64_t noted, told; /* notes made, and read */
    struct optcc_counters counters;
};

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- noting ------------------------------------------------------------------------------------------------------ */

static void note(struct optcc_engine *e, const struct wire *w, enum optcc_noted noted, uint64_t bytes)
{
    e->note[e->noted++ % NOTES] = (struct optcc_note){.at_ns = e->now_ns, .bytes = bytes, .noted = noted,
                                                      .wire = w->index, .cause = w->cause};
}

static void note_moved(struct optcc_engine *e)
{
    for (uint32_t i = 0; e->movers && !e->again && i < e->config.wires; i++)
        if (e->wire[i].moves) {
            note(e, &e->wire[i], OPTCC_NOTE_MOVED, e->wire[i].moving);
            e->wire[i].moves = 0;
            e->movers--;
        }
}

/* ---- acknowledging ----------------------------------------------------------------------------------------------- */

static void owe(struct optcc_engine *e, struct wire *w, uint32_t segments, uint64_t bytes)
{
    if (!w->owed)
        w->owed_ns = e->now_ns;
    w->owed += segments;
    w->owed_bytes += bytes;
    e->owing = 1;
}

static void owes_nothing(struct wire *w) { w->owed = 0, w->owed_bytes = 0; }

/* When what has come by a wire is to be acknowledged, if no frame goes by it before. */
static uint64_t owed_until(const struct optcc_engine *e, const struct wire *w)
{
    const int waits = w->owed < MOST_OWED && w->owed_bytes < e->config.window_bytes / OWED_PART;
    return w->owed_ns + (waits ? e->config.ack_ns : 0);
}

/* ---- saying ------------------------------------------------------------------------------------------------------ */

static struct optcc_frame head_for(const struct optcc_engine *e, const struct wire *w, enum optcc_kind kind)
{
    const struct peer *p = &e->peer[w->ends.peer];
    struct optcc_frame head = {.magic = OPTCC_MAGIC, .version = OPTCC_VERSION, .kind = (uint8_t)kind,
                               .lane = (uint16_t)w->ends.lane, .from = e->config.rank, .to = p->rank,
                               .job = e->config.job, .epoch = w->epoch, .begun = p->begun, .floor = p->floor};
    memcpy(head.landed, p->landed, sizeof head.landed);
    return head;
}

static void tell(struct optcc_engine *e, struct wire *w, enum optcc_kind kind, uint32_t word)
{
    struct optcc_frame head = head_for(e, w, kind);
    head.word = word;
    if (kind == OPTCC_KNOCK)
        head.epoch = w->knocked;
    if (kind == OPTCC_HELLO)
        head.seq = e->peer[w->ends.peer].sign;
    /* A frame that cannot be posted is one that is lost: it is said again, or DIED follows. */
    if (e->wires->post(e->self, w->index, &head, NULL, 0) == OPTCC_OK)
        owes_nothing(w);
}

static void tell_by_all(struct optcc_engine *e, struct peer *p, enum optcc_kind kind, uint32_t word)
{
    for (uint32_t lane = 0; lane < p->lanes; lane++) {
        struct wire *w = &e->wire[p->wire[lane]];
        if (w->state == OPTCC_UP || w->state == OPTCC_DOUBTED)
            tell(e, w, kind, word);
    }
}

static void hello(struct optcc_engine *e, struct peer *p)
{
    if (p->up)
        tell(e, &e->wire[p->wire[__builtin_ctzll(p->up)]], OPTCC_HELLO, 0);
}

static void notice(struct optcc_engine *e, struct peer *p, const struct wire *lost)
{
    for (uint32_t lane = 0; lane < p->lanes; lane++) {
        const struct wire *w = &e->wire[p->wire[lane]];
        if (w->state != OPTCC_UP && w->state != OPTCC_DOUBTED)
            continue;
        struct optcc_frame head = head_for(e, w, OPTCC_NOTICE);
        head.lane = (uint16_t)lost->ends.lane;
        head.word = lost->epoch;
        e->wires->post(e->self, w->index, &head, NULL, 0);
    }
}

/* `payloads` of a wire, those that it was given first, are read no more. */
static void given_back(struct optcc_engine *e, struct wire *w, uint32_t payloads)
{
    w->in_hand -= payloads;
    e->in_hand -= payloads;
    if (e->program && e->source->back)
        e->source->back(e->program, w->ends.lane, payloads);
}

/* ---- segments: kept until they are acknowledged ------------------------------------------------------------------ */

static struct out *entry(struct peer *p, uint64_t seq) { return &p->out[seq % OPTCC_SPAN]; }

static void grounded(struct optcc_engine *e, struct peer *p, struct wire *w, const struct out *o)
{
    w->flying -= o->length;
    e->flying[w->ends.nic] -= o->length;
    p->heading_for[w->ends.far_nic] -= o->length;
}

static void to_send_again(struct optcc_engine *e, struct peer *p, struct out *o)
{
    grounded(e, p, &e->wire[o->wire], o);
    e->happened++;
    o->is = AGAIN;
    p->again++;
    e->again++;
}

static void handle(struct optcc_engine *e, struct wire *w, int event, const struct optcc_frame *frame);
enum { SILENT, MOVED, ANSWERED, OVERDUE, LOST, FENCED, KNOCK, WELCOME, RETRY, EVENTS };

static void acknowledge(struct optcc_engine *e, struct peer *p, uint64_t seq)
{
    struct out *o = entry(p, seq);
    if (o->is == FREE || o->seq != seq)
        return;
    struct wire *w = &e->wire[o->wire];
    if (o->is == AGAIN) {
        p->again--;
        e->again--;
    } else {
        grounded(e, p, w, o);
        w->acked += o->length;
        w->moved_ns = e->now_ns;
        w->in_vain = 0;
        if (o->tries == 1) {
            if (o->order >= w->best)
                w->best = o->order + 1;
            double *const pace = &p->ns_per_byte[w->ends.far_nic];
            *pace += ((double)(e->now_ns - o->sent_ns) / (double)o->ahead - *pace) / SMOOTH;
        }
        handle(e, w, MOVED, NULL);
    }
    o->is = FREE;
    p->to_ack--;
    p->answered_ns = e->now_ns;
    if (e->source->acknowledged && e->program)
        e->source->acknowledged(e->program, o->send);
}

/* Whether the acknowledgements of a frame can be true: nothing that was not sent. */
static int may_be_landed(const struct peer *p, const struct optcc_frame *f)
{
    if (f->floor > p->next)
        return 0;
    for (uint32_t word = 0; word < OPTCC_SPAN / 64; word++)
        for (uint64_t bits = f->landed[word]; bits; bits &= bits - 1) {
            const uint64_t place = 64 * word + (uint64_t)__builtin_ctzll(bits);
            if (f->floor + (place - f->floor) % OPTCC_SPAN >= p->next)
                return 0;
        }
    return 1;
}

static void take_landed(struct optcc_engine *e, struct peer *p, const struct optcc_frame *f)
{
    for (uint64_t seq = p->low; seq < f->floor; seq++)
        acknowledge(e, p, seq);
    for (uint32_t word = 0; word < OPTCC_SPAN / 64; word++)
        for (uint64_t bits = f->landed[word]; bits; bits &= bits - 1) {
            const uint64_t place = 64 * word + (uint64_t)__builtin_ctzll(bits);
            acknowledge(e, p, f->floor + (place - f->floor) % OPTCC_SPAN);
        }
    while (p->low < p->next && entry(p, p->low)->is == FREE)
        p->low++;
    for (uint64_t seq = p->low; seq < p->next; seq++) { /* overtaken by several later ones of its wire */
        struct out *o = entry(p, seq);
        if (o->is == FLYING && e->wire[o->wire].best > o->order + SLACK)
            to_send_again(e, p, o);
    }
}

/* ---- spreading: which wire takes which segment ------------------------------------------------------------------- */

static struct wire *wire_for(struct optcc_engine *e, struct peer *p, uint32_t nic, uint64_t lanes, uint32_t length)
{
    struct wire *best = NULL;
    double soonest = 0;
    /* The plan's lanes, as long as all of them live; then all that there are. */
    const int all_live = lanes && (p->up & lanes) == lanes;
    for (uint64_t may = p->up & p->with_nic[nic] & (all_live ? lanes : ~UINT64_C(0)); may; may &= may - 1) {
        struct wire *w = &e->wire[p->wire[__builtin_ctzll(may)]];
        const uint32_t far = w->ends.far_nic;
        const uint64_t heads = p->heading_for[far]; /* a window is the far NIC's: by more wires it takes no more */
        if (w->refused == e->fills || (heads && heads + length > e->config.window_bytes))
            continue;
        /* The one by which it would be there first. */
        const double soon = (double)(heads + length) * p->ns_per_byte[far];
        if (!best || soon < soonest) {
            best = w;
            soonest = soon;
        }
    }
    return best;
}

static int send(struct optcc_engine *e, struct peer *p, struct wire *w, struct out *o, const struct optcc_piece *piece)
{
    struct optcc_frame head = head_for(e, w, OPTCC_DATA);
    head.seq = o->seq;
    head.operation = p->begun;
    head.row = piece->row;
    head.word = piece->word;
    head.offset = piece->offset;
    head.tag = piece->tag;
    head.length = piece->length;
    if (e->wires->post(e->self, w->index, &head, piece->bytes, piece->ready_ns) != OPTCC_OK) {
        w->refused = e->fills;
        e->refused = 1;
        return 0;
    }
    e->happened++;
    if (!w->flying && !w->in_hand)
        w->moved_ns = e->now_ns;
    w->flying += piece->length;
    e->flying[w->ends.nic] += piece->length;
    w->sent += piece->length;
    p->heading_for[w->ends.far_nic] += piece->length;
    o->sent_ns = e->now_ns;
    o->ahead = p->heading_for[w->ends.far_nic];
    w->in_hand++;
    e->in_hand++;
    if (e->source->given)
        e->source->given(e->program, piece->send, w->ends.lane);
    owes_nothing(w);
    o->wire = w->index;
    o->order = w->order++;
    o->is = FLYING;
    if (o->tries < 2) /* once, or more often */
        o->tries++;
    e->counters.sent_bytes += piece->length;
    return 1;
}

static int pull_again(struct optcc_engine *e, struct peer *p, uint32_t nic)
{
    for (uint64_t seq = p->low; seq < p->next; seq++) {
        struct out *o = entry(p, seq);
        if (o->is != AGAIN)
            continue;
        struct optcc_piece piece;
        e->source->piece(e->program, o->send, o->segment, &piece);
        struct wire *w = wire_for(e, p, nic, piece.lanes, piece.length);
        while (w && !send(e, p, w, o, &piece))
            w = wire_for(e, p, nic, piece.lanes, piece.length);
        if (!w)
            continue;
        p->again--;
        e->again--;
        e->counters.resent_segments++;
        return 1;
    }
    return 0;
}

/* The NIC takes one segment, if there is one for it. */
static int pull(struct optcc_engine *e, uint32_t nic)
{
    for (uint32_t i = 0; e->again && i < e->config.ranks; i++)
        if (e->peer[i].again && pull_again(e, &e->peer[i], nic))
            return 1;
    const struct optcc_source *const source = e->source;
    for (uint32_t s = source->ready(e->program, OPTCC_NONE); s != OPTCC_NONE; s = source->ready(e->program, s)) {
        struct optcc_piece piece;
        source->next(e->program, s, &piece);
        struct peer *p = &e->peer[piece.peer];
        if (p->far_begun < p->begun || p->next - p->low >= OPTCC_SPAN)
            continue;
        struct wire *w = wire_for(e, p, nic, piece.lanes, piece.length);
        struct out *o = entry(p, p->next);
        *o = (struct out){.seq = p->next, .send = s, .segment = piece.segment, .length = piece.length};
        while (w && !send(e, p, w, o, &piece))
            w = wire_for(e, p, nic, piece.lanes, piece.length);
        if (!w)
            continue;
        if (p->low == p->next)
            p->answered_ns = e->now_ns;
        p->next++;
        source->taken(e->program, s);
        return 1;
    }
    return 0;
}

static int is_late(const struct optcc_engine *e) { return e->source->late && e->source->late(e->program); }

/* The NIC by which least is under way takes a segment, again and again, and those that are alike take turns: so none gets
 * all that is urgent, and a note does not cost one its turn. Who found nothing in a program is asked again only when
 * something has happened; messages, and rows that are folded late, become ready otherwise. */
static void fill(struct optcc_engine *e)
{
    const int told = e->source == &OPTCC_ROWS_SOURCE && !is_late(e);
    const uint32_t nics = e->config.nics;
    uint64_t over = 0, refused = 0; /* NICs that take no more now, and those of them that may any time; a bit each */
    for (uint32_t nic = 0; told && nic < nics; nic++)
        over |= (uint64_t)(e->barren[nic] == e->happened) << nic;
    e->fills++;
    for (;;) {
        uint32_t best = nics;
        for (uint32_t i = 0; i < nics; i++) {
            const uint32_t nic = (e->turn + i) % nics;
            if (!(over >> nic & 1) && (best == nics || e->flying[nic] < e->flying[best]))
                best = nic;
        }
        if (best == nics)
            break;
        e->refused = 0;
        if (!e->wires->room(e->self, best))
            refused |= UINT64_C(1) << best, over |= UINT64_C(1) << best;
        else if (pull(e, best))
            e->turn = best + 1;
        else
            over |= UINT64_C(1) << best;
        refused |= (uint64_t)e->refused << best;
    }
    for (uint32_t nic = 0; nic < nics; nic++)
        if (!(refused >> nic & 1))
            e->barren[nic] = e->happened;
}

/* ---- a wire's end: what happens in which state ------------------------------------------------------------------- */

typedef uint32_t action(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame); /* the next state */

static void go(struct optcc_engine *e, struct wire *w, uint32_t state)
{
    struct peer *p = &e->peer[w->ends.peer];
    const uint64_t lane = UINT64_C(1) << w->ends.lane;
    e->unwell += (w->state == OPTCC_UP) - (state == OPTCC_UP);
    w->state = state;
    e->happened++;
    int leads = 0;
    for (uint32_t i = 0; i < p->lanes; i++)
        leads |= e->wire[p->wire[i]].state == OPTCC_UP || e->wire[p->wire[i]].state == OPTCC_DOUBTED;
    if (leads)
        p->alone_ns = 0;
    else if (!p->alone_ns) {
        p->alone_ns = e->now_ns;
        e->look_ns = e->now_ns;
        note(e, w, OPTCC_NOTE_ALONE, 0);
    }
    if (p->up == lane && state != OPTCC_UP)
        p->answered_ns = e->now_ns; /* nothing can be sent from now on: how long will that last? */
    p->up = state == OPTCC_UP ? p->up | lane : p->up & ~lane;
}

static void ask_all(struct optcc_engine *e, struct peer *p) { tell_by_all(e, p, OPTCC_PROBE, p->doubt); }

static uint32_t doubt(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    (void)frame;
    struct peer *p = &e->peer[w->ends.peer];
    w->doubt = ++p->doubt;
    w->elsewhere_ns = 0;
    e->counters.doubts++;
    go(e, w, OPTCC_DOUBTED);
    ask_all(e, p);
    return OPTCC_DOUBTED;
}

static uint32_t trust(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    (void)e, (void)w, (void)frame;
    return OPTCC_UP;
}

static uint64_t lose_segments(struct optcc_engine *e, const struct wire *w) /* bytes */
{
    struct peer *p = &e->peer[w->ends.peer];
    uint64_t bytes = 0;
    for (uint64_t seq = p->low; seq < p->next; seq++) {
        struct out *o = entry(p, seq);
        if (o->is == FLYING && o->wire == w->index) {
            to_send_again(e, p, o);
            bytes += o->length;
        }
    }
    return bytes;
}

static uint32_t leave(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    (void)frame;
    e->counters.left++;
    w->cause = e->cause;
    note(e, w, OPTCC_NOTE_LOST, 0);
    w->moving = lose_segments(e, w);
    if (e->program && w->order && !w->moves) {
        w->moves = 1;
        e->movers++;
    }
    go(e, w, OPTCC_FENCING);
    w->called = w->knocked = 0;
    owes_nothing(w);
    w->pause_ns = e->config.knock_ns;
    e->wires->fence(e->self, w->index);
    notice(e, &e->peer[w->ends.peer], w);
    for (uint32_t i = 0; i < e->config.wires; i++) { /* one of its two NICs is at fault: whom else does that concern? */
        struct wire *other = &e->wire[i];
        const int here = other->ends.nic == w->ends.nic;
        const int there = other->ends.peer == w->ends.peer && other->ends.far_nic == w->ends.far_nic;
        if (other->state == OPTCC_UP && (here || there))
            handle(e, other, SILENT, NULL);
    }
    return OPTCC_FENCING;
}

/* It lives. What it has not brought over in all this time is lost. It may also be that answers come through and payloads
 * do not. */
static uint32_t answered(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    if (e->now_ns - w->moved_ns >= e->config.suspect_ns && lose_segments(e, w) && ++w->in_vain > IN_VAIN) {
        e->cause = OPTCC_SILENCE;
        return leave(e, w, frame);
    }
    w->moved_ns = e->now_ns;
    return OPTCC_UP;
}

static void live(struct optcc_engine *e, struct wire *w, uint32_t epoch)
{
    w->epoch = epoch;
    w->called = w->knocked = 0;
    w->order = w->best = w->in_vain = 0;
    w->moved_ns = e->peer[w->ends.peer].answered_ns = e->now_ns;
    e->counters.returned++;
    note(e, w, OPTCC_NOTE_ANEW, 0);
    go(e, w, OPTCC_UP);
}

static int welcome(struct optcc_engine *e, struct wire *w, uint32_t epoch)
{
    if (e->wires->renew(e->self, w->index) != OPTCC_OK)
        return 0;
    live(e, w, epoch);
    tell(e, w, OPTCC_WELCOME, 0);
    return 1;
}

/* The peer asks for a life: for this one, if the welcome was lost; for the next one, if it has left the wire. */
static uint32_t called(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    if (frame->epoch == w->epoch) {
        tell(e, w, OPTCC_WELCOME, 0);
        return w->state;
    }
    e->cause = OPTCC_TOLD;
    leave(e, w, frame);
    w->called = frame->epoch;
    return w->state;
}

static uint32_t called_while_fencing(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    (void)e;
    if (frame->epoch > w->epoch && frame->epoch > w->called)
        w->called = frame->epoch;
    return OPTCC_FENCING;
}

static uint32_t called_while_down(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    if (frame->epoch > w->epoch)
        welcome(e, w, frame->epoch);
    return w->state;
}

static uint32_t fenced(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    (void)frame;
    given_back(e, w, w->in_hand);
    note(e, w, OPTCC_NOTE_FENCED, 0);
    if (w->called && welcome(e, w, w->called))
        return OPTCC_UP;
    w->knock_ns = e->now_ns + w->pause_ns;
    return OPTCC_DOWN;
}

static uint32_t knock(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    (void)frame;
    if (e->wires->renew(e->self, w->index) == OPTCC_OK) {
        w->knocked = w->epoch + 1;
        tell(e, w, OPTCC_KNOCK, 0);
    }
    w->knock_ns = e->now_ns + w->pause_ns;
    if (w->pause_ns < MOST_KNOCKS * e->config.knock_ns)
        w->pause_ns *= 2;
    return OPTCC_DOWN;
}

static uint32_t welcomed(struct optcc_engine *e, struct wire *w, const struct optcc_frame *frame)
{
    live(e, w, frame->epoch);
    return OPTCC_UP;
}

static action *const RULES[OPTCC_WIRE_STATES][EVENTS] = { /* what is not here changes nothing */
    [OPTCC_UP] = {[SILENT] = doubt, [LOST] = leave, [KNOCK] = called},
    [OPTCC_DOUBTED] = {[MOVED] = trust, [ANSWERED] = answered, [OVERDUE] = leave, [LOST] = leave, [KNOCK] = called},
    [OPTCC_FENCING] = {[FENCED] = fenced, [KNOCK] = called_while_fencing},
    [OPTCC_DOWN] = {[KNOCK] = called_while_down, [WELCOME] = welcomed, [RETRY] = knock},
};

static void handle(struct optcc_engine *e, struct wire *w, int event, const struct optcc_frame *frame)
{
    action *const does = RULES[w->state][event];
    if (does)
        go(e, w, does(e, w, frame));
}

/* ---- hearing ----------------------------------------------------------------------------------------------------- */

/* No payload is to be read any more, here or by a NIC. */
static void let_go(struct optcc_engine *e)
{
    e->cause = OPTCC_TOLD;
    if (e->program && e->source->stop)
        e->source->stop(e->program);
    for (uint32_t i = 0; i < e->config.wires; i++)
        if (e->wire[i].in_hand)
            handle(e, &e->wire[i], LOST, NULL);
}

static int over(const struct optcc_engine *e)
{
    return e->lost_rank != UINT32_MAX || e->odd_rank != UINT32_MAX || e->abandoned;
}

static void compare_calls(struct optcc_engine *e, const struct peer *p)
{
    if (p->signed_ && p->signed_ == p->begun && p->far_sign != p->sign && !over(e)) {
        e->odd_rank = p->rank;
        let_go(e);
    }
}

static void give_up(struct optcc_engine *e, uint32_t rank)
{
    if (e->lost_rank != UINT32_MAX)
        return;
    e->lost_rank = rank;
    for (uint32_t i = 0; i < e->config.ranks; i++)
        tell_by_all(e, &e->peer[i], OPTCC_GIVEUP, rank);
    let_go(e);
}

static void release(struct optcc_engine *e, uint32_t wire, uint64_t held)
{
    if (held && e->wires->release(e->self, wire, held) != OPTCC_OK)
        give_up(e, e->wire[wire].ends.peer);
}

/* A segment is taken in, and its payload is read no more. */
static void landed(struct optcc_engine *e, struct peer *p, uint64_t seq, uint32_t answer, uint64_t bytes)
{
    struct wire *w = &e->wire[answer];
    const uint64_t place = seq % OPTCC_SPAN;
    p->landed[place / 64] |= UINT64_C(1) << (place % 64);
    for (uint64_t at = p->floor % OPTCC_SPAN; p->landed[at / 64] >> (at % 64) & 1; at = p->floor % OPTCC_SPAN) {
        p->landed[at / 64] &= ~(UINT64_C(1) << (at % 64));
        p->floor++;
    }
    p->to_come--;
    e->happened++;
    e->counters.landed_segments++;
    if (w->state == OPTCC_UP || w->state == OPTCC_DOUBTED)
        owe(e, w, 1, bytes);
    else
        hello(e, p);
}

/* After how long what is being taken in is worth a look; UINT64_MAX: there is nothing. */
static uint64_t due_ns(const struct optcc_engine *e)
{
    return e->program && e->source->due_ns ? e->source->due_ns(e->program) : UINT64_MAX;
}

/* Whether the payload is read on after this. */
static int take_segment(struct optcc_engine *e, struct peer *p, struct wire *w, const struct optcc_frame *f,
                        const void *payload, const struct optcc_event *event, uint64_t at_ns)
{
    const uint64_t held = event->held;
    const uint64_t place = f->seq % OPTCC_SPAN, mark = UINT64_C(1) << (place % 64);
    const int near = f->seq >= p->floor && f->seq - p->floor < OPTCC_SPAN;
    if (f->seq < p->floor || (near && (p->landed[place / 64] | p->taking[place / 64]) & mark)) {
        e->counters.duplicates++;
        if (near && p->taking[place / 64] & mark)
            p->coming[place].answer = w->index;
        else
            owe(e, w, MOST_OWED, 0);
        return 0;
    }
    if (!near || !e->program || f->operation != p->begun || !p->to_come || (!held && is_late(e))) {
        e->counters.refused++;
        return 0;
    }
    if (event->far) {
        void *const to = e->source->wants ? e->source->wants(e->program, p->rank, f) : NULL;
        payload = e->wires->fetch(e->self, to);
        if (!payload)
            return 0; /* it comes again */
    }
    const uint64_t name = (uint64_t)p->rank << SEQ_BITS | f->seq;
    switch (e->source->land(e->program, p->rank, f, payload, name, at_ns)) {
    case OPTCC_OK:
        p->quiet = 0;
        landed(e, p, f->seq, w->index, f->length);
        return 0;
    case OPTCC_AGAIN:
        p->quiet = 0;
        p->taking[place / 64] |= mark;
        p->coming[place] = (struct coming){.held = held, .wire = w->index, .answer = w->index};
        return 1;
    default:
        e->counters.refused++;
        return 0;
    }
}

/* What the folder has done. */
static void take_in(struct optcc_engine *e)
{
    uint64_t name;
    int result;
    if (!e->source->landed)
        return;
    while ((result = e->source->landed(e->program, &name)) == OPTCC_OK) {
        struct peer *p = &e->peer[name >> SEQ_BITS];
        const uint64_t seq = name & ((UINT64_C(1) << SEQ_BITS) - 1), place = seq % OPTCC_SPAN;
        p->taking[place / 64] &= ~(UINT64_C(1) << (place % 64));
        release(e, p->coming[place].wire, p->coming[place].held);
        landed(e, p, seq, p->coming[place].answer, e->config.window_bytes);
    }
    if (result == OPTCC_LOST)
        give_up(e, e->config.rank);
}

/* What is still being taken in never will be. */
static void drop_coming(struct optcc_engine *e)
{
    for (uint32_t i = 0; i < e->config.ranks; i++)
        for (uint32_t place = 0; place < OPTCC_SPAN; place++)
            if (e->peer[i].taking[place / 64] >> (place % 64) & 1) {
                const struct coming c = e->peer[i].coming[place];
                e->peer[i].taking[place / 64] &= ~(UINT64_C(1) << (place % 64));
                release(e, c.wire, c.held);
            }
}

static void take_alive(struct optcc_engine *e, struct peer *p, struct wire *w, const struct optcc_frame *f)
{
    p->answered_ns = e->now_ns;
    for (uint32_t lane = 0; lane < p->lanes; lane++) {
        struct wire *other = &e->wire[p->wire[lane]];
        if (other != w && other->state == OPTCC_DOUBTED && other->doubt <= f->word && !other->elsewhere_ns)
            other->elsewhere_ns = e->now_ns;
    }
    if (w->doubt <= f->word)
        handle(e, w, ANSWERED, f);
}

/* Whether a frame is of the form that this wire's peer would give it. */
static int well_formed(const struct optcc_engine *e, const struct wire *w, const struct optcc_frame *f, uint64_t length)
{
    return f->magic == OPTCC_MAGIC && f->version == OPTCC_VERSION && f->kind >= OPTCC_DATA && f->kind < OPTCC_KINDS &&
           f->from == w->ends.peer && f->to == e->config.rank && f->job == e->config.job &&
           f->length == length - sizeof *f && (f->kind == OPTCC_DATA) == (f->length > 0) &&
           f->length <= e->config.segment_bytes && f->lane < e->peer[w->ends.peer].lanes &&
           (f->kind == OPTCC_NOTICE || f->lane == w->ends.lane);
}

/* Whether the payload is read on after this. */
static int hear(struct optcc_engine *e, const struct optcc_event *event)
{
    struct optcc_frame f;
    struct wire *w = &e->wire[event->wire];
    struct peer *p = &e->peer[w->ends.peer];
    if (event->length < sizeof f) {
        e->counters.refused++;
        return 0;
    }
    memcpy(&f, event->bytes, sizeof f);
    /* Two ends are never more than one life apart, and a knock is for the one after. */
    if (!well_formed(e, w, &f, event->length) || f.epoch > w->epoch + 2 || f.begun > p->begun + 1 || !may_be_landed(p, &f) ||
        (f.kind == OPTCC_ALIVE && f.word > p->doubt)) {
        e->counters.refused++;
        return 0;
    }
    if (f.kind == OPTCC_KNOCK) {
        if (f.epoch >= w->epoch)
            handle(e, w, KNOCK, &f);
        return 0;
    }
    if (w->state == OPTCC_DOWN && w->knocked && f.epoch == w->knocked)
        handle(e, w, WELCOME, &f);
    if (f.epoch != w->epoch || w->state == OPTCC_FENCING || w->state == OPTCC_DOWN) {
        e->counters.ghosts++;
        return 0;
    }
    p->heard_ns = e->now_ns;
    if (f.begun > p->far_begun)
        p->far_begun = f.begun;
    take_landed(e, p, &f);
    if (e->lost_rank != UINT32_MAX && f.kind != OPTCC_GIVEUP) {
        tell(e, w, OPTCC_GIVEUP, e->lost_rank);
        return 0;
    }
    switch (f.kind) {
    case OPTCC_DATA:
        return take_segment(e, p, w, &f, event->payload ? event->payload : (const unsigned char *)event->bytes + sizeof f,
                            event, event->at_ns ? event->at_ns : e->now_ns);
    case OPTCC_PROBE:
        tell(e, w, OPTCC_ALIVE, f.word);
        break;
    case OPTCC_ALIVE:
        take_alive(e, p, w, &f);
        break;
    case OPTCC_NOTICE:
        e->cause = OPTCC_TOLD;
        if (e->wire[p->wire[f.lane]].epoch == f.word)
            handle(e, &e->wire[p->wire[f.lane]], LOST, &f);
        break;
    case OPTCC_HELLO:
        if (f.begun >= p->begun) {
            p->far_sign = f.seq;
            p->signed_ = f.begun;
            compare_calls(e, p);
        }
        break;
    case OPTCC_GIVEUP:
        give_up(e, f.word < e->config.ranks ? f.word : p->rank);
        break;
    default: /* WELCOME has said it all */
        break;
    }
    return 0;
}

void optcc_hear(struct optcc_engine *e, uint32_t wire, const void *bytes, uint64_t length)
{
    const struct optcc_event event = {.news = OPTCC_FRAME, .wire = wire, .bytes = bytes, .length = length};
    hear(e, &event);
}

/* ---- looking: what time alone tells ------------------------------------------------------------------------------ */

static uint64_t since(const struct optcc_engine *e, uint64_t then_ns) { return e->now_ns - then_ns; }

static void look_at_wire(struct optcc_engine *e, struct wire *w)
{
    if (w->state == OPTCC_UP && (w->flying || w->in_hand) && since(e, w->moved_ns) >= e->config.suspect_ns)
        handle(e, w, SILENT, NULL);
    else if (w->state == OPTCC_DOUBTED && since(e, e->peer[w->ends.peer].heard_ns) >= e->config.suspect_ns)
        w->elsewhere_ns = 0; /* it has stopped meanwhile: that others were quicker says nothing */
    else if (w->state == OPTCC_DOUBTED && w->elsewhere_ns && since(e, w->elsewhere_ns) >= e->config.grace_ns) {
        e->cause = OPTCC_SILENCE;
        handle(e, w, OVERDUE, NULL);
    }
    else if (w->state == OPTCC_DOWN && e->now_ns >= w->knock_ns)
        handle(e, w, RETRY, NULL);
}

static void look_at_peer(struct optcc_engine *e, struct peer *p)
{
    int doubted = 0;
    for (uint32_t lane = 0; lane < p->lanes; lane++)
        doubted |= e->wire[p->wire[lane]].state == OPTCC_DOUBTED;
    const int unacked = p->next > p->low || (p->takes_part && p->to_ack && !p->up), unbegun = p->takes_part && p->far_begun < p->begun;
    const int owes = p->takes_part && (p->to_come || unbegun);
    if (doubted || (owes && since(e, p->heard_ns) >= e->config.suspect_ns))
        ask_all(e, p);
    else if (p->takes_part && p->to_come && p->quiet)
        hello(e, p); /* the first one may have been lost */
    if ((p->alone_ns && (unacked || owes || (p->takes_part && p->to_ack)) &&
         since(e, p->alone_ns) >= e->config.alone_ns) ||
        (unacked && since(e, p->answered_ns) >= e->config.return_ns) ||
        (owes && since(e, p->heard_ns) >= e->config.return_ns))
        give_up(e, p->rank);
}

static void later(const struct optcc_engine *e, uint64_t *then_ns, uint64_t by_ns)
{
    *then_ns = since(e, *then_ns) > by_ns ? *then_ns + by_ns : e->now_ns;
}

/* This rank itself was away: for that time it knows nothing about others. */
static void forgive(struct optcc_engine *e, uint64_t away_ns)
{
    for (uint32_t i = 0; i < e->config.wires; i++) {
        later(e, &e->wire[i].moved_ns, away_ns);
        if (e->wire[i].elsewhere_ns)
            later(e, &e->wire[i].elsewhere_ns, away_ns);
    }
    for (uint32_t i = 0; i < e->config.ranks; i++) {
        later(e, &e->peer[i].answered_ns, away_ns);
        later(e, &e->peer[i].heard_ns, away_ns);
    }
}

static void look(struct optcc_engine *e)
{
    if (since(e, e->look_ns) > e->config.suspect_ns / LOOKS)
        forgive(e, since(e, e->look_ns));
    for (uint32_t i = 0; i < e->config.wires; i++)
        look_at_wire(e, &e->wire[i]);
    for (uint32_t i = 0; i < e->config.ranks && !over(e); i++) /* who has ended accuses nobody */
        if (e->peer[i].lanes)
            look_at_peer(e, &e->peer[i]);
    e->look_ns = e->now_ns + e->config.suspect_ns / LOOKS;
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

int optcc_open(const struct optcc_config *config, const struct optcc_wire *wires, const struct optcc_wires *contract,
               void *self, struct optcc_engine **engine)
{
    *engine = NULL;
    if (config->ranks > OPTCC_MAX_RANKS || config->rank >= config->ranks || config->nics > OPTCC_MAX_NICS ||
        config->segment_bytes == 0 || config->segment_bytes % 64 || config->segment_bytes > OPTCC_MAX_SEGMENT ||
        config->suspect_ns < LOOKS || !config->knock_ns)
        return OPTCC_BAD;
    struct optcc_engine *e = calloc(1, sizeof *e);
    if (!e)
        return OPTCC_MEMORY;
    e->config = *config;
    if (!config->alone_ns)
        e->config.alone_ns = config->return_ns;
    e->wires = contract;
    e->self = self;
    e->lost_rank = e->odd_rank = UINT32_MAX;
    e->finished = 1;
    e->wire = calloc(config->wires ? config->wires : 1, sizeof *e->wire);
    e->peer = calloc(config->ranks, sizeof *e->peer);
    int result = e->wire && e->peer ? OPTCC_OK : OPTCC_MEMORY;
    for (uint32_t i = 0; result == OPTCC_OK && i < config->ranks; i++)
        e->peer[i].rank = i;
    for (uint32_t i = 0; result == OPTCC_OK && i < config->wires; i++) {
        const struct optcc_wire *w = &wires[i];
        if (w->peer >= config->ranks || w->peer == config->rank || w->nic >= config->nics ||
            w->far_nic >= OPTCC_MAX_NICS || w->lane >= OPTCC_MAX_LANES || w->lane != e->peer[w->peer].lanes) {
            result = OPTCC_BAD;
            break;
        }
        struct peer *p = &e->peer[w->peer];
        p->wire[p->lanes++] = i;
        p->with_nic[w->nic] |= UINT64_C(1) << w->lane;
        p->up |= UINT64_C(1) << w->lane;
        e->wire[i] = (struct wire){.ends = *w, .index = i, .state = OPTCC_UP, .epoch = 1};
    }
    if (result == OPTCC_OK)
        *engine = e;
    else
        optcc_close(e);
    return result;
}

void optcc_close(struct optcc_engine *e)
{
    if (!e)
        return;
    if (e->peer)
        drop_coming(e);
    free(e->wire);
    free(e->peer);
    free(e);
}

/* What begins next must be of the engine's segments and peers: OK, or what `optcc_begin` says. */
static int may_begin(const struct optcc_engine *e, const struct optcc_source *source, const void *program)
{
    uint32_t rank;
    uint64_t to, from;
    if (e->program)
        return OPTCC_AGAIN;
    if (over(e))
        return OPTCC_LOST;
    if (source->segment(program) != e->config.segment_bytes ||
        (source->late && source->late(program) && !e->wires->release))
        return OPTCC_BAD;
    for (uint32_t i = 0; source->peer(program, i, &rank, &to, &from); i++)
        if (rank >= e->config.ranks || !e->peer[rank].lanes)
            return OPTCC_BAD;
    return OPTCC_OK;
}

static void begin(struct optcc_engine *e, const struct optcc_source *source, void *program, uint64_t sign)
{
    uint32_t rank;
    uint64_t to, from;
    e->now_ns = e->wires->now(e->self);
    e->source = source;
    e->program = program;
    e->happened++;
    e->finished = 0;
    for (uint32_t i = 0; i < e->config.ranks; i++)
        e->peer[i].takes_part = 0;
    for (uint32_t i = 0; source->peer(program, i, &rank, &to, &from); i++) {
        struct peer *p = &e->peer[rank];
        p->begun++;
        p->to_ack = to;
        p->to_come = from;
        p->takes_part = p->quiet = 1;
        p->sign = sign;
        p->answered_ns = p->heard_ns = e->now_ns;
        if (p->alone_ns)
            p->alone_ns = e->now_ns;
        hello(e, p);
        compare_calls(e, p);
    }
    if (!e->unwell) /* else short calls, one after another, would put off for ever that lost wires are tried again */
        e->look_ns = e->now_ns + e->config.suspect_ns / LOOKS;
}

int optcc_begin(struct optcc_engine *e, struct optcc_program *program, const struct optcc_call *call)
{
    int result = may_begin(e, &OPTCC_ROWS_SOURCE, program);
    if (result == OPTCC_OK)
        result = optcc_program_begin(program, call, e->wires->now(e->self));
    if (result == OPTCC_OK)
        begin(e, &OPTCC_ROWS_SOURCE, program, call->sign);
    return result;
}

int optcc_begin_messages(struct optcc_engine *e, struct optcc_messages *messages)
{
    const int result = may_begin(e, &OPTCC_MESSAGES_SOURCE, messages);
    if (result == OPTCC_OK)
        begin(e, &OPTCC_MESSAGES_SOURCE, messages, 0);
    return result;
}

static void finish_if_done(struct optcc_engine *e)
{
    if (!e->program || due_ns(e) != UINT64_MAX)
        return;
    if (over(e))
        drop_coming(e);
    if (e->in_hand)
        return;
    if (!over(e)) {
        if (!e->source->whole(e->program))
            return;
        for (uint32_t i = 0; i < e->config.ranks; i++)
            if (e->peer[i].takes_part && (e->peer[i].to_ack || e->peer[i].to_come))
                return;
        e->finished = 1;
    }
    e->program = NULL;
}

/* Returns when it has to be called again. */
static uint64_t say_what_has_landed(struct optcc_engine *e)
{
    uint64_t again_ns = UINT64_MAX;
    e->owing = 0;
    for (uint32_t i = 0; i < e->config.wires; i++) {
        struct wire *w = &e->wire[i];
        const uint64_t until_ns = owed_until(e, w);
        if (!w->owed)
            continue;
        if (e->now_ns < until_ns)
            again_ns = least(again_ns, until_ns);
        else if (w->state == OPTCC_UP || w->state == OPTCC_DOUBTED)
            tell(e, w, OPTCC_HELLO, 0);
        e->owing |= w->owed > 0; /* next time, then */
    }
    return again_ns;
}

uint64_t optcc_progress(struct optcc_engine *e)
{
    struct optcc_event event;
    int taken = 0;
    for (; taken < NEWS; taken++) {
        e->wires->poll(e->self, &event);
        if (taken % TIMED == 0)
            e->now_ns = e->wires->now(e->self);
        if (event.news == OPTCC_NOTHING)
            break;
        if (event.wire >= e->config.wires)
            continue;
        struct wire *w = &e->wire[event.wire];
        switch (event.news) {
        case OPTCC_FRAME:
            if (!hear(e, &event))
                release(e, event.wire, event.held);
            break;
        case OPTCC_LEFT:
            if (w->in_hand) {
                given_back(e, w, 1);
                w->moved_ns = e->now_ns;
            }
            break;
        case OPTCC_DIED:
            e->cause = event.cause;
            handle(e, w, LOST, NULL);
            break;
        case OPTCC_FENCED:
            handle(e, w, FENCED, NULL);
            break;
        case OPTCC_BACK:
            if (w->state == OPTCC_DOWN) {
                w->pause_ns = e->config.knock_ns;
                handle(e, w, RETRY, NULL);
            }
            break;
        default:
            break;
        }
    }
    e->happened += (uint64_t)taken;
    if (e->program)
        take_in(e);
    if (e->now_ns >= e->look_ns && (e->program || e->unwell))
        look(e);
    if (e->program && !over(e))
        fill(e);
    if (e->movers)
        note_moved(e);
    const uint64_t owed_ns = e->owing ? say_what_has_landed(e) : UINT64_MAX;
    finish_if_done(e);
    if (taken == NEWS)
        return e->now_ns;
    const uint64_t due = due_ns(e), look_ns = e->program || e->unwell ? e->look_ns : UINT64_MAX;
    return least(least(look_ns, owed_ns), due < UINT64_MAX ? e->now_ns + due : UINT64_MAX);
}

int optcc_test(const struct optcc_engine *e, uint32_t *lost_rank)
{
    if (lost_rank)
        *lost_rank = e->odd_rank != UINT32_MAX ? e->odd_rank : e->lost_rank;
    if (e->program)
        return OPTCC_AGAIN;
    return e->finished ? OPTCC_OK : e->odd_rank != UINT32_MAX ? OPTCC_DIFFERS : OPTCC_LOST;
}

/* Nothing happens: sleep, or let others run. */
static void rest(struct optcc_engine *e, uint64_t ns)
{
    if (e->wires->sleep && ns)
        e->wires->sleep(e->self, ns);
    else
        sched_yield();
}

uint64_t optcc_now(void *self)
{
    struct timespec t;
    (void)self;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* `optcc_wait`, but for `notes`. */
static int wait_until(struct optcc_engine *e, const struct optcc_until *until)
{
    const uint64_t begun_ns = e->wires->now(e->self);
    uint64_t moved_ns = begun_ns, barren = 0;
    for (uint32_t round = 1; e->program; round++) {
        const uint64_t happened = e->happened, wake_ns = optcc_progress(e);
        uint32_t done, rows;
        if (!e->program)
            break;
        if (until->rows != UINT64_MAX && (optcc_done(e, &done, &rows), done >= until->rows))
            return OPTCC_AGAIN;
        const int still = e->happened == happened;
        barren = still ? barren + 1 : 0;
        if (!still)
            moved_ns = e->now_ns;
        const int idle = still && since(e, moved_ns) >= e->config.spin_ns;
        if (round % PATIENCE && !idle) {
            if (e->config.yields && barren >= e->config.yields)
                sched_yield();
            continue;
        }
        if (since(e, begun_ns) >= until->limit_ns)
            return OPTCC_LATE;
        struct pollfd watch = {.fd = until->watch, .events = POLLIN};
        if (until->watch >= 0 && poll(&watch, 1, 0) > 0)
            return OPTCC_AGAIN;
        if (still)
            rest(e, idle ? least(NAP_NS, least(until->limit_ns - since(e, begun_ns),
                                               wake_ns > e->now_ns ? wake_ns - e->now_ns : 0)) : 0);
    }
    return optcc_test(e, NULL);
}

int optcc_wait(struct optcc_engine *e, struct optcc_until *until)
{
    const int result = wait_until(e, until);
    until->notes = e->noted != e->told;
    return result;
}

static void copy_in(const struct optcc_copy *c, const void *source)
{
    const unsigned char *const from = c->pieces ? (const unsigned char *)source + c->at : c->own;
    for (uint64_t i = 0; from != c->own && i < c->pieces; i++)
        memcpy((unsigned char *)c->own + i * c->own_step, from + i * c->step, c->bytes);
}

static void copy_out(const struct optcc_copy *c, void *target)
{
    for (uint64_t i = 0; i < c->pieces; i++)
        memcpy((unsigned char *)target + c->at + i * c->step, (const unsigned char *)c->own + i * c->own_step, c->bytes);
}

int optcc_go_on(struct optcc_engine *e, struct optcc_collective *c, void *target, struct optcc_until *until)
{
    const int result = optcc_wait(e, until);
    if (result != OPTCC_OK)
        return result;
    c->took_ns = e->wires->now(e->self) - c->begun_ns;
    copy_out(&c->out, target);
    if (c->mean)
        optcc_divide(c->call.type, target, c->elements, c->mean);
    return OPTCC_OK;
}

int optcc_run(struct optcc_engine *e, struct optcc_collective *c, const void *source, void *target,
              struct optcc_until *until)
{
    c->begun_ns = e->wires->now(e->self);
    copy_in(&c->in, source);
    copy_in(&c->parts, source);
    if (c->from_source)
        c->call.parts = source;
    const int begun = optcc_begin(e, c->program, &c->call);
    if (begun == OPTCC_OK)
        return optcc_go_on(e, c, target, until);
    until->notes = e->noted != e->told;
    return begun == OPTCC_AGAIN ? OPTCC_BAD : begun;
}

int optcc_serve(struct optcc_engine *e, uint64_t ns)
{
    const uint64_t happened = e->happened, wake_ns = optcc_progress(e);
    const int still = e->happened == happened;
    if (ns && still && wake_ns > e->now_ns)
        rest(e, least(ns, wake_ns - e->now_ns));
    return !still;
}

int optcc_abandon(struct optcc_engine *e, uint64_t limit_ns)
{
    const uint64_t begun_ns = e->wires->now(e->self);
    e->abandoned = 1;
    let_go(e);
    while (e->program) {
        optcc_serve(e, NAP_NS);
        if (e->program && since(e, begun_ns) >= limit_ns)
            return OPTCC_LATE;
    }
    return OPTCC_OK;
}

void optcc_done(const struct optcc_engine *e, uint32_t *done, uint32_t *rows)
{
    *done = *rows = 0;
    if (e->program && e->source == &OPTCC_ROWS_SOURCE)
        optcc_program_done(e->program, done, rows);
}

void optcc_missing(const struct optcc_engine *e, struct optcc_missing *missing)
{
    *missing = (struct optcc_missing){.row = UINT32_MAX, .peer = UINT32_MAX};
    if (e->program && e->source == &OPTCC_ROWS_SOURCE)
        optcc_program_missing(e->program, missing);
}

static int owing(const struct peer *p)
{
    return p->takes_part && (p->to_come || p->to_ack || p->far_begun < p->begun);
}

uint32_t optcc_alone(const struct optcc_engine *e)
{
    for (uint32_t i = 0; e->program && i < e->config.ranks; i++)
        if (e->peer[i].alone_ns && owing(&e->peer[i]))
            return i;
    return UINT32_MAX;
}

uint32_t optcc_notes(struct optcc_engine *e, struct optcc_note *notes, uint32_t most)
{
    uint32_t count = 0, missed = 0;
    if (e->noted - e->told > NOTES) {
        missed = (uint32_t)(e->noted - e->told - NOTES);
        e->told = e->noted - NOTES;
    }
    for (; count < most && e->told < e->noted; missed = 0) {
        notes[count] = e->note[e->told++ % NOTES];
        notes[count++].missed = missed;
    }
    return count;
}

void optcc_count(const struct optcc_engine *e, struct optcc_counters *counters) { *counters = e->counters; }

int optcc_owes(const struct optcc_engine *e) { return e->owing; }

void optcc_narrow(struct optcc_engine *e, uint32_t window_bytes) { e->config.window_bytes = window_bytes; }

void optcc_leave(struct optcc_engine *e, uint32_t wire)
{
    if (wire < e->config.wires)
        handle(e, &e->wire[wire], LOST, NULL);
}

void optcc_doubt(struct optcc_engine *e, uint32_t nic)
{
    for (uint32_t i = 0; i < e->config.wires; i++)
        if (e->wire[i].ends.nic == nic)
            handle(e, &e->wire[i], SILENT, NULL);
}

int optcc_wire_look(const struct optcc_engine *e, uint32_t wire, struct optcc_wire_state *state)
{
    if (wire >= e->config.wires)
        return OPTCC_BAD;
    const struct wire *w = &e->wire[wire];
    *state = (struct optcc_wire_state){.state = w->state, .epoch = w->epoch, .acked_bytes = w->acked,
                                       .sent_bytes = w->sent,                                       .flying = w->flying};
    return OPTCC_OK;
}
