/* What planning and simulating spend their time on: the interface between optcc/machine/native.py's callers and C.
 *
 * Every function returns a `planning_code`. None keeps anything between calls, starts threads or writes but into the
 * arrays that it is given; all memory that one allocates is freed when it returns. Numbers that index an array are
 * checked before they are used; the lengths of arrays are the caller's word.
 *
 * Results are the same to the bit on all machines: doubles are IEEE 754, computed in the order written here, so these
 * files are compiled without contraction into fused operations and without -ffast-math. */
#ifndef OPTCC_PLANNING_H
#define OPTCC_PLANNING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define PLANNING_API __attribute__((visibility("default")))

/* Counted up with every change of this file that a caller notices. */
#define PLANNING_ABI 4

/* Returns what is not 0. */
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    int tried = (call);                                                                                                \
    if (tried)                                                                                                         \
      return tried;                                                                                                    \
  } while (0)

enum planning_code {
  PLANNING_DONE = 0,
  PLANNING_NO_MEMORY = 1,
  PLANNING_BAD_INDEX = 2, /* a number beyond the array that it points into, or a count below 0 */
  PLANNING_NO_TREE = 3,   /* costs that join no tree, or arcs that lead nowhere */
  PLANNING_STUCK = 4,     /* something waits for ever */
  PLANNING_TOO_LONG = 5,  /* a time that does not fit the clock */
  PLANNING_NO_WAY = 6,    /* no live port is left for a stripe */
};

PLANNING_API int32_t planning_abi(void);

/* Zeroed memory for `count` elements; NULL where there is none, and for a count below 0. */
static inline void *planning_zeroed(int64_t count, size_t size)
{
  return count < 0 ? NULL : calloc(count > 0 ? (size_t)count : 1, size);
}

static inline int64_t planning_max(int64_t a, int64_t b)
{
  return b > a ? b : a;
}

/* ---- assign.c: direct exchange ---- */

/* column_of (rows): for each row of worth (rows, columns) its column, -1 for rows beyond the columns: a matching of
 * greatest total worth. Of several such it is the one that scipy 1.11 to 1.18 take. */
PLANNING_API int planning_assign(int64_t rows, int64_t columns, const double *worth, int64_t *column_of);

/* Pairs of ranks, whose bytes are cut in time. */
struct cut_pairs {
  int64_t pairs, pieces, slots, room;
  int64_t granule;       /* cuts are multiples of it */
  int64_t near;          /* 1/near of its bytes a slot takes more or less to end with a piece */
  int64_t cost, cost_of; /* ticks that a chunk costs, a fraction: up to so much, too, and a third of its bytes at most */
  const int64_t *pair;   /* (pairs, 5): src, dst, how many pieces, how many slots, ticks added to their begins */
  const int64_t *piece;  /* (pieces, 4): kind, hub, start, stop, upwards or downwards; pair after pair */
  const int64_t *slot;   /* (slots, 4): begin, size, nic, weight */
  int64_t *found;        /* (9, room): src, dst, begin, kind, hub, start, stop, nic, place of the slot */
};

/* Each pair's bytes, in order, divided by its slots' weights; `count` columns of `found` are filled. */
PLANNING_API int planning_cut(const struct cut_pairs *pairs, int64_t *count);

/* Transfers of a direct exchange. Kinds: 0 data to hubs, 1 sums to who adds last, 2 these back, 3 results. A row waits for
 * the rows of its hub that share bytes with it: sums for data, what comes back for sums, results for both. */
struct exchange_rows {
  int64_t rows, ranks, nics, held, waits;
  int64_t most;            /* of the dependencies of earlier rows that a row waits for */
  const int64_t *src, *kind, *hub, *start, *stop; /* (rows) */
  const int64_t *nic;      /* (rows): number of the row's NIC */
  const int64_t *floor;    /* (ranks): results of a hub wait for data from this byte on */
  const int64_t *held_row, *held_on; /* (held): more pairs, which count if the second comes first */
  int64_t *key;            /* (rows): when a row is due; planning_due puts it after what it waits for */
  int64_t *order;          /* (rows): rows by time */
  int64_t *extra;          /* (rows, most): for what earlier rows on its NIC wait, -1 behind the last */
  int64_t *latest;         /* (most): room */
  int64_t *ptr;            /* (rows + 1), dep (waits): CSR, by place in `order` the places that it waits for, ascending */
  int64_t *dep;
};

/* key, order, extra and ptr. A row, if it brings nothing back, waits for the latest dependencies of earlier rows on its NIC,
 * too: those of the greatest key, except its own. */
PLANNING_API int planning_due(const struct exchange_rows *rows);

/* dep, once all else is known. */
PLANNING_API int planning_waits(const struct exchange_rows *rows);

/* ---- steps.c: the steps of direct exchange. Amounts and times are in units of which a NIC moves, or a half has, `one` ---- */

