/* Copies and folds on a GPU, by one kernel that runs as long as a collective does and is fed through memory. So nothing
 * here calls CUDA: such a call may wait for a lock that another thread holds while it waits for this collective.
 *
 * The memory is the host's, page-locked, and the kernel reads and writes it, too. Jobs are numbered for ever. Job n is in
 * slot n % SLOTS and is done by block n % blocks of the kernel, which does its jobs in order and says in a word of its
 * own how many it has done. A large job is several: each block takes a part.
 *
 *   slot   four words. The upper 16 bits of each say which round of the slots it is of, so that a block that has read
 *          them all of one round has read them whole, by one access, whatever the order in which they came.
 *            0  where to: address       1  where from: address
 *            2  bytes, and above them what to do: enum task; the operation and the type of a fold    3  nothing
 *   line   by block: jobs of that block that are done, for ever; which life has begun there, and which has gone
 *   lives  which life may take jobs, and with which number it begins; a word for each that says that it is over, or that
 *          it is to leave
 *
 * A communicator starts a kernel for each collective. Before it each block is given a job of nothing, which tells that
 * the kernel runs and so that all is done that its stream had to do before; after it each is given one that ends it.
 *
 * Under NCCL a kernel comes and goes beside NCCL's (nccl/gpu.c), and nobody here knows when: it may come late, or never,
 * and may go while jobs wait. Each of these lives has a number. All blocks say that it is there; then, and not before,
 * it is given jobs. When its word says that it is over each block does what lies there, says that it has gone, and does
 * nothing any more; what it has left the processor does. While no life may take jobs, and where a job's memory is not
 * among what the GPU reaches or its type is not the kernel's, the processor does the job, at once. A life that is given
 * nothing for long is told to leave: NCCL's kernel, of this process or of one that shares the GPU, may be waiting for the
 * place that it takes, and then no job would ever come. Its word is written once more when NCCL's kernel has ended, and
 * before that the life has not gone.
 *
 * `serve` in runtime/devices/kernels/fold.cu is the kernel; the twin below does the same on the processor, for tests and
 * where there is no GPU.
 */
#include "engine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 1024,
    SLOT_WORDS = 4,
    MOST_BLOCKS = 64,   /* a power of two, as SLOTS is: a slot is always of the same block */
    MOST_PARTS = 256,   /* of a job */
    LINE_WORDS = 16,    /* of the words that blocks write */
    LIVES = 32,         /* that are asked for and have not gone */
    MOST_REACHED = 256, /* pieces of memory */
    ROUND_BIT = 48,     /* of a slot's words, from which on they say the round */
    TASK_BIT = 32,      /* of its third word, from which on it says what to do, */
    OP_BIT = 40,        /* by which operation */
    TYPE_BIT = 44,      /* and of which type */
    TICKET_BIT = 16     /* of a ticket, from which on it says the first part; below, how many there are */
};

enum task { NOTHING, COPY, FOLD, END };
enum line { DONE, BEGUN, GONE };         /* words of a block's line */
enum lives { MAY, FIRST, OVER = LINE_WORDS }; /* words behind the slots; LIVES from OVER on */

/* A life that is given nothing for so long ends. With a half of it, where a rank is 0.12 s late, the others' processors add
 * what that launch still has; and for so long a kernel is held up that does not fit beside. */
static const uint64_t STAYS_NS = UINT64_C(250000000);

static const uint64_t LEAVES = UINT64_C(1) << 63; /* of a life's word, beside its number: it is not over yet */

typedef _Atomic uint64_t word;

struct reached {
    uint64_t at, bytes;
};

struct optcc_gpu {
    word *done, *slot, *lives;
    uint32_t blocks;
    uint64_t part_bytes;
    uint64_t next, unfinished; /* jobs: the next one's number; all below are known to be done */
    enum optcc_type type;
    enum optcc_op op;
    int running;
    /* lives; `asked` and `types` are written by who launches kernels */
    _Atomic uint64_t asked, gone; /* numbers: the last one asked for; all up to it have gone */
    uint8_t types[LIVES];
    int comes;                    /* kernels come and go here */
    uint64_t life;                /* it may take jobs; 0: none */
    struct reached *reached;
    uint32_t pieces;
    uint64_t idle_life, idle_next, idle_ns; /* nothing was to be done since then: the life that is there, the next job */
    struct optcc_gpu_counts counts;
};

