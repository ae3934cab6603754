/* Wires between ranks of one machine, through memory that they share, over NICs that are played.
 *
 * From each rank to each other one there is a ring for frames without payload, and a ring for each NIC of the reader for
 * those with one. A ring has one writer and one reader. A frame is copied into it when it is posted, so its payload has
 * left at once, and is read where it lies. A frame is never cut: what does not fit before the ring's end goes to its
 * beginning.
 *
 * NICs may have rates. One sends one payload at a time and takes one in at a time, in the order in which they have left
 * their senders: the writer says when a payload has left its own NIC, and the reader hands it over when its own has taken
 * it in, never before. By this a payload starts when it was ready and the NIC free, not when a process that shares its
 * core came to write it; so one late wake-up does not add to the next.
 *
 * NICs may ail, on purpose: a link goes down and comes back, frames disappear, a rate falls.
 *
 * A payload in memory that its rank has lent is not copied: the frame says where it is, and the reader reads it there.
 * It has left when the reader says so: it counts what it takes and what it returns. A fence is drained when both counts
 * are equal. What was lent before a fence and is taken after it is returned unread: the reader counts it as taken, then
 * looks for fences; the writer counts the fence, then looks at what is taken. So one of them sees the other. A reader
 * that stands still may keep a fence waiting, but only for as long as a peer may be silent: then the writer says that it
 * no longer vouches for what was lent, and a reader that finds this said after it has read has lost the collective.
 *
 * Memory that was not lent is read likewise, by the kernel, where it lets a rank read another's memory
 * (process_vm_readv): each tries once (`optcc_shm_peek`) and says so. What is read is copied, so a reader that finds that
 * it may have changed has lost a frame, and nothing else. Where the kernel refuses some memory later, the reader says
 * that it reads no more; what it could not read is missed, and goes again by the ring.
 *
 * What others write is checked before it is believed: a ring's counters, lengths, lanes. Who writes what cannot be loses
 * the wires of that ring.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <linux/futex.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE = 64,               /* bytes of a cache line: frames begin at one */
    SHORT = 4096,            /* bytes: to copy so much costs less than to return it */
    PEEK = 16384,            /* bytes: to copy less costs less than to have the kernel read it */
    ANYWHERE = OPTCC_MAX_REGIONS, /* in place of a region: memory that was not lent, its address is the offset */
    CONTROL_BYTES = 1 << 15, /* of a ring of frames without payload: 256 of them. More at once are lost, and said again */
};
static const uint64_t SKIP = UINT64_MAX;
static const uint64_t LEAD_NS = 200000;   /* a NIC is given the next payload so long before it is free: half of it leaves
                                             NICs idle where a process wakes up late, twice decides too early what goes */
static const uint64_t AWAKE_NS = 80000;   /* nobody sleeps for less: the kernel wakes up so late */

struct ring {
    _Alignas(LINE) _Atomic uint64_t written; /* bytes, for ever */
    _Alignas(LINE) _Atomic uint64_t read;
    _Alignas(LINE) unsigned char bytes[];
};

struct prefix { /* in front of each frame */
    uint64_t length; /* of the frame with its payload; SKIP: go on at the ring's beginning */
    uint32_t lane;
    uint32_t lent;   /* 1: a `struct place` follows the head; 0: the payload does */
    uint64_t start_ns, left_ns; /* its first byte leaves the NIC, and its last one has left; the same: at once */
};

struct place { /* of a payload that is lent */
    uint64_t region, offset; /* bytes */
    uint64_t fences;         /* as they were when it was posted */
};

struct region {
    const unsigned char *at; /* NULL: none */
    uint64_t bytes;
    int host;
};

struct loan { /* of a wire, one way */
    _Alignas(LINE) _Atomic uint64_t fences; /* by the writer */
    _Atomic uint64_t forced;                /* what was lent before so many fences may have changed */
    _Alignas(LINE) _Atomic uint64_t taken;  /* by the reader: payloads that were lent */
    _Atomic uint64_t returned;
    _Atomic uint32_t peeks;                 /* likewise: it can read the writer's memory */
};

enum { LINK_UP, LINK_DOWN, LINK_REFUSES }; /* of a NIC, as others see it */

struct far_nic { /* what others must know of a NIC */
    _Alignas(LINE) _Atomic uint32_t link;
};

struct door { /* of each rank */
    _Alignas(LINE) _Atomic uint32_t bell; /* to be rung while it is asleep */
    _Atomic uint32_t asleep;
    _Atomic uint64_t process, word_at, word; /* its number; where in its own memory it has the word */
    struct far_nic nic[OPTCC_MAX_NICS];
};

struct start { /* of the memory */
    _Alignas(LINE) _Atomic uint64_t changes; /* of links */
};

