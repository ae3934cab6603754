/* The slowest parts of planning direct exchange: matchings of greatest worth, cuts, and dependencies of transfers. */
#include "matching.h"

#include <math.h>

int32_t planning_abi(void)
{
  return PLANNING_ABI;
}

/* Two numbers, which any processor works on at once. */
#define LANES 2
typedef double reals __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));
typedef int64_t wholes __attribute__((vector_size(LANES * sizeof(int64_t)), aligned(sizeof(int64_t)), may_alias));

/* By way of a row every column that has not been passed is *least, its cost less the row's gain and its price away: nearer
 * ones are noted. Returns the place of the nearest, -1 where none is near, and how far it is in *least. */
static int64_t by_way_of(struct matching *m, int64_t row, int64_t columns, double *least)
{
  const double *cost = m->cost + row * columns;
  wholes from = {row, row}, here = {0, 1}, which = here, several = {0, 0}, nearer;
  reals nearest = {INFINITY, INFINITY};
  for (int64_t c = 0; c < columns; c += LANES, here += LANES) {
    reals *reach = (reals *)(m->reach + c), far = *least + *(const reals *)(cost + c) - m->gain[row] - *(const reals *)(m->price + c)
                                                  + *(const reals *)(m->passed + c);
    wholes *before = (wholes *)(m->before + c);
    nearer = far < *reach;
    *before = (nearer & from) | (~nearer & *before);
    *reach = (reals)((nearer & (wholes)far) | (~nearer & (wholes)*reach));
    reals open = *reach + *(const reals *)(m->passed + c);
    nearer = open < nearest;
    several = ~nearer & (several | (open == nearest));
    nearest = (reals)((nearer & (wholes)open) | (~nearer & (wholes)nearest));
    which = (nearer & here) | (~nearer & which);
  }
  int best = nearest[1] < nearest[0];
  *least = nearest[best];
  if (!(*least < INFINITY)) /* worth that is no number */
    return -1;
  if (!several[best] && nearest[0] != nearest[1])
    return m->place[which[best]];
  int64_t first = INT64_MAX, last = -1; /* of equal ones the last place whose column has no row, else the first place */
  for (int64_t c = 0; c < columns; c += LANES) {
    wholes same = *(const reals *)(m->reach + c) + *(const reals *)(m->passed + c) == *least;
    for (int i = 0; (same[0] | same[1]) && i < LANES; i++) {
      if (!same[i])
        continue;
      first = m->place[c + i] < first ? m->place[c + i] : first;
      if (m->of_column[c + i] < 0)
        last = planning_max(last, m->place[c + i]);
    }
  }
  return last >= 0 ? last : first;
}

void matching_release(struct matching *m)
{
  void *all[] = {m->of_row, m->of_column, m->before, m->left,   m->place,   m->cost,
                 m->price,  m->reach,     m->gain,   m->passed, m->seen_row};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
}

static int64_t lesser(int64_t a, int64_t b)
{
  return b < a ? b : a;
}

static int64_t padded(int64_t columns)
{
  return (columns + LANES - 1) / LANES * LANES;
}

int matching_reserve(struct matching *m, int64_t rows, int64_t columns)
{
  if (rows < 0 || columns < 0 || rows > INT64_MAX - LANES || columns > INT64_MAX - LANES)
    return PLANNING_BAD_INDEX;
  int64_t least = lesser(rows, columns), most = padded(planning_max(rows, columns));
  if (most > 0 && least > INT64_MAX / most)
    return PLANNING_BAD_INDEX;
  *m = (struct matching){
    .of_row = planning_zeroed(most, sizeof(int64_t)),
    .of_column = planning_zeroed(most, sizeof(int64_t)),
    .before = planning_zeroed(most, sizeof(int64_t)),
    .left = planning_zeroed(most, sizeof(int64_t)),
    .place = planning_zeroed(most, sizeof(int64_t)),
    .cost = planning_zeroed(least * most, sizeof(double)),
    .price = planning_zeroed(most, sizeof(double)),
    .reach = planning_zeroed(most, sizeof(double)),
    .gain = planning_zeroed(most, sizeof(double)),
    .passed = planning_zeroed(most, sizeof(double)),
    .seen_row = planning_zeroed(most, 1),
  };
  if (m->of_row && m->of_column && m->before && m->left && m->place && m->cost && m->price && m->reach && m->gain
      && m->passed && m->seen_row)
    return PLANNING_DONE;
  return PLANNING_NO_MEMORY;
}

