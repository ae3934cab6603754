/* optcc_plan.h: reads the plans that optcc writes. C99, also C++; one header, no dependency, no allocation.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   size_t room = optcc_plan_room(text, length, &error);            how many nodes the text needs; 0: it is not JSON
 *   optcc_node *nodes = malloc(room * sizeof *nodes);               memory is the caller's
 *   if (!optcc_plan_open(&plan, text, length, nodes, room, &error)) error.at is the byte, error.what says what
 *   ... optcc_rank_at, optcc_route_at, optcc_channel_at, optcc_transfer_at ...
 *
 * The text need not end with a NUL; text and nodes stay where they are while the plan is used, and are only read. Nesting
 * is bounded (OPTCC_DEPTH), nothing recurses. Everything that the accessors return has been checked by optcc_plan_open:
 * numbers are in range, indices exist, cuts ascend, a transfer waits only for earlier ones that land where it starts. An
 * index that does not exist gives zeros or -1. What is not checked is that the plan sums every byte: `optcc verify` does
 * that, and it also checks the id. Format and version policy: docs/plan-format.md.
 */
#ifndef OPTCC_PLAN_H
#define OPTCC_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OPTCC_PLAN_MAJOR 1
#define OPTCC_PLAN_MINOR 0 /* what is newer is read, too: fields that are not known here are passed over */
#define OPTCC_DEPTH 32     /* arrays and objects inside each other */
#define OPTCC_MEMBERS 128  /* names in one object */

enum {
  OPTCC_OK = 0,
  OPTCC_NOT_JSON = 1,   /* or a number that is not whole, a name twice, text that is not UTF-8, nested too deeply */
  OPTCC_NO_ROOM = 2,    /* fewer nodes than optcc_plan_room said */
  OPTCC_NOT_A_PLAN = 3, /* another format, or another major version */
  OPTCC_FIELD = 4,      /* a field is missing, or of another kind */
  OPTCC_RANGE = 5,      /* a number, index or length does not fit the others */
  OPTCC_UNKNOWN = 6     /* an ordering, kind or depth of a newer version */
};

typedef struct optcc_error {
  int code;
  size_t at;        /* byte of the text */
  const char *what; /* a field's name, or what is wrong; never NULL after a failure */
} optcc_error;

enum { OPTCC_NULL, OPTCC_FALSE, OPTCC_TRUE, OPTCC_NUMBER, OPTCC_STRING, OPTCC_ARRAY, OPTCC_OBJECT };

/* One JSON value; an object's members are a name and a value in turn. 24 bytes. */
typedef struct optcc_node {
  uint32_t start, end; /* bytes of the text, without a string's quotes */
  uint32_t size;       /* of an array or object */
  uint32_t skip;       /* the next node that is not inside this one */
  uint32_t table;      /* of an array with arrays or objects in it: where the places of its elements stand. Of a rank,
                          while the plan is opened: the list that it was last found in. Else 0 */
  uint32_t type;
} optcc_node;

typedef struct optcc_text { /* a string as it stands in the file, escapes and all: see optcc_copy */
  const char *at;
  size_t length;
} optcc_text;

typedef struct optcc_exact { /* a rational number */
  double value;
  uint64_t top, bottom; /* 0 / 0 where they do not fit; text has all digits */
  optcc_text text;
} optcc_exact;

enum { OPTCC_CHOICES = 0, OPTCC_LAYOUT = 1, OPTCC_TRANSFERS = 2 };
enum { OPTCC_RING = 0, OPTCC_TREE = 1 };
enum { OPTCC_PLAIN = 0, OPTCC_LEAF_FIRST = 1, OPTCC_VIA_LEAF = 2, OPTCC_LEAF_LAST = 3 };

typedef struct optcc_plan {
  int32_t major, minor;
  optcc_text id, family;
  int64_t nbytes; /* of the buffer, on every rank */
  int32_t servers;
  int depth;      /* OPTCC_CHOICES: only what follows family is known; OPTCC_LAYOUT; OPTCC_TRANSFERS */
  int32_t ranks, ports, links, routes, channels;
  int64_t granule;
  int64_t transfers;
  const char *text; /* from here on private */
  const optcc_node *nodes;
  uint32_t at_cluster, at_ranks, at_ports, at_links, at_routes, at_channels;
  uint32_t column[8], at_ptr, at_deps;
} optcc_plan;

typedef struct optcc_server {
  optcc_text name;
  int32_t gpus, nics;
  uint32_t node;
} optcc_server;

typedef struct optcc_nic {
  optcc_text name;
  optcc_exact out, in; /* bytes per second; 0: dead */
} optcc_nic;

typedef struct optcc_rank {
  optcc_text name;
  int32_t server;
} optcc_rank;

typedef struct optcc_port { /* a NIC or an NVLink port */
  optcc_text name;          /* SERVER/NIC, SERVER/gpuN/nvlink */
  int32_t rank, rail;       /* rail -1: reaches every port of its kind */
  int nvlink;
  optcc_exact out, in; /* bytes per second */
} optcc_port;

typedef struct optcc_link {
  optcc_text name;
  optcc_exact rate;
} optcc_link;

typedef struct optcc_route {
  int32_t src, dst, lanes, splits;
  uint32_t node;
} optcc_route;

typedef struct optcc_lane {
  int32_t out, into; /* ports */
  optcc_exact share; /* of every transfer */
  int32_t links;
  uint32_t node;
} optcc_lane;

typedef struct optcc_channel {
  int kind;                          /* OPTCC_RING, OPTCC_TREE */
  int32_t members, leaves, sections; /* of a ring; a tree has one section */
  int32_t root, arcs;                /* of a tree: arcs up, and as many down */
  int32_t window, segments;
  uint32_t node, at_members, at_leaves, at_owners, at_via, at_up, at_down, at_segments;
} optcc_channel;

typedef struct optcc_segment {
  int32_t segment; /* place in the pipeline */
  int ordering;    /* of a ring: OPTCC_PLAIN ... */
  uint32_t at_cuts;
} optcc_segment;

typedef struct optcc_transfer {
  int32_t src, dst, route;
  int64_t offset, length; /* bytes */
  int reduce;             /* 1: add to the receiver's bytes; 0: replace them */
  int stage;
  int32_t segment;
  int64_t deps;
  int64_t first_dep;
} optcc_transfer;

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static inline int optcci_fail(optcc_error *error, int code, size_t at, const char *what) {
  if (error) {
    error->code = code;
    error->at = at;
    error->what = what;
  }
  return 0;
}

