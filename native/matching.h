/* Matchings and sorting, for the files of this folder that need them inside. */
#ifndef OPTCC_MATCHING_H
#define OPTCC_MATCHING_H

#include "planning.h"

/* What a matching works with; made once for many of them. Columns that have been reached last have `passed` infinite, all
 * others 0; `left` has these others in the order in which they are looked at, `place` where each is in it. */
struct matching {
  int64_t *of_row, *of_column, *before, *left, *place;
  double *cost, *price, *reach, *gain, *passed;
  uint8_t *seen_row;
};

/* Room for matchings of up to so many rows and columns. */
int matching_reserve(struct matching *m, int64_t rows, int64_t columns);

/* As `planning_assign`. */
int matching_find(struct matching *m, int64_t rows, int64_t columns, const double *worth, int64_t *column_of);

void matching_release(struct matching *m);

/* order (count): the places of keys, by key, equal ones as given. */
int places_by_key(int64_t count, const int64_t *key, int64_t *order);

#endif
