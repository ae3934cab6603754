/* Messages between two ranks, as many as come: an operation of an engine that does not end.
 *
 * A stream carries messages one way; its n-th send meets its n-th receive. There are many streams of each way between
 * two ranks. The sending end opens one to a port, a number that the receiving end knows, and the receiving end takes it.
 *
 * Nothing is sent before the receiver has named its buffer: a receive that is posted is told by a credit, and those that
 * follow it, with as much room, by the same one until it is sent. A send that has its credit goes in segments, each
 * placed where it belongs; each says how long the whole message is.
 *
 * What is sent is a letter: a message of the caller's, or a record of ours (a credit, or that a stream is opened, closed,
 * or closed here, too). Records go before messages, messages in the order in which their credits came. The flow brings
 * every segment once, in any order; so what must not overtake waits for acknowledgements:
 *
 *   - CLOSE is sent when all of the stream has been acknowledged, CLOSED when CLOSE has come, the caller has closed the
 *     receiving end and all its credits have been acknowledged. After CLOSED the number of the stream is used again.
 *   - A message brings with it the acknowledgement of its credit, since every frame says what has landed.
 *
 * The caller's memory is given back when all of a message is acknowledged and no wire reads it any more. A record may be
 * written anew once it is acknowledged: what a wire still reads of it is a duplicate.
 *
 * A sending end that is closed with messages on their way withdraws them: what has been sent of one is sent again, if it
 * must be, as zeros, marked so that the receiver fails and never takes it for the message.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum kind { MESSAGE, CREDIT, OPEN, CLOSE, CLOSED, KINDS };

enum {
    CONTROL = OPTCC_DEPTH,     /* the place of a stream's one letter that is no message and no credit */
    PLACES = OPTCC_DEPTH + 1,
    KIND_SHIFT = 28,           /* of a row: kind, stream, place */
    STREAM_SHIFT = 8,
    WITHDRAWN = -1             /* in place of a message's length */
};

_Static_assert(PLACES <= 1 << STREAM_SHIFT && OPTCC_MAX_STREAMS <= 1 << (KIND_SHIFT - STREAM_SHIFT), "a row holds both");

enum letter_is { IDLE, WAITS, LISTED, OUT }; /* nothing; for its credit; in a list; all its segments were sent once */

struct letter {
    const unsigned char *bytes;
    uint64_t length;                /* bytes */
    struct optcc_tag tag;
    uint32_t segments, next, acked; /* all; sent once; acknowledged */
    uint32_t after;                 /* in its list */
    uint8_t is, kind;
    uint8_t withdrawn, too_long;
    uint64_t lanes;                 /* which may still read it */
    uint32_t last[OPTCC_MAX_LANES]; /* of each of them: number of the last payload that is this letter's */
};

struct record { /* what travels, little-endian */
    uint64_t number;      /* CREDIT: of the first message; OPEN: the port */
    uint32_t room, count; /* CREDIT: bytes of each buffer, and how many messages */
};

struct offer { /* a credit that has come */
    uint64_t number; /* of the message whose credit comes next */
    uint64_t room;
    int here;
};

enum receive_is { NO_RECEIVE, POSTED, WHOLE, BROKEN };

struct receive {
    unsigned char *bytes;
    uint64_t room, whole;      /* bytes; the message's, once `known`, and */
    struct optcc_tag tag;      /* what its sender says of it */
    uint32_t landed, segments;
    uint8_t is, known;
};

enum stream_is { NO_STREAM, OPENED, WANTED, TAKEN, CLOSING };

struct stream {
    uint32_t is;
    int far_closed;      /* receiving end: CLOSE has come */
    uint64_t port, turn; /* turn: of streams that want to be taken, the lowest is the oldest */
    uint64_t next;       /* number of the next send or receive */
    uint32_t credit;     /* receiving end: place of the letter with the last credit */
    uint32_t unacked;    /* segments sent and not acknowledged */
    struct letter letter[PLACES];
    struct record record[PLACES];
    struct offer offer[OPTCC_DEPTH];     /* sending end */
    struct receive receive[OPTCC_DEPTH]; /* receiving end */
    uint64_t *came;                      /* receiving end: a bit for each segment of each place */
};

struct list {
    uint32_t first, last;
};

enum side { SENDING, RECEIVING, SIDES };

