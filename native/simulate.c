/* The simulator's loop: events in a heap, one heap of ready stripes per sending port. What it simulates:
 * optcc/simulation/simulator.py and docs/simulator.md. */
#include "planning.h"

#include <math.h>
#include <string.h>

enum kind { FREE, ARRIVES, FINISHED, AGAIN, NOTICED, PREPARES, COMES, KINDS };

/* Plus a stripe at a place: its last byte is there. Below all other events: first of its instant. */
#define CAME (-(INT64_C(1) << 62))

/* Paces are multiples of 1 / GRID up to STEEP: their sums are exact. */
#define GRID 1099511627776.0
#define STEEP 1024.0

#define TICKS ((double)TICKS_PER_S)

/* Columns of a resource's queue: what waits and what comes in a tick, in ticks of work at the rate it began with; stripes
 * that come; ticks worked. */
enum column { BACKLOG, INFLOW, COMING, WORKED, COLUMNS };

typedef struct simulated_fabric fabric;

struct entry {
  int64_t key, value;
};

struct run {
  const struct simulated_work *work;
  const struct simulated_fabric *fabric;
  struct simulated_times *times;
  int64_t places;               /* of the longest lane, but the first */
  /* A row watches one row that it waits for, the latest that has not finished, and looks for the next one when that has:
   * so it reads each of its dependencies once, in turn. (rows): how many it has not yet seen finished; the first row that
   * watches a row, and the next one that watches the same, -1: none. */
  int32_t *waiting, *watched, *next;
  uint8_t *finished;            /* (rows) */
  int64_t *free;                /* (resources): when it is through */
  int64_t *base, *ready_size;   /* the heap of port p is in ready[base[p]] to ready[base[p + 1]] */
  struct entry *ready;          /* stripes, the least key first */
  struct entry *events;
  int64_t event_count, event_room;
  int64_t *touched, *fresh;     /* ports to look at; stripes that became ready in this instant */
  uint8_t *is_touched;
  int64_t touched_count, fresh_count, noticed;
  /* Stripes over links: when the first byte was through the last one, and from when the next resource may serve it. */
  int64_t *head, *follows;
  /* Stripes as packets, (stripes, places): what one that comes there adds to what comes in a tick; ticks when its first
   * byte came there and when its last one will, 0: not known. */
  double *pace;
  int64_t *first, *last;
  int64_t *since;               /* (resources): until when the queue is known */
};

/* Without a branch: which of two comes first is not to be foreseen. */
static inline int comes_first(struct entry a, struct entry b)
{
  return (a.key < b.key) | ((a.key == b.key) & (a.value < b.value));
}

/* Put an entry where there is a hole at i, or further up. */
static void rise(struct entry *heap, int64_t i, struct entry one)
{
  while (i > 0 && comes_first(one, heap[(i - 1) >> 1])) {
    heap[i] = heap[(i - 1) >> 1];
    i = (i - 1) >> 1;
  }
  heap[i] = one;
}

static void push(struct entry *heap, int64_t size, int64_t key, int64_t value)
{
  rise(heap, size, (struct entry){key, value});
}

/* Remove the least entry of a heap of `size`; returns its value. The hole goes down to the end, where the last entry fills
 * it: it is one of the latest, and rises hardly. */
static int64_t pop(struct entry *heap, int64_t size)
{
  int64_t top = heap[0].value, i = 0, child = 2;
  size--;
  for (; child < size; child = 2 * i + 2) {
    child -= comes_first(heap[child - 1], heap[child]);
    heap[i] = heap[child];
    i = child;
  }
  if (child == size && size > 1) {
    heap[i] = heap[child - 1];
    i = child - 1;
  }
  rise(heap, i, heap[size]);
  return top;
}

static int happens(struct run *x, int64_t at, int64_t what)
{
  if (x->event_count >= x->event_room)
    return PLANNING_BAD_INDEX;
  push(x->events, x->event_count++, at, what);
  return PLANNING_DONE;
}

static int note(struct run *x, int64_t stripe, int64_t at, double begin, double end)
{
  struct simulated_times *t = x->times;
  if (t->logged >= t->log_room)
    return PLANNING_BAD_INDEX;
  t->log_stripe[t->logged] = (int32_t)stripe;
  t->log_at[t->logged] = (int32_t)at;
  t->log_begin[t->logged] = begin;
  t->log_end[t->logged] = end;
  t->logged++;
  return PLANNING_DONE;
}

