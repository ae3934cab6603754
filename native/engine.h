/* The native engine: collectives of one rank, run from a plan's rows over many NICs.
 *
 * One engine is one rank's end of everything. It has no thread, never blocks, sleeps or locks: whoever owns it calls
 * `optcc_progress` from one thread. All its memory is taken in `optcc_open`, `optcc_program_open` and nowhere else, so
 * it is bounded by ranks, wires and the plan. All times are nanoseconds of the clock of its wires, all lengths bytes.
 *
 *   program.c        a rank's rows: what is ready, what waits, where a segment lands, folds in row order
 *   messages.c       in place of a program: messages between two ranks, as many as come
 *   flow.c           segments exactly once over NICs that come and go; which NIC takes the next one
 *   reduce.c         the folds on the processor
 *   folder_gpu.c     copies and folds on a GPU, by a kernel that is fed through memory
 *   wires_shm.c      wires between ranks of one machine
 *   wires_tcp.c      wires between machines
 *   hmac.c           how the ends of such a wire know each other
 *   wires_verbs.c    wires over RDMA queue pairs
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
    OPTCC_LATE = 5,   /* over the time allowed */
    OPTCC_DIFFERS = 6 /* a peer has begun another call */
};

enum optcc_type {
    OPTCC_INT8, OPTCC_UINT8, OPTCC_INT16, OPTCC_UINT16, OPTCC_INT32, OPTCC_UINT32, OPTCC_INT64, OPTCC_UINT64,
    OPTCC_FLOAT16, OPTCC_BFLOAT16, OPTCC_FLOAT32, OPTCC_FLOAT64, OPTCC_TYPES
};

enum optcc_op { OPTCC_SUM, OPTCC_PROD, OPTCC_MIN, OPTCC_MAX, OPTCC_OPS };

/* ---- what travels ------------------------------------------------------------------------------------------------ */

enum optcc_kind {
    OPTCC_DATA = 1, /* a segment; its payload follows */
    OPTCC_HELLO,    /* I have begun an operation, or acknowledge: `begun`, `floor`, `landed`, `word` say it all */
    OPTCC_PROBE,    /* do you live, and does this wire? */
    OPTCC_ALIVE,    /* yes; by the wire that the probe came by */
    OPTCC_NOTICE,   /* the wire `lane` is lost here */
    OPTCC_KNOCK,    /* begin the life `epoch` of this wire */
    OPTCC_WELCOME,  /* it has begun */
    OPTCC_GIVEUP,   /* I have given up on you: do the same */
    OPTCC_KINDS
};

#define OPTCC_MAGIC UINT32_C(0x0cc70a11)
#define OPTCC_VERSION 3

/* In front of every payload, little-endian. Every frame carries what the writer has of the other's segments. */
struct optcc_tag { /* what a sender says of a message, for its receiver alone to read */
    uint64_t first, second;
};

struct optcc_frame {
    uint32_t magic;
    uint8_t version;
    uint8_t kind;
    uint16_t lane;      /* NOTICE: which wire between the two */
    uint32_t from, to;  /* ranks */
    uint64_t job;       /* the same at all ranks, drawn at random */
    uint32_t epoch;     /* the life of the wire that it travels by */
    uint32_t word;      /* PROBE, ALIVE: the number of the doubt; NOTICE: the life of `lane` that is over;
                           DATA: of the operation's own */
    uint64_t begun;     /* operations with the reader that the writer has begun */
    uint64_t floor;     /* segments below have landed at the writer */
    uint64_t landed[OPTCC_SPAN / 64]; /* bit seq % SPAN: seq has landed, for seq from floor to floor + SPAN */
    uint64_t seq;       /* DATA: number of the segment in its flow, for ever; HELLO: the sign of the call begun last */
    uint64_t operation; /* DATA: `begun` of the writer when it began the operation */
    uint32_t row;       /* DATA: of the plan */
    uint32_t length;    /* DATA: bytes that follow; else 0 */
    uint64_t offset;    /* DATA: where they begin in the row */
    struct optcc_tag tag; /* DATA: of the operation's own */
};

/* ---- wires: the contract ----------------------------------------------------------------------------------------- */

/* A wire joins a NIC here with one of a peer, both ways. Wires may lose, double, delay and reorder frames, die, and
 * come back; they may not change them. */
enum optcc_news {
    OPTCC_NOTHING,
    OPTCC_FRAME,  /* a frame has come by `wire`; its head stays until the next poll, aligned to 8 */
    OPTCC_LEFT,   /* one payload given to `wire`, the first that was, is read no more */
    OPTCC_DIED,   /* the transport knows that `wire` is lost, by `cause` */
    OPTCC_FENCED, /* the fence of `wire` is done */
    OPTCC_BACK    /* `wire` may work again: a hint */
};

enum optcc_cause { /* why a wire is taken to be lost */
    OPTCC_PORT,     /* the NIC here says that its link is down */
    OPTCC_ERROR,    /* the NIC has given up on something: retries exceeded, or flushed */
    OPTCC_CLOSED,   /* the far end is gone */
    OPTCC_DEVICE,   /* the NIC itself is gone, or refuses work */
    OPTCC_TOLD,     /* the peer has seen one of these */
    OPTCC_SILENCE,  /* nothing comes through although the peer is alive */
    OPTCC_CAUSES
};

