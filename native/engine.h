/* The native engine: collectives of one rank, run from a plan's rows over many NICs.
 *
 * One engine is one rank's end of everything. It has no thread, never blocks, sleeps or locks: whoever owns it calls
 * `optcc_progress` from one thread. All its memory is taken in `optcc_open`, `optcc_program_open` and nowhere else, so
 * it is bounded by ranks, wires and the plan. All times are nanoseconds of the clock of its wires, all lengths bytes.
 *
 *   program.c        a rank's rows: what is ready, what waits, where a segment lands, folds in row order
 *   flow.c           segments exactly once over NICs that come and go; which NIC takes the next one
 *   reduce.c         the folds on the processor
 *   folder_gpu.c     copies and folds on a GPU, by a kernel that is fed through memory
 *   wires_shm.c      wires between ranks of one machine
 *   wires_virtual.c  a deterministic network of many ranks in one process, from a seed
 */
#ifndef OPTCC_ENGINE_H
#define OPTCC_ENGINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default) /* the library shows what is here, and nothing else */

enum optcc_limit {
    OPTCC_MAX_RANKS = 1024,
    OPTCC_MAX_NICS = 16,  /* of one rank */
    OPTCC_MAX_LANES = 64, /* wires between two ranks: a set of them is one word */
    OPTCC_SPAN = 256,     /* segments of one flow, from the oldest that is not acknowledged to the newest */
    OPTCC_MAX_SEGMENT = 1 << 24,
    OPTCC_MAX_REGIONS = 64 /* pieces of memory that one rank lends to those of its machine */
};

enum optcc_result {
    OPTCC_OK = 0,
    OPTCC_AGAIN = 1,  /* not now */
    OPTCC_LOST = 2,   /* this wire, or the peer, is gone */
    OPTCC_BAD = 3,    /* an argument is wrong */
    OPTCC_MEMORY = 4, /* the system has none */
    OPTCC_LATE = 5    /* over the time allowed */
};

enum optcc_type {
    OPTCC_INT8, OPTCC_UINT8, OPTCC_INT16, OPTCC_UINT16, OPTCC_INT32, OPTCC_UINT32, OPTCC_INT64, OPTCC_UINT64,
    OPTCC_FLOAT16, OPTCC_BFLOAT16, OPTCC_FLOAT32, OPTCC_FLOAT64, OPTCC_TYPES
};

enum optcc_op { OPTCC_SUM, OPTCC_PROD, OPTCC_MIN, OPTCC_MAX, OPTCC_OPS };

/* ---- what travels ------------------------------------------------------------------------------------------------ */

enum optcc_kind {
    OPTCC_DATA = 1, /* a segment; its payload follows */
    OPTCC_HELLO,    /* I have begun an operation, or acknowledge: `begun`, `floor`, `landed` say it all */
    OPTCC_PROBE,    /* do you live, and does this wire? */
    OPTCC_ALIVE,    /* yes; by the wire that the probe came by */
    OPTCC_NOTICE,   /* the wire `lane` is lost here */
    OPTCC_KNOCK,    /* begin the life `epoch` of this wire */
    OPTCC_WELCOME,  /* it has begun */
    OPTCC_GIVEUP,   /* I have given up on you: do the same */
    OPTCC_KINDS
};

#define OPTCC_MAGIC UINT32_C(0x0cc70a11)
#define OPTCC_VERSION 1

