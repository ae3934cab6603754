/* optcc_plan.h: reads the plans that optcc writes. C99, also C++; one header, no dependency, no allocation.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   const void *data = mmap(...);                             or malloc and read: at a multiple of 8
 *   if (!optcc_plan_open(&plan, data, length, &error))        error.at is the byte, error.what says what
 *   ... plan.route[row], plan.offset[row], plan.length[row], plan.dep_idx[plan.dep_ptr[row]] ...
 *
 * A plan is a zip of columns as numpy.savez writes it; the plan's pointers lead into the data, which stays where it is.
 * optcc_plan_open checks all of it: indices exist, bytes are inside the buffer, a transfer waits only for earlier ones
 * that land where it starts, lanes carry all of a transfer. What is not checked is that the plan sums every byte, and
 * the id: `optcc verify` does that. docs/plan-format.md says what the columns mean, and the version policy.
 */
#ifndef OPTCC_PLAN_H
#define OPTCC_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OPTCC_PLAN_MAJOR 2
#define OPTCC_PLAN_MINOR 0 /* what is newer is read, too: columns that are not known here are passed over */

enum {
  OPTCC_OK = 0,
  OPTCC_NOT_A_PLAN = 1, /* no zip, no header, another major version; or damaged */
  OPTCC_PACKED = 2,     /* the columns are deflated: unzip the file, and zip -0 what is in it */
  OPTCC_COLUMN = 3,     /* a column is missing, or of another type or length */
  OPTCC_RANGE = 4,      /* a number does not fit the others */
  OPTCC_HOST = 5        /* data is not at a multiple of 8, or this machine is big-endian */
};

typedef struct optcc_error {
  int code;
  size_t at;        /* byte of the data; with OPTCC_RANGE a row may be meant */
  const char *what; /* a column's name, or what is wrong; never NULL after a failure */
} optcc_error;

typedef struct optcc_names { /* texts of `width` bytes each, in UTF-8, filled up with zeros: optcc_name */
  const char *at;
  size_t width;
} optcc_names;

typedef struct optcc_plan {
  int32_t major, minor;
  char id[17];
  int64_t nbytes; /* of the buffer, on every rank */
  int32_t ranks, ports, links, routes, lanes;
  int64_t transfers;
  optcc_names rank_name, port_name, link_name; /* server3, server3/gpu5; SERVER/NIC, SERVER/gpuN/nvlink */
  const int32_t *rank_server;
  const int32_t *port_rank, *port_rail; /* rail -1: reaches every port of its kind */
  const uint8_t *port_nvlink;
  const double *port_out, *port_in, *link_rate; /* bytes per second */
  const int32_t *route_src, *route_dst;         /* ranks */
  const int64_t *lane_ptr;                      /* route r has lanes lane_ptr[r] to lane_ptr[r + 1] - 1 */
  const int32_t *lane_out, *lane_into;          /* ports */
  optcc_names lane_share;                       /* of every transfer, exact: "3/8" */
  const int64_t *lane_link_ptr;                 /* lane l crosses lane_link[lane_link_ptr[l]] ... */
  const int32_t *lane_link;
  const int32_t *route; /* from here on one entry for each transfer */
  const int64_t *offset, *length;
  const uint8_t *reduce; /* 1: add to the receiver's bytes; 0: replace them */
  const uint8_t *stage;
  const int32_t *segment;
  const int64_t *dep_ptr;
  const int32_t *dep_idx; /* row i waits for rows dep_idx[dep_ptr[i]] to dep_idx[dep_ptr[i + 1] - 1] */
  const int64_t *cut_at, *cut; /* its lane j, from 0, carries bytes cut[cut_at[i] + j] to cut[cut_at[i] + j + 1] of it */
} optcc_plan;

/* ---- private ---------------------------------------------------------------------------------------------------- */

typedef struct optcci_column { /* what is wanted of a column, and what is found */
  const char *name, *type;     /* without .npy; as numpy writes it, "S": text */
  const unsigned char *at;
  size_t count, width;
} optcci_column;

static inline int optcci_fail(optcc_error *error, int code, size_t at, const char *what) {
  if (error) {
    error->code = code;
    error->at = at;
    error->what = what;
  }
  return 0;
}

static inline size_t optcci_number(const unsigned char *at, int bytes) {
  size_t value = 0;
  while (bytes--) value = value << 8 | at[bytes];
  return value;
}

