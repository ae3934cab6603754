/* When each transfer of a direct exchange goes: steps, one after another, in each of which every rail has a matching. What
 * they are for: optcc/schedule/direct.py and grouped.py. */
#include "matching.h"

static int64_t floor_divided(int64_t a, int64_t b)
{
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t lesser(int64_t a, int64_t b)
{
  return b < a ? b : a;
}

/* As numpy's clip: `high` where that is below `low`. */
static int64_t clipped(int64_t value, int64_t low, int64_t high)
{
  return lesser(planning_max(value, low), high);
}

/* Memory of one call: zeroed, and freed together. */
struct memory {
  int missing, count;
  void *parts[32];
};

static void *room(struct memory *m, int64_t count, size_t size)
{
  void *got = m->count < 32 ? planning_zeroed(count, size) : NULL;
  m->missing |= !got;
  if (got)
    m->parts[m->count++] = got;
  return got;
}

static void release(struct memory *m)
{
  while (m->count > 0)
    free(m->parts[--m->count]);
}

static int ascending(int64_t count, const int64_t *numbers)
{
  for (int64_t i = 0; i < count; i++)
    if (numbers[i] < 0 || numbers[i] > numbers[i + 1])
      return 0;
  return 1;
}

/* ---- one rank starves ---- */

enum { RAIL, FROM, TO, MUCH, BEGIN, SIZE, CHUNK }; /* a chunk, as it is found */

struct greedy {
  const struct starving_steps *x;
  struct matching m;
  struct memory memory;
  int64_t *landed, *limit, *late_out, *late_in, *much, *worth, *fills, *rows, *columns, *taken, *known, *flying, *rails;
  double *values;
  uint8_t *busy;
  int64_t flies;
  struct slot_held { /* by the starving rank's NIC of a rail, one way: until when, and its peers, (ranks) */
    int64_t end;
    uint8_t *peers;
  } *held[2];
};

static int put(struct greedy *g, int64_t rail, int64_t i, int64_t k, int64_t much, int64_t begin, int64_t end)
{
  const struct starving_steps *x = g->x;
  if (*x->count >= x->room)
    return PLANNING_BAD_INDEX;
  g->flying[g->flies++] = *x->count;
  int64_t *row = x->found + CHUNK * (*x->count)++;
  row[RAIL] = rail;
  row[FROM] = i;
  row[TO] = k;
  row[MUCH] = much;
  row[BEGIN] = begin;
  row[SIZE] = end - begin;
  x->left[i * x->ranks + k] -= much;
  return PLANNING_DONE;
}

static void land(struct greedy *g, int64_t now)
{
  const struct starving_steps *x = g->x;
  int64_t kept = 0;
  for (int64_t f = 0; f < g->flies; f++) {
    const int64_t *row = x->found + CHUNK * g->flying[f];
    if (row[BEGIN] + row[SIZE] <= now - x->gap)
      g->landed[row[FROM] * x->ranks + row[TO]] += row[MUCH];
    else
      g->flying[kept++] = g->flying[f];
  }
  g->flies = kept;
}

/* much (ranks): what each rank can send a slow one: its own data, then sums as far as all others have sent theirs. */
static void ready(struct greedy *g, int64_t slow, int64_t *much, int64_t stride)
{
  const struct starving_steps *x = g->x;
  int64_t n = x->ranks;
  for (int64_t k = 0; k < n; k++)
    g->known[k] = INT64_C(1) << 62;
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k < n && i != slow; k++) {
      int64_t at = g->landed[i * n + k];
      for (int64_t p = 0; p < x->parts; p++)
        if (g->landed[i * n + k] >= x->gaps[(p * n + i) * n + k])
          at += x->part[(p * n + i) * n + k];
      if (i != k && at < g->known[k])
        g->known[k] = at;
    }
  for (int64_t k = 0; k < n; k++) {
    int64_t known = g->known[k] - floor_divided(g->known[k], x->slack), sums = 0, own = k * n + slow;
    for (int64_t p = 0; p < x->parts; p++) {
      int64_t at = (p * n + slow) * n + k;
      sums += clipped(known - x->begins[at], 0, x->part[at]);
    }
    much[k * stride] = clipped(x->raw[own] + sums - x->served[own], 0, x->left[own]);
  }
}

