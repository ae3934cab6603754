/* What programs call: libibverbs.so.1 over the played fabric. Environment, both needed, else there are no devices:
   PLAYED_FABRIC, the fabric's folder, and PLAYED_HOST, whose NICs are here: 0 or more. */
#define _GNU_SOURCE
#include "nic.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define GET(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define REFUSE(number) return errno = (number), NULL

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device *devices;
static uint32_t host;

/* ---- mail ---- */

int mail_open(Mail *m) {
  memset(m, 0, sizeof *m);
  pthread_mutex_init(&m->lock, NULL);
  m->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return m->fd < 0 ? -1 : 0;
}
void mail_close(Mail *m) {
  close(m->fd);
  free(m->letters);
  pthread_mutex_destroy(&m->lock);
}
void mail_put(Mail *m, Letter letter) {
  uint64_t one = 1;
  pthread_mutex_lock(&m->lock);
  if (m->count == m->room) {
    uint32_t room = m->room ? 2 * m->room : 16;
    Letter *more = calloc(room, sizeof *more);
    if (!more) abort();
    for (uint32_t i = 0; i < m->count; i++) more[i] = m->letters[(m->first + i) % m->room];
    free(m->letters);
    m->letters = more, m->room = room, m->first = 0;
  }
  m->letters[(m->first + m->count++) % m->room] = letter;
  if (write(m->fd, &one, sizeof one) < 0) abort();
  pthread_mutex_unlock(&m->lock);
}
int mail_get(Mail *m, Letter *out) {
  uint64_t one;
  for (;;) {
    if (read(m->fd, &one, sizeof one) != sizeof one) return -1;
    pthread_mutex_lock(&m->lock);
    bool there = m->count;
    if (there) *out = m->letters[m->first], m->first = (m->first + 1) % m->room, m->count--;
    pthread_mutex_unlock(&m->lock);
    if (there) return 0;  /* else it was forgotten since */
  }
}
void mail_forget(Mail *m, const void *about) {
  pthread_mutex_lock(&m->lock);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < m->count; i++) {
    Letter l = m->letters[(m->first + i) % m->room];
    if (l.event.element.object != about) m->letters[(m->first + kept++) % m->room] = l;
  }
  m->count = kept;
  pthread_mutex_unlock(&m->lock);
}

/* ---- devices ---- */

static int open_fabric(void) {  /* 0, or an errno after it has said why */
  const char *folder = getenv("PLAYED_FABRIC"), *number = getenv("PLAYED_HOST");
  char *rest = NULL;
  if (devices) return 0;
  if (!folder) return ENODEV;
  unsigned long n = number ? strtoul(number, &rest, 10) : 0;
  if (!number || !*number || *rest || n >= MAX_NICS) {
    fprintf(stderr, "played fabric: PLAYED_HOST is to be the number of a host, not %s\n", number ? number : "missing");
    return ENODEV;
  }
  int err = fabric_open(&fabric, folder);
  if (!err && n >= fabric.shared->hosts) err = ENODEV;
  struct ibv_device *made = err ? NULL : calloc(fabric.shared->nics, sizeof *made);
  if (!made) {
    fprintf(stderr, "played fabric: host %lu of %s: %s\n", n, folder, strerror(err ? err : ENOMEM));
    return err ? err : ENOMEM;
  }
  host = (uint32_t)n;
  for (uint32_t i = 0; i < fabric.shared->nics; i++) {
    struct ibv_device *d = &made[i];
    d->node_type = IBV_NODE_CA, d->transport_type = IBV_TRANSPORT_IB;
    snprintf(d->name, sizeof d->name, "%s", fabric.shared->nic[host * fabric.shared->nics + i].name);
    snprintf(d->dev_name, sizeof d->dev_name, "uverbs%u", i);
    snprintf(d->ibdev_path, sizeof d->ibdev_path, "/sys/class/infiniband/%s", d->name);
  }
  devices = made;
  return 0;
}
static uint32_t number_of(const struct ibv_device *d) { return host * fabric.shared->nics + (uint32_t)(d - devices); }