struct optcc_event {
    uint32_t news;   /* enum optcc_news */
    uint32_t wire;   /* index in the engine's table of wires */
    uint32_t cause;  /* DIED: enum optcc_cause */
    uint64_t length; /* FRAME: bytes of head and payload */
    const void *bytes;   /* FRAME: the head; the payload follows it, unless `payload` is set */
    const void *payload; /* FRAME: where the payload is */
    int far;         /* FRAME: it is nowhere here yet: `fetch` brings it before the next poll, or never */
    uint64_t held;   /* FRAME: not 0: the payload stays until `release` is told this; 0: until the next poll */
    uint64_t at_ns;  /* FRAME: when it came, where the wires know better than who polls; else 0 */
};

struct optcc_wires {
    /* Nanoseconds of a clock that never goes back. */
    uint64_t (*now)(void *self);
    /* How many payloads the NIC takes now without a queue that would outlast the next poll. */
    uint32_t (*room)(void *self, uint32_t nic);
    /* Send `head`, copied before it returns, and `payload` (head->length bytes), read until LEFT or FENCED: OK, AGAIN,
     * or LOST. Frames without payload take no room and do not wait behind payloads.
     * ready_ns : since when the payload could have gone, for wires that play NICs with a rate */
    int (*post)(void *self, uint32_t wire, const struct optcc_frame *head, const void *payload, uint64_t ready_ns);
    /* The next thing that happened. */
    void (*poll)(void *self, struct optcc_event *event);
    /* Drain this end: FENCED follows. After that no payload is read, nor LEFT said for one. */
    void (*fence)(void *self, uint32_t wire);
    /* Make this end anew after FENCED, so that KNOCK can be posted: OK, or LOST: not yet. */
    int (*renew)(void *self, uint32_t wire);
    /* Sleep until something may have come, at most so long. NULL: they cannot; whoever waits looks again and again. */
    void (*sleep)(void *self, uint64_t ns);
    /* Bring the payload that is `far` to `to`, or NULL: to memory of the wires, until the next poll. Where it is then; or
     * NULL: it is missed. NULL: none is ever far. */
    const void *(*fetch)(void *self, void *to);
    /* A payload that came by `wire` is read no more: OK; or LOST: it may have changed before, since the peer no longer
     * waited. NULL: these wires hold none. */
    int (*release)(void *self, uint32_t wire, uint64_t held);
};

/* ---- who copies and folds ---------------------------------------------------------------------------------------- */

struct optcc_job {
    void *to; /* `bytes` each; they do not overlap, and are aligned to the type's elements */
    const void *from;
    uint64_t bytes;
    uint32_t type, op; /* enum optcc_type; of a fold, enum optcc_op */
    int fold;          /* 1: to = to op from; 0: to = from */
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
    uint32_t segment_bytes; /* transfers are cut into so much at most, a multiple of 64; the same at all ranks */
    uint32_t window_bytes;  /* at most so much is unacknowledged on a wire, but one segment may always be */
    uint64_t job;           /* see optcc_frame */
    uint64_t suspect_ns;    /* a wire that owes something and moves nothing for so long is doubted */
    uint64_t grace_ns;      /* so long after the peer has answered by another wire a doubted one is left */
    uint64_t knock_ns;      /* first pause before a lost wire is tried again; doubles, up to 16 times as long */
    uint64_t return_ns;     /* a peer that owes something and does not answer by any wire for so long is given up */
    uint64_t alone_ns;      /* likewise where no wire leads to it; 0: as return_ns */
    uint64_t ack_ns;        /* short segments are acknowledged so much later at the most, by what is sent meanwhile; 0: at
                               once, as who waits until all is acknowledged wants it */
    uint64_t spin_ns;       /* `optcc_wait` looks for so long before it sleeps */
    uint64_t yields;        /* after so many looks in a row that find nothing each further one gives the processor to
                               others that want it; 0: it does so now and then */
};

#define OPTCC_BESIDE 2

/* A schedule in columns, as optcc.schedule.columns has it; row order is priority. */
struct optcc_rows {
    uint32_t rows, routes;
    const int32_t *src, *dst, *route;    /* by row; ranks of the group */
    const int64_t *offset, *length;      /* by row: bytes of the buffer */
    const uint8_t *reduce;               /* by row: fold (1), overwrite (0), or fold from beside (OPTCC_BESIDE) */
    const int64_t *dep_ptr, *dep_idx;    /* row i waits for dep_idx[dep_ptr[i] .. dep_ptr[i + 1]] */
    const uint64_t *lanes;               /* by route: a bit for each lane that it goes by; 0: any; the same at all ranks */
};

/* One run of a program. */
struct optcc_call {
    void *buffer;        /* in place */
    const void *parts;   /* NULL; else what is sent is read from here: to rank p of the plan the p-th part, each as long
                            as the row. Then every row that is sent waits for nothing */
    enum optcc_type type;
    enum optcc_op op;
    uint64_t sign;       /* the same for the same call: ranks that call differently notice */
};

/* When `optcc_wait` returns before the end; and what it says beside its result. */
struct optcc_until {
    uint64_t limit_ns; /* after so long: LATE */
    uint64_t rows;     /* once so many rows are done (`optcc_done`): AGAIN; UINT64_MAX: never */
    int32_t watch;     /* when this descriptor can be read: AGAIN; -1: none */
    uint32_t notes;    /* on return: whether `optcc_notes` has any */
};