/* New slots of the starving rank where the last ones are over, for the rank with most data; *remains: the rest of them. */
static int longer(struct greedy *g, int64_t turn, int get, int64_t *remains)
{
  const struct starving_steps *x = g->x;
  struct slot_held *held = g->held[get];
  int64_t n = x->ranks, begin = x->starts[turn], over = 0;
  if (get)
    ready(g, x->lone, g->much, 1);
  for (int64_t k = 0; !get && k < n; k++)
    g->much[k] = x->left[x->lone * n + k];
  for (int64_t key = 0; key < n; key++)
    for (int64_t rail = 0; rail < x->rails; rail++)
      if ((rail + turn) % n == key && x->live[rail * n + x->lone] && held[rail].end <= begin)
        g->rails[over++] = rail;
  for (int64_t o = 0; o < over; o++) {
    int64_t rail = g->rails[o], end = x->starts[turn + 1], left = end - begin, own = 0;
    for (int64_t k = 0; k < n; k++) {
      g->busy[k] = 0;
      for (int64_t r = 0; r < x->rails; r++)
        g->busy[k] |= x->live[r * n + x->lone] && held[r].end > begin && held[r].peers[k];
    }
    uint8_t *peers = held[rail].peers;
    for (int64_t k = 0; k < n; k++)
      peers[k] = 0;
    while (left > 2 * x->cost) {
      int64_t best = -1;
      for (int64_t k = 0; k < n; k++)
        if (x->live[rail * n + k] && !peers[k] && g->much[k]
            && (best < 0 || g->busy[k] < g->busy[best]
                || (g->busy[k] == g->busy[best] && g->much[k] >= g->much[best])))
          best = k;
      if (best < 0)
        break;
      int64_t most = g->much[best];
      if (!own) {
        int64_t until = begin + lesser(x->longest[get], most), at = turn + 1;
        while (at < x->steps && x->starts[at + 1] <= until)
          at++;
        if (x->starts[at] <= until)
          end = planning_max(end, x->starts[at]);
        left = end - begin;
      }
      int64_t part = lesser(most, left - x->cost), i = get ? best : x->lone, k = get ? x->lone : best;
      int code = put(g, rail, i, k, part, begin, end);
      if (code)
        return code;
      x->served[i * n + k] += part;
      left -= part + x->cost;
      g->much[best] = most - part;
      x->chunks[get]++;
      own++;
      peers[best] = 1;
    }
    held[rail].end = end;
    *remains += left;
  }
  return PLANNING_DONE;
}

/* The amount that pair p can send in the step goes to `fills`, 0 if it is ahead of an even schedule by more than a step. The
 * worth is that, plus the pair's delay relative to its total, scaled by the part of the step that it fills. */
static void weigh(struct greedy *g, int64_t p, int64_t begin, int64_t end)
{
  const struct starving_steps *x = g->x;
  int64_t size = end - begin, most = lesser(size - x->cost, g->limit[p]);
  int64_t behind = floor_divided(end * x->needs[p] - x->served[p] * x->one, planning_max(x->needs[p], 1));
  int64_t much = behind >= -size ? most : 0;
  behind += g->late_out[p / x->ranks] + g->late_in[p % x->ranks];
  g->fills[p] = much;
  g->worth[p] = much <= 0 ? -x->one : (behind > 0 ? behind * much / size : behind) + much;
}