/* Half of a plan where one rank starves. */
struct starving_steps {
  int64_t ranks, rails, steps, parts, late_count, room;
  int64_t lone;           /* the rank that starves */
  int64_t gap, cost;      /* from a slot's end until its bytes are counted on; of a chunk */
  int64_t one, tie, slack; /* of the half; ties are less; 1/slack of what has landed is left out */
  int64_t brief;          /* steps as short as two chunks' costs are left out, and shorter than this */
  const int64_t *longest; /* (2): slot that it sends, that it receives */
  const int64_t *starts;  /* (steps + 1) */
  const uint8_t *live;    /* (rails, ranks): whether the rank is on the rail */
  const int64_t *late;    /* (late_count): other ranks that add last */
  const int64_t *raw, *needs, *ties; /* (ranks, ranks): data, data and sums, numbers that settle ties */
  const int64_t *part, *begins, *gaps; /* (parts, ranks, ranks): as direct.py's _Half has them */
  int64_t *left, *served; /* (ranks, ranks), updated */
  int64_t *found;         /* (room, 6): rail, sender, receiver, amount, begin, size */
  int64_t *count, *idle;  /* (1): of found; time in which its NICs could receive more */
  int64_t *chunks;        /* (2): that it sends, that it receives */
};

/* In each step the starving rank serves who has most; then each rail has a matching of the pairs furthest behind. */
PLANNING_API int planning_starving(const struct starving_steps *steps);

/* Half of a plan where several ranks starve. */
struct steady_steps {
  int64_t ranks, rails, steps, slow_count, room;
  int64_t gap, cost, tie, slack;
  int64_t places, coarse; /* units of a section; bits dropped of what two have had */
  const int64_t *ends;    /* (steps + 1), from 0 */
  const int64_t *rail;    /* (rails): numbers, ascending */
  const uint8_t *live;    /* (rails, ranks) */
  const uint8_t *quiet;   /* (rails): that hubs leave alone */
  const uint8_t *hub;     /* (ranks) */
  const int64_t *slow;    /* (slow_count) */
  const int64_t *section, *weight, *ties; /* (ranks, ranks) */
  int64_t *sent;          /* (ranks, ranks), updated */
  int64_t *found;         /* (room, 6): sender, receiver, rail, begin, size, amount */
  int64_t *count;         /* (1) */
};

/* In each step slow ranks send hubs data, and hubs slow ranks results; then each rail has a matching of the hubs. */
PLANNING_API int planning_steady(const struct steady_steps *steps);

/* Chunks that are summed up along trees of ranks, and their results spread. */
struct group_steps {
  int64_t ranks, chunks, rails, groups, room;
  int64_t apart;          /* the rank that adds last of all to the first half of the chunks, -1: there is none */
  int64_t lands;          /* steps until a move has landed */
  int64_t half, unit, one_more; /* of time: in half of the plan, in a step; the worth of one more move, above all times */
  const int64_t *parent;  /* (chunks, ranks): to whom each rank sends its sum, -1: it adds last */
  const int64_t *group;   /* (ranks) */
  const uint8_t *on;      /* (rails, ranks): whether the rank is on the rail */
  const int64_t *uplink;  /* (groups): how many chunks cross its border in a step, each way, -1: any number */
  int64_t *found;         /* (room, 6): step, sender, receiver, place of the rail, chunk, whether it is a result */
  int64_t *count;         /* (1) */
};

/* In each step every rail has a matching of the moves that are ready: of as many as can be, and the ones due first. */
PLANNING_API int planning_grouped(const struct group_steps *steps);

/* ---- trees.c: cheapest spanning trees, for packing them. Costs are (nodes, nodes), [into, from] ---- */

/* Resources that the ways between ranks use: source, target (ways), ranks; uses (ways, most), -1 for none. */
struct priced_ways {
  int64_t ways, most, ranks, resources;
  int64_t pairs;                    /* 1: the cheapest root alone; or as many as ranks: every root */
  const int64_t *source, *target, *uses;
  const double *prices;             /* (resources) */
  double slack;                     /* by how much dearer than the mean arc one may be that makes a tree shallower */
  int64_t *roots, *hops;            /* (pairs) */
  int64_t *up, *down;               /* (pairs, ranks): the way up or down of every rank, -1 at the root */
  double *load;                     /* (pairs, resources): how often each is used */
  double least;                     /* cost of the cheapest pair */
};

PLANNING_API int planning_price_pairs(struct priced_ways *ways);

/* Shrink a strongly connected graph of n nodes to one. parent, source, target (2 n): for `made` nodes, the n given ones
 * first, the node it was shrunk into (-1: the last one), and both ends of its cheapest incoming arc. */
PLANNING_API int planning_shrink(int64_t n, const double *cost, int32_t *parent, int32_t *source, int32_t *target,
                                 int64_t *made);

/* tree (n): where each node's arc comes from in the cheapest tree away from `root`; -1 at the root. */
PLANNING_API int planning_open(int64_t n, int64_t root, int64_t made, const int32_t *parent, const int32_t *source,
                               const int32_t *target, int32_t *tree);

