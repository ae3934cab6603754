/* Plans that were written beforehand (`optcc nccl --prepare`), and which of them a call takes.
 *
 * A plan is for a number of nodes with certain rates. It is a cycle of programs, one for each of so many calls in a row;
 * a program is the transfers of one call, whose bytes are cut at fractions. So one plan serves calls of any length.
 *
 *   optcc-plan 1
 *   nodes 4
 *   rates 1000 1000 1000 500        by role, thousandths of the fastest
 *   programs 1
 *   program 2 6                     transfers; their order is priority; positions are multiples of 1/6 of a call
 *   0 1 0 3 +                       from, to, first and last cut, + adds and = overwrites
 *   1 2 0 3 + 0                     waits for transfer 0
 *   end
 *
 * Nothing of a file is believed: a plan that passes is an AllReduce, whatever comes first on the way. Each transfer
 * reads and writes bytes only when all transfers that touch them before it in the order are known to be done; each
 * node's number is added once; and what nodes end with was added up at one of them, so they have the same bits.
 *
 * Without a plan that suits, a call goes by a ring.
 */
#define _GNU_SOURCE
#include "net.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_PLANS = 1024,
    MOST_FILE = 4 << 20,   /* bytes */
    MOST_PROGRAMS = 16,    /* of a plan */
    MOST_ROWS = 4096,      /* of a program */
    MOST_CUTS = 1 << 24,
    FASTEST = 1000,        /* thousandths */
    SLOW = 970,            /* a node below is a slow one */
    NEAR = 125,            /* thousandths of the fastest by which a node's rate may differ from the plan's */
    GRAIN = 64             /* bytes: where a call is cut */
};

struct stream {
    uint32_t rows, cuts;
    uint32_t *src, *dst, *first, *last; /* by row; nodes by role; cuts */
    uint8_t *reduce;
    int64_t *dep_ptr, *dep_idx;
};

struct plan {
    char name[64];
    uint32_t nodes, programs;
    uint32_t rate[MOST_NODES]; /* thousandths of the fastest */
    struct stream *program;
};

struct plans {
    uint32_t count;
    struct plan plan[MOST_PLANS];
    uint8_t code[OPTCC_HMAC];
};

/* ---- the check ----------------------------------------------------------------------------------------------------- */

static int bit(const uint64_t *words, uint32_t i) { return words[i / 64] >> i % 64 & 1; }

static int overlap(const struct stream *s, uint32_t a, uint32_t b)
{
    return s->first[a] < s->last[b] && s->first[b] < s->last[a];
}

/* For each row which others are done, whatever the times, when it is sent. `done` : rows x words, zero */
static void know_done(const struct stream *s, uint64_t *done, uint32_t words)
{
    for (uint32_t r = 0; r < s->rows; r++)
        for (int64_t i = s->dep_ptr[r]; i < s->dep_ptr[r + 1]; i++) {
            const uint32_t dep = (uint32_t)s->dep_idx[i];
            for (uint32_t e = 0; e <= dep; e++) {
                /* of sums into the same bytes of a node an earlier one is done before a later one is */
                if (e != dep && !(s->reduce[e] && s->reduce[dep] && s->dst[e] == s->dst[dep] && overlap(s, e, dep)))
                    continue;
                done[(size_t)r * words + e / 64] |= UINT64_C(1) << e % 64;
                for (uint32_t w = 0; w < words; w++)
                    done[(size_t)r * words + w] |= done[(size_t)e * words + w];
            }
        }
}