/* In front of every payload, little-endian. Every frame carries what the writer has of the other's segments. */
struct optcc_frame {
    uint32_t magic;
    uint8_t version;
    uint8_t kind;
    uint16_t lane;      /* NOTICE: which wire between the two */
    uint32_t from, to;  /* ranks */
    uint64_t job;       /* the same at all ranks, drawn at random */
    uint32_t epoch;     /* the life of the wire that it travels by */
    uint32_t word;      /* PROBE, ALIVE: the number of the doubt; NOTICE: the life of `lane` that is over */
    uint64_t begun;     /* operations with the reader that the writer has begun */
    uint64_t floor;     /* segments below have landed at the writer */
    uint64_t landed[OPTCC_SPAN / 64]; /* bit seq % SPAN: seq has landed, for seq from floor to floor + SPAN */
    uint64_t seq;       /* DATA: number of the segment in its flow, for ever */
    uint64_t operation; /* DATA: `begun` of the writer when it began the operation */
    uint32_t row;       /* DATA: of the plan */
    uint32_t length;    /* DATA: bytes that follow; else 0 */
    uint64_t offset;    /* DATA: where they begin in the row */
};

/* ---- wires: the contract ----------------------------------------------------------------------------------------- */

/* A wire joins a NIC here with one of a peer, both ways. Wires may lose, double, delay and reorder frames, die, and
 * come back; they may not change them. */
enum optcc_news {
    OPTCC_NOTHING,
    OPTCC_FRAME,  /* a frame has come by `wire`; its head stays until the next poll, aligned to 8 */
    OPTCC_LEFT,   /* one payload given to `wire` is read no more */
    OPTCC_DIED,   /* the transport knows that `wire` is lost */
    OPTCC_FENCED, /* the fence of `wire` is done */
    OPTCC_BACK    /* `wire` may work again: a hint */
};

struct optcc_event {
    uint32_t news; /* enum optcc_news */
    uint32_t wire; /* index in the engine's table of wires */
    uint64_t length; /* FRAME: bytes of head and payload */
    const void *bytes;   /* FRAME: the head; the payload follows it, unless `payload` is set */
    const void *payload; /* FRAME: where the payload is */
    uint64_t held; /* FRAME: not 0: the payload stays until `release` is told this; 0: until the next poll */
};

struct optcc_wires {
    /* Nanoseconds of a clock that never goes back. */
    uint64_t (*now)(void *self);
    /* How many payloads the NIC takes now without a queue that would outlast the next poll. */
    uint32_t (*room)(void *self, uint32_t nic);
    /* Send `head`, copied before it returns, and `payload` (head->length bytes), read until LEFT or FENCED: OK, AGAIN,
     * or LOST. Frames without payload take no room and do not wait behind payloads. */
    int (*post)(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload);
    /* The next thing that happened. */
    void (*poll)(void *self, struct optcc_event *event);
    /* Drain this end: FENCED follows. After that no payload is read, nor LEFT said for one. */
    void (*fence)(void *self, uint32_t wire);
    /* Make this end anew after FENCED, so that KNOCK can be posted: OK, or LOST: not yet. */
    int (*renew)(void *self, uint32_t wire);
    /* A payload that came by `wire` is read no more: OK; or LOST: it may have changed before, since the peer no longer
     * waited. NULL: these wires hold none. */
    int (*release)(void *self, uint32_t wire, uint64_t held);
};

/* ---- who copies and folds ---------------------------------------------------------------------------------------- */

struct optcc_job {
    void *to; /* `bytes` each; they do not overlap, and are aligned to the type's elements */
    const void *from;
    uint64_t bytes;
    enum optcc_type type;
    enum optcc_op op; /* of a fold */
    int fold;         /* 1: to = to op from; 0: to = from */
};

/* Copies and folds of a program that the processor does not do itself. Jobs may be done in any order and at once: one
 * that must see another's bytes is begun when that one is done. */
struct optcc_folder {
    /* OK, and a number to ask by; AGAIN: it has no room now; LOST: it can do no more, and does nothing any more. */
    int (*begin)(void *self, const struct optcc_job *job, uint64_t *ticket);
    /* OK: the job is done, `from` is read no more, and what was written may be sent; AGAIN: not yet; or LOST. */
    int (*done)(void *self, uint64_t ticket);
    uint64_t poll_ns; /* after how long it is worth asking again; 0: at once */
};