struct one_ring { /* an end of it */
    struct ring *ring;
    uint64_t bytes;
    uint64_t own, far; /* the counter of this end; the other one, as seen last */
    uint32_t peer, nic; /* the peer; of a ring that is read, the NIC here */
    int control, broken;
};

struct one { /* a wire at this rank */
    uint32_t ring;    /* index of the outgoing one for payloads */
    uint32_t left;    /* payloads whose LEFT is still to be said */
    uint32_t cause;   /* of DIED */
    int fenced, died, back; /* still to be said */
    struct loan *out, *in;
    uint64_t taken, returned, fences; /* as in the loans; what the other side does not change */
    uint64_t lent, far_returned;      /* payloads; of those, as seen last */
    uint64_t peeked;                  /* of those, in memory that was not lent */
    uint64_t forgotten;               /* of those, the first ones, whose LEFT is not said */
    uint64_t until_ns;                /* a fence waits so long */
    int draining;     /* a fence waits */
    int gone;         /* a link was down when it was looked at last */
    int no_data, no_acks; /* what disappears on its way, here */
};

struct own_nic {
    double out_rate, in_rate; /* bytes per second, as they were given; or INFINITY */
    double part;              /* that is left */
    uint64_t out_free_ns, in_free_ns;
    uint64_t dropped;         /* frames that a fault has swallowed */
    int broken;               /* nothing leaves it, and others do not know */
};

struct optcc_shm {
    uint32_t rank, ranks, nics, wires, ins, outs, next;
    uint32_t owed; /* how much is still to be said */
    uint32_t lending; /* wires with something lent that is not returned, or a fence that waits */
    uint64_t patience_ns; /* for a reader, at a fence */
    uint64_t seen; /* changes */
    struct start *start;
    struct door *door;      /* by rank */
    struct one_ring *in, *out;
    struct one_ring *polled; /* whose first frame was handed over; it is given back at the next poll */
    uint64_t polled_bytes;
    struct one *one;
    struct optcc_wire *wire;
    uint32_t *control;      /* by peer: index of the outgoing ring */
    uint32_t *wire_of;      /* by peer and lane */
    struct own_nic nic[OPTCC_MAX_NICS];
    struct region mine[OPTCC_MAX_REGIONS];
    struct region *theirs; /* by rank and number */
    uint64_t word;         /* for others, to see that they read the memory of this process */
    uint32_t segment_bytes;
    unsigned char *copied; /* a payload that was read by the kernel: it stays until the next poll */
    struct { /* what was handed over as far, and is not fetched */
        int is;
        uint32_t wire;
        uint64_t length;
        struct place where;
    } far;
};