enum optcc_noted {
    OPTCC_NOTE_LOST,   /* a wire, by `cause` */
    OPTCC_NOTE_FENCED, /* this end of it is drained */
    OPTCC_NOTE_MOVED,  /* what a lost wire carried has gone again, by others: `bytes` */
    OPTCC_NOTE_ANEW,   /* a wire has begun a new life */
    OPTCC_NOTE_ALONE   /* no wire leads to the peer of this one any more */
};

struct optcc_note {
    uint64_t at_ns, bytes;
    uint32_t noted, wire, cause; /* enum optcc_noted; index; enum optcc_cause */
    uint32_t missed;             /* so many notes before this one were forgotten, for nobody has read them */
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
    uint64_t sent_bytes;  /* what it was given, segments that were sent again by it included */
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
                       uint64_t buffer_bytes, uint32_t segment_bytes, struct optcc_program **program);
void optcc_program_close(struct optcc_program *program);
/* How many rows come in, and when each of them had come and was folded in the last run. */
uint32_t optcc_program_receives(const struct optcc_program *program);
void optcc_program_landings(const struct optcc_program *program, uint32_t *rows, uint64_t *at_ns);
/* Copies and folds go by `folder` from now on, and not while it runs: OK or MEMORY. Then it needs wires that hold
 * payloads (optcc_wires.release).
 * early : memory that the folder reaches, of optcc_program_early bytes, for what comes before its turn; NULL: the
 *         program's own. All outlive the program. */
int optcc_program_use(struct optcc_program *program, const struct optcc_folder *folder, void *self, void *early);
uint64_t optcc_program_early(const struct optcc_program *program);

/* Begin a collective; AGAIN while one runs, LOST after a peer has been given up, BAD for a call that the program cannot
 * serve: elements that its rows would cut. Peers of a program must run the programs of the same schedule, in the same
 * order. */
int optcc_begin(struct optcc_engine *engine, struct optcc_program *program, const struct optcc_call *call);

/* Do what can be done now. Returns when it wants to be called again at the latest; UINT64_MAX: when news comes. */
uint64_t optcc_progress(struct optcc_engine *engine);

/* The collective begun last: OK (the buffer is the caller's again), AGAIN (it runs), LOST, with the rank given up, or
 * DIFFERS, with the rank that has called something else. */
int optcc_test(const struct optcc_engine *engine, uint32_t *lost_rank);

/* For callers with nothing else to do: `optcc_progress` until the collective has ended, as `optcc_test` tells, or until
 * `until` says. Where nothing happens it sleeps, or gives the processor to others. */
int optcc_wait(struct optcc_engine *engine, struct optcc_until *until);

/* What is copied between a collective's memory and its caller's, in pieces; 0: nothing is. */
struct optcc_copy {
    void *own;               /* the first piece in the collective's memory */
    uint64_t at;             /* and in the caller's: bytes from its beginning */
    uint64_t pieces, bytes;  /* each so long */
    uint64_t own_step, step; /* bytes from one to the next, in the collective's memory and in the caller's */
};

/* All of a caller's collective. His memory may be another one in each run: `source` is read and `target` written. */
struct optcc_collective {
    struct optcc_program *program;
    struct optcc_call call;
    uint32_t from_source;        /* 1: `call.parts` is the source */
    uint32_t mean;               /* so many ranks' average is wanted: at the end the target is divided; 0: none is */
    uint64_t elements;           /* of the target */
    struct optcc_copy in, parts; /* before it begins, from the source: into `call.buffer`, and into `call.parts` */
    struct optcc_copy out;       /* once it has ended well, to the target */
    uint64_t begun_ns, took_ns;  /* on return: when it began; until it had ended well */
};

/* Copy in, `optcc_begin`, `optcc_go_on`. What `optcc_begin` refuses is BAD, or LOST. */
int optcc_run(struct optcc_engine *engine, struct optcc_collective *collective, const void *source, void *target,
              struct optcc_until *until);
/* `optcc_wait`; where that is OK, copy out and divide. */
int optcc_go_on(struct optcc_engine *engine, struct optcc_collective *collective, void *target,
                struct optcc_until *until);

/* Between collectives: `optcc_progress`, and sleep for at most so long. Returns whether anything had happened. */
int optcc_serve(struct optcc_engine *engine, uint64_t ns);

/* End what runs, without a result: when this returns no NIC reads the buffer any more (its wires are fenced), or LATE:
 * after `limit_ns` one still may. */
int optcc_abandon(struct optcc_engine *engine, uint64_t limit_ns);

/* Rows of this rank, and how many are done: sent, or come and folded. */
void optcc_done(const struct optcc_engine *engine, uint32_t *done, uint32_t *rows);
/* What is missing: rows to come in and to send, the first one still to come and the rank that it comes from. Where none
 * is to come, a rank that something goes to; UINT32_MAX: none. */
struct optcc_missing {
    uint32_t receives, sends, row, peer;
};
void optcc_missing(const struct optcc_engine *engine, struct optcc_missing *missing);
/* A rank to which no wire leads although something is owed to or by it; UINT32_MAX: none. */
uint32_t optcc_alone(const struct optcc_engine *engine);
/* What has been noted since, at most so many; returns how many. */
uint32_t optcc_notes(struct optcc_engine *engine, struct optcc_note *notes, uint32_t most);

void optcc_count(const struct optcc_engine *engine, struct optcc_counters *counters);
int optcc_owes(const struct optcc_engine *engine); /* whether acknowledgements wait to be sent */
int optcc_wire_look(const struct optcc_engine *engine, uint32_t wire, struct optcc_wire_state *state);