struct optcc_messages {
    struct optcc_messages_config config;
    uint32_t words; /* of bits for each receive */
    struct stream **stream[SIDES];
    struct list records, messages; /* letters with segments to send */
    uint64_t turn;
    uint32_t posted[OPTCC_MAX_LANES], left[OPTCC_MAX_LANES]; /* payloads of each lane; differences count */
    unsigned char *zeros;
};

/* ---- letters ----------------------------------------------------------------------------------------------------- */

static uint32_t index_of(const struct optcc_messages *m, enum side side, uint32_t stream, uint32_t place)
{
    return ((uint32_t)side * m->config.streams + stream) * PLACES + place;
}

static struct stream *stream_of(const struct optcc_messages *m, uint32_t index)
{
    const uint32_t stream = index / PLACES;
    return stream < m->config.streams ? m->stream[SENDING][stream]
                                      : m->stream[RECEIVING][stream - m->config.streams];
}

static struct letter *letter_of(const struct optcc_messages *m, uint32_t index)
{
    return &stream_of(m, index)->letter[index % PLACES];
}

static struct list *list_of(struct optcc_messages *m, const struct letter *l)
{
    return l->kind == MESSAGE ? &m->messages : &m->records;
}

static void enlist(struct optcc_messages *m, uint32_t index)
{
    struct letter *l = letter_of(m, index);
    struct list *list = list_of(m, l);
    l->is = LISTED;
    l->after = OPTCC_NONE;
    if (list->first == OPTCC_NONE)
        list->first = index;
    else
        letter_of(m, list->last)->after = index;
    list->last = index;
}

static void unlist(struct optcc_messages *m, uint32_t index)
{
    struct letter *l = letter_of(m, index);
    struct list *list = list_of(m, l);
    uint32_t before = OPTCC_NONE;
    for (uint32_t i = list->first; i != index; i = letter_of(m, i)->after)
        before = i;
    if (before == OPTCC_NONE)
        list->first = l->after;
    else
        letter_of(m, before)->after = l->after;
    if (list->last == index)
        list->last = before;
}

/* A message of no bytes travels as one that is not part of it. */
static uint32_t segments_of(const struct optcc_messages *m, uint64_t length)
{
    return length ? (uint32_t)((length + m->config.segment_bytes - 1) / m->config.segment_bytes) : 1;
}

static uint32_t segment_length(const struct optcc_messages *m, uint64_t length, uint64_t offset)
{
    const uint64_t rest = length ? length - offset : 1;
    return rest < m->config.segment_bytes ? (uint32_t)rest : m->config.segment_bytes;
}

static void write_record(struct optcc_messages *m, enum side side, uint32_t stream, uint32_t place, enum kind kind,
                         uint64_t number, uint32_t room)
{
    struct stream *s = m->stream[side][stream];
    s->record[place] = (struct record){number, room, 1};
    s->letter[place] = (struct letter){.bytes = (const unsigned char *)&s->record[place], .length = sizeof(struct record),
                                       .segments = 1, .kind = (uint8_t)kind};
    enlist(m, index_of(m, side, stream, place));
}

/* Whether some wire may still read a letter. */
static int held(const struct optcc_messages *m, struct letter *l)
{
    for (uint64_t lanes = l->lanes; lanes; lanes &= lanes - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctzll(lanes);
        if ((int32_t)(m->left[lane] - l->last[lane]) >= 0)
            l->lanes &= ~(UINT64_C(1) << lane);
    }
    return l->lanes != 0;
}

static int acknowledged_whole(const struct letter *l) { return l->is == OUT && l->acked == l->segments; }

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static struct stream *fresh(struct optcc_messages *m, enum side side, uint32_t stream)
{
    struct stream **s = &m->stream[side][stream];
    if (!*s) {
        *s = calloc(1, sizeof **s);
        uint64_t *came = side == RECEIVING ? calloc((uint64_t)OPTCC_DEPTH * m->words, sizeof *came) : NULL;
        if (!*s || (side == RECEIVING && !came)) {
            free(*s);
            free(came);
            *s = NULL;
            return NULL;
        }
        (*s)->came = came;
    }
    uint64_t *const came = (*s)->came;
    **s = (struct stream){.came = came};
    for (uint32_t place = 0; place < OPTCC_DEPTH; place++)
        (*s)->offer[place].number = place;
    return *s;
}