static inline int optcci_hex(const char *text, size_t at, size_t end, uint32_t *code) {
  int i;
  *code = 0;
  if (end - at < 4) return 0;
  for (i = 0; i < 4; i++) {
    char c = text[at + (size_t)i];
    uint32_t digit;
    if (c >= '0' && c <= '9') digit = (uint32_t)(c - '0');
    else if (c >= 'a' && c <= 'f') digit = (uint32_t)(c - 'a') + 10;
    else if (c >= 'A' && c <= 'F') digit = (uint32_t)(c - 'A') + 10;
    else return 0;
    *code = *code * 16 + digit;
  }
  return 1;
}

/* One character of a string, escaped or not: how many bytes it takes, 0 where there is none. */
static inline size_t optcci_char(const char *text, size_t at, size_t end, uint32_t *code) {
  unsigned char c;
  size_t more, i;
  uint32_t least, low;
  if (at >= end) return 0;
  c = (unsigned char)text[at];
  if (c == '\\') {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *found;
    if (end - at < 2) return 0;
    if (text[at + 1] != 'u') {
      found = text[at + 1] ? strchr(names, text[at + 1]) : NULL;
      if (!found) return 0;
      *code = (uint32_t)(unsigned char)values[found - names];
      return 2;
    }
    if (!optcci_hex(text, at + 2, end, code) || (*code >= 0xDC00 && *code < 0xE000)) return 0;
    if (*code < 0xD800 || *code >= 0xE000) return 6;
    if (end - at < 8 || text[at + 6] != '\\' || text[at + 7] != 'u' || !optcci_hex(text, at + 8, end, &low)) return 0;
    if (low < 0xDC00 || low >= 0xE000) return 0;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return 12;
  }
  if (c < 0x20) return 0;
  *code = c;
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c < 0xE0) { more = 1; *code = c & 0x1Fu; least = 0x80; }
  else if (c >= 0xE0 && c < 0xF0) { more = 2; *code = c & 0x0Fu; least = 0x800; }
  else if (c >= 0xF0 && c < 0xF5) { more = 3; *code = c & 0x07u; least = 0x10000; }
  else return 0;
  if (end - at <= more) return 0;
  for (i = 1; i <= more; i++) {
    unsigned char next = (unsigned char)text[at + i];
    if ((next & 0xC0u) != 0x80u) return 0;
    *code = *code << 6 | (next & 0x3Fu);
  }
  if (*code < least || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) return 0;
  return more + 1;
}

static inline size_t optcci_space(const char *text, size_t at, size_t length) {
  while (at < length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) at++;
  return at;
}

/* The end of the string whose first byte after the quote is `at`, or 0 (a string ends at 1 or later). */
static inline size_t optcci_string_end(const char *text, size_t at, size_t length) {
  uint32_t code;
  while (at < length && text[at] != '"') {
    size_t taken = optcci_char(text, at, length, &code);
    if (!taken) return 0;
    at += taken;
  }
  return at < length ? at : 0;
}

/* The end of the scalar at `at` and its type; 0 where there is none. */
static inline size_t optcci_scalar(const char *text, size_t at, size_t length, uint32_t *type) {
  static const char *const words[] = {"null", "false", "true"};
  uint32_t i;
  size_t digits;
  for (i = 0; i < 3; i++) {
    size_t size = strlen(words[i]);
    if (length - at >= size && memcmp(text + at, words[i], size) == 0) {
      *type = i;
      return at + size;
    }
  }
  *type = OPTCC_NUMBER;
  if (text[at] == '-') at++;
  digits = at;
  while (at < length && text[at] >= '0' && text[at] <= '9') at++;
  if (at == digits || (text[digits] == '0' && at - digits > 1)) return 0;
  return at < length && (text[at] == '.' || text[at] == 'e' || text[at] == 'E') ? 0 : at;
}

static inline void optcci_put(optcc_node *nodes, size_t room, size_t place, uint32_t type, size_t start, size_t end) {
  if (nodes && place < room) {
    nodes[place].start = (uint32_t)start;
    nodes[place].end = (uint32_t)end;
    nodes[place].size = 0;
    nodes[place].skip = (uint32_t)place + 1;
    nodes[place].table = 0;
    nodes[place].type = type;
  }
}

/* Split the text into nodes; returns how many there are, with the tables, or 0. *values: without them. */
static inline size_t optcci_scan(
    const char *text, size_t length, optcc_node *nodes, size_t room, size_t *values, optcc_error *error) {
  struct { size_t node; uint32_t size; int object, nested; } stack[OPTCC_DEPTH];
  size_t at = 0, count = 0, tables = 0, end;
  int depth = 0;
  if (length > 0xFFFFFFF0u) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, 0, "more than 4 GiB");
  for (;;) {
    uint32_t type = OPTCC_STRING;
    int opened = 0;
    at = optcci_space(text, at, length);
    if (depth && stack[depth - 1].object) { /* a member's name, before its value */
      if (at >= length || text[at] != '"' || !(end = optcci_string_end(text, at + 1, length)))
        return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "no name of a member");
      optcci_put(nodes, room, count++, OPTCC_STRING, at + 1, end);
      at = optcci_space(text, end + 1, length);
      if (at >= length || text[at] != ':') return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "no colon");
      at = optcci_space(text, at + 1, length);
    }
    if (at >= length) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "the text ends too early");
    if (depth) {
      stack[depth - 1].size++;
      if (stack[depth - 1].object && stack[depth - 1].size > OPTCC_MEMBERS)
        return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "too many names in an object");
    }
    if (text[at] == '{' || text[at] == '[') {
      if (depth == OPTCC_DEPTH) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "nested too deeply");
      if (depth) stack[depth - 1].nested = 1;
      stack[depth].node = count;
      stack[depth].size = 0;
      stack[depth].nested = 0;
      stack[depth].object = text[at] == '{';
      optcci_put(nodes, room, count++, text[at] == '{' ? OPTCC_OBJECT : OPTCC_ARRAY, at, at);
      depth++;
      at = optcci_space(text, at + 1, length);
      opened = at >= length || text[at] != (stack[depth - 1].object ? '}' : ']');
    } else if (text[at] == '"') {
      end = optcci_string_end(text, at + 1, length);
      if (!end) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "not a string in UTF-8");
      optcci_put(nodes, room, count++, type, at + 1, end);
      at = end + 1;
    } else {
      end = optcci_scalar(text, at, length, &type);
      if (!end) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "not a value, or not a whole number");
      optcci_put(nodes, room, count++, type, at, end);
      at = end;
    }
    while (!opened) { /* what has ended, and what ends with it */
      at = optcci_space(text, at, length);
      if (!depth) {
        if (at < length) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "more after the end");
        *values = count;
        return count + tables;
      }
      if (at >= length) return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "the text ends too early");
      if (text[at] == ',' && stack[depth - 1].size) {
        at++;
        opened = 1;
      } else if (text[at] == (stack[depth - 1].object ? '}' : ']')) {
        depth--;
        if (nodes && stack[depth].node < room) {
          nodes[stack[depth].node].end = (uint32_t)at + 1;
          nodes[stack[depth].node].size = stack[depth].size;
          nodes[stack[depth].node].skip = (uint32_t)count;
          nodes[stack[depth].node].table = (uint32_t)(stack[depth].nested && !stack[depth].object);
        }
        if (stack[depth].nested && !stack[depth].object) tables += stack[depth].size;
        at++;
      } else {
        return (size_t)optcci_fail(error, OPTCC_NOT_JSON, at, "neither a comma nor the end");
      }
    }
  }
}