struct ibv_device **ibv_get_device_list(int *count) {
  pthread_mutex_lock(&opening);
  int n = open_fabric() ? 0 : (int)fabric.shared->nics, seen = 0;
  struct ibv_device **list = calloc((size_t)n + 1, sizeof *list);
  for (int i = 0; list && i < n; i++)
    if (atomic_load(&fabric.shared->nic[number_of(&devices[i])].v[F_state]) != GONE) list[seen++] = &devices[i];
  pthread_mutex_unlock(&opening);
  if (count) *count = seen;
  return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
__be64 ibv_get_device_guid(struct ibv_device *d) { return htobe64(0x020000fffe000000u | (number_of(d) + 1)); }
int ibv_get_device_index(struct ibv_device *d) { return (int)number_of(d) + 1; }

static int query_port(struct ibv_context *c, uint8_t number, struct ibv_port_attr *out, size_t bytes) {
  Port *p = port_of(c);
  bool up = atomic_load(&p->state->v[F_state]) == UP, roce = fabric.shared->roce;
  if (number != 1) return EINVAL;
  struct ibv_port_attr a = {.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .gid_tbl_len = roce ? MAX_GIDS : 1,
                            .port_cap_flags = roce ? IBV_PORT_IP_BASED_GIDS : 0, .max_msg_sz = MAX_MESSAGE, .pkey_tbl_len = 1, .lid = roce ? 0 : (uint16_t)(p->nic + 1),
                            .sm_lid = roce ? 0 : 1, .max_vl_num = 1, .active_width = 2, .active_speed = 64, .phys_state = up ? IBV_PORT_PHYS_LINK_UP : IBV_PORT_PHYS_DISABLED,
                            .link_layer = roce ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND};
  memset(out, 0, bytes);
  memcpy(out, &a, bytes < sizeof a ? bytes : sizeof a);
  return 0;
}
int ibv_query_port(struct ibv_context *c, uint8_t number, struct ibv_port_attr *out) { return query_port(c, number, out, offsetof(struct ibv_port_attr, flags)); }
int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *out) {
  *out = (struct ibv_device_attr){.fw_ver = "played", .node_guid = ibv_get_device_guid(c->device), .sys_image_guid = ibv_get_device_guid(c->device), .max_mr_size = UINT64_MAX,
      .page_size_cap = 0xfffff000, .vendor_id = 0xffffff /* as soft NICs say */, .max_qp = 1 << 16, .max_qp_wr = MAX_WR, .max_sge = MAX_SGE, .max_sge_rd = MAX_SGE, .max_cq = 1 << 16,
      .device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_RC_RNR_NAK_GEN,
      .max_cqe = MAX_CQE, .max_mr = MAX_REGIONS, .max_pd = 1 << 16, .max_qp_rd_atom = MAX_READS, .max_res_rd_atom = MAX_READS << 16, .max_qp_init_rd_atom = MAX_READS,
      .atomic_cap = IBV_ATOMIC_GLOB, .max_ah = 1 << 16, .max_srq = 1 << 16, .max_srq_wr = MAX_WR, .max_srq_sge = MAX_SGE, .max_pkeys = 1, .phys_port_cnt = 1};
  return 0;
}
static int query_device_ex(struct ibv_context *c, const void *input, struct ibv_device_attr_ex *out, size_t bytes) {
  (void)input;
  if (bytes < sizeof out->orig_attr) return EINVAL;
  memset(out, 0, bytes);
  if (bytes >= sizeof *out) out->phys_port_cnt_ex = 1;
  return ibv_query_device(c, &out->orig_attr);
}
static int gid_of(uint32_t nic, int index, union ibv_gid *g) {
  uint32_t id = nic + 1;
  if (index < 0 || index >= (fabric.shared->roce ? MAX_GIDS : 1)) return EINVAL;
  memset(g, 0, sizeof *g);
  if (index == 0) g->raw[0] = 0xfe, g->raw[1] = 0x80, g->raw[8] = 2, g->raw[11] = 0xff, g->raw[12] = 0xfe;
  else g->raw[10] = g->raw[11] = 0xff, g->raw[12] = 10, g->raw[13] = (uint8_t)GET(fabric.shared->nic[nic].v[F_address]);
  g->raw[14] = (uint8_t)(id >> 8), g->raw[15] = (uint8_t)id;
  return 0;
}
int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *g) {
  int err = port == 1 ? gid_of(port_of(c)->nic, index, g) : EINVAL;
  if (err) errno = err;
  return err ? -1 : 0;
}
int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t bytes) {
  struct ibv_gid_entry found = {.gid_index = index, .port_num = port, .gid_type = fabric.shared->roce ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB};
  int err = port != 1 || flags ? EINVAL : gid_of(port_of(c)->nic, (int)index, &found.gid);
  if (!err) memcpy(e, &found, bytes < sizeof found ? bytes : sizeof found);
  return err == EINVAL && port == 1 && !flags ? ENODATA : err;
}
ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries, size_t room, uint32_t flags, size_t bytes) {
  size_t n = 0, all = fabric.shared->roce ? MAX_GIDS : 1;
  if (flags || room < all) return -EINVAL;
  for (; n < all; n++) _ibv_query_gid_ex(c, 1, (uint32_t)n, (struct ibv_gid_entry *)((char *)entries + n * bytes), 0, bytes);
  return (ssize_t)n;
}
int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type) {
  struct ibv_gid_entry e;
  int err = _ibv_query_gid_ex(c, port, index, &e, 0, sizeof e);
  *type = fabric.shared->roce;  /* 0: IB or RoCE v1, 1: RoCE v2 */
  return err ? -1 : 0;
}
int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *key) {
  (void)c;
  if (port != 1 || index) return errno = EINVAL, -1;
  *key = htobe16(DEFAULT_PKEY);
  return 0;
}
int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 key) {
  (void)c;
  return port == 1 && key == htobe16(DEFAULT_PKEY) ? 0 : (errno = EINVAL, -1);
}

/* ---- protection domains, regions ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
  static _Atomic uint32_t handles;
  struct ibv_pd *pd = calloc(1, sizeof *pd);
  if (pd) pd->context = c, pd->handle = ++handles;
  return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) {
  Port *p = port_of(pd->context);
  bool used = false;
  port_lock(p);
  for (uint32_t i = 0; i < p->regions_room; i++) used |= p->regions[i] && p->regions[i]->mr.pd == pd;
  for (Qp *q = p->qps; q; q = q->chain) used |= q->qp.pd == pd;
  port_unlock(p);
  if (used) return EBUSY;
  free(pd);
  return 0;
}
enum { KNOWN_ACCESS = 2 * IBV_ACCESS_ON_DEMAND - 1 + 128 /* huge pages */, OPTIONAL_ACCESS = 0x3ff00000 /* relaxed ordering */ };
static int check_access(unsigned access) {  /* 0, or an errno */
  unsigned writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  if ((writes && !(access & IBV_ACCESS_LOCAL_WRITE)) || access & ~(unsigned)KNOWN_ACCESS) return EINVAL;
  return access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND) ? EOPNOTSUPP : 0;
}
/* Whether there is memory, and whose: *gpu is NULL for the host's. 0, or an errno. */
static int check_memory(void *at, size_t length, struct GpuMemory **gpu) {
  uintptr_t start = (uintptr_t)at, page = (uintptr_t)sysconf(_SC_PAGESIZE);
  *gpu = NULL;
  if (start + length < start) return EINVAL;
  int err = length ? gpu_find(gpu, at, length) : 0;
  bool mapped = *gpu || !length || !msync((void *)(start & ~(page - 1)), length + start % page, MS_ASYNC);
  return err ? err : mapped ? 0 : EFAULT;
}
static int open_memory(Port *p, struct GpuMemory **gpu) {  /* with the lock. 0, or an errno */
  int err = *gpu ? gpu_open(p, *gpu) : 0;
  if (err) free(*gpu), *gpu = NULL;
  return err;
}
static void close_memory(Port *p, struct GpuMemory **gpu) {
  if (*gpu) gpu_close(p, *gpu);
  free(*gpu);
  *gpu = NULL;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t length, uint64_t iova, unsigned access) {
  Port *p = port_of(pd->context);
  struct GpuMemory *gpu;
  access &= ~(unsigned)OPTIONAL_ACCESS;
  int err = check_access(access);
  if (!err) err = check_memory(at, length, &gpu);
  if (err) REFUSE(err);
  Region *r = calloc(1, sizeof *r);
  if (!r) { free(gpu); return NULL; }
  port_lock(p);
  uint32_t i = 1;
  while (i < p->regions_room && p->regions[i]) i++;
  if (i >= p->regions_room && i < MAX_REGIONS) {
    uint32_t room = p->regions_room ? 2 * p->regions_room : 64;
    Region **more = realloc(p->regions, room * sizeof *more);
    if (more) {
      memset(more + p->regions_room, 0, (room - p->regions_room) * sizeof *more);
      p->regions = more, p->regions_room = room;
    }
  }
  err = i < p->regions_room ? open_memory(p, &gpu) : ENOMEM;
  if (!err) {
    uint32_t key = i << 8 | (p->region_next++ & 255);  /* a key of what is gone is not the next one's */
    *r = (Region){.mr = {.context = pd->context, .pd = pd, .addr = at, .length = length, .handle = key, .lkey = key, .rkey = key},
                  .iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova, .access = (int)access, .gpu = gpu};
    p->regions[i] = r;
  }
  port_unlock(p);
  if (!err) return &r->mr;
  free(gpu);
  free(r);
  REFUSE(err);
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t length, int access) { return ibv_reg_mr_iova2(pd, at, length, (uintptr_t)at, (unsigned)access); }
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *at, size_t length, uint64_t iova, int access) { return ibv_reg_mr_iova2(pd, at, length, iova, (unsigned)access); }
int ibv_rereg_mr(struct ibv_mr *mr, int what, struct ibv_pd *pd, void *at, size_t length, int access) {
  Port *p = port_of(mr->context);
  Region *r = (Region *)mr;
  struct GpuMemory *gpu = NULL;
  bool moves = what & IBV_REREG_MR_CHANGE_TRANSLATION, rights = what & IBV_REREG_MR_CHANGE_ACCESS;
  if (!what || what & ~7 || (what & IBV_REREG_MR_CHANGE_PD && !pd) || (moves && !length)) return errno = EINVAL, IBV_REREG_MR_ERR_INPUT;
  int err = check_access((unsigned)(rights ? access & ~OPTIONAL_ACCESS : r->access));
  if (!err && moves) err = check_memory(at, length, &gpu);
  if (err) return errno = err, IBV_REREG_MR_ERR_INPUT;
  port_lock(p);
  err = open_memory(p, &gpu);
  if (!err) {
    if (what & IBV_REREG_MR_CHANGE_PD) mr->pd = pd;
    if (moves) close_memory(p, &r->gpu), r->gpu = gpu, mr->addr = at, mr->length = length, r->iova = (uintptr_t)at;
    if (rights) r->access = access & ~OPTIONAL_ACCESS;
  }
  port_unlock(p);
  return err ? (errno = err, IBV_REREG_MR_ERR_INPUT) : 0;
}
int ibv_dereg_mr(struct ibv_mr *mr) {
  Port *p = port_of(mr->context);
  port_lock(p);
  p->regions[mr->lkey >> 8] = NULL;
  close_memory(p, &((Region *)mr)->gpu);
  port_unlock(p);
  free(mr);
  return 0;
}