/* On each rail a matching of the pairs of others furthest behind. */
static int exchange(struct greedy *g, int64_t turn)
{
  const struct starving_steps *x = g->x;
  int64_t n = x->ranks, begin = x->starts[turn], end = x->starts[turn + 1];
  for (int64_t r = 0; r < n; r++) {
    int64_t out = 0, in = 0, out_of = 0, in_of = 0;
    for (int64_t k = 0; k < n; k++) {
      out += x->served[r * n + k];
      out_of += x->needs[r * n + k];
      in += x->served[k * n + r];
      in_of += x->needs[k * n + r];
    }
    g->late_out[r] = end - floor_divided(out * x->one, planning_max(out_of, 1));
    g->late_in[r] = end - floor_divided(in * x->one, planning_max(in_of, 1));
  }
  for (int64_t p = 0; p < n * n; p++)
    g->limit[p] = x->left[p];
  for (int64_t l = 0; l < x->late_count; l++)
    ready(g, x->late[l], g->limit + x->late[l], n);
  for (int64_t p = 0; p < n * n; p++)
    weigh(g, p, begin, end);
  for (int64_t key = 0; key < n; key++)
    for (int64_t rail = 0; rail < x->rails; rail++) {
      if ((rail + turn) % n != key)
        continue;
      int64_t rows = 0, columns = 0, lone = x->live[rail * n + x->lone];
      for (int64_t r = 0; r < n; r++) {
        if (r == x->lone || !x->live[rail * n + r])
          continue;
        if (!lone || !g->held[1][rail].peers[r])
          g->rows[rows++] = r;
        if (!lone || !g->held[0][rail].peers[r])
          g->columns[columns++] = r;
      }
      for (int64_t a = 0; a < rows; a++)
        for (int64_t z = 0; z < columns; z++) {
          int64_t p = g->rows[a] * n + g->columns[z];
          g->values[a * columns + z] = (double)(g->worth[p] * x->tie + x->ties[p]);
        }
      int code = matching_find(&g->m, rows, columns, g->values, g->taken);
      if (code)
        return code;
      for (int64_t a = 0; a < rows; a++) {
        if (g->taken[a] < 0)
          continue;
        int64_t i = g->rows[a], k = g->columns[g->taken[a]], p = i * n + k, much = g->fills[p];
        if (much <= 0)
          continue;
        if ((code = put(g, rail, i, k, much, begin, end)))
          return code;
        x->served[p] += much;
        g->limit[p] -= much;
        weigh(g, p, begin, end);
      }
    }
  return PLANNING_DONE;
}

static int starving(struct greedy *g)
{
  const struct starving_steps *x = g->x;
  for (int64_t turn = 0; turn < x->steps; turn++) {
    int64_t begin = x->starts[turn], end = x->starts[turn + 1], rest = 0, remains = 0;
    if (end - begin <= lesser(2 * x->cost, x->brief)) /* one of the first: nobody sends, as the starving rank does not */
      continue;
    land(g, begin);
    int code = longer(g, turn, 0, &rest);
    if (!code)
      code = longer(g, turn, 1, &remains);
    if (!code)
      code = exchange(g, turn);
    if (code)
      return code;
    *x->idle += remains;
  }
  return PLANNING_DONE;
}

int planning_starving(const struct starving_steps *x)
{
  *x->count = *x->idle = x->chunks[0] = x->chunks[1] = 0;
  if (x->ranks < 1 || x->ranks > 1 << 20 || x->rails < 0 || x->steps < 0 || x->parts < 0 || x->room < 0
      || x->late_count < 0 || x->lone < 0 || x->lone >= x->ranks || x->slack < 1 || x->cost < 0
      || !ascending(x->steps, x->starts))
    return PLANNING_BAD_INDEX;
  for (int64_t l = 0; l < x->late_count; l++)
    if (x->late[l] < 0 || x->late[l] >= x->ranks)
      return PLANNING_BAD_INDEX;
  int64_t n = x->ranks;
  struct greedy g = {.x = x};
  struct memory *m = &g.memory;
  int code = matching_reserve(&g.m, n, n);
  int64_t **squares[] = {&g.landed, &g.limit, &g.worth, &g.fills};
  for (int i = 0; i < 4; i++)
    *squares[i] = room(m, n * n, sizeof(int64_t));
  int64_t **lines[] = {&g.late_out, &g.late_in, &g.much, &g.rows, &g.columns, &g.taken, &g.known};
  for (int i = 0; i < 7; i++)
    *lines[i] = room(m, n, sizeof(int64_t));
  g.flying = room(m, x->room, sizeof *g.flying);
  g.rails = room(m, x->rails, sizeof *g.rails);
  g.values = room(m, n * n, sizeof *g.values);
  g.busy = room(m, n, 1);
  for (int way = 0; way < 2; way++) {
    g.held[way] = room(m, x->rails, sizeof *g.held[way]);
    uint8_t *peers = room(m, x->rails * n, 1);
    for (int64_t r = 0; g.held[way] && peers && r < x->rails; r++)
      g.held[way][r].peers = peers + r * n;
  }
  if (!code && m->missing)
    code = PLANNING_NO_MEMORY;
  if (!code)
    code = starving(&g);
  release(m);
  matching_release(&g.m);
  return code;
}