/* Shortest augmenting paths (Crouse 2016, On implementing 2D rectangular assignment algorithms), row by row, or column by
 * column if these are fewer. */
int matching_find(struct matching *m, int64_t given_rows, int64_t given_columns, const double *worth, int64_t *column_of)
{
  int wide = given_rows <= given_columns;
  int64_t rows = wide ? given_rows : given_columns, columns = wide ? given_columns : given_rows;
  int64_t all = padded(columns);
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c++)
      m->cost[r * all + c] = -(wide ? worth[r * columns + c] : worth[c * rows + r]);
    for (int64_t c = columns; c < all; c++)
      m->cost[r * all + c] = 0;
    m->of_row[r] = -1;
    m->gain[r] = 0;
  }
  for (int64_t c = 0; c < all; c++) {
    m->of_column[c] = m->before[c] = -1;
    m->price[c] = 0;
  }
  for (int64_t current = 0; current < rows; current++) {
    for (int64_t c = 0; c < all; c++) {
      m->reach[c] = INFINITY;
      m->passed[c] = c < columns ? 0 : INFINITY;
    }
    for (int64_t c = 0; c < columns; c++) {
      m->left[c] = columns - c - 1;
      m->place[columns - c - 1] = c;
    }
    for (int64_t r = 0; r < rows; r++)
      m->seen_row[r] = 0;
    int64_t count = columns, row = current, column, end = -1;
    double least = 0;
    while (end < 0) {
      m->seen_row[row] = 1;
      int64_t at = by_way_of(m, row, all, &least);
      if (at < 0)
        return PLANNING_BAD_INDEX;
      column = m->left[at];
      if (m->of_column[column] < 0)
        end = column;
      else
        row = m->of_column[column];
      m->passed[column] = INFINITY;
      count--;
      m->left[at] = m->left[count];
      m->place[m->left[at]] = at;
    }
    m->gain[current] += least;
    for (int64_t r = 0; r < rows; r++)
      if (m->seen_row[r] && r != current)
        m->gain[r] += least - m->reach[m->of_row[r]];
    for (int64_t c = 0; c < columns; c++)
      if (m->passed[c] > 0)
        m->price[c] -= least - m->reach[c];
    row = -1;
    column = end;
    while (row != current) {
      row = m->before[column];
      if (row < 0)
        return PLANNING_BAD_INDEX;
      m->of_column[column] = row;
      int64_t next = m->of_row[row];
      m->of_row[row] = column;
      column = next;
    }
  }
  for (int64_t r = 0; r < given_rows; r++)
    column_of[r] = wide ? m->of_row[r] : m->of_column[r];
  return PLANNING_DONE;
}

int planning_assign(int64_t rows, int64_t columns, const double *worth, int64_t *column_of)
{
  struct matching m = {0};
  int code = matching_reserve(&m, rows, columns);
  if (!code)
    code = matching_find(&m, rows, columns, worth, column_of);
  matching_release(&m);
  return code;
}

/* ---- cuts ---- */

__extension__ typedef __int128 wide; /* products of two int64_t */

enum { SRC, DST, PIECES, SLOTS, LATER, PAIR };
enum { KIND, HUB, START, STOP, PIECE };
enum { BEGIN, SIZE, NIC, WEIGHT, SLOT };

static int64_t size_of(const int64_t *piece)
{
  return piece[STOP] > piece[START] ? piece[STOP] - piece[START] : piece[START] - piece[STOP];
}

/* Up to where a slot goes that begins at byte `at`; `done` of `total` weights have gone by its end. */
static int64_t slot_end(const struct cut_pairs *x, const int64_t *pair, const int64_t *piece, const int64_t *slot,
                        int64_t at, int64_t units, int64_t done, int64_t total)
{
  int64_t until = (int64_t)((wide)units * done / total) / x->granule * x->granule;
  /* A tiny rest would be waited for until the pair's next slot. */
  int64_t even = (int64_t)((wide)units * slot[WEIGHT] / total);
  wide saved = (wide)even * x->cost / ((wide)x->cost_of * slot[SIZE]);
  int64_t near = saved < even / 3 ? (int64_t)saved : even / 3, border = 0;
  near = planning_max(even / x->near, near);
  for (int64_t i = 0; i < pair[PIECES]; i++) {
    border += size_of(piece + i * PIECE);
    if (border >= until - near)
      break;
  }
  return at < border && border <= until + near ? border : until;
}