/* One frame as if it had come by `wire`: for tests that play a peer. */
void optcc_hear(struct optcc_engine *engine, uint32_t wire, const void *bytes, uint64_t length);

uint32_t optcc_type_bytes(enum optcc_type type); /* 0: no type */

/* own = own op landed, `count` elements; the same bits as optcc.runtime.devices.host.fold. */
void optcc_fold(enum optcc_type type, enum optcc_op op, void *own, const void *landed, uint64_t count);

/* own = own / by: the last step of an average of `by` ranks, at most OPTCC_MAX_RANKS; the same bits as
 * optcc.runtime.devices.host.divide. */
void optcc_divide(enum optcc_type type, void *own, uint64_t count, uint32_t by);

/* Take a wire for lost, for who wants a payload back that it does not give back. */
void optcc_leave(struct optcc_engine *engine, uint32_t wire);
/* Another engine has left this NIC of ours: its wires are asked whether they live, though nothing is missing. */
void optcc_doubt(struct optcc_engine *engine, uint32_t nic);

/* ---- messages.c: messages between two ranks, as many as come ------------------------------------------------------ */

enum optcc_messages_limit {
    OPTCC_DEPTH = 128,        /* sends, or receives, of one stream that are not done */
    OPTCC_MAX_STREAMS = 4096  /* of each way between two ranks */
};

struct optcc_messages_config {
    uint32_t peer;          /* rank of the engine */
    uint32_t streams;       /* of each way at most; the same at both ranks */
    uint32_t segment_bytes; /* that of the engine */
    uint64_t most_bytes;    /* of a message, below 4 GiB - 1; the same at both ranks */
};

struct optcc_messages;
/* OK, BAD or MEMORY. Memory of a stream is taken when it is first opened, and kept. */
int optcc_messages_open(const struct optcc_messages_config *config, struct optcc_messages **messages);
void optcc_messages_close(struct optcc_messages *messages); /* after its engine */
/* It runs until the engine is closed, or `optcc_test` says LOST; then nothing here is done any more. Results as of
 * `optcc_begin`. */
int optcc_begin_messages(struct optcc_engine *engine, struct optcc_messages *messages);

/* The sending end of a new stream to a port of the peer: OK, AGAIN (no stream is free) or MEMORY. */
int optcc_stream_open(struct optcc_messages *messages, uint64_t port, uint32_t *stream);
/* The receiving end of the first stream that the peer has opened to this port, and that is not taken: OK or AGAIN. */
int optcc_stream_take(struct optcc_messages *messages, uint64_t port, uint32_t *stream);
/* No message is sent or received any more; what is on its way fails. Receive buffers are the caller's at once, those of
 * sends when `optcc_stream_held`, a set of lanes, is empty. */
void optcc_stream_close(struct optcc_messages *messages, int receiving, uint32_t stream);
uint64_t optcc_stream_held(const struct optcc_messages *messages, uint32_t stream);
uint32_t optcc_streams(const struct optcc_messages *messages); /* that are not closed at both ends */

/* The next send or receive of a stream, in order; `number` names it. OK, AGAIN (OPTCC_DEPTH are not done), or BAD: too
 * long, or no such stream. */
int optcc_send(struct optcc_messages *messages, uint32_t stream, const void *bytes, uint64_t length, struct optcc_tag tag,
               uint64_t *number);
int optcc_receive(struct optcc_messages *messages, uint32_t stream, void *bytes, uint64_t room, uint64_t *number);
/* Whether it is done, asked until it is; the memory is the caller's then. OK, AGAIN, BAD: the message is longer than the
 * receiver's buffer, or no such send or receive; LOST: the sender has withdrawn the message, or sent a longer one.
 * length, tag : bytes of the message, and what its sender says of it */
int optcc_sent(struct optcc_messages *messages, uint32_t stream, uint64_t number);
int optcc_received(struct optcc_messages *messages, uint32_t stream, uint64_t number, uint64_t *length,
                   struct optcc_tag *tag);

/* ---- wires_shm.c: ranks of one machine --------------------------------------------------------------------------- */

struct optcc_shm;

/* The same at all ranks, but for `rank` and what follows `ring_bytes`. */
struct optcc_shm_config {
    uint32_t rank, ranks;
    const uint32_t *nics;  /* by rank: how many it has */
    const uint8_t *joined; /* ranks x ranks: whether there are wires between two */
    uint64_t ring_bytes;   /* for payloads under way from a rank to a NIC of another; a multiple of 64, at least two
                              segments and their heads */
    uint32_t wires;
    const struct optcc_wire *wire;
    const double *out_rates, *in_rates; /* of this rank's NICs, bytes per second; NULL, or INFINITY: as fast as can be */
};

/* How much memory all ranks share; 0: such a configuration cannot be. It is zero before the first opens it, and begins
 * at a multiple of 64. */
uint64_t optcc_shm_bytes(const struct optcc_shm_config *config);
int optcc_shm_open(const struct optcc_shm_config *config, void *memory, struct optcc_shm **shm);
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
/* See whose memory this rank can read although it was not lent, once all have their engines: from now on it does.
 * OK; MEMORY, or BAD: there is no engine. */
int optcc_shm_peek(struct optcc_shm *shm);
/* Payloads so far that others were to read where they lie: of lent memory; of other. */
uint64_t optcc_shm_lent(const struct optcc_shm *shm);
uint64_t optcc_shm_peeked(const struct optcc_shm *shm);