/* Give nodes, the deepest first, a shallower parent whose arc costs at most `slack` more than now; then the cheapest of
 * that depth. deepest: the depth of the tree. */
PLANNING_API int planning_flatten(int64_t n, int32_t *tree, const double *cost, double slack, int64_t *deepest);

/* Move the root of a pair of trees to where both together are shallowest. If one tree leads from c to the root and the
 * other from the root to c, c can be the root instead; the two arcs change trees, and each resource carries the same. */
PLANNING_API int planning_recentre(int64_t n, int64_t *root, int32_t *up, int32_t *down);

/* ---- clock.c: threads that run steps in order, counters that they wait for, rates that they share ---- */

/* In this order: wait, lock, pause, move, unlock, post. -1: without. Seconds, bytes, bytes per second. */
struct timed_step {
  int64_t wait, need; /* a counter, and what it must have come to */
  int64_t lock;       /* first come, first served */
  double pause, nbytes, cap;
  int64_t one, two;   /* resources that the bytes pass */
  int64_t post;       /* a counter that is counted up */
  double delay;       /* so much later */
};

struct timed_threads {
  int64_t threads, steps, counters, locks, resources;
  const int64_t *ptr;               /* (threads + 1): steps of thread t are ptr[t] to ptr[t + 1] */
  const struct timed_step *step;    /* (steps) */
  const double *rates;              /* (resources), shared max-min fairly by those who move at the moment */
  int64_t *count;                   /* (counters): what they begin with; updated */
};

/* seconds: until all threads have run all their steps. */
PLANNING_API int planning_clock(const struct timed_threads *threads, double *seconds);

/* ---- simulate.c: the simulator's loop ---- */

/* Times are ticks. Ties are broken by event and number, so a run is deterministic. */
#define TICKS_PER_S INT64_C(1000000000000)
#define LAST_TICK INT64_C(1000000000000000000) /* what ends later is refused, so that no sum of times overflows */
#define NEVER_TICK (INT64_C(1) << 62)
#define LONGEST_LANE 8 /* resources: port, pod, spine, spine, pod, port */

/* What is to be sent: the schedule's rows cut into stripes. */
struct simulated_work {
  int64_t rows, stripes, waits;
  const int32_t *row;     /* (stripes) */
  const int32_t *lane;    /* (stripes), of the lanes before faults */
  const int64_t *length;  /* (stripes), bytes */
  const int64_t *ptr;     /* (rows + 1): stripes of a row */
  const int64_t *dep_ptr; /* (rows + 1), dep_idx (waits): CSR, the rows that a row waits for */
  const int64_t *dep_idx;
};

/* What it is sent over. Resource p is port p sending, ports + p is port p receiving, 2 ports + l is link l; a lane is a
 * chain of resources. */
struct simulated_fabric {
  int64_t ports, resources;
  int64_t lanes, lanes_given; /* with backups, without */
  int64_t crossed, notices, changes;
  int64_t alpha;             /* ticks between a sending port and what comes next */
  const int64_t *chain_ptr;  /* (lanes + 1), chain (crossed): CSR, a lane's resources in order */
  const int32_t *chain;
  const double *rate;        /* (resources), bytes per second */
  const int64_t *fixed;      /* (resources), ticks spent on each stripe before its first byte */
  const int64_t *change_ptr; /* (resources + 1), change_at, change_rate (changes): CSR, when a rate falls, and to what */
  const int64_t *change_at;
  const double *change_rate;
  const int64_t *dies;       /* (resources): when the rate falls to 0, and when that is noticed, else NEVER_TICK */
  const int64_t *noticed;
  const int64_t *notice;     /* (notices), ascending */
  const int32_t *detour;     /* (notices + 1, lanes_given): after so many notices a stripe goes by that lane, -1: none */
  const int64_t *room;       /* (ports): how many stripes can ever wait for the port */
};

/* What is found. Seconds, except for `finish`. */
struct simulated_times {
  int64_t rows, stripes, resources; /* resources that have a queue: all of them, or none */
  int64_t log_room;           /* entries of the log */
  int64_t packets;            /* links and receiving ports serve packets, or else whole stripes */
  int64_t by_row;             /* a sending port serves the lowest row that is ready, or else what was ready first */
  int64_t *finish;            /* (rows), ticks, of what has landed so far */
  int64_t *parts;             /* (rows), stripes that have not landed; the caller fills it */
  double *out_begin, *out_end, *in_begin, *in_end; /* (stripes), service by the ports */
  int32_t *via;               /* (stripes), the lane they went by; the caller fills it with the lanes of `detour[0]` */
  int32_t *log_stripe, *log_at; /* (log_room): crossings of links, and services by ports that were lost */
  double *log_begin, *log_end;
  double *queue;              /* (resources, 4): see simulate.c */
  int64_t about, ticks, logged; /* the stripe that an error is about; when; entries of the log */
};

PLANNING_API int planning_simulate(const struct simulated_work *work, const struct simulated_fabric *fabric,
                                   struct simulated_times *times);

#endif