static int cut_pair(const struct cut_pairs *x, const int64_t *pair, const int64_t *piece, const int64_t *slot,
                    int64_t *count)
{
  int64_t units = 0, total = 0, done = 0, at = 0, which = 0, before = 0;
  for (int64_t i = 0; i < pair[PIECES]; i++) {
    const int64_t *p = piece + i * PIECE;
    if (p[START] < 0 || p[STOP] < 0 || __builtin_add_overflow(units, size_of(p), &units))
      return PLANNING_BAD_INDEX;
  }
  for (int64_t i = 0; i < pair[SLOTS]; i++) {
    const int64_t *s = slot + i * SLOT;
    if (s[SIZE] <= 0 || s[WEIGHT] < 0 || __builtin_add_overflow(total, s[WEIGHT], &total))
      return PLANNING_BAD_INDEX;
  }
  for (int64_t place = 0; place < pair[SLOTS]; place++) {
    const int64_t *s = slot + place * SLOT;
    done += s[WEIGHT];
    int64_t until = done < total ? slot_end(x, pair, piece, s, at, units, done, total) : units;
    while (at < until) {
      const int64_t *p = piece + which * PIECE;
      int64_t size = size_of(p), end = lesser(until, before + size), way = p[STOP] > p[START] ? 1 : -1;
      if (end > at) {
        int64_t one = p[START] + way * (at - before), other = p[START] + way * (end - before);
        int64_t row[] = {pair[SRC], pair[DST], s[BEGIN] + pair[LATER], p[KIND], p[HUB], lesser(one, other),
                         planning_max(one, other), s[NIC], place};
        if (*count >= x->room)
          return PLANNING_BAD_INDEX;
        for (int64_t i = 0; i < 9; i++)
          x->found[i * x->room + *count] = row[i];
        ++*count;
      }
      at = end;
      if (at == before + size) {
        before = at;
        which++;
      }
    }
  }
  return PLANNING_DONE;
}

int planning_cut(const struct cut_pairs *x, int64_t *count)
{
  int64_t pieces = 0, slots = 0;
  *count = 0;
  if (x->pairs < 0 || x->granule < 1 || x->near < 1 || x->cost < 0 || x->cost_of < 1)
    return PLANNING_BAD_INDEX;
  for (int64_t i = 0; i < x->pairs; i++) {
    const int64_t *pair = x->pair + i * PAIR;
    if (pair[PIECES] < 0 || pair[PIECES] > x->pieces - pieces || pair[SLOTS] < 0 || pair[SLOTS] > x->slots - slots)
      return PLANNING_BAD_INDEX;
    int code = cut_pair(x, pair, x->piece + pieces * PIECE, x->slot + slots * SLOT, count);
    if (code)
      return code;
    pieces += pair[PIECES];
    slots += pair[SLOTS];
  }
  return PLANNING_DONE;
}

/* ---- dependencies ---- */

/* CSR: ptr (groups + 1), places (count): the places in `numbers` of each number from 0 to groups - 1, ascending. */
static int group(int64_t count, const int64_t *numbers, int64_t groups, int64_t *ptr, int64_t *places)
{
  if (count < 0 || groups < 0)
    return PLANNING_BAD_INDEX;
  for (int64_t g = 0; g <= groups; g++)
    ptr[g] = 0;
  for (int64_t i = 0; i < count; i++) {
    if (numbers[i] < 0 || numbers[i] >= groups)
      return PLANNING_BAD_INDEX;
    ptr[numbers[i] + 1]++;
  }
  for (int64_t g = 0; g < groups; g++)
    ptr[g + 1] += ptr[g];
  /* Each group's start serves as its next free place, and is put right afterwards. */
  for (int64_t i = 0; i < count; i++)
    places[ptr[numbers[i]]++] = i;
  for (int64_t g = groups; g > 0; g--)
    ptr[g] = ptr[g - 1];
  ptr[0] = 0;
  return PLANNING_DONE;
}