/* Faults on purpose, at a NIC of this rank. */
enum optcc_link {
    OPTCC_LINK_UP,
    OPTCC_LINK_DOWN,      /* and both ends know */
    OPTCC_LINK_REFUSES,   /* it takes nothing in, which those who send to it notice */
    OPTCC_LINK_SENDS_NOT, /* it does not send, and says so here */
    OPTCC_LINKS
};
int optcc_shm_link(struct optcc_shm *shm, uint32_t nic, enum optcc_link link, enum optcc_cause cause);
/* From now on payloads, or frames without one, disappear on the NIC's wires; nobody is told.
 * far_rank, far_nic : on the wires to that NIC alone; far_rank UINT32_MAX: on all */
int optcc_shm_dark(struct optcc_shm *shm, uint32_t nic, uint32_t far_rank, uint32_t far_nic, int data, int acks);
int optcc_shm_slow(struct optcc_shm *shm, uint32_t nic, double part); /* of the rate that it has */
uint64_t optcc_shm_dropped(const struct optcc_shm *shm, uint32_t nic); /* frames that have disappeared at it */

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
 * first job. AGAIN: one has not been told to end, or dozens have not ended. */
int optcc_gpu_launch(struct optcc_gpu *gpu, enum optcc_type type, enum optcc_op op, uint64_t *first);
/* OK: all that was given is done. After `launch` that means that the kernel runs, and the buffer is as its stream has
 * left it: only now may the collective begin. After `end`: that it ends. Else AGAIN. */
int optcc_gpu_idle(struct optcc_gpu *gpu);
/* The collective has ended: so does the kernel, and its stream goes on. BAD: none was launched. */
int optcc_gpu_end(struct optcc_gpu *gpu);

/* A job of its own, beside those of programs: OK and a ticket, AGAIN or LOST; then whether it is done, as a folder has it. */
int optcc_gpu_job(struct optcc_gpu *gpu, const struct optcc_job *job, uint64_t *ticket);
int optcc_gpu_done(const struct optcc_gpu *gpu, uint64_t ticket);

/* Kernels that come and go, in place of `launch` and `end`: each is a life, of one type, of the kernel `serve_life`, on the
 * stream of the one before. Without one, and for memory that is not reached, the processor does the jobs.
 *
 * By who launches kernels, one thread at a time: `ask` before a launch: OK; AGAIN: dozens have not gone; BAD. Where the
 * launch has failed `unask`. When the life's `over` is set to its number, it ends and has gone soon.
 * By the engine's thread: `look` before each round: OK: jobs go to a kernel; AGAIN: to the processor. It tells a life to
 * leave that had nothing to do for a quarter of a second. `gone`: OK: no kernel is there or will come; then all jobs are done after
 * a `look`. */
struct optcc_gpu_life { /* what the kernel is given */
    uint64_t number, count;
    const void *slots;
    void *lines, *lives, *over;
};
struct optcc_gpu_counts {
    uint64_t given_bytes, beside_bytes; /* by the kernel, and by the processor in its place */
    uint64_t lives, missed, left;       /* that took jobs; that came after all was over; jobs that the processor did late */
    uint64_t idle;                      /* lives that were told to leave, since they had nothing to do */
};
int optcc_gpu_ask(struct optcc_gpu *gpu, enum optcc_type type, struct optcc_gpu_life *life);
void optcc_gpu_unask(struct optcc_gpu *gpu);
int optcc_gpu_look(struct optcc_gpu *gpu, uint64_t now_ns);
int optcc_gpu_gone(const struct optcc_gpu *gpu);
void optcc_gpu_count(const struct optcc_gpu *gpu, struct optcc_gpu_counts *counts);
/* Memory that kernels reach at the same address; `forget` what begins there. OK, MEMORY, or BAD: 256 pieces. */
int optcc_gpu_reach(struct optcc_gpu *gpu, const void *memory, uint64_t bytes);
void optcc_gpu_forget(struct optcc_gpu *gpu, const void *memory);

/* What the kernel does, on the processor: where there is no GPU. `step` looks at `most` blocks, drawn from a seed, does
 * the next job of each if it is there, and returns how many blocks have not ended. */
int optcc_gpu_twin_open(void *memory, uint32_t blocks, enum optcc_type type, enum optcc_op op, uint64_t first,
                        uint64_t seed, struct optcc_gpu_twin **twin);
/* The twin of a life. */
int optcc_gpu_twin_life(void *memory, uint32_t blocks, enum optcc_type type, uint64_t life, uint64_t seed,
                        struct optcc_gpu_twin **twin);
uint32_t optcc_gpu_twin_step(struct optcc_gpu_twin *twin, uint32_t most);
void optcc_gpu_twin_close(struct optcc_gpu_twin *twin);

/* ---- wires_tcp.c: ranks of many machines, a connection for each wire ---------------------------------------------- */

enum optcc_tcp_limit {
    OPTCC_TCP_SECRET = 32,      /* bytes */
    OPTCC_TCP_MAX_HANDLE = 384, /* bytes; four NICs with IPv4 take 56, with IPv6 104 */
    OPTCC_TCP_MAX_STRANGERS = 1024
};

struct optcc_tcp_address {
    uint32_t family;   /* 4 or 6: of IP */
    uint32_t scope;    /* a link-local address of IPv6: index of its interface here; else 0 */
    uint32_t port;     /* 0: any that is free */
    uint8_t bytes[16]; /* as they travel; of IPv4 the first four count */
};

