/* Virtual wires: many ranks in one process, in virtual time. Everything that happens follows from the seed, the tasks
 * and the faults, so a run can be played again to the bit.
 *
 * A NIC sends one payload at a time at its rate, and takes them in at its rate in the order in which they have left
 * their senders; `latency` lies between the two. Frames without payload do not queue behind payloads, as over a queue
 * pair of their own. A payload is read when it leaves, as late as a NIC may, and goes on being held while a NIC is mute.
 *
 * A rank's folder, if it is given one, does jobs later, out of order, few at a time; each reads and writes at its end.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

struct frame {
    struct frame *next; /* in an inbox, or of those that are free */
    uint32_t news, wire; /* what it is to who polls it: enum optcc_news, its index there */
    uint32_t to;        /* rank */
    uint32_t from, own_wire; /* and who posts it */
    uint32_t out_nic, in_nic; /* NICs of `from` and `to` */
    uint64_t start_ns;
    const void *payload; /* until it has left */
    uint64_t length;     /* bytes, with the head */
    uint32_t cancelled, leaving, held;
    uint64_t bytes[];    /* head and payload */
};

struct nic {
    double out_rate, in_rate; /* bytes per second */
    double factor;            /* of its rates, for now */
    uint64_t in_free_ns;
    struct frame *given;      /* the payload that it sends; NULL: it is free */
    int dead, mute;           /* mute: bit 0 out, bit 1 in */
};

struct end { /* a wire at one rank */
    uint32_t far_rank, far_wire, nic, far_nic;
};

struct task {
    struct optcc_program *program;
    void *buffer, *result;
    uint64_t bytes;
    enum optcc_type type;
    enum optcc_op op;
};

enum { JOBS = 4 }; /* that a folder does at a time */

struct job {
    struct optcc_job job;
    int given, done;
};

struct rank {
    struct optcc_world *world;
    uint32_t number, nics, wires, tasks, done;
    struct nic nic[OPTCC_MAX_NICS];
    struct optcc_wire *wire;
    struct end *end;
    struct task *task;
    struct optcc_engine *engine;
    struct frame *first, **last; /* the inbox */
    struct frame *polled;        /* free at the next poll */
    uint64_t wake_ns;
    enum optcc_play (*play)(void *context); /* NULL: tasks */
    void *context;
    int paused, killed, lost, running, played;
    struct job jobs[JOBS];
    uint64_t job_ns;      /* the longest that one takes */
};

enum happening { LEAVE, LAND, NEWS, FAULT, JOB };

struct event {
    uint64_t at_ns, number; /* of those of one time the first made comes first */
    uint32_t what, rank, nic, kind;
    uint64_t value;
    struct frame *frame;
};

struct optcc_world {
    uint32_t ranks;
    struct rank *rank;
    struct optcc_weather weather;
    uint64_t now_ns, random, made, touched;
    struct event *heap;
    uint32_t events, room;
    int out_of_memory;
};

/* ---- chance and time --------------------------------------------------------------------------------------------- */