/* ---- completion queues ---- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
  Channel *h = calloc(1, sizeof *h);
  if (!h || mail_open(&h->mail)) { free(h); return NULL; }
  h->channel = (struct ibv_comp_channel){.context = c, .fd = h->mail.fd};
  return &h->channel;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  Channel *h = (Channel *)channel;
  if (channel->refcnt) return EBUSY;
  mail_close(&h->mail);
  free(h);
  return 0;
}
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context) {
  Letter l;
  if (mail_get(&((Channel *)channel)->mail, &l)) return -1;
  *cq = l.event.element.object, *context = (*cq)->cq_context;
  return 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += n;
  pthread_mutex_unlock(&cq->mutex);
}

static int poll_once(Cq *c, int n, struct ibv_wc *wcs) {
  int found = 0;
  pthread_mutex_lock(&c->lock);
  for (; found < n && c->count; found++, c->count--) wcs[found] = c->wcs[c->first], c->first = (c->first + 1) % c->size;
  pthread_mutex_unlock(&c->lock);
  return found;
}
static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs) {
  Cq *c = (Cq *)cq;
  Port *p = port_of(cq->context);
  int found = poll_once(c, n, wcs);
  if (found || n <= 0) { c->in_vain = 0; return found; }
  if (atomic_fetch_add(&c->in_vain, 1) >= POLLS) atomic_store(&p->polling_until, now_ns() + POLLING);
  if (pthread_mutex_trylock(&p->lock)) return 0;  /* who has it does what is to be done */
  port_pass(p);
  pthread_mutex_unlock(&p->lock);
  return poll_once(c, n, wcs);
}
static int req_notify_cq(struct ibv_cq *cq, int solicited_only) {
  Cq *c = (Cq *)cq;
  pthread_mutex_lock(&c->lock);
  c->solicited_only = solicited_only && (!c->armed || c->solicited_only), c->armed = true, c->in_vain = 0;
  pthread_mutex_unlock(&c->lock);
  atomic_store(&port_of(cq->context)->polling_until, 0);
  return 0;
}

static int next_poll(struct ibv_cq_ex *ex) {
  Cq *c = (Cq *)ex;
  if (poll_cq(&c->cq, 1, &c->polled) != 1) return ENOENT;
  ex->status = c->polled.status, ex->wr_id = c->polled.wr_id;
  return 0;
}
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *a) { return a->comp_mask ? EINVAL : next_poll(ex); }
static void end_poll(struct ibv_cq_ex *ex) { (void)ex; }
#define READER(type, name, field) static type name(struct ibv_cq_ex *ex) { return ((Cq *)ex)->polled.field; }
READER(int, read_opcode, opcode)
READER(uint32_t, read_vendor_err, vendor_err)
READER(uint32_t, read_byte_len, byte_len)
READER(__be32, read_imm_data, imm_data)
READER(uint32_t, read_qp_num, qp_num)
READER(uint32_t, read_src_qp, src_qp)
READER(unsigned, read_wc_flags, wc_flags)
READER(uint32_t, read_slid, slid)
READER(uint8_t, read_sl, sl)
READER(uint8_t, read_dlid_path_bits, dlid_path_bits)
static uint64_t read_time(struct ibv_cq_ex *ex) { (void)ex; return now_ns(); }

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *context, struct ibv_comp_channel *channel, int vector) {
  if (cqe < 1 || cqe > MAX_CQE || vector < 0 || vector >= c->num_comp_vectors) REFUSE(EINVAL);
  Cq *q = calloc(1, sizeof *q);
  if (q) q->wcs = calloc((size_t)cqe, sizeof *q->wcs);
  if (!q || !q->wcs) { free(q); REFUSE(ENOMEM); }
  q->size = (uint32_t)cqe;
  q->cq.context = c, q->cq.channel = channel, q->cq.cq_context = context, q->cq.cqe = cqe;
  pthread_mutex_init(&q->lock, NULL);
  pthread_mutex_init(&q->cq.mutex, NULL);
  pthread_cond_init(&q->cq.cond, NULL);
  if (channel) channel->refcnt++;
  struct ibv_cq_ex *x = &q->ex;
  x->start_poll = start_poll, x->next_poll = next_poll, x->end_poll = end_poll, x->read_opcode = read_opcode, x->read_vendor_err = read_vendor_err;
  x->read_byte_len = read_byte_len, x->read_imm_data = read_imm_data, x->read_qp_num = read_qp_num, x->read_src_qp = read_src_qp, x->read_wc_flags = read_wc_flags;
  x->read_slid = read_slid, x->read_sl = read_sl, x->read_dlid_path_bits = read_dlid_path_bits, x->read_completion_ts = x->read_completion_wallclock_ns = read_time;
  return &q->cq;
}
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a) {
  if (a->wc_flags & ~0x8ffull || a->comp_mask & ~3u) REFUSE(EOPNOTSUPP);
  return (struct ibv_cq_ex *)ibv_create_cq(c, (int)a->cqe, a->cq_context, a->channel, (int)a->comp_vector);
}
int ibv_resize_cq(struct ibv_cq *cq, int cqe) {
  Cq *c = (Cq *)cq;
  if (cqe < 1 || cqe > MAX_CQE) return EINVAL;
  struct ibv_wc *wcs = calloc((size_t)cqe, sizeof *wcs);
  if (!wcs) return ENOMEM;
  pthread_mutex_lock(&c->lock);
  bool fits = c->count <= (uint32_t)cqe;
  for (uint32_t i = 0; fits && i < c->count; i++) wcs[i] = c->wcs[(c->first + i) % c->size];
  if (fits) { struct ibv_wc *old = c->wcs; c->wcs = wcs, wcs = old, c->first = 0, c->size = (uint32_t)cqe, cq->cqe = cqe; }
  pthread_mutex_unlock(&c->lock);
  free(wcs);
  return fits ? 0 : EINVAL;
}
int ibv_destroy_cq(struct ibv_cq *cq) {
  Port *p = port_of(cq->context);
  bool used = false;
  port_lock(p);
  for (Qp *q = p->qps; q; q = q->chain) used |= q->qp.send_cq == cq || q->qp.recv_cq == cq;
  port_unlock(p);
  if (used) return EBUSY;
  if (cq->channel) mail_forget(&((Channel *)cq->channel)->mail, cq), cq->channel->refcnt--;
  mail_forget(&p->events, cq);
  pthread_mutex_destroy(&((Cq *)cq)->lock);
  free(((Cq *)cq)->wcs);
  free(cq);
  return 0;
}

