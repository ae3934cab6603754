/* plan_fuzz PLAN SEED ROUNDS: reads every beginning of the file, then ROUNDS damaged copies of it, each from an allocation
 * of just its length, and walks what opens with every column. Meant to be compiled with -fsanitize=address,undefined.
 * Prints how many opened and how many did not. */
#include <stdio.h>
#include <stdlib.h>

#include "optcc_plan.h"

static uint64_t state;

static uint32_t below(uint32_t bound) { /* xorshift64* (Vigna) */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 2685821657736338717ULL) >> 33) % bound;
}

static volatile int64_t sink;

/* What is read must not be optimised away. Not added up: a damaged file has numbers whose sum does not fit. */
static void use(int64_t value) { sink ^= value; }

static void take(optcc_names names, int32_t count) {
  int32_t i;
  char name[6];
  for (i = 0; i < count; i++) {
    use((int64_t)optcc_name(names, i, name, sizeof name) ^ (int64_t)optcc_name(names, i, NULL, 0));
    if (strlen(name) > 5) abort();
  }
}

static void walk(const optcc_plan *plan) {
  int32_t i;
  int64_t row, k;
  take(plan->rank_name, plan->ranks);
  take(plan->port_name, plan->ports);
  take(plan->link_name, plan->links);
  take(plan->lane_share, plan->lanes);
  for (i = 0; i < plan->ranks; i++) use(plan->rank_server[i]);
  for (i = 0; i < plan->ports; i++) use(plan->port_rank[i] ^ plan->port_rail[i] ^ plan->port_nvlink[i]);
  for (i = 0; i < plan->ports; i++) use(plan->port_out[i] > plan->port_in[i]);
  for (i = 0; i < plan->links; i++) use(plan->link_rate[i] > 1);
  for (i = 0; i < plan->routes; i++)
    for (k = plan->lane_ptr[i]; k < plan->lane_ptr[i + 1]; k++) {
      int64_t link;
      use(plan->port_rank[plan->lane_out[k]] ^ plan->port_rank[plan->lane_into[k]]);
      for (link = plan->lane_link_ptr[k]; link < plan->lane_link_ptr[k + 1]; link++)
        use(plan->link_rate[plan->lane_link[link]] > 1);
    }
  for (row = 0; row < plan->transfers; row++) {
    int32_t route = plan->route[row];
    int64_t lanes = plan->lane_ptr[route + 1] - plan->lane_ptr[route];
    if (plan->offset[row] < 0 || plan->length[row] < 1 || plan->offset[row] + plan->length[row] > plan->nbytes) abort();
    use(plan->reduce[row] ^ plan->stage[row] ^ plan->segment[row]);
    for (k = plan->dep_ptr[row]; k < plan->dep_ptr[row + 1]; k++)
      if (plan->dep_idx[k] < 0 || plan->dep_idx[k] >= row) abort();
    for (k = 0; k < lanes; k++)
      if (plan->cut[plan->cut_at[row] + k] > plan->cut[plan->cut_at[row] + k + 1]) abort();
  }
  for (row = 0; row < plan->transfers; row++) row = optcc_next_of_rank(plan, 0, row);
}

static long opened, refused;

static void attempt(const char *bytes, size_t length) {
  char *data = (char *)malloc(length ? length : 1);
  optcc_error error;
  optcc_plan plan;
  if (!data) abort();
  if (length) memcpy(data, bytes, length);
  if (optcc_plan_open(&plan, data, length, &error)) {
    opened++;
    walk(&plan);
  } else {
    refused++;
    if (error.code == OPTCC_OK || !error.what || error.at > length) abort();
  }
  free(data);
}

int main(int argc, char **argv) {
  static const uint64_t numbers[] = {0, 1, 2, 8, 127, 255, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, INT64_MAX, UINT64_MAX};
  static char original[1 << 20], copy[1 << 20];
  size_t length, i;
  long round, rounds;
  FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
  if (!file) return 2;
  length = fread(original, 1, sizeof original, file);
  fclose(file);
  state = (uint64_t)strtoull(argv[2], NULL, 10) * 2 + 1;
  rounds = strtol(argv[3], NULL, 10);
  for (i = 0; i < length; i += 1 + length / 2000) attempt(original, i);
  attempt(original, length);
  for (round = 0; round < rounds; round++) {
    size_t size = length, at = below((uint32_t)length), much = 1u << below(4);
    memcpy(copy, original, length);
    switch (below(4)) {
      case 0: /* another byte */
        copy[at] = (char)below(256);
        break;
      case 1: /* a piece is missing */
        much = below(32);
        if (much > length - at) much = length - at;
        memmove(copy + at, copy + at + much, length - at - much);
        size = length - much;
        break;
      default: /* another number, where one may stand; the last part of the file says where the columns are */
        if (below(2)) at = length - 1 - below(length < 4096 ? (uint32_t)length : 4096);
        at -= at % much;
        if (much > length - at) much = length - at;
        memcpy(copy + at, &numbers[below(sizeof numbers / sizeof *numbers)], much);
    }
    attempt(copy, size);
  }
  printf("opened %ld refused %ld\n", opened, refused);
  return 0;
}