static uint64_t in_lines(uint64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static uint32_t room(void *self, uint32_t nic)
{
    const struct own_nic *n = &((struct optcc_shm *)self)->nic[nic];
    return !n->out_free_ns || n->out_free_ns <= optcc_now(NULL) + LEAD_NS; /* whether the ring has room, `post` knows */
}

static int link_of(const struct optcc_shm *s, uint32_t rank, uint32_t nic)
{
    return (int)atomic_load_explicit(&s->door[rank].nic[nic].link, memory_order_acquire);
}

/* ---- when a payload has come, over NICs with rates --------------------------------------------------------------- */

static uint64_t latest(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t ns_of(uint64_t bytes, double rate) { return (uint64_t)((double)bytes * 1e9 / rate); }

static void leaves(struct own_nic *n, uint64_t bytes, uint64_t ready_ns, struct prefix *prefix)
{
    prefix->start_ns = prefix->left_ns = latest(ready_ns, n->out_free_ns);
    if (!isinf(n->out_rate))
        n->out_free_ns = prefix->left_ns += ns_of(bytes, n->out_rate * n->part);
}

/* When the NIC has taken a payload in, if that is the next one; 0: nothing is played. */
static uint64_t comes_ns(const struct own_nic *n, const struct prefix *prefix)
{
    const uint64_t start_ns = prefix->start_ns, left_ns = prefix->left_ns;
    if (isinf(n->in_rate))
        return left_ns > start_ns ? left_ns : 0;
    const uint64_t in_ns = ns_of(prefix->length - sizeof(struct optcc_frame), n->in_rate * n->part);
    /* The first byte is there as soon as it has left; the last one not before. */
    const uint64_t from_ns = left_ns > in_ns ? latest(start_ns, left_ns - in_ns) : start_ns;
    return latest(n->in_free_ns, from_ns) + in_ns;
}

/* ---- the contract ------------------------------------------------------------------------------------------------ */

static void wake(struct door *door)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&door->asleep, memory_order_relaxed) && atomic_exchange(&door->asleep, 0)) {
        atomic_fetch_add(&door->bell, 1);
        syscall(SYS_futex, &door->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

/* Where a frame of so many bytes goes; NULL: there is no room now. `whole` : with its prefix, in lines. */
static unsigned char *place(struct one_ring *r, uint64_t whole)
{
    const uint64_t at = r->own % r->bytes, skipped = at + whole > r->bytes ? r->bytes - at : 0;
    if (r->own + skipped + whole - r->far > r->bytes) {
        r->far = atomic_load_explicit(&r->ring->read, memory_order_acquire);
        if (r->far > r->own || r->own + skipped + whole - r->far > r->bytes)
            return NULL;
    }
    if (skipped) {
        const struct prefix skip = {.length = SKIP};
        memcpy(r->ring->bytes + at, &skip, sizeof skip);
        r->own += skipped;
    }
    return r->ring->bytes + r->own % r->bytes;
}

/* Whether a payload is to be read where it lies, and then where that is. */
static int lends(const struct optcc_shm *s, const struct one *w, const void *payload, uint32_t length,
                 struct place *where)
{
    if (!payload)
        return 0;
    for (uint32_t i = 0; i < OPTCC_MAX_REGIONS; i++) {
        const struct region *r = &s->mine[i];
        const uint64_t offset = (uint64_t)((uintptr_t)payload - (uintptr_t)r->at);
        if (!r->at || (uintptr_t)payload < (uintptr_t)r->at || offset > r->bytes || length > r->bytes - offset)
            continue;
        *where = (struct place){.region = i, .offset = offset, .fences = w->fences};
        return !r->host || length > SHORT;
    }
    *where = (struct place){.region = ANYWHERE, .offset = (uintptr_t)payload, .fences = w->fences};
    return length >= PEEK && atomic_load_explicit(&w->out->peeks, memory_order_acquire);
}

static int busy(const struct one *w) { return w->draining || w->far_returned < w->lent; }

static int post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload, uint64_t ready_ns)
{
    struct optcc_shm *s = self;
    struct one *w = &s->one[wire];
    const struct optcc_wire *const ends = &s->wire[wire];
    struct own_nic *n = &s->nic[ends->nic];
    if (n->broken || w->gone)
        return OPTCC_LOST;
    struct one_ring *r = &s->out[payload ? w->ring : s->control[ends->peer]];
    struct place where;
    const int lent = lends(s, w, payload, head->length, &where);
    const uint64_t length = sizeof *head + head->length;
    const uint64_t whole = in_lines(sizeof(struct prefix) + (lent ? sizeof *head + sizeof where : length));
    unsigned char *const to = place(r, whole);
    if (!to)
        return OPTCC_AGAIN;
    struct prefix prefix = {.length = length, .lane = ends->lane, .lent = (uint32_t)lent};
    if (payload)
        leaves(n, head->length, ready_ns, &prefix);
    const int lost = payload ? w->no_data : w->no_acks;
    if (payload && (!lent || lost)) {
        w->left++;
        s->owed++;
    }
    if (lost) {
        n->dropped++;
        return OPTCC_OK;
    }
    memcpy(to, &prefix, sizeof prefix);
    memcpy(to + sizeof prefix, head, sizeof *head);
    if (lent) {
        memcpy(to + sizeof prefix + sizeof *head, &where, sizeof where);
        s->lending += !busy(w);
        w->lent++;
        w->peeked += where.region == ANYWHERE;
    } else if (payload) {
        memcpy(to + sizeof prefix + sizeof *head, payload, head->length);
    }
    r->own += whole;
    atomic_store_explicit(&r->ring->written, r->own, memory_order_release);
    wake(&s->door[ends->peer]);
    return OPTCC_OK;
}

static void died(struct optcc_shm *s, uint32_t wire, enum optcc_cause cause)
{
    s->owed += !s->one[wire].died;
    s->one[wire].died = 1;
    s->one[wire].cause = cause;
}

/* What the reader has returned. A peer that returns what it was not lent has lost the wire. */
static void collect(struct optcc_shm *s, uint32_t wire)
{
    struct one *w = &s->one[wire];
    if (!busy(w))
        return;
    if (w->far_returned < w->lent) {
        const uint64_t returned = atomic_load_explicit(&w->out->returned, memory_order_acquire);
        if (returned < w->far_returned || returned > w->lent) {
            w->far_returned = w->lent;
            died(s, wire, OPTCC_CLOSED);
        } else {
            const uint64_t from = latest(w->far_returned, w->forgotten);
            const uint32_t left = returned > from ? (uint32_t)(returned - from) : 0;
            w->left += left;
            s->owed += left;
            w->far_returned = returned;
        }
    }
    if (w->draining) {
        /* In this order: what is taken after this `returned` was read is not read. */
        const uint64_t returned = atomic_load_explicit(&w->out->returned, memory_order_acquire);
        const int drained = returned == atomic_load(&w->out->taken);
        if (!drained && optcc_now(NULL) < w->until_ns)
            return;
        if (!drained)
            atomic_store(&w->out->forced, w->fences);
        w->draining = 0;
        w->fenced = 1;
        s->owed++;
    }
    s->lending -= !busy(w);
}

static void collect_all(struct optcc_shm *s)
{
    for (uint32_t i = 0; s->lending && i < s->wires; i++)
        collect(s, i);
}

/* Links have changed: whose wires are gone, and whose may be back? */
static void look_at_links(struct optcc_shm *s)
{
    const uint64_t changes = atomic_load_explicit(&s->start->changes, memory_order_acquire);
    if (changes == s->seen)
        return;
    s->seen = changes;
    for (uint32_t i = 0; i < s->wires; i++) {
        struct one *w = &s->one[i];
        const int far = link_of(s, s->wire[i].peer, s->wire[i].far_nic);
        const int gone = far != LINK_UP || link_of(s, s->rank, s->wire[i].nic) == LINK_DOWN;
        if (gone && !w->gone && !w->died)
            died(s, i, OPTCC_CLOSED);
        if (!gone && w->gone) {
            s->owed += !w->back;
            w->back = 1;
        }
        w->gone = gone;
    }
}

/* What this end has to say itself. */
static int say(struct optcc_shm *s, struct optcc_event *event)
{
    for (uint32_t i = 0; i < s->wires; i++) {
        struct one *w = &s->one[i];
        if (!w->left && !w->fenced && !w->died && !w->back)
            continue;
        *event = (struct optcc_event){.wire = i, .cause = w->cause,
                                      .news = w->left ? OPTCC_LEFT : w->fenced ? OPTCC_FENCED
                                              : w->died ? OPTCC_DIED : OPTCC_BACK};
        if (w->left)
            w->left--;
        else if (w->fenced)
            w->fenced = 0;
        else if (w->died)
            w->died = 0;
        else
            w->back = 0;
        s->owed--;
        return 1;
    }
    return 0;
}

/* Who writes what cannot be has lost the wires that end where this ring does. */
static int broken(struct optcc_shm *s, struct one_ring *r)
{
    r->broken = 1;
    for (uint32_t i = 0; i < s->wires; i++)
        if (s->wire[i].peer == r->peer && (r->control || s->wire[i].nic == r->nic))
            died(s, i, OPTCC_CLOSED);
    return 0;
}

/* What a frame takes in its ring. */
static uint64_t whole_of(const struct prefix *prefix)
{
    return in_lines(sizeof *prefix + (prefix->lent ? sizeof(struct optcc_frame) + sizeof(struct place) : prefix->length));
}

/* Read a peer's memory; 0: the kernel refuses. */
static int peek(const struct optcc_shm *s, uint32_t peer, uint64_t at, void *to, uint64_t length)
{
    const struct iovec here = {to, length}, there = {(void *)(uintptr_t)at, length};
    const pid_t process = (pid_t)atomic_load(&s->door[peer].process);
    return process && process_vm_readv(process, &here, 1, &there, 1, 0) == (ssize_t)length;
}

/* What was far is read no more; whether it was as it was sent until then. */
static int forget_far(struct optcc_shm *s)
{
    struct one *w = &s->one[s->far.wire];
    s->far.is = 0;
    atomic_store_explicit(&w->in->returned, ++w->returned, memory_order_seq_cst);
    wake(&s->door[s->wire[s->far.wire].peer]);
    return atomic_load(&w->in->forced) <= s->far.where.fences;
}

static const void *fetch(void *self, void *to)
{
    struct optcc_shm *s = self;
    if (!s->far.is)
        return NULL;
    if (!to)
        to = s->copied;
    const int read = peek(s, s->wire[s->far.wire].peer, s->far.where.offset, to, s->far.length);
    for (uint32_t i = 0; !read && i < s->wires; i++) /* the system has changed its mind, for all wires to that rank */
        if (s->wire[i].peer == s->wire[s->far.wire].peer)
            atomic_store(&s->one[i].in->peeks, 0);
    return forget_far(s) && read ? to : NULL;
}

/* A payload that is lent: 1 and where it is; 0: it may not be read any more; -1: it cannot be. */
static int take(struct optcc_shm *s, uint32_t wire, struct optcc_event *event, int unread)
{
    struct one *w = &s->one[wire];
    struct place where;
    memcpy(&where, (const unsigned char *)event->bytes + sizeof(struct optcc_frame), sizeof where);
    const uint64_t length = event->length - sizeof(struct optcc_frame);
    const int lent = where.region < OPTCC_MAX_REGIONS;
    const struct region *const r =
        lent ? &s->theirs[(uint64_t)s->wire[wire].peer * OPTCC_MAX_REGIONS + where.region] : NULL;
    if (lent ? !r->at || where.offset > r->bytes || length > r->bytes - where.offset
             : where.region != ANYWHERE || !s->copied || length > s->segment_bytes)
        return -1;
    atomic_store(&w->in->taken, ++w->taken);
    if (unread || atomic_load(&w->in->fences) != where.fences) {
        atomic_store_explicit(&w->in->returned, ++w->returned, memory_order_release);
        return 0;
    }
    if (!lent) {
        s->far.is = event->far = 1;
        s->far.wire = wire;
        s->far.length = length;
        s->far.where = where;
        return 1;
    }
    event->payload = r->at + where.offset;
    event->held = where.fences + 1;
    return 1;
}

/* Whether a ring has a frame; the first one's prefix. It is 0 for a ring that was found broken. */
static int first(struct optcc_shm *s, struct one_ring *r, struct prefix *prefix)
{
    if (r->broken)
        return 0;
    for (;;) {
        if (r->own == r->far)
            r->far = atomic_load_explicit(&r->ring->written, memory_order_acquire);
        const uint64_t there = r->far - r->own, at = r->own % r->bytes;
        if (!there)
            return 0;
        if (there > r->bytes || there % LINE)
            return broken(s, r);
        memcpy(prefix, r->ring->bytes + at, sizeof *prefix);
        if (prefix->length == SKIP && there > r->bytes - at) {
            r->own += r->bytes - at;
            continue;
        }
        const uint64_t head = sizeof(struct optcc_frame), most = prefix->lent ? OPTCC_MAX_SEGMENT + head : r->bytes;
        const uint64_t whole = whole_of(prefix);
        if (prefix->length > most || prefix->length < head || whole > there || at + whole > r->bytes)
            return broken(s, r);
        return 1;
    }
}

/* What was polled last may be written over. */
static void give_back(struct optcc_shm *s)
{
    struct one_ring *const r = s->polled;
    s->polled = NULL;
    if (!r)
        return;
    r->own += s->polled_bytes;
    atomic_store_explicit(&r->ring->read, r->own, memory_order_release);
}

/* Whether no payload in another ring has left before the first one of this ring, so that its NIC takes this one in. */
static int is_next(struct optcc_shm *s, const struct one_ring *r, const struct prefix *prefix)
{
    struct prefix other;
    for (uint32_t i = 0; i < s->ins; i++)
        if (&s->in[i] != r && !s->in[i].control && s->in[i].nic == r->nic && first(s, &s->in[i], &other) &&
            other.left_ns < prefix->left_ns)
            return 0;
    return 1;
}

/* The next frame of a ring, if there is one and its time has come. */
static int look(struct optcc_shm *s, struct one_ring *r, struct optcc_event *event)
{
    struct prefix prefix;
    while (first(s, r, &prefix)) {
        const uint64_t come_ns = r->control ? 0 : comes_ns(&s->nic[r->nic], &prefix);
        if (come_ns && (come_ns > optcc_now(NULL) || !is_next(s, r, &prefix)))
            return 0;
        s->polled = r;
        s->polled_bytes = whole_of(&prefix);
        const uint32_t wire =
            prefix.lane < OPTCC_MAX_LANES ? s->wire_of[r->peer * OPTCC_MAX_LANES + prefix.lane] : UINT32_MAX;
        if (wire == UINT32_MAX || (!r->control && s->wire[wire].nic != r->nic) || (r->control && prefix.lent))
            return broken(s, r);
        struct one *const w = &s->one[wire];
        const int lost = r->control ? w->no_acks : w->no_data;
        *event = (struct optcc_event){.news = OPTCC_FRAME, .wire = wire, .length = prefix.length,
                                      .bytes = r->ring->bytes + r->own % r->bytes + sizeof prefix,
                                      .at_ns = come_ns};
        if (come_ns)
            s->nic[r->nic].in_free_ns = come_ns;
        const int taken = prefix.lent ? take(s, wire, event, lost || w->gone) : !lost && !w->gone;
        if (taken < 0)
            return broken(s, r);
        if (taken)
            return 1;
        s->nic[s->wire[wire].nic].dropped += lost;
        give_back(s);
    }
    return 0;
}

static void poll(void *self, struct optcc_event *event)
{
    struct optcc_shm *s = self;
    if (s->far.is)
        forget_far(s);
    give_back(s);
    look_at_links(s);
    collect_all(s);
    if (s->owed && say(s, event))
        return;
    for (uint32_t i = 0; i < s->ins; i++) {
        struct one_ring *r = &s->in[s->next];
        s->next = s->next + 1 == s->ins ? 0 : s->next + 1;
        if (look(s, r, event))
            return;
    }
    *event = (struct optcc_event){.news = OPTCC_NOTHING};
}

static void fence(void *self, uint32_t wire)
{
    struct optcc_shm *s = self;
    struct one *w = &s->one[wire];
    s->owed -= w->left + (uint32_t)w->fenced;
    w->left = 0;
    w->fenced = 0;
    w->forgotten = w->lent;
    atomic_store(&w->out->fences, ++w->fences);
    s->lending += !busy(w);
    w->draining = 1;
    w->until_ns = optcc_now(NULL) + s->patience_ns;
    collect(s, wire);
}

static int release(void *self, uint32_t wire, uint64_t held)
{
    struct optcc_shm *s = self;
    struct one *w = &s->one[wire];
    atomic_store(&w->in->returned, ++w->returned);
    wake(&s->door[s->wire[wire].peer]);
    return atomic_load(&w->in->forced) < held ? OPTCC_OK : OPTCC_LOST;
}

static int renew(void *self, uint32_t wire)
{
    const struct optcc_shm *s = self;
    return s->nic[s->wire[wire].nic].broken || s->one[wire].gone ? OPTCC_LOST : OPTCC_OK;
}

static void sleep_for(void *self, uint64_t ns)
{
    struct optcc_shm *s = self;
    struct door *const door = &s->door[s->rank];
    const uint32_t bell = atomic_load(&door->bell);
    const uint64_t then = optcc_now(NULL);
    struct prefix prefix;
    if (s->far.is)
        forget_far(s);
    give_back(s);
    atomic_store(&door->asleep, 1);
    atomic_thread_fence(memory_order_seq_cst);
    collect_all(s);
    int awake = s->owed || atomic_load(&s->start->changes) != s->seen;
    for (uint32_t i = 0; !awake && i < s->ins; i++)
        if (first(s, &s->in[i], &prefix)) {
            const uint64_t come_ns = s->in[i].control ? 0 : comes_ns(&s->nic[s->in[i].nic], &prefix);
            if (come_ns && !is_next(s, &s->in[i], &prefix))
                continue;
            awake |= come_ns < then + AWAKE_NS;
            if (!awake && come_ns - then < ns)
                ns = come_ns - then;
        }
    if (!awake && ns >= AWAKE_NS) {
        ns -= AWAKE_NS / 2;
        const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
        syscall(SYS_futex, &door->bell, FUTEX_WAIT, bell, &t, NULL, 0);
    }
    atomic_store(&door->asleep, 0);
}

static const struct optcc_wires CONTRACT = {optcc_now, room, post, poll, fence, renew, sleep_for, fetch, release};

/* ---- faults on purpose ------------------------------------------------------------------------------------------- */

static void changed(struct optcc_shm *s)
{
    atomic_fetch_add(&s->start->changes, 1);
    for (uint32_t i = 0; i < s->ranks; i++)
        if (i != s->rank)
            wake(&s->door[i]);
}

int optcc_shm_link(struct optcc_shm *s, uint32_t nic, enum optcc_link link, enum optcc_cause cause)
{
    if (nic >= s->nics || (unsigned)link >= OPTCC_LINKS)
        return OPTCC_BAD;
    const uint32_t shown = link == OPTCC_LINK_DOWN      ? LINK_DOWN
                           : link == OPTCC_LINK_REFUSES ? LINK_REFUSES
                                                        : LINK_UP;
    s->nic[nic].broken = link == OPTCC_LINK_SENDS_NOT;
    for (uint32_t i = 0; link == OPTCC_LINK_DOWN || link == OPTCC_LINK_SENDS_NOT ? i < s->wires : 0; i++)
        if (s->wire[i].nic == nic)
            died(s, i, cause);
    if (atomic_exchange(&s->door[s->rank].nic[nic].link, shown) != shown)
        changed(s);
    return OPTCC_OK;
}

int optcc_shm_dark(struct optcc_shm *s, uint32_t nic, uint32_t far_rank, uint32_t far_nic, int data, int acks)
{
    if (nic >= s->nics)
        return OPTCC_BAD;
    for (uint32_t i = 0; i < s->wires; i++)
        if (s->wire[i].nic == nic &&
            (far_rank == UINT32_MAX || (s->wire[i].peer == far_rank && s->wire[i].far_nic == far_nic))) {
            s->one[i].no_data = data;
            s->one[i].no_acks = acks;
        }
    return OPTCC_OK;
}

int optcc_shm_slow(struct optcc_shm *s, uint32_t nic, double part)
{
    if (nic >= s->nics || !(part > 0))
        return OPTCC_BAD;
    s->nic[nic].part *= part;
    return OPTCC_OK;
}

uint64_t optcc_shm_dropped(const struct optcc_shm *s, uint32_t nic) { return nic < s->nics ? s->nic[nic].dropped : 0; }

/* ---- making one -------------------------------------------------------------------------------------------------- */

static uint64_t ring_size(uint64_t bytes) { return sizeof(struct ring) + bytes; }

static int joined(const struct optcc_shm_config *c, uint32_t a, uint32_t b)
{
    return a != b && c->joined[(uint64_t)a * c->ranks + b];
}

static uint64_t rings_of(const struct optcc_shm_config *c, uint32_t from, uint32_t to)
{
    return joined(c, from, to) ? OPTCC_MAX_LANES * sizeof(struct loan) + ring_size(CONTROL_BYTES) +
                                     c->nics[to] * ring_size(c->ring_bytes)
                               : 0;
}

static int sane(const struct optcc_shm_config *c)
{
    if (!c->ranks || c->ranks > OPTCC_MAX_RANKS || c->ring_bytes % LINE || !c->ring_bytes)
        return 0;
    for (uint32_t i = 0; i < c->ranks; i++)
        if (c->nics[i] > OPTCC_MAX_NICS)
            return 0;
    return 1;
}

uint64_t optcc_shm_bytes(const struct optcc_shm_config *c)
{
    uint64_t bytes = sizeof(struct start) + c->ranks * sizeof(struct door);
    if (!sane(c))
        return 0;
    for (uint32_t from = 0; from < c->ranks; from++)
        for (uint32_t to = 0; to < c->ranks; to++)
            bytes += rings_of(c, from, to);
    return bytes;
}

static struct one_ring end_of(unsigned char **at, uint64_t bytes, uint32_t peer, uint32_t nic, int control)
{
    const struct one_ring made = {.ring = (struct ring *)(void *)*at, .bytes = bytes, .peer = peer, .nic = nic,
                                  .control = control};
    *at += ring_size(bytes);
    return made;
}

static void find_rings(struct optcc_shm *s, const struct optcc_shm_config *c, unsigned char *at, uint32_t *first_out)
{
    for (uint32_t from = 0; from < c->ranks; from++)
        for (uint32_t to = 0; to < c->ranks; to++) {
            struct loan *const loans = (struct loan *)(void *)at;
            unsigned char *own = at + OPTCC_MAX_LANES * sizeof *loans;
            at += rings_of(c, from, to);
            if (!joined(c, from, to) || (from != s->rank && to != s->rank))
                continue;
            const uint32_t peer = from == s->rank ? to : from;
            for (uint32_t i = 0; i < s->wires; i++)
                if (c->wire[i].peer == peer && c->wire[i].lane < OPTCC_MAX_LANES)
                    *(from == s->rank ? &s->one[i].out : &s->one[i].in) = &loans[c->wire[i].lane];
            struct one_ring *const ends = from == s->rank ? s->out : s->in;
            uint32_t *const count = from == s->rank ? &s->outs : &s->ins;
            if (from == s->rank) {
                s->control[peer] = *count;
                first_out[peer] = *count + 1;
            }
            ends[(*count)++] = end_of(&own, CONTROL_BYTES, peer, 0, 1);
            for (uint32_t nic = 0; nic < c->nics[to]; nic++)
                ends[(*count)++] = end_of(&own, c->ring_bytes, peer, nic, 0);
        }
}

static int take_wires(struct optcc_shm *s, const struct optcc_shm_config *c, const uint32_t *first_out)
{
    for (uint32_t i = 0; i < c->wires; i++) {
        const struct optcc_wire *w = &c->wire[i];
        if (w->peer >= c->ranks || !joined(c, c->rank, w->peer) || w->nic >= s->nics || w->far_nic >= c->nics[w->peer] ||
            w->lane >= OPTCC_MAX_LANES)
            return OPTCC_BAD;
        s->wire[i] = *w;
        s->one[i].ring = first_out[w->peer] + w->far_nic;
        s->wire_of[w->peer * OPTCC_MAX_LANES + w->lane] = i;
    }
    return OPTCC_OK;
}

int optcc_shm_open(const struct optcc_shm_config *c, void *memory, struct optcc_shm **shm)
{
    *shm = NULL;
    if (!sane(c) || c->rank >= c->ranks || (uintptr_t)memory % LINE)
        return OPTCC_BAD;
    struct optcc_shm *s = calloc(1, sizeof *s);
    uint32_t *first_out = calloc(c->ranks, sizeof *first_out);
    if (!s || !first_out) {
        free(s);
        free(first_out);
        return OPTCC_MEMORY;
    }
    *s = (struct optcc_shm){.rank = c->rank, .ranks = c->ranks, .nics = c->nics[c->rank], .wires = c->wires};
    const uint64_t most = (uint64_t)c->ranks * (1 + OPTCC_MAX_NICS);
    s->in = calloc(most, sizeof *s->in);
    s->out = calloc(most, sizeof *s->out);
    s->one = calloc(c->wires ? c->wires : 1, sizeof *s->one);
    s->wire = calloc(c->wires ? c->wires : 1, sizeof *s->wire);
    s->control = calloc(c->ranks, sizeof *s->control);
    s->theirs = calloc((uint64_t)c->ranks * OPTCC_MAX_REGIONS, sizeof *s->theirs);
    s->wire_of = malloc((uint64_t)c->ranks * OPTCC_MAX_LANES * sizeof *s->wire_of);
    int result = s->in && s->out && s->one && s->wire && s->control && s->wire_of && s->theirs ? OPTCC_OK : OPTCC_MEMORY;
    if (result == OPTCC_OK) {
        memset(s->wire_of, 0xff, (uint64_t)c->ranks * OPTCC_MAX_LANES * sizeof *s->wire_of);
        s->start = memory;
        s->door = (struct door *)(void *)((unsigned char *)memory + sizeof(struct start));
        for (uint32_t i = 0; i < s->nics; i++)
            s->nic[i] = (struct own_nic){.out_rate = c->out_rates ? c->out_rates[i] : INFINITY,
                                         .in_rate = c->in_rates ? c->in_rates[i] : INFINITY, .part = 1};
        s->word = optcc_now(NULL) ^ (uint64_t)(uintptr_t)s;
        struct door *const door = &s->door[s->rank];
        atomic_store(&door->word, s->word);
        atomic_store(&door->word_at, (uint64_t)(uintptr_t)&s->word);
        atomic_store(&door->process, (uint64_t)getpid());
        find_rings(s, c, (unsigned char *)memory + sizeof(struct start) + c->ranks * sizeof(struct door), first_out);
        result = take_wires(s, c, first_out);
    }
    free(first_out);
    if (result == OPTCC_OK)
        *shm = s;
    else
        optcc_shm_close(s);
    return result;
}

void optcc_shm_close(struct optcc_shm *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->one && i < s->wires; i++)
        if (s->one[i].out && s->one[i].draining) /* who still reads what was lent: it may change from now on */
            atomic_store(&s->one[i].out->forced, s->one[i].fences);
    free(s->in);
    free(s->out);
    free(s->one);
    free(s->wire);
    free(s->control);
    free(s->wire_of);
    free(s->theirs);
    free(s->copied);
    free(s);
}

