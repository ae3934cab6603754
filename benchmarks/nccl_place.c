/* For LD_PRELOAD: what programs that look past libibverbs are told of played NICs.
   NCCL asks sysfs on which PCI device a NIC sits, and stops where it sits on none, as played NICs do.
   Each is given a PCI device of this machine by its number; devices that are no GPU come first. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICES "/sys/bus/pci/devices"
enum { MOST = 256 };

static int is_gpu(const char *device) {
  char path[PATH_MAX], class[8] = "";
  snprintf(path, sizeof path, DEVICES "/%s/class", device);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (!fgets(class, sizeof class, file)) class[0] = 0;
  fclose(file);
  return !strncmp(class, "0x03", 4);
}

/* The path of the device with this number in `out`; 0 where the machine has no PCI device. */
static int place(unsigned number, char *out) {
  struct dirent **found;
  int all = scandir(DEVICES, &found, NULL, alphasort), n = 0;
  const char *order[MOST];
  for (int gpu = 0; gpu < 2; gpu++)
    for (int i = 0; i < all && n < MOST; i++)
      if (found[i]->d_name[0] != '.' && is_gpu(found[i]->d_name) == gpu) order[n++] = found[i]->d_name;
  if (n) snprintf(out, PATH_MAX, DEVICES "/%s", order[number % (unsigned)n]);
  for (int i = 0; i < all; i++) free(found[i]);
  if (all >= 0) free(found);
  return n > 0;
}

char *realpath(const char *path, char *out) {
  char *(*next)(const char *, char *) = (char *(*)(const char *, char *))dlsym(RTLD_NEXT, "realpath");
  char name[64], device[PATH_MAX], *real = next(path, out);
  int end = 0;
  if (real || sscanf(path, "/sys/class/infiniband/%63[^/]/device%n", name, &end) != 1 || !end || path[end]) return real;
  const char *digits = name + strlen(name);
  while (digits > name && digits[-1] >= '0' && digits[-1] <= '9') digits--;
  return place((unsigned)atoi(digits), device) ? next(device, out) : NULL;
}

/* NCCL asks whether a NIC's driver reaches GPU memory, as played NICs do: it is told so where PLACE_PEERMEM is set.
   UCX asks for a file of each NIC. */
static int is_played(const char *path) {
  return !strncmp(path, "/dev/infiniband/uverbs", 22) || (getenv("PLACE_PEERMEM") && !strcmp(path, "/sys/module/nvidia_peermem/version"));
}
int access(const char *path, int mode) {
  int (*next)(const char *, int) = (int (*)(const char *, int))dlsym(RTLD_NEXT, "access");
  return is_played(path) ? 0 : next(path, mode);
}
int stat(const char *path, struct stat *out) {
  int (*next)(const char *, struct stat *) = (int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, "stat");
  return next(is_played(path) ? "/dev/null" : path, out);
}