static int touch(struct run *x, int64_t port)
{
  if (!x->is_touched[port]) {
    x->is_touched[port] = 1;
    x->touched[x->touched_count++] = port;
  }
  return PLANNING_DONE;
}

static int freshen(struct run *x, int64_t stripe)
{
  if (x->fresh_count >= x->work->stripes)
    return PLANNING_BAD_INDEX;
  x->fresh[x->fresh_count++] = stripe;
  return PLANNING_DONE;
}

/* The row starts, or watches the next row that it waits for. */
static int watch(struct run *x, int64_t row)
{
  const struct simulated_work *w = x->work;
  const int64_t *dep = w->dep_idx + w->dep_ptr[row];
  while (x->waiting[row] > 0) {
    int64_t on = dep[x->waiting[row] - 1];
    if (on < 0 || on >= w->rows)
      return PLANNING_BAD_INDEX;
    if (!x->finished[on]) {
      x->next[row] = x->watched[on];
      x->watched[on] = (int32_t)row;
      return PLANNING_DONE;
    }
    x->waiting[row]--;
  }
  for (int64_t s = w->ptr[row]; s < w->ptr[row + 1]; s++) {
    int code = freshen(x, s);
    if (code)
      return code;
  }
  return PLANNING_DONE;
}

static int stops(struct run *x, int code, int64_t stripe, int64_t now)
{
  x->times->about = stripe;
  x->times->ticks = now;
  return code;
}

/* ---- rates ---- */

static int64_t ticks_for(double nbytes, double rate)
{
  double ticks = ceil(nbytes / rate * TICKS);
  return ticks <= (double)LAST_TICK ? (int64_t)ticks : LAST_TICK + 1;
}

/* The rate of resource r at `now`. */
static double rate_at(int64_t now, int64_t r, const fabric *f)
{
  double rate = f->rate[r];
  for (int64_t c = f->change_ptr[r]; c < f->change_ptr[r + 1]; c++)
    if (f->change_at[c] <= now)
      rate = f->change_rate[c];
  return rate;
}

/* When resource r is through with a stripe that it starts to serve at `begin`; NEVER_TICK: it dies first. */
static int64_t served(int64_t begin, int64_t nbytes, int64_t r, const fabric *f)
{
  int64_t now = begin + f->fixed[r];
  double rate = f->rate[r], left = (double)nbytes;
  for (int64_t c = f->change_ptr[r]; c < f->change_ptr[r + 1]; c++) {
    int64_t at = f->change_at[c];
    if (at > now) {
      int64_t end = now + ticks_for(left, rate);
      if (end <= at)
        return end;
      left = left - (double)(at - now) * rate / TICKS;
      left = left > 0 ? left : 0;
      now = at;
    }
    rate = f->change_rate[c];
    if (rate == 0)
      return NEVER_TICK;
  }
  return now + ticks_for(left, rate);
}

/* When the next resource, r, may start on a stripe whose first byte is there at `head` and whose last at `end`.
 *
 * Not so early that it would serve the first byte or the last before that. Those in between come no later than at an even
 * pace, and rates only fall. So the two, and the present rate, suffice. */
static int64_t may_follow(int64_t head, int64_t end, int64_t nbytes, int64_t r, const fabric *f)
{
  double rate = rate_at(head, r, f);
  int64_t from = rate > 0 ? planning_max(head, end - ticks_for((double)nbytes, rate)) : head;
  return from - f->fixed[r];
}

/* ---- queues of packets ---- */

/* Let `ticks` pass at a resource that works off `speed` ticks of work in each of them. */
static inline void flow(int64_t ticks, double speed, double *queue)
{
  double was = queue[BACKLOG], inflow = queue[INFLOW];
  double backlog = was + (inflow - speed) * (double)ticks;
  double full = (double)ticks; /* how long it had as much to do as it can */
  if (backlog < 0) {
    full = was / (speed - inflow);
    backlog = 0;
  }
  if (speed > 0)
    queue[WORKED] += full + ((double)ticks - full) * inflow / speed;
  queue[BACKLOG] = backlog;
}

