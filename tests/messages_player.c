/* Two ranks that send each other messages over virtual NICs, all from a seed; and a peer that lies.
 *
 * Bytes depend on stream, message and place. A buffer is spoilt as soon as it is given back, so that whoever reads it later
 * sends what is wrong; behind each receive buffer lie guard bytes. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEGMENT = 512,
    WINDOW = 2048,
    MOST = 40 * SEGMENT,
    GUARD = 64,
    MAX_NICS = 4,
    MAX_PLANS = 12, /* streams of a seed */
    SPOILT = 0xa5,
    GUARDED = 0x5c
};

struct outcome { /* what came of a seed; the first three are 0 where all is right */
    uint64_t wrong;      /* messages with wrong bytes or lengths, guards that were touched, buffers given back too early */
    uint64_t unexpected; /* results that must not be */
    int32_t unfinished;  /* as optcc_world_run says */
    int32_t padding;
    uint64_t now_ns, messages, withdrawn, too_long, empty, reused, early;
    uint64_t segments, resent, duplicates, refused, left, returned;
};

struct message {
    uint64_t length, room, number;
    unsigned char *out, *in; /* buffers of the two ends, NULL: not posted or done */
    int is_sent, is_received;
};

struct plan { /* a stream, and how far its two ends are */
    uint64_t port;
    uint32_t from, messages;
    struct message *message;
    int aborts; /* sender: closes before all is sent; receiver: 2: before all has come */
    uint32_t begins_after; /* another plan must be over; MAX_PLANS: none */
    uint32_t sent, received, posted_out, posted_in; /* messages */
    uint32_t out_stream, in_stream;
    int opened, taken, out_closed, in_closed, out_spoilt;
};

struct player {
    struct match *match;
    uint32_t rank;
    uint64_t random;
    struct optcc_messages *messages;
    struct optcc_engine *engine;
    uint64_t window, before[OPTCC_MAX_LANES]; /* bytes that may fly by a wire; that flew when the window was set */
};

struct match {
    struct player player[2];
    struct plan plan[MAX_PLANS];
    uint32_t plans;
    struct outcome *outcome;
    struct optcc_world *world;
};