/* ---- receiving ---- */

static int post_receives(Port *p, Receives *r, Qp *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  int err = 0;
  port_lock(p);
  for (; wr && !err; wr = wr->next) {
    *bad = wr;
    if (q && q->qp.state == IBV_QPS_RESET) err = EINVAL;
    else if (GET(p->state->v[F_state]) == GONE) err = EIO;
    else if (wr->num_sge < 0 || (uint32_t)wr->num_sge > r->sges) err = EINVAL;
    else if (r->posted - r->taken == r->room) err = ENOMEM;
    if (err) break;
    Receive *slot = &r->slots[r->posted++ % r->room];
    slot->wr_id = wr->wr_id, slot->sges = wr->num_sge;
    if (wr->num_sge) memcpy(slot->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *slot->sge);
  }
  if (q && q->qp.state == IBV_QPS_ERR) qp_into_error(q, IBV_WC_WR_FLUSH_ERR);
  port_unlock(p);
  return err;
}
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  Qp *q = (Qp *)qp;
  if (qp->srq) return *bad = wr, EINVAL;
  return post_receives(q->port, q->receives, q, wr, bad);
}
static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { return post_receives(port_of(srq->context), &((Srq *)srq)->receives, NULL, wr, bad); }

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a) {
  if (!a->attr.max_wr || a->attr.max_wr > MAX_WR || a->attr.max_sge > MAX_SGE) REFUSE(EINVAL);
  Srq *s = calloc(1, sizeof *s);
  if (s) s->receives.slots = calloc(a->attr.max_wr, sizeof *s->receives.slots);
  if (!s || !s->receives.slots) { free(s); REFUSE(ENOMEM); }
  s->attr = a->attr, s->receives.room = a->attr.max_wr, s->receives.sges = a->attr.max_sge;
  s->srq.context = pd->context, s->srq.srq_context = a->srq_context, s->srq.pd = pd;
  pthread_mutex_init(&s->srq.mutex, NULL);
  pthread_cond_init(&s->srq.cond, NULL);
  return &s->srq;
}
int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask) {
  Srq *s = (Srq *)srq;
  if (mask & IBV_SRQ_MAX_WR) return EOPNOTSUPP;
  if (mask & IBV_SRQ_LIMIT && a->srq_limit >= s->receives.room) return EINVAL;
  port_lock(port_of(srq->context));
  if (mask & IBV_SRQ_LIMIT) s->receives.limit = a->srq_limit;
  port_unlock(port_of(srq->context));
  return 0;
}
int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a) {
  Srq *s = (Srq *)srq;
  *a = s->attr, a->srq_limit = s->receives.limit;
  return 0;
}
int ibv_destroy_srq(struct ibv_srq *srq) {
  Port *p = port_of(srq->context);
  bool used = false;
  port_lock(p);
  for (Qp *q = p->qps; q; q = q->chain) used |= q->qp.srq == srq;
  port_unlock(p);
  if (used) return EBUSY;
  mail_forget(&p->events, srq);
  free(((Srq *)srq)->receives.slots);
  free(srq);
  return 0;
}

/* ---- queue pairs ---- */

static struct ibv_qp *create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a, bool extended);
static struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a) {
  if (a->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS)) REFUSE(EOPNOTSUPP);
  if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD)) REFUSE(EINVAL);
  bool ops = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if ((ops && a->send_ops_flags & ~0x7full) || (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags)) REFUSE(EOPNOTSUPP);
  return create_qp(c, a, ops);
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
  struct ibv_qp_init_attr_ex more = {.pd = pd};
  memcpy(&more, a, sizeof *a);
  struct ibv_qp *qp = create_qp(pd->context, &more, false);
  if (qp) a->cap = more.cap;
  return qp;
}

static int fill_ah(Port *p, const struct ibv_ah_attr *a) {  /* the NIC that it leads to; -1: none has this address; -2: it is no address */
  bool roce = fabric.shared->roce;
  uint32_t all = fabric.shared->hosts * fabric.shared->nics;
  (void)p;
  if (a->port_num != 1 || (roce && !a->is_global) || (a->is_global && a->grh.sgid_index >= (roce ? MAX_GIDS : 1))) return -2;
  if (!roce) return a->dlid >= 1 && a->dlid <= all ? a->dlid - 1 : -1;
  for (uint32_t n = 0; n < all; n++)
    for (int i = 0; i < MAX_GIDS; i++) {
      union ibv_gid g;
      gid_of(n, i, &g);
      if (!memcmp(&g, &a->grh.dgid, sizeof g)) return (int)n;
    }
  return -1;
}
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a) {
  int nic = fill_ah(port_of(pd->context), a);
  if (nic == -2) REFUSE(EINVAL);
  Ah *h = calloc(1, sizeof *h);
  if (h) h->ah.context = pd->context, h->ah.pd = pd, h->attr = *a, h->nic = nic;
  return h ? &h->ah : NULL;
}
int ibv_destroy_ah(struct ibv_ah *ah) { free(ah); return 0; }
int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *a) {
  (void)c;
  *a = (struct ibv_ah_attr){.dlid = wc->slid, .sl = wc->sl, .port_num = port, .is_global = wc->wc_flags & IBV_WC_GRH};
  if (a->is_global) a->grh.dgid = grh->sgid, a->grh.hop_limit = 64;
  return 0;
}
struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port) {
  struct ibv_ah_attr a;
  return ibv_init_ah_from_wc(pd->context, port, wc, grh, &a) ? NULL : ibv_create_ah(pd, &a);
}