static int among(int64_t number, const int64_t *numbers, int64_t count)
{
  for (int64_t i = 0; i < count; i++)
    if (numbers[i] == number)
      return 1;
  return 0;
}

enum { RAW, PARTIAL, FINAL, RESULT, KINDS }; /* of rows, as direct.py has them */

/* Rows by hub and kind (CSR of), in order of senders and bytes; and in these the runs of one sender (CSR runs, run). */
struct row_index {
  int64_t *of, *runs, *run, *row, *start, *stop, *held, *holds;
};

static void drop_index(struct row_index *t)
{
  void *all[] = {t->of, t->runs, t->run, t->row, t->start, t->stop, t->held, t->holds};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
}

static int index_rows(const struct exchange_rows *x, struct row_index *t)
{
  if (x->rows < 0 || x->ranks < 0 || x->ranks > INT32_MAX || x->nics < 0 || x->held < 0 || x->most < 0
      || x->most > INT32_MAX)
    return PLANNING_BAD_INDEX;
  for (int64_t r = 0; r < x->rows; r++)
    if (x->src[r] < 0 || x->src[r] >= x->ranks || x->hub[r] < 0 || x->hub[r] >= x->ranks || x->kind[r] < 0
        || x->kind[r] >= KINDS || x->nic[r] < 0 || x->nic[r] >= x->nics)
      return PLANNING_BAD_INDEX;
  for (int64_t i = 0; i < x->held; i++)
    if (x->held_row[i] < 0 || x->held_row[i] >= x->rows || x->held_on[i] < 0 || x->held_on[i] >= x->rows)
      return PLANNING_BAD_INDEX;
  int64_t groups = KINDS * x->ranks;
  t->of = planning_zeroed(groups + 1, sizeof *t->of);
  t->runs = planning_zeroed(groups + 1, sizeof *t->runs);
  t->run = planning_zeroed(x->rows + 1, sizeof *t->run);
  t->row = planning_zeroed(x->rows, sizeof *t->row);
  t->start = planning_zeroed(x->rows, sizeof *t->start);
  t->stop = planning_zeroed(x->rows, sizeof *t->stop);
  t->held = planning_zeroed(x->rows + 1, sizeof *t->held);
  t->holds = planning_zeroed(x->held, sizeof *t->holds);
  int64_t *number = planning_zeroed(x->rows, sizeof *number), *by = planning_zeroed(x->rows, sizeof *by);
  int64_t *ptr = planning_zeroed(x->ranks + 1, sizeof *ptr);
  int code = PLANNING_NO_MEMORY;
  if (t->of && t->runs && t->run && t->row && t->start && t->stop && t->held && t->holds && number && by && ptr)
    code = group(x->rows, x->src, x->ranks, ptr, by);
  for (int64_t i = 0; !code && i < x->rows; i++)
    number[i] = x->hub[by[i]] * KINDS + x->kind[by[i]];
  if (!code)
    code = group(x->rows, number, groups, t->of, t->row);
  if (!code)
    code = group(x->held, x->held_row, x->rows, t->held, t->holds);
  for (int64_t i = 0; !code && i < x->rows; i++)
    t->row[i] = by[t->row[i]];
  int64_t count = 0;
  for (int64_t g = 0; !code && g < groups; g++) {
    t->runs[g] = count;
    for (int64_t i = t->of[g], begin = i; i < t->of[g + 1]; i++) {
      int64_t row = t->row[i], at = i;
      if (i == t->of[g] || x->src[row] != x->src[t->row[i - 1]])
        t->run[count++] = begin = i;
      /* Few in a run, and mostly in order. Nothing waits for results. */
      for (; g % KINDS != RESULT && at > begin && x->start[t->row[at - 1]] > x->start[row]; at--)
        t->row[at] = t->row[at - 1];
      t->row[at] = row;
    }
  }
  if (!code) {
    t->runs[groups] = count;
    t->run[count] = x->rows;
    for (int64_t i = 0; i < x->rows; i++) {
      t->start[i] = x->start[t->row[i]];
      t->stop[i] = x->stop[t->row[i]];
    }
  }
  free(number);
  free(by);
  free(ptr);
  return code;
}