/* ---- several ranks starve ---- */

enum { SRC, DST, ON, FIRST, LONG, AMOUNT, PIECE }; /* a slot, as it is found */

struct steady {
  const struct steady_steps *x;
  struct matching m;
  struct memory memory;
  int64_t *landed, *slots, *known, *scaled, *rails, *rows, *columns, *taken;
  double *worth;
  uint8_t *into, *out; /* (rails, ranks): hubs that are taken in the step */
  int64_t next;        /* slot to land */
};

static int64_t times(int64_t a, int64_t b)
{
  return (int64_t)((uint64_t)a * (uint64_t)b); /* as numpy's int64 */
}

static int book(struct steady *s, int64_t i, int64_t k, int64_t rail, int64_t begin, int64_t end, int64_t much)
{
  const struct steady_steps *x = s->x;
  if (*x->count >= x->room)
    return PLANNING_BAD_INDEX;
  int64_t *row = x->found + PIECE * (*x->count)++;
  row[SRC] = i;
  row[DST] = k;
  row[ON] = x->rail[rail];
  row[FIRST] = begin;
  row[LONG] = end - begin;
  row[AMOUNT] = much;
  x->sent[i * x->ranks + k] += much;
  s->slots[i * x->ranks + k]++;
  return PLANNING_DONE;
}

/* A slow rank's data: to the hubs that it has sent fewest chunks. The others, on the same rails, take the same hubs. */
static int data(struct steady *s, int64_t rank, int64_t begin, int64_t end)
{
  const struct steady_steps *x = s->x;
  int64_t n = x->ranks;
  const int64_t *weight = x->weight + rank * n, *sent = x->sent + rank * n;
  for (int64_t o = 0; o < x->rails; o++) {
    int64_t rail = s->rails[o], best = -1, fewest = 0, had = 0;
    if (!x->live[rail * n + rank])
      continue;
    for (int64_t k = 0; k < n; k++) {
      if (!x->hub[k] || !x->live[rail * n + k] || s->into[rail * n + k])
        continue;
      int64_t chunks = times(s->slots[rank * n + k], weight[k]), much = times(sent[k], weight[k]);
      if (best < 0 || chunks < fewest || (chunks == fewest && much <= had)) {
        best = k;
        fewest = chunks;
        had = much;
      }
    }
    if (best < 0)
      return PLANNING_BAD_INDEX;
    int code = book(s, rank, best, rail, begin, end, end - begin - x->cost);
    if (code)
      return code;
    s->into[rail * n + best] = 1;
  }
  return PLANNING_DONE;
}

/* Results to a slow rank: from the hub that has most, a full chunk at most, and of these from the one that has exchanged
 * least with it. */
static int results(struct steady *s, int64_t rank, int64_t begin, int64_t end)
{
  const struct steady_steps *x = s->x;
  int64_t n = x->ranks, full = end - begin - x->cost;
  for (int64_t k = 0; k < n; k++)
    s->scaled[k] = floor_divided(times(s->known[k], x->section[rank * n + k]), x->places);
  for (int64_t o = 0; o < x->rails; o++) {
    int64_t rail = s->rails[o], best = -1, most = 0, least = 0;
    if (!x->live[rail * n + rank])
      continue;
    for (int64_t k = 0; k < n; k++) {
      if (!x->hub[k] || !x->live[rail * n + k] || s->out[rail * n + k])
        continue;
      int64_t much = lesser(s->scaled[k] - x->sent[k * n + rank], full);
      int64_t had = times(x->sent[rank * n + k] + x->sent[k * n + rank], x->weight[rank * n + k]);
      if (best < 0 || much > most || (much == most && had <= least)) {
        best = k;
        most = much;
        least = had;
      }
    }
    if (best < 0)
      return PLANNING_BAD_INDEX;
    if (most <= 0)
      continue;
    int code = book(s, best, rank, rail, begin, end, most);
    if (code)
      return code;
    s->out[rail * n + best] = 1;
  }
  return PLANNING_DONE;
}