static bool can_post(enum ibv_qp_type type, int opcode) {
  if (type == IBV_QPT_UD) return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
  return opcode >= 0 && opcode < (type == IBV_QPT_UC ? IBV_WR_RDMA_READ : PLAYED_OPCODES);
}
/* The place for the next request, filled as far as every way to post does it; NULL and *err if there is none. */
static Send *new_send(Qp *q, uint64_t wr_id, int opcode, unsigned flags, int *err) {
  bool ready = q->qp.state == IBV_QPS_RTS || q->qp.state == IBV_QPS_SQD || q->qp.state == IBV_QPS_ERR || q->qp.state == IBV_QPS_SQE;
  if (!ready || !can_post(q->qp.qp_type, opcode)) *err = EINVAL;
  else if (GET(q->port->state->v[F_state]) == GONE) *err = EIO;
  else if (q->posted + q->built - q->acked >= q->sends_room) *err = ENOMEM;
  if (*err) return NULL;
  Send *s = send_at(q, q->posted + q->built);
  memset(s, 0, offsetof(Send, sge));
  s->wr_id = wr_id, s->opcode = opcode, s->flags = flags, s->nic = -1;
  return s;
}
static int set_sges(Qp *q, Send *s, const struct ibv_sge *sge, int n) {
  if (n < 0 || (uint32_t)n > q->init.cap.max_send_sge || (s->flags & IBV_SEND_INLINE && s->opcode >= IBV_WR_RDMA_READ)) return EINVAL;
  s->sges = n, s->total = 0;
  for (int i = 0; i < n; i++) {
    if (s->flags & IBV_SEND_INLINE) {
      if (s->total + sge[i].length > q->init.cap.max_inline_data) return EINVAL;
      if (sge[i].length) memcpy(s->inlined + s->total, (const void *)(uintptr_t)sge[i].addr, sge[i].length);
    }
    s->sge[i] = sge[i], s->total += sge[i].length;
  }
  return 0;
}
static void set_ud(Send *s, const struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t own_key) {
  const Ah *h = (const Ah *)ah;
  s->nic = h->nic, s->global = h->attr.is_global, s->qpn = qpn, s->key = qkey & 1u << 31 ? own_key : qkey;
}
static void post_built(Qp *q, uint64_t n, uint64_t now) {
  for (; n; n--) {
    Send *s = send_at(q, q->posted++);
    s->posted_at = now, s->psn = q->post_psn, s->packets = packets_of(s->total);
    q->post_psn = (q->post_psn + s->packets) & PSN_MASK;
  }
}
/* The poster's own thread sends what can go at once; the NIC's sees to the rest. */
static void set_off(Qp *q) {
  if (q->qp.state == IBV_QPS_ERR) { qp_into_error(q, IBV_WC_WR_FLUSH_ERR); return; }
  if (q->qp.state == IBV_QPS_SQE) flush_sends(q, IBV_WC_WR_FLUSH_ERR);
  station_ring(fabric.shared, q->port->station, port_pass(q->port));
}
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  Qp *q = (Qp *)qp;
  int err = 0;
  uint64_t now = now_ns();
  port_lock(q->port);
  for (; wr; wr = wr->next) {
    *bad = wr;
    Send *s = new_send(q, wr->wr_id, wr->opcode, wr->send_flags, &err);
    if (s) err = set_sges(q, s, wr->sg_list, wr->num_sge);
    if (err) break;
    s->imm = wr->imm_data;
    if (qp->qp_type == IBV_QPT_UD) set_ud(s, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey, q->attr.qkey);
    else if (wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) s->address = wr->wr.atomic.remote_addr, s->key = wr->wr.atomic.rkey, s->operand[0] = wr->wr.atomic.compare_add, s->operand[1] = wr->wr.atomic.swap;
    else s->address = wr->wr.rdma.remote_addr, s->key = wr->wr.rdma.rkey;
    post_built(q, 1, now);
  }
  set_off(q);
  port_unlock(q->port);
  return err;
}