/* How many nodes optcc_plan_open needs for this text; 0, and an error, where it is not JSON. */
static inline size_t optcc_plan_room(const char *text, size_t length, optcc_error *error) {
  size_t values;
  optcci_fail(error, OPTCC_OK, 0, "");
  return optcci_scan(text, length, NULL, 0, &values, error);
}

static inline int optcci_same(const char *text, const optcc_node *node, const char *name) {
  size_t at = node->start;
  uint32_t code = 0;
  for (; at < node->end; name++) {
    at += optcci_char(text, at, node->end, &code);
    if (code != (uint32_t)(unsigned char)*name || !*name) return 0;
  }
  return !*name;
}

static inline int optcci_same_nodes(const char *text, const optcc_node *a, const optcc_node *b) {
  size_t i = a->start, j = b->start;
  uint32_t x = 0, y = 0;
  while (i < a->end && j < b->end) {
    i += optcci_char(text, i, a->end, &x);
    j += optcci_char(text, j, b->end, &y);
    if (x != y) return 0;
  }
  return i == a->end && j == b->end;
}

/* Fill in the tables, and refuse a name that an object has twice. */
static inline int optcci_index(const char *text, optcc_node *nodes, size_t values, optcc_error *error) {
  size_t i, place = values;
  for (i = 0; i < values; i++) {
    uint32_t k, l, child = (uint32_t)i + 1, names[OPTCC_MEMBERS];
    if (nodes[i].type == OPTCC_ARRAY && nodes[i].table) {
      nodes[i].table = (uint32_t)place;
      for (k = 0; k < nodes[i].size; k++, child = nodes[child].skip) nodes[place++].start = child;
    }
    if (nodes[i].type != OPTCC_OBJECT) continue;
    for (k = 0; k < nodes[i].size; k++, child = nodes[child + 1].skip) {
      for (l = 0; l < k; l++)
        if (optcci_same_nodes(text, &nodes[names[l]], &nodes[child]))
          return optcci_fail(error, OPTCC_NOT_JSON, nodes[child].start, "a name twice");
      names[k] = child;
    }
  }
  return 1;
}

/* Place of an element or member's value; 0 where there is none (no value has the place 0 but the whole). */
static inline uint32_t optcci_element(const optcc_plan *plan, uint32_t array, int64_t i) {
  const optcc_node *node = &plan->nodes[array];
  if (!array || node->type != OPTCC_ARRAY || i < 0 || i >= (int64_t)node->size) return 0;
  return node->table ? plan->nodes[node->table + (uint32_t)i].start : array + 1 + (uint32_t)i;
}

static inline uint32_t optcci_get(const optcc_plan *plan, uint32_t object, const char *name) {
  const optcc_node *nodes = plan->nodes;
  uint32_t k, child = object + 1;
  if (nodes[object].type != OPTCC_OBJECT) return 0;
  for (k = 0; k < nodes[object].size; k++, child = nodes[child + 1].skip)
    if (optcci_same(plan->text, &nodes[child], name)) return child + 1;
  return 0;
}

static inline int optcci_number(const optcc_plan *plan, uint32_t node, int64_t *value) {
  const optcc_node *found = &plan->nodes[node];
  uint32_t at;
  *value = 0;
  if (!node || found->type != OPTCC_NUMBER || plan->text[found->start] == '-') return 0;
  for (at = found->start; at < found->end; at++) {
    int digit = plan->text[at] - '0';
    if (*value > (INT64_MAX - digit) / 10) {
      *value = 0;
      return 0;
    }
    *value = *value * 10 + digit;
  }
  return 1;
}

static inline int64_t optcci_whole(const optcc_plan *plan, uint32_t node) {
  int64_t value;
  return optcci_number(plan, node, &value) ? value : -1;
}

static inline optcc_text optcci_text(const optcc_plan *plan, uint32_t node) {
  optcc_text made;
  int is = node && plan->nodes[node].type == OPTCC_STRING;
  made.at = is ? plan->text + plan->nodes[node].start : "";
  made.length = is ? plan->nodes[node].end - plan->nodes[node].start : 0;
  return made;
}

static inline uint64_t optcci_digits(optcc_text text, size_t *at, double *value, int *fits) {
  uint64_t made = 0;
  *value = 0;
  for (; *at < text.length && text.at[*at] >= '0' && text.at[*at] <= '9'; (*at)++) {
    uint64_t digit = (uint64_t)(text.at[*at] - '0');
    if (made > (UINT64_MAX - digit) / 10) *fits = 0;
    made = *fits ? made * 10 + digit : 0;
    *value = *value * 10 + (double)digit;
  }
  return made;
}

/* "3/8" or "3"; 0 where it is something else. */
static inline int optcci_exact(const optcc_plan *plan, uint32_t node, optcc_exact *made) {
  size_t at = 0, second;
  double top, bottom = 1;
  int fits = 1;
  memset(made, 0, sizeof *made);
  made->text = optcci_text(plan, node);
  made->top = optcci_digits(made->text, &at, &top, &fits);
  made->bottom = 1;
  if (!at) return 0;
  if (at < made->text.length) {
    if (made->text.at[at] != '/') return 0;
    second = ++at;
    made->bottom = optcci_digits(made->text, &at, &bottom, &fits);
    if (at == second || !(bottom > 0)) return 0;
  }
  if (!fits) made->top = made->bottom = 0;
  made->value = top / bottom;
  return at == made->text.length && at <= 121;
}

/* The string as NUL-terminated UTF-8 in `buffer`, cut where it does not fit; returns the bytes of the whole. */
static inline size_t optcc_copy(optcc_text text, char *buffer, size_t room) {
  size_t at = 0, made = 0, taken, i;
  uint32_t code = 0;
  int cut = 0;
  if (room) buffer[0] = 0;
  while ((taken = optcci_char(text.at, at, text.length, &code)) != 0) {
    char bytes[4];
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (i = size; i-- > 1; code >>= 6) bytes[i] = (char)(0x80u | (code & 0x3Fu));
    bytes[0] = (char)(lead[size] | code);
    cut = cut || made + size >= room;
    if (!cut) {
      memcpy(buffer + made, bytes, size);
      buffer[made + size] = 0;
    }
    made += size;
    at += taken;
  }
  return made;
}