int optcc_shm_lend(struct optcc_shm *s, const void *base, uint64_t bytes, int host, uint32_t *region)
{
    for (uint32_t i = 0; base && bytes && i < OPTCC_MAX_REGIONS; i++)
        if (!s->mine[i].at) {
            s->mine[i] = (struct region){base, bytes, host};
            *region = i;
            return OPTCC_OK;
        }
    return OPTCC_BAD;
}

int optcc_shm_unlend(struct optcc_shm *s, uint32_t region)
{
    if (region >= OPTCC_MAX_REGIONS || !s->mine[region].at)
        return OPTCC_BAD;
    s->mine[region] = (struct region){0};
    return OPTCC_OK;
}

int optcc_shm_reach(struct optcc_shm *s, uint32_t peer, uint32_t region, const void *here, uint64_t bytes)
{
    if (peer >= s->ranks || peer == s->rank || region >= OPTCC_MAX_REGIONS || !here != !bytes)
        return OPTCC_BAD;
    s->theirs[(uint64_t)peer * OPTCC_MAX_REGIONS + region] = (struct region){here, bytes, 0};
    return OPTCC_OK;
}

int optcc_shm_peek(struct optcc_shm *s)
{
    if (!s->segment_bytes)
        return OPTCC_BAD;
    if (!s->copied && !(s->copied = aligned_alloc(LINE, in_lines(s->segment_bytes))))
        return OPTCC_MEMORY;
    for (uint32_t i = 0; i < s->wires; i++) {
        const struct door *const door = &s->door[s->wire[i].peer];
        uint64_t word = 0;
        if (peek(s, s->wire[i].peer, atomic_load(&door->word_at), &word, sizeof word) && word == atomic_load(&door->word))
            atomic_store(&s->one[i].in->peeks, 1);
    }
    return OPTCC_OK;
}

uint64_t optcc_shm_lent(const struct optcc_shm *s)
{
    uint64_t lent = 0;
    for (uint32_t i = 0; i < s->wires; i++)
        lent += s->one[i].lent - s->one[i].peeked;
    return lent;
}

uint64_t optcc_shm_peeked(const struct optcc_shm *s)
{
    uint64_t peeked = 0;
    for (uint32_t i = 0; i < s->wires; i++)
        peeked += s->one[i].peeked;
    return peeked;
}

int optcc_shm_engine(struct optcc_shm *s, const struct optcc_config *config, struct optcc_engine **engine)
{
    struct optcc_config own = *config;
    own.rank = s->rank;
    own.ranks = s->ranks;
    own.nics = s->nics;
    own.wires = s->wires;
    s->patience_ns = own.return_ns;
    s->segment_bytes = own.segment_bytes;
    const uint64_t whole = in_lines(sizeof(struct prefix) + sizeof(struct optcc_frame) + own.segment_bytes);
    for (uint32_t i = 0; i < s->outs; i++)
        if (!s->out[i].control && s->out[i].bytes < 2 * whole)
            return OPTCC_BAD;
    return optcc_open(&own, s->wire, &CONTRACT, s, engine);
}
