/* A fabric that is played: what its processes share. It is a folder in shared memory with
     fabric      this file's `Fabric`: the NICs, their rates and faults, who has opened them
     lives       one lock per station, which the kernel lets go when its process dies
     qN          the ring into queue pair N
     hostH/sys   what sysfs would show of host H's NICs
   Time is CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share. Rates are bytes per second. */
#ifndef FABRIC_H
#define FABRIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_NICS = 1024, MAX_STATIONS = 2048, MAX_NAME = 32, MAX_PATH = 256 };
enum { LEAST_FRAGMENT = 4096, MOST_FRAGMENT = 32768, FRAGMENTS_OF_A_RING = 32, CONTROL_ROOM = 4096 };
enum { FABRIC_MAGIC = 0x0fab0001 };
enum { UP, DOWN, GONE };                    /* of a NIC: GONE is a device that answers nothing any more */
enum { ALL = 0, DATA = 1, ACKS = 2 };       /* which frames are lost */
enum { OUT, IN };

/* What is known of a NIC, by name for `played_get` and `played_set`; each is one atomic 64-bit number. */
#define FIELDS(F)                                                                                                     \
  F(rate_out) F(rate_in)    /* 0: as fast as the machine is */                                                        \
  F(latency) F(jitter)      /* nanoseconds; jitter is the most that is added, at random by the fabric's seed */       \
  F(state) F(changes)       /* UP, DOWN, GONE; how often that changed */                                              \
  F(lose_out) F(lose_in)    /* one frame in so many is lost, silently; 0: none, 1: all */                             \
  F(lose_what)              /* ALL, DATA, ACKS */                                                                     \
  F(address)                /* grows when the NIC gets another IP address */                                          \
  F(free_out) F(free_in)    /* when what is under way in a direction is through */                                    \
  F(bytes_out) F(bytes_in) F(lost) F(sent_again) F(not_ready)   /* counters */
#define AS_ENUM(name) F_##name,
enum { FIELDS(AS_ENUM) FIELD_COUNT };

typedef struct { char name[MAX_NAME]; _Atomic uint64_t v[FIELD_COUNT]; } Nic;
typedef struct {  /* an opened device, in some process */
  _Atomic uint64_t looked_at;  /* when it last looked at all of its queue pairs */
  _Atomic uint64_t wakes_at;   /* it sleeps, and wakes by itself then; 0: no need to wake it */
  _Atomic uint32_t bell, pid, nic;
} Station;
typedef struct {
  uint32_t magic, bytes, hosts, nics, roce, fragment;
  uint64_t seed;
  _Atomic uint64_t drawn;
  _Atomic uint32_t made, next_qpn, open_stations;
  Nic nic[MAX_NICS];
  Station station[MAX_STATIONS];
  _Atomic uint8_t cut[MAX_NICS][MAX_NICS];  /* [from][to]: what goes this way is lost */
} Fabric;

typedef struct { Fabric *shared; char folder[MAX_PATH]; int lives; } FabricFile;

uint64_t now_ns(void);
int fabric_open(FabricFile *f, const char *folder);        /* 0, or an errno */
double fabric_chance(Fabric *f);                           /* the next number in [0, 1) by the seed */
void station_ring(Fabric *f, uint32_t station, uint64_t due);
void station_sleep(Fabric *f, uint32_t station, uint32_t bell, uint64_t until);
int station_take(FabricFile *f, uint32_t nic);             /* its number, or -1 */
void station_leave(FabricFile *f, uint32_t station);
bool station_alive(const FabricFile *f, uint32_t station);

/* For whoever runs a fabric, by any language's way to call C. They give 0, or an errno. */
int played_make(const char *folder, unsigned hosts, unsigned nics, const char *name, uint64_t rate, uint64_t latency, int roce, uint64_t seed);
int played_set(const char *folder, unsigned host, unsigned nic, const char *field, uint64_t value);
int played_get(const char *folder, unsigned host, unsigned nic, const char *field, uint64_t *value);
int played_cut(const char *folder, unsigned host, unsigned nic, unsigned to_host, unsigned to_nic, int lost);
int played_shape(const char *folder, uint32_t shape[4]);   /* hosts, NICs of each, RoCE or not, stations that are open */

/* A ring: written by any number of far ends, one at a time; read by its owner. Frames lie 64 bytes apart or more. */
typedef struct {
  _Atomic uint64_t head;
  char apart[56];
  _Atomic uint64_t tail;
  _Atomic uint32_t writer;  /* 1 + the station that writes; 0: none */
  _Atomic uint32_t closed;
  uint32_t qpn, station, nic;
} RingHead;
typedef struct { RingHead *head; uint8_t *data; uint64_t size; } Ring;  /* data: the bytes twice in a row, so that none wrap */

enum {  /* kinds of frames; requests before answers */
  SEND = 1, WRITE, READ, SWAP, ADD, DATAGRAM, READ_ANSWER, ATOMIC_ANSWER, ACK, NAK, LAST_KIND = NAK
};
enum { FIRST = 1, LAST = 2, WITH_IMM = 4, SOLICITED = 8, GLOBAL = 16 };
typedef struct {
  uint8_t kind, flags;
  uint16_t nic;             /* that sent it */
  uint32_t qpn, psn, length; /* of the sending queue pair; bytes that follow */
  uint64_t start, due;      /* when its first byte left; when it is here if nothing else is on its way in */
  uint64_t address;
  uint32_t key, imm;        /* remote key, or a datagram's Q_Key; immediate value, or why: enum ibv_wc_status, 0 and 1 below */
  uint64_t total;           /* bytes of its message */
} Frame;
enum { OUT_OF_ORDER = 0, NOT_READY = 1 };  /* of a NAK, beside statuses */

int ring_make(Ring *r, const FabricFile *f, uint32_t qpn, uint32_t station, uint32_t nic);
int ring_find(Ring *r, const FabricFile *f, uint32_t qpn);
void ring_leave(Ring *r, const FabricFile *f, bool destroy);
uint8_t *ring_reserve(Ring *r, const FabricFile *f, uint32_t station, uint32_t length, uint32_t room);  /* NULL: not now */
void ring_publish(Ring *r, uint32_t length);
void ring_let_go(Ring *r);
int ring_look(const Ring *r, Frame *frame, const uint8_t **bytes, uint32_t fragment);  /* 1, 0: empty, -1: broken */
void ring_drop(Ring *r, uint32_t length);
void ring_empty(Ring *r);
#endif
