/* Folders, NICs, stations, rings: fabric.h says what they are. */
#define _GNU_SOURCE
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GET(x) atomic_load_explicit(&(x), memory_order_relaxed)
enum { PAGE = 4096, RING_HEAD = PAGE };

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((format(printf, 3, 4))) static bool name_in(char *out, const char *folder, const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  int n = snprintf(out, MAX_PATH, "%s/", folder);
  if (n < MAX_PATH) n += vsnprintf(out + n, (size_t)(MAX_PATH - n), format, rest);
  va_end(rest);
  return n < MAX_PATH;
}

static int map_fabric(const char *folder, int flags, Fabric **out) {
  char path[MAX_PATH];
  if (!name_in(path, folder, "fabric")) return ENAMETOOLONG;
  int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd < 0) return errno;
  struct stat s;
  int err = 0;
  if ((flags & O_CREAT) && ftruncate(fd, sizeof(Fabric))) err = errno;
  if (!err && (fstat(fd, &s) || s.st_size < (off_t)sizeof(Fabric))) err = EINVAL;
  void *at = err ? MAP_FAILED : mmap(NULL, sizeof(Fabric), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!err && at == MAP_FAILED) err = errno;
  close(fd);
  if (!err) *out = at;
  return err;
}

static bool is_sound(const Fabric *s) {
  return GET(s->made) && s->magic == FABRIC_MAGIC && s->bytes == sizeof *s && s->nics && s->hosts && (uint64_t)s->hosts * s->nics <= MAX_NICS &&
         s->fragment >= LEAST_FRAGMENT && s->fragment <= MOST_FRAGMENT && !(s->fragment & (s->fragment - 1));
}

int fabric_open(FabricFile *f, const char *folder) {
  char path[MAX_PATH];
  if (strlen(folder) >= sizeof f->folder || !name_in(path, folder, "lives")) return ENAMETOOLONG;
  strcpy(f->folder, folder);
  int err = map_fabric(folder, 0, &f->shared);
  if (err) return err;
  if (!is_sound(f->shared)) return EPROTO;
  f->lives = open(path, O_RDWR | O_CLOEXEC);
  return f->lives < 0 ? errno : 0;
}

