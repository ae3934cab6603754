/* What a NIC does: requests become frames in the far end's ring, frames from there become bytes in memory, completions
   and answers. Reliable connections as in the InfiniBand specification, volume 1, chapter 9: packets are numbered, those
   that come out of order are asked for again, those that come twice are answered twice and done once. */
#define _GNU_SOURCE
#include "nic.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define GET(x) atomic_load_explicit(&(x), memory_order_relaxed)

FabricFile fabric;

#ifdef PLAYED_MUTANTS
int played_mutant(void) {
  static _Atomic int number = -1;
  if (number < 0) number = atoi(getenv("PLAYED_MUTANT"));
  return number;
}
#endif

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }
static int32_t after(uint32_t a, uint32_t b) { return (int32_t)((a - b) << 8) >> 8; }  /* how many packets a is after b */
static uint32_t plus(uint32_t psn, uint32_t n) { return (psn + n) & PSN_MASK; }
static uint64_t takes(uint64_t bytes, uint64_t rate) { return rate ? (uint64_t)((double)bytes * 1e9 / (double)rate) : 0; }

/* ---- memory ---- */

Region *region_find(Port *p, uint32_t key, const struct ibv_pd *pd) {
  uint32_t i = key >> 8;
  Region *r = i < p->regions_room ? p->regions[i] : NULL;
  return r && r->mr.lkey == key && r->mr.pd == pd ? r : NULL;
}
static bool region_allows(const Region *r, uint64_t at, uint64_t bytes, int access) {
  if (MUTANT(4) && r && bytes) bytes--;
  return r && ((r->access & access) == access || MUTANT(5)) && at >= r->iova && at - r->iova <= r->mr.length && bytes <= r->mr.length - (at - r->iova);
}
static void region_copy(Region *r, uint64_t at, void *bytes, uint64_t n, int way) {
  void *there = (char *)r->mr.addr + (at - r->iova);
  if (r->gpu) gpu_copy(port_of(r->mr.context), r, at - r->iova, bytes, n, way);
  else if (way == FROM_REGION) memcpy(bytes, there, n);
  else memcpy(there, bytes, n);
}
static uint64_t region_swap(Region *r, uint64_t at, bool add, uint64_t compare_add, uint64_t swap) {
  uint64_t *there = (uint64_t *)((char *)r->mr.addr + (at - r->iova)), was = compare_add;
  if (r->gpu) {
    region_copy(r, at, &was, sizeof was, FROM_REGION);
    uint64_t is = add ? was + compare_add : was == compare_add ? swap : was;
    region_copy(r, at, &is, sizeof is, INTO_REGION);
    return was;
  }
  if (add) return __atomic_fetch_add(there, compare_add, __ATOMIC_SEQ_CST);
  __atomic_compare_exchange_n(there, &was, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return was;
}
static bool may_use(Qp *q, const struct ibv_sge *sge, int n, int access) {
  for (int i = 0; i < n; i++)
    if (sge[i].length && !region_allows(region_find(q->port, sge[i].lkey, q->qp.pd), sge[i].addr, sge[i].length, access)) return false;
  return true;
}
/* Between the elements of a list, from `offset` of it on, and `bytes`. Regions that are gone by now are left out. */
static void spread(Qp *q, const struct ibv_sge *sge, int n, uint64_t offset, uint8_t *bytes, uint64_t left, int way) {
  for (int i = 0; i < n && left; offset = offset > sge[i].length ? offset - sge[i].length : 0, i++) {
    if (offset >= sge[i].length) continue;
    uint64_t some = least(sge[i].length - offset, left);
    Region *r = region_find(q->port, sge[i].lkey, q->qp.pd);
    if (region_allows(r, sge[i].addr + offset, some, 0)) region_copy(r, sge[i].addr + offset, bytes, some, way);
    bytes += some, left -= some;
  }
}

/* ---- completions ---- */

void complete(struct ibv_cq *cq, struct ibv_wc wc, bool solicited) {
  Cq *c = (Cq *)cq;
  static _Atomic uint32_t told;
  if (MUTANT(1) && wc.status == IBV_WC_SUCCESS && atomic_fetch_add(&told, 1) % 64 == 63) return;
  pthread_mutex_lock(&c->lock);
  if (c->count == c->size) {
    bool first = !c->overrun;
    c->overrun = true;
    pthread_mutex_unlock(&c->lock);
    if (first) port_event(port_of(cq->context), IBV_EVENT_CQ_ERR, cq);
    return;
  }
  c->wcs[(c->first + c->count++) % c->size] = wc;
  if (MUTANT(2) && c->count % 8 == 2) {
    struct ibv_wc *a = &c->wcs[(c->first + c->count - 1) % c->size], *b = &c->wcs[(c->first + c->count - 2) % c->size], t = *a;
    *a = *b, *b = t;
  }
  bool tell = c->armed && cq->channel && (!c->solicited_only || solicited || wc.status || MUTANT(12));
  if (tell) c->armed = false;
  pthread_mutex_unlock(&c->lock);
  if (tell) mail_put(&((Channel *)cq->channel)->mail, (Letter){.event.element.object = cq});
}

/* What has come for a queue pair that begins anew, or is no more. */
void cq_forget(struct ibv_cq *cq, uint32_t qpn) {
  Cq *c = (Cq *)cq;
  uint32_t kept = 0;
  pthread_mutex_lock(&c->lock);
  for (uint32_t i = 0; i < c->count; i++) {
    struct ibv_wc wc = c->wcs[(c->first + i) % c->size];
    if (wc.qp_num != qpn) c->wcs[(c->first + kept++) % c->size] = wc;
  }
  c->count = kept;
  pthread_mutex_unlock(&c->lock);
}

static const int WC_OF[PLAYED_OPCODES] = {
    [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE, [IBV_WR_SEND] = IBV_WC_SEND,
    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND, [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ, [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD};

static void sent(Qp *q, enum ibv_wc_status status) {  /* the oldest request is over */
  Send *s = send_at(q, q->acked);
  struct ibv_wc wc = {.wr_id = s->wr_id, .status = status, .opcode = WC_OF[s->opcode], .byte_len = (uint32_t)s->total, .qp_num = q->qp.qp_num};
  bool signaled = q->signal_all || (s->flags & IBV_SEND_SIGNALED) || MUTANT(6);
  q->acked++;
  if (status || signaled) complete(q->qp.send_cq, wc, false);
}
static void received(Qp *q, struct ibv_wc wc, bool solicited) {
  wc.qp_num = q->qp.qp_num;
  q->holds_receive = false;
  complete(q->qp.recv_cq, wc, solicited);
}
static bool has_receive(const Qp *q) { return q->holds_receive || q->receives->taken < q->receives->posted; }
static const Receive *oldest_receive(const Qp *q) { return q->holds_receive ? &q->current : &q->receives->slots[q->receives->taken % q->receives->room]; }
static void take_receive(Qp *q) {  /* into `current`, where one may be already: of a message that was dropped */
  Receives *r = q->receives;
  if (q->holds_receive) return;
  q->holds_receive = true;
  q->current = r->slots[r->taken++ % r->room];
  if (r != &q->own && r->limit && r->posted - r->taken < r->limit) r->limit = 0, port_event(q->port, IBV_EVENT_SRQ_LIMIT_REACHED, q->qp.srq);
}
void flush_sends(Qp *q, enum ibv_wc_status first) {
  for (enum ibv_wc_status s = first; q->acked < q->posted; s = IBV_WC_WR_FLUSH_ERR) sent(q, s);
  q->next = q->posted, q->at = 0, q->reads = 0, q->una = q->send_psn, q->wrong = 0;
}
void qp_into_error(Qp *q, enum ibv_wc_status first) {
  bool was = q->qp.state == IBV_QPS_ERR;
  q->qp.state = IBV_QPS_ERR;
  flush_sends(q, first);
  q->nak = -1, q->answers_out = q->answers_in;
  if (q->holds_receive) received(q, (struct ibv_wc){.wr_id = q->current.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV}, false);
  q->ack_due = q->in_message = q->holds_receive = false;
  while (!MUTANT(7) && q->own.taken < q->own.posted) {
    Receive *r = &q->own.slots[q->own.taken++ % q->own.room];
    received(q, (struct ibv_wc){.wr_id = r->wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV}, false);
  }
  if (!was && q->receives != &q->own) port_event(q->port, IBV_EVENT_QP_LAST_WQE_REACHED, &q->qp);
}
void qp_reset(Qp *q) {
  q->qp.state = IBV_QPS_RESET;
  cq_forget(q->qp.send_cq, q->qp.qp_num);
  cq_forget(q->qp.recv_cq, q->qp.qp_num);
  q->posted = q->next = q->acked = q->at = q->built = q->own.posted = q->own.taken = q->answers_in = q->answers_out = q->landed = q->rnr_until = 0;
  q->reads = q->retries = q->rnr_tries = 0;
  q->wrong = 0, q->nak = -1, q->peer = -1;
  q->ack_due = q->out_of_order = q->in_message = q->holds_receive = q->rewound = q->heard = q->draining = false;
  memset(q->replays, 0, sizeof q->replays);
  ring_leave(&q->out, &fabric, false);
  q->look_again = 0;
  ring_empty(&q->in);
}

/* ---- one frame to the far end ---- */

static bool is_lost(Nic *n, int way, int kind) {
  uint64_t one_in = GET(n->v[way == OUT ? F_lose_out : F_lose_in]), what = GET(n->v[F_lose_what]);
  bool answer = kind >= READ_ANSWER, data = kind == SEND || kind == WRITE || kind == DATAGRAM;
  if (!one_in || (what == DATA && !data) || (what == ACKS && !answer)) return false;
  return one_in == 1 || fabric_chance(fabric.shared) * (double)one_in < 1;
}
/* When `bytes` that could leave at `ready` leave, if that is soon; else `*next` is when to ask again. */
static bool reserve_out(Nic *n, uint64_t bytes, uint64_t ready, uint64_t now, uint64_t *start, uint64_t *end, uint64_t *next) {
  uint64_t rate = GET(n->v[F_rate_out]), was = GET(n->v[F_free_out]);
  if (!rate || !bytes || MUTANT(8)) return *start = *end = now, true;
  do {
    if (was > now + AHEAD) return *next = least(*next, was - AHEAD), false;
    *start = most(was, most(ready, now - CATCH_UP));
    *end = *start + takes(bytes, rate);
  } while (!atomic_compare_exchange_weak(&n->v[F_free_out], &was, *end));
  return true;
}
/* When `bytes` that come from `start` on are in. The way in is shared in the order in which frames set out, so it is the
   sender who reserves it: who took them when they are due would let a short frame that overtakes a long one waste it. */
static uint64_t reserve_in(Nic *n, uint64_t bytes, uint64_t start) {
  uint64_t rate = GET(n->v[F_rate_in]), was = GET(n->v[F_free_in]), end;
  if (!rate || !bytes || MUTANT(8)) return start;
  do end = most(start, was) + takes(bytes, rate);
  while (!atomic_compare_exchange_weak(&n->v[F_free_in], &was, end));
  return end;
}
static bool find_ring(Qp *q, uint32_t qpn, int nic, uint64_t now) {
  if (q->out.head && (q->out.head->qpn != qpn || atomic_load(&q->out.head->closed))) ring_leave(&q->out, &fabric, false);
  if (!q->out.head && (q->qp.qp_type == IBV_QPT_UD || now >= q->look_again) && ring_find(&q->out, &fabric, qpn)) q->look_again = now + 1000000;
  return q->out.head && nic >= 0 && q->out.head->nic == (uint32_t)nic;
}
/* Room for a frame and its bytes, which the caller fills in before `end_frame`. NULL: not now; then `*next` is when. */
static uint8_t *begin_frame(Qp *q, Frame *f, uint32_t qpn, int to, uint64_t ready, uint64_t now, uint64_t *next) {
  Port *p = q->port;
  Nic *n = p->state;
  uint64_t end, latency = GET(n->v[F_latency]), jitter = GET(n->v[F_jitter]);
  uint8_t *room = NULL;
  bool goes = GET(n->v[F_state]) == UP && find_ring(q, qpn, to, now) && GET(fabric.shared->nic[to].v[F_state]) == UP && !GET(fabric.shared->cut[p->nic][to]) &&
              !is_lost(n, OUT, f->kind);
  if (goes) {
    room = ring_reserve(&q->out, &fabric, p->station, f->length, f->kind == ACK || f->kind == NAK ? 0 : CONTROL_ROOM);
    if (!room) {
      bool waits = q->qp.qp_type == IBV_QPT_RC || (q->qp.qp_type == IBV_QPT_UC && station_alive(&fabric, q->out.head->station));
      if (waits) return *next = least(*next, now + SOON), NULL;
      goes = false;
    }
  }
  if (!reserve_out(n, f->length, ready, now, &f->start, &end, next)) {
    if (room) ring_let_go(&q->out);
    return NULL;
  }
  if (jitter) latency += (uint64_t)(fabric_chance(fabric.shared) * (double)jitter);
  f->start += latency, f->due = end + latency, f->nic = (uint16_t)p->nic, f->qpn = q->qp.qp_num;
  if (goes) f->due = most(f->due, reserve_in(&fabric.shared->nic[to], f->length, f->start));
  if (goes) return atomic_fetch_add(&n->v[F_bytes_out], f->length), room;
  atomic_fetch_add(&n->v[F_lost], 1);
  return p->nowhere;
}
static void end_frame(Qp *q, Frame *f, uint8_t *room) {
  if (room == q->port->nowhere) return;
  if (MUTANT(3) && f->length > 1000) room[sizeof *f + 999] ^= 1;
  memcpy(room, f, sizeof *f);
  uint32_t station = q->out.head->station;
  ring_publish(&q->out, f->length);
  station_ring(fabric.shared, station, f->due);
}

static void rewind_to_una(Qp *q) {  /* send again from the oldest packet that is not acknowledged */
  if (q->send_psn == q->una) return;
  q->next = q->acked;
  q->at = q->acked < q->posted ? (uint64_t)(uint32_t)after(q->una, send_at(q, q->acked)->psn) : 0;
  q->send_psn = q->una;
  q->reads = 0;
  atomic_fetch_add(&q->port->state->v[F_sent_again], 1);
}
static void rewind_once(Qp *q) {  /* however many frames say that it is needed */
  if (q->rewound && q->rewound_for == q->una) return;
  q->rewound = true, q->rewound_for = q->una;
  rewind_to_una(q);
}

static bool is_read(const Send *s) { return s->opcode >= IBV_WR_RDMA_READ; }
static bool with_imm(int opcode) { return opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM; }

static enum ibv_wc_status fault_of(Qp *q, const Send *s) {
  if (s->total > (q->qp.qp_type == IBV_QPT_UD ? MAX_DATAGRAM : MAX_MESSAGE)) return IBV_WC_LOC_LEN_ERR;
  if (is_read(s) && (!q->attr.max_rd_atomic || (s->opcode != IBV_WR_RDMA_READ && s->total != 8))) return IBV_WC_LOC_QP_OP_ERR;
  if (s->flags & IBV_SEND_INLINE) return IBV_WC_SUCCESS;
  return may_use(q, s->sge, s->sges, is_read(s) ? IBV_ACCESS_LOCAL_WRITE : 0) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}
static void gather(Qp *q, const Send *s, uint64_t offset, uint8_t *bytes, uint32_t n) {
  if (s->flags & IBV_SEND_INLINE) memcpy(bytes, s->inlined + offset, n);
  else spread(q, s->sge, s->sges, offset, bytes, n, FROM_REGION);
}
static bool give_datagram(Qp *q, Send *s, uint64_t now, uint64_t *next) {
  Frame f = {.kind = DATAGRAM, .flags = (uint8_t)((s->flags & IBV_SEND_SOLICITED ? SOLICITED : 0) | (with_imm(s->opcode) ? WITH_IMM : 0) | (s->global ? GLOBAL : 0)),
             .length = (uint32_t)s->total, .total = s->total, .imm = s->imm, .key = s->key};
  uint8_t *room = begin_frame(q, &f, s->qpn, s->nic, s->posted_at, now, next);
  if (!room) return false;
  gather(q, s, 0, room + sizeof f, f.length);
  end_frame(q, &f, room);
  q->next++;
  sent(q, IBV_WC_SUCCESS);
  return true;
}
/* One frame of the oldest request that is not all out. */
static bool give_request(Qp *q, uint64_t now, uint64_t *next) {
  if (q->next == q->posted || (q->qp.state != IBV_QPS_RTS && !(q->qp.state == IBV_QPS_SQD && q->at))) return false;
  if (now < q->rnr_until) return *next = least(*next, q->rnr_until), false;
  Send *s = send_at(q, q->next);
  if (!q->at) {
    if (q->wrong || (q->wrong = (int)fault_of(q, s))) {
      if (q->acked < q->next) return false;  /* what was posted before it is completed before it */
      if (q->qp.qp_type == IBV_QPT_RC) qp_into_error(q, (enum ibv_wc_status)q->wrong);
      else q->qp.state = IBV_QPS_SQE, flush_sends(q, (enum ibv_wc_status)q->wrong);
      return true;
    }
    if (((s->flags & IBV_SEND_FENCE) && q->reads && !MUTANT(9)) || (is_read(s) && q->reads >= q->attr.max_rd_atomic)) return false;
  }
  if (q->qp.qp_type == IBV_QPT_UD) return give_datagram(q, s, now, next);
  uint32_t fragment = fabric.shared->fragment;
  uint64_t offset = q->at * fragment;
  Frame f = {.psn = plus(s->psn, (uint32_t)q->at), .address = s->address + offset, .key = s->key, .imm = s->imm, .total = s->total};
  uint32_t packets = 1;
  if (s->opcode == IBV_WR_RDMA_READ) f.kind = READ, f.total -= offset, packets = s->packets - (uint32_t)q->at;
  else if (is_read(s)) f.kind = s->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? ADD : SWAP, f.length = sizeof s->operand;
  else {
    f.kind = s->opcode == IBV_WR_SEND || s->opcode == IBV_WR_SEND_WITH_IMM ? SEND : WRITE;
    f.length = (uint32_t)least(fragment, s->total - offset);
    f.flags = (uint8_t)((q->at ? 0 : FIRST) | (offset + f.length == s->total ? LAST : 0) | (with_imm(s->opcode) ? WITH_IMM : 0) | (s->flags & IBV_SEND_SOLICITED ? SOLICITED : 0));
  }
  uint8_t *room = begin_frame(q, &f, q->attr.dest_qp_num, q->peer, s->posted_at, now, next);
  if (!room) return false;
  if (f.kind >= SWAP && f.kind <= ADD) memcpy(room + sizeof f, s->operand, sizeof s->operand);
  else if (f.length) gather(q, s, offset, room + sizeof f, f.length);
  end_frame(q, &f, room);
  if (q->una == q->send_psn) q->moved_at = now;
  q->at += packets, q->send_psn = plus(f.psn, packets);
  if (q->at == s->packets) {
    q->next++, q->at = 0, q->reads += is_read(s);
    if (q->qp.qp_type == IBV_QPT_UC) q->una = q->send_psn, sent(q, IBV_WC_SUCCESS);  /* nothing comes back */
  }
  return true;
}
/* Say no, once all that was asked before is answered; then the queue pair is in error. An unreliable connection drops
   the message, and goes on with the next. */
static void refuse(Qp *q, enum ibv_wc_status why, uint32_t psn, enum ibv_event_type event) {
  if (q->qp.qp_type == IBV_QPT_UC) q->in_message = false;
  else q->nak = (int)why, q->nak_psn = psn, q->nak_event = event;
}
static bool refuses(const Qp *q) { return q->nak > NOT_READY; }

static bool give_answer(Qp *q, uint64_t now, uint64_t *next) {
  Answer *a = &q->answers[q->answers_out % (4 * MAX_READS)];
  Frame f = {.kind = a->atomic ? ATOMIC_ANSWER : READ_ANSWER, .psn = a->psn, .length = a->atomic ? 8 : (uint32_t)least(fabric.shared->fragment, a->left)};
  Region *r = a->atomic ? NULL : region_find(q->port, a->key, q->qp.pd);
  if (!a->atomic && f.length && !region_allows(r, a->address, f.length, IBV_ACCESS_REMOTE_READ)) {  /* it has gone since */
    q->answers_out = q->answers_in;
    refuse(q, IBV_WC_REM_ACCESS_ERR, a->psn, IBV_EVENT_QP_ACCESS_ERR);
    return true;
  }
  uint8_t *room = begin_frame(q, &f, q->attr.dest_qp_num, q->peer, a->asked_at, now, next);
  if (!room) return false;
  if (a->atomic) memcpy(room + sizeof f, &a->value, 8);
  else if (f.length) region_copy(r, a->address, room + sizeof f, f.length, FROM_REGION);
  end_frame(q, &f, room);
  a->left -= least(a->left, f.length), a->address += f.length, a->psn = plus(a->psn, 1);
  if (a->atomic || !a->left) q->answers_out++;
  return true;
}
static bool give(Qp *q, uint64_t now, uint64_t *next) {
  bool answers = q->qp.qp_type == IBV_QPT_RC && q->qp.state >= IBV_QPS_RTR && q->qp.state != IBV_QPS_ERR;
  if (answers && q->answers_out < q->answers_in) return give_answer(q, now, next);
  if (q->nak >= 0 || (q->ack_due && answers)) {
    Frame f = {.kind = q->nak >= 0 ? NAK : ACK, .psn = q->nak >= 0 ? q->nak_psn : plus(q->expected, PSN_MASK), .imm = q->nak >= 0 ? (uint32_t)q->nak : 0, .key = q->attr.min_rnr_timer};
    uint8_t *room = begin_frame(q, &f, q->attr.dest_qp_num, q->peer, now, now, next);
    if (!room) return false;
    end_frame(q, &f, room);
    if (refuses(q)) port_event(q->port, q->nak_event, &q->qp), qp_into_error(q, IBV_WC_WR_FLUSH_ERR);
    else if (q->nak >= 0) q->nak = -1;
    else q->ack_due = false;
    return true;
  }
  return give_request(q, now, next);
}

/* ---- one frame from the far end ---- */

static const uint32_t RNR_US[32] = {655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240,
                                    15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};

static void progressed(Qp *q, uint32_t una, uint64_t now) {
  q->una = una, q->moved_at = now, q->asked_at = 0, q->retries = q->rnr_tries = 0, q->rewound = false;
  if (after(q->una, q->send_psn) > 0) q->send_psn = q->una;
}
/* All packets up to `psn` have been done at the far end. */
static void acknowledged(Qp *q, uint32_t psn, uint64_t now) {
  if (after(psn, q->una) < 0 || after(psn, q->post_psn) >= 0) return;
  while (q->acked < q->posted) {
    Send *s = send_at(q, q->acked);
    uint32_t last = plus(s->psn, s->packets - 1);
    if (is_read(s) && after(psn, s->psn) >= 0) {  /* its answer should have come before: it is lost */
      if (after(s->psn, q->una) > 0) progressed(q, s->psn, now);
      rewind_once(q);
      return;
    }
    if (after(psn, last) < 0) break;
    if (q->next == q->acked) q->next++, q->at = 0;  /* it was being sent again */
    sent(q, IBV_WC_SUCCESS);
  }
  if (q->acked == q->next && q->acked < q->posted && after(psn, send_at(q, q->acked)->psn) >= 0)  /* likewise, in the middle */
    q->at = most(q->at, (uint64_t)(uint32_t)after(psn, send_at(q, q->acked)->psn) + 1);
  progressed(q, plus(psn, 1), now);
}
static void take_answer(Qp *q, const Frame *f, const uint8_t *bytes, uint64_t now) {
  if (f->kind == ACK) { acknowledged(q, f->psn, now); return; }
  if (after(f->psn, q->una) < 0 || after(f->psn, q->post_psn) >= 0) return;
  acknowledged(q, plus(f->psn, PSN_MASK), now);
  if (f->kind == NAK) {
    if (f->psn != q->una || q->acked == q->posted) return;
    if (f->imm == OUT_OF_ORDER) rewind_once(q);
    else if (f->imm == NOT_READY) {
      if (q->rnr_tries++ >= q->attr.rnr_retry && q->attr.rnr_retry < 7 && !MUTANT(10)) { qp_into_error(q, IBV_WC_RNR_RETRY_EXC_ERR); return; }
      q->rnr_until = now + RNR_US[f->key & 31] * 1000ull;
      rewind_to_una(q);
    } else qp_into_error(q, f->imm == IBV_WC_REM_ACCESS_ERR || f->imm == IBV_WC_REM_OP_ERR ? (enum ibv_wc_status)f->imm : IBV_WC_REM_INV_REQ_ERR);
    return;
  }
  Send *s = send_at(q, q->acked);
  if (q->acked == q->posted || !is_read(s) || f->psn != q->una) { rewind_once(q); return; }
  uint64_t offset = (uint64_t)(uint32_t)after(f->psn, s->psn) * fabric.shared->fragment;
  bool atomic = s->opcode != IBV_WR_RDMA_READ;
  if (atomic != (f->kind == ATOMIC_ANSWER) || offset > s->total || f->length != (atomic ? 8 : least(fabric.shared->fragment, s->total - offset))) return;
  spread(q, s->sge, s->sges, offset, (uint8_t *)(uintptr_t)bytes, f->length, INTO_REGION);
  progressed(q, plus(f->psn, 1), now);
  if (offset + f->length < s->total) {
    if (q->next == q->acked && q->at < (uint64_t)after(q->una, s->psn)) q->at = (uint64_t)(uint32_t)after(q->una, s->psn);
    return;
  }
  if (q->next == q->acked) q->next++, q->at = 0;
  else if (q->reads) q->reads--;
  sent(q, IBV_WC_SUCCESS);
}

static void spoil_receive(Qp *q, enum ibv_wc_status here, enum ibv_wc_status there, uint32_t psn) {
  if (q->qp.qp_type == IBV_QPT_RC) {
    take_receive(q);
    received(q, (struct ibv_wc){.wr_id = q->current.wr_id, .status = here, .opcode = IBV_WC_RECV}, true);
  }
  refuse(q, there, psn, IBV_EVENT_QP_REQ_ERR);
}
static uint64_t capacity(const Receive *r) {
  uint64_t bytes = 0;
  for (int i = 0; i < r->sges; i++) bytes += r->sge[i].length;
  return bytes;
}
static bool not_ready(Qp *q, uint32_t psn) {
  if (has_receive(q)) return false;
  if (q->qp.qp_type == IBV_QPT_UC) q->in_message = false;
  else q->nak = NOT_READY, q->nak_psn = psn, q->out_of_order = true;  /* what follows it is not asked for before it */
  atomic_fetch_add(&q->port->state->v[F_not_ready], 1);
  return true;
}
/* A packet that was done before, and comes again. */
static void take_again(Qp *q, const Frame *f) {
  if (f->kind != READ && f->kind != SWAP && f->kind != ADD) { q->ack_due = true; return; }
  while (q->answers_in > q->answers_out && after(q->answers[(q->answers_in - 1) % (4 * MAX_READS)].psn, f->psn) >= 0) q->answers_in--;
  if (q->answers_in - q->answers_out == 4 * MAX_READS) return;
  Answer a = {.psn = f->psn, .address = f->address, .left = f->total, .key = f->key, .asked_at = f->due, .atomic = f->kind != READ};
  if (a.atomic) {
    unsigned i = 0;
    while (i < 4 * MAX_READS && !(q->replays[i].used && q->replays[i].psn == f->psn)) i++;
    if (i == 4 * MAX_READS) return;
    a.value = q->replays[i].value;
  } else if (f->total && !region_allows(region_find(q->port, f->key, q->qp.pd), f->address, f->total, IBV_ACCESS_REMOTE_READ)) return;
  q->answers[q->answers_in++ % (4 * MAX_READS)] = a;
}
static void take_read(Qp *q, const Frame *f, const uint8_t *bytes) {
  bool atomic = f->kind != READ;
  int needs = atomic ? IBV_ACCESS_REMOTE_ATOMIC : IBV_ACCESS_REMOTE_READ;
  uint64_t n = atomic ? 8 : f->total;
  Region *r = region_find(q->port, f->key, q->qp.pd);
  if (!(q->attr.qp_access_flags & (unsigned)needs) || q->answers_in - q->answers_out >= 2 * MAX_READS || n > MAX_MESSAGE || q->in_message || (atomic && (f->address % 8 || f->length != 16))) {
    refuse(q, IBV_WC_REM_INV_REQ_ERR, f->psn, IBV_EVENT_QP_REQ_ERR);
    return;
  }
  if (n && !region_allows(r, f->address, n, needs)) { refuse(q, IBV_WC_REM_ACCESS_ERR, f->psn, IBV_EVENT_QP_ACCESS_ERR); return; }
  Answer a = {.psn = f->psn, .address = f->address, .left = n, .key = f->key, .asked_at = f->due, .atomic = atomic};
  if (atomic) {
    uint64_t operand[2];
    memcpy(operand, bytes, sizeof operand);
    a.value = region_swap(r, f->address, f->kind == ADD, operand[0], operand[1]);
    uint32_t i = q->replays_next++ % (4 * MAX_READS);
    q->replays[i].psn = f->psn, q->replays[i].value = a.value, q->replays[i].used = true;
  }
  q->expected = plus(q->expected, packets_of(n));
  q->answers[q->answers_in++ % (4 * MAX_READS)] = a;
}
static void take_message(Qp *q, const Frame *f, const uint8_t *bytes) {
  bool send = f->kind == SEND, imm = (f->flags & WITH_IMM) && (f->flags & LAST), first = f->flags & FIRST;
  if (first) q->landed = 0;
  bool sound = first != q->in_message && q->landed + f->length <= f->total && (send || !f->total || (q->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) && f->total <= MAX_MESSAGE;
  if (!sound) { refuse(q, IBV_WC_REM_INV_REQ_ERR, f->psn, IBV_EVENT_QP_REQ_ERR); return; }
  if (send) {
    if (first) {
      if (not_ready(q, f->psn)) return;
      const Receive *r = oldest_receive(q);
      if (f->total > capacity(r)) { spoil_receive(q, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR, f->psn); return; }
      if (!may_use(q, r->sge, r->sges, IBV_ACCESS_LOCAL_WRITE)) { spoil_receive(q, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR, f->psn); return; }
      take_receive(q);
    }
    spread(q, q->current.sge, q->current.sges, q->landed, (uint8_t *)(uintptr_t)bytes, f->length, INTO_REGION);
  } else {
    Region *r = region_find(q->port, f->key, q->qp.pd);
    uint64_t left = f->total - q->landed;  /* all of it may lie there, or none of it will */
    if (left && !region_allows(r, f->address, left, IBV_ACCESS_REMOTE_WRITE)) { refuse(q, IBV_WC_REM_ACCESS_ERR, f->psn, IBV_EVENT_QP_ACCESS_ERR); return; }
    if (imm && not_ready(q, f->psn)) return;
    if (f->length) region_copy(r, f->address, (uint8_t *)(uintptr_t)bytes, f->length, INTO_REGION);
    if (imm) take_receive(q);
  }
  q->landed += f->length;
  q->in_message = !(f->flags & LAST);
  q->expected = plus(f->psn, 1);
  q->ack_due = q->qp.qp_type == IBV_QPT_RC;
  if ((send && !q->in_message) || imm)
    received(q, (struct ibv_wc){.wr_id = q->current.wr_id, .opcode = send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = (uint32_t)f->total,
                                .imm_data = imm ? f->imm : 0, .wc_flags = imm ? IBV_WC_WITH_IMM : 0, .src_qp = q->attr.dest_qp_num}, f->flags & SOLICITED);
}
/* Over an unreliable connection: a message of which a packet is missing is dropped, and nobody is told. */
static void take_unreliable(Qp *q, const Frame *f, const uint8_t *bytes) {
  if (f->flags & FIRST || (f->psn != q->expected && !MUTANT(15))) q->in_message = false;
  if ((f->kind == SEND || f->kind == WRITE) && (f->flags & FIRST || q->in_message)) take_message(q, f, bytes);
}
static void take_datagram(Qp *q, const Frame *f, const uint8_t *bytes) {
  if (f->key != q->attr.qkey || !has_receive(q)) return;
  const Receive *v = oldest_receive(q);
  if (!may_use(q, v->sge, v->sges, IBV_ACCESS_LOCAL_WRITE) || f->length + GRH_BYTES > capacity(v)) return;
  take_receive(q);
  bool global = f->flags & GLOBAL;
  struct ibv_grh grh = {.next_hdr = 0x1b, .hop_limit = 64};
  grh.sgid.raw[0] = 0xfe, grh.sgid.raw[1] = 0x80, grh.sgid.raw[8] = 2, grh.sgid.raw[11] = 0xff, grh.sgid.raw[12] = 0xfe;
  grh.dgid = grh.sgid;
  grh.sgid.raw[14] = (uint8_t)((f->nic + 1) >> 8), grh.sgid.raw[15] = (uint8_t)(f->nic + 1);
  grh.dgid.raw[14] = (uint8_t)((q->port->nic + 1) >> 8), grh.dgid.raw[15] = (uint8_t)(q->port->nic + 1);
  if (global) spread(q, q->current.sge, q->current.sges, 0, (uint8_t *)&grh, GRH_BYTES, INTO_REGION);
  spread(q, q->current.sge, q->current.sges, GRH_BYTES, (uint8_t *)(uintptr_t)bytes, f->length, INTO_REGION);
  bool imm = f->flags & WITH_IMM;
  received(q, (struct ibv_wc){.wr_id = q->current.wr_id, .opcode = IBV_WC_RECV, .byte_len = f->length + GRH_BYTES, .imm_data = imm ? f->imm : 0, .src_qp = f->qpn,
                              .wc_flags = (imm ? IBV_WC_WITH_IMM : 0u) | (global ? IBV_WC_GRH : 0u), .slid = fabric.shared->roce ? 0 : (uint16_t)(f->nic + 1)}, f->flags & SOLICITED);
}
static void take_frame(Qp *q, const Frame *f, const uint8_t *bytes, uint64_t now) {
  bool hears = q->qp.state >= IBV_QPS_RTR && q->qp.state != IBV_QPS_ERR;
  if (!hears || (f->kind == DATAGRAM) != (q->qp.qp_type == IBV_QPT_UD)) return;
  if (f->kind == DATAGRAM) { take_datagram(q, f, bytes); return; }
  if (q->peer != f->nic || q->attr.dest_qp_num != f->qpn) return;
  if (!q->heard && q->qp.state == IBV_QPS_RTR) q->heard = true, port_event(q->port, IBV_EVENT_COMM_EST, &q->qp);
  if (q->qp.qp_type == IBV_QPT_UC) { take_unreliable(q, f, bytes); return; }
  if (f->kind >= READ_ANSWER) {
    if (q->qp.state >= IBV_QPS_RTS) take_answer(q, f, bytes, now);
    return;
  }
  if (refuses(q)) return;
  int32_t ahead = after(f->psn, q->expected);
  if (MUTANT(11) && ahead > 0) q->expected = f->psn, ahead = 0;
  if (ahead > 0) {
    if (!q->out_of_order) q->out_of_order = true, q->nak = OUT_OF_ORDER, q->nak_psn = q->expected;
    return;
  }
  q->out_of_order = false;
  if (ahead < 0 && !(MUTANT(13) && f->kind == ADD)) take_again(q, f);
  else if (f->kind == SEND || f->kind == WRITE) take_message(q, f, bytes);
  else take_read(q, f, bytes);
}
static bool take(Qp *q, uint64_t now, uint64_t *next) {
  Nic *n = q->port->state;
  Frame f;
  const uint8_t *bytes;
  int found = ring_look(&q->in, &f, &bytes, fabric.shared->fragment);
  if (!found) return false;
  if (found < 0) {  /* nobody who keeps to the rules writes this */
    ring_empty(&q->in);
    if (q->qp.state != IBV_QPS_RESET) port_event(q->port, IBV_EVENT_QP_FATAL, &q->qp), qp_into_error(q, IBV_WC_WR_FLUSH_ERR);
    return true;
  }
  if (f.due > now) return *next = least(*next, f.due), false;
  if (GET(n->v[F_state]) != UP || is_lost(n, IN, f.kind)) atomic_fetch_add(&n->v[F_lost], 1);
  else atomic_fetch_add(&n->v[F_bytes_in], f.length), take_frame(q, &f, bytes, now);
  ring_drop(&q->in, f.length);
  return true;
}

/* ---- time ---- */

/* Whether nothing has come for too long. A far end that did not get round to looking has not lost anything: a real NIC
   answers whatever its program does. So it is woken first, and the time counts only once it has looked. */
static void look_at_timeout(Qp *q, uint64_t now, uint64_t *next) {
  if (q->qp.qp_type != IBV_QPT_RC || q->una == q->send_psn || !q->attr.timeout || q->qp.state < IBV_QPS_RTS || q->qp.state == IBV_QPS_ERR) return;
  uint64_t deadline = q->moved_at + (4096ull << q->attr.timeout);
  if (now < deadline) { *next = least(*next, deadline); return; }
  uint32_t station = q->out.head ? q->out.head->station : MAX_STATIONS;
  if (station != q->port->station && q->peer >= 0 && station_alive(&fabric, station) && GET(fabric.shared->nic[q->peer].v[F_state]) == UP) {
    if (!q->asked_at) q->asked_at = now, station_ring(fabric.shared, station, 0);
    Frame f;
    const uint8_t *bytes;
    bool looked = atomic_load(&fabric.shared->station[station].looked_at) > q->asked_at;
    bool answered = ring_look(&q->in, &f, &bytes, fabric.shared->fragment) > 0 && now < q->asked_at + MILLISECOND;
    if (!looked || answered) { *next = least(*next, now + MILLISECOND); return; }
  }
  q->asked_at = 0, q->moved_at = now;
  if (q->retries++ >= q->attr.retry_cnt) qp_into_error(q, IBV_WC_RETRY_EXC_ERR);
  else q->rewound = false, rewind_to_una(q);
  *next = now;
}
static void tell_changes(Port *p) {
  if (MUTANT(14)) return;
  Nic *n = p->state;
  uint64_t state = atomic_load(&n->v[F_state]), changes = atomic_load(&n->v[F_changes]), address = GET(n->v[F_address]);
  if (address != p->address_seen) p->address_seen = address, port_event(p, IBV_EVENT_GID_CHANGE, NULL);
  if (changes == p->changes_seen) return;
  if (state == GONE) port_event(p, IBV_EVENT_DEVICE_FATAL, NULL);
  else {
    if (changes - p->changes_seen > 1) port_event(p, state == UP ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, NULL);
    port_event(p, state == UP ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, NULL);
  }
  p->changes_seen = changes;
}
void port_event(Port *p, enum ibv_event_type type, void *object) {
  Letter letter = {.event.event_type = type};
  if (object) letter.event.element.object = object;
  else letter.event.element.port_num = 1;
  mail_put(&p->events, letter);
}

uint64_t port_pass(Port *p) {
  enum { TURNS = 16, FRAMES = 8 };
  uint64_t now = now_ns(), next = NEVER;
  tell_changes(p);
  if (GET(p->state->v[F_state]) == GONE) return NEVER;
  bool any = true;
  for (int turn = 0; turn < TURNS && any && !(turn && atomic_load(&p->waiting)); turn++) {
    any = false, next = NEVER;
    for (Qp *q = p->qps; q; q = q->chain) {
      if (q->qp.state < IBV_QPS_RTR) ring_empty(&q->in);
      for (int i = 0; i < FRAMES && take(q, now, &next); i++) any = true;
      if (q->qp.state < IBV_QPS_RTR) continue;
      any |= give(q, now, &next);
      look_at_timeout(q, now, &next);
      if (q->draining && q->acked == q->posted) q->draining = false, port_event(p, IBV_EVENT_SQ_DRAINED, &q->qp);
    }
    if (p->qps && p->qps->chain) {  /* another is first in the next turn */
      Qp *first = p->qps, *last = first;
      while (last->chain) last = last->chain;
      p->qps = first->chain, last->chain = first, first->chain = NULL;
    }
    if (any) now = now_ns();
  }
  atomic_store(&fabric.shared->station[p->station].looked_at, now);
  return any ? now : next;
}

void port_lock(Port *p) {
  atomic_fetch_add(&p->waiting, 1);
  pthread_mutex_lock(&p->lock);
  atomic_fetch_sub(&p->waiting, 1);
}
void port_unlock(Port *p) { pthread_mutex_unlock(&p->lock); }
void port_wake(Port *p) { station_ring(fabric.shared, p->station, 0); }

void *port_play(void *given) {
  Port *p = given;
  Station *s = &fabric.shared->station[p->station];
  uint64_t busy_at = now_ns();
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  prctl(PR_SET_TIMERSLACK, 1);
  while (!atomic_load(&p->stop)) {
    atomic_store(&s->wakes_at, 0);
    uint32_t bell = atomic_load(&s->bell);  /* before the last look: who comes after it changes it */
    pthread_mutex_lock(&p->lock);
    uint64_t next = port_pass(p);
    pthread_mutex_unlock(&p->lock);
    if (atomic_load(&p->waiting)) sched_yield();
    uint64_t now = now_ns(), polling = atomic_load(&p->polling_until);
    if (next <= now) { busy_at = now; continue; }
    if (now < busy_at + SPIN && 2 * (long)GET(fabric.shared->open_stations) <= cores) continue;
    if (polling > now) {  /* the program itself does what is to be done */
      station_sleep(fabric.shared, p->station, atomic_load(&s->bell), polling + 1000);
      continue;
    }
    next = least(next, now + LONGEST_SLEEP);
    atomic_store(&s->wakes_at, next);
    station_sleep(fabric.shared, p->station, bell, next);
  }
  return NULL;
}