/* ---- what has to hold ------------------------------------------------------------------------------------------- */

static inline int optcci_bad(const optcc_plan *plan, uint32_t node, int code, const char *what, optcc_error *error) {
  return optcci_fail(error, code, plan->nodes[node].start, what);
}

static inline int optcci_need(
    const optcc_plan *plan, uint32_t object, const char *name, uint32_t type, uint32_t *node, optcc_error *error) {
  *node = optcci_get(plan, object, name);
  if (!*node || plan->nodes[*node].type != type)
    return optcci_bad(plan, *node ? *node : object, OPTCC_FIELD, name, error);
  return 1;
}

static inline int optcci_need_whole(
    const optcc_plan *plan, uint32_t object, const char *name, int64_t least, int64_t most, int64_t *value,
    optcc_error *error) {
  uint32_t node;
  if (!optcci_need(plan, object, name, OPTCC_NUMBER, &node, error)) return 0;
  if (!optcci_number(plan, node, value) || *value < least || *value > most)
    return optcci_bad(plan, node, OPTCC_RANGE, name, error);
  return 1;
}

static inline int optcci_need_exact(const optcc_plan *plan, uint32_t object, const char *name, optcc_error *error) {
  optcc_exact made;
  uint32_t node;
  if (!optcci_need(plan, object, name, OPTCC_STRING, &node, error)) return 0;
  return optcci_exact(plan, node, &made) ? 1 : optcci_bad(plan, node, OPTCC_FIELD, name, error);
}

/* An array of whole numbers of 0 to most, `size` of them or, at -1, any number. */
static inline int optcci_need_list(
    const optcc_plan *plan, uint32_t object, const char *name, int64_t size, int64_t most, uint32_t *node,
    optcc_error *error) {
  uint32_t i;
  int64_t value;
  if (!optcci_need(plan, object, name, OPTCC_ARRAY, node, error)) return 0;
  if (size >= 0 && (int64_t)plan->nodes[*node].size != size) return optcci_bad(plan, *node, OPTCC_RANGE, name, error);
  for (i = 0; i < plan->nodes[*node].size; i++) {
    uint32_t element = optcci_element(plan, *node, i);
    if (!optcci_number(plan, element, &value) || value > most)
      return optcci_bad(plan, element, OPTCC_RANGE, name, error);
  }
  return 1;
}

static inline int64_t optcci_at(const optcc_plan *plan, uint32_t list, int64_t i) {
  return optcci_whole(plan, optcci_element(plan, list, i));
}

/* Note of every rank in `list` that it is there; `which` is a number that no other list has. */
static inline void optcci_mark(const optcc_plan *plan, optcc_node *nodes, uint32_t list, uint32_t which) {
  uint32_t i;
  for (i = 0; i < nodes[list].size; i++)
    nodes[optcci_element(plan, plan->at_ranks, optcci_at(plan, list, i))].table = which;
}

/* Whether every rank in `list` was last found in the list with that number. */
static inline int optcci_marked(const optcc_plan *plan, uint32_t list, uint32_t which) {
  uint32_t i;
  for (i = 0; i < plan->nodes[list].size; i++)
    if (plan->nodes[optcci_element(plan, plan->at_ranks, optcci_at(plan, list, i))].table != which) return 0;
  return 1;
}

static inline int optcci_ascend(const optcc_plan *plan, uint32_t list, int64_t least, int64_t most) {
  uint32_t i;
  for (i = 0; i < plan->nodes[list].size; i++) {
    int64_t value = optcci_at(plan, list, i);
    if (value < least) return 0;
    least = value;
  }
  return least <= most;
}

/* An array of objects; its size goes to *count. */
static inline int optcci_need_objects(
    const optcc_plan *plan, uint32_t object, const char *name, uint32_t *node, int32_t *count, optcc_error *error) {
  uint32_t i;
  if (!optcci_need(plan, object, name, OPTCC_ARRAY, node, error)) return 0;
  if (plan->nodes[*node].size > INT32_MAX) return optcci_bad(plan, *node, OPTCC_RANGE, name, error);
  for (i = 0; i < plan->nodes[*node].size; i++) {
    uint32_t element = optcci_element(plan, *node, i);
    if (plan->nodes[element].type != OPTCC_OBJECT) return optcci_bad(plan, element, OPTCC_FIELD, name, error);
  }
  *count = (int32_t)plan->nodes[*node].size;
  return 1;
}

/* ---- accessors: ranks, NICs, routes ----------------------------------------------------------------------------- */

static inline optcc_server optcc_server_at(const optcc_plan *plan, int32_t i) {
  optcc_server made;
  made.node = optcci_element(plan, plan->at_cluster, i);
  made.name = optcci_text(plan, made.node ? optcci_get(plan, made.node, "name") : 0);
  made.gpus = made.node ? (int32_t)optcci_whole(plan, optcci_get(plan, made.node, "gpus")) : 0;
  made.nics = made.node ? (int32_t)plan->nodes[optcci_get(plan, made.node, "nics")].size : 0;
  return made;
}

static inline optcc_nic optcc_nic_at(const optcc_plan *plan, const optcc_server *server, int32_t i) {
  optcc_nic made;
  uint32_t node = server->node ? optcci_element(plan, optcci_get(plan, server->node, "nics"), i) : 0;
  made.name = optcci_text(plan, node ? optcci_get(plan, node, "name") : 0);
  optcci_exact(plan, node ? optcci_get(plan, node, "out") : 0, &made.out);
  optcci_exact(plan, node ? optcci_get(plan, node, "in") : 0, &made.in);
  return made;
}

static inline optcc_rank optcc_rank_at(const optcc_plan *plan, int32_t i) {
  optcc_rank made;
  uint32_t node = optcci_element(plan, plan->at_ranks, i);
  made.name = optcci_text(plan, node ? optcci_get(plan, node, "name") : 0);
  made.server = node ? (int32_t)optcci_whole(plan, optcci_get(plan, node, "server")) : -1;
  return made;
}

static inline optcc_port optcc_port_at(const optcc_plan *plan, int32_t i) {
  optcc_port made;
  uint32_t node = optcci_element(plan, plan->at_ports, i);
  made.name = optcci_text(plan, node ? optcci_get(plan, node, "name") : 0);
  made.rank = node ? (int32_t)optcci_whole(plan, optcci_get(plan, node, "rank")) : -1;
  made.rail = node ? (int32_t)optcci_whole(plan, optcci_get(plan, node, "rail")) : -1;
  made.nvlink = node ? plan->nodes[optcci_get(plan, node, "nvlink")].type == OPTCC_TRUE : 0;
  optcci_exact(plan, node ? optcci_get(plan, node, "out") : 0, &made.out);
  optcci_exact(plan, node ? optcci_get(plan, node, "in") : 0, &made.in);
  return made;
}