/* The extended way: one call for each part, under the NIC's lock from wr_start on. */
static void wr_start(struct ibv_qp_ex *x) { Qp *q = (Qp *)x; port_lock(q->port); q->built = 0, q->built_wrong = 0; }
static Send *wr_new(struct ibv_qp_ex *x, int opcode, uint32_t key, uint64_t at, uint32_t imm) {
  Qp *q = (Qp *)x;
  Send *s = q->built_wrong ? NULL : new_send(q, x->wr_id, opcode, x->wr_flags & ~(unsigned)IBV_SEND_INLINE, &q->built_wrong);
  if (s) s->key = key, s->address = at, s->imm = imm, q->built++;
  return s;
}
static Send *wr_last(struct ibv_qp_ex *x) { Qp *q = (Qp *)x; return q->built && !q->built_wrong ? send_at(q, q->posted + q->built - 1) : NULL; }
static void wr_cmp_swp(struct ibv_qp_ex *x, uint32_t key, uint64_t at, uint64_t compare, uint64_t swap) {
  Send *s = wr_new(x, IBV_WR_ATOMIC_CMP_AND_SWP, key, at, 0);
  if (s) s->operand[0] = compare, s->operand[1] = swap;
}
static void wr_fetch_add(struct ibv_qp_ex *x, uint32_t key, uint64_t at, uint64_t add) {
  Send *s = wr_new(x, IBV_WR_ATOMIC_FETCH_AND_ADD, key, at, 0);
  if (s) s->operand[0] = add;
}
static void wr_read(struct ibv_qp_ex *x, uint32_t key, uint64_t at) { wr_new(x, IBV_WR_RDMA_READ, key, at, 0); }
static void wr_write(struct ibv_qp_ex *x, uint32_t key, uint64_t at) { wr_new(x, IBV_WR_RDMA_WRITE, key, at, 0); }
static void wr_write_imm(struct ibv_qp_ex *x, uint32_t key, uint64_t at, __be32 imm) { wr_new(x, IBV_WR_RDMA_WRITE_WITH_IMM, key, at, imm); }
static void wr_send(struct ibv_qp_ex *x) { wr_new(x, IBV_WR_SEND, 0, 0, 0); }
static void wr_send_imm(struct ibv_qp_ex *x, __be32 imm) { wr_new(x, IBV_WR_SEND_WITH_IMM, 0, 0, imm); }
static void wr_set_ud_addr(struct ibv_qp_ex *x, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
  Send *s = wr_last(x);
  if (s) set_ud(s, ah, qpn, qkey, ((Qp *)x)->attr.qkey);
}
static void wr_set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *sge) {
  Send *s = wr_last(x);
  if (s) ((Qp *)x)->built_wrong = n > MAX_SGE ? EINVAL : set_sges((Qp *)x, s, sge, (int)n);
}
static void wr_set_sge(struct ibv_qp_ex *x, uint32_t key, uint64_t at, uint32_t length) { wr_set_sge_list(x, 1, &(struct ibv_sge){at, length, key}); }
static void wr_set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *list) {
  Send *s = wr_last(x);
  if (!s) return;
  s->flags |= IBV_SEND_INLINE;
  for (size_t i = 0; i < n; i++) {
    if (s->opcode >= IBV_WR_RDMA_READ || s->total + list[i].length > ((Qp *)x)->init.cap.max_inline_data) { ((Qp *)x)->built_wrong = EINVAL; return; }
    if (list[i].length) memcpy(s->inlined + s->total, list[i].addr, list[i].length);
    s->total += list[i].length;
  }
}
static void wr_set_inline_data(struct ibv_qp_ex *x, void *at, size_t length) { wr_set_inline_data_list(x, 1, &(struct ibv_data_buf){at, length}); }
static int wr_complete(struct ibv_qp_ex *x) {
  Qp *q = (Qp *)x;
  uint64_t n = q->built;
  int err = q->built_wrong;
  q->built = 0;
  if (!err) post_built(q, n, now_ns()), set_off(q);
  port_unlock(q->port);
  return err;
}
static void wr_abort(struct ibv_qp_ex *x) { Qp *q = (Qp *)x; q->built = 0; port_unlock(q->port); }

static struct ibv_qp *create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a, bool extended) {
  Port *p = port_of(c);
  struct ibv_qp_cap *cap = &a->cap;
  if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UC && a->qp_type != IBV_QPT_UD) REFUSE(EOPNOTSUPP);
  if (!a->pd || !a->send_cq || !a->recv_cq || cap->max_send_wr > MAX_WR || cap->max_recv_wr > MAX_WR || cap->max_send_sge > MAX_SGE || cap->max_recv_sge > MAX_SGE || cap->max_inline_data > MAX_INLINE) REFUSE(EINVAL);
  Qp *q = calloc(1, sizeof *q);
  if (!q) return NULL;
  q->sends_room = cap->max_send_wr ? cap->max_send_wr : 1;
  q->stride = (sizeof(Send) + cap->max_inline_data + 63) & ~(size_t)63;
  q->sends = calloc(q->sends_room, q->stride);
  q->own.room = cap->max_recv_wr ? cap->max_recv_wr : 1, q->own.sges = cap->max_recv_sge;
  q->own.slots = calloc(q->own.room, sizeof *q->own.slots);
  uint32_t qpn = 0;
  int err = q->sends && q->own.slots ? EEXIST : ENOMEM;
  for (int tries = 0; err == EEXIST && tries < 1000; tries++) {
    qpn = atomic_fetch_add(&fabric.shared->next_qpn, 1) & PSN_MASK;
    err = qpn < 2 ? EEXIST : ring_make(&q->in, &fabric, qpn, p->station, p->nic);
  }
  if (err) { free(q->sends); free(q->own.slots); free(q); REFUSE(err); }
  q->port = p, q->receives = a->srq ? &((Srq *)a->srq)->receives : &q->own, q->signal_all = a->sq_sig_all;
  memcpy(&q->init, a, sizeof q->init);
  struct ibv_qp *qp = &q->qp;
  qp->context = c, qp->qp_context = a->qp_context, qp->pd = a->pd, qp->send_cq = a->send_cq, qp->recv_cq = a->recv_cq, qp->srq = a->srq, qp->handle = qpn, qp->qp_num = qpn, qp->qp_type = a->qp_type;
  pthread_mutex_init(&qp->mutex, NULL);
  pthread_cond_init(&qp->cond, NULL);
  struct ibv_qp_ex *x = &q->ex;
  x->comp_mask = extended;
  x->wr_atomic_cmp_swp = wr_cmp_swp, x->wr_atomic_fetch_add = wr_fetch_add, x->wr_rdma_read = wr_read, x->wr_rdma_write = wr_write, x->wr_rdma_write_imm = wr_write_imm, x->wr_send = wr_send, x->wr_send_imm = wr_send_imm;
  x->wr_set_ud_addr = wr_set_ud_addr, x->wr_set_inline_data = wr_set_inline_data, x->wr_set_inline_data_list = wr_set_inline_data_list, x->wr_set_sge = wr_set_sge, x->wr_set_sge_list = wr_set_sge_list, x->wr_start = wr_start, x->wr_complete = wr_complete, x->wr_abort = wr_abort;
  qp_reset(q);
  port_lock(p);
  q->chain = p->qps, p->qps = q;
  port_unlock(p);
  return qp;
}
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return ((Qp *)qp)->ex.comp_mask ? &((Qp *)qp)->ex : NULL; }

static const struct { enum ibv_qp_state from, to; int all, connected, reliable, datagrams; } STEPS[] = {  /* what each step must be given */
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, 0, IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, 0, 0, 0},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, 0},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, 0, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, 0},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, 0, 0, 0}, {IBV_QPS_RTS, IBV_QPS_SQD, 0, 0, 0, 0}, {IBV_QPS_SQD, IBV_QPS_RTS, 0, 0, 0, 0},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, 0, 0, 0}, {IBV_QPS_SQE, IBV_QPS_RTS, 0, 0, 0, 0}};

