/* Wires between ranks of one machine, through memory that they share.
 *
 * Each wire has a ring for each way, with one writer and one reader. A frame is copied into the ring when it is posted,
 * so its payload has left at once, and is read where it lies. A frame is never cut: what does not fit before the ring's
 * end goes to its beginning. A part of the ring is kept for frames without payload.
 *
 * A payload in memory that its rank has lent is not copied: the frame says where it is, and the reader reads it there.
 * It has left when the reader says so: it counts what it takes and what it returns. A fence is drained when both counts
 * are equal. What was lent before a fence and is taken after it is returned unread: the reader counts it as taken, then
 * looks for fences; the writer counts the fence, then looks at what is taken. So one of them sees the other. A reader
 * that stands still may keep a fence waiting, but only for as long as a peer may be silent: then the writer says that it
 * no longer vouches for what was lent, and a reader that finds this said after it has read has lost the collective.
 *
 * These wires do not die. A rank whose process has ended is silent; its peers give it up after `return_ns`.
 */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 64 };         /* bytes of a cache line: frames begin at one */
enum { RESERVE = 64 * 128 }; /* bytes that payloads leave free */
enum { SHORT = 4096 };      /* bytes: to copy so much costs less than to return it */
static const uint64_t SKIP = UINT64_MAX;

struct ring {
    _Alignas(LINE) _Atomic uint64_t written; /* by the writer: bytes, for ever */
    _Atomic uint64_t fences;                 /* of this way */
    _Atomic uint64_t forced;                 /* what was lent before so many fences may have changed */
    _Alignas(LINE) _Atomic uint64_t read;    /* by the reader */
    _Atomic uint64_t taken, returned;        /* payloads that were lent */
    _Alignas(LINE) unsigned char bytes[];
};