struct optcc_tcp_config {
    uint32_t rank, ranks, nics;
    uint32_t segment_bytes; /* as in optcc_config; the same at all ranks */
    uint32_t unsent_bytes;  /* at most about so much of a wire waits unsent in the kernel; 0: one segment */
    uint32_t strangers;     /* connections at a time that have not proved yet who they are; 0: 64 */
    uint64_t handshake_ns;  /* in so long they must; 0: 2 s */
    uint64_t open_ns;       /* a wire that has not come about so long after its join has died; 0: 10 s */
    struct optcc_tcp_address address[OPTCC_MAX_NICS]; /* of this rank's NICs */
    uint8_t secret[OPTCC_TCP_SECRET]; /* random, the same at all ranks of a job, known to nobody else */
};

struct optcc_tcp_counters {
    uint64_t tried;     /* connections that we began */
    uint64_t accepted;  /* connections that came, of whomever */
    uint64_t proved;    /* connections whose peer has proved itself: those that came and those that we made */
    uint64_t refused;   /* what came and said something wrong */
    uint64_t late;      /* what came and was sent away because it took too long, or for another */
    uint64_t died;      /* connections that were wires and broke */
    uint64_t malformed; /* likewise, since what came could not be a frame */
};

enum optcc_tcp_wire_is { OPTCC_TCP_OPENING, OPTCC_TCP_LIVE, OPTCC_TCP_GONE };

struct optcc_tcp;
/* Listen on the address of each NIC. OK, MEMORY, or BAD; where the system refuses, `errno` says why. */
int optcc_tcp_open(const struct optcc_tcp_config *config, struct optcc_tcp **tcp);
void optcc_tcp_close(struct optcc_tcp *tcp); /* after its engine; see optcc_tcp_sent */

/* What another rank needs to join this one. length : room in `bytes`; then what was written, or is needed (BAD). */
int optcc_tcp_handle(const struct optcc_tcp *tcp, void *bytes, uint32_t *length);

/* Begin wires to another rank, once for each. The lower rank connects, from the address of its NIC.
 * lanes : their table, the same at both ends but for the sides, lane 0 first; NULL: NIC i with NIC i where both have it
 * Returns OK, MEMORY, or BAD: a handle that is broken or another job's, another rank's or length of segments, lanes
 * that cannot be. Only before the engine; after MEMORY only the close. */
int optcc_tcp_join(struct optcc_tcp *tcp, uint32_t rank, const void *handle, uint32_t length,
                   const struct optcc_wire *lanes, uint32_t count);
uint32_t optcc_tcp_wires(const struct optcc_tcp *tcp); /* of all joins: an index in the engine's table is below */
int optcc_tcp_wire(const struct optcc_tcp *tcp, uint32_t wire, struct optcc_wire *ends);

/* An engine over the wires; rank, ranks, nics and wires of the config are those of `tcp`. Wires that are still opening
 * carry when they are open; `optcc_tcp_ready` waits for none. */
int optcc_tcp_engine(struct optcc_tcp *tcp, const struct optcc_config *config, struct optcc_engine **engine);

/* Open wires further, before there is an engine, which does it afterwards. AGAIN: some are opening; OK: all are open;
 * LOST: none is opening, and not all are open. */
int optcc_tcp_ready(struct optcc_tcp *tcp);
int optcc_tcp_look(const struct optcc_tcp *tcp, uint32_t wire); /* enum optcc_tcp_wire_is, UINT32_MAX: no such wire */

/* To sleep: `optcc_tcp_arm` until it gives OK, with `optcc_progress` after each AGAIN; then wait for the descriptor to be
 * readable, no longer than `optcc_progress` has said. Do not read it. */
int optcc_tcp_fd(struct optcc_tcp *tcp);
int optcc_tcp_arm(const struct optcc_tcp *tcp);

/* Whether all that was posted has come to the peers' machines: OK or AGAIN. Who closes before takes the risk that a
 * peer never hears of the end. Wires that are gone do not count. */
int optcc_tcp_sent(const struct optcc_tcp *tcp);
void optcc_tcp_count(const struct optcc_tcp *tcp, struct optcc_tcp_counters *counters);
/* ---- wires_verbs.c: RDMA ----------------------------------------------------------------------------------------- */

struct ibv_context;
struct ibv_pd;

enum { OPTCC_DEVICE_EVENTS = 64 }; /* kept of a device */

struct optcc_device { /* what all that send by a NIC know of it together; at first all is zero */
    uint64_t free_ns; /* when it will have sent what it was given, by its rate */
    uint32_t in_hand; /* payloads that it may read */
    uint32_t users;   /* wires of so many have it open */
    int dead;         /* it can do no more; who wants it waits until it has no users */
    struct ibv_context *context;
    struct ibv_pd *domain;
    uint64_t told; /* events that it has told of */
    struct optcc_device_event {
        int32_t type;       /* of libibverbs */
        uint32_t port;      /* that it is about */
        const void *object; /* or the queue */
    } event[OPTCC_DEVICE_EVENTS]; /* the last ones */
};

struct optcc_verbs_nic {
    const char *device;  /* as ibv_devices lists it */
    uint32_t port;       /* of it, from 1 */
    int32_t gid_index;   /* of the port's address; -1: it goes by LID */
    uint64_t bytes_per_s; /* that it sends: it is given no more than it is about to; 0: unknown, up to `ahead` payloads */
    struct optcc_device *shared; /* by all that send by the NIC, one at a time; NULL: nobody else does */
};