/* Among hubs; where there are quiet rails as much as they have for each other. */
static int rest(struct steady *s, int64_t rail, int64_t begin, int64_t end, int some_quiet)
{
  const struct steady_steps *x = s->x;
  int64_t n = x->ranks, rows = 0, columns = 0;
  for (int64_t k = 0; k < n; k++) {
    if (!x->hub[k] || !x->live[rail * n + k])
      continue;
    if (!s->out[rail * n + k])
      s->rows[rows++] = k;
    if (!s->into[rail * n + k])
      s->columns[columns++] = k;
  }
  int64_t full = end - begin - x->cost;
#define AMOUNT_OF(i, k)                                                                                                \
  ((i) == (k) ? 0 : some_quiet ? lesser(full, x->section[(i) * n + (k)] - x->sent[(i) * n + (k)]) : full)
  for (int64_t a = 0; a < rows; a++)
    for (int64_t z = 0; z < columns; z++) {
      int64_t i = s->rows[a], k = s->columns[z], p = i * n + k, had = times(x->sent[p], x->weight[p]) >> x->coarse;
      int64_t worth = (int64_t)((uint64_t)x->ties[p] - (uint64_t)times(times(had, had), x->tie));
      s->worth[a * columns + z] = (double)(AMOUNT_OF(i, k) <= 0 ? -(INT64_C(1) << 62) : worth);
    }
  int code = matching_find(&s->m, rows, columns, s->worth, s->taken);
  for (int64_t a = 0; !code && a < rows; a++) {
    if (s->taken[a] < 0)
      continue;
    int64_t i = s->rows[a], k = s->columns[s->taken[a]], much = AMOUNT_OF(i, k);
    if (much > 0)
      code = book(s, i, k, rail, begin, end, much);
  }
#undef AMOUNT_OF
  return code;
}

static int steady_step(struct steady *s, int64_t turn, int some_quiet)
{
  const struct steady_steps *x = s->x;
  int64_t n = x->ranks, begin = x->ends[turn], end = x->ends[turn + 1], over = 0;
  for (; s->next < *x->count; s->next++) {
    const int64_t *row = x->found + PIECE * s->next;
    if (row[FIRST] + row[LONG] > begin - x->gap)
      break;
    s->landed[row[SRC] * n + row[DST]] += row[AMOUNT];
  }
  if (end - begin <= 2 * x->cost)
    return PLANNING_DONE;
  for (int64_t k = 0; k < n; k++) {
    int64_t known = INT64_C(1) << 62;
    for (int64_t i = 0; i < n; i++)
      if (i != k)
        known = lesser(known, floor_divided(times(s->landed[i * n + k], x->places), x->section[i * n + k]));
    s->known[k] = known - floor_divided(known, x->slack);
  }
  int64_t round = x->rails ? x->rail[x->rails - 1] + 1 : 1;
  for (int64_t key = 0; key < round; key++) /* rails are different, so are their keys */
    for (int64_t r = 0; r < x->rails; r++)
      if ((x->rail[r] + turn) % round == key)
        s->rails[over++] = r;
  for (int64_t i = 0; i < x->rails * n; i++)
    s->into[i] = s->out[i] = 0;
  for (int64_t l = 0; l < x->slow_count; l++) {
    int code = data(s, x->slow[l], begin, end);
    if (!code)
      code = results(s, x->slow[l], begin, end);
    if (code)
      return code;
  }
  for (int64_t o = 0; o < over; o++) {
    int code = x->quiet[s->rails[o]] ? PLANNING_DONE : rest(s, s->rails[o], begin, end, some_quiet);
    if (code)
      return code;
  }
  return PLANNING_DONE;
}

