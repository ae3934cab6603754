/* Wires between ranks of one machine, through memory that they share.
 *
 * Each wire has a ring for each way, with one writer and one reader. A frame is copied into the ring when it is posted,
 * so its payload has left at once, and is read where it lies. A frame is never cut: what does not fit before the ring's
 * end goes to its beginning. A part of the ring is kept for frames without payload.
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
static const uint64_t SKIP = UINT64_MAX;

struct ring {
    _Alignas(LINE) _Atomic uint64_t written; /* bytes, for ever */
    _Alignas(LINE) _Atomic uint64_t read;
    _Alignas(LINE) unsigned char bytes[];
};

struct prefix { /* in front of each frame */
    uint64_t length; /* of the frame; SKIP: go on at the ring's beginning */
    uint64_t unused;
};

struct one { /* a wire at this rank */
    struct ring *out, *in;
    uint64_t written, read;         /* as in the rings; what the other side does not change */
    uint64_t far_read, far_written; /* as seen last */
    uint64_t polled;                /* bytes to be given back at the next poll */
    uint32_t left;                  /* payloads whose LEFT is still to be said */
    int fenced, died;               /* likewise */
};

struct optcc_shm {
    uint32_t rank, ranks, lanes, wires, next, owed; /* owed: how much is still to be said */
    uint64_t ring_bytes;
    struct one *one;
    struct optcc_wire *wire;
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

static int post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload)
{
    struct optcc_shm *s = self;
    struct one *w = &s->one[wire];
    const uint64_t length = sizeof *head + head->length;
    const uint64_t whole = in_lines(sizeof(struct prefix) + length), at = w->written % s->ring_bytes;
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
    const struct prefix prefix = {.length = length};
    memcpy(to, &prefix, sizeof prefix);
    memcpy(to + sizeof prefix, head, sizeof *head);
    if (payload) {
        memcpy(to + sizeof prefix + sizeof *head, payload, head->length);
        w->left++;
        s->owed++;
    }
    w->written += whole;
    atomic_store_explicit(&w->out->written, w->written, memory_order_release);
    return OPTCC_OK;
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
        const uint64_t whole = in_lines(sizeof prefix + prefix.length);
        if (there > s->ring_bytes || there % LINE || prefix.length > s->ring_bytes || whole > there ||
            at + whole > s->ring_bytes) {
            w->read = w->far_written = w->far_written / LINE * LINE;
            s->owed += !w->died;
            w->died = 1;
            return 0;
        }
        w->polled = whole;
        *event = (struct optcc_event){.news = OPTCC_FRAME, .wire = wire, .length = prefix.length,
                                      .bytes = w->in->bytes + at + sizeof prefix};
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
        if (look(s, wire, event))
            return;
    }
    *event = (struct optcc_event){.news = OPTCC_NOTHING};
}

static void fence(void *self, uint32_t wire)
{
    struct optcc_shm *s = self;
    struct one *w = &s->one[wire];
    s->owed = s->owed - w->left - (uint32_t)w->fenced + 1;
    w->left = 0;
    w->fenced = 1;
}

static int renew(void *self, uint32_t wire)
{
    (void)self, (void)wire;
    return OPTCC_OK;
}

static const struct optcc_wires CONTRACT = {now, room, post, poll, fence, renew};

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
    if (!s->one || !s->wire) {
        optcc_shm_close(s);
        return OPTCC_MEMORY;
    }
    for (uint32_t peer = 0; peer < ranks; peer++)
        for (uint32_t lane = 0; peer != rank && lane < lanes; lane++) {
            unsigned char *const rings = memory;
            const uint64_t out = ((uint64_t)rank * ranks + peer) * lanes + lane;
            const uint64_t in = ((uint64_t)peer * ranks + rank) * lanes + lane;
            s->one[s->wires].out = (struct ring *)(void *)(rings + out * ring_size(ring_bytes));
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
    free(s);
}

int optcc_shm_engine(struct optcc_shm *s, const struct optcc_config *config, struct optcc_engine **engine)
{
    struct optcc_config own = *config;
    own.rank = s->rank;
    own.ranks = s->ranks;
    own.nics = s->lanes;
    own.wires = s->wires;
    if (4 * (own.segment_bytes + RESERVE + sizeof(struct optcc_frame)) > s->ring_bytes)
        return OPTCC_BAD;
    return optcc_open(&own, s->wire, &CONTRACT, s, engine);
}
