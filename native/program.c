/* A rank's rows of a schedule: what is ready, what waits, where a segment lands, and in which order folds happen.
 *
 * The rules are those of optcc.schedule.columns:
 *
 *   - a row may be sent when every row that it waits for has come here whole, and is folded;
 *   - of what is ready the lowest row goes first;
 *   - rows that reduce into the same bytes are folded in row order. A segment that comes before its row's turn is kept.
 *     So the bits of a result do not depend on what came first.
 *
 * Copies and folds are the processor's, at once, or go as jobs to a folder, which does them when it does. A segment has
 * landed when its job is done, and a row is finished when all its jobs are; so nobody is sent, and no later row is
 * folded into, what a job has still to write.
 *
 * A row is cut into segments once, of one length but for the last: as many as its lanes, or a multiple, so that lanes of
 * one rate are done at the same time. The same cuts are sent again after a loss, and a segment is known by its row and
 * number.
 *
 * Memory: two bits for each segment that comes in, and room for every row that may come before its turn; with a folder
 * also a job for each segment, of which each has one at a time.
 */
#include "engine.h"

/* What lands beside (a row that reduces by OPTCC_BESIDE) is kept whole in `early`, and is never folded into the buffer.
 * It takes the sum so far in instead, and is the sum so far from then on. A send reads the sum of what it has waited for,
 * or a copy of the input. The last sum is copied into the buffer. So nothing that may still be sent, or sent again after
 * a loss, is written, and nobody waits for it. Such rows of a rank carry the same bytes or none in common. */

#include <stdlib.h>
#include <string.h>

#define NOWHERE UINT64_MAX
enum { GRAIN = 64 }; /* segments begin at multiples of it in their rows: bytes of a cache line, and of any element */

struct send {
    uint32_t row, peer;
    uint32_t segments, cut; /* how many, and the length of all but the last: bytes */
    uint32_t needs;   /* rows that it waits for */
    uint64_t offset, length; /* bytes of the buffer */
    uint64_t lanes;
    uint32_t to;    /* the peer's rank in the plan */
    uint64_t sum;   /* where in `early` its bytes are, or NOWHERE: in the buffer */
    /* while it runs */
    uint32_t waits; /* of `needs`, those still to come */
    uint32_t next;  /* segments taken */
    uint64_t ready_ns;
};

struct receive {
    uint32_t row, peer;
    uint32_t segments, cut; /* as of a send */
    uint32_t reduce;
    uint32_t earlier; /* rows that are folded into some of its bytes before it */
    uint64_t offset, length; /* bytes of the buffer */
    uint64_t bits;    /* its first bit in `came` and `early_is_there` */
    uint64_t kept;    /* where in `early` it is kept before its turn, bytes */
    uint32_t beside;  /* it is kept there for good, and the following say what becomes of it; places in `early` */
    uint64_t adds;    /* the sum that it takes in, or NOWHERE */
    uint64_t own;     /* NOWHERE, or where then the rank's own sum, which is at `base`, is copied and takes it in */
    uint64_t base;
    uint64_t result;  /* NOWHERE, or the sum that is the result, once this row is in it */
    /* while it runs */
    uint32_t before;  /* of `earlier`, those that are not folded yet: 0: it is its turn */
    uint32_t folded;  /* segments that are in the buffer for good, or landed beside */
    uint64_t at_ns;   /* the latest of what it has waited for */
    uint32_t finished;
};

enum target { IN_PLACE, EARLY, FROM_EARLY };

struct work { /* a copy or a fold of one segment */
    uint32_t receive, segment;
    uint32_t target; /* enum target */
    const void *bytes;
    uint64_t name;   /* of the segment, for who landed it; not FROM_EARLY */
    uint64_t ticket; /* once it has begun */
};

struct range { /* bytes of the buffer over which something lands beside, and the copy of the input in `early` */
    uint64_t offset, length, input;
    uint32_t sent; /* the input is sent */
};

struct lists { /* for each of some things a list of others */
    uint32_t *ptr, *idx;
};

struct side { /* a peer, as the program knows it */
    uint32_t peer;
    uint64_t to, from; /* segments */
};

struct optcc_program {
    struct optcc_call call;
    uint32_t item_bytes;   /* of the call's type */
    uint32_t granule;      /* bytes: the largest power of two, up to 16, that divides all offsets and lengths */
    uint32_t segment_bytes;
    uint32_t sends, receives, sides;
    struct send *send;
    struct receive *receive;
    struct side *side;
    struct range *range;
    uint32_t ranges;
    struct lists releases; /* receive -> sends that wait for it */
    struct lists after;    /* receive -> receives that are folded after it */
    uint64_t *ready;       /* a bit for each send that has segments to take */
    uint32_t first_word;   /* of `ready`: none is set before it */
    uint64_t *came;        /* a bit for each segment that has come */
    uint64_t *kept;        /* a bit for each that is in `early` */
    uint64_t came_words, early_bytes;
    unsigned char *early, *own_early, *buffer;
    uint32_t *stack;
    uint32_t unfinished; /* receives */
    uint32_t unsent;     /* sends */
    const struct optcc_folder *folder; /* NULL: the processor */
    void *folder_self;
    struct work *work;   /* a queue; work_room is one more than segments that come */
    uint64_t work_room, oldest, unbegun, newest; /* ever growing; from `oldest` on not done, from `unbegun` not begun */
    int stopped;
};