/* Bring the queue of resource r to `now`. */
static inline void catch_up(struct run *x, int64_t now, int64_t r)
{
  const fabric *f = x->fabric;
  double *queue = x->times->queue + r * COLUMNS, speed = 1.0;
  int64_t then = x->since[r];
  for (int64_t c = f->change_ptr[r]; c < f->change_ptr[r + 1]; c++) {
    int64_t at = f->change_at[c];
    if (at >= now)
      break;
    if (at > then) {
      flow(at - then, speed, queue);
      then = at;
    }
    speed = f->change_rate[c] / f->rate[r];
  }
  flow(now - then, speed, queue);
  x->since[r] = now;
}

static int64_t through_by_steps(int64_t now, double work, int64_t r, const fabric *f)
{
  double speed = 1.0;
  for (int64_t c = f->change_ptr[r]; c < f->change_ptr[r + 1]; c++) {
    int64_t at = f->change_at[c];
    if (at > now) {
      if ((double)now + work / speed <= (double)at)
        break;
      work = work - (double)(at - now) * speed;
      work = work > 0 ? work : 0;
      now = at;
    }
    speed = f->change_rate[c] / f->rate[r];
    if (speed == 0)
      return NEVER_TICK;
  }
  double left = ceil(work / speed);
  return left <= (double)LAST_TICK ? (int64_t)((double)now + left) : LAST_TICK + 1;
}

/* When resource r is through with `work` that waits there at `now`; NEVER_TICK: it dies first. */
static inline int64_t through(int64_t now, double work, int64_t r, const fabric *f)
{
  if (f->change_ptr[r] < f->change_ptr[r + 1])
    return through_by_steps(now, work, r, f);
  return work <= (double)LAST_TICK ? now + (int64_t)ceil(work) : LAST_TICK + 1;
}

/* What a stripe that comes evenly in `ticks` adds to an inflow; 0: so much that it may as well come at once. */
static double pace_of(int64_t nbytes, double rate, int64_t ticks)
{
  double pace = ceil((double)nbytes / rate * TICKS / (double)ticks * GRID) / GRID;
  return pace <= STEEP ? pace : 0;
}

/* The first byte of a stripe comes from a link to the next place of its lane: at which pace the rest will. */
static void follow(struct run *x, int64_t now, int64_t s, int64_t place, int64_t lane)
{
  const fabric *f = x->fabric;
  int64_t i = place - 1, c = f->chain_ptr[lane], *last = x->last + s * x->places;
  if (last[i] == 0) { /* more comes to the link: it leaves when that is through, if nothing else comes there */
    int64_t link = f->chain[c + i];
    catch_up(x, now, link);
    const double *queue = x->times->queue + link * COLUMNS;
    int64_t end = last[i - 1];
    double waits = queue[BACKLOG] + (queue[INFLOW] - 1) * (double)(end - now);
    last[i] = planning_max(now + 1, through(end, waits > 0 ? waits : 0, link, f));
  }
  x->pace[s * x->places + i] = pace_of(x->work->length[s], f->rate[f->chain[c + place]], last[i] - now);
}

/* The last byte of a stripe is at a link, and leaves it at `end`. The rest of the stripe at later places is rescheduled
 * so that it arrives at `end`, and not at the expected time. */
static void leave(struct run *x, int64_t now, int64_t s, int64_t place, int64_t lane, int64_t end)
{
  const fabric *f = x->fabric;
  int64_t c = f->chain_ptr[lane], *last = x->last + s * x->places;
  double *pace = x->pace + s * x->places;
  for (int64_t i = place; i < f->chain_ptr[lane + 1] - c - 1; i++) {
    double was = pace[i];
    int64_t at = f->chain[c + i + 1];
    if (last[i] > 0) {
      end = i > place ? planning_max(end, last[i]) : end;
      catch_up(x, now, at);
      double *queue = x->times->queue + at * COLUMNS, left = was * (double)(last[i] - now);
      if (left <= (double)(end - now) * STEEP && end > now) {
        pace[i] = ceil(left / (double)(end - now) * GRID) / GRID;
      } else {
        pace[i] = 0;
        queue[BACKLOG] += left;
      }
      queue[INFLOW] += pace[i] - was;
    } else if (i > place) {
      break;
    }
    last[i] = end;
  }
}

/* ---- events ---- */

/* A stripe has landed at `end`. */
static int landed(struct run *x, int64_t s, int64_t end)
{
  struct simulated_times *t = x->times;
  int64_t r = x->work->row[s];
  t->finish[r] = planning_max(t->finish[r], end);
  if (--t->parts[r] == 0)
    return happens(x, t->finish[r], r * KINDS + FINISHED);
  return PLANNING_DONE;
}