static uint64_t draw(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t below(uint64_t *random, uint64_t limit) { return draw(random) % limit; }

static unsigned char byte_of(uint64_t port, uint64_t number, uint64_t at)
{
    uint64_t mix = port * 1000003 + number * 7919 + at / 8;
    return (unsigned char)(draw(&mix) >> 8 * (at % 8));
}

static struct optcc_tag tag_of(const struct plan *plan, uint64_t number)
{
    return (struct optcc_tag){~plan->port, number * 7919};
}

/* ---- one end's moves --------------------------------------------------------------------------------------------- */

static void spoil(unsigned char **buffer, uint64_t bytes)
{
    memset(*buffer, SPOILT, bytes);
    free(*buffer);
    *buffer = NULL;
}

/* A send's buffer is given back: no NIC may read it any more. */
static void back(struct player *self, unsigned char **buffer, uint64_t bytes)
{
    self->match->outcome->wrong += optcc_world_reads(self->match->world, self->rank, *buffer, bytes) != 0;
    spoil(buffer, bytes);
}

static int right(const struct plan *plan, uint32_t number, uint64_t length)
{
    const struct message *one = &plan->message[number];
    int good = length == one->length;
    for (uint64_t i = 0; good && i < length; i++)
        good = one->in[i] == byte_of(plan->port, number, i);
    for (uint64_t i = 0; i < GUARD; i++)
        good &= one->in[one->room + i] == GUARDED;
    return good;
}

static int out_moves(struct player *self, struct plan *plan)
{
    struct outcome *o = self->match->outcome;
    int busy = 0;
    if (plan->out_closed) {
        if (!plan->out_spoilt && !optcc_stream_held(self->messages, plan->out_stream)) {
            for (uint32_t i = 0; i < plan->posted_out; i++)
                if (plan->message[i].out)
                    back(self, &plan->message[i].out, plan->message[i].length + 1);
            plan->out_spoilt = 1;
        }
        return 0;
    }
    if (!plan->opened) {
        const struct plan *before = &self->match->plan[plan->begins_after];
        if (plan->begins_after < MAX_PLANS && !before->out_spoilt)
            return 0;
        const int result = optcc_stream_open(self->messages, plan->port, &plan->out_stream);
        o->unexpected += result != OPTCC_OK && result != OPTCC_AGAIN;
        plan->opened = result == OPTCC_OK;
        o->reused += plan->opened && plan->begins_after < MAX_PLANS;
        return plan->opened;
    }
    while (plan->posted_out < plan->messages && below(&self->random, 4)) {
        struct message *one = &plan->message[plan->posted_out];
        unsigned char *bytes = malloc(one->length + 1);
        for (uint64_t i = 0; i < one->length; i++)
            bytes[i] = byte_of(plan->port, plan->posted_out, i);
        if (optcc_send(self->messages, plan->out_stream, bytes, one->length, tag_of(plan, plan->posted_out), &one->number) !=
            OPTCC_OK) {
            free(bytes);
            break;
        }
        o->unexpected += one->number != plan->posted_out;
        one->out = bytes;
        plan->posted_out++;
        busy = 1;
    }
    for (uint32_t i = 0; i < plan->posted_out; i++) { /* in any order */
        struct message *one = &plan->message[i];
        const int too_long = one->length > one->room;
        if (one->is_sent || !one->out)
            continue;
        const int result = optcc_sent(self->messages, plan->out_stream, one->number);
        if (result == OPTCC_AGAIN)
            continue;
        o->unexpected += result != (too_long ? OPTCC_BAD : OPTCC_OK);
        one->is_sent = 1;
        plan->sent++;
        back(self, &one->out, one->length + 1);
        busy = 1;
    }
    const int early = plan->aborts == 1 && plan->posted_out > plan->messages / 2 && below(&self->random, 3) == 0;
    if (plan->sent == plan->messages || early || (plan->aborts == 2 && plan->in_closed)) {
        o->early += plan->sent < plan->messages;
        optcc_stream_close(self->messages, 0, plan->out_stream);
        plan->out_closed = busy = 1;
    }
    return busy;
}

static int in_moves(struct player *self, struct plan *plan)
{
    struct outcome *o = self->match->outcome;
    int busy = 0, failed = 0;
    if (plan->in_closed)
        return 0;
    if (!plan->taken) {
        plan->taken = optcc_stream_take(self->messages, plan->port, &plan->in_stream) == OPTCC_OK;
        return plan->taken;
    }
    while (plan->posted_in < plan->messages && below(&self->random, 4)) {
        struct message *one = &plan->message[plan->posted_in];
        unsigned char *bytes = malloc(one->room + GUARD);
        memset(bytes, GUARDED, one->room + GUARD);
        uint64_t number;
        if (optcc_receive(self->messages, plan->in_stream, bytes, one->room, &number) != OPTCC_OK) {
            free(bytes);
            break;
        }
        o->unexpected += number != plan->posted_in;
        one->in = bytes;
        plan->posted_in++;
        busy = 1;
    }
    for (uint32_t i = 0; i < plan->posted_in; i++) {
        struct message *one = &plan->message[i];
        const struct optcc_tag right_tag = tag_of(plan, i);
        struct optcc_tag tag;
        uint64_t length = 0;
        if (one->is_received || !one->in)
            continue;
        const int result = optcc_received(self->messages, plan->in_stream, i, &length, &tag);
        if (result == OPTCC_AGAIN)
            continue;
        if (result == OPTCC_OK) {
            o->wrong += !right(plan, i, length) || memcmp(&tag, &right_tag, sizeof tag);
            o->messages++;
            o->empty += !length;
        } else if (one->length > one->room) {
            o->too_long++;
        } else {
            o->unexpected += result != OPTCC_LOST || plan->aborts != 1;
            o->withdrawn++;
            failed = 1;
        }
        one->is_received = 1;
        plan->received++;
        spoil(&one->in, one->room + GUARD);
        busy = 1;
    }
    const int early = plan->aborts == 2 && plan->received > plan->messages / 2 && below(&self->random, 3) == 0;
    if (plan->received == plan->messages || early || failed) {
        optcc_stream_close(self->messages, 1, plan->in_stream);
        for (uint32_t i = 0; i < plan->posted_in; i++)
            if (plan->message[i].in)
                spoil(&plan->message[i].in, plan->message[i].room + GUARD);
        plan->in_closed = busy = 1;
    }
    return busy;
}

/* Windows narrow and widen. What flies may stay, and nothing that is beyond follows it. */
static void look_at_windows(struct player *self)
{
    const int turns = below(&self->random, 16) == 0;
    struct optcc_wire_state state;
    for (uint32_t i = 0; optcc_wire_look(self->engine, i, &state) == OPTCC_OK; i++) {
        self->match->outcome->unexpected += state.flying > self->window && state.flying > self->before[i];
        if (turns)
            self->before[i] = state.flying;
    }
    if (turns)
        optcc_narrow(self->engine, (uint32_t)(self->window = (uint64_t)WINDOW >> below(&self->random, 2)));
}

static enum optcc_play play(void *context)
{
    struct player *self = context;
    int busy = 0, open = 0;
    look_at_windows(self);
    for (uint32_t i = 0; i < self->match->plans; i++) {
        struct plan *plan = &self->match->plan[i];
        busy |= plan->from == self->rank ? out_moves(self, plan) : in_moves(self, plan);
        open |= !plan->out_spoilt || !plan->in_closed;
    }
    if (busy)
        return OPTCC_PLAY_BUSY;
    return open || optcc_streams(self->messages) ? OPTCC_PLAY_WAITS : OPTCC_PLAY_DONE;
}

/* ---- a seed ------------------------------------------------------------------------------------------------------ */

static void make_plans(struct match *match, uint64_t *random)
{
    match->plans = 1 + (uint32_t)below(random, MAX_PLANS);
    for (uint32_t i = 0; i < match->plans; i++) {
        struct plan *plan = &match->plan[i];
        *plan = (struct plan){.port = 77 + i, .from = (uint32_t)below(random, 2), .begins_after = MAX_PLANS,
                              .messages = (uint32_t)below(random, below(random, 3) ? 60 : 3), .aborts = 0};
        if (below(random, 8) == 0)
            plan->aborts = 1 + (int)below(random, 2);
        for (uint32_t k = 0; k < i; k++) /* the same way, so that its stream is used again */
            if (match->plan[k].from == plan->from && below(random, 3) == 0)
                plan->begins_after = k;
        plan->message = calloc(plan->messages + 1, sizeof *plan->message);
        for (uint32_t k = 0; k < plan->messages; k++) {
            static const uint64_t LIMITS[] = {1, 2, 40, SEGMENT, SEGMENT + 1, 4 * SEGMENT, MOST};
            struct message *one = &plan->message[k];
            const uint64_t limit = LIMITS[below(random, sizeof LIMITS / sizeof *LIMITS)];
            one->length = limit <= 2 ? limit - 1 : below(random, limit);
            if (below(random, 4) == 0)
                one->length = one->length / SEGMENT * SEGMENT;
            one->room = one->length + (below(random, 2) ? below(random, MOST - one->length + 1) : 0);
            if (one->length && below(random, 200) == 0)
                one->room = below(random, one->length);
        }
    }
}

static void strike(struct optcc_world *world, uint64_t *random, uint32_t nics, uint64_t unit_ns)
{
    static const uint64_t LASTS[] = {5, 50, 300, 3000};
    const uint64_t faults = below(random, 6);
    for (uint64_t i = 0; i < faults; i++) {
        const uint32_t rank = (uint32_t)below(random, 2), nic = (uint32_t)below(random, nics);
        const uint64_t at = below(random, 100 * unit_ns), told = below(random, 2);
        const uint64_t until = at + LASTS[below(random, 4)] * unit_ns / 10;
        /* NIC 0 always comes back; so all ends well. */
        const int heals = nic == 0 || below(random, 2);
        switch (below(random, 4)) {
        case 0:
            optcc_world_fault(world, at, OPTCC_DIE, rank, nic, told);
            if (heals)
                optcc_world_fault(world, until, OPTCC_RETURN, rank, nic, below(random, 2));
            break;
        case 1:
            optcc_world_fault(world, at, OPTCC_MUTE, rank, nic, 1 + below(random, 3));
            if (heals)
                optcc_world_fault(world, until, OPTCC_UNMUTE, rank, nic, 0);
            break;
        case 2:
            optcc_world_fault(world, at, OPTCC_RATE, rank, nic, below(random, 2) ? 100000 : 500000);
            break;
        default:
            optcc_world_fault(world, at, OPTCC_PAUSE, rank, 0, 0);
            optcc_world_fault(world, until, OPTCC_RESUME, rank, 0, 0);
        }
    }
}

static struct optcc_config config_of(uint32_t rank, uint64_t suspect_ns, uint64_t ack_ns)
{
    return (struct optcc_config){.rank = rank, .ranks = 2, .segment_bytes = SEGMENT, .window_bytes = WINDOW, .job = 99,
                                 .suspect_ns = suspect_ns, .grace_ns = suspect_ns / 2, .knock_ns = suspect_ns / 4,
                                 .return_ns = 2000 * suspect_ns, .ack_ns = ack_ns};
}

int play_messages(uint64_t seed, struct outcome *outcome);
int play_messages(uint64_t seed, struct outcome *outcome)
{
    uint64_t random = seed;
    static const uint64_t LATENCIES[] = {500, 2000, 10000}, JITTERS[] = {0, 0, 1000, 20000};
    static const uint32_t LOSSES[] = {0, 0, 1000, 50000, 200000};
    struct optcc_weather weather = {.seed = seed, .latency_ns = LATENCIES[below(&random, 3)],
                                    .jitter_ns = JITTERS[below(&random, 4)], .lost = LOSSES[below(&random, 5)],
                                    .doubled = below(&random, 3) ? 0 : 100000};
    *outcome = (struct outcome){0};
    struct match match = {.outcome = outcome};
    struct optcc_world *world = match.world = optcc_world_open(2, &weather);
    const uint32_t nics = 1 + (uint32_t)below(&random, MAX_NICS);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t nic = 0; nic < nics; nic++)
            optcc_world_nic(world, rank, 1e9, nic % 2 ? 1e9 : 5e8);
    const uint32_t twists = 1 + (uint32_t)below(&random, 2);
    for (uint32_t nic = 0; nic < nics; nic++)
        for (uint32_t twist = 0; twist < twists && twist < nics; twist++)
            optcc_world_wire(world, 0, nic, 1, (nic + twist) % nics);
    make_plans(&match, &random);
    const uint64_t queue_ns = 3 * (WINDOW + SEGMENT) * 2;
    const uint64_t suspect_ns = 4 * queue_ns + 20 * (weather.latency_ns + weather.jitter_ns) + 1000;
    const uint64_t ack_ns = below(&random, 2) ? suspect_ns / 20 : 0;
    struct optcc_messages_config config = {.streams = 8, .segment_bytes = SEGMENT, .most_bytes = MOST};
    struct optcc_engine *engine[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct optcc_config own = config_of(rank, suspect_ns, ack_ns);
        struct player *player = &match.player[rank];
        config.peer = 1 - rank;
        *player = (struct player){.match = &match, .rank = rank, .random = seed ^ (rank + 1) * 12345,
                                  .window = WINDOW};
        if (optcc_world_engine(world, &own, &engine[rank]) != OPTCC_OK || !(player->engine = engine[rank]) ||
            optcc_messages_open(&config, &player->messages) != OPTCC_OK ||
            optcc_begin_messages(engine[rank], player->messages) != OPTCC_OK ||
            optcc_world_player(world, rank, play, player) != OPTCC_OK)
            return 1;
    }
    strike(world, &random, nics, suspect_ns / 4);
    outcome->unfinished = optcc_world_run(world, 4000 * suspect_ns);
    outcome->now_ns = optcc_world_now(world);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct optcc_counters counters;
        optcc_count(engine[rank], &counters);
        outcome->segments += counters.landed_segments;
        outcome->resent += counters.resent_segments;
        outcome->duplicates += counters.duplicates;
        outcome->refused += counters.refused;
        outcome->left += counters.left;
        outcome->returned += counters.returned;
    }
    optcc_world_close(world);
    for (uint32_t rank = 0; rank < 2; rank++)
        optcc_messages_close(match.player[rank].messages);
    for (uint32_t i = 0; i < match.plans; i++) {
        for (uint32_t k = 0; k < match.plan[i].messages; k++) {
            free(match.plan[i].message[k].out);
            free(match.plan[i].message[k].in);
        }
        free(match.plan[i].message);
    }
    return 0;
}

