/* Which NICs there are. OPTCC_NICS names them: interfaces, or addresses where one interface has several. Else they are
 * those that NCCL's own sockets would take: NCCL_SOCKET_IFNAME is a list of prefixes, "^" before it: all but these,
 * "=": whole names; NCCL_SOCKET_FAMILY is AF_INET or AF_INET6; without a list "ib", then all but docker, lo and virbr,
 * then these. Of an interface the first address counts, and only interfaces that are running do.
 * RDMA devices are those that NCCL_IB_HCA lets through, by the same grammar; ":2" behind a name is its port.
 * (NCCL's page on environment variables; src/misc/socket.cc, src/os/linux.cc and net_ib of NCCL 2.30.7.) */
#define _GNU_SOURCE
#include "net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 64, UNKNOWN_SPEED_MBPS = 10000 };

struct names { /* a list as users write it */
    char text[1024];
    char *name[MOST_NAMES];
    long port[MOST_NAMES]; /* behind it; -1: none */
    uint32_t count;
    int all_but, whole;
};

static void split(struct names *names, const char *list)
{
    char *rest;
    names->all_but = *list == '^';
    list += names->all_but;
    names->whole = *list == '=';
    list += names->whole;
    names->count = 0;
    snprintf(names->text, sizeof names->text, "%s", list);
    for (char *one = strtok_r(names->text, ",", &rest); one && names->count < MOST_NAMES;
         one = strtok_r(NULL, ",", &rest)) {
        char *const colon = strchr(one, ':'); /* NCCL allows a port behind it */
        if (colon)
            *colon = 0;
        names->port[names->count] = colon ? strtol(colon + 1, NULL, 10) : -1;
        if (*one)
            names->name[names->count++] = one;
    }
}

/* port : of an RDMA device; -1: an interface, which has none */
static int fits(const struct names *names, const char *device, long port)
{
    int found = !names->count;
    for (uint32_t i = 0; i < names->count && !found; i++)
        found = !(names->whole ? strcmp(device, names->name[i]) : strncmp(device, names->name[i], strlen(names->name[i]))) &&
                (port < 0 || names->port[i] < 0 || names->port[i] == port);
    return found != names->all_but;
}

static int as_address(const struct sockaddr *from, struct optcc_tcp_address *address)
{
    *address = (struct optcc_tcp_address){0};
    if (from->sa_family == AF_INET) {
        address->family = 4;
        memcpy(address->bytes, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)from;
        address->family = 6;
        address->scope = v6->sin6_scope_id;
        memcpy(address->bytes, &v6->sin6_addr, 16);
    }
    return address->family != 0;
}

static void look_up(struct nic *nic, const char *interface)
{
    char path[128], text[32] = "";
    nic->speed_mbps = UNKNOWN_SPEED_MBPS;
    nic->pci_path[0] = 0;
    if (!*interface)
        return;
    snprintf(path, sizeof path, "/sys/class/net/%.64s/speed", interface);
    FILE *file = fopen(path, "re");
    if (file) {
        const long told = fgets(text, sizeof text, file) ? strtol(text, NULL, 10) : 0;
        if (told > 0 && told <= INT32_MAX)
            nic->speed_mbps = (uint32_t)told;
        fclose(file);
    }
    snprintf(path, sizeof path, "/sys/class/net/%.64s/device", interface);
    if (!realpath(path, nic->pci_path))
        nic->pci_path[0] = 0;
}

static int is_loopback_v6(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static uint32_t take(const struct ifaddrs *all, const struct names *names, int family, struct nic nics[OPTCC_MAX_NICS])
{
    uint32_t count = 0;
    for (const struct ifaddrs *one = all; one && count < OPTCC_MAX_NICS; one = one->ifa_next) {
        struct optcc_tcp_address address;
        int known = 0;
        if (!one->ifa_addr || !(one->ifa_flags & IFF_RUNNING) || is_loopback_v6(one->ifa_addr) ||
            (family && one->ifa_addr->sa_family != family) || !as_address(one->ifa_addr, &address) ||
            !fits(names, one->ifa_name, -1))
            continue;
        for (uint32_t i = 0; i < count; i++)
            known |= !strcmp(nics[i].name, one->ifa_name);
        if (known)
            continue;
        snprintf(nics[count].name, sizeof nics[count].name, "%s", one->ifa_name);
        nics[count].address = address;
        look_up(&nics[count++], one->ifa_name);
    }
    return count;
}

/* One that is named: an address, or an interface. */
static int take_named(const struct ifaddrs *all, const char *name, int family, struct nic *nic)
{
    struct in_addr v4;
    struct in6_addr v6;
    snprintf(nic->name, sizeof nic->name, "%s", name);
    nic->address = (struct optcc_tcp_address){0};
    if (inet_pton(AF_INET, name, &v4) == 1) {
        nic->address.family = 4;
        memcpy(nic->address.bytes, &v4, 4);
    } else if (inet_pton(AF_INET6, name, &v6) == 1) {
        nic->address.family = 6;
        memcpy(nic->address.bytes, &v6, 16);
    }
    const char *interface = "";
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        struct optcc_tcp_address address;
        if (!one->ifa_addr || !as_address(one->ifa_addr, &address))
            continue;
        if (nic->address.family) {
            if (address.family == nic->address.family && !memcmp(address.bytes, nic->address.bytes, 16)) {
                nic->address.scope = address.scope;
                interface = one->ifa_name;
                break;
            }
        } else if (!strcmp(one->ifa_name, name) && (!family || one->ifa_addr->sa_family == family)) {
            nic->address = address;
            interface = one->ifa_name;
            break;
        }
    }
    look_up(nic, interface);
    return nic->address.family != 0;
}

