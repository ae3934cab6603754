/* Prints what a plan says: cc -std=c99 -I"$(optcc schema --include)" walk_plan.c -o walk_plan; ./walk_plan plan.json [RANK]
 *
 * Of a plan with choices only, its cluster. With --lowered layout: ports, routes and NIC shares, rings in order, owners,
 * offsets. With --lowered transfers and a RANK: what that rank sends and receives, in order, by which NICs, and after what.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "optcc_plan.h"

static const char *const ORDERINGS[] = {"plain", "leaf-first", "via-leaf", "leaf-last"};

static void put(optcc_text text) {
  char name[4 * 520]; /* names of a port: SERVER/NIC, 255 characters of up to 4 bytes each */
  optcc_copy(text, name, sizeof name);
  fputs(name, stdout);
}

static void show_head(const optcc_plan *plan) {
  int32_t i, j;
  printf("plan ");
  put(plan->id);
  printf(" format %d.%d family ", (int)plan->major, (int)plan->minor);
  put(plan->family);
  printf(" bytes %" PRId64 "\n", plan->nbytes);
  for (i = 0; i < plan->servers; i++) {
    optcc_server server = optcc_server_at(plan, i);
    printf("server %d ", (int)i);
    put(server.name);
    printf(" gpus %d\n", (int)server.gpus);
    for (j = 0; j < server.nics; j++) {
      optcc_nic nic = optcc_nic_at(plan, &server, j);
      printf("  nic ");
      put(nic.name);
      printf(" out ");
      put(nic.out.text);
      printf(" in ");
      put(nic.in.text);
      printf("\n");
    }
  }
}

static void show_routes(const optcc_plan *plan) {
  int32_t i, j, k;
  for (i = 0; i < plan->ranks; i++) {
    optcc_rank rank = optcc_rank_at(plan, i);
    printf("rank %d ", (int)i);
    put(rank.name);
    printf(" server %d\n", (int)rank.server);
  }
  for (i = 0; i < plan->ports; i++) {
    optcc_port port = optcc_port_at(plan, i);
    printf("port %d ", (int)i);
    put(port.name);
    printf(" rank %d rail %d nvlink %d\n", (int)port.rank, (int)port.rail, port.nvlink);
  }
  for (i = 0; i < plan->routes; i++) {
    optcc_route route = optcc_route_at(plan, i);
    printf("route %d from %d to %d\n", (int)i, (int)route.src, (int)route.dst);
    for (j = 0; j < route.lanes; j++) {
      optcc_lane lane = optcc_lane_at(plan, &route, j);
      printf("  lane port %d to port %d share ", (int)lane.out, (int)lane.into);
      put(lane.share.text);
      for (k = 0; k < lane.links; k++) printf(" over %d", (int)optcc_lane_link(plan, &lane, k));
      printf("\n");
    }
  }
}

static void show_channels(const optcc_plan *plan) {
  int32_t c, i, s;
  int64_t begin, end;
  for (c = 0; c < plan->channels; c++) {
    optcc_channel channel = optcc_channel_at(plan, c);
    if (channel.kind == OPTCC_TREE) {
      printf("channel %d tree root %d up", (int)c, (int)channel.root);
      for (i = 0; i < channel.arcs; i++) printf(" %d", (int)optcc_up(plan, &channel, i));
      printf(" down");
      for (i = 0; i < channel.arcs; i++) printf(" %d", (int)optcc_down(plan, &channel, i));
    } else {
      printf("channel %d ring", (int)c);
      for (i = 0; i < channel.members; i++) printf(" %d", (int)optcc_member(plan, &channel, i));
      printf(" leaves");
      for (i = 0; i < channel.leaves; i++) printf(" %d", (int)optcc_leaf(plan, &channel, i));
    }
    printf("\n");
    for (i = 0; i < channel.segments; i++) {
      optcc_segment segment = optcc_segment_at(plan, &channel, i);
      printf("  segment %d", (int)segment.segment);
      if (channel.kind == OPTCC_RING) printf(" %s", ORDERINGS[segment.ordering]);
      printf("\n");
      for (s = 0; s < channel.sections; s++) {
        if (!optcc_section(plan, &segment, s, &begin, &end) || begin == end) continue;
        printf("    section %d bytes %" PRId64 " to %" PRId64 " owner %d", (int)s, begin, end,
               (int)optcc_owner(plan, &channel, s));
        if (channel.leaves) printf(" via %d", (int)optcc_via(plan, &channel, s));
        printf("\n");
      }
    }
  }
}

