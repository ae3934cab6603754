/* The slowest parts of planning direct exchange: matchings of greatest worth, and dependencies of transfers. */
#include "planning.h"

#include <math.h>

int32_t planning_abi(void)
{
  return PLANNING_ABI;
}

/* What a matching works with; made once for many of them. */
struct matching {
  int64_t *of_row, *of_column, *before, *left;
  double *cost, *price, *reach, *gain;
  uint8_t *seen_row, *seen_column;
};

static void release(struct matching *m)
{
  void *all[] = {m->of_row, m->of_column, m->before, m->left, m->cost, m->price, m->reach, m->gain, m->seen_row,
                 m->seen_column};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
}

/* Room for matchings of up to so many rows and columns. */
static int reserve(struct matching *m, int64_t rows, int64_t columns)
{
  if (rows < 0 || columns < 0 || (columns > 0 && rows > INT64_MAX / columns))
    return PLANNING_BAD_INDEX;
  int64_t most = planning_max(rows, columns);
  *m = (struct matching){
    .of_row = planning_zeroed(most, sizeof(int64_t)),
    .of_column = planning_zeroed(most, sizeof(int64_t)),
    .before = planning_zeroed(most, sizeof(int64_t)),
    .left = planning_zeroed(most, sizeof(int64_t)),
    .cost = planning_zeroed(rows * columns, sizeof(double)),
    .price = planning_zeroed(most, sizeof(double)),
    .reach = planning_zeroed(most, sizeof(double)),
    .gain = planning_zeroed(most, sizeof(double)),
    .seen_row = planning_zeroed(most, 1),
    .seen_column = planning_zeroed(most, 1),
  };
  if (m->of_row && m->of_column && m->before && m->left && m->cost && m->price && m->reach && m->gain && m->seen_row
      && m->seen_column)
    return PLANNING_DONE;
  return PLANNING_NO_MEMORY;
}

/* Shortest augmenting paths (Crouse 2016, On implementing 2D rectangular assignment algorithms), row by row, or column by
 * column if these are fewer. */