/* ---- the interface ----------------------------------------------------------------------------------------------- */

struct optcc_wire {
    uint32_t peer;    /* rank */
    uint32_t nic;     /* of this rank */
    uint32_t far_nic; /* of the peer */
    uint32_t lane;    /* number of the wire between the two ranks, the same at both: 0, 1, ... */
};

struct optcc_config {
    uint32_t rank, ranks;
    uint32_t nics;          /* of this rank */
    uint32_t wires;         /* length of the table of wires */
    uint32_t segment_bytes; /* transfers are cut into so much, a multiple of 8; the same at all ranks */
    uint32_t window_bytes;  /* at most so much is unacknowledged on a wire, but one segment may always be */
    uint64_t job;           /* see optcc_frame */
    uint64_t suspect_ns;    /* a wire that owes something and moves nothing for so long is doubted */
    uint64_t grace_ns;      /* so long after the peer has answered by another wire a doubted one is left */
    uint64_t knock_ns;      /* first pause before a lost wire is tried again; doubles, up to 16 times as long */
    uint64_t return_ns;     /* a peer that owes something and does not answer by any wire for so long is given up */
};

/* A schedule in columns, as optcc.schedule.columns has it; row order is priority. */
struct optcc_rows {
    uint32_t rows, routes;
    const int32_t *src, *dst, *route;    /* by row; ranks of the group */
    const int64_t *offset, *length;      /* by row: bytes of the buffer */
    const uint8_t *reduce;               /* by row: fold (1) or overwrite (0) */
    const int64_t *dep_ptr, *dep_idx;    /* row i waits for dep_idx[dep_ptr[i] .. dep_ptr[i + 1]] */
    const uint64_t *lanes;               /* by route: a bit for each lane that it goes by; 0: any */
};

struct optcc_counters {
    uint64_t sent_bytes, resent_segments; /* payload, and how many segments were sent more than once */
    uint64_t landed_segments, duplicates; /* taken in; recognised as taken in before */
    uint64_t ghosts, refused;             /* frames of another life of their wire; frames that cannot be right */
    uint64_t doubts, left, returned;      /* wires doubted, left, begun anew */
};

struct optcc_wire_state {
    uint32_t state;       /* enum optcc_wire_is */
    uint32_t epoch;       /* life */
    uint64_t acked_bytes; /* what it has carried: over time this is its measured share */
    uint64_t flying;      /* bytes that are not acknowledged */
};

enum optcc_wire_is { OPTCC_UP, OPTCC_DOUBTED, OPTCC_FENCING, OPTCC_DOWN, OPTCC_WIRE_STATES };

struct optcc_engine;
struct optcc_program;

/* An engine over wires; OK, BAD or MEMORY. `contract` and `self` must outlive it. */
int optcc_open(const struct optcc_config *config, const struct optcc_wire *wires, const struct optcc_wires *contract,
               void *self, struct optcc_engine **engine);
void optcc_close(struct optcc_engine *engine);

/* The part of one rank of a schedule; OK, BAD (rows that ranks which know only their own cannot run) or MEMORY.
 * group : rank of the plan -> rank of the engine; NULL: the same. It may run many times, one at a time. */
int optcc_program_open(const struct optcc_rows *rows, uint32_t rank, uint32_t ranks, const uint32_t *group,
                       enum optcc_type type, uint64_t buffer_bytes, uint32_t segment_bytes,
                       struct optcc_program **program);
void optcc_program_close(struct optcc_program *program);
/* Copies and folds go by `folder` from now on, and not while it runs: OK or MEMORY. Then it needs wires that hold
 * payloads (optcc_wires.release).
 * early : memory that the folder reaches, of optcc_program_early bytes, for what comes before its turn; NULL: the
 *         program's own. All outlive the program. */
int optcc_program_use(struct optcc_program *program, const struct optcc_folder *folder, void *self, void *early);
uint64_t optcc_program_early(const struct optcc_program *program);