/* Whether `text` stands at `*at`, which is then after it. */
static inline int optcci_take(const unsigned char **at, const unsigned char *end, const char *text) {
  size_t size = strlen(text);
  if ((size_t)(end - *at) < size || memcmp(*at, text, size) != 0) return 0;
  *at += size;
  return 1;
}

/* A number of one to ten digits at `*at`. */
static inline int optcci_digits(const unsigned char **at, const unsigned char *end, size_t *value) {
  const unsigned char *from = *at;
  *value = 0;
  while (*at < end && **at >= '0' && **at <= '9' && *at - from < 10) *value = *value * 10 + (size_t)(*(*at)++ - '0');
  return *at > from;
}

/* A column of the type that is wanted from `at` to `end`, as numpy.save writes it. */
static inline int optcci_npy(optcci_column *column, const unsigned char *at, const unsigned char *end) {
  const unsigned char *data;
  if (!optcci_take(&at, end, "\x93NUMPY\x01") || end - at < 3 || *at != 0) return 0;
  if ((size_t)(end - at) < 3 + optcci_number(at + 1, 2)) return 0;
  data = at + 3 + optcci_number(at + 1, 2);
  at += 3;
  if (!optcci_take(&at, data, "{'descr': '")) return 0;
  if (column->type[0] == 'S') {
    if (!optcci_take(&at, data, "|S") || !optcci_digits(&at, data, &column->width) || !column->width) return 0;
  } else {
    if (!optcci_take(&at, data, column->type)) return 0;
    column->width = (size_t)(column->type[2] - '0');
  }
  if (!optcci_take(&at, data, "', 'fortran_order': False, 'shape': (")) return 0;
  if (!optcci_digits(&at, data, &column->count) || !optcci_take(&at, data, ",), }")) return 0;
  column->at = data;
  if (column->type[0] != 'S' && (uintptr_t)data % column->width) return 0;
  return column->count <= (size_t)(end - data) / column->width && column->count * column->width == (size_t)(end - data);
}

/* The version and the id, with which every header begins. */
static inline int optcci_header(optcc_plan *plan, const unsigned char *at, const unsigned char *end) {
  size_t major, minor;
  if (!optcci_take(&at, end, "{\n \"format\": \"optcc-plan\",\n \"version\": \"") || !optcci_digits(&at, end, &major) ||
      !optcci_take(&at, end, ".") || !optcci_digits(&at, end, &minor) || !optcci_take(&at, end, "\",\n \"plan_id\": \"") ||
      end - at < 17 || at[16] != '"' || major != OPTCC_PLAN_MAJOR || minor > INT32_MAX)
    return 0;
  plan->major = (int32_t)major;
  plan->minor = (int32_t)minor;
  memcpy(plan->id, at, 16);
  plan->id[16] = 0;
  return 1;
}

/* The members of the zip: finds the header and all columns. */
static inline int optcci_members(
    optcc_plan *plan, const unsigned char *data, size_t length, optcci_column *columns, int count, optcc_error *error) {
  static const char damaged[] = "not a zip, or cut off";
  size_t entries, at, end, i, name, start, size, local;
  int c, headers = 0;
  if (length < 22 || optcci_number(data + length - 22, 4) != 0x06054B50u)
    return optcci_fail(error, OPTCC_NOT_A_PLAN, 0, damaged);
  end = length - 22;
  entries = optcci_number(data + end + 10, 2);
  at = optcci_number(data + end + 16, 4);
  for (i = 0; i < entries; i++) {
    if (at > end || end - at < 46 || optcci_number(data + at, 4) != 0x02014B50u)
      return optcci_fail(error, OPTCC_NOT_A_PLAN, end, damaged);
    name = optcci_number(data + at + 28, 2);
    size = optcci_number(data + at + 24, 4);
    local = optcci_number(data + at + 42, 4);
    if (end - at - 46 < name || local > end || end - local < 30)
      return optcci_fail(error, OPTCC_NOT_A_PLAN, at, damaged);
    start = local + 30 + optcci_number(data + local + 26, 2) + optcci_number(data + local + 28, 2);
    if (start > end || end - start < size) return optcci_fail(error, OPTCC_NOT_A_PLAN, at, damaged);
    if (optcci_number(data + at + 10, 2) != 0) return optcci_fail(error, OPTCC_PACKED, at, "unzip it, then zip -0");
    if (name == 11 && memcmp(data + at + 46, "header.json", 11) == 0) {
      if (!optcci_header(plan, data + start, data + start + size))
        return optcci_fail(error, OPTCC_NOT_A_PLAN, start, "header.json, or another version");
      headers++;
    }
    for (c = 0; c < count; c++) {
      if (name != strlen(columns[c].name) + 4 || memcmp(data + at + 46, columns[c].name, name - 4) != 0 ||
          memcmp(data + at + 42 + name, ".npy", 4) != 0)
        continue;
      if (columns[c].at || !optcci_npy(&columns[c], data + start, data + start + size))
        return optcci_fail(error, OPTCC_COLUMN, start, columns[c].name);
    }
    at += 46 + name + optcci_number(data + at + 30, 2) + optcci_number(data + at + 32, 2);
  }
  for (c = 0; c < count; c++)
    if (!columns[c].at) return optcci_fail(error, OPTCC_COLUMN, end, columns[c].name);
  return headers == 1 || optcci_fail(error, OPTCC_NOT_A_PLAN, end, "header.json");
}

