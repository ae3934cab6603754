/* Whether the plugin believes a folder of plans: nccl_plans FOLDER... prints for each "good" or why not. */
#define _GNU_SOURCE
#include "nccl/net.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct plans *plans;
        char why[1200] = "";
        if (plans_open(argv[i], &plans, why, sizeof why))
            printf("good\n");
        else
            printf("%s\n", why);
        plans_close(plans);
    }
    return 0;
}
