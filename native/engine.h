/* The native engine: collectives of one rank, run from a plan's rows over many NICs.
 *
 * One engine is one rank's end of everything. It has no thread, never blocks, sleeps or locks: whoever owns it calls
 * `optcc_progress` from one thread. All its memory is taken in `optcc_open`, `optcc_program_open` and nowhere else, so
 * it is bounded by ranks, wires and the plan. All times are nanoseconds of the clock of its wires, all lengths bytes.
 *
 *   program.c        a rank's rows: what is ready, what waits, where a segment lands, folds in row order
 *   messages.c       in place of a program: messages between two ranks, as many as come
 *   flow.c           segments exactly once over NICs that come and go; which NIC takes the next one
 *   reduce.c         the folds
 *   wires_shm.c      wires between ranks of one machine
 *   wires_tcp.c      wires between machines
 *   hmac.c           how the ends of such a wire know each other
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
    OPTCC_MAX_SEGMENT = 1 << 24
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
    uint32_t word;      /* PROBE, ALIVE: the number of the doubt; NOTICE: the life of `lane` that is over; DATA: of the
                         * operation's own, 0 in programs */
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
    OPTCC_FRAME,  /* `bytes`, `length`: a frame has come by `wire`; they stay until the next poll, aligned to 8 */
    OPTCC_LEFT,   /* one payload given to `wire`, the first that was, is read no more */
    OPTCC_DIED,   /* the transport knows that `wire` is lost */
    OPTCC_FENCED, /* the fence of `wire` is done */
    OPTCC_BACK    /* `wire` may work again: a hint */
};

struct optcc_event {
    uint32_t news; /* enum optcc_news */
    uint32_t wire; /* index in the engine's table of wires */
    uint64_t length; /* bytes */
    const void *bytes;
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

/* Take a wire for lost, for who wants a payload back that it does not give back. */
void optcc_leave(struct optcc_engine *engine, uint32_t wire);

/* ---- messages.c: messages between two ranks, as many as come ------------------------------------------------------ */

enum optcc_messages_limit {
    OPTCC_DEPTH = 32,         /* sends, or receives, of one stream that are not done */
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
int optcc_send(struct optcc_messages *messages, uint32_t stream, const void *bytes, uint64_t length, uint64_t *number);
int optcc_receive(struct optcc_messages *messages, uint32_t stream, void *bytes, uint64_t room, uint64_t *number);
/* Whether it is done, asked until it is; the memory is the caller's then. OK, AGAIN, BAD: the message is longer than the
 * receiver's buffer, or no such send or receive; LOST: the sender has withdrawn the message, or sent a longer one.
 * length : bytes of the message */
int optcc_sent(struct optcc_messages *messages, uint32_t stream, uint64_t number);
int optcc_received(struct optcc_messages *messages, uint32_t stream, uint64_t number, uint64_t *length);

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

/* Becomes readable when `optcc_progress` has something to do before the time that it returned last. Do not read it. */
int optcc_tcp_fd(struct optcc_tcp *tcp);
/* optcc_wait for who has something else for the processor to do: it sleeps when nothing came for `spin_ns`. */
int optcc_tcp_wait(struct optcc_tcp *tcp, struct optcc_engine *engine, uint64_t spin_ns, uint64_t limit_ns);

/* Whether all that was posted has come to the peers' machines: OK or AGAIN. Who closes before takes the risk that a
 * peer never hears of the end. Wires that are gone do not count. */
int optcc_tcp_sent(const struct optcc_tcp *tcp);
void optcc_tcp_count(const struct optcc_tcp *tcp, struct optcc_tcp_counters *counters);

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
                     void *result, uint64_t bytes, enum optcc_op op);
int optcc_world_player(struct optcc_world *world, uint32_t rank, enum optcc_play (*play)(void *context), void *context);
int optcc_world_fault(struct optcc_world *world, uint64_t at_ns, enum optcc_fault kind, uint32_t rank, uint32_t nic,
                      uint64_t value);
/* Until every living rank has done its tasks: OK; LOST: some rank has given up, all have ended; LATE: not by then. */
int optcc_world_run(struct optcc_world *world, uint64_t limit_ns);
uint64_t optcc_world_now(const struct optcc_world *world);
/* How often a collective ended while a NIC could still read its buffer: 0, or the engine is wrong. */
uint64_t optcc_world_touched(const struct optcc_world *world);
/* Whether a NIC of the rank may still read some of these bytes. */
int optcc_world_reads(const struct optcc_world *world, uint32_t rank, const void *bytes, uint64_t length);
uint32_t optcc_world_done(const struct optcc_world *world, uint32_t rank); /* tasks */

#pragma GCC visibility pop

/* ---- hmac.c ------------------------------------------------------------------------------------------------------ */

enum { OPTCC_HMAC = 32 }; /* bytes */
void optcc_hmac(const void *key, uint32_t key_length, const void *bytes, uint64_t length, uint8_t code[OPTCC_HMAC]);
/* Whether they are the same; takes as long wherever they differ. */
int optcc_same_secret(const void *a, const void *b, uint32_t length);

/* ---- what flow.c takes its pieces from ----------------------------------------------------------------------------- */

#define OPTCC_NONE UINT32_MAX

struct optcc_piece { /* one segment to send */
    uint32_t send, segment; /* index among the rank's sends; which segment of it */
    uint32_t row, length;   /* as the frame has it; bytes, never 0 */
    uint32_t word;          /* as the frame has it */
    uint64_t offset;        /* in the row, bytes */
    uint64_t lanes;
    uint32_t peer;          /* rank of the engine */
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
    /* A segment has come: OK, or BAD, and nothing has changed, for one that is not expected or was here. */
    int (*land)(void *self, uint32_t peer, const struct optcc_frame *head, const void *bytes);
    int (*whole)(const void *self); /* everything has come and is done with */
    /* For who gives its memory back piece by piece; else NULL. A segment of `send` is the lane's to read; so many of the
     * lane, those that it had first, are read no more; one has landed. */
    void (*given)(void *self, uint32_t send, uint32_t lane);
    void (*back)(void *self, uint32_t lane, uint32_t payloads);
    void (*acknowledged)(void *self, uint32_t send);
};

extern const struct optcc_source OPTCC_ROWS_SOURCE, OPTCC_MESSAGES_SOURCE; /* of optcc_program, optcc_messages */
void optcc_program_begin(struct optcc_program *program, void *buffer, enum optcc_op op);

#ifdef __cplusplus
}
#endif
#endif
