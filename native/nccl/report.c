/* What an operator sees: a line when a NIC is lost and when it is back, and counters for Prometheus.
 *
 * Our thread looks at all links ten times a second. A NIC of ours is lost when none of its wires carries while another
 * NIC's do; a NIC of a peer when a wire to it does not although ours has others. Each is told once, and once when it is
 * back, however many wires there are.
 *
 * With OPTCC_METRICS=FOLDER the process keeps a file there, in Prometheus' text format (optcc/reports/metrics.py has the
 * names): node_exporter's textfile collector hands it over, `optcc diagnose` reads it. Our thread copies numbers into a
 * table once a second; a thread of its own writes them, to another name first, so that whoever reads sees a whole file.
 * A folder that hangs holds up that thread and nobody else. The table is bounded, and says what it has no room for. A
 * process that ends takes its file away; that of one that was killed is removed by the next that begins there.
 */
#define _GNU_SOURCE
#include "net.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_WIRES = 512,     /* in the file */
    LINE_BYTES = 640,     /* of the file: names are at most 64 */
    FILE_LINES = 2 * MOST_WIRES + 6 * OPTCC_MAX_NICS + 64,
    OLD_S = 600           /* a file that was not written for so long is of a process that was killed */
};
static const uint64_t WRITE_NS = UINT64_C(1000000000);
static const uint64_t END_NS = UINT64_C(1000000000); /* the writer has so long to end */
static const char PREFIX[] = "optcc-nccl-";

struct own_nic {
    uint64_t gone_bytes;  /* carried by links that are closed */
    uint64_t bytes;       /* carried by all */
    uint64_t best;        /* bytes per second, in the fastest time between two looks */
    uint64_t losses;
    uint32_t wires, wires_lost; /* of links in use */
    int lost;
};

struct told_wire {
    uint32_t nic;
    int lost;
    uint64_t process, full_bytes;
    char host[PEER_HOST], name[PEER_NIC];
};

struct numbers { /* what is written */
    uint64_t process, resent;
    uint32_t nics, wires, left_out, links, links_lost;
    char host[PEER_HOST];
    char name[OPTCC_MAX_NICS][64];
    uint32_t mbps[OPTCC_MAX_NICS];
    struct own_nic nic[OPTCC_MAX_NICS];
    struct told_wire wire[MOST_WIRES];
};

struct writer { /* its thread owns it, and frees it */
    pthread_mutex_t lock;
    pthread_cond_t news;
    int stops, fresh, failed; /* fresh: `shared` is the writer's; else our thread's */
    char folder[PATH_MAX], path[PATH_MAX], part[PATH_MAX];
    struct numbers shared, own;
    char text[FILE_LINES * LINE_BYTES];
};

static struct {
    struct writer *writer; /* NULL: no file is wanted */
    pthread_t thread;
    struct own_nic nic[OPTCC_MAX_NICS];
    uint64_t resent_before; /* of links that are closed */
    uint64_t look_ns, write_ns, links_lost;
    int none; /* no NIC carries anything */
    int collects, failed; /* this look fills `shared`; it has been told that files cannot be written */
} report;