/* The first pair of rows that might touch bytes in another order than theirs; 1: there is one. */
static int races(const struct stream *s, const uint64_t *done, uint32_t words, uint32_t *early, uint32_t *late)
{
    for (uint32_t r = 0; r < s->rows; r++)
        for (uint32_t e = 0; e < r; e++) {
            const int reads = s->dst[e] == s->src[r] || s->src[e] == s->dst[r];
            const int writes = s->dst[e] == s->dst[r] && !(s->reduce[e] && s->reduce[r]);
            if ((reads || writes) && overlap(s, e, r) && !bit(done + (size_t)r * words, e)) {
                *early = e;
                *late = r;
                return 1;
            }
        }
    return 0;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

struct held { /* what a node has of a piece: whose numbers are in it; where and when they were added up last */
    uint64_t of;
    uint32_t made;
};

/* In the order of rows: NULL, or what is wrong. */
static const char *play(const struct stream *s, uint32_t nodes, const uint32_t *edge, uint32_t edges, struct held *held)
{
    const uint32_t pieces = edges - 1;
    const uint64_t all = nodes == 64 ? UINT64_MAX : (UINT64_C(1) << nodes) - 1;
    for (uint32_t n = 0; n < nodes; n++)
        for (uint32_t p = 0; p < pieces; p++)
            held[(size_t)n * pieces + p] = (struct held){UINT64_C(1) << n, n};
    for (uint32_t r = 0; r < s->rows; r++)
        for (uint32_t p = 0; p < pieces; p++) {
            if (edge[p] < s->first[r] || edge[p] >= s->last[r])
                continue;
            const struct held *from = &held[(size_t)s->src[r] * pieces + p];
            struct held *to = &held[(size_t)s->dst[r] * pieces + p];
            if (s->reduce[r] && to->of & from->of)
                return "a node's number is added twice";
            *to = s->reduce[r] ? (struct held){to->of | from->of, nodes + r} : *from;
        }
    for (uint32_t p = 0; p < pieces; p++)
        for (uint32_t n = 0; n < nodes; n++) {
            if (held[(size_t)n * pieces + p].of != all)
                return "a node ends without the number of another";
            if (held[(size_t)n * pieces + p].made != held[p].made)
                return "nodes end with sums that were made in different places";
        }
    return NULL;
}

/* Whether a program is an AllReduce. Rows are in range, and wait for lower ones that end where they begin. */
static int good_program(const struct stream *s, uint32_t nodes, char *why, size_t room)
{
    const uint32_t words = s->rows / 64 + 1;
    uint32_t edges = 0, distinct = 0, early = 0, late = 0;
    uint64_t *done = calloc((size_t)s->rows * words + 1, sizeof *done);
    uint32_t *edge = calloc(2 * (size_t)s->rows + 2, sizeof *edge);
    struct held *held = calloc((size_t)nodes * (2 * (size_t)s->rows + 2), sizeof *held);
    const char *bad = done && edge && held ? NULL : "no memory";
    if (!bad) {
        know_done(s, done, words);
        if (races(s, done, words, &early, &late)) {
            snprintf(why, room, "transfer %u does not wait for transfer %u, which touches the same bytes", late, early);
            bad = why;
        }
    }
    if (!bad) {
        edge[edges++] = 0;
        edge[edges++] = s->cuts;
        for (uint32_t r = 0; r < s->rows; r++) {
            edge[edges++] = s->first[r];
            edge[edges++] = s->last[r];
        }
        qsort(edge, edges, sizeof *edge, ascending);
        for (uint32_t i = 0; i < edges; i++)
            if (i == 0 || edge[i] != edge[i - 1])
                edge[distinct++] = edge[i];
        bad = play(s, nodes, edge, distinct, held);
    }
    if (bad && bad != why)
        snprintf(why, room, "%s", bad);
    free(done);
    free(edge);
    free(held);
    return !bad;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

struct text {
    char *at;
    uint32_t line;
};

/* The next line, without its end; NULL: there is none. */
static char *line_of(struct text *t)
{
    char *const begun = t->at;
    if (!*begun)
        return NULL;
    char *const end = strchr(begun, '\n');
    t->line++;
    t->at = end ? end + 1 : begun + strlen(begun);
    if (end)
        *end = 0;
    return begun;
}

/* A whole number in a range, which ends with a space or the line. */
static int number_of(char **at, uint64_t low, uint64_t high, uint32_t *value)
{
    char *end;
    if (**at < '0' || **at > '9')
        return 0;
    errno = 0;
    const unsigned long long told = strtoull(*at, &end, 10);
    if (errno || told < low || told > high || (*end && *end != ' '))
        return 0;
    *value = (uint32_t)told;
    *at = *end ? end + 1 : end;
    return 1;
}

/* A line "name number", or with a second one up to MOST_CUTS. */
static int named(struct text *t, const char *name, uint64_t low, uint64_t high, uint32_t *value, uint32_t *cuts)
{
    char *at = line_of(t);
    const size_t length = strlen(name);
    if (!at || strncmp(at, name, length) || at[length] != ' ')
        return 0;
    at += length + 1;
    return number_of(&at, low, high, value) && (!cuts || number_of(&at, 1, MOST_CUTS, cuts)) && !*at;
}

static int room_for(struct stream *s, uint32_t rows, size_t deps)
{
    s->rows = rows;
    s->src = calloc(rows + UINT64_C(1), sizeof *s->src);
    s->dst = calloc(rows + UINT64_C(1), sizeof *s->dst);
    s->first = calloc(rows + UINT64_C(1), sizeof *s->first);
    s->last = calloc(rows + UINT64_C(1), sizeof *s->last);
    s->reduce = calloc(rows + UINT64_C(1), 1);
    s->dep_ptr = calloc(rows + UINT64_C(1), sizeof *s->dep_ptr);
    s->dep_idx = calloc(deps + 1, sizeof *s->dep_idx);
    return s->src && s->dst && s->first && s->last && s->reduce && s->dep_ptr && s->dep_idx;
}

static void forget(struct stream *s)
{
    free(s->src);
    free(s->dst);
    free(s->first);
    free(s->last);
    free(s->reduce);
    free(s->dep_ptr);
    free(s->dep_idx);
}

static int read_row(struct stream *s, uint32_t r, uint32_t nodes, char *at, size_t most_deps)
{
    uint32_t dep;
    if (!number_of(&at, 0, nodes - 1, &s->src[r]) || !number_of(&at, 0, nodes - 1, &s->dst[r]) ||
        !number_of(&at, 0, s->cuts - 1, &s->first[r]) || !number_of(&at, s->first[r] + 1, s->cuts, &s->last[r]) ||
        s->src[r] == s->dst[r] || (*at != '+' && *at != '=') || (at[1] && at[1] != ' '))
        return 0;
    s->reduce[r] = *at == '+';
    at += at[1] ? 2 : 1;
    s->dep_ptr[r + 1] = s->dep_ptr[r];
    while (*at) {
        if (!r || (size_t)s->dep_ptr[r + 1] >= most_deps || !number_of(&at, 0, r - 1, &dep) || s->dst[dep] != s->src[r])
            return 0;
        s->dep_idx[s->dep_ptr[r + 1]++] = dep;
    }
    return 1;
}

static int read_plan(struct text *t, struct plan *plan, char *why, size_t room)
{
    char *at = line_of(t);
    size_t most_deps = strlen(t->at) / 2 + 1;
    uint32_t fastest = 0;
    snprintf(why, room, "not what stands here in a plan");
    if (!at || strcmp(at, "optcc-plan 1") || !named(t, "nodes", 2, MOST_NODES, &plan->nodes, NULL) || !(at = line_of(t)) ||
        strncmp(at, "rates ", 6))
        return 0;
    at += 6;
    for (uint32_t i = 0; i < plan->nodes; i++) {
        if (!number_of(&at, 1, 1000, &plan->rate[i]))
            return 0;
        fastest = plan->rate[i] > fastest ? plan->rate[i] : fastest;
    }
    if (*at || fastest != 1000)
        return 0;
    if (!named(t, "programs", 1, MOST_PROGRAMS, &plan->programs, NULL) ||
        !(plan->program = calloc(plan->programs, sizeof *plan->program)))
        return 0;
    for (uint32_t k = 0; k < plan->programs; k++) {
        struct stream *s = &plan->program[k];
        uint32_t rows;
        if (!named(t, "program", 1, MOST_ROWS, &rows, &s->cuts) || !room_for(s, rows, most_deps))
            return 0;
        for (uint32_t r = 0; r < rows; r++)
            if (!(at = line_of(t)) || !read_row(s, r, plan->nodes, at, most_deps))
                return 0;
        if (!good_program(s, plan->nodes, why, room))
            return 0;
        snprintf(why, room, "not what stands here in a plan");
    }
    return (at = line_of(t)) && !strcmp(at, "end") && !line_of(t);
}

/* The whole of a file, and a 0 behind it; NULL, and `why`. */
static char *read_file(const char *path, size_t *length, char *why, size_t room)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *bytes = NULL;
    *length = 0;
    if (fd < 0 || fstat(fd, &about)) {
        snprintf(why, room, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(about.st_mode) || about.st_size > MOST_FILE) {
        snprintf(why, room, "%s: not a file of at most %d bytes", path, MOST_FILE);
    } else if ((bytes = malloc((size_t)about.st_size + 1))) {
        ssize_t got;
        while (*length < (size_t)about.st_size &&
               (got = read(fd, bytes + *length, (size_t)about.st_size - *length)) > 0)
            *length += (size_t)got;
        bytes[*length] = 0;
        if (strlen(bytes) != *length) {
            snprintf(why, room, "%s: not text", path);
            free(bytes);
            bytes = NULL;
        }
    }
    if (fd >= 0)
        close(fd);
    return bytes;
}

static int wanted(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 5 && !strcmp(entry->d_name + length - 5, ".plan");
}

static int by_bytes(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static int read_one(struct plans *plans, const char *folder, const char *name, char *why, size_t room)
{
    char path[PATH_MAX], what[256];
    size_t length;
    struct plan *plan = &plans->plan[plans->count];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        snprintf(why, room, "%s: too long a path", folder);
        return 0;
    }
    char *bytes = read_file(path, &length, why, room);
    if (!bytes)
        return 0;
    uint8_t before[OPTCC_HMAC];
    memcpy(before, plans->code, sizeof before);
    optcc_hmac(before, sizeof before, bytes, length, plans->code);
    plans->count++;
    snprintf(plan->name, sizeof plan->name, "%s", name);
    struct text t = {bytes, 0};
    const int good = read_plan(&t, plan, what, sizeof what);
    if (!good)
        snprintf(why, room, "%s: line %u: %s; write the plans anew with optcc nccl --prepare", path, t.line, what);
    free(bytes);
    return good;
}

int plans_open(const char *folder, struct plans **plans, char *why, size_t room)
{
    struct dirent **entries = NULL;
    int good = 0;
    *plans = calloc(1, sizeof **plans);
    const int count = *plans ? scandir(folder, &entries, wanted, by_bytes) : -1;
    if (count <= 0 || count > MOST_PLANS) {
        snprintf(why, room, "OPTCC_PLANS=%s: %s", folder,
                 count < 0 ? strerror(errno) : count ? "more than 1024 plans" : "no plans there (*.plan)");
    } else {
        good = 1;
        for (int i = 0; i < count && good; i++)
            good = read_one(*plans, folder, entries[i]->d_name, why, room);
    }
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    if (!good) {
        plans_close(*plans);
        *plans = NULL;
    }
    return good;
}

void plans_close(struct plans *plans)
{
    for (uint32_t i = 0; plans && i < plans->count; i++) {
        for (uint32_t k = 0; plans->plan[i].program && k < plans->plan[i].programs; k++)
            forget(&plans->plan[i].program[k]);
        free(plans->plan[i].program);
    }
    free(plans);
}

uint32_t plans_count(const struct plans *plans) { return plans ? plans->count : 0; }
const char *plans_name(const struct plans *plans, uint32_t plan)
{
    return plans && plan < plans->count ? plans->plan[plan].name : "ring";
}

void plans_code(const struct plans *plans, uint8_t code[OPTCC_HMAC])
{
    memset(code, 0, OPTCC_HMAC);
    if (plans)
        memcpy(code, plans->code, OPTCC_HMAC);
}

int plans_slow(const struct plans *plans, uint32_t plan)
{
    const struct plan *p = plans && plan < plans->count ? &plans->plan[plan] : NULL;
    for (uint32_t n = 0; p && n < p->nodes; n++)
        if (p->rate[n] < SLOW)
            return 1;
    return 0;
}

uint32_t plans_slowest(const struct plans *plans)
{
    uint32_t i = 0, slowest = FASTEST;
    while (plans && i < plans->count && strcmp(plans->plan[i].name, "now.plan"))
        i++;
    const struct plan *p = plans && i < plans->count ? &plans->plan[i] : NULL;
    for (uint32_t n = 0; p && n < p->nodes; n++)
        slowest = p->rate[n] < slowest ? p->rate[n] : slowest;
    return slowest;
}

/* ---- which one, and what it becomes -------------------------------------------------------------------------------- */

/* Things from the highest rate to the lowest; equal ones as they are. */
static void by_rate(const uint32_t *rate, uint32_t count, uint16_t *order)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        while (at && rate[order[at - 1]] < rate[i]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = (uint16_t)i;
    }
}

uint32_t plans_choose(const struct plans *plans, uint32_t nodes, const uint32_t *mbps, uint16_t *node_of)
{
    uint16_t order[MOST_NODES], roles[MOST_NODES];
    uint32_t rate[MOST_NODES], fastest = 1, best = OPTCC_NONE, best_far = NEAR + 1;
    uint64_t best_sum = UINT64_MAX;
    for (uint32_t i = 0; i < nodes; i++) {
        node_of[i] = (uint16_t)i;
        fastest = mbps[i] > fastest ? mbps[i] : fastest;
    }
    for (uint32_t i = 0; i < nodes; i++)
        rate[i] = (uint32_t)((uint64_t)mbps[i] * 1000 / fastest);
    by_rate(rate, nodes, order);
    for (uint32_t k = 0; plans && k < plans->count; k++) {
        const struct plan *p = &plans->plan[k];
        uint32_t far = 0;
        uint64_t sum = 0;
        if (p->nodes != nodes)
            continue;
        by_rate(p->rate, nodes, roles);
        for (uint32_t i = 0; i < nodes; i++) {
            const uint32_t one = rate[order[i]], other = p->rate[roles[i]], apart = one > other ? one - other : other - one;
            far = apart > far ? apart : far;
            sum += apart;
        }
        if (far > NEAR || far > best_far || (far == best_far && sum >= best_sum))
            continue;
        best = k;
        best_far = far;
        best_sum = sum;
        for (uint32_t i = 0; i < nodes; i++)
            node_of[roles[i]] = order[i];
    }
    return best;
}

/* Reduce around and copy around, in as many parts as make transfers of about a segment. */
static int make_ring(struct stream *s, uint32_t nodes, uint64_t bytes, uint32_t segment_bytes)
{
    const uint32_t steps = 2 * (nodes - 1), most = MOST_ROWS / (steps * nodes);
    const uint64_t fits = (bytes + (uint64_t)nodes * segment_bytes - 1) / ((uint64_t)nodes * segment_bytes);
    const uint32_t parts = fits < 1 || most < 1 ? 1 : fits < most ? (uint32_t)fits : most;
    const uint32_t width = parts * nodes; /* transfers of a step */
    if (!room_for(s, width * steps, width * (size_t)steps))
        return 0;
    s->cuts = width;
    for (uint32_t r = 0; r < s->rows; r++) {
        const uint32_t step = r / width, part = r % width / nodes, src = r % nodes;
        const uint32_t section = (src + 2 * nodes - step % (nodes - 1) + step / (nodes - 1)) % nodes;
        s->src[r] = src;
        s->dst[r] = (src + 1) % nodes;
        s->first[r] = part * nodes + section;
        s->last[r] = s->first[r] + 1;
        s->reduce[r] = step < nodes - 1;
        s->dep_ptr[r + 1] = s->dep_ptr[r];
        if (step) /* what came to `src` in the step before */
            s->dep_idx[s->dep_ptr[r + 1]++] = r - width - src + (src + nodes - 1) % nodes;
    }
    return 1;
}

static int64_t place(uint32_t cut, uint32_t cuts, uint64_t bytes)
{
    const uint64_t at = (uint64_t)((unsigned __int128)bytes * cut / cuts);
    return (int64_t)(cut == cuts ? bytes : at / GRAIN * GRAIN);
}

/* Transfers as the engine has them: with bytes, and nodes by number. What would carry nothing is left out. */
static int open_rows(const struct stream *s, const uint16_t *node_of, uint32_t nodes, uint32_t rank,
                     uint64_t bytes, uint32_t segment_bytes, struct optcc_program **program)
{
    const size_t count = s->rows + (size_t)1, deps = (size_t)s->dep_ptr[s->rows] + 1;
    int32_t *src = calloc(3 * count, sizeof *src), *dst = src ? src + count : NULL, *route = src ? dst + count : NULL;
    int64_t *offset = calloc(4 * count + 1 + deps, sizeof *offset), *length = NULL, *kept = NULL, *ptr = NULL, *idx = NULL;
    uint8_t *reduce = calloc(count, 1);
    int result = OPTCC_MEMORY;
    if (src && offset && reduce) {
        struct optcc_rows rows = {.routes = 1};
        length = offset + count, kept = length + count, ptr = kept + count, idx = ptr + count + 1;
        for (uint32_t r = 0; r < s->rows; r++) {
            const int64_t from = place(s->first[r], s->cuts, bytes), to = place(s->last[r], s->cuts, bytes);
            kept[r] = -1;
            if (to == from)
                continue;
            const uint32_t i = rows.rows++;
            kept[r] = i;
            src[i] = node_of[s->src[r]];
            dst[i] = node_of[s->dst[r]];
            offset[i] = from;
            length[i] = to - from;
            reduce[i] = s->reduce[r];
            ptr[i + 1] = ptr[i];
            for (int64_t d = s->dep_ptr[r]; d < s->dep_ptr[r + 1]; d++)
                if (kept[s->dep_idx[d]] >= 0)
                    idx[ptr[i + 1]++] = kept[s->dep_idx[d]];
        }
        rows.src = src, rows.dst = dst, rows.route = route, rows.offset = offset, rows.length = length;
        rows.reduce = reduce, rows.dep_ptr = ptr, rows.dep_idx = idx;
        result = optcc_program_open(&rows, rank, nodes, NULL, bytes, segment_bytes, program);
    }
    free(src);
    free(offset);
    free(reduce);
    return result;
}

int plans_program(const struct plans *plans, uint32_t plan, uint64_t turn, const uint16_t *node_of, uint32_t nodes,
                  uint32_t rank, uint64_t bytes, uint32_t segment_bytes, struct optcc_program **program)
{
    const struct plan *p = plans && plan < plans->count ? &plans->plan[plan] : NULL;
    *program = NULL;
    if (p)
        return p->nodes != nodes ? OPTCC_BAD
                                 : open_rows(&p->program[turn % p->programs], node_of, nodes, rank, bytes,
                                             segment_bytes, program);
    struct stream ring = {.cuts = 1};
    int result = OPTCC_OK;
    if (nodes > 1)
        result = make_ring(&ring, nodes, bytes, segment_bytes) ? OPTCC_OK : OPTCC_MEMORY;
    else if (!room_for(&ring, 0, 0))
        result = OPTCC_MEMORY;
    if (result == OPTCC_OK)
        result = open_rows(&ring, node_of, nodes, rank, bytes, segment_bytes, program);
    forget(&ring);
    return result;
}

uint32_t plans_cycle(const struct plans *plans, uint32_t plan)
{
    return plans && plan < plans->count ? plans->plan[plan].programs : 1;
}