static int bit(const uint64_t *words, uint64_t i) { return words[i / 64] >> (i % 64) & 1; }
static void set(uint64_t *words, uint64_t i) { words[i / 64] |= UINT64_C(1) << (i % 64); }
static void clear(uint64_t *words, uint64_t i) { words[i / 64] &= ~(UINT64_C(1) << (i % 64)); }

/* Room for `count` things, zero, and never nothing. */
static void *room(uint64_t count, uint64_t bytes) { return calloc(count ? count : 1, bytes); }

static uint32_t segment_length(uint64_t row_length, uint32_t cut, uint32_t segment)
{
    const uint64_t rest = row_length - (uint64_t)segment * cut;
    return rest < cut ? (uint32_t)rest : cut;
}

/* How long the segments of a row are, the same at both of its ends. `most` : bytes; lanes : 0: any */
static uint32_t cut_of(uint64_t length, uint32_t most, uint64_t lanes)
{
    const uint64_t count = (length + most - 1) / most, in_turn = lanes ? (uint64_t)__builtin_popcountll(lanes) : 1;
    if (count < in_turn)
        return most;
    const uint64_t rounds = (count + in_turn - 1) / in_turn, even = (length + rounds * in_turn - 1) / (rounds * in_turn);
    const uint64_t cut = (even + GRAIN - 1) / GRAIN * GRAIN;
    return cut < most ? (uint32_t)cut : most;
}