/* Adds to `found` the rows of one kind of the row's hub that share bytes with it, at `floor` or above. */
static int64_t shared_bytes(const struct exchange_rows *x, const struct row_index *t, int64_t row, int64_t kind,
                            int64_t floor, int64_t *found, int64_t count)
{
  int64_t group = x->hub[row] * KINDS + kind, low = planning_max(x->start[row], floor), high = x->stop[row];
  if (high <= low)
    return count;
  for (int64_t run = t->runs[group]; run < t->runs[group + 1]; run++) {
    int64_t a = t->run[run], end = run + 1 < t->runs[group + 1] ? t->run[run + 1] : t->of[group + 1], z = end;
    while (a < z) {
      int64_t middle = (a + z) / 2;
      if (t->stop[middle] <= low)
        a = middle + 1;
      else
        z = middle;
    }
    for (; a < end && t->start[a] < high; a++)
      found[count++] = t->row[a];
  }
  return count;
}

/* What a row waits for by itself, in `found`, which has room for all rows. Returns how many. Data that others add last to
 * comes back finished: results wait for raw data only from `floor` on. */
static int64_t waits_for(const struct exchange_rows *x, const struct row_index *t, int64_t row, int64_t *found)
{
  switch (x->kind[row]) {
  case PARTIAL:
    return shared_bytes(x, t, row, RAW, 0, found, 0);
  case FINAL:
    return shared_bytes(x, t, row, PARTIAL, 0, found, 0);
  case RESULT:
    return shared_bytes(x, t, row, RAW, x->floor[x->hub[row]], found, shared_bytes(x, t, row, FINAL, 0, found, 0));
  default:
    return 0;
  }
}

static int waits_on(const struct exchange_rows *x, const struct row_index *t, int64_t row, int64_t on)
{
  static const uint8_t needs[KINDS][KINDS] = {[PARTIAL] = {[RAW] = 1}, [FINAL] = {[PARTIAL] = 1},
                                              [RESULT] = {[RAW] = 1, [FINAL] = 1}};
  int64_t floor = x->kind[row] == RESULT && x->kind[on] == RAW ? x->floor[x->hub[row]] : 0;
  int64_t low = planning_max(x->start[row], floor);
  if (x->hub[row] == x->hub[on] && needs[x->kind[row]][x->kind[on]] && x->stop[row] > low && x->stop[on] > low
      && x->start[on] < x->stop[row])
    return 1;
  for (int64_t i = t->held[row]; i < t->held[row + 1]; i++)
    if (x->held_on[t->holds[i]] == on && x->key[on] < x->key[row])
      return 1;
  return 0;
}

int places_by_key(int64_t count, const int64_t *key, int64_t *order)
{
  int64_t *other = planning_zeroed(count, sizeof *other), *from = order, *to = other, least = INT64_MAX, most = 0;
  if (!other)
    return PLANNING_NO_MEMORY;
  for (int64_t i = 0; i < count; i++) {
    order[i] = i;
    least = lesser(least, key[i]);
    most = planning_max(most, key[i]);
  }
  for (int shift = 0; count && shift < 63 && (uint64_t)(most - least) >> shift; shift += 8) {
    int64_t at[257] = {0};
    for (int64_t i = 0; i < count; i++)
      at[((key[from[i]] - least) >> shift & 255) + 1]++;
    for (int i = 0; i < 256; i++)
      at[i + 1] += at[i];
    for (int64_t i = 0; i < count; i++)
      to[at[(key[from[i]] - least) >> shift & 255]++] = from[i];
    int64_t *was = from;
    from = to;
    to = was;
  }
  for (int64_t i = 0; from != order && i < count; i++)
    order[i] = from[i];
  free(other);
  return PLANNING_DONE;
}

