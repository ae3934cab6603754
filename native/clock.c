/* Threads that run steps in order, counters that they wait for, rates that they share: the clock of a target's executor.
 *
 * A thread within its step waits for a counter and takes a lock, pauses, moves bytes no faster than its own cap and its
 * fair share of up to two resources, and counts up. */
#include "planning.h"

#include <math.h>

#define NOBODY (-1)

enum where { WAIT, LOCK, PAUSE, MOVE };

struct moment {
  double when;
  int64_t what; /* a thread that has paused, or threads + a counter to count up */
};

struct clock {
  const struct timed_threads *given;
  int64_t *at;               /* (threads): the step it is in */
  uint8_t *where;            /* (threads): and where in it */
  int64_t *waiting, *behind; /* lists of threads, by counter */
  int64_t *holder, *first, *last, *after; /* lists of threads, by lock */
  int64_t *active, *ready;   /* threads that move; threads to go on */
  double *remaining, *speed; /* of those that move */
  double *left;              /* (resources): rate that is not given out yet */
  int64_t *users;
  struct moment *events;
  int64_t event_count, event_room, active_count, ready_count;
};

static int push(struct clock *x, double when, int64_t what)
{
  if (x->event_count >= x->event_room)
    return PLANNING_BAD_INDEX;
  int64_t i = x->event_count++;
  while (i > 0) {
    int64_t up = (i - 1) / 2;
    if (x->events[up].when <= when)
      break;
    x->events[i] = x->events[up];
    i = up;
  }
  x->events[i] = (struct moment){when, what};
  return PLANNING_DONE;
}

/* Take the earliest away; returns what it is. */
static int64_t pop(struct clock *x)
{
  int64_t first = x->events[0].what, size = --x->event_count, i = 0;
  struct moment last = x->events[size];
  for (;;) {
    int64_t low = 2 * i + 1;
    if (low >= size)
      break;
    if (low + 1 < size && x->events[low + 1].when < x->events[low].when)
      low++;
    if (x->events[low].when >= last.when)
      break;
    x->events[i] = x->events[low];
    i = low;
  }
  x->events[i] = last;
  return first;
}

static int go_on(struct clock *x, int64_t thread)
{
  if (x->ready_count > x->given->threads)
    return PLANNING_BAD_INDEX;
  x->ready[x->ready_count++] = thread;
  return PLANNING_DONE;
}

static int count_up(struct clock *x, int64_t counter)
{
  x->given->count[counter]++;
  int64_t other = x->waiting[counter];
  x->waiting[counter] = NOBODY;
  while (other != NOBODY) {
    int64_t following = x->behind[other];
    if (go_on(x, other))
      return PLANNING_BAD_INDEX;
    other = following;
  }
  return PLANNING_DONE;
}

static double less(double a, double b)
{
  return b < a ? b : a;
}

/* Of one of a mover's resources, whether it holds the mover to `bound`; then what the mover takes of it. */
static int holds(const struct clock *x, int64_t r, double bound)
{
  return r >= 0 && x->left[r] <= bound * (double)x->users[r];
}

static void take(struct clock *x, int64_t r, double speed)
{
  if (r < 0)
    return;
  x->users[r]--;
  double left = x->left[r] - speed;
  x->left[r] = left > 0 ? left : 0;
}

/* Max-min fair rates: no mover can have more without one that has less, or as little, having less. */
static int share(struct clock *x)
{
  const struct timed_threads *g = x->given;
  int64_t open = x->active_count;
  for (int64_t r = 0; r < g->resources; r++) {
    x->left[r] = g->rates[r];
    x->users[r] = 0;
  }
  for (int64_t i = 0; i < x->active_count; i++) {
    const struct timed_step *s = &g->step[x->at[x->active[i]]];
    x->speed[i] = -1;
    if (s->one >= 0)
      x->users[s->one]++;
    if (s->two >= 0)
      x->users[s->two]++;
  }
  while (open) {
    double least = INFINITY, lowest = INFINITY;
    for (int64_t r = 0; r < g->resources; r++)
      if (x->users[r])
        least = less(least, x->left[r] / (double)x->users[r]);
    for (int64_t i = 0; i < x->active_count; i++)
      if (x->speed[i] < 0)
        lowest = less(lowest, g->step[x->at[x->active[i]]].cap);
    int capped = lowest <= least;
    double bound = less(lowest, least) * (1 + 1e-9);
    int64_t before = open;
    /* Whom the tightest of all holds is decided before anything is taken away. */
    for (int64_t i = 0; i < x->active_count; i++) {
      const struct timed_step *s = &g->step[x->at[x->active[i]]];
      if (x->speed[i] < 0 && (s->cap <= bound || (!capped && (holds(x, s->one, bound) || holds(x, s->two, bound)))))
        x->speed[i] = -2;
    }
    for (int64_t i = 0; i < x->active_count; i++)
      if (x->speed[i] == -2) {
        const struct timed_step *s = &g->step[x->at[x->active[i]]];
        x->speed[i] = less(bound, s->cap);
        open--;
        take(x, s->one, x->speed[i]);
        take(x, s->two, x->speed[i]);
      }
    if (open == before)
      return PLANNING_STUCK;
  }
  return PLANNING_DONE;
}

