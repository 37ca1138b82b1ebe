/* The least that a minimum of up to 8 small integers takes here: bare FOLDER RANK SIZE CASE...
   Each rank has one line in shared memory. A word is a value of 56 bits above 8 bits of its round, so nothing else says that
   it is new, and nothing is looked after: no other call, no death, no deadline. Who waits for a rank on its own CPU yields. */
#define _GNU_SOURCE
#include "case.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define SLOTS 8
#define RANKS 64
/* Polls for ranks on other CPUs before a yield to whoever else is there. */
#define POLLS 50
/* Ranks seldom move. */
#define LOOK_EVERY 64

struct row {
    _Alignas(128) _Atomic int64_t words[SLOTS];
};

/* Two of each: a rank that is ahead writes the next round while others still read this one. */
static struct shared {
    struct row rows[2][RANKS];
    struct {
        _Alignas(128) _Atomic int cpu;
    } places[RANKS];
} *shared;
static int me, ranks, crowded;
static uint64_t rounds;

static int has_come(const struct row *row, int slot, int64_t *word) {
    *word = atomic_load_explicit(&row->words[slot], memory_order_acquire);
    return (*word & 255) == (int64_t)(rounds & 255);
}

static int waits_for_this_cpu(const struct row *rows) {
    int here = atomic_load_explicit(&shared->places[me].cpu, memory_order_relaxed);
    int64_t word;
    for (int rank = 0; crowded && rank < ranks; rank++)
        if (atomic_load_explicit(&shared->places[rank].cpu, memory_order_relaxed) == here && !has_come(&rows[rank], 0, &word))
            return 1;
    return 0;
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void allreduce(int64_t *values, size_t width) {
    const struct row *rows = shared->rows[++rounds % 2];
    int64_t least[SLOTS] = {0};
    if (width > SLOTS)
        give_up("bare has 8 slots");
    if (rounds % LOOK_EVERY == 1)
        atomic_store_explicit(&shared->places[me].cpu, sched_getcpu(), memory_order_relaxed);
    for (size_t slot = 0; slot < width; slot++)
        least[slot] = values[slot] * 256;
    for (int slot = SLOTS - 1; slot >= 0; slot--) {
        least[slot] |= (int64_t)(rounds & 255);
        atomic_store_explicit(&shared->rows[rounds % 2][me].words[slot], least[slot], memory_order_release);
    }
    int polls = 0;
    for (int rank = 0; rank < ranks; rank++) {
        for (size_t slot = 0; rank != me && slot < width; slot++) {
            int64_t theirs;
            while (!has_come(&rows[rank], (int)slot, &theirs)) {
                if (waits_for_this_cpu(rows) || (crowded && ++polls % POLLS == 0))
                    sched_yield();
                else
                    pause_cpu();
            }
            if (theirs < least[slot])
                least[slot] = theirs;
        }
    }
    for (size_t slot = 0; slot < width; slot++)
        values[slot] = least[slot] >> 8;
}

int main(int argc, char **argv) {
    char path[4096];
    if (argc < 4 || atoi(argv[3]) > RANKS)
        give_up("bare FOLDER RANK SIZE CASE...");
    me = atoi(argv[2]);
    ranks = atoi(argv[3]);
    crowded = ranks > sysconf(_SC_NPROCESSORS_ONLN);
    pin(me, ranks);
    snprintf(path, sizeof path, "%s/bare", argv[1]);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof *shared) != 0)
        give_up("no file in the folder");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED)
        give_up("the file cannot be mapped");
    report(argv + 4, me, ranks, allreduce);
    return 0;
}