/* tops (rows, most), top (rows): the latest of what each row waits for by itself, and their key. found: room for rows. */
static void due(const struct exchange_rows *x, const struct row_index *t, int64_t *found, int64_t *tops, int64_t *top)
{
  for (int64_t kind = 0; kind < KINDS; kind++) /* later kinds wait for earlier ones */
    for (int64_t g = kind; g < KINDS * x->ranks; g += KINDS)
      for (int64_t i = t->of[g]; i < t->of[g + 1]; i++) {
        int64_t row = t->row[i], count = waits_for(x, t, row, found), key = -1, kept = 0;
        for (int64_t j = 0; j < count; j++)
          key = planning_max(key, x->key[found[j]]);
        for (int64_t j = 0; j < count && kept < x->most; j++)
          if (x->key[found[j]] == key)
            tops[row * x->most + kept++] = found[j];
        if (kept < x->most)
          tops[row * x->most + kept] = -1;
        top[row] = key;
        x->ptr[row + 1] = count;
        x->key[row] = planning_max(x->key[row], key + 1);
      }
  for (int64_t row = 0; x->held && row < x->rows; row++)
    for (int64_t i = t->held[row]; i < t->held[row + 1]; i++) {
      int64_t on = x->held_on[t->holds[i]], *mine = tops + row * x->most, kept = 0;
      if (x->key[on] >= x->key[row])
        continue;
      x->ptr[row + 1]++;
      if (x->key[on] > top[row]) {
        top[row] = x->key[on];
        if (x->most)
          mine[0] = -1;
      }
      while (kept < x->most && mine[kept] >= 0 && mine[kept] != on)
        kept++;
      if (x->key[on] == top[row] && kept < x->most && mine[kept] < 0) {
        mine[kept] = on;
        if (kept + 1 < x->most)
          mine[kept + 1] = -1;
      }
    }
}

/* before (NICs, most), many (NICs): the latest dependencies of earlier rows. */
static void follow(const struct exchange_rows *x, const struct row_index *t, const int64_t *tops, const int64_t *top,
                   int64_t *before, int64_t *many)
{
  for (int64_t i = 0; i < x->rows; i++) {
    int64_t row = x->order[i], nic = x->nic[row], extra = 0, kept = 0;
    int64_t *earlier = before + nic * x->most, *more = x->extra + row * x->most;
    const int64_t *own = tops + row * x->most;
    for (int64_t j = 0; j < many[nic]; j++)
      if (x->kind[row] != FINAL && !waits_on(x, t, row, earlier[j]))
        more[extra++] = earlier[j];
    x->ptr[row + 1] += extra;
    for (; extra < x->most; extra++)
      more[extra] = -1;
    if (top[row] < 0 || (many[nic] > 0 && top[row] < x->key[earlier[0]]))
      continue;
    if (many[nic] == 0 || top[row] > x->key[earlier[0]])
      many[nic] = 0;
    while (kept < x->most && own[kept] >= 0)
      kept++;
    int64_t all = kept; /* own ones first, then those that are no own ones */
    int64_t *latest = x->latest;
    for (int64_t j = 0; j < kept; j++)
      latest[j] = own[j];
    for (int64_t j = 0; j < many[nic] && all < x->most; j++)
      if (!among(earlier[j], latest, all))
        latest[all++] = earlier[j];
    for (int64_t j = 0; j < all; j++)
      earlier[j] = latest[j];
    many[nic] = all;
  }
}

int planning_due(const struct exchange_rows *x)
{
  struct row_index t = {0};
  int code = index_rows(x, &t);
  int64_t *found = NULL, *tops = NULL, *top = NULL, *before = NULL, *many = NULL;
  if (!code) {
    found = planning_zeroed(x->rows, sizeof *found);
    tops = planning_zeroed(x->rows * x->most, sizeof *tops);
    top = planning_zeroed(x->rows, sizeof *top);
    before = planning_zeroed(x->nics * x->most, sizeof *before);
    many = planning_zeroed(x->nics, sizeof *many);
    code = found && tops && top && before && many ? PLANNING_DONE : PLANNING_NO_MEMORY;
  }
  if (!code) {
    due(x, &t, found, tops, top);
    code = places_by_key(x->rows, x->key, x->order);
  }
  if (!code) {
    follow(x, &t, tops, top, before, many);
    x->ptr[0] = 0; /* how many each row waits for, by time, added up; `top` has no more use */
    for (int64_t i = 0; i < x->rows; i++)
      top[i] = x->ptr[x->order[i] + 1];
    for (int64_t i = 0; i < x->rows; i++)
      x->ptr[i + 1] = x->ptr[i] + top[i];
  }
  free(found);
  free(tops);
  free(top);
  free(before);
  free(many);
  drop_index(&t);
  return code;
}