/* What was sent is lost with what resource `at` had received since `begin`: it is sent again. */
static int lost(struct run *x, int64_t now, int64_t s, int64_t at, int64_t port, int received, double begin)
{
  const struct simulated_times *t = x->times;
  const fabric *f = x->fabric;
  TRY(note(x, s, port, t->out_begin[s], t->out_end[s]));
  if (received)
    TRY(note(x, s, at, begin, (double)f->dies[at] / TICKS));
  return happens(x, planning_max(now, f->noticed[at]), s * LONGEST_LANE * KINDS + AGAIN);
}

/* The port sends what comes first among what is ready. */
static int send(struct run *x, int64_t now, int64_t p)
{
  const struct simulated_work *w = x->work;
  const fabric *f = x->fabric;
  struct simulated_times *t = x->times;
  if (x->free[p] > now || x->ready_size[p] == 0 || f->dies[p] <= now)
    return PLANNING_DONE;
  int64_t s = pop(x->ready + x->base[p], x->ready_size[p]--);
  int64_t lane = f->detour[x->noticed * f->lanes_given + w->lane[s]];
  if (lane < 0)
    return PLANNING_BAD_INDEX;
  int64_t end = served(now, w->length[s], p, f);
  if (end == NEVER_TICK) {
    TRY(note(x, s, p, (double)now / TICKS, (double)f->dies[p] / TICKS));
    x->free[p] = NEVER_TICK;
    return happens(x, f->noticed[p], s * LONGEST_LANE * KINDS + AGAIN);
  }
  if (end > LAST_TICK)
    return stops(x, PLANNING_TOO_LONG, s, now);
  x->free[p] = end;
  if (x->noticed > 0)
    t->via[s] = (int32_t)lane;
  t->out_begin[s] = (double)now / TICKS;
  t->out_end[s] = (double)end / TICKS;
  TRY(happens(x, end, p * KINDS + FREE));
  int64_t first = now + f->fixed[p] + f->alpha, at = f->chain[f->chain_ptr[lane] + 1];
  if (t->packets) {
    x->pace[s * x->places] = pace_of(w->length[s], f->rate[at], end + f->alpha - first);
    if (x->last) {
      memset(x->last + s * x->places, 0, (size_t)x->places * sizeof *x->last);
      x->last[s * x->places] = end + f->alpha;
    }
    TRY(happens(x, first, (s * LONGEST_LANE + 1) * KINDS + COMES));
    TRY(happens(x, end + f->alpha, s * LONGEST_LANE + 1 + CAME));
    if (f->fixed[p] > 0)
      TRY(happens(x, now + f->alpha, s * LONGEST_LANE * KINDS + PREPARES));
    return PLANNING_DONE;
  }
  int64_t from = may_follow(now + f->fixed[p], end, w->length[s], at, f) + f->alpha;
  if (f->chain_ptr[lane + 1] - f->chain_ptr[lane] > 2)
    x->head[s] = first;
  return happens(x, from, (s * LONGEST_LANE + 1) * KINDS + ARRIVES);
}

/* The last byte of a stripe, as packets, is at a place. */
static int came(struct run *x, int64_t now, int64_t s, int64_t place)
{
  const fabric *f = x->fabric;
  struct simulated_times *t = x->times;
  int64_t lane = t->via[s], at = f->chain[f->chain_ptr[lane] + place];
  double *queue = t->queue + at * COLUMNS, *pace = x->pace + s * x->places + place - 1;
  catch_up(x, now, at);
  queue[COMING] -= 1;
  /* What is left of a sum once all is taken off again is rounding. */
  queue[INFLOW] = queue[COMING] > 0 ? queue[INFLOW] - *pace : 0;
  *pace = 0;
  int64_t end = through(now, queue[BACKLOG], at, f);
  if (end == NEVER_TICK)
    return lost(x, now, s, at, f->chain[f->chain_ptr[lane]], t->in_begin[s] < (double)f->dies[at] / TICKS,
                t->in_begin[s]);
  if (end > LAST_TICK)
    return stops(x, PLANNING_TOO_LONG, s, now);
  if (f->chain_ptr[lane] + place + 1 < f->chain_ptr[lane + 1]) {
    int64_t first = x->first[s * x->places + place];
    end = planning_max(end, first + 1);
    leave(x, now, s, place, lane, end);
    TRY(note(x, s, at, (double)first / TICKS, (double)end / TICKS));
    return happens(x, end, s * LONGEST_LANE + place + 1 + CAME);
  }
  t->in_end[s] = (double)end / TICKS;
  return landed(x, s, end);
}