/* The receive of a row, or UINT32_MAX. */
static uint32_t find(const struct optcc_program *p, uint32_t row)
{
    uint32_t low = 0, high = p->receives;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (p->receive[middle].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->receives && p->receive[low].row == row ? low : UINT32_MAX;
}

/* ---- making one -------------------------------------------------------------------------------------------------- */

struct pairs { /* (from, to), as they are found */
    uint32_t *from, *to;
    uint32_t count, room;
};

static int add(struct pairs *pairs, uint32_t from, uint32_t to)
{
    if (pairs->count == pairs->room) {
        const uint32_t more = pairs->room ? 2 * pairs->room : 64;
        uint32_t *one = realloc(pairs->from, more * sizeof *one);
        if (one)
            pairs->from = one;
        uint32_t *other = realloc(pairs->to, more * sizeof *other);
        if (other)
            pairs->to = other;
        if (!one || !other)
            return OPTCC_MEMORY;
        pairs->room = more;
    }
    pairs->from[pairs->count] = from;
    pairs->to[pairs->count++] = to;
    return OPTCC_OK;
}

/* Lists by `from`, of `things`; takes the pairs' memory back. */
static int into_lists(struct lists *lists, struct pairs *pairs, uint32_t things)
{
    lists->ptr = room(things + UINT64_C(2), sizeof *lists->ptr);
    lists->idx = room(pairs->count, sizeof *lists->idx);
    if (lists->ptr && lists->idx) {
        for (uint32_t i = 0; i < pairs->count; i++)
            lists->ptr[pairs->from[i] + 2]++;
        for (uint32_t i = 0; i < things; i++)
            lists->ptr[i + 2] += lists->ptr[i + 1];
        for (uint32_t i = 0; i < pairs->count; i++)
            lists->idx[lists->ptr[pairs->from[i] + 1]++] = pairs->to[i];
    }
    free(pairs->from);
    free(pairs->to);
    return lists->ptr && lists->idx ? OPTCC_OK : OPTCC_MEMORY;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t place(const uint64_t *edges, uint32_t count, uint64_t edge)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (edges[middle] < edge)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int overlap(uint64_t a, uint64_t a_length, uint64_t b, uint64_t b_length)
{
    return a < b + b_length && b < a + a_length;
}

/* Whether it comes from a lower rank. */
static int below(const struct optcc_rows *rows, const struct receive *r, uint32_t rank)
{
    return (uint32_t)rows->src[r->row] < rank;
}

static uint64_t take_early(struct optcc_program *p, uint64_t length)
{
    const uint64_t at = p->early_bytes;
    p->early_bytes += (length + GRAIN - 1) / GRAIN * GRAIN;
    return at;
}

/* The ranges over which something lands beside; BAD where a row touches a part of one, or one is changed in place. */
static int find_ranges(struct optcc_program *p)
{
    uint32_t beside = 0;
    for (uint32_t i = 0; i < p->receives; i++)
        beside += p->receive[i].beside;
    p->range = room(beside, sizeof *p->range);
    if (!p->range)
        return OPTCC_MEMORY;
    for (uint32_t i = 0; beside && i < p->receives; i++) {
        const struct receive *r = &p->receive[i];
        uint32_t k = 0;
        while (k < p->ranges && p->range[k].offset != r->offset)
            k++;
        if (r->beside && k == p->ranges)
            p->range[p->ranges++] = (struct range){.offset = r->offset, .length = r->length, .input = NOWHERE};
    }
    for (uint32_t k = 0; k < p->ranges; k++) {
        const struct range *g = &p->range[k];
        for (uint32_t i = 0; i < p->receives; i++) {
            const struct receive *r = &p->receive[i];
            if (overlap(g->offset, g->length, r->offset, r->length) &&
                (!r->beside || r->offset != g->offset || r->length != g->length))
                return OPTCC_BAD;
        }
        for (uint32_t s = 0; s < p->sends; s++) {
            const struct send *one = &p->send[s];
            if (overlap(g->offset, g->length, one->offset, one->length) &&
                (one->offset != g->offset || one->length != g->length))
                return OPTCC_BAD;
        }
    }
    return OPTCC_OK;
}

/* The latest row over a range that a send has waited for: 1 + its receive, or 0. */
static uint32_t waited_for(const struct optcc_program *p, const struct optcc_rows *rows, const struct send *send)
{
    uint32_t latest = 0;
    for (int64_t d = rows->dep_ptr[send->row]; d < rows->dep_ptr[send->row + 1]; d++) {
        const uint32_t r = find(p, (uint32_t)rows->dep_idx[d]);
        if (p->receive[r].beside && p->receive[r].offset == send->offset && latest < r + 1)
            latest = r + 1;
    }
    return latest;
}

/* Over each range: rows that no send tells apart are a group, in row order. In a group those from lower ranks are summed
 * up, then the rank's own sum so far takes this in, then those from higher ranks are added: so all ranks that have the
 * same parts get the same bits. `folds` : (row, row after it); `needs` : (row, send that reads its sum) */
static int chain(struct optcc_program *p, const struct optcc_rows *rows, uint32_t rank, struct pairs *folds,
                 struct pairs *needs)
{
    int result = find_ranges(p);
    uint8_t *ends = room(p->receives, 1); /* of a group */
    if (!ends)
        result = OPTCC_MEMORY;
    for (uint32_t k = 0; result == OPTCC_OK && k < p->ranges; k++) {
        struct range *g = &p->range[k];
        uint32_t last = 0;
        for (uint32_t i = 0; i < p->receives; i++)
            if (p->receive[i].beside && p->receive[i].offset == g->offset)
                last = i;
        ends[last] = 1;
        for (uint32_t s = 0; s < p->sends; s++)
            if (p->send[s].offset == g->offset) {
                const uint32_t latest = waited_for(p, rows, &p->send[s]);
                if (latest)
                    ends[latest - 1] = 1;
            }
        g->input = take_early(p, g->length);
        uint64_t base = g->input;
        uint32_t before = UINT32_MAX, begin = 0; /* the row that is in the chain last; the group's first */
        while (result == OPTCC_OK && begin <= last) {
            uint32_t end = begin, lowers = 0;
            for (uint32_t i = begin; i <= last; i++)
                if (p->receive[i].beside && p->receive[i].offset == g->offset) {
                    lowers += below(rows, &p->receive[i], rank);
                    end = i;
                    if (ends[i])
                        break;
                }
            uint64_t sum = lowers ? NOWHERE : base;
            for (uint32_t turn = 0; turn < 2; turn++)
                for (uint32_t i = begin; result == OPTCC_OK && i <= end; i++) {
                    struct receive *r = &p->receive[i];
                    const int lower = below(rows, r, rank);
                    if (!r->beside || r->offset != g->offset || lower != (turn == 0))
                        continue;
                    r->kept = take_early(p, r->length);
                    r->adds = sum;
                    sum = r->kept;
                    if (lower && --lowers == 0) {
                        r->base = base;
                        sum = r->own = take_early(p, r->length);
                    }
                    if (before != UINT32_MAX) {
                        result = add(folds, before, i);
                        r->earlier += result == OPTCC_OK;
                    }
                    before = i;
                }
            for (uint32_t s = 0; result == OPTCC_OK && s < p->sends; s++)
                if (p->send[s].offset == g->offset && waited_for(p, rows, &p->send[s]) == end + 1) {
                    p->send[s].sum = sum;
                    result = add(needs, before, s);
                    p->send[s].needs += result == OPTCC_OK;
                }
            base = sum;
            begin = end + 1;
        }
        if (before != UINT32_MAX)
            p->receive[before].result = base;
        for (uint32_t s = 0; s < p->sends; s++)
            if (p->send[s].offset == g->offset && p->send[s].sum == NOWHERE) {
                p->send[s].sum = g->input;
            }
    }
    free(ends);
    return result;
}

/* Each fold comes after the latest lower row that reduces into some of its bytes: in every stretch between two ends of
 * rows, after the one that was there last. `pairs` : those of what lands beside; taken */
static int order_folds(struct optcc_program *p, struct pairs pairs)
{
    uint32_t edges = 0, distinct = 0;
    uint64_t *edge = room(2 * (uint64_t)p->receives, sizeof *edge);
    uint32_t *last = room(2 * (uint64_t)p->receives, sizeof *last); /* by stretch: 1 + the latest receive, or 0 */
    int result = edge && last ? OPTCC_OK : OPTCC_MEMORY;
    for (uint32_t i = 0; result == OPTCC_OK && i < p->receives; i++)
        if (p->receive[i].reduce && !p->receive[i].beside) {
            edge[edges++] = p->receive[i].offset;
            edge[edges++] = p->receive[i].offset + p->receive[i].length;
        }
    if (edges)
        qsort(edge, edges, sizeof *edge, ascending);
    for (uint32_t i = 0; i < edges; i++)
        if (i == 0 || edge[i] != edge[i - 1])
            edge[distinct++] = edge[i];
    for (uint32_t i = 0; result == OPTCC_OK && i < p->receives; i++) {
        struct receive *r = &p->receive[i];
        if (!r->reduce || r->beside)
            continue;
        const uint32_t end = place(edge, distinct, r->offset + r->length);
        for (uint32_t s = place(edge, distinct, r->offset); s < end; s++) {
            const uint32_t earlier = last[s];
            last[s] = i + 1;
            if (!earlier || result != OPTCC_OK)
                continue;
            int known = 0; /* the pairs of this row are the last ones that were added */
            for (uint32_t k = 0; k < r->earlier && !known; k++)
                known = pairs.from[pairs.count - 1 - k] == earlier - 1;
            if (!known) {
                result = add(&pairs, earlier - 1, i);
                r->earlier += result == OPTCC_OK;
            }
        }
        if (r->earlier) {
            r->kept = p->early_bytes;
            p->early_bytes += (r->length + 7) / 8 * 8;
        }
    }
    free(edge);
    free(last);
    const int listed = into_lists(&p->after, &pairs, p->receives);
    return result != OPTCC_OK ? result : listed;
}

/* `pairs` : what sends wait for beside their dependencies; taken */
static int wait_for(struct optcc_program *p, const struct optcc_rows *rows, struct pairs pairs)
{
    int result = OPTCC_OK;
    for (uint32_t s = 0; result == OPTCC_OK && s < p->sends; s++) {
        const uint32_t row = p->send[s].row;
        for (int64_t d = rows->dep_ptr[row]; result == OPTCC_OK && d < rows->dep_ptr[row + 1]; d++) {
            const int64_t dep = rows->dep_idx[d];
            const uint32_t r = dep >= 0 && dep < rows->rows ? find(p, (uint32_t)dep) : UINT32_MAX;
            result = r == UINT32_MAX ? OPTCC_BAD : add(&pairs, r, s);
            p->send[s].needs += result == OPTCC_OK;
        }
    }
    const int listed = into_lists(&p->releases, &pairs, p->receives);
    return result != OPTCC_OK ? result : listed;
}

static int fits(const struct optcc_rows *rows, uint32_t i, uint32_t ranks, uint64_t buffer_bytes)
{
    const int64_t offset = rows->offset[i], length = rows->length[i];
    return rows->src[i] >= 0 && (uint32_t)rows->src[i] < ranks && rows->dst[i] >= 0 && (uint32_t)rows->dst[i] < ranks &&
           rows->src[i] != rows->dst[i] && rows->route[i] >= 0 && (uint32_t)rows->route[i] < rows->routes &&
           offset >= 0 && length > 0 &&
           (uint64_t)length <= buffer_bytes && (uint64_t)offset <= buffer_bytes - (uint64_t)length;
}

/* Every row that a row waits for ends at its sender. */
static int known(const struct optcc_program *p, const struct optcc_rows *rows)
{
    for (uint32_t s = 0; s < p->sends; s++)
        for (int64_t d = rows->dep_ptr[p->send[s].row]; d < rows->dep_ptr[p->send[s].row + 1]; d++)
            if (rows->dep_idx[d] < 0 || rows->dep_idx[d] >= rows->rows || find(p, (uint32_t)rows->dep_idx[d]) == UINT32_MAX)
                return 0;
    return 1;
}

static void count_side(struct optcc_program *p, uint32_t peer, uint64_t to, uint64_t from)
{
    uint32_t i = 0;
    while (i < p->sides && p->side[i].peer != peer)
        i++;
    if (i == p->sides)
        p->side[p->sides++].peer = peer;
    p->side[i].to += to;
    p->side[i].from += from;
}

static int take_rows(struct optcc_program *p, const struct optcc_rows *rows, uint32_t rank, uint32_t ranks,
                     const uint32_t *group, uint64_t buffer_bytes)
{
    uint32_t sends = 0, receives = 0;
    uint64_t bits = 0;
    for (uint32_t i = 0; i < rows->rows; i++) {
        if (!fits(rows, i, ranks, buffer_bytes) || rows->reduce[i] > OPTCC_BESIDE ||
            (uint64_t)rows->length[i] / p->segment_bytes >= UINT32_MAX / (2 * OPTCC_MAX_LANES))
            return OPTCC_BAD;
        while ((rows->offset[i] | rows->length[i]) % p->granule)
            p->granule /= 2;
        sends += (uint32_t)rows->src[i] == rank;
        receives += (uint32_t)rows->dst[i] == rank;
    }
    p->send = room(sends, sizeof *p->send);
    p->receive = room(receives, sizeof *p->receive);
    p->side = room(ranks, sizeof *p->side);
    if (!p->send || !p->receive || !p->side)
        return OPTCC_MEMORY;
    for (uint32_t i = 0; i < rows->rows; i++) {
        const uint32_t src = (uint32_t)rows->src[i], dst = (uint32_t)rows->dst[i];
        const uint64_t offset = (uint64_t)rows->offset[i], length = (uint64_t)rows->length[i];
        const uint64_t lanes = rows->lanes ? rows->lanes[rows->route[i]] : 0;
        const uint32_t cut = cut_of(length, p->segment_bytes, lanes);
        const uint32_t segments = (uint32_t)((length + cut - 1) / cut);
        if (src == rank) {
            const uint32_t peer = group ? group[dst] : dst;
            p->send[p->sends++] = (struct send){.row = i, .peer = peer, .segments = segments, .cut = cut, .offset = offset,
                                                .length = length, .lanes = lanes, .to = dst, .sum = NOWHERE};
            count_side(p, peer, segments, 0);
        } else if (dst == rank) {
            const uint32_t peer = group ? group[src] : src;
            p->receive[p->receives++] = (struct receive){.row = i, .peer = peer, .segments = segments, .cut = cut,
                                                         .reduce = rows->reduce[i] != 0,
                                                         .beside = rows->reduce[i] == OPTCC_BESIDE, .offset = offset,
                                                         .adds = NOWHERE, .own = NOWHERE, .result = NOWHERE,
                                                         .length = length, .bits = bits};
            bits += segments;
            count_side(p, peer, 0, segments);
        }
    }
    p->came_words = bits / 64 + 1;
    return OPTCC_OK;
}

int optcc_program_open(const struct optcc_rows *rows, uint32_t rank, uint32_t ranks, const uint32_t *group,
                       uint64_t buffer_bytes, uint32_t segment_bytes, struct optcc_program **program)
{
    *program = NULL;
    if (rank >= ranks || ranks > OPTCC_MAX_RANKS || segment_bytes == 0 || segment_bytes % 64 ||
        segment_bytes > OPTCC_MAX_SEGMENT)
        return OPTCC_BAD;
    struct optcc_program *p = calloc(1, sizeof *p);
    if (!p)
        return OPTCC_MEMORY;
    p->granule = 16;
    p->segment_bytes = segment_bytes;
    int result = take_rows(p, rows, rank, ranks, group, buffer_bytes);
    struct pairs folds = {0}, needs = {0};
    if (result == OPTCC_OK && !known(p, rows))
        result = OPTCC_BAD;
    if (result == OPTCC_OK)
        result = chain(p, rows, rank, &folds, &needs);
    if (result == OPTCC_OK) {
        result = wait_for(p, rows, needs);
        const int ordered = order_folds(p, folds);
        result = result != OPTCC_OK ? result : ordered;
    } else {
        free(folds.from);
        free(folds.to);
        free(needs.from);
        free(needs.to);
    }
    if (result == OPTCC_OK) {
        p->ready = room(p->sends / 64 + UINT64_C(1), sizeof *p->ready);
        p->came = room(p->came_words, sizeof *p->came);
        p->kept = room(p->came_words, sizeof *p->kept);
        p->early = p->own_early = room(p->early_bytes, 1);
        p->stack = room(p->receives, sizeof *p->stack);
        if (!p->ready || !p->came || !p->kept || !p->early || !p->stack)
            result = OPTCC_MEMORY;
    }
    if (result == OPTCC_OK)
        *program = p;
    else
        optcc_program_close(p);
    return result;
}

void optcc_program_close(struct optcc_program *p)
{
    if (!p)
        return;
    free(p->send);
    free(p->receive);
    free(p->side);
    free(p->range);
    free(p->releases.ptr);
    free(p->releases.idx);
    free(p->after.ptr);
    free(p->after.idx);
    free(p->ready);
    free(p->came);
    free(p->kept);
    free(p->own_early);
    free(p->stack);
    free(p->work);
    free(p);
}

uint64_t optcc_program_early(const struct optcc_program *p) { return p->early_bytes; }

int optcc_program_use(struct optcc_program *p, const struct optcc_folder *folder, void *self, void *early)
{
    if (p->ranges) /* the processor folds what lands beside */
        return OPTCC_BAD;
    if (!p->work) {
        uint64_t segments = 1;
        for (uint32_t i = 0; i < p->receives; i++)
            segments += p->receive[i].segments;
        p->work = room(segments, sizeof *p->work);
        p->work_room = segments;
        if (!p->work)
            return OPTCC_MEMORY;
    }
    if (early) {
        free(p->own_early);
        p->own_early = NULL;
        p->early = early;
    }
    p->folder = folder;
    p->folder_self = self;
    return OPTCC_OK;
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

static void make_ready(struct optcc_program *p, uint32_t send)
{
    set(p->ready, send);
    if (send / 64 < p->first_word)
        p->first_word = send / 64;
}

int optcc_program_begin(struct optcc_program *p, const struct optcc_call *call, uint64_t now_ns)
{
    p->item_bytes = optcc_type_bytes(call->type);
    if (!p->item_bytes || p->granule % p->item_bytes || (unsigned)call->op >= OPTCC_OPS)
        return OPTCC_BAD;
    if (p->ranges && call->parts)
        return OPTCC_BAD;
    p->call = *call;
    p->buffer = call->buffer;
    for (uint32_t k = 0; k < p->ranges; k++)
        memcpy(p->early + p->range[k].input, p->buffer + p->range[k].offset, p->range[k].length);
    p->unfinished = p->receives;
    p->unsent = p->sends;
    p->stopped = 0;
    p->oldest = p->unbegun = p->newest = 0;
    memset(p->came, 0, p->came_words * sizeof *p->came);
    memset(p->kept, 0, p->came_words * sizeof *p->kept);
    memset(p->ready, 0, (p->sends / 64 + 1) * sizeof *p->ready);
    for (uint32_t i = 0; i < p->receives; i++) {
        p->receive[i].before = p->receive[i].earlier;
        p->receive[i].folded = p->receive[i].finished = 0;
        p->receive[i].at_ns = now_ns;
    }
    for (uint32_t i = 0; i < p->sends; i++) {
        p->send[i].waits = p->send[i].needs;
        p->send[i].next = 0;
        p->send[i].ready_ns = now_ns;
        if (!p->send[i].waits)
            make_ready(p, i);
    }
    return OPTCC_OK;
}

static uint32_t segment_of(const void *self) { return ((const struct optcc_program *)self)->segment_bytes; }

static int peer_of(const void *self, uint32_t i, uint32_t *peer, uint64_t *to, uint64_t *from)
{
    const struct optcc_program *p = self;
    if (i >= p->sides)
        return 0;
    *peer = p->side[i].peer;
    *to = p->side[i].to;
    *from = p->side[i].from;
    return 1;
}

static uint32_t ready_after(const void *self, uint32_t after)
{
    const struct optcc_program *p = self;
    const uint32_t from = after + 1; /* OPTCC_NONE + 1 is 0 */
    uint32_t word = from / 64;
    uint64_t mask = ~UINT64_C(0) << (from % 64);
    if (word < p->first_word) {
        word = p->first_word;
        mask = ~UINT64_C(0);
    }
    for (; word <= p->sends / 64; word++, mask = ~UINT64_C(0))
        if (p->ready[word] & mask)
            return 64 * word + (uint32_t)__builtin_ctzll(p->ready[word] & mask);
    return UINT32_MAX;
}

static void piece_of(const void *self, uint32_t send, uint32_t segment, struct optcc_piece *piece)
{
    const struct optcc_program *p = self;
    const struct send *s = &p->send[send];
    const uint64_t offset = (uint64_t)segment * s->cut;
    *piece = (struct optcc_piece){.send = send, .segment = segment, .row = s->row, .peer = s->peer,
                                  .length = segment_length(s->length, s->cut, segment), .offset = offset,
                                  .lanes = s->lanes, .ready_ns = s->ready_ns,
                                  .bytes = p->call.parts
                                               ? (const unsigned char *)p->call.parts + s->to * s->length + offset
                                           : s->sum != NOWHERE ? p->early + s->sum + offset
                                               : p->buffer + s->offset + offset};
}

static void next_of(const void *self, uint32_t send, struct optcc_piece *piece)
{
    piece_of(self, send, ((const struct optcc_program *)self)->send[send].next, piece);
}

static void taken(void *self, uint32_t send)
{
    struct optcc_program *p = self;
    if (++p->send[send].next < p->send[send].segments)
        return;
    p->unsent--;
    clear(p->ready, send);
    while (p->first_word < p->sends / 64 && !p->ready[p->first_word])
        p->first_word++;
}

/* The job of a work. */
static struct optcc_job job_of(const struct optcc_program *p, const struct work *w)
{
    const struct receive *r = &p->receive[w->receive];
    const uint64_t offset = (uint64_t)w->segment * r->cut;
    unsigned char *const early = p->early + r->kept + offset;
    return (struct optcc_job){.to = w->target == EARLY ? early : p->buffer + r->offset + offset,
                              .from = w->target == FROM_EARLY ? early : w->bytes,
                              .bytes = segment_length(r->length, r->cut, w->segment),
                              .type = p->call.type, .op = p->call.op, .fold = r->reduce && w->target != EARLY};
}

/* By the processor, at once, or queued: whether it is done. There is room: a segment has one work at a time. */
static int give(struct optcc_program *p, const struct work *w)
{
    if (p->folder) {
        if (!p->stopped)
            p->work[p->newest++ % p->work_room] = *w;
        return 0;
    }
    const struct optcc_job job = job_of(p, w);
    if (job.fold)
        optcc_fold((enum optcc_type)job.type, (enum optcc_op)job.op, job.to, job.from, job.bytes / p->item_bytes);
    else if (job.to != job.from) /* it may be there already: see `wants` */
        memcpy(job.to, job.from, job.bytes);
    return 1;
}

/* A row that has landed beside, and whose turn it is, takes the sum so far in. */
static void sum_up(struct optcc_program *p, const struct receive *r)
{
    const uint64_t items = r->length / p->item_bytes;
    unsigned char *sum = p->early + r->kept;
    if (r->adds != NOWHERE)
        optcc_fold(p->call.type, p->call.op, sum, p->early + r->adds, items);
    if (r->own != NOWHERE) {
        memcpy(p->early + r->own, p->early + r->base, r->length);
        optcc_fold(p->call.type, p->call.op, p->early + r->own, sum, items);
    }
    if (r->result != NOWHERE)
        memcpy(p->buffer + r->offset, p->early + r->result, r->length);
}

/* What was kept of a row whose turn it is. */
static void fold_kept(struct optcc_program *p, uint32_t receive, uint32_t segment)
{
    const struct work w = {.receive = receive, .segment = segment, .target = FROM_EARLY};
    if (give(p, &w))
        p->receive[receive].folded++;
}

/* A row is whole and folded: what waits for it waits for one thing less; whose turn it is now folds what was kept. */
static void finish(struct optcc_program *p, uint32_t finished)
{
    uint32_t height = 0;
    p->stack[height++] = finished;
    while (height) {
        const uint32_t i = p->stack[--height];
        const uint64_t at_ns = p->receive[i].at_ns;
        p->unfinished--;
        p->receive[i].finished = 1;
        for (uint32_t k = p->releases.ptr[i]; k < p->releases.ptr[i + 1]; k++) {
            struct send *s = &p->send[p->releases.idx[k]];
            if (s->ready_ns < at_ns)
                s->ready_ns = at_ns;
            if (--s->waits == 0)
                make_ready(p, p->releases.idx[k]);
        }
        for (uint32_t k = p->after.ptr[i]; k < p->after.ptr[i + 1]; k++) {
            const uint32_t next = p->after.idx[k];
            struct receive *r = &p->receive[next];
            if (r->at_ns < at_ns)
                r->at_ns = at_ns;
            if (--r->before)
                continue;
            if (r->beside && r->folded == r->segments)
                sum_up(p, r);
            for (uint32_t s = 0; !r->beside && s < r->segments; s++)
                if (bit(p->kept, r->bits + s))
                    fold_kept(p, next, s);
            if (r->folded == r->segments)
                p->stack[height++] = next;
        }
    }
}

/* A copy or a fold is done. */
static void done(struct optcc_program *p, const struct work *w)
{
    struct receive *r = &p->receive[w->receive];
    if (r->beside) {
        if (++r->folded < r->segments || r->before)
            return;
        sum_up(p, r);
    } else if (w->target == EARLY) {
        set(p->kept, r->bits + w->segment);
        if (r->before)
            return;
        fold_kept(p, w->receive, w->segment); /* its turn has come meanwhile */
    } else {
        r->folded++;
    }
    if (r->folded == r->segments)
        finish(p, w->receive);
}

/* The receive of a segment that is expected, and not here, or UINT32_MAX. */
static uint32_t expected(const struct optcc_program *p, uint32_t peer, const struct optcc_frame *head, uint32_t *segment)
{
    const uint64_t offset = head->offset;
    const uint32_t i = find(p, head->row);
    if (i == UINT32_MAX)
        return UINT32_MAX;
    const struct receive *r = &p->receive[i];
    if (r->peer != peer || offset >= r->length || offset % r->cut)
        return UINT32_MAX;
    *segment = (uint32_t)(offset / r->cut);
    return head->length != segment_length(r->length, r->cut, *segment) || bit(p->came, r->bits + *segment) ? UINT32_MAX : i;
}

static enum target target_of(const struct receive *r) { return r->beside || r->before ? EARLY : IN_PLACE; }

static void *wants(const void *self, uint32_t peer, const struct optcc_frame *head)
{
    const struct optcc_program *p = self;
    uint32_t segment = 0;
    const uint32_t i = expected(p, peer, head, &segment);
    if (i == UINT32_MAX || p->folder)
        return NULL;
    const struct work w = {.receive = i, .segment = segment, .target = target_of(&p->receive[i])};
    const struct optcc_job job = job_of(p, &w);
    return job.fold ? NULL : job.to;
}

static int land(void *self, uint32_t peer, const struct optcc_frame *head, const void *bytes, uint64_t name,
                uint64_t at_ns)
{
    struct optcc_program *p = self;
    uint32_t segment = 0;
    const uint32_t i = expected(p, peer, head, &segment);
    if (i == UINT32_MAX || (uintptr_t)bytes % p->item_bytes)
        return OPTCC_BAD;
    struct receive *r = &p->receive[i];
    set(p->came, r->bits + segment);
    if (r->at_ns < at_ns)
        r->at_ns = at_ns;
    const struct work w = {.receive = i, .segment = segment, .target = target_of(r), .bytes = bytes, .name = name};
    if (!give(p, &w))
        return OPTCC_AGAIN;
    done(p, &w);
    return OPTCC_OK;
}

static int whole(const void *self) { return ((const struct optcc_program *)self)->unfinished == 0; }

void optcc_program_done(const struct optcc_program *p, uint32_t *done, uint32_t *rows)
{
    *rows = p->sends + p->receives;
    *done = *rows - p->unsent - p->unfinished;
}

void optcc_program_missing(const struct optcc_program *p, struct optcc_missing *missing)
{
    uint32_t i = 0;
    *missing = (struct optcc_missing){.receives = p->unfinished, .sends = p->unsent, .row = UINT32_MAX,
                                      .peer = p->sends ? p->send[0].peer : UINT32_MAX};
    while (i < p->receives && p->receive[i].finished)
        i++;
    if (i < p->receives) {
        missing->row = p->receive[i].row;
        missing->peer = p->receive[i].peer;
    }
}

uint32_t optcc_program_receives(const struct optcc_program *p) { return p->receives; }

void optcc_program_landings(const struct optcc_program *p, uint32_t *rows, uint64_t *at_ns)
{
    for (uint32_t i = 0; i < p->receives; i++) {
        rows[i] = p->receive[i].row;
        at_ns[i] = p->receive[i].at_ns;
    }
}

static int late(const void *self) { return ((const struct optcc_program *)self)->folder != NULL; }

/* The folder is lost, and does nothing any more. */
static int give_up(struct optcc_program *p)
{
    p->stopped = 1;
    p->oldest = p->unbegun = p->newest;
    return OPTCC_LOST;
}

static int landed(void *self, uint64_t *name)
{
    struct optcc_program *p = self;
    while (p->oldest < p->newest) {
        while (p->unbegun < p->newest) {
            struct work *w = &p->work[p->unbegun % p->work_room];
            const struct optcc_job job = job_of(p, w);
            const int begun = p->folder->begin(p->folder_self, &job, &w->ticket);
            if (begun == OPTCC_LOST)
                return give_up(p);
            if (begun != OPTCC_OK)
                break;
            p->unbegun++;
        }
        if (p->oldest == p->unbegun)
            break;
        const struct work w = p->work[p->oldest % p->work_room];
        const int ended = p->folder->done(p->folder_self, w.ticket);
        if (ended == OPTCC_LOST)
            return give_up(p);
        if (ended != OPTCC_OK)
            break;
        p->oldest++;
        done(p, &w);
        if (w.target != FROM_EARLY) {
            *name = w.name;
            return OPTCC_OK;
        }
    }
    return OPTCC_AGAIN;
}

static uint64_t due_ns(const void *self)
{
    const struct optcc_program *p = self;
    return p->oldest < p->newest ? p->folder->poll_ns : UINT64_MAX;
}

static void stop(void *self)
{
    struct optcc_program *p = self;
    p->stopped = 1;
    p->newest = p->unbegun;
}

const struct optcc_source OPTCC_ROWS_SOURCE = {.segment = segment_of, .peer = peer_of, .ready = ready_after,
                                               .next = next_of, .taken = taken, .piece = piece_of, .land = land, .wants = wants,
                                               .whole = whole, .late = late, .landed = landed, .due_ns = due_ns,
                                               .stop = stop};