/* Begin a collective on `buffer`, in place; AGAIN while one runs, LOST after a peer has been given up. Peers of a
 * program must run the programs of the same schedule, in the same order. */
int optcc_begin(struct optcc_engine *engine, struct optcc_program *program, void *buffer, enum optcc_op op);

/* Do what can be done now. Returns when it wants to be called again at the latest; UINT64_MAX: when news comes. */
uint64_t optcc_progress(struct optcc_engine *engine);

/* The collective begun last: OK (the buffer is the caller's again), AGAIN (it runs), or LOST, with the rank given up. */
int optcc_test(const struct optcc_engine *engine, uint32_t *lost_rank);

/* For callers with nothing else to do: `optcc_progress` until the collective has ended: OK or LOST, or LATE after
 * `limit_ns`. It gives the processor to others now and then. */
int optcc_wait(struct optcc_engine *engine, uint64_t limit_ns);

void optcc_count(const struct optcc_engine *engine, struct optcc_counters *counters);
int optcc_wire_look(const struct optcc_engine *engine, uint32_t wire, struct optcc_wire_state *state);

/* One frame as if it had come by `wire`: for tests that play a peer. */
void optcc_hear(struct optcc_engine *engine, uint32_t wire, const void *bytes, uint64_t length);

uint32_t optcc_type_bytes(enum optcc_type type); /* 0: no type */

/* own = own op landed, `count` elements; the same bits as optcc.runtime.devices.host.fold. */
void optcc_fold(enum optcc_type type, enum optcc_op op, void *own, const void *landed, uint64_t count);

/* ---- wires_shm.c: ranks of one machine --------------------------------------------------------------------------- */

struct optcc_shm;
/* How much memory all ranks share; it is zero before the first opens it, and begins at a multiple of 64.
 * ring_bytes : of each wire and direction, a multiple of 64, at least four segments and their heads */
uint64_t optcc_shm_bytes(uint32_t ranks, uint32_t lanes, uint64_t ring_bytes);
int optcc_shm_open(void *memory, uint32_t rank, uint32_t ranks, uint32_t lanes, uint64_t ring_bytes,
                   struct optcc_shm **shm);
void optcc_shm_close(struct optcc_shm *shm); /* after its engine */
/* An engine over it; rank, ranks, nics and wires of the config are those of `shm`. */
int optcc_shm_engine(struct optcc_shm *shm, const struct optcc_config *config, struct optcc_engine **engine);

/* Memory of this rank that all others read where it lies, in place of a copy that goes through a ring. They must have
 * reached it before anything of it is sent. OK and its number; BAD: nothing, or too many (OPTCC_MAX_REGIONS).
 * host : the processor reads it, too; else, as on a GPU, nothing of it is ever copied into a ring */
int optcc_shm_lend(struct optcc_shm *shm, const void *base, uint64_t bytes, int host, uint32_t *region);
/* It is lent no more. Only while no collective runs; then the others unreach it. */
int optcc_shm_unlend(struct optcc_shm *shm, uint32_t region);
/* What `peer` lends under that number is at `here` in this process. NULL: no more. */
int optcc_shm_reach(struct optcc_shm *shm, uint32_t peer, uint32_t region, const void *here, uint64_t bytes);
/* The process of `peer` has ended: it reads nothing any more, whatever it was about to say. */
int optcc_shm_gone(struct optcc_shm *shm, uint32_t peer);

/* ---- folder_gpu.c: copies and folds on a GPU --------------------------------------------------------------------- */

struct optcc_gpu;
struct optcc_gpu_twin;
/* How much page-locked memory it needs that the GPU reaches at the same address; it begins at a multiple of 128.
 * blocks : of the kernel: a power of two, at most 64 */