struct optcc_gpu_twin {
    word *done, *slot, *lives;
    uint64_t life; /* 0: it is told by jobs when to end */
    uint32_t blocks, ended;
    uint64_t next[MOST_BLOCKS];
    uint8_t over[MOST_BLOCKS]; /* what comes after its END is the next kernel's */
    enum optcc_type type;
    enum optcc_op op;
    uint64_t random;
};

static uint64_t round_of(uint64_t number) { return (number / SLOTS + 1) & 0xffff; }

uint64_t optcc_gpu_bytes(uint32_t blocks)
{
    return ((uint64_t)blocks * LINE_WORDS + SLOTS * SLOT_WORDS + OVER + LIVES) * sizeof(word);
}

uint64_t optcc_gpu_slots(uint32_t blocks, uint64_t *offset)
{
    *offset = (uint64_t)blocks * LINE_WORDS * sizeof(word);
    return SLOTS;
}

static int right(const void *memory, uint32_t blocks)
{
    return memory && (uintptr_t)memory % 128 == 0 && blocks && blocks <= MOST_BLOCKS && (blocks & (blocks - 1)) == 0;
}

int optcc_gpu_open(void *memory, uint32_t blocks, uint64_t part_bytes, struct optcc_gpu **gpu)
{
    *gpu = NULL;
    if (!right(memory, blocks) || part_bytes % 128 || !part_bytes || part_bytes > OPTCC_MAX_SEGMENT)
        return OPTCC_BAD;
    struct optcc_gpu *g = calloc(1, sizeof *g);
    if (!g)
        return OPTCC_MEMORY;
    memset(memory, 0, optcc_gpu_bytes(blocks));
    *g = (struct optcc_gpu){.done = memory, .slot = (word *)memory + (uint64_t)blocks * LINE_WORDS, .blocks = blocks,
                            .part_bytes = part_bytes};
    g->lives = g->slot + SLOTS * SLOT_WORDS;
    *gpu = g;
    return OPTCC_OK;
}

void optcc_gpu_close(struct optcc_gpu *g)
{
    if (g)
        free(g->reached);
    free(g);
}

/* ---- giving jobs ------------------------------------------------------------------------------------------------- */

static int is_done(const struct optcc_gpu *g, uint64_t number)
{
    const uint64_t done = atomic_load_explicit(&g->done[number % g->blocks * LINE_WORDS], memory_order_acquire);
    return done > number / g->blocks;
}

static int all_done(struct optcc_gpu *g)
{
    while (g->unfinished < g->next && is_done(g, g->unfinished))
        g->unfinished++;
    return g->unfinished == g->next;
}

/* task : and, of a fold, its operation and type */
static void put(struct optcc_gpu *g, uint64_t task, uint64_t to, uint64_t from, uint64_t bytes)
{
    const uint64_t mark = round_of(g->next) << ROUND_BIT;
    word *const slot = g->slot + g->next++ % SLOTS * SLOT_WORDS;
    atomic_store_explicit(&slot[0], mark | to, memory_order_relaxed);
    atomic_store_explicit(&slot[1], mark | from, memory_order_relaxed);
    atomic_store_explicit(&slot[2], mark | task << TASK_BIT | bytes, memory_order_release);
}

static int reaches(const struct optcc_gpu *g, uint64_t at, uint64_t bytes)
{
    for (uint32_t i = 0; i < g->pieces; i++)
        if (at >= g->reached[i].at && at - g->reached[i].at <= g->reached[i].bytes &&
            bytes <= g->reached[i].bytes - (at - g->reached[i].at))
            return 1;
    return 0;
}