static int check_step(const Qp *q, const struct ibv_qp_attr *a, int mask) {
  enum ibv_qp_state from = q->qp.state, to = mask & IBV_QP_STATE ? a->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE && a->cur_qp_state != from) || (mask & IBV_QP_PORT && a->port_num != 1) || (mask & IBV_QP_PKEY_INDEX && a->pkey_index)) return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC && a->max_rd_atomic > MAX_READS) || (mask & IBV_QP_MAX_DEST_RD_ATOMIC && a->max_dest_rd_atomic > MAX_READS)) return EINVAL;
  if ((mask & IBV_QP_TIMEOUT && a->timeout > 31) || (mask & IBV_QP_RETRY_CNT && a->retry_cnt > 7) || (mask & IBV_QP_RNR_RETRY && a->rnr_retry > 7) || (mask & IBV_QP_PATH_MTU && (a->path_mtu < 1 || a->path_mtu > IBV_MTU_4096))) return EINVAL;
  if (mask & IBV_QP_STATE && (to == IBV_QPS_RESET || to == IBV_QPS_ERR)) return 0;
  for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++)
    if (STEPS[i].from == from && STEPS[i].to == to) {
      int must = STEPS[i].all | (q->qp.qp_type == IBV_QPT_UD ? STEPS[i].datagrams : STEPS[i].connected) | (q->qp.qp_type == IBV_QPT_RC ? STEPS[i].reliable : 0);
      return (mask & must) == must ? 0 : EINVAL;
    }
  return EINVAL;
}
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
  Qp *q = (Qp *)qp;
  struct ibv_qp_attr *k = &q->attr;
  port_lock(q->port);
  int err = check_step(q, a, mask);
  if (!err && mask & IBV_QP_AV) {
    int peer = fill_ah(q->port, &a->ah_attr);
    if (peer == -2) err = EINVAL;
    else k->ah_attr = a->ah_attr, q->peer = peer;
  }
  if (err) { port_unlock(q->port); return err; }
#define KEEP(bit, field) if (mask & (bit)) k->field = a->field
  KEEP(IBV_QP_ACCESS_FLAGS, qp_access_flags); KEEP(IBV_QP_PKEY_INDEX, pkey_index); KEEP(IBV_QP_PORT, port_num); KEEP(IBV_QP_QKEY, qkey); KEEP(IBV_QP_PATH_MTU, path_mtu);
  KEEP(IBV_QP_TIMEOUT, timeout); KEEP(IBV_QP_RETRY_CNT, retry_cnt); KEEP(IBV_QP_RNR_RETRY, rnr_retry); KEEP(IBV_QP_RQ_PSN, rq_psn); KEEP(IBV_QP_SQ_PSN, sq_psn);
  KEEP(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic); KEEP(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic); KEEP(IBV_QP_MIN_RNR_TIMER, min_rnr_timer); KEEP(IBV_QP_DEST_QPN, dest_qp_num);
  if (mask & IBV_QP_RQ_PSN) q->expected = k->rq_psn &= PSN_MASK;
  if (mask & IBV_QP_SQ_PSN) q->una = q->send_psn = q->post_psn = k->sq_psn &= PSN_MASK;
  if (mask & IBV_QP_STATE) {
    if (a->qp_state == IBV_QPS_ERR) qp_into_error(q, IBV_WC_WR_FLUSH_ERR);
    else if (a->qp_state == IBV_QPS_RESET) qp_reset(q), memset(k, 0, sizeof *k);
    else {
      q->draining = a->qp_state == IBV_QPS_SQD && mask & IBV_QP_EN_SQD_ASYNC_NOTIFY && a->en_sqd_async_notify;
      if (a->qp_state == IBV_QPS_RTR) ring_empty(&q->in);
      qp->state = a->qp_state;
    }
    if (qp->state >= IBV_QPS_RTR && qp->state != IBV_QPS_ERR) set_off(q);
  }
  port_unlock(q->port);
  return 0;
}
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init) {
  Qp *q = (Qp *)qp;
  (void)mask;
  port_lock(q->port);
  *a = q->attr, *init = q->init;
  a->qp_state = a->cur_qp_state = qp->state, a->cap = q->init.cap, a->path_mig_state = IBV_MIG_MIGRATED;
  a->sq_draining = qp->state == IBV_QPS_SQD && q->acked < q->next;
  port_unlock(q->port);
  return 0;
}
int ibv_destroy_qp(struct ibv_qp *qp) {
  Qp *q = (Qp *)qp;
  port_lock(q->port);
  for (Qp **at = &q->port->qps; *at; at = &(*at)->chain)
    if (*at == q) { *at = q->chain; break; }
  port_unlock(q->port);
  cq_forget(qp->send_cq, qp->qp_num);
  cq_forget(qp->recv_cq, qp->qp_num);
  mail_forget(&q->port->events, qp);
  ring_leave(&q->in, &fabric, true);
  ring_leave(&q->out, &fabric, false);
  free(q->sends);
  free(q->own.slots);
  free(q);
  return 0;
}

/* ---- opening, events ---- */

struct ibv_context *ibv_open_device(struct ibv_device *d) {
  Port *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->nic = number_of(d), p->state = &fabric.shared->nic[p->nic];
  pthread_mutex_lock(&opening);
  int station = atomic_load(&p->state->v[F_state]) == GONE ? -1 : station_take(&fabric, p->nic);
  pthread_mutex_unlock(&opening);
  if (station < 0) { free(p); REFUSE(ENODEV); }
  p->station = (uint32_t)station;
  p->changes_seen = atomic_load(&p->state->v[F_changes]), p->address_seen = GET(p->state->v[F_address]);
  pthread_mutex_init(&p->lock, NULL);
  int err = mail_open(&p->events) ? errno : 0;
  struct verbs_context *v = &p->v;
  struct ibv_context *c = &v->context;
  v->sz = sizeof *v, v->query_port = query_port, v->query_device_ex = query_device_ex, v->create_cq_ex = create_cq_ex, v->create_qp_ex = create_qp_ex;
  c->device = d, c->cmd_fd = -1, c->async_fd = p->events.fd, c->num_comp_vectors = 1, c->abi_compat = (void *)UINTPTR_MAX;
  pthread_mutex_init(&c->mutex, NULL);
  c->ops.poll_cq = poll_cq, c->ops.req_notify_cq = req_notify_cq, c->ops.post_send = post_send, c->ops.post_recv = post_recv, c->ops.post_srq_recv = post_srq_recv;
  if (!err) err = pthread_create(&p->thread, NULL, port_play, p);
  if (!err) return c;
  station_leave(&fabric, p->station);
  free(p);
  REFUSE(err);
}
int ibv_close_device(struct ibv_context *c) {
  Port *p = port_of(c);
  atomic_store(&p->stop, true);
  port_wake(p);
  pthread_join(p->thread, NULL);
  station_leave(&fabric, p->station);
  gpu_stop(p);
  mail_close(&p->events);
  free(p->regions);
  free(p);
  return 0;
}
int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) {
  Letter l;
  if (mail_get(&port_of(c)->events, &l)) return -1;
  *e = l.event;
  return 0;
}
void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }

/* ---- small things ---- */

