/* Which collectives go by CollNet: NCCL asks for each, and takes what costs least by the table that it hands over.
 *
 * NCCL's own reckoning takes CollNet for a switch that reduces, and would use it for everything. Here it is struck out,
 * but for an AllReduce of OPTCC_COLLNET_BYTES or more, where OPTCC_COLLNET says so:
 *
 *   auto    where the plans were written for a cluster in which a node has WORTH of the fastest one's rate now, or less:
 *           the default. There NCCL's ring takes a third longer than a plan could, at least
 *   always, never
 *
 * All ranks of a communicator must choose alike. So nothing counts here but what is set, and the plans, which are the
 * same everywhere or there is no group. What is struck out leaves the rest to NCCL, as without us.
 */
#define _GNU_SOURCE
#include "net.h"

#include <stdlib.h>

/* Thousandths. Where a node of four lacks one or two of 8 NICs CollNet and the ring were as fast as each other; with three
 * or four, and at half rate, CollNet was (docs/bench-nccl-played-ours.md). With half of it degraded clusters stay with
 * the ring where a plan gains half. */
enum { WORTH = 750 };

struct tuner {
    size_t nodes;
};

int tuner_takes(size_t nodes, int function, uint64_t bytes)
{
    const struct process *p = net_process();
    const struct settings *s = &p->settings;
    return nodes > 1 && function == NCCL_ALLREDUCE && bytes >= s->collnet_bytes &&
           (s->collnet == ALWAYS || (s->collnet == IF_DEGRADED && plans_slowest(p->plans) <= WORTH));
}

nccl_result_t tuner_init(size_t nodes, nccl_logger_t log, void **context)
{
    const struct settings *s = &net_process()->settings;
    struct tuner *t = calloc(1, sizeof *t);
    *context = t;
    if (!t)
        return NCCL_SYSTEM_ERROR;
    t->nodes = nodes;
    if (log && tuner_takes(nodes, NCCL_ALLREDUCE, UINT64_MAX))
        log(NCCL_TOLD, NCCL_OF_INIT | NCCL_OF_NET, __func__, __LINE__,
            "NET/optcc: AllReduce of %llu bytes and more goes by CollNet where NCCL_COLLNET_ENABLE=1",
            (unsigned long long)s->collnet_bytes);
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
    const int takes = tuner_takes(t->nodes, function, bytes);
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
