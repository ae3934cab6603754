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
 *            2  bytes, and above them what to do: enum task    3  nothing
 *   word   by block, a line each: jobs of that block that are done, for ever
 *
 * Before a collective each block is given a job of nothing, which tells that the kernel runs and so that all is done
 * that its stream had to do before; after it each is given one that ends it. `serve` in runtime/devices/kernels/fold.cu
 * is the kernel; the twin below does the same on the processor, for tests and where there is no GPU.
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
    ROUND_BIT = 48,     /* of a slot's words, from which on they say the round */
    TASK_BIT = 32,      /* of its third word, from which on it says what to do */
    TICKET_BIT = 16     /* of a ticket, from which on it says the first part; below, how many there are */
};

enum task { NOTHING, COPY, FOLD, END };

typedef _Atomic uint64_t word;

struct optcc_gpu {
    word *done, *slot;
    uint32_t blocks;
    uint64_t part_bytes;
    uint64_t next, unfinished; /* jobs: the next one's number; all below are known to be done */
    enum optcc_type type;
    enum optcc_op op;
    int running;
};

struct optcc_gpu_twin {
    word *done, *slot;
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
    return ((uint64_t)blocks * LINE_WORDS + SLOTS * SLOT_WORDS) * sizeof(word);
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
    *gpu = g;
    return OPTCC_OK;
}

void optcc_gpu_close(struct optcc_gpu *g) { free(g); }

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

static void put(struct optcc_gpu *g, enum task task, uint64_t to, uint64_t from, uint64_t bytes)
{
    const uint64_t mark = round_of(g->next) << ROUND_BIT;
    word *const slot = g->slot + g->next++ % SLOTS * SLOT_WORDS;
    atomic_store_explicit(&slot[0], mark | to, memory_order_relaxed);
    atomic_store_explicit(&slot[1], mark | from, memory_order_relaxed);
    atomic_store_explicit(&slot[2], mark | (uint64_t)task << TASK_BIT | bytes, memory_order_release);
}

static int begin(void *self, const struct optcc_job *job, uint64_t *ticket)
{
    struct optcc_gpu *g = self;
    const uint64_t to = (uintptr_t)job->to, from = (uintptr_t)job->from, beyond = UINT64_C(1) << ROUND_BIT;
    if (!g->running || job->bytes > OPTCC_MAX_SEGMENT || to >= beyond || from >= beyond ||
        (job->fold && (job->type != g->type || job->op != g->op)))
        return OPTCC_LOST;
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
        put(g, job->fold ? FOLD : COPY, to + at, from + at, job->bytes - at < step ? job->bytes - at : step);
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

void optcc_gpu_twin_close(struct optcc_gpu_twin *t) { free(t); }

/* The next job of a block, if it is there: whether it was. */
static int serve(struct optcc_gpu_twin *t, uint32_t block)
{
    const uint64_t number = t->next[block], low = (UINT64_C(1) << ROUND_BIT) - 1;
    uint64_t read[3];
    if (t->over[block])
        return 0;
    for (int i = 0; i < 3; i++) {
        read[i] = atomic_load_explicit(&t->slot[number % SLOTS * SLOT_WORDS + (uint64_t)i], memory_order_acquire);
        if (read[i] >> ROUND_BIT != round_of(number))
            return 0;
    }
    void *const to = (void *)(uintptr_t)(read[0] & low);
    const void *const from = (const void *)(uintptr_t)(read[1] & low);
    const uint64_t bytes = read[2] & UINT32_MAX;
    switch ((read[2] & low) >> TASK_BIT) {
    case COPY:
        memcpy(to, from, bytes);
        break;
    case FOLD:
        optcc_fold(t->type, t->op, to, from, bytes / optcc_type_bytes(t->type));
        break;
    case END:
        t->over[block] = 1;
        t->ended++;
        break;
    default:
        break;
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