/* ---- a peer that lies -------------------------------------------------------------------------------------------- */

struct liar {
    struct optcc_engine *engine;
    uint64_t random, seq;
};

/* A frame as rank 1 would send it, but for what it says. */
static void say(struct liar *liar, uint32_t row, uint32_t word, uint64_t offset, const void *bytes, uint32_t length,
                uint64_t seq)
{
    uint64_t told[(sizeof(struct optcc_frame) + 2 * SEGMENT) / 8];
    struct optcc_frame head = {.magic = OPTCC_MAGIC, .version = OPTCC_VERSION, .kind = OPTCC_DATA, .from = 1, .to = 0,
                               .job = 99, .epoch = 1, .begun = 1, .seq = seq, .operation = 1, .row = row,
                               .word = word, .length = length, .offset = offset};
    memcpy(told, &head, sizeof head);
    memcpy((unsigned char *)told + sizeof head, bytes, length);
    optcc_hear(liar->engine, 0, told, sizeof head + length);
}

/* `count` segments, most of which must not be believed: how often a buffer was called whole without having had each of
 * its segments once, or memory beside it was touched. `believed`: segments that landed. */
uint64_t lie_in_messages(uint64_t seed, uint64_t count, uint64_t *believed);
uint64_t lie_in_messages(uint64_t seed, uint64_t count, uint64_t *believed)
{
    const struct optcc_weather weather = {.seed = seed, .latency_ns = 1000};
    const struct optcc_config own = config_of(0, 1000000, 0);
    const struct optcc_messages_config config = {.peer = 1, .streams = 4, .segment_bytes = SEGMENT, .most_bytes = MOST};
    struct optcc_world *world = optcc_world_open(2, &weather);
    struct liar liar = {.random = seed};
    struct optcc_messages *messages;
    struct optcc_counters before, after;
    uint64_t wrong = 0, number;
    uint32_t stream, out;
    optcc_world_nic(world, 0, 1e9, 1e9);
    optcc_world_nic(world, 1, 1e9, 1e9);
    optcc_world_wire(world, 0, 0, 1, 0);
    optcc_world_engine(world, &own, &liar.engine);
    optcc_messages_open(&config, &messages);
    optcc_begin_messages(liar.engine, messages);
    const uint64_t port[2] = {5, 0};
    say(&liar, 2u << 28, 0, 0, port, sizeof port, liar.seq++); /* OPEN */
    wrong += optcc_stream_take(messages, 5, &stream) != OPTCC_OK;
    wrong += optcc_stream_open(messages, 6, &out) != OPTCC_OK;
    unsigned char junk[2 * SEGMENT], buffer[MOST + 2 * GUARD], own_bytes[MOST];
    memset(junk, 0xee, sizeof junk);
    memset(own_bytes, 1, sizeof own_bytes);
    uint64_t room = 0, landed = 0, posted = 0;
    int open = 0;
    for (uint64_t told = 0; told < count; told++) {
        if (!open) {
            room = below(&liar.random, MOST);
            memset(buffer, GUARDED, sizeof buffer);
            open = optcc_receive(messages, stream, buffer + GUARD, room, &posted) == OPTCC_OK;
            landed = 0;
            if (!open)
                break; /* its credit is not acknowledged: OPTCC_DEPTH are enough */
        }
        optcc_send(messages, out, own_bytes, below(&liar.random, MOST), (struct optcc_tag){0}, &number);
        const uint64_t whole = below(&liar.random, 3) ? room : below(&liar.random, 2 * MOST);
        uint64_t offset = below(&liar.random, whole / SEGMENT + 1) * SEGMENT;
        uint64_t length = whole - offset < SEGMENT ? whole - offset : SEGMENT;
        uint32_t row = stream << 8 | (uint32_t)(posted % OPTCC_DEPTH), word = (uint32_t)whole;
        switch (below(&liar.random, 8)) {
        case 0:
            row = (uint32_t)draw(&liar.random);
            break;
        case 1:
            row ^= 1u << below(&liar.random, 32);
            break;
        case 2:
            offset = below(&liar.random, 3) ? draw(&liar.random) : offset + below(&liar.random, SEGMENT);
            break;
        case 3:
            length = below(&liar.random, 2 * SEGMENT);
            break;
        case 4: /* a record: a credit, or an end */
            row = (uint32_t)(1 + below(&liar.random, 4)) << 28 | (uint32_t)below(&liar.random, 6) << 8 |
                  (uint32_t)below(&liar.random, 40);
            length = 16;
            if (row >> 28 == 3 || row >> 28 == 4)
                row |= 3 << 8; /* not of the streams in use: these ends would be true */
            break;
        default:
            break;
        }
        if (!length || length > SEGMENT)
            length = 1 + length % SEGMENT;
        optcc_count(liar.engine, &before);
        /* What a record says: as credits no number that can be, with a length that can. */
        const uint64_t record[2] = {draw(&liar.random) | 1024, below(&liar.random, 2 * OPTCC_DEPTH) << 32 | SEGMENT};
        say(&liar, row, word, offset, row >> 28 && length == sizeof record ? (const void *)record : junk, (uint32_t)length,
            liar.seq);
        optcc_count(liar.engine, &after);
        if (after.landed_segments > before.landed_segments) {
            *believed += 1;
            liar.seq++;
            wrong += row >> 28 == 1; /* a credit of no number that can be */
            if (row >> 28 == 0 && word != UINT32_MAX)
                landed += whole ? length : 0;
        }
        for (uint64_t i = 0; i < GUARD; i++)
            wrong += buffer[i] != GUARDED || buffer[GUARD + room + i] != GUARDED;
        struct optcc_tag tag;
        uint64_t said = 0;
        const int result = optcc_received(messages, stream, posted, &said, &tag);
        if (result == OPTCC_AGAIN)
            continue;
        if (result == OPTCC_OK) {
            uint64_t filled = 0;
            for (uint64_t i = 0; i < said; i++)
                filled += buffer[GUARD + i] == 0xee;
            wrong += filled != said || landed != said || said > room;
        }
        open = 0;
    }
    optcc_world_close(world);
    optcc_messages_close(messages);
    return wrong;
}

