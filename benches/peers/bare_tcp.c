/* The least that a minimum over loopback TCP takes here: bare_tcp FOLDER RANK SIZE CASE...
   Every rank sends its values to every other and takes theirs, in turns over sockets that never block. No frame, no checksum,
   no deadline. */
#define _GNU_SOURCE
#include "case.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define RANKS 64

static int me, ranks;
static struct {
    int socket;
    size_t sent, got;
    char *theirs;
    size_t room;
} peers[RANKS];

/* Whether so many of `all` bytes have moved that none is left. */
static int moved(size_t *done, size_t all, ssize_t now) {
    if (now > 0)
        *done += (size_t)now;
    else if (now == 0 || (errno != EAGAIN && errno != EINTR))
        give_up("a connection is lost");
    return *done == all;
}

static void allreduce(int64_t *values, size_t width) {
    size_t bytes = width * sizeof *values;
    int left = 0;
    for (int rank = 0; rank < ranks; rank++) {
        peers[rank].sent = peers[rank].got = rank == me ? bytes : 0;
        left += rank == me ? 0 : 2;
        if (rank != me && peers[rank].room < bytes) {
            peers[rank].theirs = (char *)realloc(peers[rank].theirs, bytes);
            peers[rank].room = bytes;
        }
    }
    while (left > 0) {
        for (int rank = 0; rank < ranks; rank++) {
            if (peers[rank].sent < bytes)
                left -= moved(&peers[rank].sent, bytes,
                              send(peers[rank].socket, (char *)values + peers[rank].sent, bytes - peers[rank].sent, MSG_NOSIGNAL));
            if (peers[rank].got < bytes)
                left -= moved(&peers[rank].got, bytes,
                              recv(peers[rank].socket, peers[rank].theirs + peers[rank].got, bytes - peers[rank].got, 0));
        }
        if (left > 0)
            sched_yield();
    }
    for (int rank = 0; rank < ranks; rank++) {
        const int64_t *theirs = (const int64_t *)peers[rank].theirs;
        for (size_t slot = 0; rank != me && slot < width; slot++)
            if (theirs[slot] < values[slot])
                values[slot] = theirs[slot];
    }
}

/* The port of a rank is the name of a link. */
static int meet(const char *folder, int rank, int port) {
    char path[4096], name[16] = "";
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    snprintf(name, sizeof name, "%d", port);
    if (port != 0)
        return symlink(name, path);
    while (readlink(path, name, sizeof name - 1) < 0)
        usleep(1000);
    return atoi(name);
}

static void join(const char *folder) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, RANKS) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0 || meet(folder, me, ntohs(address.sin_port)) != 0)
        give_up("no port to listen on");
    for (int rank = 0; rank < me; rank++) {
        address.sin_port = htons(meet(folder, rank, 0));
        peers[rank].socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(peers[rank].socket, (struct sockaddr *)&address, length) != 0 || send(peers[rank].socket, &me, sizeof me, 0) < 0)
            give_up("a rank does not answer");
    }
    for (int others = me + 1; others < ranks; others++) {
        int rank, socket = accept(listener, NULL, NULL);
        if (recv(socket, &rank, sizeof rank, MSG_WAITALL) != sizeof rank || rank <= me || rank >= ranks)
            give_up("a stranger connects");
        peers[rank].socket = socket;
    }
    for (int rank = 0; rank < ranks; rank++)
        if (rank != me && (setsockopt(peers[rank].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 ||
                           fcntl(peers[rank].socket, F_SETFL, O_NONBLOCK) != 0))
            give_up("an option is refused");
}

int main(int argc, char **argv) {
    if (argc < 4 || atoi(argv[3]) > RANKS)
        give_up("bare_tcp FOLDER RANK SIZE CASE...");
    me = atoi(argv[2]);
    ranks = atoi(argv[3]);
    join(argv[1]);
    report(argv + 4, me, ranks, allreduce);
    return 0;
}