/* The first byte of a stripe, as packets, is at a place. */
static int comes(struct run *x, int64_t now, int64_t s, int64_t place)
{
  const struct simulated_work *w = x->work;
  const fabric *f = x->fabric;
  struct simulated_times *t = x->times;
  int64_t lane = t->via[s], at = f->chain[f->chain_ptr[lane] + place];
  if (place > 1)
    follow(x, now, s, place, lane);
  catch_up(x, now, at);
  double *queue = t->queue + at * COLUMNS, pace = x->pace[s * x->places + place - 1];
  int64_t end = through(now, queue[BACKLOG], at, f);
  queue[COMING] += 1;
  queue[INFLOW] += pace;
  if (pace == 0)
    queue[BACKLOG] += (double)w->length[s] / f->rate[at] * TICKS;
  if (f->chain_ptr[lane] + place + 1 < f->chain_ptr[lane + 1]) {
    x->first[s * x->places + place] = end;
    return happens(x, end, (s * LONGEST_LANE + place + 1) * KINDS + COMES);
  }
  if (f->fixed[at] == 0)
    t->in_begin[s] = (double)end / TICKS;
  return PLANNING_DONE;
}

/* A whole stripe is at a place. */
static int arrives(struct run *x, int64_t now, int64_t s, int64_t place)
{
  const struct simulated_work *w = x->work;
  const fabric *f = x->fabric;
  struct simulated_times *t = x->times;
  int64_t lane = t->via[s], at = f->chain[f->chain_ptr[lane] + place];
  /* A link is claimed as late as its rate allows; what follows it may start before that, if nothing else has claimed it
   * since, and still ends no earlier than now. */
  int64_t begin = planning_max(place == 1 ? now : x->follows[s], x->free[at]);
  int64_t end = served(begin, w->length[s], at, f);
  if (end == NEVER_TICK) {
    int received = begin < f->dies[at];
    if (received)
      x->free[at] = f->dies[at];
    return lost(x, now, s, at, f->chain[f->chain_ptr[lane]], received, (double)begin / TICKS);
  }
  if (end > LAST_TICK)
    return stops(x, PLANNING_TOO_LONG, s, now);
  int64_t before = x->free[at];
  x->free[at] = end;
  if (f->chain_ptr[lane] + place + 1 < f->chain_ptr[lane + 1]) {
    TRY(note(x, s, at, (double)begin / TICKS, (double)end / TICKS));
    x->head[s] = planning_max(x->head[s], before);
    x->follows[s] = may_follow(x->head[s], end, w->length[s], f->chain[f->chain_ptr[lane] + place + 1], f);
    return happens(x, planning_max(now, x->follows[s]), (s * LONGEST_LANE + place + 1) * KINDS + ARRIVES);
  }
  t->in_begin[s] = (double)begin / TICKS;
  t->in_end[s] = (double)end / TICKS;
  return landed(x, s, end);
}

static int event(struct run *x, int64_t now, int64_t what)
{
  const fabric *f = x->fabric;
  if (what < 0)
    return came(x, now, (what - CAME) / LONGEST_LANE, (what - CAME) % LONGEST_LANE);
  int64_t i = what / KINDS, s = i / LONGEST_LANE, place = i % LONGEST_LANE;
  switch ((enum kind)(what % KINDS)) {
  case FREE:
    return touch(x, i);
  case ARRIVES:
    return arrives(x, now, s, place);
  case COMES:
    return comes(x, now, s, place);
  case FINISHED:
    x->finished[i] = 1;
    for (int64_t row = x->watched[i], next; row >= 0; row = next) {
      next = x->next[row];
      TRY(watch(x, row));
    }
    return PLANNING_DONE;
  case AGAIN:
    return freshen(x, s);
  case NOTICED: /* a dead port: everything that waits finds its way anew */
    x->noticed++;
    for (int64_t p = 0; p < f->ports; p++) {
      for (int64_t j = 0; j < x->ready_size[p]; j++)
        TRY(freshen(x, x->ready[x->base[p] + j].value));
      x->ready_size[p] = 0;
    }
    return PLANNING_DONE;
  case PREPARES: {
    int64_t at = f->chain[f->chain_ptr[x->times->via[s] + 1] - 1];
    double *queue = x->times->queue + at * COLUMNS;
    catch_up(x, now, at);
    x->times->in_begin[s] = (double)through(now, queue[BACKLOG], at, f) / TICKS;
    queue[BACKLOG] += (double)f->fixed[at] * rate_at(now, at, f) / f->rate[at];
    return PLANNING_DONE;
  }
  case KINDS:
    break;
  }
  return PLANNING_BAD_INDEX;
}