/* What a slot says, by the processor. */
static void do_slot(const word *slot)
{
    uint64_t said[3];
    for (int i = 0; i < 3; i++)
        said[i] = atomic_load_explicit(&slot[i], memory_order_acquire) & ((UINT64_C(1) << ROUND_BIT) - 1);
    void *const to = (void *)(uintptr_t)said[0];
    const void *const from = (const void *)(uintptr_t)said[1];
    const uint64_t bytes = said[2] & UINT32_MAX;
    const enum optcc_type type = (enum optcc_type)(said[2] >> TYPE_BIT & 15);
    switch (said[2] >> TASK_BIT & 255) {
    case COPY:
        memcpy(to, from, bytes);
        break;
    case FOLD:
        optcc_fold(type, (enum optcc_op)(said[2] >> OP_BIT & 15), to, from, bytes / optcc_type_bytes(type));
        break;
    default:
        break;
    }
}

/* The processor does it, at once: whether it is one for the processor. */
static int beside(struct optcc_gpu *g, const struct optcc_job *job, uint64_t to, uint64_t from)
{
    if (!g->comes || (g->life && g->running && (!job->fold || job->type == g->type) &&
                      job->bytes <= OPTCC_MAX_SEGMENT && reaches(g, to, job->bytes) && reaches(g, from, job->bytes)))
        return 0;
    if (job->fold)
        optcc_fold((enum optcc_type)job->type, (enum optcc_op)job->op, job->to, job->from,
                   job->bytes / optcc_type_bytes((enum optcc_type)job->type));
    else
        memcpy(job->to, job->from, job->bytes);
    g->counts.beside_bytes += job->bytes;
    return 1;
}

static int begin(void *self, const struct optcc_job *job, uint64_t *ticket)
{
    struct optcc_gpu *g = self;
    const uint64_t to = (uintptr_t)job->to, from = (uintptr_t)job->from, beyond = UINT64_C(1) << ROUND_BIT;
    *ticket = 0;
    if (beside(g, job, to, from))
        return OPTCC_OK;
    if (!g->running || job->bytes > OPTCC_MAX_SEGMENT || to >= beyond || from >= beyond ||
        (job->fold && (job->type != g->type || (!g->comes && job->op != g->op))))
        return OPTCC_LOST;
    const uint64_t task = job->fold ? FOLD | (uint64_t)job->op << (OP_BIT - TASK_BIT) |
                                          (uint64_t)job->type << (TYPE_BIT - TASK_BIT)
                                    : COPY;
    const uint64_t asked = (job->bytes + g->part_bytes - 1) / g->part_bytes;
    const uint64_t parts = asked > MOST_PARTS ? MOST_PARTS : asked;
    const uint64_t step = parts ? ((job->bytes + parts - 1) / parts + 127) / 128 * 128 : 0;
    /* Of the slots, enough stay free for the jobs that end the kernel. */
    if (g->next + parts + g->blocks > g->unfinished + SLOTS) {
        all_done(g);
        if (g->next + parts + g->blocks > g->unfinished + SLOTS)
            return OPTCC_AGAIN;
    }
    *ticket = g->next << TICKET_BIT;
    for (uint64_t at = 0; at < job->bytes; at += step, ++*ticket)
        put(g, task, to + at, from + at, job->bytes - at < step ? job->bytes - at : step);
    g->counts.given_bytes += job->bytes;
    return OPTCC_OK;
}

static int done(void *self, uint64_t ticket)
{
    const struct optcc_gpu *g = self;
    const uint64_t first = ticket >> TICKET_BIT, parts = ticket & ((1 << TICKET_BIT) - 1);
    for (uint64_t i = 0; i < parts; i++)
        if (!is_done(g, first + i))
            return OPTCC_AGAIN;
    return OPTCC_OK;
}

static const struct optcc_folder FOLDER = {begin, done, 0};

