/* One process' part of the fabric: devices that it has opened, queue pairs, completion queues, memory regions. */
#ifndef NIC_H
#define NIC_H
#include "fabric.h"
#include "verbs_abi.h"

enum {
  MAX_SGE = 16, MAX_INLINE = 1024, MAX_WR = 1 << 15, MAX_CQE = 1 << 22, MAX_REGIONS = 1 << 16, MAX_READS = 16, MAX_GIDS = 2,
  MAX_DATAGRAM = 4096, GRH_BYTES = 40, PSN_MASK = (1 << 24) - 1, DEFAULT_PKEY = 0xffff
};
enum { MAX_MESSAGE = 1u << 30 };
/* Nanoseconds. AHEAD: so far ahead of time a NIC takes on work. CATCH_UP: so late a NIC may be and still work as if in
   time. POLLS: a program that polls in vain as often as POLLS is served by its own thread, until it pauses for so long. */
enum { AHEAD = 200 * 1000, CATCH_UP = 20 * 1000 * 1000, SPIN = 50 * 1000, POLLING = 50 * 1000, POLLS = 16, LONGEST_SLEEP = 500 * 1000 * 1000, SOON = 50 * 1000, MILLISECOND = 1000 * 1000 };
#define NEVER UINT64_MAX

#ifdef PLAYED_MUTANTS  /* tests build a fabric that is wrong in one way, by its number in tests/test_fabric.py */
int played_mutant(void);
#define MUTANT(n) (played_mutant() == (n))
#else
#define MUTANT(n) false
#endif

/* What waits for a program that reads a descriptor: pointers or events, in order. */
typedef struct { struct ibv_async_event event; } Letter;
typedef struct { int fd; pthread_mutex_t lock; Letter *letters; uint32_t first, count, room; } Mail;
int mail_open(Mail *m);
void mail_close(Mail *m);
void mail_put(Mail *m, Letter letter);
int mail_get(Mail *m, Letter *out);           /* 0, or -1 and errno */
void mail_forget(Mail *m, const void *about); /* what would speak of an object that is no more */

typedef struct { struct ibv_comp_channel channel; Mail mail; } Channel;
typedef struct {
  union { struct ibv_cq cq; struct ibv_cq_ex ex; };
  pthread_mutex_t lock;
  struct ibv_wc *wcs, polled;
  uint32_t size, first, count;
  bool armed, solicited_only, overrun;
  _Atomic uint32_t in_vain;
} Cq;

/* Memory that NICs may reach; gpu: where it is, if it is a GPU's. Bytes go through `region_copy` alone. */
typedef struct { struct ibv_mr mr; uint64_t iova; int access; struct GpuMemory *gpu; } Region;
enum { FROM_REGION, INTO_REGION };

typedef struct { uint64_t wr_id; int sges; struct ibv_sge sge[MAX_SGE]; } Receive;
typedef struct { Receive *slots; uint32_t room, limit, sges; uint64_t posted, taken; } Receives;
typedef struct { struct ibv_srq srq; Receives receives; struct ibv_srq_attr attr; } Srq;
typedef struct { struct ibv_ah ah; struct ibv_ah_attr attr; int nic; } Ah;

typedef struct {  /* a send request; inline bytes lie behind it */
  uint64_t wr_id, total, posted_at, address, operand[2];
  uint32_t flags, imm, key, qpn, psn, packets;
  int opcode, sges, nic;
  bool global;
  struct ibv_sge sge[MAX_SGE];
  uint8_t inlined[];
} Send;
typedef struct { uint32_t psn, key; uint64_t address, left, value, asked_at; bool atomic; } Answer;

typedef struct Port Port;
typedef struct Qp {
  union { struct ibv_qp qp; struct ibv_qp_ex ex; };
  Port *port;
  struct Qp *chain;
  Ring in, out;
  uint64_t look_again;        /* for a far end's ring that was not there */
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  int peer;                   /* the NIC at the far end; -1: none has that address */
  bool signal_all, heard;
  /* asking */
  uint8_t *sends;
  size_t stride;
  uint32_t sends_room, post_psn, send_psn, una, reads;  /* una: the oldest packet that is not acknowledged */
  uint64_t posted, next, acked, at;    /* requests; at: packets of `next` that are out */
  int wrong;                           /* what is wrong with `next` itself, a status */
  uint64_t moved_at, asked_at, rnr_until;
  uint32_t retries, rnr_tries, rewound_for;
  bool rewound, draining;
  /* answering */
  Receives own, *receives;
  uint32_t expected, nak_psn;
  int nak;                             /* to be sent; -1: none */
  enum ibv_event_type nak_event;       /* of a NAK after which the queue pair is in error */
  bool ack_due, out_of_order, in_message, holds_receive;
  uint64_t landed;                     /* bytes of the message that is coming in */
  Receive current;
  Answer answers[4 * MAX_READS];
  uint64_t answers_in, answers_out;
  struct { uint32_t psn; uint64_t value; bool used; } replays[4 * MAX_READS];
  uint32_t replays_next;
  uint64_t built;                      /* by the extended way to post, not yet posted */
  int built_wrong;                     /* an errno */
} Qp;

struct Port {  /* an opened device */
  struct verbs_context v;
  uint32_t nic, station;
  Nic *state;
  pthread_mutex_t lock;       /* of queue pairs, regions and receives */
  pthread_t thread;
  Mail events;
  Qp *qps;
  struct GpuProcess *gpu;     /* that copies for it; NULL: no memory of a GPU has been registered */
  Region **regions;
  uint32_t regions_room, region_next;
  uint64_t changes_seen, address_seen;
  _Atomic uint64_t polling_until;
  _Atomic uint32_t waiting;
  _Atomic bool stop;
  uint8_t nowhere[MOST_FRAGMENT + sizeof(Frame)];  /* where a frame goes that is lost */
};

extern FabricFile fabric;
static inline Port *port_of(struct ibv_context *c) { return (Port *)((char *)c - offsetof(struct verbs_context, context)); }
static inline Send *send_at(const Qp *q, uint64_t i) { return (Send *)(q->sends + i % q->sends_room * q->stride); }
static inline uint32_t packets_of(uint64_t bytes) { return bytes ? (uint32_t)((bytes - 1) / fabric.shared->fragment + 1) : 1; }

void port_lock(Port *p);
void port_unlock(Port *p);
uint64_t port_pass(Port *p);  /* all that can be done now; when to come again. With the lock. */
void port_wake(Port *p);
void *port_play(void *port);
void port_event(Port *p, enum ibv_event_type type, void *object);
void flush_sends(Qp *q, enum ibv_wc_status first);
void qp_into_error(Qp *q, enum ibv_wc_status first);
void qp_reset(Qp *q);
int gpu_find(struct GpuMemory **out, void *at, size_t length);  /* NULL: it is host memory. 0, or an errno */
int gpu_open(Port *p, struct GpuMemory *m);                     /* with the lock, as what follows. 0, or an errno */
void gpu_close(Port *p, struct GpuMemory *m);
void gpu_copy(Port *p, const Region *r, uint64_t offset, void *bytes, uint64_t n, int way);
void gpu_stop(Port *p);
Region *region_find(Port *p, uint32_t key, const struct ibv_pd *pd);
void cq_forget(struct ibv_cq *cq, uint32_t qpn);
void complete(struct ibv_cq *cq, struct ibv_wc wc, bool solicited);
#endif