static int play(struct run *x)
{
  const struct simulated_work *w = x->work;
  const fabric *f = x->fabric;
  struct simulated_times *t = x->times;
  for (int64_t i = 0; i < f->notices; i++)
    TRY(happens(x, f->notice[i], NOTICED));
  for (int64_t r = 0; r < w->rows; r++)
    TRY(watch(x, r));
  int64_t now = 0;
  for (;;) {
    for (int64_t i = 0; i < x->fresh_count; i++) {
      int64_t s = x->fresh[i], lane = f->detour[x->noticed * f->lanes_given + w->lane[s]];
      if (lane < 0)
        return stops(x, PLANNING_NO_WAY, s, now);
      int64_t p = f->chain[f->chain_ptr[lane]];
      if (x->ready_size[p] >= f->room[p])
        return PLANNING_BAD_INDEX;
      push(x->ready + x->base[p], x->ready_size[p]++, t->by_row ? s : now, s);
      touch(x, p);
    }
    x->fresh_count = 0;
    /* Start sends only after everything of this instant has happened, so that priority sees all that is ready. */
    for (int64_t i = 0; i < x->touched_count; i++) {
      x->is_touched[x->touched[i]] = 0;
      TRY(send(x, now, x->touched[i]));
    }
    x->touched_count = 0;
    if (x->event_count == 0) {
      for (int64_t r = f->ports; t->packets && r < f->resources; r++)
        catch_up(x, now, r);
      return stops(x, PLANNING_DONE, -1, now);
    }
    now = x->events[0].key;
    while (x->event_count > 0 && x->events[0].key == now)
      TRY(event(x, now, pop(x->events, x->event_count--)));
  }
}

/* ---- what is given is checked, so that no index leads out of an array ---- */

static int ascends(int64_t count, const int64_t *ptr, int64_t total)
{
  if (count < 0 || ptr[0] != 0 || ptr[count] != total)
    return 0;
  for (int64_t i = 0; i < count; i++)
    if (ptr[i] > ptr[i + 1])
      return 0;
  return 1;
}

static int check(const struct simulated_work *w, const fabric *f, const struct simulated_times *t)
{
  if (f->ports < 0 || f->resources < 2 * f->ports || f->notices < 0 || f->lanes_given < 0 || w->stripes < 0)
    return PLANNING_BAD_INDEX;
  if (t->rows != w->rows || t->stripes != w->stripes || t->resources != (t->packets ? f->resources : 0))
    return PLANNING_BAD_INDEX;
  if (w->stripes > INT32_MAX || f->resources > INT32_MAX || w->rows > INT32_MAX)
    return PLANNING_BAD_INDEX;
  if (!ascends(w->rows, w->ptr, w->stripes) || !ascends(w->rows, w->dep_ptr, w->waits)
      || !ascends(f->resources, f->change_ptr, f->changes) || !ascends(f->lanes, f->chain_ptr, f->crossed))
    return PLANNING_BAD_INDEX;
  for (int64_t lane = 0; lane < f->lanes; lane++) {
    int64_t first = f->chain_ptr[lane], last = f->chain_ptr[lane + 1] - 1;
    if (last - first < 1 || last - first >= LONGEST_LANE)
      return PLANNING_BAD_INDEX;
    for (int64_t c = first; c <= last; c++) {
      int64_t low = c == first ? 0 : c == last ? f->ports : 2 * f->ports;
      int64_t high = c == first ? f->ports : c == last ? 2 * f->ports : f->resources;
      if (f->chain[c] < low || f->chain[c] >= high)
        return PLANNING_BAD_INDEX;
    }
  }
  for (int64_t i = 0; i < (f->notices + 1) * f->lanes_given; i++)
    if (f->detour[i] < -1 || f->detour[i] >= f->lanes)
      return PLANNING_BAD_INDEX;
  for (int64_t s = 0; s < w->stripes; s++)
    if (w->row[s] < 0 || w->row[s] >= w->rows || w->lane[s] < 0 || w->lane[s] >= f->lanes_given
        || t->via[s] != f->detour[w->lane[s]])
      return PLANNING_BAD_INDEX;
  for (int64_t r = 0; r < w->rows; r++)
    if (w->dep_ptr[r + 1] - w->dep_ptr[r] > INT32_MAX)
      return PLANNING_BAD_INDEX;
  return PLANNING_DONE;
}

