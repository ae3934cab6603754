/* What a collective library does when a NIC fails: one request over optcc serve's Unix socket, one reply.
 *
 *   cc -O2 -o replan examples/replan.c
 *   ./replan /run/optcc.sock JOB fail server3/nic2     (or: restore server3/nic2, rate server3/nic2 180Gb/s)
 *
 * Prints the reply's body. Exit status 0: status 200; 1: any other status; 2: no reply. POSIX only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_REQUEST = 4096, MOST_REPLY = 1 << 20, LIMIT_S = 70 }; /* the service itself gives up after 60 s */

/* Names come from the topology, which has neither quotes nor spaces in them: anything else is refused. */
static int plain(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x21 || *text == '"' || *text == '\\') return 0;
    return 1;
}

static int connected(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = LIMIT_S};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || strlen(path) >= sizeof to.sun_path) return -1;
    strcpy(to.sun_path, path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return connect(fd, (struct sockaddr *)&to, sizeof to) ? -1 : fd;
}

int main(int argc, char **argv) {
    static char body[MOST_REQUEST], request[2 * MOST_REQUEST], reply[MOST_REPLY];
    int fd, length, status = 0;
    size_t sent = 0, got = 0;
    ssize_t n;
    char *text;

    if (argc < 5 || argc > 6) return fprintf(stderr, "replan SOCKET JOB fail|restore|rate SERVER/NIC [RATE]\n"), 2;
    for (int i = 2; i < argc; i++)
        if (!plain(argv[i])) return fprintf(stderr, "replan: not a plain name: argument %d\n", i), 2;
    if (argc == 6)
        length = snprintf(body, sizeof body, "{\"event\":\"%s\",\"nic\":\"%s\",\"rate\":\"%s\"}", argv[3], argv[4], argv[5]);
    else
        length = snprintf(body, sizeof body, "{\"event\":\"%s\",\"nic\":\"%s\"}", argv[3], argv[4]);
    if (length < 0 || length >= (int)sizeof body) return fprintf(stderr, "replan: too long\n"), 2;
    length = snprintf(request, sizeof request,
                      "POST /v1/jobs/%s/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                      "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", argv[2], length, body);
    if (length < 0 || length >= (int)sizeof request) return fprintf(stderr, "replan: too long\n"), 2;

    if ((fd = connected(argv[1])) < 0) return perror("replan: connect"), 2;
    for (; sent < (size_t)length; sent += (size_t)n)
        if ((n = write(fd, request + sent, (size_t)length - sent)) <= 0) return perror("replan: write"), 2;
    while (got < sizeof reply - 1 && (n = read(fd, reply + got, sizeof reply - 1 - got)) > 0) got += (size_t)n;
    if (n < 0) return perror("replan: read"), 2;
    close(fd);

    text = strstr(reply, "\r\n\r\n");
    if (sscanf(reply, "HTTP/1.1 %d", &status) != 1 || !text) return fprintf(stderr, "replan: not a reply\n"), 2;
    puts(text + 4);
    return status == 200 ? 0 : 1;
}