struct optcc_verbs_config {
    uint32_t rank, ranks, nics, wires;  /* as of optcc_config */
    const struct optcc_verbs_nic *nic;  /* `nics` of them */
    const struct optcc_wire *wire;      /* `wires` of them; nothing is kept of this table */
    const char *library;                /* NULL: libibverbs.so.1 */
    uint32_t segment_bytes, window_bytes; /* as of optcc_config */
    uint32_t ahead;    /* payloads that a NIC may have at once */
    uint32_t lead_bytes; /* that a NIC with a rate is given behind what it is sending, for who wakes up late */
    uint32_t timeout;  /* a packet without acknowledgement is sent again after 4.096 us x 2^timeout, 1 to 31 */
    uint32_t retries;  /* so often, 0 to 6; then the wire is lost */
    uint32_t copies;   /* 1: payloads are copied before they go, from any memory; 0: from what is registered */
};

struct optcc_verbs_state {
    uint32_t there, up; /* the device could be opened and has not failed since; its port has a link */
    uint32_t in_hand;   /* payloads that it may read */
    const char *why;    /* it is not there; empty: it is */
};

struct optcc_verbs_port { /* that a device here has */
    char device[64];
    uint32_t port, up, ethernet; /* its number; whether it has a link; Ethernet in place of InfiniBand */
    uint32_t mbps;               /* as the driver says; 0: unknown */
    int32_t gid_index;           /* the best for RoCE v2; -1: none, or InfiniBand, which goes by LID */
};

struct optcc_verbs;
/* The ports of all devices, `count` of them at most; then, how many there are. OK; BAD: no libibverbs; or MEMORY. */
int optcc_verbs_ports(const char *library, struct optcc_verbs_port *ports, uint32_t *count);
/* Why the last of these calls in this thread was not OK: what, expected, got, way out. */
const char *optcc_verbs_why(void);
/* OK, BAD or MEMORY. Devices that are missing are lost NICs (`optcc_verbs_look`), as long as one is there. Ranks
 * give each other their handles by means of their own and join; frames sent before that are lost. */
int optcc_verbs_open(const struct optcc_verbs_config *config, struct optcc_verbs **verbs);
void optcc_verbs_close(struct optcc_verbs *verbs); /* after its engine */
/* What `peer` must know to join this rank: bytes of its own process, machine and time. `length` : how many there may
 * be; then, how many there are, or BAD and how many there must be. */
int optcc_verbs_handle(struct optcc_verbs *verbs, uint32_t peer, void *bytes, uint64_t *length);
int optcc_verbs_join(struct optcc_verbs *verbs, uint32_t peer, const void *bytes, uint64_t length); /* OK or BAD */
/* An engine over it; rank, ranks, nics and wires of the config are those of `verbs`. OK, BAD or MEMORY. */
int optcc_verbs_engine(struct optcc_verbs *verbs, const struct optcc_config *config, struct optcc_engine **engine);
/* Buffers must lie in memory that was registered before `optcc_begin`, on all NICs: OK, BAD or MEMORY. Unregister it by
 * its beginning, when no collective runs on it. */
int optcc_verbs_register(struct optcc_verbs *verbs, void *memory, uint64_t bytes);
int optcc_verbs_unregister(struct optcc_verbs *verbs, const void *memory);
/* To sleep: `optcc_verbs_arm` until it gives OK, with `optcc_progress` after each AGAIN; then wait for the descriptor to
 * be readable, no longer than `optcc_progress` and `optcc_verbs_free` have said. */
int optcc_verbs_fd(const struct optcc_verbs *verbs);
int optcc_verbs_arm(struct optcc_verbs *verbs);
/* When a NIC with a rate, which had no room since the last call, has some; UINT64_MAX: all had. */
uint64_t optcc_verbs_free(struct optcc_verbs *verbs);
/* What no lost NIC explains, as text; NULL: nothing. Its wire is lost, too. It is a bug: end the run. */
/* A fault on purpose, for good: the NIC's queue pairs fail, and it says that its link is down; or with `device` that it is
   gone. OK or BAD. */
int optcc_verbs_cut(struct optcc_verbs *verbs, uint32_t nic, int device);
const char *optcc_verbs_fault(const struct optcc_verbs *verbs);
int optcc_verbs_look(const struct optcc_verbs *verbs, uint32_t nic, struct optcc_verbs_state *state); /* OK or BAD */

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
/* What a rank does in place of tasks, called again and again: DONE: it has nothing to do any more; WAITS; BUSY: it has
 * begun something, and is called again at once. */
enum optcc_play { OPTCC_PLAY_DONE, OPTCC_PLAY_WAITS, OPTCC_PLAY_BUSY };
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
                     void *result, uint64_t bytes, enum optcc_type type, enum optcc_op op);
int optcc_world_player(struct optcc_world *world, uint32_t rank, enum optcc_play (*play)(void *context), void *context);
/* The rank's part of a program goes by a folder that does jobs late and out of order, each within `most_ns`. */
int optcc_world_folder(struct optcc_world *world, uint32_t rank, struct optcc_program *program, uint64_t most_ns);
int optcc_world_fault(struct optcc_world *world, uint64_t at_ns, enum optcc_fault kind, uint32_t rank, uint32_t nic,
                      uint64_t value);