/* ---- the file ------------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) static size_t add(struct writer *w, size_t at, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(w->text + at, sizeof w->text - at, format, list);
    va_end(list);
    return length > 0 && at + (size_t)length < sizeof w->text ? at + (size_t)length : at;
}

static size_t add_head(struct writer *w, size_t at, const char *name, const char *type, const char *text)
{
    return add(w, at, "# HELP %s %s\n# TYPE %s %s\n", name, text, name, type);
}

static double bytes_of(uint32_t mbps) { return mbps * 1e6 / 8; }

static size_t write_text(struct writer *w)
{
    static const struct {
        const char *name, *type, *text;
    } OF_NICS[] = {
        {"optcc_nccl_nic_up", "gauge", "1 where a NIC carries, 0 where none of its wires to other processes does"},
        {"optcc_nccl_nic_lost_total", "counter", "How often a NIC was lost"},
        {"optcc_nccl_nic_sent_bytes_total", "counter", "Bytes that a NIC has sent and peers have acknowledged"},
        {"optcc_nccl_nic_best_bytes_per_second", "gauge", "The most that a NIC has sent in a tenth of a second, as a rate"},
        {"optcc_nccl_nic_nameplate_bytes_per_second", "gauge", "A NIC's rate by the system, or by OPTCC_RATES"},
        {"optcc_nccl_nic_wires_lost", "gauge", "Wires of a NIC to other processes that do not carry"}};
    const struct numbers *n = &w->own;
    char own[PEER_HOST + 64];
    size_t at = 0;
    snprintf(own, sizeof own, "host=\"%s\",process=\"%016llx\"", n->host, (unsigned long long)n->process);
    for (uint32_t m = 0; m < sizeof OF_NICS / sizeof *OF_NICS; m++) {
        at = add_head(w, at, OF_NICS[m].name, OF_NICS[m].type, OF_NICS[m].text);
        for (uint32_t i = 0; i < n->nics; i++) {
            const struct own_nic *nic = &n->nic[i];
            const double value[] = {!nic->wires || nic->wires_lost < nic->wires, (double)nic->losses, (double)nic->bytes,
                                    (double)nic->best, bytes_of(n->mbps[i]), nic->wires_lost};
            at = add(w, at, "%s{%s,nic=\"%s\"} %.17g\n", OF_NICS[m].name, own, n->name[i], value[m]);
        }
    }
    static const char *const OF_WIRES[] = {"optcc_nccl_wire_up", "optcc_nccl_wire_full_bytes_total"};
    for (uint32_t m = 0; m < 2; m++) {
        at = m ? add_head(w, at, OF_WIRES[m], "counter",
                          "Bytes by a wire in tenths of a second in which more waited than all wires between the two processes took")
               : add_head(w, at, OF_WIRES[m], "gauge", "1 where a wire to another process carries, else 0");
        for (uint32_t i = 0; i < n->wires; i++)
            at = add(w, at, "%s{%s,nic=\"%s\",peer=\"%s\",peer_process=\"%016llx\",peer_nic=\"%s\"} %llu\n", OF_WIRES[m],
                     own, n->name[n->wire[i].nic], n->wire[i].host, (unsigned long long)n->wire[i].process,
                     n->wire[i].name, m ? (unsigned long long)n->wire[i].full_bytes : n->wire[i].lost ? 0ULL : 1ULL);
    }
    at = add_head(w, at, "optcc_nccl_resent_segments_total", "counter", "Segments that were sent more than once");
    at = add(w, at, "optcc_nccl_resent_segments_total{%s} %llu\n", own, (unsigned long long)n->resent);
    at = add_head(w, at, "optcc_nccl_links", "gauge", "Ways to and from other processes that are in use");
    at = add(w, at, "optcc_nccl_links{%s} %u\n", own, n->links);
    at = add_head(w, at, "optcc_nccl_links_lost_total", "counter", "Such ways that were given up: an error at NCCL");
    at = add(w, at, "optcc_nccl_links_lost_total{%s} %u\n", own, n->links_lost);
    at = add_head(w, at, "optcc_nccl_wires_left_out", "gauge", "Wires for which the file has no room");
    at = add(w, at, "optcc_nccl_wires_left_out{%s} %u\n", own, n->left_out);
    at = add_head(w, at, "optcc_nccl_timestamp_seconds", "gauge", "When this was written, seconds since the epoch");
    return add(w, at, "optcc_nccl_timestamp_seconds{%s} %lld\n", own, (long long)time(NULL));
}

static int put(const struct writer *w, size_t length)
{
    const int fd = open(w->part, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    size_t at = 0;
    while (fd >= 0 && at < length) {
        const ssize_t written = write(fd, w->text + at, length - at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            break;
        at += (size_t)written;
    }
    return fd >= 0 && close(fd) == 0 && at == length && rename(w->part, w->path) == 0;
}

/* Files of processes that were killed. */
static void clear_old(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    struct stat about;
    while (dir && (entry = readdir(dir))) {
        const char *name = entry->d_name + (entry->d_name[0] == '.');
        if (!strncmp(name, PREFIX, sizeof PREFIX - 1) && strspn(name + sizeof PREFIX - 1, "0123456789abcdef") == 16 &&
            !fstatat(dirfd(dir), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) && S_ISREG(about.st_mode) &&
            time(NULL) - about.st_mtime > OLD_S)
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

static void *write_on(void *own)
{
    struct writer *w = own;
    clear_old(w->folder);
    pthread_mutex_lock(&w->lock);
    while (!w->stops) {
        if (!w->fresh) {
            pthread_cond_wait(&w->news, &w->lock);
            continue;
        }
        w->own = w->shared;
        w->fresh = 0;
        pthread_mutex_unlock(&w->lock);
        const int failed = !put(w, write_text(w));
        pthread_mutex_lock(&w->lock);
        w->failed |= failed;
    }
    pthread_mutex_unlock(&w->lock);
    unlink(w->part);
    unlink(w->path);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->news);
    free(w);
    return NULL;
}

void report_name(char *name)
{
    for (; *name; name++)
        if (!isgraph((unsigned char)*name) || *name == '"' || *name == '\\')
            *name = '_';
}

int report_start(const struct process *p, char *why, size_t room)
{
    const char *folder = getenv("OPTCC_METRICS");
    memset(&report, 0, sizeof report);
    if (!folder || !*folder)
        return 1;
    struct stat about;
    if (stat(folder, &about) || !S_ISDIR(about.st_mode) || access(folder, W_OK | X_OK)) {
        snprintf(why, room, "OPTCC_METRICS=%s: expected a folder in which this process may write", folder);
        return 0;
    }
    struct writer *w = calloc(1, sizeof *w);
    if (!w) {
        snprintf(why, room, "OPTCC_METRICS: no memory");
        return 0;
    }
    struct numbers *n = &w->shared;
    n->process = p->id;
    n->nics = p->nics;
    snprintf(n->host, sizeof n->host, "%s", p->host);
    for (uint32_t i = 0; i < p->nics; i++) {
        snprintf(n->name[i], sizeof n->name[i], "%s", p->nic[i].name);
        report_name(n->name[i]);
        n->mbps[i] = p->nic[i].speed_mbps;
    }
    const int longest = snprintf(w->part, sizeof w->part, "%s/.%s%016llx.tmp", folder, PREFIX, (unsigned long long)p->id);
    snprintf(w->path, sizeof w->path, "%s/%s%016llx.prom", folder, PREFIX, (unsigned long long)p->id);
    snprintf(w->folder, sizeof w->folder, "%s", folder);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    if (longest >= PATH_MAX || pthread_create(&report.thread, NULL, write_on, w)) {
        snprintf(why, room, "OPTCC_METRICS=%s: too long, or no thread for it", folder);
        free(w);
        return 0;
    }
    report.writer = w;
    return 1;
}

void report_stop(void)
{
    struct writer *w = report.writer;
    struct timespec until;
    if (!w)
        return;
    report.writer = NULL;
    pthread_mutex_lock(&w->lock);
    w->stops = 1;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(END_NS / SECOND_NS);
    if (pthread_timedjoin_np(report.thread, NULL, &until)) /* its folder hangs: it ends when that does */
        pthread_detach(report.thread);
}

/* ---- looks --------------------------------------------------------------------------------------------------------- */

static struct { /* of the look that is under way */
    struct own_nic nic[OPTCC_MAX_NICS];
    uint64_t resent;
    uint32_t links;
} look;

void report_begin(uint64_t now_ns)
{
    struct writer *w = report.writer;
    memset(&look, 0, sizeof look);
    report.collects = 0;
    if (!w || now_ns - report.write_ns < WRITE_NS || pthread_mutex_trylock(&w->lock))
        return;
    report.collects = !w->fresh; /* then nobody but us sets it */
    const int failed = w->failed;
    pthread_mutex_unlock(&w->lock);
    if (report.collects)
        w->shared.wires = w->shared.left_out = 0;
    if (failed && !report.failed) /* once: a full disk is no reason to fill a log */
        net_tell(1, "OPTCC_METRICS: the file of this process cannot be written; see the folder's room and rights");
    report.failed |= failed;
}

static void add_wire(struct numbers *n, const struct link *link, const struct wire_sight *sight)
{
    if (n->wires == MOST_WIRES) {
        n->left_out++;
        return;
    }
    struct told_wire *wire = &n->wire[n->wires++];
    *wire = (struct told_wire){.nic = sight->nic, .lost = sight->lost, .process = link_process(link),
                               .full_bytes = sight->full_bytes};
    link_far(link, sight->far_nic, wire->host, wire->name);
}

void report_link(const struct link *link, int used)
{
    struct wire_sight sight[OPTCC_MAX_LANES];
    const uint32_t wires = link_see(link, sight, &look.resent);
    look.links += used != 0;
    for (uint32_t i = 0; i < wires; i++) {
        struct own_nic *nic = &look.nic[sight[i].nic];
        nic->bytes += sight[i].acked_bytes;
        if (!used)
            continue;
        nic->wires++;
        nic->wires_lost += sight[i].lost != 0;
        if (report.collects && link_is_ours(link))
            add_wire(&report.writer->shared, link, &sight[i]);
    }
}

void report_link_over(const struct link *link)
{
    struct wire_sight sight[OPTCC_MAX_LANES];
    const uint32_t wires = link_see(link, sight, &report.resent_before);
    for (uint32_t i = 0; i < wires; i++)
        report.nic[sight[i].nic].gone_bytes += sight[i].acked_bytes;
}

void report_link_lost(void) { report.links_lost++; }

static void tell_nics(const struct process *p)
{
    uint32_t alive = 0, all = 0;
    char line[256];
    for (uint32_t i = 0; i < p->nics; i++) {
        all += look.nic[i].wires != 0;
        alive += look.nic[i].wires_lost < look.nic[i].wires;
    }
    const int none = all && !alive;
    if (none != report.none) {
        report.none = none;
        net_tell(1, none ? "no NIC carries anything any more: the NICs here are lost, or the peers have gone"
                         : "NICs carry again");
    }
    for (uint32_t i = 0; i < p->nics && !none; i++) {
        struct own_nic *nic = &report.nic[i];
        const int lost = look.nic[i].wires ? look.nic[i].wires_lost == look.nic[i].wires : nic->lost;
        if (lost == nic->lost)
            continue;
        nic->lost = lost;
        nic->losses += (uint64_t)lost;
        snprintf(line, sizeof line, "NIC %s is %s; %u of %u NICs carry on", p->nic[i].name, lost ? "lost" : "back", alive, all);
        net_tell(1, line);
    }
}

uint32_t report_lost(void)
{
    uint32_t lost = 0;
    for (uint32_t i = 0; i < OPTCC_MAX_NICS; i++)
        lost |= (uint32_t)report.nic[i].lost << i;
    return report.none ? UINT32_MAX : lost;
}

static void count(const struct process *p, uint64_t now_ns)
{
    const uint64_t ns = now_ns - report.look_ns;
    for (uint32_t i = 0; i < p->nics; i++) {
        struct own_nic *nic = &report.nic[i];
        const uint64_t bytes = nic->gone_bytes + look.nic[i].bytes, before = nic->bytes;
        nic->bytes = bytes;
        nic->wires = look.nic[i].wires;
        nic->wires_lost = look.nic[i].wires_lost;
        const uint64_t rate = report.look_ns && ns && bytes > before ? (bytes - before) * SECOND_NS / ns : 0;
        nic->best = rate > nic->best ? rate : nic->best;
    }
    report.look_ns = now_ns;
}

void report_end(const struct process *p, uint64_t now_ns)
{
    struct writer *w = report.writer;
    count(p, now_ns);
    tell_nics(p);
    if (!report.collects)
        return;
    struct numbers *n = &w->shared;
    memcpy(n->nic, report.nic, sizeof n->nic);
    n->resent = report.resent_before + look.resent;
    n->links = look.links;
    n->links_lost = (uint32_t)report.links_lost;
    report.write_ns = now_ns;
    pthread_mutex_lock(&w->lock); /* the writer holds it for a copy at most, and not while `shared` is ours */
    w->fresh = 1;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
}