uint64_t optcc_gpu_bytes(uint32_t blocks);
/* How many slots there are in it for jobs, and where they begin: bytes. The words of the blocks are at its beginning. */
uint64_t optcc_gpu_slots(uint32_t blocks, uint64_t *offset);
/* part_bytes : a job is cut into parts of about so much, a multiple of 128; blocks do them side by side */
int optcc_gpu_open(void *memory, uint32_t blocks, uint64_t part_bytes, struct optcc_gpu **gpu);
void optcc_gpu_close(struct optcc_gpu *gpu); /* after its programs, and when no kernel runs */
/* As optcc_program_use. Payloads that come must be where the GPU reaches them: lent by wires_shm.c, by CUDA IPC. */
int optcc_gpu_use(struct optcc_gpu *gpu, struct optcc_program *program, void *early);
/* A kernel for `type` and `op` is about to be started, on the stream of the one before, with `first`, the number of its
 * first job. AGAIN: one has not been told to end, or dozens have not ended; LOST: the GPU has failed. */
int optcc_gpu_launch(struct optcc_gpu *gpu, enum optcc_type type, enum optcc_op op, uint64_t *first);
/* OK: all that was given is done. After `launch` that means that the kernel runs, and the buffer is as its stream has
 * left it: only now may the collective begin. After `end`: that it ends. AGAIN, or LOST. */
int optcc_gpu_idle(struct optcc_gpu *gpu);
/* The collective has ended: so does the kernel, and its stream goes on. BAD: none was launched. */
int optcc_gpu_end(struct optcc_gpu *gpu);
/* The GPU has failed: nothing that it was given will be done. What runs ends with LOST, this rank being the lost one. */
void optcc_gpu_fail(struct optcc_gpu *gpu);

/* What the kernel does, on the processor: where there is no GPU. `step` looks at `most` blocks, drawn from a seed, does
 * the next job of each if it is there, and returns how many blocks have not ended. */
int optcc_gpu_twin_open(void *memory, uint32_t blocks, enum optcc_type type, enum optcc_op op, uint64_t first,
                        uint64_t seed, struct optcc_gpu_twin **twin);
uint32_t optcc_gpu_twin_step(struct optcc_gpu_twin *twin, uint32_t most);
void optcc_gpu_twin_close(struct optcc_gpu_twin *twin);

/* ---- wires_virtual.c: many ranks in one process, in virtual time, from a seed ------------------------------------ */

enum optcc_fault {
    OPTCC_DIE,    /* the NIC is gone and its rank knows; value 1: its peers are told, too; 0: they hear nothing */
    OPTCC_RETURN, /* it works again; value 1: its rank is told */
    OPTCC_MUTE,   /* value 1: nothing leaves it, and what it was given stays; 2: nothing enters; 3: both. Nobody knows */
    OPTCC_UNMUTE, /* what was given to it leaves now */
    OPTCC_RATE,   /* it goes on at `value` millionths of its rate */
    OPTCC_PAUSE,  /* the rank does nothing (`nic` does not matter) */
    OPTCC_RESUME,
    OPTCC_KILL,   /* the rank does nothing any more, and nothing leaves or enters */
    OPTCC_FAULTS
};

struct optcc_weather {
    uint64_t seed;
    uint64_t latency_ns, jitter_ns; /* from NIC to NIC; each frame up to so much more, so that frames overtake */
    uint32_t lost, doubled;         /* of a million frames */
};

struct optcc_world;
struct optcc_world *optcc_world_open(uint32_t ranks, const struct optcc_weather *weather);
void optcc_world_close(struct optcc_world *world);
/* The next NIC of a rank; bytes per second. */
int optcc_world_nic(struct optcc_world *world, uint32_t rank, double out_rate, double in_rate);
/* The next lane between two ranks. Only before the first engine. */
int optcc_world_wire(struct optcc_world *world, uint32_t rank, uint32_t nic, uint32_t far_rank, uint32_t far_nic);
/* The engine of `config->rank`; `nics` and `wires` of the config are the world's. */
int optcc_world_engine(struct optcc_world *world, const struct optcc_config *config, struct optcc_engine **engine);
/* The next collective of a rank. When it is whole, `bytes` of the buffer go to `result`, and the buffer is spoilt. */
int optcc_world_task(struct optcc_world *world, uint32_t rank, struct optcc_program *program, void *buffer,
                     void *result, uint64_t bytes, enum optcc_op op);