static inline optcc_link optcc_link_at(const optcc_plan *plan, int32_t i) {
  optcc_link made;
  uint32_t node = optcci_element(plan, plan->at_links, i);
  made.name = optcci_text(plan, node ? optcci_get(plan, node, "name") : 0);
  optcci_exact(plan, node ? optcci_get(plan, node, "rate") : 0, &made.rate);
  return made;
}

static inline optcc_route optcc_route_at(const optcc_plan *plan, int32_t i) {
  optcc_route made = {-1, -1, 0, 0, 0};
  made.node = optcci_element(plan, plan->at_routes, i);
  if (!made.node) return made;
  made.src = (int32_t)optcci_whole(plan, optcci_get(plan, made.node, "src"));
  made.dst = (int32_t)optcci_whole(plan, optcci_get(plan, made.node, "dst"));
  made.lanes = (int32_t)plan->nodes[optcci_get(plan, made.node, "lanes")].size;
  made.splits = (int32_t)plan->nodes[optcci_get(plan, made.node, "splits")].size;
  return made;
}

/* The first route between two ranks, -1: none. A ring has one; a tree's arcs name their routes. It searches: keep it. */
static inline int32_t optcc_route_between(const optcc_plan *plan, int32_t src, int32_t dst) {
  int32_t i;
  for (i = 0; i < plan->routes; i++) {
    optcc_route route = optcc_route_at(plan, i);
    if (route.src == src && route.dst == dst) return i;
  }
  return -1;
}

static inline optcc_lane optcc_lane_at(const optcc_plan *plan, const optcc_route *route, int32_t i) {
  optcc_lane made;
  made.node = route->node ? optcci_element(plan, optcci_get(plan, route->node, "lanes"), i) : 0;
  made.out = made.node ? (int32_t)optcci_whole(plan, optcci_get(plan, made.node, "out")) : -1;
  made.into = made.node ? (int32_t)optcci_whole(plan, optcci_get(plan, made.node, "into")) : -1;
  made.links = made.node ? (int32_t)plan->nodes[optcci_get(plan, made.node, "links")].size : 0;
  optcci_exact(plan, made.node ? optcci_get(plan, made.node, "share") : 0, &made.share);
  return made;
}

static inline int32_t optcc_lane_link(const optcc_plan *plan, const optcc_lane *lane, int32_t i) {
  return lane->node ? (int32_t)optcci_at(plan, optcci_get(plan, lane->node, "links"), i) : -1;
}

/* Which bytes of a transfer of this length the lane carries, from its start on; 0 where no such transfer is planned. */
static inline int optcc_split(
    const optcc_plan *plan, const optcc_route *route, int64_t length, int32_t lane, int64_t *begin, int64_t *end) {
  uint32_t splits = route->node ? optcci_get(plan, route->node, "splits") : 0;
  int64_t low = 0, high = route->splits;
  *begin = *end = 0;
  if (lane < 0 || lane >= route->lanes) return 0;
  while (low < high) { /* lengths ascend */
    int64_t middle = low + (high - low) / 2;
    uint32_t node = optcci_element(plan, splits, middle);
    int64_t found = optcci_whole(plan, optcci_get(plan, node, "length"));
    if (found == length) {
      uint32_t cuts = optcci_get(plan, node, "cuts");
      *begin = optcci_at(plan, cuts, lane);
      *end = optcci_at(plan, cuts, (int64_t)lane + 1);
      return 1;
    }
    if (found < length) low = middle + 1;
    else high = middle;
  }
  return 0;
}

/* ---- accessors: rings and trees --------------------------------------------------------------------------------- */

static inline int32_t optcci_count(const optcc_plan *plan, uint32_t list) {
  return list ? (int32_t)plan->nodes[list].size : 0;
}

static inline optcc_channel optcc_channel_at(const optcc_plan *plan, int32_t i) {
  optcc_channel made;
  uint32_t node = optcci_element(plan, plan->at_channels, i);
  memset(&made, 0, sizeof made);
  made.root = -1;
  if (!node) return made;
  made.node = node;
  made.kind = optcci_same(plan->text, &plan->nodes[optcci_get(plan, node, "kind")], "tree") ? OPTCC_TREE : OPTCC_RING;
  made.window = (int32_t)optcci_whole(plan, optcci_get(plan, node, "window"));
  made.at_segments = optcci_get(plan, node, "segments");
  made.segments = optcci_count(plan, made.at_segments);
  if (made.kind == OPTCC_TREE) {
    made.sections = 1;
    made.root = (int32_t)optcci_whole(plan, optcci_get(plan, node, "root"));
    made.at_up = optcci_get(plan, node, "up");
    made.at_down = optcci_get(plan, node, "down");
    made.arcs = optcci_count(plan, made.at_up);
    return made;
  }
  made.at_members = optcci_get(plan, node, "members");
  made.at_leaves = optcci_get(plan, node, "leaves");
  made.at_owners = optcci_get(plan, node, "owners");
  made.at_via = optcci_get(plan, node, "via");
  made.members = optcci_count(plan, made.at_members);
  made.leaves = optcci_count(plan, made.at_leaves);
  made.sections = optcci_count(plan, made.at_owners);
  return made;
}

/* The rank at a place of the ring, of a leaf, of a section's owner, of the leaf that adds last to it; -1: none. */
static inline int32_t optcc_member(const optcc_plan *plan, const optcc_channel *ring, int32_t place) {
  return (int32_t)optcci_at(plan, ring->at_members, place);
}
static inline int32_t optcc_leaf(const optcc_plan *plan, const optcc_channel *ring, int32_t i) {
  return (int32_t)optcci_at(plan, ring->at_leaves, i);
}
static inline int32_t optcc_owner(const optcc_plan *plan, const optcc_channel *channel, int32_t section) {
  if (channel->kind == OPTCC_TREE) return section == 0 ? channel->root : -1;
  return (int32_t)optcci_at(plan, channel->at_owners, section);
}
static inline int32_t optcc_via(const optcc_plan *plan, const optcc_channel *ring, int32_t section) {
  return (int32_t)optcci_at(plan, ring->at_via, section);
}

/* The routes of a tree: up, children before parents; down, parents before children. */
static inline int32_t optcc_up(const optcc_plan *plan, const optcc_channel *tree, int32_t i) {
  return (int32_t)optcci_at(plan, tree->at_up, i);
}
static inline int32_t optcc_down(const optcc_plan *plan, const optcc_channel *tree, int32_t i) {
  return (int32_t)optcci_at(plan, tree->at_down, i);
}