/* What a closing stream can do now. */
static void go_on_closing(struct optcc_messages *m, enum side side, uint32_t stream)
{
    struct stream *s = m->stream[side][stream];
    struct letter *control = &s->letter[CONTROL];
    if (s->is != CLOSING || s->unacked || control->is == LISTED)
        return;
    if (side == SENDING && control->kind == OPEN)
        write_record(m, side, stream, CONTROL, CLOSE, 0, 0);
    else if (side == RECEIVING && s->far_closed && control->kind != CLOSED)
        write_record(m, side, stream, CONTROL, CLOSED, 0, 0);
    else if (side == RECEIVING && control->kind == CLOSED)
        s->is = NO_STREAM;
}

int optcc_stream_open(struct optcc_messages *m, uint64_t port, uint32_t *stream)
{
    for (uint32_t i = 0; i < m->config.streams; i++) {
        if (m->stream[SENDING][i] && (m->stream[SENDING][i]->is != NO_STREAM || optcc_stream_held(m, i)))
            continue;
        struct stream *s = fresh(m, SENDING, i);
        if (!s)
            return OPTCC_MEMORY;
        s->is = OPENED;
        write_record(m, SENDING, i, CONTROL, OPEN, port, 0);
        *stream = i;
        return OPTCC_OK;
    }
    return OPTCC_AGAIN;
}

int optcc_stream_take(struct optcc_messages *m, uint64_t port, uint32_t *stream)
{
    struct stream *oldest = NULL;
    for (uint32_t i = 0; i < m->config.streams; i++) {
        struct stream *s = m->stream[RECEIVING][i];
        if (!s || s->is != WANTED || s->port != port || (oldest && oldest->turn < s->turn))
            continue;
        oldest = s;
        *stream = i;
    }
    if (!oldest)
        return OPTCC_AGAIN;
    oldest->is = TAKEN;
    return OPTCC_OK;
}

/* What has been sent of a message stays until it is acknowledged. A credit is left as it is: no wire reads the caller's
 * memory for it, and what comes for it is dropped. */
static void withdraw(struct optcc_messages *m, uint32_t index)
{
    struct letter *l = letter_of(m, index);
    if (l->is == IDLE || (l->is == OUT && (l->kind != MESSAGE || l->acked == l->segments)))
        return;
    if (l->is == LISTED)
        unlist(m, index);
    l->withdrawn = 1;
    l->segments = l->next;
    l->is = l->segments ? OUT : IDLE;
}

void optcc_stream_close(struct optcc_messages *m, int receiving, uint32_t stream)
{
    const enum side side = receiving ? RECEIVING : SENDING;
    struct stream *s = m->stream[side][stream];
    for (uint32_t place = 0; place < OPTCC_DEPTH; place++) {
        withdraw(m, index_of(m, side, stream, place));
        s->receive[place].is = NO_RECEIVE;
    }
    s->is = CLOSING;
    go_on_closing(m, side, stream);
}

uint64_t optcc_stream_held(const struct optcc_messages *m, uint32_t stream)
{
    uint64_t lanes = 0;
    for (uint32_t place = 0; place < OPTCC_DEPTH; place++)
        if (held(m, &m->stream[SENDING][stream]->letter[place]))
            lanes |= m->stream[SENDING][stream]->letter[place].lanes;
    return lanes;
}

uint32_t optcc_streams(const struct optcc_messages *m)
{
    uint32_t count = 0;
    for (int side = 0; side < SIDES; side++)
        for (uint32_t i = 0; i < m->config.streams; i++)
            count += m->stream[side][i] && m->stream[side][i]->is != NO_STREAM;
    return count;
}

/* ---- sends and receives ------------------------------------------------------------------------------------------ */

static struct stream *open_stream(const struct optcc_messages *m, enum side side, uint32_t stream)
{
    struct stream *s = stream < m->config.streams ? m->stream[side][stream] : NULL;
    return s && s->is == (side == SENDING ? OPENED : TAKEN) ? s : NULL;
}

/* A send that has its credit may go. */
static void meet(struct optcc_messages *m, uint32_t stream, uint32_t place)
{
    struct stream *s = m->stream[SENDING][stream];
    struct letter *l = &s->letter[place];
    struct offer *offer = &s->offer[place];
    if (l->is != WAITS || !offer->here)
        return;
    offer->here = 0;
    if (l->length > offer->room) { /* the receiver hears it, too: one segment that says so */
        l->too_long = l->withdrawn = 1;
        l->length = 0;
        l->segments = 1;
    }
    enlist(m, index_of(m, SENDING, stream, place));
}