int planning_steady(const struct steady_steps *x)
{
  *x->count = 0;
  if (x->ranks < 1 || x->ranks > 1 << 20 || x->rails < 0 || x->steps < 0 || x->room < 0 || x->slow_count < 0
      || x->places < 1 || x->slack < 1 || x->cost < 0 || x->coarse < 0 || x->coarse > 62
      || !ascending(x->steps, x->ends))
    return PLANNING_BAD_INDEX;
  for (int64_t l = 0; l < x->slow_count; l++)
    if (x->slow[l] < 0 || x->slow[l] >= x->ranks)
      return PLANNING_BAD_INDEX;
  int some_quiet = 0;
  for (int64_t r = 0; r < x->rails; r++) {
    some_quiet |= x->quiet[r];
    if (x->rail[r] < 0 || x->rail[r] > INT32_MAX || (r > 0 && x->rail[r] <= x->rail[r - 1]))
      return PLANNING_BAD_INDEX;
  }
  int64_t n = x->ranks;
  for (int64_t p = 0; p < n * n; p++)
    if (x->section[p] < 1)
      return PLANNING_BAD_INDEX;
  struct steady s = {.x = x};
  struct memory *m = &s.memory;
  int code = matching_reserve(&s.m, n, n);
  s.landed = room(m, n * n, sizeof *s.landed);
  s.slots = room(m, n * n, sizeof *s.slots);
  s.worth = room(m, n * n, sizeof *s.worth);
  int64_t **lines[] = {&s.known, &s.scaled, &s.rows, &s.columns, &s.taken};
  for (int i = 0; i < 5; i++)
    *lines[i] = room(m, n, sizeof(int64_t));
  s.rails = room(m, x->rails, sizeof *s.rails);
  s.into = room(m, x->rails * n, 1);
  s.out = room(m, x->rails * n, 1);
  if (!code && m->missing)
    code = PLANNING_NO_MEMORY;
  for (int64_t turn = 0; !code && turn < x->steps; turn++)
    code = steady_step(&s, turn, some_quiet);
  release(m);
  matching_release(&s.m);
  return code;
}

/* ---- groups of ranks ---- */

enum { AT, OUT_OF, INTO, BY, OF, DOWN, MOVE }; /* a move, as it is found */

#define NO_DUE (INT64_C(1) << 40)

struct grouped {
  const struct group_steps *x;
  struct matching m;
  struct memory memory;
  /* Of chunk and rank: how many children it has; how many of their sums are missing; what it sends up, and what is sent
   * down to it, as nodes of heaps: when it is due, first child and next sibling. */
  int32_t *children, *missing, *child, *sibling;
  int64_t *due, *first; /* (ranks, ranks): the first ready move, -1 for none */
  int64_t *here, *into, *crossed, *room, *keys, *pairs, *order;
  double *worth;
  uint8_t *left_out, *sends, *receives;
};

/* As tuples of due time, chunk and way. */
static int earlier(const struct grouped *g, int64_t a, int64_t b)
{
  int64_t one = a / 2 / g->x->ranks, other = b / 2 / g->x->ranks;
  if (g->due[a] != g->due[b])
    return g->due[a] < g->due[b];
  return one != other ? one < other : a % 2 < b % 2;
}

/* Pairing heaps (Fredman et al. 1986). */
static int64_t joined(struct grouped *g, int64_t a, int64_t b)
{
  if (a < 0 || b < 0)
    return a < 0 ? b : a;
  int64_t top = earlier(g, b, a) ? b : a, below = top == a ? b : a;
  g->sibling[below] = g->child[top];
  g->child[top] = (int32_t)below;
  return top;
}

static int64_t without(struct grouped *g, int64_t top)
{
  int64_t pairs = -1, found = -1;
  for (int64_t at = g->child[top]; at >= 0;) {
    int64_t a = at, b = g->sibling[a];
    at = b < 0 ? -1 : g->sibling[b];
    int64_t both = joined(g, a, b);
    g->sibling[both] = (int32_t)pairs;
    pairs = both;
  }
  while (pairs >= 0) {
    int64_t next = g->sibling[pairs];
    g->sibling[pairs] = -1;
    found = joined(g, found, pairs);
    pairs = next;
  }
  return found;
}

/* The move is ready from now on. */
static void offer(struct grouped *g, int64_t src, int64_t dst, int64_t chunk, int64_t down)
{
  const struct group_steps *x = g->x;
  int64_t n = x->ranks, place = chunk, of = x->chunks, rank = down ? dst : src, node = 2 * (chunk * n + rank) + down;
  int64_t passed_on = g->children[chunk * n + rank] > 0;
  if (x->apart >= 0 && (x->apart == src || x->apart == dst)) { /* it serves both halves of the chunks all the time */
    of = (x->chunks + 1) / 2;
    place = chunk % of;
    passed_on = 1;
  } else if (x->apart >= 0) { /* first sums that it adds last to, and their results last */
    place = (chunk + down * (x->chunks / 2)) % x->chunks;
  }
  /* What is passed on has three hops left. */
  g->due[node] = x->half * down + x->half * place / of - 3 * x->lands * x->unit * passed_on;
  g->child[node] = g->sibling[node] = -1;
  g->first[src * n + dst] = joined(g, g->first[src * n + dst], node);
}