static uint64_t draw(struct optcc_world *w) /* splitmix64 */
{
    uint64_t z = w->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int chance(struct optcc_world *w, uint32_t millionths) { return millionths && draw(w) % 1000000 < millionths; }

static int before(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

static void push(struct optcc_world *w, struct event event)
{
    if (w->events == w->room) {
        struct event *more = realloc(w->heap, (w->room ? 2 * w->room : 256) * sizeof *more);
        if (!more) {
            w->out_of_memory = 1;
            return;
        }
        w->heap = more;
        w->room = w->room ? 2 * w->room : 256;
    }
    event.number = w->made++;
    uint32_t i = w->events++;
    for (; i && before(&event, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = event;
}

static struct event pop(struct optcc_world *w)
{
    const struct event top = w->heap[0], last = w->heap[--w->events];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < w->events && before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (child >= w->events || !before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static struct frame *new_frame(struct optcc_world *w, uint64_t length)
{
    struct frame *f = calloc(1, sizeof *f + length);
    if (f)
        f->length = length;
    else
        w->out_of_memory = 1;
    return f;
}

static void deliver(struct rank *r, struct frame *f)
{
    f->next = NULL;
    *r->last = f;
    r->last = &f->next;
    r->wake_ns = 0;
}

static void say(struct optcc_world *w, uint32_t rank, uint32_t wire, enum optcc_news news, uint64_t after_ns)
{
    struct frame *f = new_frame(w, 0);
    if (!f)
        return;
    f->news = news;
    f->wire = wire;
    f->to = rank;
    if (after_ns)
        push(w, (struct event){.at_ns = w->now_ns + after_ns, .what = NEWS, .frame = f});
    else
        deliver(&w->rank[rank], f);
}

/* ---- the contract ------------------------------------------------------------------------------------------------ */

static uint64_t now(void *self) { return ((struct rank *)self)->world->now_ns; }

static uint32_t room(void *self, uint32_t nic)
{
    const struct nic *n = &((struct rank *)self)->nic[nic];
    return !n->given && !n->dead;
}

static uint64_t spent(uint64_t bytes, double rate) { return (uint64_t)((double)bytes * 1e9 / rate + 0.5); }

/* A frame is on its way; it may be lost, doubled or late. */
static void fly(struct optcc_world *w, struct frame *f, uint64_t at_ns)
{
    const uint64_t late_ns = w->weather.jitter_ns ? draw(w) % w->weather.jitter_ns : 0;
    if (chance(w, w->weather.doubled)) {
        struct frame *twin = new_frame(w, f->length);
        if (twin) {
            memcpy(twin, f, sizeof *f + f->length);
            push(w, (struct event){.at_ns = at_ns + 3 * late_ns, .what = LAND, .frame = twin});
        }
    }
    if (chance(w, w->weather.lost))
        free(f);
    else
        push(w, (struct event){.at_ns = at_ns + late_ns, .what = LAND, .frame = f});
}

static int post(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload, uint64_t ready_ns)
{
    (void)ready_ns;
    struct rank *r = self;
    struct optcc_world *w = r->world;
    const struct end *end = &r->end[wire];
    struct nic *n = &r->nic[end->nic];
    if (n->dead)
        return OPTCC_LOST;
    if (payload && n->given)
        return OPTCC_AGAIN;
    if (!payload && n->mute & 1)
        return OPTCC_OK;
    struct frame *f = new_frame(w, sizeof *head + head->length);
    if (!f)
        return OPTCC_AGAIN;
    f->news = OPTCC_FRAME;
    f->wire = end->far_wire;
    f->from = r->number;
    f->own_wire = wire;
    f->to = end->far_rank;
    f->out_nic = end->nic;
    f->in_nic = end->far_nic;
    f->start_ns = w->now_ns;
    f->payload = payload;
    memcpy(f->bytes, head, sizeof *head);
    const uint64_t left_ns = w->now_ns + spent(f->length, n->out_rate * n->factor);
    if (!payload) {
        fly(w, f, left_ns + w->weather.latency_ns);
        return OPTCC_OK;
    }
    n->given = f;
    f->leaving = 1;
    push(w, (struct event){.at_ns = left_ns, .what = LEAVE, .frame = f});
    return OPTCC_OK;
}

static void poll(void *self, struct optcc_event *event)
{
    struct rank *r = self;
    if (r->polled && !r->polled->held)
        free(r->polled);
    struct frame *f = r->polled = r->first;
    if (!f) {
        *event = (struct optcc_event){.news = OPTCC_NOTHING};
        return;
    }
    if (!(r->first = f->next))
        r->last = &r->first;
    f->held = f->news == OPTCC_FRAME && f->length > sizeof(struct optcc_frame);
    *event = (struct optcc_event){.news = f->news, .wire = f->wire, .length = f->length, .bytes = f->bytes,
                                  .held = f->held ? (uintptr_t)f : 0};
}

static int release(void *self, uint32_t wire, uint64_t held)
{
    struct rank *r = self;
    struct frame *f = (struct frame *)(uintptr_t)held;
    (void)wire;
    memset((unsigned char *)f->bytes + sizeof(struct optcc_frame), 0x5a, f->length - sizeof(struct optcc_frame));
    f->held = 0;
    if (f != r->polled)
        free(f);
    return OPTCC_OK;
}

/* What is given to the NIC for this wire is dropped. */
static void fence(void *self, uint32_t wire)
{
    struct rank *r = self;
    const struct end *end = &r->end[wire];
    struct nic *n = &r->nic[end->nic];
    if (n->given && n->given->own_wire == wire) {
        if (n->given->leaving)
            n->given->cancelled = 1; /* freed by its event */
        else
            free(n->given);
        n->given = NULL;
    }
    say(r->world, r->number, wire, OPTCC_FENCED, r->world->weather.latency_ns + 1);
}

static int renew(void *self, uint32_t wire)
{
    const struct rank *r = self;
    return r->nic[r->end[wire].nic].dead ? OPTCC_LOST : OPTCC_OK;
}

static const struct optcc_wires CONTRACT = {now, room, post, poll, fence, renew, NULL, NULL, release};

/* ---- a folder that takes its time -------------------------------------------------------------------------------- */

static int begin_job(void *self, const struct optcc_job *job, uint64_t *ticket)
{
    struct rank *r = self;
    struct optcc_world *w = r->world;
    for (uint32_t i = 0; i < JOBS; i++)
        if (!r->jobs[i].given) {
            r->jobs[i] = (struct job){.job = *job, .given = 1};
            *ticket = i;
            push(w, (struct event){.at_ns = w->now_ns + 1 + draw(w) % r->job_ns, .what = JOB, .rank = r->number,
                                   .value = i});
            return OPTCC_OK;
        }
    return OPTCC_AGAIN;
}

static int job_done(void *self, uint64_t ticket)
{
    struct job *job = &((struct rank *)self)->jobs[ticket];
    if (!job->done)
        return OPTCC_AGAIN;
    job->given = job->done = 0;
    return OPTCC_OK;
}

static void do_job(struct rank *r, uint64_t ticket)
{
    struct job *j = &r->jobs[ticket];
    if (j->job.fold)
        optcc_fold((enum optcc_type)j->job.type, (enum optcc_op)j->job.op, j->job.to, j->job.from, j->job.bytes / optcc_type_bytes(j->job.type));
    else
        memcpy(j->job.to, j->job.from, j->job.bytes);
    j->done = 1;
}

static const struct optcc_folder FOLDER = {begin_job, job_done, 200};

int optcc_world_folder(struct optcc_world *w, uint32_t rank, struct optcc_program *program, uint64_t most_ns)
{
    if (rank >= w->ranks || !most_ns)
        return OPTCC_BAD;
    w->rank[rank].job_ns = most_ns;
    return optcc_program_use(program, &FOLDER, &w->rank[rank], NULL);
}

/* ---- making one -------------------------------------------------------------------------------------------------- */

struct optcc_world *optcc_world_open(uint32_t ranks, const struct optcc_weather *weather)
{
    struct optcc_world *w = calloc(1, sizeof *w);
    if (!w || !ranks || ranks > OPTCC_MAX_RANKS || !(w->rank = calloc(ranks, sizeof *w->rank))) {
        free(w);
        return NULL;
    }
    w->ranks = ranks;
    w->weather = *weather;
    w->random = weather->seed;
    for (uint32_t i = 0; i < ranks; i++) {
        w->rank[i].world = w;
        w->rank[i].number = i;
        w->rank[i].last = &w->rank[i].first;
    }
    return w;
}

void optcc_world_close(struct optcc_world *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->events; i++)
        free(w->heap[i].frame);
    for (uint32_t i = 0; i < w->ranks; i++) {
        struct rank *r = &w->rank[i];
        optcc_close(r->engine);
        for (struct frame *f = r->first, *next; f; f = next) {
            next = f->next;
            free(f);
        }
        for (uint32_t n = 0; n < r->nics; n++)
            if (r->nic[n].given && !r->nic[n].given->leaving)
                free(r->nic[n].given);
        free(r->polled);
        free(r->wire);
        free(r->end);
        free(r->task);
    }
    free(w->rank);
    free(w->heap);
    free(w);
}

int optcc_world_nic(struct optcc_world *w, uint32_t rank, double out_rate, double in_rate)
{
    if (rank >= w->ranks || w->rank[rank].nics == OPTCC_MAX_NICS || !(out_rate > 0) || !(in_rate > 0))
        return OPTCC_BAD;
    w->rank[rank].nic[w->rank[rank].nics++] = (struct nic){.out_rate = out_rate, .in_rate = in_rate, .factor = 1};
    return OPTCC_OK;
}

static int add_end(struct rank *r, uint32_t nic, const struct rank *far, uint32_t far_nic, uint32_t far_wire)
{
    struct optcc_wire *wire = realloc(r->wire, (r->wires + 1) * sizeof *wire);
    if (wire)
        r->wire = wire;
    struct end *end = realloc(r->end, (r->wires + 1) * sizeof *end);
    if (end)
        r->end = end;
    if (!wire || !end)
        return OPTCC_MEMORY;
    uint32_t lane = 0;
    for (uint32_t i = 0; i < r->wires; i++)
        lane += wire[i].peer == far->number;
    wire[r->wires] = (struct optcc_wire){.peer = far->number, .nic = nic, .far_nic = far_nic, .lane = lane};
    end[r->wires++] = (struct end){.far_rank = far->number, .far_wire = far_wire, .nic = nic, .far_nic = far_nic};
    return OPTCC_OK;
}

int optcc_world_wire(struct optcc_world *w, uint32_t rank, uint32_t nic, uint32_t far_rank, uint32_t far_nic)
{
    if (rank >= w->ranks || far_rank >= w->ranks || rank == far_rank || nic >= w->rank[rank].nics ||
        far_nic >= w->rank[far_rank].nics)
        return OPTCC_BAD;
    struct rank *r = &w->rank[rank], *far = &w->rank[far_rank];
    const uint32_t wire = r->wires, far_wire = far->wires;
    const int result = add_end(r, nic, far, far_nic, far_wire);
    return result == OPTCC_OK ? add_end(far, far_nic, r, nic, wire) : result;
}

int optcc_world_engine(struct optcc_world *w, const struct optcc_config *config, struct optcc_engine **engine)
{
    if (config->rank >= w->ranks || w->rank[config->rank].engine)
        return OPTCC_BAD;
    struct rank *r = &w->rank[config->rank];
    struct optcc_config own = *config;
    own.nics = r->nics;
    own.wires = r->wires;
    const int result = optcc_open(&own, r->wire, &CONTRACT, r, &r->engine);
    if (engine)
        *engine = r->engine;
    return result;
}

int optcc_world_task(struct optcc_world *w, uint32_t rank, struct optcc_program *program, void *buffer, void *result,
                     uint64_t bytes, enum optcc_type type, enum optcc_op op)
{
    struct rank *r = &w->rank[rank];
    struct task *more = realloc(r->task, (r->tasks + 1) * sizeof *more);
    if (!more)
        return OPTCC_MEMORY;
    r->task = more;
    r->task[r->tasks++] = (struct task){program, buffer, result, bytes, type, op};
    return OPTCC_OK;
}

int optcc_world_player(struct optcc_world *w, uint32_t rank, enum optcc_play (*play)(void *context), void *context)
{
    if (rank >= w->ranks || !w->rank[rank].engine || w->rank[rank].tasks)
        return OPTCC_BAD;
    w->rank[rank].play = play;
    w->rank[rank].context = context;
    return OPTCC_OK;
}

int optcc_world_fault(struct optcc_world *w, uint64_t at_ns, enum optcc_fault kind, uint32_t rank, uint32_t nic,
                      uint64_t value)
{
    if ((unsigned)kind >= OPTCC_FAULTS || rank >= w->ranks || nic >= w->rank[rank].nics)
        return OPTCC_BAD;
    push(w, (struct event){.at_ns = at_ns, .what = FAULT, .rank = rank, .nic = nic, .kind = kind, .value = value});
    return OPTCC_OK;
}

/* ---- what happens ------------------------------------------------------------------------------------------------ */

/* The payload has gone out: it is read now, and its sender may have the memory back. */
static void leave(struct optcc_world *w, struct frame *f)
{
    struct rank *r = &w->rank[f->from];
    struct nic *n = &r->nic[f->out_nic], *far = &w->rank[f->to].nic[f->in_nic];
    f->leaving = 0;
    if (f->cancelled) {
        free(f);
        return;
    }
    if (n->dead || n->mute & 1 || r->killed)
        return; /* it stays with the NIC */
    n->given = NULL;
    memcpy((unsigned char *)f->bytes + sizeof(struct optcc_frame), f->payload, f->length - sizeof(struct optcc_frame));
    say(w, f->from, f->own_wire, OPTCC_LEFT, 0);
    const uint64_t head_ns = f->start_ns + w->weather.latency_ns;
    far->in_free_ns = (far->in_free_ns > head_ns ? far->in_free_ns : head_ns) +
                      spent(f->length, far->in_rate * far->factor);
    const uint64_t last_ns = w->now_ns + w->weather.latency_ns;
    fly(w, f, far->in_free_ns > last_ns ? far->in_free_ns : last_ns);
}

static void tell_wires(struct optcc_world *w, uint32_t rank, uint32_t nic, enum optcc_news news, int far_too)
{
    const struct rank *r = &w->rank[rank];
    for (uint32_t i = 0; i < r->wires; i++)
        if (r->end[i].nic == nic) {
            say(w, rank, i, news, 0);
            if (far_too)
                say(w, r->end[i].far_rank, r->end[i].far_wire, news, w->weather.latency_ns + 1);
        }
}

static void strike(struct optcc_world *w, const struct event *e)
{
    struct rank *r = &w->rank[e->rank];
    struct nic *n = &r->nic[e->nic];
    switch (e->kind) {
    case OPTCC_DIE:
        n->dead = 1;
        tell_wires(w, e->rank, e->nic, OPTCC_DIED, e->value == 1);
        break;
    case OPTCC_RETURN:
        n->dead = 0;
        if (e->value == 1)
            tell_wires(w, e->rank, e->nic, OPTCC_BACK, 0);
        break;
    case OPTCC_MUTE:
        n->mute = (int)(e->value & 3);
        break;
    case OPTCC_UNMUTE:
        n->mute = 0;
        break;
    case OPTCC_RATE:
        n->factor = (double)(e->value ? e->value : 1) / 1e6;
        break;
    case OPTCC_PAUSE:
        r->paused = 1;
        break;
    case OPTCC_RESUME:
        r->paused = 0;
        r->wake_ns = 0;
        break;
    case OPTCC_KILL:
        r->killed = 1;
        for (uint32_t i = 0; i < r->nics; i++)
            r->nic[i].mute = 3;
        break;
    default:
        break;
    }
    if (n->given && !n->given->leaving && !n->dead && !(n->mute & 1)) {
        n->given->leaving = 1;
        push(w, (struct event){.at_ns = w->now_ns, .what = LEAVE, .frame = n->given});
    }
}

static void happen(struct optcc_world *w, const struct event *e)
{
    struct frame *f = e->frame;
    switch (e->what) {
    case LEAVE:
        leave(w, f);
        break;
    case LAND:
        if (w->rank[f->to].nic[f->in_nic].dead || w->rank[f->to].nic[f->in_nic].mute & 2)
            free(f);
        else
            deliver(&w->rank[f->to], f);
        break;
    case NEWS:
        deliver(&w->rank[f->to], f);
        break;
    case JOB:
        do_job(&w->rank[e->rank], e->value);
        break;
    default:
        strike(w, e);
    }
}

/* One rank does what it can: goes on, ends a task, begins the next. */
static void act(struct optcc_world *w, struct rank *r)
{
    if (r->play) {
        enum optcc_play does = OPTCC_PLAY_BUSY;
        while (does == OPTCC_PLAY_BUSY) {
            r->wake_ns = optcc_progress(r->engine);
            does = r->play(r->context);
            r->lost |= optcc_test(r->engine, NULL) == OPTCC_LOST;
        }
        r->played = does == OPTCC_PLAY_DONE;
        return;
    }
    for (;;) {
        if (!r->running && !r->lost && r->done < r->tasks) {
            const struct task *t = &r->task[r->done];
            const struct optcc_call call = {.buffer = t->buffer, .type = t->type, .op = t->op, .sign = r->done};
            if (optcc_begin(r->engine, t->program, &call) == OPTCC_OK)
                r->running = 1;
            else
                r->lost = 1;
        }
        r->wake_ns = optcc_progress(r->engine);
        const int result = optcc_test(r->engine, NULL);
        if (!r->running || result == OPTCC_AGAIN)
            return;
        r->running = 0;
        for (uint32_t i = 0; i < r->nics; i++)
            w->touched += r->nic[i].given != NULL;
        for (uint32_t i = 0; i < JOBS; i++)
            w->touched += r->jobs[i].given && !r->jobs[i].done;
        if (result != OPTCC_OK) {
            r->lost = 1;
            return;
        }
        const struct task *t = &r->task[r->done++];
        memcpy(t->result, t->buffer, t->bytes);
        memset(t->buffer, 0xa5, t->bytes);
    }
}

int optcc_world_run(struct optcc_world *w, uint64_t limit_ns)
{
    for (;;) {
        int open = 0, lost = 0;
        uint64_t next_ns = UINT64_MAX;
        for (uint32_t i = 0; i < w->ranks; i++) {
            struct rank *r = &w->rank[i];
            if (r->killed || !r->engine)
                continue;
            if (!r->paused && r->wake_ns <= w->now_ns)
                act(w, r);
            open += !r->lost && (r->play ? !r->played : r->done < r->tasks);
            lost += r->lost;
            if (!r->paused && r->wake_ns < next_ns)
                next_ns = r->wake_ns;
        }
        if (w->out_of_memory)
            return OPTCC_MEMORY;
        if (!open)
            return lost ? OPTCC_LOST : OPTCC_OK;
        if (w->events && w->heap[0].at_ns < next_ns)
            next_ns = w->heap[0].at_ns;
        if (next_ns > limit_ns)
            return OPTCC_LATE;
        if (next_ns > w->now_ns)
            w->now_ns = next_ns;
        while (w->events && w->heap[0].at_ns <= w->now_ns) {
            const struct event e = pop(w);
            happen(w, &e);
        }
    }
}

uint64_t optcc_world_now(const struct optcc_world *w) { return w->now_ns; }
uint64_t optcc_world_touched(const struct optcc_world *w) { return w->touched; }

int optcc_world_reads(const struct optcc_world *w, uint32_t rank, const void *bytes, uint64_t length)
{
    for (uint32_t i = 0; i < w->rank[rank].nics; i++) {
        const struct frame *f = w->rank[rank].nic[i].given;
        if (f && (uintptr_t)f->payload - (uintptr_t)bytes < length)
            return 1;
    }
    return 0;
}

uint32_t optcc_world_done(const struct optcc_world *w, uint32_t rank) { return w->rank[rank].done; }
