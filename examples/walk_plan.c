/* Prints what a plan says: cc -std=c99 -I"$(optcc schema --include)" walk_plan.c -o walk_plan; ./walk_plan FILE.plan [RANK]
 *
 * Its ranks, ports, routes and NIC shares; of a RANK what it sends and receives, in order, by which NICs, and after what.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "optcc_plan.h"

static void put(optcc_names names, int32_t i) {
  char name[4096];
  optcc_name(names, i, name, sizeof name);
  fputs(name, stdout);
}

static void show_tables(const optcc_plan *plan) {
  int32_t i;
  int64_t lane, link;
  printf("plan %s format %d.%d bytes %" PRId64 " transfers %" PRId64 "\n", plan->id, (int)plan->major, (int)plan->minor,
         plan->nbytes, plan->transfers);
  for (i = 0; i < plan->ranks; i++) {
    printf("rank %d ", (int)i);
    put(plan->rank_name, i);
    printf(" server %d\n", (int)plan->rank_server[i]);
  }
  for (i = 0; i < plan->ports; i++) {
    printf("port %d ", (int)i);
    put(plan->port_name, i);
    printf(" rank %d rail %d nvlink %d out %.0f in %.0f\n", (int)plan->port_rank[i], (int)plan->port_rail[i],
           plan->port_nvlink[i], plan->port_out[i], plan->port_in[i]);
  }
  for (i = 0; i < plan->links; i++) {
    printf("link %d ", (int)i);
    put(plan->link_name, i);
    printf(" rate %.0f\n", plan->link_rate[i]);
  }
  for (i = 0; i < plan->routes; i++) {
    printf("route %d from %d to %d\n", (int)i, (int)plan->route_src[i], (int)plan->route_dst[i]);
    for (lane = plan->lane_ptr[i]; lane < plan->lane_ptr[i + 1]; lane++) {
      printf("  lane port %d to port %d share ", (int)plan->lane_out[lane], (int)plan->lane_into[lane]);
      put(plan->lane_share, (int32_t)lane);
      for (link = plan->lane_link_ptr[lane]; link < plan->lane_link_ptr[lane + 1]; link++)
        printf(" over %d", (int)plan->lane_link[link]);
      printf("\n");
    }
  }
}

static void show_rank(const optcc_plan *plan, int32_t rank) {
  int64_t row, dep, lane;
  for (row = optcc_next_of_rank(plan, rank, 0); row < plan->transfers; row = optcc_next_of_rank(plan, rank, row + 1)) {
    int32_t route = plan->route[row];
    const int64_t *cut = plan->cut + plan->cut_at[row];
    if (plan->route_src[route] == rank) printf("%" PRId64 " send to %d", row, (int)plan->route_dst[route]);
    else printf("%" PRId64 " receive from %d", row, (int)plan->route_src[route]);
    printf(" %s bytes %" PRId64 " to %" PRId64 " stage %d segment %d", plan->reduce[row] ? "add" : "copy",
           plan->offset[row], plan->offset[row] + plan->length[row], plan->stage[row], (int)plan->segment[row]);
    for (dep = plan->dep_ptr[row]; plan->route_src[route] == rank && dep < plan->dep_ptr[row + 1]; dep++)
      printf(" after %d", (int)plan->dep_idx[dep]);
    printf("\n");
    for (lane = plan->lane_ptr[route]; lane < plan->lane_ptr[route + 1]; lane++, cut++)
      if (cut[0] < cut[1])
        printf("  port %d to port %d bytes %" PRId64 " to %" PRId64 "\n", (int)plan->lane_out[lane],
               (int)plan->lane_into[lane], plan->offset[row] + cut[0], plan->offset[row] + cut[1]);
  }
}

static void *read_all(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  char *data = NULL, *more;
  size_t room = 0, got;
  *length = 0;
  if (!file) return NULL;
  do {
    more = (char *)realloc(data, room += 65536);
    if (!more) break;
    data = more;
    got = fread(data + *length, 1, room - *length, file);
    *length += got;
  } while (*length == room);
  if (!more || ferror(file)) {
    free(data);
    data = NULL;
  }
  fclose(file);
  return data;
}

int main(int argc, char **argv) {
  size_t length;
  long rank = 0;
  char *end = NULL;
  int wrong = 0;
  optcc_error error;
  optcc_plan plan;
  void *data;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: walk_plan FILE.plan [RANK]\n");
    return 2;
  }
  data = read_all(argv[1], &length);
  if (!data) {
    fprintf(stderr, "walk_plan: %s cannot be read\n", argv[1]);
    return 2;
  }
  if (!optcc_plan_open(&plan, data, length, &error)) {
    fprintf(stderr, "walk_plan: %s: byte %lu: %s (error %d)\n", argv[1], (unsigned long)error.at, error.what, error.code);
    free(data);
    return 1;
  }
  if (argc == 3) {
    rank = strtol(argv[2], &end, 10);
    wrong = end == argv[2] || *end || rank < 0 || rank >= plan.ranks;
  }
  if (wrong) {
    fprintf(stderr, "walk_plan: RANK is a number from 0 to %d, not %s\n", (int)plan.ranks - 1, argv[2]);
  } else {
    show_tables(&plan);
    if (argc == 3) show_rank(&plan, (int32_t)rank);
  }
  free(data);
  return wrong ? 2 : 0;
}