/* The receiver may now have everything that it waits for. */
static void arrived(struct grouped *g, const int64_t *move)
{
  const struct group_steps *x = g->x;
  int64_t n = x->ranks, rank = move[INTO], chunk = move[OF], left = g->children[chunk * n + rank];
  const int64_t *parent = x->parent + chunk * n;
  if (!move[DOWN]) {
    if (--g->missing[chunk * n + rank] != 0)
      return;
    if (parent[rank] >= 0) {
      offer(g, rank, parent[rank], chunk, 0);
      return;
    }
  }
  for (int64_t k = 0; left > 0 && k < n; k++)
    if (parent[k] == rank) {
      offer(g, rank, k, chunk, 1);
      left--;
    }
}

static int64_t due_of(const struct grouped *g, int64_t src, int64_t dst)
{
  int64_t node = g->first[src * g->x->ranks + dst];
  return node < 0 ? NO_DUE : g->due[node];
}

/* left_out (ranks, ranks): what uplinks have no room for; moves due first have precedence. `part` of `rails` of the step. */
static int keep_room(struct grouped *g, int64_t count, int64_t part)
{
  const struct group_steps *x = g->x;
  int64_t n = x->ranks, crossing = 0;
  for (int64_t i = 0; i < 2 * x->groups; i++)
    g->room[i] = x->uplink[i / 2] < 0 ? INT64_C(1) << 62 : x->uplink[i / 2] * part / x->rails - g->crossed[i];
  for (int64_t a = 0; a < count; a++) {
    g->sends[a] = g->receives[a] = 0; /* each one chunk at most */
    for (int64_t z = 0; z < count; z++) {
      g->left_out[a * n + z] = 0;
      if (x->group[g->here[a]] == x->group[g->here[z]] || g->first[g->here[a] * n + g->here[z]] < 0)
        continue;
      g->keys[crossing] = due_of(g, g->here[a], g->here[z]);
      g->pairs[crossing++] = a * n + z;
    }
  }
  int code = places_by_key(crossing, g->keys, g->order);
  for (int64_t i = 0; !code && i < crossing; i++) {
    int64_t pair = g->pairs[g->order[i]], a = pair / n, z = pair % n;
    int64_t *out = g->room + 2 * x->group[g->here[a]], *in = g->room + 2 * x->group[g->here[z]] + 1;
    if ((g->sends[a] || *out > 0) && (g->receives[z] || *in > 0)) {
      *out -= !g->sends[a];
      *in -= !g->receives[z];
      g->sends[a] = g->receives[z] = 1;
    } else {
      g->left_out[pair] = 1;
    }
  }
  return code;
}

static int group_step(struct grouped *g, int64_t step, int limited)
{
  const struct group_steps *x = g->x;
  int64_t n = x->ranks;
  for (int64_t i = 0; i < 2 * x->groups; i++)
    g->crossed[i] = 0;
  for (int64_t turn = 0; turn < x->rails; turn++) {
    int64_t rail = (step + turn) % x->rails, count = 0;
    for (int64_t r = 0; r < n; r++)
      if (x->on[rail * n + r])
        g->here[count++] = r;
    int code = limited ? keep_room(g, count, turn + 1) : PLANNING_DONE;
    for (int64_t a = 0; a < count; a++)
      for (int64_t z = 0; z < count; z++) {
        int64_t due = limited && g->left_out[a * n + z] ? NO_DUE : due_of(g, g->here[a], g->here[z]);
        g->worth[a * count + z] = due == NO_DUE ? 0 : (double)(x->one_more + step * x->unit - due);
      }
    if (!code)
      code = matching_find(&g->m, count, count, g->worth, g->into);
    for (int64_t a = 0; !code && a < count; a++) {
      int64_t z = g->into[a], src = g->here[a], dst = g->here[z], node = g->first[src * n + dst];
      if (node < 0 || (limited && g->left_out[a * n + z]))
        continue;
      if (*x->count >= x->room)
        return PLANNING_BAD_INDEX;
      g->first[src * n + dst] = without(g, node);
      if (x->group[src] != x->group[dst]) {
        g->crossed[2 * x->group[src]]++;
        g->crossed[2 * x->group[dst] + 1]++;
      }
      int64_t *move = x->found + MOVE * (*x->count)++;
      move[AT] = step;
      move[OUT_OF] = src;
      move[INTO] = dst;
      move[BY] = rail;
      move[OF] = node / 2 / n;
      move[DOWN] = node % 2;
    }
    if (code)
      return code;
  }
  return PLANNING_DONE;
}