/* ---- how soon what has come is acknowledged ---------------------------------------------------------------------- */

struct acknowledged {
    uint64_t frames, by_messages; /* that acknowledge and do nothing else; messages of our own, which do it as well */
    uint64_t latest_ns;           /* from when a segment came to the frame */
};

struct listener { /* the wires of an engine that nobody else runs */
    struct optcc_engine *engine;
    struct acknowledged *found;
    uint64_t now_ns, came_ns;
    uint32_t left; /* payloads to be given back */
};

static uint64_t listener_now(void *self) { return ((struct listener *)self)->now_ns; }

static uint32_t listener_room(void *self, uint32_t nic) { return (void)self, (void)nic, 1; }

static int listener_post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload, uint64_t ready_ns)
{
    struct listener *l = self;
    (void)wire, (void)ready_ns;
    if (l->came_ns && payload && head->row >> 28 == 0)
        l->found->by_messages++;
    if (l->came_ns && head->kind == OPTCC_HELLO) {
        l->found->frames++;
        if (l->now_ns - l->came_ns > l->found->latest_ns)
            l->found->latest_ns = l->now_ns - l->came_ns;
    }
    l->left += payload != NULL;
    return OPTCC_OK;
}

static void listener_poll(void *self, struct optcc_event *event)
{
    struct listener *l = self;
    *event = (struct optcc_event){.news = l->left ? OPTCC_LEFT : OPTCC_NOTHING};
    l->left -= l->left > 0;
}