/* The rank's part of a program goes by a folder that does jobs late and out of order, each within `most_ns`. */
int optcc_world_folder(struct optcc_world *world, uint32_t rank, struct optcc_program *program, uint64_t most_ns);
int optcc_world_fault(struct optcc_world *world, uint64_t at_ns, enum optcc_fault kind, uint32_t rank, uint32_t nic,
                      uint64_t value);
/* Until every living rank has done its tasks: OK; LOST: some rank has given up, all have ended; LATE: not by then. */
int optcc_world_run(struct optcc_world *world, uint64_t limit_ns);
uint64_t optcc_world_now(const struct optcc_world *world);
/* How often a collective ended while a NIC could still read its buffer, or a folder: 0, or the engine is wrong. */
uint64_t optcc_world_touched(const struct optcc_world *world);
uint32_t optcc_world_done(const struct optcc_world *world, uint32_t rank); /* tasks */

#pragma GCC visibility pop

/* ---- between program.c and flow.c -------------------------------------------------------------------------------- */

struct optcc_piece { /* one segment to send */
    uint32_t send, segment; /* index among the rank's sends; which segment of it */
    uint32_t row, length;   /* bytes */
    uint64_t offset;        /* in the row, bytes */
    uint64_t lanes;
    uint32_t peer;          /* rank of the engine */
    const void *bytes;
};

void optcc_program_begin(struct optcc_program *program, void *buffer, enum optcc_op op);
uint32_t optcc_program_segment(const struct optcc_program *program); /* bytes */
/* Every peer once: how many segments go to it and come from it. Returns 0 behind the last `i`. */
int optcc_program_peer(const struct optcc_program *program, uint32_t i, uint32_t *peer, uint64_t *to, uint64_t *from);
/* The index of the first send from `from` on, in row order, that has a segment ready; UINT32_MAX: none. */
uint32_t optcc_program_ready(const struct optcc_program *program, uint32_t from);
/* The next segment of a ready send; `optcc_program_taken` when it has been sent. Any earlier one again by `_piece`. */
void optcc_program_next(const struct optcc_program *program, uint32_t send, struct optcc_piece *piece);
void optcc_program_taken(struct optcc_program *program, uint32_t send);
void optcc_program_piece(const struct optcc_program *program, uint32_t send, uint32_t segment,
                         struct optcc_piece *piece);
/* A segment has come: OK; AGAIN: it is being taken in, `bytes` must stay until `optcc_program_landed` gives `name`; or
 * BAD, and nothing has changed, for one that the rows do not know or that was here. */
int optcc_program_land(struct optcc_program *program, uint32_t peer, uint32_t row, uint64_t offset, uint32_t length,
                       const void *bytes, uint64_t name);
/* Whether it has a folder. */
int optcc_program_late(const struct optcc_program *program);
/* Go on with jobs: OK, and the name of a segment that has been taken in; AGAIN: of none; LOST: the folder is, and there
 * are no more jobs. */
int optcc_program_landed(struct optcc_program *program, uint64_t *name);
/* After how long to go on with jobs at the latest; UINT64_MAX: there are none. */
uint64_t optcc_program_due(const struct optcc_program *program);
/* Begin no more jobs: what has come and is not begun is forgotten. Due until those that are begun are done. */
void optcc_program_stop(struct optcc_program *program);
/* Everything has come and is folded. */
int optcc_program_whole(const struct optcc_program *program);

#ifdef __cplusplus
}
#endif
#endif