static int grouped(struct grouped *g)
{
  const struct group_steps *x = g->x;
  int64_t n = x->ranks, all = 2 * x->chunks * (n - 1), landed = 0, last = 0;
  int limited = 0;
  for (int64_t i = 0; i < x->groups; i++)
    limited |= x->uplink[i] > 0;
  for (int64_t i = 0; i < n * n; i++)
    g->first[i] = -1;
  for (int64_t chunk = 0; chunk < x->chunks; chunk++)
    for (int64_t r = 0; r < n; r++) {
      int64_t parent = x->parent[chunk * n + r];
      if (parent >= n || parent == r || x->group[r] < 0 || x->group[r] >= x->groups)
        return PLANNING_BAD_INDEX;
      if (parent >= 0)
        g->missing[chunk * n + parent] = ++g->children[chunk * n + parent];
    }
  for (int64_t chunk = 0; chunk < x->chunks; chunk++)
    for (int64_t r = 0; r < n; r++)
      if (!g->children[chunk * n + r]) {
        if (x->parent[chunk * n + r] < 0)
          return PLANNING_BAD_INDEX;
        offer(g, r, x->parent[chunk * n + r], chunk, 0);
      }
  for (int64_t step = 0; *x->count < all; step++) {
    for (; landed < *x->count && x->found[MOVE * landed + AT] <= step - x->lands; landed++)
      arrived(g, x->found + MOVE * landed);
    int64_t before = *x->count;
    int code = group_step(g, step, limited);
    if (code)
      return code;
    if (*x->count > before)
      last = step;
    else if (step - last > x->lands + x->rails) /* every rail was first once, and nothing is under way */
      return PLANNING_STUCK;
  }
  return PLANNING_DONE;
}

int planning_grouped(const struct group_steps *x)
{
  *x->count = 0;
  if (x->ranks < 2 || x->ranks > 1 << 20 || x->chunks < 0 || x->chunks > (1 << 30) / x->ranks || x->rails < 0
      || x->rails > 1 << 20 || x->groups < 0 || x->groups > 1 << 20 || x->room < 0 || x->apart >= x->ranks
      || x->lands < 1 || x->lands > 1 << 20)
    return PLANNING_BAD_INDEX;
  int64_t n = x->ranks, nodes = x->chunks * n;
  struct grouped g = {.x = x};
  struct memory *m = &g.memory;
  int code = matching_reserve(&g.m, n, n);
  g.children = room(m, nodes, sizeof *g.children);
  g.missing = room(m, nodes, sizeof *g.missing);
  g.child = room(m, 2 * nodes, sizeof *g.child);
  g.sibling = room(m, 2 * nodes, sizeof *g.sibling);
  g.due = room(m, 2 * nodes, sizeof *g.due);
  int64_t **squares[] = {&g.first, &g.keys, &g.pairs, &g.order};
  for (int i = 0; i < 4; i++)
    *squares[i] = room(m, n * n, sizeof(int64_t));
  g.worth = room(m, n * n, sizeof *g.worth);
  g.left_out = room(m, n * n, 1);
  g.sends = room(m, n, 1);
  g.receives = room(m, n, 1);
  g.here = room(m, n, sizeof *g.here);
  g.into = room(m, n, sizeof *g.into);
  g.crossed = room(m, 2 * x->groups, sizeof *g.crossed);
  g.room = room(m, 2 * x->groups, sizeof *g.room);
  if (!code && m->missing)
    code = PLANNING_NO_MEMORY;
  if (!code)
    code = grouped(&g);
  release(m);
  matching_release(&g.m);
  return code;
}