/* Whether all of a column are from `low` to below `high`. */
static inline int optcci_within(const optcci_column *column, int64_t low, int64_t high) {
  size_t i;
  for (i = 0; i < column->count; i++) {
    int64_t value;
    if (column->width == 1) value = column->at[i];
    else if (column->width == 4) value = ((const int32_t *)(const void *)column->at)[i];
    else value = ((const int64_t *)(const void *)column->at)[i];
    if (value < low || value >= high) return 0;
  }
  return 1;
}

/* Whether positions start at 0, end at `end`, and each is at least `least` after the one before it. */
static inline int optcci_starts(const optcci_column *column, size_t rows, size_t end, int64_t least) {
  const int64_t *at = (const int64_t *)(const void *)column->at;
  size_t i;
  if (column->count != rows + 1 || !optcci_within(column, 0, (int64_t)end + 1) || at[0] != 0) return 0;
  for (i = 0; i < rows; i++)
    if (at[i + 1] - at[i] < least) return 0;
  return at[rows] == (int64_t)end;
}

/* ---- what there is ---------------------------------------------------------------------------------------------- */

/* Open a plan; 0 with an error where it is none. */
static inline int optcc_plan_open(optcc_plan *plan, const void *data, size_t length, optcc_error *error) {
  enum {
    NBYTES, RANK_NAME, RANK_SERVER, PORT_NAME, PORT_RANK, PORT_RAIL, PORT_NVLINK, PORT_OUT, PORT_IN, LINK_NAME, LINK_RATE,
    ROUTE_SRC, ROUTE_DST, LANE_PTR, LANE_OUT, LANE_INTO, LANE_SHARE, LANE_LINK_PTR, LANE_LINK,
    ROUTE, OFFSET, LENGTH, REDUCE, STAGE, SEGMENT, DEP_PTR, DEP_IDX, CUT_AT, CUT, COUNT
  };
  optcci_column c[COUNT] = {
    {"nbytes", "<i8", NULL, 0, 0}, {"rank_name", "S", NULL, 0, 0}, {"rank_server", "<i4", NULL, 0, 0},
    {"port_name", "S", NULL, 0, 0}, {"port_rank", "<i4", NULL, 0, 0}, {"port_rail", "<i4", NULL, 0, 0},
    {"port_nvlink", "|u1", NULL, 0, 0}, {"port_out", "<f8", NULL, 0, 0}, {"port_in", "<f8", NULL, 0, 0},
    {"link_name", "S", NULL, 0, 0}, {"link_rate", "<f8", NULL, 0, 0}, {"route_src", "<i4", NULL, 0, 0},
    {"route_dst", "<i4", NULL, 0, 0}, {"lane_ptr", "<i8", NULL, 0, 0}, {"lane_out", "<i4", NULL, 0, 0},
    {"lane_into", "<i4", NULL, 0, 0}, {"lane_share", "S", NULL, 0, 0}, {"lane_link_ptr", "<i8", NULL, 0, 0},
    {"lane_link", "<i4", NULL, 0, 0}, {"route", "<i4", NULL, 0, 0}, {"offset", "<i8", NULL, 0, 0},
    {"length", "<i8", NULL, 0, 0}, {"reduce", "|u1", NULL, 0, 0}, {"stage", "|u1", NULL, 0, 0},
    {"segment", "<i4", NULL, 0, 0}, {"dep_ptr", "<i8", NULL, 0, 0}, {"dep_idx", "<i4", NULL, 0, 0},
    {"cut_at", "<i8", NULL, 0, 0}, {"cut", "<i8", NULL, 0, 0}
  };
  /* columns of one length stand together, and have an index, or other small numbers, below a limit */
  static const int same[] = {RANK_NAME, RANK_NAME, RANK_NAME, PORT_NAME, PORT_NAME, PORT_NAME, PORT_NAME, PORT_NAME,
                             PORT_NAME, LINK_NAME, LINK_NAME, ROUTE_SRC, ROUTE_SRC, -1, LANE_OUT, LANE_OUT, LANE_OUT, -1,
                             -1, ROUTE, ROUTE, ROUTE, ROUTE, ROUTE, ROUTE, -1, -1, ROUTE, -1};
  const uint16_t one = 1;
  int64_t limit[COUNT]; /* -1: none */
  size_t i, lane;
  int k;
  memset(plan, 0, sizeof *plan);
  if (error) error->code = OPTCC_OK;
  if (!*(const unsigned char *)&one || (uintptr_t)data % 8)
    return optcci_fail(error, OPTCC_HOST, 0, "big-endian, or not at a multiple of 8");
  if (!optcci_members(plan, (const unsigned char *)data, length, c, COUNT, error)) return 0;
  for (k = 1; k < COUNT; k++)
    if (c[k].count > INT32_MAX || (same[k] >= 0 && c[k].count != c[same[k]].count))
      return optcci_fail(error, OPTCC_COLUMN, (size_t)(c[k].at - (const unsigned char *)data), c[k].name);
  if (c[NBYTES].count != 1) return optcci_fail(error, OPTCC_COLUMN, 0, "nbytes");
  plan->nbytes = *(const int64_t *)(const void *)c[NBYTES].at;
  plan->ranks = (int32_t)c[RANK_NAME].count;
  plan->ports = (int32_t)c[PORT_NAME].count;
  plan->links = (int32_t)c[LINK_NAME].count;
  plan->routes = (int32_t)c[ROUTE_SRC].count;
  plan->lanes = (int32_t)c[LANE_OUT].count;
  plan->transfers = (int64_t)c[ROUTE].count;
  for (k = 0; k < COUNT; k++) limit[k] = -1;
  limit[RANK_SERVER] = limit[SEGMENT] = INT32_MAX;
  limit[PORT_RANK] = limit[ROUTE_SRC] = limit[ROUTE_DST] = plan->ranks;
  limit[LANE_OUT] = limit[LANE_INTO] = plan->ports;
  limit[LANE_LINK] = plan->links;
  limit[ROUTE] = plan->routes;
  limit[PORT_NVLINK] = limit[REDUCE] = 2;
  limit[STAGE] = 5;
  limit[NBYTES] = INT64_MAX;
  limit[OFFSET] = plan->nbytes;
  limit[LENGTH] = limit[CUT] = plan->nbytes < INT64_MAX ? plan->nbytes + 1 : 0;
  limit[DEP_IDX] = plan->transfers;
  limit[CUT_AT] = (int64_t)c[CUT].count;
  for (k = 0; k < COUNT; k++)
    if (limit[k] >= 0 && !optcci_within(&c[k], k == LENGTH || k == STAGE, limit[k]))
      return optcci_fail(error, OPTCC_RANGE, (size_t)(c[k].at - (const unsigned char *)data), c[k].name);
  plan->rank_name.at = (const char *)c[RANK_NAME].at;
  plan->rank_name.width = c[RANK_NAME].width;
  plan->port_name.at = (const char *)c[PORT_NAME].at;
  plan->port_name.width = c[PORT_NAME].width;
  plan->link_name.at = (const char *)c[LINK_NAME].at;
  plan->link_name.width = c[LINK_NAME].width;
  plan->lane_share.at = (const char *)c[LANE_SHARE].at;
  plan->lane_share.width = c[LANE_SHARE].width;
  plan->rank_server = (const int32_t *)(const void *)c[RANK_SERVER].at;
  plan->port_rank = (const int32_t *)(const void *)c[PORT_RANK].at;
  plan->port_rail = (const int32_t *)(const void *)c[PORT_RAIL].at;
  plan->port_nvlink = c[PORT_NVLINK].at;
  plan->port_out = (const double *)(const void *)c[PORT_OUT].at;
  plan->port_in = (const double *)(const void *)c[PORT_IN].at;
  plan->link_rate = (const double *)(const void *)c[LINK_RATE].at;
  plan->route_src = (const int32_t *)(const void *)c[ROUTE_SRC].at;
  plan->route_dst = (const int32_t *)(const void *)c[ROUTE_DST].at;
  plan->lane_ptr = (const int64_t *)(const void *)c[LANE_PTR].at;
  plan->lane_out = (const int32_t *)(const void *)c[LANE_OUT].at;
  plan->lane_into = (const int32_t *)(const void *)c[LANE_INTO].at;
  plan->lane_link_ptr = (const int64_t *)(const void *)c[LANE_LINK_PTR].at;
  plan->lane_link = (const int32_t *)(const void *)c[LANE_LINK].at;
  plan->route = (const int32_t *)(const void *)c[ROUTE].at;
  plan->offset = (const int64_t *)(const void *)c[OFFSET].at;
  plan->length = (const int64_t *)(const void *)c[LENGTH].at;
  plan->reduce = c[REDUCE].at;
  plan->stage = c[STAGE].at;
  plan->segment = (const int32_t *)(const void *)c[SEGMENT].at;
  plan->dep_ptr = (const int64_t *)(const void *)c[DEP_PTR].at;
  plan->dep_idx = (const int32_t *)(const void *)c[DEP_IDX].at;
  plan->cut_at = (const int64_t *)(const void *)c[CUT_AT].at;
  plan->cut = (const int64_t *)(const void *)c[CUT].at;
  if (!optcci_starts(&c[LANE_PTR], c[ROUTE_SRC].count, c[LANE_OUT].count, 1))
    return optcci_fail(error, OPTCC_RANGE, 0, "lane_ptr");
  if (!optcci_starts(&c[LANE_LINK_PTR], c[LANE_OUT].count, c[LANE_LINK].count, 0))
    return optcci_fail(error, OPTCC_RANGE, 0, "lane_link_ptr");
  if (!optcci_starts(&c[DEP_PTR], c[ROUTE].count, c[DEP_IDX].count, 0))
    return optcci_fail(error, OPTCC_RANGE, 0, "dep_ptr");
  for (i = 0; i < c[ROUTE_SRC].count; i++)
    for (lane = (size_t)plan->lane_ptr[i]; lane < (size_t)plan->lane_ptr[i + 1]; lane++)
      if (plan->port_rank[plan->lane_out[lane]] != plan->route_src[i] ||
          plan->port_rank[plan->lane_into[lane]] != plan->route_dst[i])
        return optcci_fail(error, OPTCC_RANGE, i, "lane_out, lane_into: of other ranks than the route");
  for (i = 0; i < c[ROUTE].count; i++) {
    size_t way = (size_t)plan->route[i], from = (size_t)plan->cut_at[i];
    size_t lanes = (size_t)(plan->lane_ptr[way + 1] - plan->lane_ptr[way]);
    int64_t dep;
    if (plan->length[i] > plan->nbytes - plan->offset[i]) return optcci_fail(error, OPTCC_RANGE, i, "offset, length");
    if (c[CUT].count - from <= lanes || plan->cut[from] != 0 || plan->cut[from + lanes] != plan->length[i])
      return optcci_fail(error, OPTCC_RANGE, i, "cut");
    for (lane = 0; lane < lanes; lane++)
      if (plan->cut[from + lane] > plan->cut[from + lane + 1]) return optcci_fail(error, OPTCC_RANGE, i, "cut");
    for (dep = plan->dep_ptr[i]; dep < plan->dep_ptr[i + 1]; dep++)
      if (plan->dep_idx[dep] >= (int64_t)i || plan->route_dst[plan->route[plan->dep_idx[dep]]] != plan->route_src[way])
        return optcci_fail(error, OPTCC_RANGE, i, "dep_idx: not an earlier row that lands where this one starts");
  }
  return 1;
}

/* Name `i`: into `out` what fits into `room` bytes with a zero at the end. Returns its length. */
static inline size_t optcc_name(optcc_names names, int32_t i, char *out, size_t room) {
  const char *at = names.at + (size_t)i * names.width;
  size_t length = 0, some;
  while (length < names.width && at[length]) length++;
  if (room) {
    some = length < room ? length : room - 1;
    memcpy(out, at, some);
    out[some] = 0;
  }
  return length;
}

/* The next row from `row` on that `rank` sends or receives; plan->transfers where there is none. */
static inline int64_t optcc_next_of_rank(const optcc_plan *plan, int32_t rank, int64_t row) {
  while (row < plan->transfers && plan->route_src[plan->route[row]] != rank && plan->route_dst[plan->route[row]] != rank)
    row++;
  return row;
}

#endif