int optcc_gpu_job(struct optcc_gpu *g, const struct optcc_job *job, uint64_t *ticket) { return begin(g, job, ticket); }
int optcc_gpu_done(const struct optcc_gpu *g, uint64_t ticket) { return done((void *)(uintptr_t)g, ticket); }

int optcc_gpu_use(struct optcc_gpu *g, struct optcc_program *program, void *early)
{
    return optcc_program_use(program, &FOLDER, g, early);
}

static void each_block(struct optcc_gpu *g, enum task task)
{
    for (uint32_t i = 0; i < g->blocks; i++)
        put(g, task, 0, 0, 0);
}

int optcc_gpu_launch(struct optcc_gpu *g, enum optcc_type type, enum optcc_op op, uint64_t *first)
{
    if ((unsigned)op >= OPTCC_OPS || !optcc_type_bytes(type))
        return OPTCC_BAD;
    all_done(g); /* kernels of one stream run one after another: this one may be given jobs before the last has ended */
    if (g->running || g->next + 2 * g->blocks > g->unfinished + SLOTS)
        return OPTCC_AGAIN;
    g->type = type;
    g->op = op;
    g->running = 1;
    *first = g->next;
    each_block(g, NOTHING);
    return OPTCC_OK;
}

int optcc_gpu_idle(struct optcc_gpu *g) { return all_done(g) ? OPTCC_OK : OPTCC_AGAIN; }

int optcc_gpu_end(struct optcc_gpu *g)
{
    if (!g->running)
        return OPTCC_BAD;
    g->running = 0;
    each_block(g, END);
    return OPTCC_OK;
}

/* ---- kernels that come and go ------------------------------------------------------------------------------------- */

int optcc_gpu_reach(struct optcc_gpu *g, const void *memory, uint64_t bytes)
{
    if (!g->reached && !(g->reached = calloc(MOST_REACHED, sizeof *g->reached)))
        return OPTCC_MEMORY;
    if (g->pieces == MOST_REACHED)
        return OPTCC_BAD;
    g->reached[g->pieces++] = (struct reached){(uintptr_t)memory, bytes};
    return OPTCC_OK;
}

void optcc_gpu_forget(struct optcc_gpu *g, const void *memory)
{
    for (uint32_t i = 0; i < g->pieces; i++)
        if (g->reached[i].at == (uintptr_t)memory) {
            g->reached[i] = g->reached[--g->pieces];
            return;
        }
}

int optcc_gpu_ask(struct optcc_gpu *g, enum optcc_type type, struct optcc_gpu_life *life)
{
    const uint64_t number = atomic_load_explicit(&g->asked, memory_order_relaxed) + 1;
    if (!optcc_type_bytes(type))
        return OPTCC_BAD;
    if (number > atomic_load_explicit(&g->gone, memory_order_acquire) + LIVES)
        return OPTCC_AGAIN;
    *life = (struct optcc_gpu_life){.number = number, .slots = g->slot, .count = SLOTS, .lines = g->done,
                                    .lives = g->lives, .over = g->lives + OVER + number % LIVES};
    g->types[number % LIVES] = (uint8_t)type;
    atomic_store_explicit(&g->asked, number, memory_order_release);
    return OPTCC_OK;
}

void optcc_gpu_unask(struct optcc_gpu *g) { atomic_fetch_sub(&g->asked, 1); }

/* How many blocks have begun a life. */
static uint32_t begun_in(const struct optcc_gpu *g, uint64_t life)
{
    uint32_t count = 0;
    for (uint32_t b = 0; b < g->blocks; b++)
        count += atomic_load_explicit(&g->done[b * LINE_WORDS + BEGUN], memory_order_acquire) == life;
    return count;
}

/* NCCL's kernel has ended, and all blocks have gone, maybe of the life after it, too. */
static int has_gone(const struct optcc_gpu *g, uint64_t life)
{
    if (atomic_load_explicit(&g->lives[OVER + life % LIVES], memory_order_acquire) != life)
        return 0;
    for (uint32_t b = 0; b < g->blocks; b++)
        if (atomic_load_explicit(&g->done[b * LINE_WORDS + GONE], memory_order_acquire) < life)
            return 0;
    return 1;
}