/* The places of what a row waits for, ascending, to `dep`, which has room for `room`. place (rows); of its hub's rows that
 * are waited for: near (rows) their numbers by time, and `far` the places of these. set: a bit of each, 0. */
static int write_waits(const struct exchange_rows *x, const struct row_index *t, int64_t row, const int64_t *place,
                       const int64_t *near, const int64_t *far, uint64_t *set, int64_t *found, int64_t *dep,
                       int64_t room)
{
  int64_t count = waits_for(x, t, row, found), first = INT64_MAX, last = -1, some = 0, done = 0, written = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t bit = near[found[i]];
    set[bit >> 6] |= UINT64_C(1) << (bit & 63);
    first = lesser(first, bit >> 6);
    last = planning_max(last, bit >> 6);
  }
  for (int64_t i = t->held[row]; i < t->held[row + 1]; i++)
    if (x->key[x->held_on[t->holds[i]]] < x->key[row])
      found[some++] = place[x->held_on[t->holds[i]]];
  for (int64_t i = 0; i < x->most && x->extra[row * x->most + i] >= 0; i++)
    found[some++] = place[x->extra[row * x->most + i]];
  for (int64_t i = 1; i < some; i++) {
    int64_t at = i, one = found[i];
    for (; at > 0 && found[at - 1] > one; at--)
      found[at] = found[at - 1];
    found[at] = one;
  }
  int fits = count + some == room;
  for (int64_t word = first; word <= last; word++)
    for (uint64_t left = set[word]; set[word] = 0, left; left &= left - 1) {
      int64_t one = far[64 * word + __builtin_ctzll(left)];
      while (fits && done < some && found[done] < one)
        dep[written++] = found[done++];
      if (fits)
        dep[written++] = one;
    }
  while (fits && done < some)
    dep[written++] = found[done++];
  return fits ? PLANNING_DONE : PLANNING_BAD_INDEX;
}

int planning_waits(const struct exchange_rows *x)
{
  struct row_index t = {0};
  int code = index_rows(x, &t);
  int64_t *found = NULL, *place = NULL, *near = NULL, *far = NULL, *at = NULL;
  uint64_t *set = NULL;
  if (!code && (x->ptr[0] != 0 || x->ptr[x->rows] != x->waits || x->most > INT32_MAX))
    code = PLANNING_BAD_INDEX;
  for (int64_t i = 0; !code && i < x->rows; i++)
    if (x->order[i] < 0 || x->order[i] >= x->rows || x->ptr[i] > x->ptr[i + 1])
      code = PLANNING_BAD_INDEX;
  for (int64_t i = 0; !code && i < x->rows * x->most; i++)
    if (x->extra[i] < -1 || x->extra[i] >= x->rows)
      code = PLANNING_BAD_INDEX;
  if (!code) {
    found = planning_zeroed(x->rows + x->most + x->held, sizeof *found);
    place = planning_zeroed(x->rows, sizeof *place);
    near = planning_zeroed(x->rows, sizeof *near);
    far = planning_zeroed(x->rows, sizeof *far);
    at = planning_zeroed(x->ranks, sizeof *at);
    set = planning_zeroed(x->rows / 64 + 1, sizeof *set);
    code = found && place && near && far && at && set ? PLANNING_DONE : PLANNING_NO_MEMORY;
  }
  for (int64_t i = 0; !code && i < x->rows; i++) {
    int64_t row = x->order[i], hub = x->hub[row];
    place[row] = i;
    if (x->kind[row] == RESULT)
      continue;
    near[row] = at[hub];
    if (t.of[KINDS * hub] + at[hub] >= t.of[KINDS * hub + RESULT])
      code = PLANNING_BAD_INDEX;
    else
      far[t.of[KINDS * hub] + at[hub]++] = i;
  }
  for (int64_t g = 0; !code && g < KINDS * x->ranks; g++)
    for (int64_t i = t.of[g]; !code && i < t.of[g + 1]; i++) {
      int64_t row = t.row[i], to = place[row];
      code = write_waits(x, &t, row, place, near, far + t.of[g / KINDS * KINDS], set, found, x->dep + x->ptr[to],
                         x->ptr[to + 1] - x->ptr[to]);
    }
  free(found);
  free(place);
  free(near);
  free(far);
  free(at);
  free(set);
  drop_index(&t);
  return code;
}