static inline int optcci_ordering(const optcc_plan *plan, uint32_t node) {
  static const char *const names[] = {"plain", "leaf-first", "via-leaf", "leaf-last"};
  int i;
  for (i = 0; node && i < 4; i++)
    if (optcci_same(plan->text, &plan->nodes[node], names[i])) return i;
  return -1;
}

static inline optcc_segment optcc_segment_at(const optcc_plan *plan, const optcc_channel *channel, int32_t i) {
  optcc_segment made = {-1, OPTCC_PLAIN, 0};
  uint32_t node = optcci_element(plan, channel->at_segments, i);
  if (!node) return made;
  made.segment = (int32_t)optcci_whole(plan, optcci_get(plan, node, "segment"));
  made.at_cuts = optcci_get(plan, node, "cuts");
  if (channel->kind == OPTCC_RING) made.ordering = optcci_ordering(plan, optcci_get(plan, node, "ordering"));
  return made;
}

/* The bytes of the buffer in a section; it may be empty. 0 where there is none. */
static inline int optcc_section(
    const optcc_plan *plan, const optcc_segment *segment, int32_t section, int64_t *begin, int64_t *end) {
  *begin = optcci_at(plan, segment->at_cuts, section);
  *end = optcci_at(plan, segment->at_cuts, (int64_t)section + 1);
  if (*begin >= 0 && *end >= 0) return 1;
  *begin = *end = 0;
  return 0;
}

/* ---- accessors: transfers --------------------------------------------------------------------------------------- */

static inline optcc_transfer optcc_transfer_at(const optcc_plan *plan, int64_t row) {
  optcc_transfer made;
  memset(&made, 0, sizeof made);
  made.src = made.dst = made.route = -1;
  if (row < 0 || row >= plan->transfers) return made;
  made.src = (int32_t)optcci_at(plan, plan->column[0], row);
  made.dst = (int32_t)optcci_at(plan, plan->column[1], row);
  made.route = (int32_t)optcci_at(plan, plan->column[2], row);
  made.offset = optcci_at(plan, plan->column[3], row);
  made.length = optcci_at(plan, plan->column[4], row);
  made.reduce = (int)optcci_at(plan, plan->column[5], row);
  made.stage = (int)optcci_at(plan, plan->column[6], row);
  made.segment = (int32_t)optcci_at(plan, plan->column[7], row);
  made.first_dep = optcci_at(plan, plan->at_ptr, row);
  made.deps = optcci_at(plan, plan->at_ptr, row + 1) - made.first_dep;
  return made;
}

/* A row that must have landed before this transfer is sent; -1: none. */
static inline int64_t optcc_dep(const optcc_plan *plan, const optcc_transfer *transfer, int64_t i) {
  return i < 0 || i >= transfer->deps ? -1 : optcci_at(plan, plan->at_deps, transfer->first_dep + i);
}