static void listener_fence(void *self, uint32_t wire) { (void)self, (void)wire; }

static int listener_renew(void *self, uint32_t wire) { return (void)self, (void)wire, OPTCC_LOST; }

/* `count` messages of `length` bytes come, one `every` so many nanoseconds; `sends`: as many of our own go, each after one
 * has come. */
int acknowledge_messages(uint64_t count, uint64_t length, uint64_t every, uint64_t ack_ns, uint64_t sends,
                         struct acknowledged *found);
int acknowledge_messages(uint64_t count, uint64_t length, uint64_t every, uint64_t ack_ns, uint64_t sends,
                         struct acknowledged *found)
{
    static const struct optcc_wires LISTENER = {listener_now, listener_room, listener_post, listener_poll, listener_fence,
                                                listener_renew, NULL, NULL, NULL};
    const struct optcc_wire wire = {.peer = 1};
    struct optcc_config own = config_of(0, 1000000000, ack_ns);
    const struct optcc_messages_config config = {.peer = 1, .streams = 4, .segment_bytes = SEGMENT, .most_bytes = MOST};
    struct listener l = {.found = found, .now_ns = 1000};
    struct liar peer = {0};
    struct optcc_messages *messages;
    static unsigned char bytes[MOST], buffer[OPTCC_DEPTH][MOST];
    uint32_t stream, out;
    uint64_t number;
    own.nics = own.wires = 1;
    *found = (struct acknowledged){0};
    if (count > OPTCC_DEPTH || length > SEGMENT || optcc_messages_open(&config, &messages) != OPTCC_OK ||
        optcc_open(&own, &wire, &LISTENER, &l, &l.engine) != OPTCC_OK ||
        optcc_begin_messages(l.engine, messages) != OPTCC_OK)
        return 1;
    peer.engine = l.engine;
    const uint64_t open[2] = {5, 0}, credit[2] = {0, count << 32 | MOST};
    say(&peer, 2u << 28, 0, 0, open, sizeof open, peer.seq++);
    if (optcc_stream_take(messages, 5, &stream) != OPTCC_OK || optcc_stream_open(messages, 6, &out) != OPTCC_OK)
        return 1;
    for (uint64_t i = 0; i < count; i++)
        if (optcc_receive(messages, stream, buffer[i], length, &number) != OPTCC_OK)
            return 1;
    optcc_progress(l.engine);
    say(&peer, 1u << 28 | out << 8, 0, 0, credit, sizeof credit, peer.seq++);
    l.now_ns += ack_ns;
    optcc_progress(l.engine); /* so all that is older is acknowledged */
    for (uint64_t i = 0; i < count; i++) {
        l.now_ns += every;
        l.came_ns = 0;
        optcc_progress(l.engine); /* which tells it the time */
        l.came_ns = l.now_ns;
        say(&peer, stream << 8 | (uint32_t)i, (uint32_t)length, 0, bytes, (uint32_t)length, peer.seq++);
        if (sends && optcc_send(messages, out, bytes, length, (struct optcc_tag){0}, &number) != OPTCC_OK)
            return 1;
        const uint64_t next_ns = l.now_ns + every;
        for (uint64_t again_ns = optcc_progress(l.engine); again_ns < next_ns; again_ns = optcc_progress(l.engine)) {
            if (again_ns == l.now_ns)
                return 1;
            l.now_ns = again_ns;
        }
        l.now_ns = next_ns - every;
    }
    optcc_close(l.engine);
    optcc_messages_close(messages);
    return 0;
}