double fabric_chance(Fabric *f) {  /* splitmix64, by the number of the draw */
  uint64_t x = f->seed + 0x9e3779b97f4a7c15u * (1 + atomic_fetch_add(&f->drawn, 1));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/* ---- stations ---- */

void station_ring(Fabric *f, uint32_t station, uint64_t due) {
  if (station >= MAX_STATIONS) return;
  Station *s = &f->station[station];
  atomic_fetch_add(&s->bell, 1);
  if (atomic_load(&s->wakes_at) > due) syscall(SYS_futex, &s->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}
void station_sleep(Fabric *f, uint32_t station, uint32_t bell, uint64_t until) {
  uint64_t now = now_ns();
  if (until <= now) return;
  struct timespec t = {(time_t)((until - now) / 1000000000u), (long)((until - now) % 1000000000u)};
  syscall(SYS_futex, &f->station[station].bell, FUTEX_WAIT, bell, &t, NULL, 0);
}

static struct flock lock_of(uint32_t station) { return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = station, .l_len = 1}; }

int station_take(FabricFile *f, uint32_t nic) {
  for (uint32_t i = 0; i < MAX_STATIONS; i++) {
    Station *s = &f->shared->station[i];
    uint32_t was = GET(s->pid);
    struct flock lock = lock_of(i);
    if (was == (uint32_t)getpid() || (was && station_alive(f, i))) continue;
    if (fcntl(f->lives, F_SETLK, &lock)) continue;
    if (!atomic_compare_exchange_strong(&s->pid, &was, (uint32_t)getpid())) continue;  /* another thread of ours has it now */
    if (!was) atomic_fetch_add(&f->shared->open_stations, 1);
    atomic_store(&s->nic, nic);
    atomic_store(&s->wakes_at, 0);
    return (int)i;
  }
  return -1;
}
void station_leave(FabricFile *f, uint32_t station) {
  struct flock lock = lock_of(station);
  lock.l_type = F_UNLCK;
  atomic_store(&f->shared->station[station].pid, 0);
  atomic_fetch_sub(&f->shared->open_stations, 1);
  fcntl(f->lives, F_SETLK, &lock);
}
bool station_alive(const FabricFile *f, uint32_t station) {
  if (station >= MAX_STATIONS) return false;
  uint32_t pid = GET(f->shared->station[station].pid);
  struct flock lock = lock_of(station);
  if (!pid || pid == (uint32_t)getpid()) return pid != 0;
  return fcntl(f->lives, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* ---- rings ---- */

static uint64_t stride(uint32_t length) { return (sizeof(Frame) + length + 63) & ~(uint64_t)63; }

static int ring_map(Ring *r, int fd, uint64_t size) {
  r->size = size;
  r->head = mmap(NULL, RING_HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  r->data = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool fine = r->head != MAP_FAILED && r->data != MAP_FAILED;
  for (unsigned i = 0; fine && i < 2; i++) fine = mmap(r->data + i * size, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, RING_HEAD) != MAP_FAILED;
  if (fine) return 0;
  int err = errno;
  if (r->head != MAP_FAILED) munmap(r->head, RING_HEAD);
  if (r->data != MAP_FAILED) munmap(r->data, 2 * size);
  r->head = NULL;
  return err;
}
static int ring_file(Ring *r, const FabricFile *f, uint32_t qpn, bool make) {
  char path[MAX_PATH];
  struct stat s;
  uint64_t size = (uint64_t)f->shared->fragment * FRAGMENTS_OF_A_RING;
  if (!name_in(path, f->folder, "q%u", qpn)) return ENAMETOOLONG;
  int fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT | O_EXCL : 0), 0600), err = 0;
  if (fd < 0) return errno;
  if (make && ftruncate(fd, (off_t)(RING_HEAD + size))) err = errno;
  if (!err && (fstat(fd, &s) || s.st_size < (off_t)(RING_HEAD + size))) err = EPROTO;
  if (!err) err = ring_map(r, fd, size);
  close(fd);
  if (err && make) unlink(path);
  return err;
}
int ring_make(Ring *r, const FabricFile *f, uint32_t qpn, uint32_t station, uint32_t nic) {
  int err = ring_file(r, f, qpn, true);
  if (!err) r->head->qpn = qpn, r->head->station = station, r->head->nic = nic;
  return err;
}
int ring_find(Ring *r, const FabricFile *f, uint32_t qpn) { return ring_file(r, f, qpn, false); }
void ring_leave(Ring *r, const FabricFile *f, bool destroy) {
  char path[MAX_PATH];
  if (!r->head) return;
  if (destroy) {
    atomic_store(&r->head->closed, 1);
    if (name_in(path, f->folder, "q%u", r->head->qpn)) unlink(path);
  }
  munmap(r->head, RING_HEAD);
  munmap(r->data, 2 * r->size);
  r->head = NULL;
}
uint8_t *ring_reserve(Ring *r, const FabricFile *f, uint32_t station, uint32_t length, uint32_t room) {
  uint32_t nobody = 0;
  if (!atomic_compare_exchange_strong_explicit(&r->head->writer, &nobody, station + 1, memory_order_acquire, memory_order_relaxed)) {
    /* A writer that died in the middle has published nothing. */
    if (station_alive(f, nobody - 1) || !atomic_compare_exchange_strong(&r->head->writer, &nobody, station + 1)) return NULL;
  }
  uint64_t head = GET(r->head->head), used = head - atomic_load_explicit(&r->head->tail, memory_order_acquire);
  if (used <= r->size && r->size - used >= stride(length) + room) return r->data + head % r->size;
  ring_let_go(r);
  return NULL;
}
void ring_publish(Ring *r, uint32_t length) {
  atomic_store_explicit(&r->head->head, GET(r->head->head) + stride(length), memory_order_release);
  ring_let_go(r);
}
void ring_let_go(Ring *r) { atomic_store_explicit(&r->head->writer, 0, memory_order_release); }

int ring_look(const Ring *r, Frame *frame, const uint8_t **bytes, uint32_t fragment) {
  uint64_t tail = GET(r->head->tail), there = atomic_load_explicit(&r->head->head, memory_order_acquire) - tail;
  if (!there) return 0;
  if (there > r->size || there < sizeof *frame || tail % 64) return -1;
  memcpy(frame, r->data + tail % r->size, sizeof *frame);
  *bytes = r->data + tail % r->size + sizeof *frame;
  bool fine = frame->kind >= SEND && frame->kind <= LAST_KIND && frame->length <= fragment && stride(frame->length) <= there && frame->nic < MAX_NICS &&
              frame->psn < 1u << 24 && frame->total <= UINT32_MAX;
  return fine ? 1 : -1;
}
void ring_drop(Ring *r, uint32_t length) { atomic_store_explicit(&r->head->tail, GET(r->head->tail) + stride(length), memory_order_release); }
void ring_empty(Ring *r) { atomic_store(&r->head->tail, atomic_load(&r->head->head)); }

/* ---- for whoever runs a fabric ---- */

static void show(const char *folder, unsigned host, const char *device, const char *name, const char *format, ...) {
  char path[MAX_PATH];
  if (!name_in(path, folder, "host%u/sys/class/infiniband/%s/%s", host, device, name)) return;
  for (char *at = path + strlen(folder) + 1; (at = strchr(at, '/')); at++) { *at = 0; mkdir(path, 0700); *at = '/'; }
  FILE *out = fopen(path, "w");
  if (!out) return;
  va_list rest;
  va_start(rest, format);
  vfprintf(out, format, rest);
  va_end(rest);
  fclose(out);
}
/* What sysfs would show, in the formats of the kernel's Documentation/ABI/stable/sysfs-class-infiniband. */
static void show_nic(const char *folder, const Fabric *s, unsigned host, unsigned i) {
  unsigned n = host * s->nics + i;
  const char *name = s->nic[n].name;
  uint64_t out = GET(s->nic[n].v[F_rate_out]), in = GET(s->nic[n].v[F_rate_in]), rate = out && (!in || out < in) ? out : in;
  bool up = GET(s->nic[n].v[F_state]) == UP;
  show(folder, host, name, "fw_ver", "played\n");
  show(folder, host, name, "board_id", "played\n");
  show(folder, host, name, "ports/1/state", up ? "4: ACTIVE\n" : "1: DOWN\n");
  show(folder, host, name, "ports/1/phys_state", up ? "5: LinkUp\n" : "3: Disabled\n");
  show(folder, host, name, "ports/1/link_layer", s->roce ? "Ethernet\n" : "InfiniBand\n");
  show(folder, host, name, "ports/1/lid", "0x%x\n", s->roce ? 0 : n + 1);
  show(folder, host, name, "ports/1/rate", "%.3f Gb/sec (played)\n", rate ? (double)rate * 8e-9 : 0.);
  show(folder, host, name, "ports/1/gids/0", "fe80:0000:0000:0000:0200:00ff:fe00:%04x\n", n + 1);
  show(folder, host, name, "ports/1/gid_attrs/types/0", s->roce ? "RoCE v2\n" : "IB/RoCE v1\n");
  if (!s->roce) return;
  show(folder, host, name, "ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a%02x:%04x\n", (unsigned)GET(s->nic[n].v[F_address]) & 255, n + 1);
  show(folder, host, name, "ports/1/gid_attrs/types/1", "RoCE v2\n");
  show(folder, host, name, "ports/1/gid_attrs/ndevs/0", "%s\n", name);
  show(folder, host, name, "ports/1/gid_attrs/ndevs/1", "%s\n", name);
}

int played_make(const char *folder, unsigned hosts, unsigned nics, const char *name, uint64_t rate, uint64_t latency, int roce, uint64_t seed) {
  char path[MAX_PATH];
  Fabric *s;
  if (!hosts || !nics || hosts > MAX_NICS || nics > MAX_NICS || (uint64_t)hosts * nics > MAX_NICS || strlen(name) + 5 > MAX_NAME) return EINVAL;
  if (mkdir(folder, 0700)) return errno;
  if (!name_in(path, folder, "lives")) return ENAMETOOLONG;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), err = fd < 0 ? errno : map_fabric(folder, O_CREAT, &s);
  if (fd >= 0) close(fd);
  if (err) return err;
  s->magic = FABRIC_MAGIC, s->bytes = sizeof *s, s->hosts = hosts, s->nics = nics, s->roce = roce != 0, s->seed = seed;
  s->fragment = LEAST_FRAGMENT;  /* a tenth of a millisecond's bytes, a power of two */
  while (s->fragment < MOST_FRAGMENT && (!rate || s->fragment * 10000ull < rate)) s->fragment *= 2;
  atomic_store(&s->next_qpn, 0x11);
  for (unsigned n = 0; n < hosts * nics; n++) {
    snprintf(s->nic[n].name, MAX_NAME, "%s%u", name, n % nics);
    atomic_store(&s->nic[n].v[F_rate_out], rate);
    atomic_store(&s->nic[n].v[F_rate_in], rate);
    atomic_store(&s->nic[n].v[F_latency], latency);
    show_nic(folder, s, n / nics, n % nics);
  }
  atomic_store(&s->made, 1);
  munmap(s, sizeof *s);
  return 0;
}

#define AS_NAME(name) #name,
static const char *const NAMES[] = {FIELDS(AS_NAME)};

/* Let `with` work on a field of a NIC. */
static int on_field(const char *folder, unsigned host, unsigned nic, const char *field, int (*with)(const char *, Fabric *, unsigned n, unsigned k, void *), void *value) {
  Fabric *s;
  unsigned k = 0;
  while (k < FIELD_COUNT && strcmp(NAMES[k], field)) k++;
  int err = k < FIELD_COUNT ? map_fabric(folder, 0, &s) : EINVAL;
  if (err) return err;
  err = !is_sound(s) ? EPROTO : host >= s->hosts || nic >= s->nics ? ENODEV : with(folder, s, host * s->nics + nic, k, value);
  munmap(s, sizeof *s);
  return err;
}
static int get_field(const char *folder, Fabric *s, unsigned n, unsigned k, void *value) {
  (void)folder;
  *(uint64_t *)value = atomic_load(&s->nic[n].v[k]);
  return 0;
}
static int set_field(const char *folder, Fabric *s, unsigned n, unsigned k, void *given) {
  uint64_t value = *(uint64_t *)given;
  _Atomic uint64_t *v = s->nic[n].v;
  if (k > F_address || k == F_changes || (k == F_state && value > GONE) || (k == F_lose_what && value > ACKS)) return EINVAL;
  if (k == F_state && atomic_load(&v[F_state]) == value) return 0;
  uint64_t was = atomic_exchange(&v[k], value), now = now_ns();
  if (k == F_state) atomic_fetch_add(&v[F_changes], 1);
  if (k == F_rate_out || k == F_rate_in) {  /* what is under way goes on at the new rate */
    _Atomic uint64_t *is_free = &v[k == F_rate_out ? F_free_out : F_free_in];
    uint64_t at = atomic_load(is_free);
    if (at > now) atomic_store(is_free, now + (value && was ? (uint64_t)((double)(at - now) * (double)was / (double)value) : 0));
  }
  show_nic(folder, s, n / s->nics, n % s->nics);
  for (uint32_t i = 0; i < MAX_STATIONS; i++)
    if (GET(s->station[i].pid) && GET(s->station[i].nic) == n) station_ring(s, i, 0);
  return 0;
}
int played_set(const char *folder, unsigned host, unsigned nic, const char *field, uint64_t value) { return on_field(folder, host, nic, field, set_field, &value); }
int played_get(const char *folder, unsigned host, unsigned nic, const char *field, uint64_t *value) { return on_field(folder, host, nic, field, get_field, value); }
int played_cut(const char *folder, unsigned host, unsigned nic, unsigned to_host, unsigned to_nic, int lost) {
  Fabric *s;
  int err = map_fabric(folder, 0, &s);
  if (err) return err;
  if (!is_sound(s)) err = EPROTO;
  else if (host >= s->hosts || to_host >= s->hosts || nic >= s->nics || to_nic >= s->nics) err = ENODEV;
  else atomic_store(&s->cut[host * s->nics + nic][to_host * s->nics + to_nic], lost != 0);
  munmap(s, sizeof *s);
  return err;
}
int played_shape(const char *folder, uint32_t shape[4]) {
  Fabric *s;
  int err = map_fabric(folder, 0, &s);
  if (err) return err;
  if (!is_sound(s)) err = EPROTO;
  else shape[0] = s->hosts, shape[1] = s->nics, shape[2] = s->roce, shape[3] = GET(s->open_stations);
  munmap(s, sizeof *s);
  return err;
}