/* All memory of a run; what could not be had is NULL. */
static int allocate(struct run *x)
{
  const struct simulated_work *w = x->work;
  const fabric *f = x->fabric;
  int packets = x->times->packets != 0, links = f->resources > 2 * f->ports, whole = links && !packets;
  for (int64_t lane = 0; lane < f->lanes; lane++)
    x->places = planning_max(x->places, f->chain_ptr[lane + 1] - f->chain_ptr[lane] - 1);
  /* At any time a port has one event, a transfer one, a stripe one; as packets, up to three. */
  x->event_room = f->ports + (packets ? 3 : 1) * w->stripes + w->rows + f->notices + 1;
  x->base = planning_zeroed(f->ports + 1, sizeof *x->base);
  if (!x->base)
    return PLANNING_NO_MEMORY;
  for (int64_t p = 0; p < f->ports; p++) {
    if (f->room[p] < 0 || x->base[p] > INT64_MAX - f->room[p])
      return PLANNING_BAD_INDEX;
    x->base[p + 1] = x->base[p] + f->room[p];
  }
  x->waiting = planning_zeroed(w->rows, sizeof *x->waiting);
  x->watched = planning_zeroed(w->rows, sizeof *x->watched);
  x->next = planning_zeroed(w->rows, sizeof *x->next);
  x->finished = planning_zeroed(w->rows, 1);
  x->free = planning_zeroed(f->resources, sizeof *x->free);
  x->ready_size = planning_zeroed(f->ports, sizeof *x->ready_size);
  x->ready = planning_zeroed(x->base[f->ports], sizeof *x->ready);
  x->events = planning_zeroed(x->event_room, sizeof *x->events);
  x->touched = planning_zeroed(f->ports, sizeof *x->touched);
  x->is_touched = planning_zeroed(f->ports, 1);
  x->fresh = planning_zeroed(w->stripes, sizeof *x->fresh);
  x->head = planning_zeroed(whole ? w->stripes : 0, sizeof *x->head);
  x->follows = planning_zeroed(whole ? w->stripes : 0, sizeof *x->follows);
  x->pace = planning_zeroed(packets ? w->stripes * x->places : 0, sizeof *x->pace);
  x->since = planning_zeroed(packets ? f->resources : 0, sizeof *x->since);
  if (packets && links) {
    x->first = planning_zeroed(w->stripes * x->places, sizeof *x->first);
    x->last = planning_zeroed(w->stripes * x->places, sizeof *x->last);
    if (!x->first || !x->last)
      return PLANNING_NO_MEMORY;
  }
  if (!x->waiting || !x->watched || !x->next || !x->finished || !x->free || !x->ready_size || !x->ready || !x->events
      || !x->touched || !x->is_touched || !x->fresh || !x->head || !x->follows || !x->pace || !x->since)
    return PLANNING_NO_MEMORY;
  for (int64_t p = 0; p < f->ports; p++)
    touch(x, p);
  for (int64_t r = 0; r < w->rows; r++) {
    x->waiting[r] = (int32_t)(w->dep_ptr[r + 1] - w->dep_ptr[r]);
    x->watched[r] = -1;
  }
  return PLANNING_DONE;
}

int planning_simulate(const struct simulated_work *work, const struct simulated_fabric *given,
                      struct simulated_times *times)
{
  struct run x = {.work = work, .fabric = given, .times = times};
  times->about = -1;
  times->ticks = times->logged = 0;
  int code = check(work, given, times);
  if (!code)
    code = allocate(&x);
  if (!code)
    code = play(&x);
  void *all[] = {x.waiting, x.watched, x.next, x.finished,   x.free, x.base,    x.ready_size, x.ready, x.events,
                 x.touched, x.fresh,   x.head, x.is_touched, x.pace, x.follows, x.first,      x.last,  x.since};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
  return code;
}