int optcc_send(struct optcc_messages *m, uint32_t stream, const void *bytes, uint64_t length, struct optcc_tag tag,
               uint64_t *number)
{
    struct stream *s = open_stream(m, SENDING, stream);
    if (!s || length > m->config.most_bytes)
        return OPTCC_BAD;
    const uint32_t place = (uint32_t)(s->next % OPTCC_DEPTH);
    struct letter *l = &s->letter[place];
    if (l->is != IDLE)
        return OPTCC_AGAIN;
    *l = (struct letter){.bytes = bytes, .length = length, .tag = tag, .segments = segments_of(m, length), .is = WAITS,
                         .kind = MESSAGE};
    *number = s->next++;
    meet(m, stream, place);
    return OPTCC_OK;
}

int optcc_receive(struct optcc_messages *m, uint32_t stream, void *bytes, uint64_t room, uint64_t *number)
{
    struct stream *s = open_stream(m, RECEIVING, stream);
    if (!s || room > m->config.most_bytes)
        return OPTCC_BAD;
    const uint32_t place = (uint32_t)(s->next % OPTCC_DEPTH);
    struct receive *r = &s->receive[place];
    if (r->is != NO_RECEIVE || s->letter[place].is != IDLE)
        return OPTCC_AGAIN;
    *r = (struct receive){.bytes = bytes, .room = room, .is = POSTED};
    memset(s->came + (uint64_t)place * m->words, 0, m->words * sizeof *s->came);
    *number = s->next++;
    const struct letter *const last = &s->letter[s->credit];
    struct record *const told = &s->record[s->credit];
    if (last->is == LISTED && last->kind == CREDIT && told->number + told->count == *number && told->room == room) {
        told->count++; /* nothing has been sent of it yet */
        return OPTCC_OK;
    }
    s->credit = place;
    write_record(m, RECEIVING, stream, place, CREDIT, *number, (uint32_t)room);
    return OPTCC_OK;
}

int optcc_sent(struct optcc_messages *m, uint32_t stream, uint64_t number)
{
    struct stream *s = open_stream(m, SENDING, stream);
    if (!s || number >= s->next || s->next - number > OPTCC_DEPTH)
        return OPTCC_BAD;
    struct letter *l = &s->letter[number % OPTCC_DEPTH];
    if (!acknowledged_whole(l) || held(m, l))
        return OPTCC_AGAIN;
    l->is = IDLE;
    return l->too_long ? OPTCC_BAD : OPTCC_OK;
}

int optcc_received(struct optcc_messages *m, uint32_t stream, uint64_t number, uint64_t *length, struct optcc_tag *tag)
{
    struct stream *s = open_stream(m, RECEIVING, stream);
    if (!s || number >= s->next || s->next - number > OPTCC_DEPTH)
        return OPTCC_BAD;
    struct receive *r = &s->receive[number % OPTCC_DEPTH];
    *length = r->whole;
    *tag = r->tag;
    if (r->is == POSTED)
        return s->far_closed ? OPTCC_LOST : OPTCC_AGAIN;
    const int result = r->is == WHOLE ? OPTCC_OK : OPTCC_LOST;
    r->is = NO_RECEIVE;
    return result;
}

/* ---- what has come ----------------------------------------------------------------------------------------------- */

static int land_message(struct optcc_messages *m, struct stream *s, uint32_t place, const struct optcc_frame *head,
                        const void *bytes)
{
    struct receive *r = &s->receive[place];
    const uint32_t step = m->config.segment_bytes;
    if (s->is == CLOSING)
        return OPTCC_OK; /* nobody wants it */
    if (s->is != TAKEN || (r->is != POSTED && r->is != BROKEN) || head->offset % step)
        return OPTCC_BAD;
    if (r->is == BROKEN || head->word == (uint32_t)WITHDRAWN) {
        r->is = BROKEN;
        return OPTCC_OK;
    }
    const uint64_t whole = head->word;
    if (whole > r->room || (r->known && r->whole != whole) || head->offset / step >= segments_of(m, whole) ||
        head->length != segment_length(m, whole, head->offset))
        return OPTCC_BAD;
    const uint64_t segment = head->offset / step, mark = UINT64_C(1) << segment % 64;
    uint64_t *const word = s->came + (uint64_t)place * m->words + segment / 64;
    if (*word & mark)
        return OPTCC_BAD;
    *word |= mark;
    r->known = 1;
    r->whole = whole;
    r->tag = head->tag;
    if (whole)
        memcpy(r->bytes + head->offset, bytes, head->length);
    if (++r->landed == segments_of(m, whole))
        r->is = WHOLE;
    return OPTCC_OK;
}

