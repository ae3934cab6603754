/* plan_fuzz PLAN SEED ROUNDS: reads every beginning of the file, then ROUNDS damaged copies of it, each from an allocation
 * of just its length into just as many nodes as it needs, and walks what opens with every accessor, beyond its ends, too.
 * Meant to be compiled with -fsanitize=address,undefined. Prints how many opened and how many did not. */
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

static void take(optcc_text text) {
  char *name = (char *)malloc(6);
  use((int64_t)optcc_copy(text, name, 6));
  use((int64_t)optcc_copy(text, NULL, 0));
  use((int64_t)strlen(name));
  free(name);
}

static void walk(const optcc_plan *plan) {
  int32_t i, j, k;
  int64_t row, begin, end;
  take(plan->id);
  take(plan->family);
  for (i = -1; i <= plan->servers; i++) {
    optcc_server server = optcc_server_at(plan, i);
    take(server.name);
    for (j = -1; j <= server.nics; j++) {
      optcc_nic nic = optcc_nic_at(plan, &server, j);
      take(nic.name);
      use((int64_t)(nic.out.top ^ nic.in.bottom));
    }
  }
  for (i = -1; i <= plan->ranks; i++) take(optcc_rank_at(plan, i).name);
  for (i = -1; i <= plan->ports; i++) take(optcc_port_at(plan, i).name);
  for (i = -1; i <= plan->links; i++) take(optcc_link_at(plan, i).name);
  for (i = -1; i <= plan->routes; i++) {
    optcc_route route = optcc_route_at(plan, i);
    use(optcc_route_between(plan, route.dst, route.src));
    for (j = -1; j <= route.lanes; j++) {
      optcc_lane lane = optcc_lane_at(plan, &route, j);
      take(lane.share.text);
      for (k = -1; k <= lane.links; k++) use(optcc_lane_link(plan, &lane, k));
      use(optcc_split(plan, &route, 8, j, &begin, &end));
    }
  }
  for (i = -1; i <= plan->channels; i++) {
    optcc_channel channel = optcc_channel_at(plan, i);
    for (j = -1; j <= channel.members; j++) use(optcc_member(plan, &channel, j) ^ optcc_leaf(plan, &channel, j));
    for (j = -1; j <= channel.arcs; j++) use(optcc_up(plan, &channel, j) ^ optcc_down(plan, &channel, j));
    for (j = -1; j <= channel.segments; j++) {
      optcc_segment segment = optcc_segment_at(plan, &channel, j);
      for (k = -1; k <= channel.sections; k++) {
        use(optcc_section(plan, &segment, k, &begin, &end) ^ optcc_owner(plan, &channel, k) ^ optcc_via(plan, &channel, k));
        if (begin < 0 || end < begin || end > plan->nbytes) abort();
      }
    }
  }
  for (row = -1; row <= plan->transfers; row++) {
    optcc_transfer move = optcc_transfer_at(plan, row);
    optcc_route route = optcc_route_at(plan, move.route);
    if (move.src >= plan->ranks || move.offset < 0 || move.offset + move.length > plan->nbytes) abort();
    for (k = -1; k <= move.deps; k++) use(optcc_dep(plan, &move, k));
    for (j = -1; j <= route.lanes; j++) use(optcc_split(plan, &route, move.length, j, &begin, &end) ^ begin ^ end);
  }
  for (row = 0; row < plan->transfers; row++) row = optcc_next_of_rank(plan, 0, row);
}

static long opened, refused;

static void attempt(const char *bytes, size_t length) {
  char *text = (char *)malloc(length ? length : 1);
  optcc_node *nodes, few[1];
  optcc_error error;
  optcc_plan plan;
  size_t room;
  if (!text) abort();
  if (length) memcpy(text, bytes, length);
  room = optcc_plan_room(text, length, &error);
  if (!room != (error.code != OPTCC_OK)) abort();
  nodes = (optcc_node *)malloc((room ? room : 1) * sizeof *nodes);
  if (!nodes) abort();
  if (optcc_plan_open(&plan, text, length, nodes, room, &error)) {
    opened++;
    walk(&plan);
    if (optcc_plan_open(&plan, text, length, few, 1, &error) || error.code != OPTCC_NO_ROOM) abort();
  } else {
    refused++;
    if (error.code == OPTCC_OK || !error.what || error.at > length) abort();
  }
  free(nodes);
  free(text);
}

int main(int argc, char **argv) {
  static const char *const numbers[] = {"0", "-1", "1", "8", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
                                        "99999999999999999999999", "1.5", "\"\"", "[]", "null", "{\"a\":1,\"a\":1}"};
  static char original[1 << 20], copy[(1 << 20) + 64];
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
    size_t size = length, at = below((uint32_t)length), much;
    memcpy(copy, original, length);
    switch (below(4)) {
      case 0: /* other bytes */
        copy[at] = (char)below(256);
        break;
      case 1: /* a piece is missing */
        much = below(32);
        if (much > length - at) much = length - at;
        memmove(copy + at, copy + at + much, length - at - much);
        size = length - much;
        break;
      default: /* another number, of any kind */
        while (at < length && (original[at] < '0' || original[at] > '9')) at++;
        for (much = 0; at + much < length && original[at + much] >= '0' && original[at + much] <= '9';) much++;
        {
          const char *put = numbers[below(sizeof numbers / sizeof *numbers)];
          memcpy(copy + at, put, strlen(put));
          memcpy(copy + at + strlen(put), original + at + much, length - at - much);
          size = length - much + strlen(put);
        }
    }
    attempt(copy, size);
  }
  printf("opened %ld refused %ld\n", opened, refused);
  return 0;
}
