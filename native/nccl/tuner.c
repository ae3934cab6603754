/* Which collectives go by CollNet: NCCL asks for each, and takes what costs least by the table that it hands over.
 *
 * NCCL's own reckoning takes CollNet for a switch that reduces, and would use it for everything. Here it is struck out,
 * but for an AllReduce of OPTCC_COLLNET_BYTES or more, where OPTCC_COLLNET says so:
 *
 *   auto    where the plans were written for a cluster that is degraded now (now.plan has slow nodes): the default
 *   always, never
 *
 * All ranks of a communicator must choose alike. So nothing counts here but what is set, and the plans, which are the
 * same everywhere or there is no group. What is struck out leaves the rest to NCCL, as without us.
 */
#define _GNU_SOURCE
#include "net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t LEAST_BYTES = 4 << 20;

struct tuner {
    int takes;
    uint64_t least_bytes;
};

nccl_result_t tuner_init(size_t nodes, nccl_logger_t log, void **context)
{
    const char *when = getenv("OPTCC_COLLNET"), *least = getenv("OPTCC_COLLNET_BYTES");
    const int degraded = plans_degraded(net_process()->plans);
    struct tuner *t = calloc(1, sizeof *t);
    char *end = NULL;
    *context = t;
    if (!t)
        return NCCL_SYSTEM_ERROR;
    t->least_bytes = least && *least ? strtoull(least, &end, 10) : LEAST_BYTES;
    const int known = !when || !*when || !strcmp(when, "auto") || !strcmp(when, "always") || !strcmp(when, "never");
    if ((end && (*end || *least == '-')) || !known) {
        if (log)
            log(NCCL_WARNING, NCCL_OF_ALL, __func__, __LINE__,
                "NET/optcc: OPTCC_COLLNET=%s OPTCC_COLLNET_BYTES=%s: expected auto, always or never, and bytes",
                when ? when : "", least ? least : "");
        free(t);
        *context = NULL;
        return NCCL_INVALID_USAGE;
    }
    t->takes = nodes > 1 && (when && !strcmp(when, "always") ? 1 : when && !strcmp(when, "never") ? 0 : degraded);
    if (log && t->takes)
        log(NCCL_TOLD, NCCL_OF_INIT | NCCL_OF_NET, __func__, __LINE__,
            "NET/optcc: AllReduce of %llu bytes and more goes by CollNet where NCCL_COLLNET_ENABLE=1",
            (unsigned long long)t->least_bytes);
    return NCCL_SUCCESS;
}

nccl_result_t tuner_tune(void *context, int function, size_t bytes, int operations, float **costs, int algorithms,
                         int protocols, int registered, int *channels)
{
    const struct tuner *t = context;
    float *const table = (float *)(void *)costs; /* algorithms x protocols, whatever its type says */
    (void)operations, (void)registered, (void)channels;
    if (!t || protocols <= NCCL_SIMPLE)
        return NCCL_SUCCESS;
    const int takes = t->takes && function == NCCL_ALLREDUCE && bytes >= t->least_bytes;
    for (int a = NCCL_COLLNET_DIRECT; a <= NCCL_COLLNET_CHAIN && a < algorithms; a++)
        for (int p = 0; p < protocols; p++) {
            float *cost = &table[a * protocols + p];
            if (!takes)
                *cost = NCCL_IGNORED;
            else if (*cost >= 0 && p == NCCL_SIMPLE)
                *cost = a == NCCL_COLLNET_CHAIN ? 0.0f : 0.1f; /* the chain where both can be */
        }
    return NCCL_SUCCESS;
}

nccl_result_t tuner_end(void *context)
{
    free(context);
    return NCCL_SUCCESS;
}
