/* What every contestant does alike. A case is WIDTHxCALLS:ROUNDS: a round is CALLS reductions of WIDTH integers.
   The warm-up checks every value; the rounds are run once without a clock in between, for the wall and CPU time, and
   once with, for the time of each. */

#define WARM_UP_NS 300000000
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef void reduction(int64_t *values, size_t width);

struct measured {
    uint32_t *times_ns;
    uint64_t spent_ns[2]; /* wall, CPU */
    unsigned rounds;
    unsigned width, calls;
};

static void give_up(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A CPU for each rank, where there are as many. */
static inline void pin(int rank, int size) {
    cpu_set_t cpus;
    if (size > sysconf(_SC_NPROCESSORS_ONLN))
        return;
    CPU_ZERO(&cpus);
    CPU_SET(rank, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        perror("not pinned");
}

static struct measured measure(const char *text, int rank, int size, reduction *reduce) {
    struct measured it = {NULL, {0, 0}, 0, 0, 0};
    if (sscanf(text, "%ux%u:%u", &it.width, &it.calls, &it.rounds) != 3 || it.width == 0 || it.rounds == 0)
        give_up("a case is WIDTHxCALLS:ROUNDS");
    int64_t *values = (int64_t *)malloc(it.width * sizeof *values);
    it.times_ns = (uint32_t *)malloc(it.rounds * sizeof *it.times_ns);
    if (!values || !it.times_ns)
        give_up("no memory");
    int64_t on = 1;
    uint64_t until = now_ns(CLOCK_MONOTONIC) + WARM_UP_NS;
    for (unsigned round = 0; on; round++) {
        for (unsigned slot = 0; slot < it.width; slot++)
            values[slot] = (int64_t)(rank + round + slot) % size * 1000 + round + slot;
        reduce(values, it.width);
        for (unsigned slot = 0; slot < it.width; slot++)
            if (values[slot] != (int64_t)(round + slot))
                give_up("wrong value");
        /* Whose time is up first ends it for all. */
        on = now_ns(CLOCK_MONOTONIC) < until;
        reduce(&on, 1);
    }
    uint64_t wall = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (unsigned round = 0; round < it.rounds; round++)
        for (unsigned call = 0; call < it.calls; call++)
            reduce(values, it.width);
    it.spent_ns[0] = now_ns(CLOCK_MONOTONIC) - wall;
    it.spent_ns[1] = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    reduce(values, it.width);
    uint64_t before = now_ns(CLOCK_MONOTONIC);
    for (unsigned round = 0; round < it.rounds; round++) {
        for (unsigned call = 0; call < it.calls; call++)
            reduce(values, it.width);
        uint64_t after = now_ns(CLOCK_MONOTONIC);
        it.times_ns[round] = after - before < UINT32_MAX ? (uint32_t)(after - before) : UINT32_MAX;
        before = after;
    }
    free(values);
    return it;
}

/* One line of JSON. */
static void print(const struct measured *it, int rank) {
    printf("{\"case\":\"%ux%u\",\"rank\":%d,\"wall_ns\":%llu,\"cpu_ns\":%llu,\"times_ns\":[%u", it->width, it->calls, rank,
           (unsigned long long)it->spent_ns[0], (unsigned long long)it->spent_ns[1], it->times_ns[0]);
    for (unsigned round = 1; round < it->rounds; round++)
        printf(",%u", it->times_ns[round]);
    puts("]}");
    fflush(stdout);
}

/* Measures and prints all cases, of which a null pointer follows the last. */
static inline void report(char **cases, int rank, int size, reduction *reduce) {
    for (; *cases; cases++) {
        struct measured it = measure(*cases, rank, size, reduce);
        print(&it, rank);
        free(it.times_ns);
    }
}