/* Whether a life is to end, since it is over or leaves. */
static int ends(const word *lives, uint64_t life)
{
    return (atomic_load_explicit(&lives[OVER + life % LIVES], memory_order_acquire) & ~LEAVES) == life;
}

/* The kernel of a life is there, or a part of its blocks. */
static void end_idle(struct optcc_gpu *g, uint64_t life, uint64_t now_ns)
{
    if (!all_done(g) || g->idle_life != life || g->idle_next != g->next) {
        g->idle_life = life;
        g->idle_next = g->next;
        g->idle_ns = now_ns;
    } else if (now_ns >= g->idle_ns + STAYS_NS && !ends(g->lives, life)) {
        uint64_t before = life > LIVES ? life - LIVES : 0; /* what the word says, unless it is over just now */
        g->counts.idle += atomic_compare_exchange_strong(&g->lives[OVER + life % LIVES], &before, life | LEAVES);
    }
}

/* No kernel takes jobs: the processor does what is left of them. */
static void do_the_rest(struct optcc_gpu *g)
{
    for (uint32_t b = 0; b < g->blocks; b++) {
        word *const said = &g->done[b * LINE_WORDS + DONE];
        uint64_t jobs = atomic_load_explicit(said, memory_order_acquire);
        for (; jobs * g->blocks + b < g->next; jobs++) {
            const word *const slot = g->slot + (jobs * g->blocks + b) % SLOTS * SLOT_WORDS;
            const uint64_t low = (UINT64_C(1) << ROUND_BIT) - 1, bytes = atomic_load(&slot[2]) & UINT32_MAX;
            g->counts.left++;
            if (reaches(g, atomic_load(&slot[0]) & low, bytes) && reaches(g, atomic_load(&slot[1]) & low, bytes))
                do_slot(slot); /* else its memory has been taken back meanwhile, and nobody waits for it */
        }
        atomic_store_explicit(said, jobs, memory_order_release);
    }
    all_done(g);
}

int optcc_gpu_look(struct optcc_gpu *g, uint64_t now_ns)
{
    g->comes = 1;
    if (g->life) {
        end_idle(g, g->life, now_ns);
        if (ends(g->lives, g->life))
            g->running = 0; /* it is given no more */
        if (has_gone(g, g->life)) {
            do_the_rest(g);
            atomic_store_explicit(&g->gone, g->life, memory_order_release);
            g->life = 0;
            g->running = 0;
        }
    }
    while (!g->life && atomic_load(&g->gone) < atomic_load_explicit(&g->asked, memory_order_acquire)) {
        const uint64_t next = atomic_load(&g->gone) + 1;
        if (has_gone(g, next)) { /* it ended before it began */
            atomic_store_explicit(&g->gone, next, memory_order_release);
            g->counts.missed++;
            continue;
        }
        const uint32_t begun = begun_in(g, next);
        if (begun)
            end_idle(g, next, now_ns);
        if (begun < g->blocks || ends(g->lives, next))
            break;
        g->life = next;
        g->running = 1;
        g->type = (enum optcc_type)g->types[next % LIVES];
        g->counts.lives++;
        atomic_store_explicit(&g->lives[FIRST], g->next, memory_order_relaxed);
        atomic_store_explicit(&g->lives[MAY], next, memory_order_release);
    }
    return g->life && g->running ? OPTCC_OK : OPTCC_AGAIN;
}

int optcc_gpu_gone(const struct optcc_gpu *g)
{
    return atomic_load(&g->gone) == atomic_load(&g->asked) ? OPTCC_OK : OPTCC_AGAIN;
}

void optcc_gpu_count(const struct optcc_gpu *g, struct optcc_gpu_counts *counts) { *counts = g->counts; }

/* ---- the twin ---------------------------------------------------------------------------------------------------- */