static void show_rank(const optcc_plan *plan, int32_t rank) {
  int64_t row, k, begin, end;
  int32_t j;
  for (row = optcc_next_of_rank(plan, rank, 0); row < plan->transfers; row = optcc_next_of_rank(plan, rank, row + 1)) {
    optcc_transfer move = optcc_transfer_at(plan, row);
    optcc_route route = optcc_route_at(plan, move.route);
    if (move.src == rank) printf("%" PRId64 " send to %d", row, (int)move.dst);
    else printf("%" PRId64 " receive from %d", row, (int)move.src);
    printf(" %s bytes %" PRId64 " to %" PRId64 " stage %d segment %d", move.reduce ? "add" : "copy", move.offset,
           move.offset + move.length, move.stage, (int)move.segment);
    for (k = 0; move.src == rank && k < move.deps; k++) printf(" after %" PRId64, optcc_dep(plan, &move, k));
    printf("\n");
    for (j = 0; j < route.lanes; j++) {
      optcc_lane lane = optcc_lane_at(plan, &route, j);
      if (optcc_split(plan, &route, move.length, j, &begin, &end) && begin < end)
        printf("  port %d to port %d bytes %" PRId64 " to %" PRId64 "\n", (int)lane.out, (int)lane.into,
               move.offset + begin, move.offset + end);
    }
  }
}

static char *read_all(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  char *text = NULL, *more;
  size_t room = 0, got;
  *length = 0;
  if (!file) return NULL;
  do {
    more = (char *)realloc(text, room += 65536);
    if (!more) break;
    text = more;
    got = fread(text + *length, 1, room - *length, file);
    *length += got;
  } while (*length == room);
  if (!more || ferror(file)) {
    free(text);
    text = NULL;
  }
  fclose(file);
  return text;
}

/* The rank that `text` names, or -1 with a complaint. */
static int32_t rank_of(const optcc_plan *plan, const char *text) {
  char *end;
  long rank = strtol(text, &end, 10);
  if (plan->depth < OPTCC_TRANSFERS) {
    fprintf(stderr, "walk_plan: a RANK is shown of a plan made with --lowered transfers\n");
    return -1;
  }
  if (end == text || *end || rank < 0 || rank >= plan->ranks) {
    fprintf(stderr, "walk_plan: RANK is a number from 0 to %d, not %s\n", (int)plan->ranks - 1, text);
    return -1;
  }
  return (int32_t)rank;
}

int main(int argc, char **argv) {
  size_t length, room;
  int32_t rank = 0;
  optcc_error error;
  optcc_plan plan;
  optcc_node *nodes;
  char *text;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: walk_plan plan.json [RANK]\n");
    return 2;
  }
  text = read_all(argv[1], &length);
  if (!text) {
    fprintf(stderr, "walk_plan: %s cannot be read\n", argv[1]);
    return 2;
  }
  room = optcc_plan_room(text, length, &error);
  nodes = room ? (optcc_node *)malloc(room * sizeof *nodes) : NULL;
  if (!room || !nodes || !optcc_plan_open(&plan, text, length, nodes, room, &error)) {
    fprintf(stderr, "walk_plan: %s: byte %lu: %s (error %d)\n", argv[1], (unsigned long)error.at,
            room && !nodes ? "no memory" : error.what, error.code);
    free(nodes);
    free(text);
    return 1;
  }
  if (argc == 3 && (rank = rank_of(&plan, argv[2])) < 0) {
    free(nodes);
    free(text);
    return 2;
  }
  show_head(&plan);
  if (plan.depth >= OPTCC_LAYOUT) {
    show_routes(&plan);
    show_channels(&plan);
  }
  if (argc == 3) show_rank(&plan, rank);
  free(nodes);
  free(text);
  return 0;
}