static int forks; /* as before Linux 5.12, where it must be asked for */
int ibv_fork_init(void) { return forks = 1, 0; }
int ibv_is_fork_initialized(void) { return forks; }
int ibv_dontfork_range(void *at, size_t size) { (void)at, (void)size; return 0; }
int ibv_dofork_range(void *at, size_t size) { (void)at, (void)size; return 0; }
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *e) { (void)qp; memset(e, 0, sizeof *e); return 0; }
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *e) { (void)qp, (void)e; return EOPNOTSUPP; }
int ibv_query_qp_data_in_order(struct ibv_qp *qp, int opcode, uint32_t flags) { (void)qp, (void)opcode, (void)flags; return 1; }
int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *a, uint8_t mac[6], uint16_t *vid) {
  int nic = fill_ah(port_of(c), a);
  if (nic < 0) return EINVAL;
  memcpy(mac, (uint8_t[6]){2, 0, 0, 0, (uint8_t)((nic + 1) >> 8), (uint8_t)(nic + 1)}, 6);
  *vid = 0xffff;
  return 0;
}
const char *ibv_get_sysfs_path(void) {
  static char path[MAX_PATH + 32];
  if (!devices) return "/sys";
  snprintf(path, sizeof path, "%s/host%u/sys", fabric.folder, host);
  return path;
}
int ibv_read_sysfs_file(const char *folder, const char *name, char *out, size_t size) {
  char path[2 * MAX_PATH];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, out, size);
  if (fd >= 0) close(fd);
  if (n > 0 && out[n - 1] == '\n') out[--n] = 0;
  return (int)n;
}
static const char *name_at(const char *const *names, size_t count, size_t i) { return i < count && names[i] ? names[i] : "unknown"; }
#define NAMED(i, ...) name_at((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), (size_t)(i))
const char *ibv_wc_status_str(enum ibv_wc_status s) {
  return NAMED(s, "success", "local length error", "local QP operation error", "local EE context operation error", "local protection error", "Work Request Flushed Error",
               "memory management operation error", "bad response error", "local access error", "remote invalid request error", "remote access error", "remote operation error",
               "transport retry counter exceeded", "RNR retry counter exceeded");
}
const char *ibv_event_type_str(enum ibv_event_type e) {
  return NAMED(e, "CQ error", "local work queue catastrophic error", "invalid request local work queue error", "local access violation work queue error", "communication established",
               "send queue drained", "path migrated", "path migration request error", "local catastrophic error", "port active", "port error", "LID change", "P_Key change", "SM change",
               "SRQ catastrophic error", "SRQ limit reached", "last WQE reached", "client reregistration", "GID table change");
}
const char *ibv_port_state_str(int s) { return NAMED(s, "no state change (NOP)", "DOWN", "INIT", "ARMED", "ACTIVE"); }
const char *ibv_node_type_str(int t) { return NAMED(t, NULL, "InfiniBand channel adapter", "InfiniBand switch", "InfiniBand router"); }
/* static rates, in multiples of 2.5 Gb/s and in Mb/s; enum ibv_rate counts from 0 */
static const int RATE[] = {-1, 1, 1, 4, 12, 2, 8, 16, 24, 32, 48, 5, 22, 44, 67, 10, 40, 80, 120, 11, 20, 160, 240, 320, 480};
static const int MBPS[] = {-1, -1, 2500, 10000, 30000, 5000, 20000, 40000, 60000, 80000, 120000, 14062, 56250, 112500, 168750, 25781, 103125, 206250, 309375, 28125, 53125, 425000, 637500, 850000, 1275000};
enum { RATES = sizeof MBPS / sizeof *MBPS };
int ibv_rate_to_mult(int r) { return r >= 0 && r < RATES ? RATE[r] : -1; }
int ibv_rate_to_mbps(int r) { return r >= 0 && r < RATES ? MBPS[r] : -1; }
int mult_to_ibv_rate(int m) { for (int r = 2; r < RATES; r++) if (RATE[r] == m) return r; return 0; }
int mbps_to_ibv_rate(int m) { for (int r = 2; r < RATES; r++) if (MBPS[r] == m) return r; return 0; }

/* ---- not played: they say so ---- */

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  (void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
  REFUSE(EOPNOTSUPP);
}
#define ABSENT(name) int name(void) { return EOPNOTSUPP; }
#define ABSENT_POINTER(name) void *name(void) { REFUSE(EOPNOTSUPP); }
ABSENT(ibv_attach_mcast) ABSENT(ibv_detach_mcast)
ABSENT_POINTER(ibv_import_device) ABSENT_POINTER(ibv_import_pd) ABSENT_POINTER(ibv_import_mr) ABSENT_POINTER(ibv_import_dm)
ABSENT(ibv_unimport_pd) ABSENT(ibv_unimport_mr) ABSENT(ibv_unimport_dm)
/* What libraries of real NICs (libmlx5, libefa, librdmacm) bind when they are loaded beside this one; they never call it. */
ABSENT(verbs_register_driver_34) ABSENT(verbs_init_cq) ABSENT(verbs_set_ops) ABSENT(verbs_uninit_context) ABSENT(__verbs_log) ABSENT(execute_ioctl)
ABSENT(ibv_copy_path_rec_from_kern) ABSENT(ibv_copy_qp_attr_from_kern) ABSENT(ibv_copy_ah_attr_from_kern)
ABSENT_POINTER(verbs_open_device) ABSENT_POINTER(_verbs_init_and_alloc_context)
bool verbs_allow_disassociate_destroy = false;
#define COMMANDS(C)                                                                                                                                                     \
  C(advise_mr) C(alloc_dm) C(alloc_mw) C(alloc_pd) C(attach_mcast) C(close_xrcd) C(create_ah) C(create_counters) C(create_cq_ex) C(create_flow)                        \
  C(create_flow_action_esp) C(create_qp_ex) C(create_qp_ex2) C(create_rwq_ind_table) C(create_srq) C(create_srq_ex) C(create_wq) C(dealloc_mw) C(dealloc_pd)          \
  C(dereg_mr) C(destroy_ah) C(destroy_counters) C(destroy_cq) C(destroy_flow) C(destroy_flow_action) C(destroy_qp) C(destroy_rwq_ind_table) C(destroy_srq)            \
  C(destroy_wq) C(detach_mcast) C(free_dm) C(get_context) C(modify_cq) C(modify_flow_action_esp) C(modify_qp) C(modify_qp_ex) C(modify_srq) C(modify_wq) C(open_qp) C(open_xrcd)                \
  C(query_context) C(query_device_any) C(query_mr) C(query_port) C(query_qp) C(query_srq) C(read_counters) C(reg_dm_mr) C(reg_dmabuf_mr) C(reg_mr) C(rereg_mr) C(resize_cq)
#define ABSENT_COMMAND(name) ABSENT(ibv_cmd_##name)
COMMANDS(ABSENT_COMMAND)