static int land_credit(struct optcc_messages *m, uint32_t stream, uint32_t place, const struct record *record)
{
    struct stream *s = m->stream[SENDING][stream];
    if (s && s->is == CLOSING)
        return OPTCC_OK;
    if (!s || s->is != OPENED || place >= OPTCC_DEPTH || !record->count || record->count > OPTCC_DEPTH)
        return OPTCC_BAD;
    for (uint32_t i = 0; i < record->count; i++) {
        const struct offer *const offer = &s->offer[(place + i) % OPTCC_DEPTH];
        if (offer->here || offer->number != record->number + i)
            return OPTCC_BAD;
    }
    for (uint32_t i = 0; i < record->count; i++) {
        const uint32_t at = (place + i) % OPTCC_DEPTH;
        s->offer[at] = (struct offer){.number = record->number + i + OPTCC_DEPTH, .room = record->room, .here = 1};
        meet(m, stream, at);
    }
    return OPTCC_OK;
}

static int land_open(struct optcc_messages *m, uint32_t stream, const struct record *record)
{
    struct stream *s = m->stream[RECEIVING][stream];
    if ((s && s->is != NO_STREAM) || !(s = fresh(m, RECEIVING, stream)))
        return OPTCC_BAD;
    s->is = WANTED;
    s->port = record->number;
    s->turn = m->turn++;
    return OPTCC_OK;
}

static int land_close(struct optcc_messages *m, uint32_t stream)
{
    struct stream *s = m->stream[RECEIVING][stream];
    if (!s || s->is == NO_STREAM || s->far_closed)
        return OPTCC_BAD;
    s->far_closed = 1; /* one that is not taken yet can still be taken, and closed then */
    go_on_closing(m, RECEIVING, stream);
    return OPTCC_OK;
}

static int land_closed(struct optcc_messages *m, uint32_t stream)
{
    struct stream *s = m->stream[SENDING][stream];
    if (!s || s->is != CLOSING || s->unacked || s->letter[CONTROL].kind != CLOSE || s->letter[CONTROL].is != OUT)
        return OPTCC_BAD;
    s->is = NO_STREAM;
    return OPTCC_OK;
}

static int land(void *self, uint32_t peer, const struct optcc_frame *head, const void *bytes, uint64_t name,
                uint64_t at_ns)
{
    (void)name, (void)at_ns;
    struct optcc_messages *m = self;
    const uint32_t kind = head->row >> KIND_SHIFT, place = head->row & ((1 << STREAM_SHIFT) - 1);
    const uint32_t stream = (head->row & ((1u << KIND_SHIFT) - 1)) >> STREAM_SHIFT;
    struct record record;
    (void)peer; /* there is one */
    if (kind >= KINDS || stream >= m->config.streams || (kind != MESSAGE && head->length != sizeof record))
        return OPTCC_BAD;
    if (kind == MESSAGE) {
        struct stream *s = m->stream[RECEIVING][stream];
        return s && place < OPTCC_DEPTH ? land_message(m, s, place, head, bytes) : OPTCC_BAD;
    }
    memcpy(&record, bytes, sizeof record);
    switch (kind) {
    case CREDIT:
        return land_credit(m, stream, place, &record);
    case OPEN:
        return land_open(m, stream, &record);
    case CLOSE:
        return land_close(m, stream);
    default:
        return land_closed(m, stream);
    }
}

/* ---- what flow.c asks -------------------------------------------------------------------------------------------- */

static uint32_t segment_bytes(const void *self) { return ((const struct optcc_messages *)self)->config.segment_bytes; }

static int peer_of(const void *self, uint32_t i, uint32_t *peer, uint64_t *to, uint64_t *from)
{
    *peer = ((const struct optcc_messages *)self)->config.peer;
    *to = *from = UINT64_MAX;
    return i == 0;
}

static uint32_t ready_after(const void *self, uint32_t after)
{
    const struct optcc_messages *m = self;
    if (after == OPTCC_NONE && m->records.first != OPTCC_NONE)
        return m->records.first;
    return after == OPTCC_NONE || letter_of(m, after)->kind != MESSAGE ? m->messages.first : OPTCC_NONE;
}