/* The next row from `row` on that this rank sends or receives; plan->transfers at the end. */
static inline int64_t optcc_next_of_rank(const optcc_plan *plan, int32_t rank, int64_t row) {
  for (; row < plan->transfers; row++)
    if (optcci_at(plan, plan->column[0], row) == rank || optcci_at(plan, plan->column[1], row) == rank) return row;
  return plan->transfers;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static inline int optcci_check_cluster(optcc_plan *plan, optcc_error *error) {
  int32_t i, j, nics;
  int64_t gpus;
  uint32_t node, list;
  if (!optcci_need_objects(plan, 0, "cluster", &plan->at_cluster, &plan->servers, error)) return 0;
  if (!plan->servers) return optcci_bad(plan, plan->at_cluster, OPTCC_RANGE, "cluster", error);
  for (i = 0; i < plan->servers; i++) {
    uint32_t server = optcci_element(plan, plan->at_cluster, i);
    if (!optcci_need(plan, server, "name", OPTCC_STRING, &node, error) ||
        !optcci_need_whole(plan, server, "gpus", 1, INT32_MAX, &gpus, error) ||
        !optcci_need_objects(plan, server, "nics", &list, &nics, error))
      return 0;
    for (j = 0; j < nics; j++) {
      uint32_t nic = optcci_element(plan, list, j);
      if (!optcci_need(plan, nic, "name", OPTCC_STRING, &node, error) ||
          !optcci_need_exact(plan, nic, "out", error) || !optcci_need_exact(plan, nic, "in", error))
        return 0;
    }
  }
  return 1;
}

static inline int optcci_check_ends(optcc_plan *plan, uint32_t lowered, optcc_error *error) {
  int32_t i;
  int64_t value;
  uint32_t node;
  if (!optcci_need_objects(plan, lowered, "ranks", &plan->at_ranks, &plan->ranks, error) ||
      !optcci_need_objects(plan, lowered, "ports", &plan->at_ports, &plan->ports, error) ||
      !optcci_need_objects(plan, lowered, "links", &plan->at_links, &plan->links, error))
    return 0;
  if (!plan->ranks) return optcci_bad(plan, plan->at_ranks, OPTCC_RANGE, "ranks", error);
  for (i = 0; i < plan->ranks; i++) {
    uint32_t rank = optcci_element(plan, plan->at_ranks, i);
    if (!optcci_need(plan, rank, "name", OPTCC_STRING, &node, error) ||
        !optcci_need_whole(plan, rank, "server", 0, plan->servers - 1, &value, error))
      return 0;
  }
  for (i = 0; i < plan->ports; i++) {
    uint32_t port = optcci_element(plan, plan->at_ports, i), rail = optcci_get(plan, port, "rail");
    uint32_t nvlink = optcci_get(plan, port, "nvlink");
    if (!optcci_need(plan, port, "name", OPTCC_STRING, &node, error) ||
        !optcci_need_whole(plan, port, "rank", 0, plan->ranks - 1, &value, error) ||
        !optcci_need_exact(plan, port, "out", error) || !optcci_need_exact(plan, port, "in", error))
      return 0;
    if (!rail || (plan->nodes[rail].type != OPTCC_NULL && !optcci_need_whole(plan, port, "rail", 0, INT32_MAX, &value, error)))
      return optcci_bad(plan, rail ? rail : port, OPTCC_FIELD, "rail", error);
    if (!nvlink || (plan->nodes[nvlink].type != OPTCC_TRUE && plan->nodes[nvlink].type != OPTCC_FALSE))
      return optcci_bad(plan, nvlink ? nvlink : port, OPTCC_FIELD, "nvlink", error);
  }
  for (i = 0; i < plan->links; i++) {
    uint32_t link = optcci_element(plan, plan->at_links, i);
    if (!optcci_need(plan, link, "name", OPTCC_STRING, &node, error) || !optcci_need_exact(plan, link, "rate", error))
      return 0;
  }
  return 1;
}

static inline int optcci_check_route(const optcc_plan *plan, int32_t which, optcc_error *error) {
  uint32_t route = optcci_element(plan, plan->at_routes, which), list, cuts;
  int32_t i, lanes, splits;
  int64_t src, dst, value, last = 0;
  double sum = 0;
  if (!optcci_need_whole(plan, route, "src", 0, plan->ranks - 1, &src, error) ||
      !optcci_need_whole(plan, route, "dst", 0, plan->ranks - 1, &dst, error) ||
      !optcci_need_objects(plan, route, "lanes", &list, &lanes, error))
    return 0;
  if (src == dst || !lanes) return optcci_bad(plan, route, OPTCC_RANGE, src == dst ? "dst" : "lanes", error);
  for (i = 0; i < lanes; i++) {
    uint32_t lane = optcci_element(plan, list, i), links;
    optcc_exact share;
    if (!optcci_need_whole(plan, lane, "out", 0, (int64_t)plan->ports - 1, &value, error)) return 0;
    if (optcc_port_at(plan, (int32_t)value).rank != src) return optcci_bad(plan, lane, OPTCC_RANGE, "out", error);
    if (!optcci_need_whole(plan, lane, "into", 0, (int64_t)plan->ports - 1, &value, error)) return 0;
    if (optcc_port_at(plan, (int32_t)value).rank != dst) return optcci_bad(plan, lane, OPTCC_RANGE, "into", error);
    if (!optcci_need_exact(plan, lane, "share", error) ||
        !optcci_need_list(plan, lane, "links", -1, (int64_t)plan->links - 1, &links, error))
      return 0;
    optcci_exact(plan, optcci_get(plan, lane, "share"), &share);
    sum += share.value;
  }
  if (!(sum > 1 - 1e-9 && sum < 1 + 1e-9)) return optcci_bad(plan, list, OPTCC_RANGE, "share", error);
  if (!optcci_need_objects(plan, route, "splits", &list, &splits, error)) return 0;
  for (i = 0; i < splits; i++) {
    uint32_t split = optcci_element(plan, list, i);
    if (!optcci_need_whole(plan, split, "length", last + 1, plan->nbytes, &value, error) ||
        !optcci_need_list(plan, split, "cuts", (int64_t)lanes + 1, value, &cuts, error))
      return 0;
    if (!optcci_ascend(plan, cuts, 0, value) || optcci_at(plan, cuts, 0) || optcci_at(plan, cuts, lanes) != value)
      return optcci_bad(plan, cuts, OPTCC_RANGE, "cuts", error);
    last = value;
  }
  return 1;
}

static inline int optcci_check_channel(const optcc_plan *plan, optcc_node *nodes, int32_t which, optcc_error *error) {
  uint32_t channel = optcci_element(plan, plan->at_channels, which), node, members, leaves, list, cuts;
  int32_t i, segments, sections = 1;
  int64_t value, ranks = plan->ranks;
  int tree;
  if (!optcci_need(plan, channel, "kind", OPTCC_STRING, &node, error)) return 0;
  tree = optcci_same(plan->text, &plan->nodes[node], "tree");
  if (!tree && !optcci_same(plan->text, &plan->nodes[node], "ring"))
    return optcci_bad(plan, node, OPTCC_UNKNOWN, "kind", error);
  if (!optcci_need_whole(plan, channel, "window", 0, INT32_MAX, &value, error)) return 0;
  if (tree) {
    if (!optcci_need_whole(plan, channel, "root", 0, ranks - 1, &value, error) ||
        !optcci_need_list(plan, channel, "up", ranks - 1, (int64_t)plan->routes - 1, &list, error) ||
        !optcci_need_list(plan, channel, "down", ranks - 1, (int64_t)plan->routes - 1, &list, error))
      return 0;
  } else {
    if (!optcci_need_list(plan, channel, "members", -1, ranks - 1, &members, error)) return 0;
    value = ranks - (int64_t)plan->nodes[members].size;
    if (value < 0 || value >= ranks) return optcci_bad(plan, members, OPTCC_RANGE, "members", error);
    if (!optcci_need_list(plan, channel, "leaves", value, ranks - 1, &leaves, error) ||
        !optcci_need_list(plan, channel, "owners", -1, ranks - 1, &list, error))
      return 0;
    sections = (int32_t)plan->nodes[list].size;
    optcci_mark(plan, nodes, members, 2 * (uint32_t)which + 1);
    if (!optcci_marked(plan, list, 2 * (uint32_t)which + 1)) return optcci_bad(plan, list, OPTCC_RANGE, "owners", error);
    if (!optcci_need_list(plan, channel, "via", value ? sections : 0, ranks - 1, &list, error)) return 0;
    optcci_mark(plan, nodes, leaves, 2 * (uint32_t)which + 2);
    if (value && !optcci_marked(plan, list, 2 * (uint32_t)which + 2))
      return optcci_bad(plan, list, OPTCC_RANGE, "via", error);
  }
  if (!optcci_need_objects(plan, channel, "segments", &list, &segments, error)) return 0;
  for (i = 0; i < segments; i++) {
    uint32_t segment = optcci_element(plan, list, i);
    int64_t number;
    if (!optcci_need_whole(plan, segment, "segment", 0, INT32_MAX, &number, error) ||
        !optcci_need_list(plan, segment, "cuts", (int64_t)sections + 1, plan->nbytes, &cuts, error))
      return 0;
    if (!optcci_ascend(plan, cuts, 0, plan->nbytes)) return optcci_bad(plan, cuts, OPTCC_RANGE, "cuts", error);
    if (tree) continue;
    if (!optcci_need(plan, segment, "ordering", OPTCC_STRING, &node, error)) return 0;
    if (optcci_ordering(plan, node) < 0) return optcci_bad(plan, node, OPTCC_UNKNOWN, "ordering", error);
    if ((optcci_ordering(plan, node) == OPTCC_PLAIN) != !value)
      return optcci_bad(plan, node, OPTCC_RANGE, "ordering", error);
  }
  return 1;
}

static inline int optcci_check_transfers(optcc_plan *plan, uint32_t lowered, optcc_error *error) {
  static const char *const names[] = {"src", "dst", "route", "offset", "length", "reduce", "stage", "segment"};
  int64_t most[8], row, k, begin, end;
  uint32_t node;
  int c;
  if (!optcci_need(plan, lowered, "transfers", OPTCC_OBJECT, &node, error) ||
      !optcci_need_whole(plan, node, "count", 0, UINT32_MAX, &plan->transfers, error))
    return 0;
  most[0] = most[1] = (int64_t)plan->ranks - 1;
  most[2] = (int64_t)plan->routes - 1;
  most[3] = most[4] = plan->nbytes;
  most[5] = 1;
  most[6] = 4;
  most[7] = INT32_MAX;
  for (c = 0; c < 8; c++)
    if (!optcci_need_list(plan, node, names[c], plan->transfers, most[c], &plan->column[c], error)) return 0;
  if (!optcci_need_list(plan, node, "deps", -1, plan->transfers - 1, &plan->at_deps, error)) return 0;
  end = (int64_t)plan->nodes[plan->at_deps].size;
  if (!optcci_need_list(plan, node, "dep_ptr", plan->transfers + 1, end, &plan->at_ptr, error)) return 0;
  if (optcci_at(plan, plan->at_ptr, 0) != 0 || optcci_at(plan, plan->at_ptr, plan->transfers) != end ||
      !optcci_ascend(plan, plan->at_ptr, 0, end))
    return optcci_bad(plan, plan->at_ptr, OPTCC_RANGE, "dep_ptr", error);
  for (row = 0; row < plan->transfers; row++) {
    optcc_transfer move = optcc_transfer_at(plan, row);
    optcc_route route = optcc_route_at(plan, move.route);
    if (route.src != move.src || route.dst != move.dst)
      return optcci_bad(plan, optcci_element(plan, plan->column[2], row), OPTCC_RANGE, "route", error);
    if (move.length < 1 || move.offset > plan->nbytes - move.length)
      return optcci_bad(plan, optcci_element(plan, plan->column[4], row), OPTCC_RANGE, "length", error);
    if (move.stage < 1) return optcci_bad(plan, optcci_element(plan, plan->column[6], row), OPTCC_RANGE, "stage", error);
    if (!optcc_split(plan, &route, move.length, 0, &begin, &end))
      return optcci_bad(plan, optcci_element(plan, plan->column[4], row), OPTCC_RANGE, "splits", error);
    for (k = 0; k < move.deps; k++) {
      int64_t dep = optcc_dep(plan, &move, k);
      if (dep >= row || optcci_at(plan, plan->column[1], dep) != move.src)
        return optcci_bad(plan, optcci_element(plan, plan->at_deps, move.first_dep + k), OPTCC_RANGE, "deps", error);
    }
  }
  return 1;
}

static inline int optcci_check_lowered(optcc_plan *plan, optcc_node *nodes, uint32_t lowered, optcc_error *error) {
  uint32_t node;
  int32_t i;
  if (!optcci_need(plan, lowered, "depth", OPTCC_STRING, &node, error)) return 0;
  if (optcci_same(plan->text, &plan->nodes[node], "layout")) plan->depth = OPTCC_LAYOUT;
  else if (optcci_same(plan->text, &plan->nodes[node], "transfers")) plan->depth = OPTCC_TRANSFERS;
  else return optcci_bad(plan, node, OPTCC_UNKNOWN, "depth", error);
  if (!optcci_need_whole(plan, lowered, "granule", 1, INT32_MAX, &plan->granule, error) ||
      !optcci_check_ends(plan, lowered, error) ||
      !optcci_need_objects(plan, lowered, "routes", &plan->at_routes, &plan->routes, error) ||
      !optcci_need_objects(plan, lowered, "channels", &plan->at_channels, &plan->channels, error))
    return 0;
  for (i = 0; i < plan->routes; i++)
    if (!optcci_check_route(plan, i, error)) return 0;
  for (i = 0; i < plan->channels; i++)
    if (!optcci_check_channel(plan, nodes, i, error)) return 0;
  return plan->depth == OPTCC_LAYOUT || optcci_check_transfers(plan, lowered, error);
}

static inline int optcci_version(const optcc_plan *plan, uint32_t node, int32_t *major, int32_t *minor) {
  optcc_text text = optcci_text(plan, node);
  int32_t parts[2] = {0, 0};
  size_t at = 0;
  int which;
  for (which = 0; which < 2; which++) {
    size_t first = at;
    while (at < text.length && text.at[at] >= '0' && text.at[at] <= '9' && at - first < 6)
      parts[which] = parts[which] * 10 + (text.at[at++] - '0');
    if (at == first || (text.at[first] == '0' && at - first > 1)) return 0;
    if (which == 0 && (at >= text.length || text.at[at++] != '.')) return 0;
  }
  *major = parts[0];
  *minor = parts[1];
  return at == text.length;
}

/* Read the plan in `text`. 1, or 0 and an error. See the top of this file. */
static inline int optcc_plan_open(
    optcc_plan *plan, const char *text, size_t length, optcc_node *nodes, size_t room, optcc_error *error) {
  size_t values = 0, needed;
  uint32_t node, i;
  optcci_fail(error, OPTCC_OK, 0, "");
  memset(plan, 0, sizeof *plan);
  needed = nodes ? optcci_scan(text, length, nodes, room, &values, error) : 0;
  if (!nodes) return optcci_fail(error, OPTCC_NO_ROOM, 0, "no nodes");
  if (!needed) return 0;
  if (needed > room) return optcci_fail(error, OPTCC_NO_ROOM, 0, "fewer nodes than optcc_plan_room says");
  if (!optcci_index(text, nodes, values, error)) return 0;
  plan->text = text;
  plan->nodes = nodes;
  node = optcci_get(plan, 0, "format");
  if (!node || nodes[node].type != OPTCC_STRING || !optcci_same(text, &nodes[node], "optcc-plan"))
    return optcci_bad(plan, node, OPTCC_NOT_A_PLAN, "format", error);
  node = optcci_get(plan, 0, "version");
  if (!node || !optcci_version(plan, node, &plan->major, &plan->minor) || plan->major != OPTCC_PLAN_MAJOR)
    return optcci_bad(plan, node, OPTCC_NOT_A_PLAN, "version", error);
  if (!optcci_need(plan, 0, "plan_id", OPTCC_STRING, &node, error)) return 0;
  plan->id = optcci_text(plan, node);
  for (i = 0; i < plan->id.length; i++)
    if (!strchr("0123456789abcdef", plan->id.at[i] ? plan->id.at[i] : 'x')) break;
  if (i != 16 || plan->id.length != 16) return optcci_bad(plan, node, OPTCC_FIELD, "plan_id", error);
  if (!optcci_need(plan, 0, "family", OPTCC_STRING, &node, error)) return 0;
  plan->family = optcci_text(plan, node);
  if (!optcci_need_whole(plan, 0, "nbytes", 0, INT64_MAX, &plan->nbytes, error)) return 0;
  if (!optcci_check_cluster(plan, error)) return 0;
  node = optcci_get(plan, 0, "lowered");
  if (!node) return 1;
  return optcci_check_lowered(plan, nodes, node, error);
}

#endif