static int match(struct matching *m, int64_t given_rows, int64_t given_columns, const double *worth, int64_t *column_of)
{
  int wide = given_rows <= given_columns;
  int64_t rows = wide ? given_rows : given_columns, columns = wide ? given_columns : given_rows;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      m->cost[r * columns + c] = -(wide ? worth[r * columns + c] : worth[c * rows + r]);
  for (int64_t r = 0; r < rows; r++) {
    m->of_row[r] = -1;
    m->gain[r] = 0;
  }
  for (int64_t c = 0; c < columns; c++) {
    m->of_column[c] = m->before[c] = -1;
    m->price[c] = 0;
  }
  for (int64_t current = 0; current < rows; current++) {
    for (int64_t c = 0; c < columns; c++) {
      m->left[c] = columns - c - 1;
      m->reach[c] = INFINITY;
      m->seen_column[c] = 0;
    }
    for (int64_t r = 0; r < rows; r++)
      m->seen_row[r] = 0;
    int64_t count = columns, row = current, column, end = -1;
    double least = 0;
    while (end < 0) {
      m->seen_row[row] = 1;
      double nearest = INFINITY;
      int64_t at = -1;
      for (int64_t place = 0; place < count; place++) {
        column = m->left[place];
        double far = least + m->cost[row * columns + column] - m->gain[row] - m->price[column];
        if (far < m->reach[column]) {
          m->before[column] = row;
          m->reach[column] = far;
        }
        if (m->reach[column] < nearest || (m->reach[column] == nearest && m->of_column[column] < 0)) {
          nearest = m->reach[column];
          at = place;
        }
      }
      if (at < 0) /* worth that is no number */
        return PLANNING_BAD_INDEX;
      least = nearest;
      column = m->left[at];
      if (m->of_column[column] < 0)
        end = column;
      else
        row = m->of_column[column];
      m->seen_column[column] = 1;
      count--;
      m->left[at] = m->left[count];
    }
    m->gain[current] += least;
    for (int64_t r = 0; r < rows; r++)
      if (m->seen_row[r] && r != current)
        m->gain[r] += least - m->reach[m->of_row[r]];
    for (int64_t c = 0; c < columns; c++)
      if (m->seen_column[c])
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
  int code = reserve(&m, rows, columns);
  if (!code)
    code = match(&m, rows, columns, worth, column_of);
  release(&m);
  return code;
}

/* ---- a step ---- */

static int64_t floor_divided(int64_t a, int64_t b)
{
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* `fills`: the amount that pair p can send in the step, 0 if it is ahead of an even schedule by more than a step. The
 * worth is that, plus the pair's delay relative to its total, scaled by the part of the step that it fills. */
static int64_t worth_of(const struct exchange_step *x, int64_t p, int64_t *fills)
{
  int64_t size = x->end - x->begin, room = size - x->cost;
  int64_t behind = floor_divided(x->end * x->needs[p] - x->served[p] * x->one, planning_max(x->needs[p], 1));
  int64_t much = behind >= -size ? (room < x->limit[p] ? room : x->limit[p]) : 0;
  behind += x->late[p];
  *fills = much;
  if (much <= 0)
    return -x->one;
  return (behind > 0 ? behind * much / size : behind) + much;
}

struct exchange {
  struct matching m;
  int64_t *worth, *fills, *rows, *columns, *taken;
  double *values;
};

static int exchange(struct exchange *e, const struct exchange_step *x, int64_t *found)
{
  int64_t ranks = x->ranks;
  for (int64_t p = 0; p < ranks * ranks; p++)
    e->worth[p] = worth_of(x, p, &e->fills[p]);
  for (int64_t rail = 0; rail < x->rails; rail++) {
    int64_t rows = 0, columns = 0;
    for (int64_t r = 0; r < ranks; r++) {
      if (x->senders[rail * ranks + r])
        e->rows[rows++] = r;
      if (x->receivers[rail * ranks + r])
        e->columns[columns++] = r;
    }
    for (int64_t a = 0; a < rows; a++)
      for (int64_t z = 0; z < columns; z++) {
        int64_t p = e->rows[a] * ranks + e->columns[z];
        e->values[a * columns + z] = (double)(e->worth[p] * x->tie + x->ties[p]);
      }
    int code = match(&e->m, rows, columns, e->values, e->taken);
    if (code)
      return code;
    for (int64_t a = 0; a < rows; a++) {
      if (e->taken[a] < 0)
        continue;
      int64_t i = e->rows[a], k = e->columns[e->taken[a]], p = i * ranks + k, much = e->fills[p];
      if (much <= 0)
        continue;
      int64_t *row = x->found + 4 * (*found)++;
      row[0] = rail;
      row[1] = i;
      row[2] = k;
      row[3] = much;
      x->served[p] += much;
      x->limit[p] -= much;
      e->worth[p] = worth_of(x, p, &e->fills[p]);
    }
  }
  return PLANNING_DONE;
}

int planning_exchange(const struct exchange_step *x, int64_t *count)
{
  *count = 0;
  if (x->rails < 0 || x->ranks < 0)
    return PLANNING_BAD_INDEX;
  int64_t ranks = x->ranks;
  struct exchange e = {{0}, NULL, NULL, NULL, NULL, NULL, NULL};
  int code = reserve(&e.m, ranks, ranks);
  if (!code) {
    e.worth = planning_zeroed(ranks * ranks, sizeof *e.worth);
    e.fills = planning_zeroed(ranks * ranks, sizeof *e.fills);
    e.values = planning_zeroed(ranks * ranks, sizeof *e.values);
    e.rows = planning_zeroed(ranks, sizeof *e.rows);
    e.columns = planning_zeroed(ranks, sizeof *e.columns);
    e.taken = planning_zeroed(ranks, sizeof *e.taken);
    if (!e.worth || !e.fills || !e.values || !e.rows || !e.columns || !e.taken)
      code = PLANNING_NO_MEMORY;
  }
  if (!code)
    code = exchange(&e, x, count);
  release(&e.m);
  free(e.worth);
  free(e.fills);
  free(e.values);
  free(e.rows);
  free(e.columns);
  free(e.taken);
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

static int64_t lesser(int64_t a, int64_t b)
{
  return b < a ? b : a;
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

int planning_group(int64_t count, const int64_t *numbers, int64_t groups, int64_t *ptr, int64_t *places)
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

/* before (NICs, most), many (NICs): the latest dependencies of earlier rows; latest (most): room for new ones. */
static void order_rows(const struct exchange_rows *x, int64_t *before, int64_t *many, int64_t *latest, int64_t *count)
{
  for (int64_t i = 0; i < x->ordered; i++) {
    int64_t row = x->order[i], nic = x->nics[row], owned = x->ptr[row + 1] - x->ptr[row];
    const int64_t *own = x->on + x->ptr[row];
    int64_t *earlier = before + nic * x->most;
    for (int64_t j = 0; j < many[nic]; j++)
      if (!x->free[row] && !among(earlier[j], own, owned)) {
        x->pairs[2 * *count] = row;
        x->pairs[2 * (*count)++ + 1] = earlier[j];
      }
    int64_t key = -1, kept = 0;
    for (int64_t j = 0; j < owned; j++)
      key = planning_max(key, x->keys[own[j]]);
    if (key < 0 || (many[nic] > 0 && key < x->keys[earlier[0]]))
      continue;
    for (int64_t j = 0; j < owned + many[nic] && kept < x->most; j++) {
      int64_t landing = j < owned ? own[j] : earlier[j - owned];
      if (x->keys[landing] == key && !among(landing, latest, kept))
        latest[kept++] = landing;
    }
    for (int64_t j = 0; j < kept; j++)
      earlier[j] = latest[j];
    many[nic] = kept;
  }
}

int planning_order(const struct exchange_rows *x, int64_t *count)
{
  *count = 0;
  int64_t nics = 0;
  if (x->rows < 0 || x->ordered < 0 || x->most < 0 || x->ptr[0] != 0 || x->ptr[x->rows] != x->waits)
    return PLANNING_BAD_INDEX;
  for (int64_t r = 0; r < x->rows; r++) {
    if (x->nics[r] < 0 || x->nics[r] >= INT32_MAX || x->ptr[r] > x->ptr[r + 1])
      return PLANNING_BAD_INDEX;
    nics = planning_max(nics, x->nics[r] + 1);
  }
  for (int64_t i = 0; i < x->ordered; i++)
    if (x->order[i] < 0 || x->order[i] >= x->rows)
      return PLANNING_BAD_INDEX;
  for (int64_t i = 0; i < x->waits; i++)
    if (x->on[i] < 0 || x->on[i] >= x->rows)
      return PLANNING_BAD_INDEX;
  if (x->most > INT32_MAX)
    return PLANNING_BAD_INDEX;
  int64_t *before = planning_zeroed(nics * x->most, sizeof *before), *many = planning_zeroed(nics, sizeof *many);
  int64_t *latest = planning_zeroed(x->most, sizeof *latest);
  int code = before && many && latest ? PLANNING_DONE : PLANNING_NO_MEMORY;
  if (!code)
    order_rows(x, before, many, latest, count);
  free(before);
  free(many);
  free(latest);
  return code;
}