struct prefix { /* in front of each frame */
    uint64_t length; /* of the frame with its payload; SKIP: go on at the ring's beginning */
    uint64_t lent;   /* 1: a `struct place` follows the head; 0: the payload does */
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

struct one { /* a wire at this rank */
    struct ring *out, *in;
    uint64_t written, read;         /* as in the rings; what the other side does not change */
    uint64_t far_read, far_written; /* as seen last */
    uint64_t polled;                /* bytes to be given back at the next poll */
    uint32_t left;                  /* payloads whose LEFT is still to be said */
    int fenced, died;               /* likewise */
    uint32_t peer;
    uint64_t taken, returned, fences; /* as in the rings; what the other side does not change */
    uint64_t lent, far_returned;      /* payloads; of those, as seen last */
    uint64_t forgotten;               /* of those, the first ones, whose LEFT is not said */
    int draining;                     /* a fence waits, */
    uint64_t until_ns;                /* so long */
};

struct optcc_shm {
    uint32_t rank, ranks, lanes, wires, next, owed; /* owed: how much is still to be said */
    uint64_t ring_bytes, patience_ns; /* for a reader, at a fence */
    struct one *one;
    struct optcc_wire *wire;
    struct region mine[OPTCC_MAX_REGIONS];
    struct region *theirs; /* by rank and number */
    uint8_t *gone;         /* by rank */
};

static uint64_t in_lines(uint64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static uint64_t now(void *self)
{
    struct timespec t;
    (void)self;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static uint32_t room(void *self, uint32_t nic)
{
    (void)self, (void)nic;
    return 1; /* `post` knows better */
}

/* Whether a payload is to be lent, and then where it is. */
static int lends(const struct optcc_shm *s, const struct one *w, const void *payload, uint32_t length,
                 struct place *place)
{
    for (uint32_t i = 0; payload && i < OPTCC_MAX_REGIONS; i++) {
        const struct region *r = &s->mine[i];
        const uint64_t offset = (uint64_t)((uintptr_t)payload - (uintptr_t)r->at);
        if (!r->at || (uintptr_t)payload < (uintptr_t)r->at || offset > r->bytes || length > r->bytes - offset)
            continue;
        *place = (struct place){.region = i, .offset = offset, .fences = w->fences};
        return !r->host || length > SHORT;
    }
    return 0;
}

static int post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload)
{
    struct optcc_shm *s = self;
    struct one *w = &s->one[wire];
    struct place place;
    const int lent = lends(s, w, payload, head->length, &place);
    const uint64_t length = sizeof *head + head->length, at = w->written % s->ring_bytes;
    const uint64_t whole = in_lines(sizeof(struct prefix) + (lent ? sizeof *head + sizeof place : length));
    const uint64_t skipped = at + whole > s->ring_bytes ? s->ring_bytes - at : 0;
    const uint64_t needed = skipped + whole + (payload ? RESERVE : 0);
    if (w->written + needed - w->far_read > s->ring_bytes) {
        w->far_read = atomic_load_explicit(&w->out->read, memory_order_acquire);
        if (w->far_read > w->written || w->written + needed - w->far_read > s->ring_bytes)
            return OPTCC_AGAIN;
    }
    if (skipped) {
        const struct prefix skip = {.length = SKIP};
        memcpy(w->out->bytes + at, &skip, sizeof skip);
        w->written += skipped;
    }
    unsigned char *const to = w->out->bytes + w->written % s->ring_bytes;
    const struct prefix prefix = {.length = length, .lent = (uint64_t)lent};
    memcpy(to, &prefix, sizeof prefix);
    memcpy(to + sizeof prefix, head, sizeof *head);
    if (lent) {
        memcpy(to + sizeof prefix + sizeof *head, &place, sizeof place);
        w->lent++;
    } else if (payload) {
        memcpy(to + sizeof prefix + sizeof *head, payload, head->length);
        w->left++;
        s->owed++;
    }
    w->written += whole;
    atomic_store_explicit(&w->out->written, w->written, memory_order_release);
    return OPTCC_OK;
}

static void lose(struct optcc_shm *s, struct one *w)
{
    s->owed += !w->died;
    w->died = 1;
}

/* What the reader has returned. A peer that returns what it was not lent has lost the wire. */
static void collect(struct optcc_shm *s, struct one *w)
{
    if (w->far_returned < w->lent) {
        const uint64_t returned = atomic_load_explicit(&w->out->returned, memory_order_acquire);
        if (returned < w->far_returned || returned > w->lent) {
            w->far_returned = w->lent;
            lose(s, w);
        } else {
            const uint64_t from = w->far_returned > w->forgotten ? w->far_returned : w->forgotten;
            const uint32_t left = returned > from ? (uint32_t)(returned - from) : 0;
            w->left += left;
            s->owed += left;
            w->far_returned = returned;
        }
    }
    if (!w->draining)
        return;
    /* In this order: what is taken after this `returned` was read is not read. */
    const uint64_t returned = atomic_load_explicit(&w->out->returned, memory_order_acquire);
    if (returned != atomic_load(&w->out->taken) && !s->gone[w->peer]) {
        if (now(s) < w->until_ns)
            return;
        atomic_store(&w->out->forced, w->fences);
    }
    w->draining = 0;
    w->fenced = 1;
    s->owed++;
}

/* What this end has to say itself. */
static int say(struct optcc_shm *s, struct optcc_event *event)
{
    for (uint32_t i = 0; i < s->wires; i++) {
        struct one *w = &s->one[i];
        if (!w->left && !w->fenced && !w->died)
            continue;
        *event = (struct optcc_event){.wire = i, .news = w->left ? OPTCC_LEFT : w->fenced ? OPTCC_FENCED : OPTCC_DIED};
        if (w->left)
            w->left--;
        else if (w->fenced)
            w->fenced = 0;
        else
            w->died = 0;
        s->owed--;
        return 1;
    }
    return 0;
}

/* A payload that is lent: 1 and where it is; 0: it may not be read any more; -1: it cannot be. */
static int take(struct optcc_shm *s, struct one *w, const unsigned char *said, struct optcc_event *event)
{
    struct place place;
    memcpy(&place, said, sizeof place);
    if (event->length < sizeof(struct optcc_frame) || place.region >= OPTCC_MAX_REGIONS)
        return -1;
    const uint64_t length = event->length - sizeof(struct optcc_frame);
    const struct region *const r = &s->theirs[(uint64_t)w->peer * OPTCC_MAX_REGIONS + place.region];
    if (!r->at || place.offset > r->bytes || length > r->bytes - place.offset)
        return -1;
    atomic_store(&w->in->taken, ++w->taken);
    if (atomic_load(&w->in->fences) != place.fences) {
        atomic_store_explicit(&w->in->returned, ++w->returned, memory_order_release);
        return 0;
    }
    event->payload = r->at + place.offset;
    event->held = place.fences + 1;
    return 1;
}

/* The next frame of a wire, if there is one. A peer that writes what cannot be in a ring has lost it. */
static int look(struct optcc_shm *s, uint32_t wire, struct optcc_event *event)
{
    struct one *w = &s->one[wire];
    if (w->polled) {
        w->read += w->polled;
        w->polled = 0;
        atomic_store_explicit(&w->in->read, w->read, memory_order_release);
    }
    for (;;) {
        if (w->read == w->far_written)
            w->far_written = atomic_load_explicit(&w->in->written, memory_order_acquire);
        const uint64_t there = w->far_written - w->read, at = w->read % s->ring_bytes;
        struct prefix prefix;
        if (!there)
            return 0;
        memcpy(&prefix, w->in->bytes + at, sizeof prefix);
        if (prefix.length == SKIP && there > s->ring_bytes - at && there <= s->ring_bytes) {
            w->read += s->ring_bytes - at;
            continue;
        }
        const uint64_t head = sizeof(struct optcc_frame), most = prefix.lent ? OPTCC_MAX_SEGMENT + head : s->ring_bytes;
        const uint64_t whole = in_lines(sizeof prefix + (prefix.lent ? head + sizeof(struct place) : prefix.length));
        const int fits = there <= s->ring_bytes && there % LINE == 0 && prefix.length <= most && whole <= there &&
                         at + whole <= s->ring_bytes;
        const unsigned char *const frame = w->in->bytes + at + sizeof prefix;
        *event = (struct optcc_event){.news = OPTCC_FRAME, .wire = wire, .length = prefix.length, .bytes = frame};
        const int taken = !fits ? -1 : prefix.lent ? take(s, w, frame + head, event) : 1;
        if (taken < 0) {
            w->read = w->far_written = w->far_written / LINE * LINE;
            lose(s, w);
            return 0;
        }
        if (!taken) {
            w->read += whole;
            continue;
        }
        w->polled = whole;
        return 1;
    }
}

static void poll(void *self, struct optcc_event *event)
{
    struct optcc_shm *s = self;
    if (s->owed && say(s, event))
        return;
    for (uint32_t i = 0; i < s->wires; i++) {
        const uint32_t wire = s->next;
        s->next = s->next + 1 == s->wires ? 0 : s->next + 1;
        collect(s, &s->one[wire]);
        if (look(s, wire, event))
            return;
    }
    if (s->owed && say(s, event))
        return;
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
    w->draining = 1;
    w->until_ns = now(s) + s->patience_ns;
    collect(s, w);
}

static int release(void *self, uint32_t wire, uint64_t held)
{
    struct one *w = &((struct optcc_shm *)self)->one[wire];
    atomic_store(&w->in->returned, ++w->returned);
    return atomic_load(&w->in->forced) < held ? OPTCC_OK : OPTCC_LOST;
}

static int renew(void *self, uint32_t wire)
{
    (void)self, (void)wire;
    return OPTCC_OK;
}

static const struct optcc_wires CONTRACT = {now, room, post, poll, fence, renew, release};

static uint64_t ring_size(uint64_t ring_bytes) { return sizeof(struct ring) + ring_bytes; }

uint64_t optcc_shm_bytes(uint32_t ranks, uint32_t lanes, uint64_t ring_bytes)
{
    return (uint64_t)ranks * ranks * lanes * ring_size(ring_bytes);
}

int optcc_shm_open(void *memory, uint32_t rank, uint32_t ranks, uint32_t lanes, uint64_t ring_bytes,
                   struct optcc_shm **shm)
{
    *shm = NULL;
    if (rank >= ranks || ranks > OPTCC_MAX_RANKS || !lanes || lanes > OPTCC_MAX_NICS || ring_bytes % LINE ||
        ring_bytes < 4 * RESERVE || (uintptr_t)memory % LINE)
        return OPTCC_BAD;
    struct optcc_shm *s = calloc(1, sizeof *s);
    if (!s)
        return OPTCC_MEMORY;
    *s = (struct optcc_shm){.rank = rank, .ranks = ranks, .lanes = lanes, .ring_bytes = ring_bytes};
    s->one = calloc((uint64_t)ranks * lanes, sizeof *s->one);
    s->wire = calloc((uint64_t)ranks * lanes, sizeof *s->wire);
    s->theirs = calloc((uint64_t)ranks * OPTCC_MAX_REGIONS, sizeof *s->theirs);
    s->gone = calloc(ranks, sizeof *s->gone);
    if (!s->one || !s->wire || !s->theirs || !s->gone) {
        optcc_shm_close(s);
        return OPTCC_MEMORY;
    }
    for (uint32_t peer = 0; peer < ranks; peer++)
        for (uint32_t lane = 0; peer != rank && lane < lanes; lane++) {
            unsigned char *const rings = memory;
            const uint64_t out = ((uint64_t)rank * ranks + peer) * lanes + lane;
            const uint64_t in = ((uint64_t)peer * ranks + rank) * lanes + lane;
            s->one[s->wires].out = (struct ring *)(void *)(rings + out * ring_size(ring_bytes));
            s->one[s->wires].peer = peer;
            s->one[s->wires].in = (struct ring *)(void *)(rings + in * ring_size(ring_bytes));
            s->wire[s->wires++] = (struct optcc_wire){.peer = peer, .nic = lane, .far_nic = lane, .lane = lane};
        }
    *shm = s;
    return OPTCC_OK;
}

void optcc_shm_close(struct optcc_shm *s)
{
    if (!s)
        return;
    free(s->one);
    free(s->wire);
    free(s->theirs);
    free(s->gone);
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

int optcc_shm_gone(struct optcc_shm *s, uint32_t peer)
{
    if (peer >= s->ranks || peer == s->rank)
        return OPTCC_BAD;
    s->gone[peer] = 1;
    return OPTCC_OK;
}

int optcc_shm_engine(struct optcc_shm *s, const struct optcc_config *config, struct optcc_engine **engine)
{
    struct optcc_config own = *config;
    own.rank = s->rank;
    own.ranks = s->ranks;
    own.nics = s->lanes;
    own.wires = s->wires;
    s->patience_ns = own.return_ns;
    if (4 * (own.segment_bytes + RESERVE + sizeof(struct optcc_frame)) > s->ring_bytes)
        return OPTCC_BAD;
    return optcc_open(&own, s->wire, &CONTRACT, s, engine);
}