static int wanted_family(void)
{
    const char *told = getenv("NCCL_SOCKET_FAMILY");
    return told && !strcmp(told, "AF_INET") ? AF_INET : told && !strcmp(told, "AF_INET6") ? AF_INET6 : 0;
}

uint32_t nics_find(struct nic nics[OPTCC_MAX_NICS], char *why, size_t room)
{
    static const char *const DEFAULTS[] = {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"};
    const char *own = getenv("OPTCC_NICS"), *nccl = getenv("NCCL_SOCKET_IFNAME");
    const int family = wanted_family();
    struct ifaddrs *all;
    struct names names;
    uint32_t count = 0;
    if (getifaddrs(&all)) {
        snprintf(why, room, "the system does not list its network interfaces (getifaddrs)");
        return 0;
    }
    if (own && *own) {
        char *rest; /* not by `split`, since addresses of IPv6 have colons */
        snprintf(names.text, sizeof names.text, "%s", own[0] == '=' ? own + 1 : own);
        for (char *one = strtok_r(names.text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
            if (count == OPTCC_MAX_NICS) {
                snprintf(why, room, "OPTCC_NICS=%s: more than %d NICs", own, OPTCC_MAX_NICS);
                count = 0;
                break;
            }
            if (!take_named(all, one, family, &nics[count])) {
                snprintf(why, room, "OPTCC_NICS=%s: no interface %s with an address here (see: ip address)", own, one);
                count = 0;
                break;
            }
            count++;
        }
        if (!count && !*why)
            snprintf(why, room, "OPTCC_NICS=%s names no NIC", own);
    } else if (nccl && strlen(nccl) > 1) {
        split(&names, nccl);
        if (!(count = take(all, &names, family, nics)))
            snprintf(why, room, "NCCL_SOCKET_IFNAME=%s: no running interface fits", nccl);
    } else {
        for (uint32_t i = 0; !count && i < sizeof DEFAULTS / sizeof *DEFAULTS; i++) {
            split(&names, DEFAULTS[i]);
            count = take(all, &names, family, nics);
        }
        if (!count)
            snprintf(why, room, "no running network interface; OPTCC_NICS=eth0,eth1 names some");
    }
    freeifaddrs(all);
    return count;
}

uint32_t nics_find_rdma(struct nic nics[OPTCC_MAX_NICS], char *why, size_t room)
{
    enum { MOST_PORTS = 64 };
    static const char OLDER[] = "NCCL_IB_DISABLE";
    const char *wanted = getenv("NCCL_IB_HCA"), *off = getenv(OLDER), *index = getenv("NCCL_IB_GID_INDEX");
    struct optcc_verbs_port *port = calloc(MOST_PORTS, sizeof *port);
    struct names names = {.count = 0};
    uint32_t ports = MOST_PORTS, count = 0, infiniband = 0;
    if (off && atoi(off)) {
        snprintf(why, room, "%s is set", OLDER);
    } else if (!port || optcc_verbs_ports(NULL, port, &ports) != OPTCC_OK) {
        snprintf(why, room, "%s", port ? optcc_verbs_why() : "no memory");
    } else {
        if (wanted && *wanted)
            split(&names, wanted);
        for (uint32_t i = 0; i < ports; i++)
            infiniband |= port[i].up && !port[i].ethernet && fits(&names, port[i].device, port[i].port);
        for (uint32_t i = 0; i < ports && count < OPTCC_MAX_NICS; i++) {
            const struct optcc_verbs_port *p = &port[i];
            const int32_t gid = !p->ethernet ? -1 : index && *index && atoi(index) >= 0 ? atoi(index) : p->gid_index;
            if (!p->up || (infiniband && p->ethernet) || (p->ethernet && gid < 0) || !fits(&names, p->device, p->port))
                continue;
            struct nic *nic = &nics[count++];
            char path[128];
            *nic = (struct nic){.port = p->port, .gid_index = gid, .speed_mbps = p->mbps ? p->mbps : UNKNOWN_SPEED_MBPS};
            snprintf(nic->name, sizeof nic->name, "%s", p->device);
            snprintf(path, sizeof path, "/sys/class/infiniband/%.64s/device", p->device);
            if (!realpath(path, nic->pci_path))
                nic->pci_path[0] = 0;
        }
        if (!count)
            snprintf(why, room, "no RDMA device has a port with a link, and an address for RoCE v2%s%s",
                     wanted ? ", among NCCL_IB_HCA=" : "", wanted ? wanted : "");
    }
    free(port);
    return count;
}