/* Until every living rank has done its tasks: OK; LOST: some rank has given up, all have ended; LATE: not by then. */
int optcc_world_run(struct optcc_world *world, uint64_t limit_ns);
uint64_t optcc_world_now(const struct optcc_world *world);
/* How often a collective ended while a NIC could still read its buffer, or a folder: 0, or the engine is wrong. */
uint64_t optcc_world_touched(const struct optcc_world *world);
/* Whether a NIC of the rank may still read some of these bytes. */
int optcc_world_reads(const struct optcc_world *world, uint32_t rank, const void *bytes, uint64_t length);
uint32_t optcc_world_done(const struct optcc_world *world, uint32_t rank); /* tasks */

#pragma GCC visibility pop

/* ---- wires_tcp.c, for other sockets of the library ------------------------------------------------------------------ */

/* A socket that listens on an address, which then has its port; one that is connecting to an address. -1: `errno` says why. */
int optcc_tcp_listen(struct optcc_tcp_address *address, int backlog);
int optcc_tcp_call(const struct optcc_tcp_address *address);

/* ---- hmac.c ------------------------------------------------------------------------------------------------------ */

/* Random bytes of the kernel, at most 256; whether there are any. */
int optcc_draw(void *bytes, uint64_t length);

enum { OPTCC_HMAC = 32 }; /* bytes */
void optcc_hmac(const void *key, uint32_t key_length, const void *bytes, uint64_t length, uint8_t code[OPTCC_HMAC]);
/* Whether they are the same; takes as long wherever they differ. */
int optcc_same_secret(const void *a, const void *b, uint32_t length);

/* ---- what flow.c takes its pieces from ----------------------------------------------------------------------------- */

/* From now on a wire has at most so many bytes that are not acknowledged; no more than it was opened with. */
void optcc_narrow(struct optcc_engine *engine, uint32_t window_bytes);

/* The clock of all wires but virtual ones: nanoseconds; `self` says nothing. */
uint64_t optcc_now(void *self);

#define OPTCC_NONE UINT32_MAX

struct optcc_piece { /* one segment to send */
    uint32_t send, segment; /* index among the rank's sends; which segment of it */
    uint32_t row, length;   /* as the frame has it; bytes, never 0 */
    uint32_t word;          /* as the frame has it */
    uint64_t offset;        /* in the row, bytes */
    struct optcc_tag tag;   /* as the frame has it */
    uint64_t lanes;
    uint32_t peer;          /* rank of the engine */
    uint64_t ready_ns;      /* since when it could go */
    const void *bytes;
};

/* An operation, as flow.c sees it: a program's rows, or messages. */
struct optcc_source {
    uint32_t (*segment)(const void *self); /* bytes */
    /* Every peer once: how many segments go to it and come from it. Returns 0 behind the last `i`. */
    int (*peer)(const void *self, uint32_t i, uint32_t *peer, uint64_t *to, uint64_t *from);
    /* Which send has a segment ready, most urgent first; the next after that one. OPTCC_NONE: the first; there is none. */
    uint32_t (*ready)(const void *self, uint32_t after);
    /* The next segment of a ready send; `taken` when it has been sent. Any earlier one again by `piece`. */
    void (*next)(const void *self, uint32_t send, struct optcc_piece *piece);
    void (*taken)(void *self, uint32_t send);
    void (*piece)(const void *self, uint32_t send, uint32_t segment, struct optcc_piece *piece);
    /* A segment has come: OK; AGAIN: it is being taken in, `bytes` must stay until `landed` gives `name`; or BAD, and
     * nothing has changed, for one that is not expected or was here. */
    int (*land)(void *self, uint32_t peer, const struct optcc_frame *head, const void *bytes, uint64_t name,
                uint64_t at_ns);
    /* Where a segment that has come is only copied to, now; NULL: nowhere, or something else is to be done, or it is not
     * expected. `land` is told this place for its bytes then. NULL: it never is. */
    void *(*wants)(const void *self, uint32_t peer, const struct optcc_frame *head);
    int (*whole)(const void *self); /* everything has come and is done with */
    /* For who takes segments in late; else NULL. `late` : whether it does. `landed` : go on: OK, and the name of a segment
     * that has been taken in; AGAIN: of none; LOST: never again. `due_ns` : after how long to go on at the latest;
     * UINT64_MAX: there is nothing to do. `stop` : begin nothing more; due until what has begun is done. */
    int (*late)(const void *self);
    int (*landed)(void *self, uint64_t *name);
    uint64_t (*due_ns)(const void *self);
    void (*stop)(void *self);
    /* For who gives its memory back piece by piece; else NULL. A segment of `send` is the lane's to read; so many of the
     * lane, those that it had first, are read no more; one has landed. */
    void (*given)(void *self, uint32_t send, uint32_t lane);
    void (*back)(void *self, uint32_t lane, uint32_t payloads);
    void (*acknowledged)(void *self, uint32_t send);
};

extern const struct optcc_source OPTCC_ROWS_SOURCE, OPTCC_MESSAGES_SOURCE; /* of optcc_program, optcc_messages */
int optcc_program_begin(struct optcc_program *program, const struct optcc_call *call, uint64_t now_ns);
void optcc_program_done(const struct optcc_program *program, uint32_t *done, uint32_t *rows);
void optcc_program_missing(const struct optcc_program *program, struct optcc_missing *missing);

#ifdef __cplusplus
}
#endif
#endif