int optcc_gpu_twin_open(void *memory, uint32_t blocks, enum optcc_type type, enum optcc_op op, uint64_t first,
                        uint64_t seed, struct optcc_gpu_twin **twin)
{
    *twin = NULL;
    if (!right(memory, blocks))
        return OPTCC_BAD;
    struct optcc_gpu_twin *t = calloc(1, sizeof *t);
    if (!t)
        return OPTCC_MEMORY;
    *t = (struct optcc_gpu_twin){.done = memory, .slot = (word *)memory + (uint64_t)blocks * LINE_WORDS,
                                 .blocks = blocks, .type = type, .op = op, .random = seed};
    for (uint32_t i = 0; i < blocks; i++)
        t->next[(first + i) % blocks] = first + i;
    *twin = t;
    return OPTCC_OK;
}

int optcc_gpu_twin_life(void *memory, uint32_t blocks, enum optcc_type type, uint64_t life, uint64_t seed,
                        struct optcc_gpu_twin **twin)
{
    const int result = life ? optcc_gpu_twin_open(memory, blocks, type, OPTCC_SUM, 0, seed, twin) : OPTCC_BAD;
    if (result == OPTCC_OK) {
        (*twin)->lives = (*twin)->slot + SLOTS * SLOT_WORDS;
        (*twin)->life = life;
    }
    return result;
}

void optcc_gpu_twin_close(struct optcc_gpu_twin *t) { free(t); }

/* A block that is not there yet, or whose life is over, has something else to do than jobs: whether it has. */
static int lives(struct optcc_gpu_twin *t, uint32_t block, int idle)
{
    word *const line = t->done + block * LINE_WORDS;
    const uint64_t may = atomic_load_explicit(&t->lives[MAY], memory_order_acquire);
    const int over = ends(t->lives, t->life);
    if (atomic_load(&line[BEGUN]) != t->life) {
        atomic_store(&line[BEGUN], t->life);
        t->next[block] = UINT64_MAX;
        return 1;
    }
    if (t->next[block] == UINT64_MAX && may == t->life) {
        const uint64_t first = atomic_load_explicit(&t->lives[FIRST], memory_order_relaxed);
        t->next[block] = first + (block + t->blocks - first % t->blocks) % t->blocks;
        return 1;
    }
    if (over && (idle || t->next[block] == UINT64_MAX)) {
        t->over[block] = 1;
        t->ended++;
        atomic_store_explicit(&line[GONE], t->life, memory_order_release);
        return 1;
    }
    return t->next[block] == UINT64_MAX;
}

/* The next job of a block, if it is there: whether it was. */
static int serve(struct optcc_gpu_twin *t, uint32_t block)
{
    if (t->over[block] || (t->life && lives(t, block, 0)))
        return 0;
    const uint64_t number = t->next[block];
    word *const slot = t->slot + number % SLOTS * SLOT_WORDS;
    uint64_t task = 0;
    for (int i = 0; i < 3; i++) {
        const uint64_t read = atomic_load_explicit(&slot[i], memory_order_acquire);
        if (read >> ROUND_BIT != round_of(number))
            return t->life && lives(t, block, 1);
        task = read >> TASK_BIT;
    }
    if ((task & 255) == FOLD && ((task >> (TYPE_BIT - TASK_BIT) & 15) != t->type ||
                                 (!t->life && (task >> (OP_BIT - TASK_BIT) & 15) != t->op)))
        abort(); /* the kernel would do something else */
    do_slot(slot);
    if ((task & 255) == END) {
        t->over[block] = 1;
        t->ended++;
    }
    t->next[block] += t->blocks;
    atomic_store_explicit(&t->done[block * LINE_WORDS], number / t->blocks + 1, memory_order_release);
    return 1;
}

uint32_t optcc_gpu_twin_step(struct optcc_gpu_twin *t, uint32_t most)
{
    for (uint32_t i = 0; i < most && t->ended < t->blocks; i++) {
        t->random = t->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        serve(t, (uint32_t)(t->random >> 33) & (t->blocks - 1));
    }
    return t->blocks - t->ended;
}