/* Thread t goes on until it waits, pauses, moves, or is `done`. */
static int advance(struct clock *x, int64_t t, double now, int64_t *done, int *moves)
{
  const struct timed_threads *g = x->given;
  for (;;) {
    if (x->at[t] == g->ptr[t + 1]) {
      ++*done;
      return PLANNING_DONE;
    }
    const struct timed_step *s = &g->step[x->at[t]];
    int64_t k = s->lock;
    if (x->where[t] == WAIT) {
      if (s->wait >= 0 && g->count[s->wait] < s->need) {
        x->behind[t] = x->waiting[s->wait];
        x->waiting[s->wait] = t;
        return PLANNING_DONE;
      }
      x->where[t] = LOCK;
    }
    if (x->where[t] == LOCK) {
      if (k >= 0 && x->holder[k] != t) {
        if (x->holder[k] != NOBODY) {
          x->after[t] = NOBODY;
          if (x->first[k] == NOBODY)
            x->first[k] = t;
          else
            x->after[x->last[k]] = t;
          x->last[k] = t;
          return PLANNING_DONE;
        }
        x->holder[k] = t;
      }
      x->where[t] = PAUSE;
      if (s->pause > 0)
        return push(x, now + s->pause, t);
    }
    if (x->where[t] == PAUSE) {
      x->where[t] = MOVE;
      if (s->nbytes > 0) {
        if (x->active_count >= g->threads)
          return PLANNING_BAD_INDEX;
        x->active[x->active_count] = t;
        x->remaining[x->active_count++] = s->nbytes;
        *moves = 1;
        return PLANNING_DONE;
      }
    }
    if (k >= 0) {
      x->holder[k] = x->first[k];
      if (x->first[k] != NOBODY) {
        TRY(go_on(x, x->first[k]));
        x->first[k] = x->after[x->first[k]];
      }
    }
    if (s->post >= 0)
      TRY(s->delay > 0 ? push(x, now + s->delay, g->threads + s->post) : count_up(x, s->post));
    x->at[t]++;
    x->where[t] = WAIT;
  }
}

static int tick(struct clock *x, double *seconds)
{
  const struct timed_threads *g = x->given;
  double now = 0;
  int64_t done = 0;
  for (int64_t t = g->threads - 1; t >= 0; t--)
    TRY(go_on(x, t));
  for (;;) {
    int moves = 0;
    while (x->ready_count)
      TRY(advance(x, x->ready[--x->ready_count], now, &done, &moves));
    if (done == g->threads) {
      *seconds = now;
      return PLANNING_DONE;
    }
    if (moves || x->active_count)
      TRY(share(x));
    double step = INFINITY;
    for (int64_t i = 0; i < x->active_count; i++)
      step = less(step, x->remaining[i] / x->speed[i]);
    if (x->event_count)
      step = less(step, x->events[0].when - now);
    if (step == INFINITY)
      return PLANNING_STUCK;
    now += step;
    int64_t kept = 0;
    for (int64_t i = 0; i < x->active_count; i++) {
      double rest = x->remaining[i] - step * x->speed[i];
      if (rest <= 1e-9 * g->step[x->at[x->active[i]]].nbytes) {
        TRY(go_on(x, x->active[i]));
      } else {
        x->active[kept] = x->active[i];
        x->remaining[kept++] = rest;
      }
    }
    x->active_count = kept;
    while (x->event_count && x->events[0].when <= now * (1 + 1e-12)) {
      int64_t what = pop(x);
      TRY(what < g->threads ? go_on(x, what) : count_up(x, what - g->threads));
    }
  }
}

static int check(const struct timed_threads *g)
{
  if (g->threads < 0 || g->steps < 0 || g->counters < 0 || g->locks < 0 || g->resources < 0 || g->ptr[0] != 0
      || g->ptr[g->threads] != g->steps || g->steps > INT64_MAX / 2 - g->threads)
    return PLANNING_BAD_INDEX;
  for (int64_t t = 0; t < g->threads; t++)
    if (g->ptr[t] > g->ptr[t + 1])
      return PLANNING_BAD_INDEX;
  for (const struct timed_step *s = g->step; s < g->step + g->steps; s++)
    if (s->wait >= g->counters || s->post >= g->counters || s->lock >= g->locks || s->one >= g->resources
        || s->two >= g->resources)
      return PLANNING_BAD_INDEX;
  return PLANNING_DONE;
}

static int64_t *nobodies(int64_t count)
{
  int64_t *made = planning_zeroed(count, sizeof *made);
  for (int64_t i = 0; made && i < count; i++)
    made[i] = NOBODY;
  return made;
}

int planning_clock(const struct timed_threads *g, double *seconds)
{
  int code = check(g);
  if (code)
    return code;
  int64_t room = g->threads + g->steps + 1;
  struct clock x = {
    .given = g,
    .at = planning_zeroed(g->threads, sizeof(int64_t)),
    .where = planning_zeroed(g->threads, 1),
    .waiting = nobodies(g->counters),
    .behind = nobodies(g->threads),
    .holder = nobodies(g->locks),
    .first = nobodies(g->locks),
    .last = nobodies(g->locks),
    .after = nobodies(g->threads),
    .active = planning_zeroed(g->threads, sizeof(int64_t)),
    .ready = planning_zeroed(g->threads + 1, sizeof(int64_t)),
    .remaining = planning_zeroed(g->threads, sizeof(double)),
    .speed = planning_zeroed(g->threads, sizeof(double)),
    .left = planning_zeroed(g->resources, sizeof(double)),
    .users = planning_zeroed(g->resources, sizeof(int64_t)),
    .events = planning_zeroed(room, sizeof(struct moment)),
    .event_room = room,
  };
  code = PLANNING_NO_MEMORY;
  if (x.at && x.where && x.waiting && x.behind && x.holder && x.first && x.last && x.after && x.active && x.ready
      && x.remaining && x.speed && x.left && x.users && x.events) {
    for (int64_t t = 0; t < g->threads; t++)
      x.at[t] = g->ptr[t];
    code = tick(&x, seconds);
  }
  void *all[] = {x.at,    x.where, x.waiting, x.behind,    x.holder, x.first, x.last,  x.after,
                 x.active, x.ready, x.remaining, x.speed, x.left,   x.users, x.events};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
  return code;
}