static void piece_of(const void *self, uint32_t send, uint32_t segment, struct optcc_piece *piece)
{
    const struct optcc_messages *m = self;
    const struct letter *l = letter_of(m, send);
    const uint32_t stream = send / PLACES % m->config.streams, place = send % PLACES;
    const uint64_t offset = (uint64_t)segment * m->config.segment_bytes;
    const int zeros = l->withdrawn || !l->length;
    *piece = (struct optcc_piece){.send = send, .segment = segment, .peer = m->config.peer, .offset = offset,
                                  .row = (uint32_t)l->kind << KIND_SHIFT | stream << STREAM_SHIFT | place,
                                  .length = segment_length(m, l->length, offset), .tag = l->tag,
                                  .word = l->withdrawn ? (uint32_t)WITHDRAWN : (uint32_t)l->length,
                                  .bytes = zeros ? m->zeros : l->bytes + offset};
}

static void next_of(const void *self, uint32_t send, struct optcc_piece *piece)
{
    piece_of(self, send, letter_of(self, send)->next, piece);
}

static void taken(void *self, uint32_t send)
{
    struct letter *l = letter_of(self, send);
    stream_of(self, send)->unacked++;
    if (++l->next < l->segments)
        return;
    unlist(self, send);
    l->is = OUT;
}

static void given(void *self, uint32_t send, uint32_t lane)
{
    struct optcc_messages *m = self;
    struct letter *l = letter_of(m, send);
    m->posted[lane]++;
    l->last[lane] = m->posted[lane];
    l->lanes |= UINT64_C(1) << lane;
}

static void back(void *self, uint32_t lane, uint32_t payloads) { ((struct optcc_messages *)self)->left[lane] += payloads; }

static int whole(const void *self)
{
    (void)self;
    return 0;
}

static void acknowledged(void *self, uint32_t send)
{
    struct optcc_messages *m = self;
    struct stream *s = stream_of(m, send);
    struct letter *l = letter_of(m, send);
    s->unacked--;
    l->acked++;
    if (l->kind == CREDIT)
        l->is = IDLE;
    go_on_closing(m, send / PLACES < m->config.streams ? SENDING : RECEIVING, send / PLACES % m->config.streams);
}

const struct optcc_source OPTCC_MESSAGES_SOURCE = {.segment = segment_bytes, .peer = peer_of, .ready = ready_after,
                                                   .next = next_of, .taken = taken, .piece = piece_of, .land = land,
                                                   .whole = whole, .given = given, .back = back,
                                                   .acknowledged = acknowledged};

/* ---- making one -------------------------------------------------------------------------------------------------- */

int optcc_messages_open(const struct optcc_messages_config *config, struct optcc_messages **messages)
{
    *messages = NULL;
    if (!config->streams || config->streams > OPTCC_MAX_STREAMS || config->peer >= OPTCC_MAX_RANKS ||
        config->segment_bytes < sizeof(struct record) || config->segment_bytes > OPTCC_MAX_SEGMENT ||
        !config->most_bytes || config->most_bytes >= (uint32_t)WITHDRAWN)
        return OPTCC_BAD;
    struct optcc_messages *m = calloc(1, sizeof *m);
    if (!m)
        return OPTCC_MEMORY;
    m->config = *config;
    m->records = m->messages = (struct list){OPTCC_NONE, OPTCC_NONE};
    m->words = segments_of(m, config->most_bytes) / 64 + 1;
    m->zeros = calloc(1, config->segment_bytes);
    for (int side = 0; side < SIDES; side++)
        m->stream[side] = calloc(config->streams, sizeof(struct stream *));
    if (!m->zeros || !m->stream[SENDING] || !m->stream[RECEIVING]) {
        optcc_messages_close(m);
        return OPTCC_MEMORY;
    }
    *messages = m;
    return OPTCC_OK;
}

void optcc_messages_close(struct optcc_messages *m)
{
    if (!m)
        return;
    for (int side = 0; side < SIDES; side++) {
        for (uint32_t i = 0; m->stream[side] && i < m->config.streams; i++) {
            if (m->stream[side][i])
                free(m->stream[side][i]->came);
            free(m->stream[side][i]);
        }
        free(m->stream[side]);
    }
    free(m->zeros);
    free(m);
}
