/* MPI_Allreduce: mpi CASE... */
#define _GNU_SOURCE
#include "case.h"
#include <mpi.h>

static void allreduce(int64_t *values, size_t width) {
    MPI_Allreduce(MPI_IN_PLACE, values, (int)width, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    pin(rank, size);
    for (int i = 1; i < argc; i++) {
        struct measured it = measure(argv[i], rank, size, allreduce);
        /* Rank 0 prints for all: a launcher that joins the outputs of several ranks cuts long lines. */
        uint32_t *times = (uint32_t *)malloc(size * it.rounds * sizeof *times);
        uint64_t *spent = (uint64_t *)malloc(size * sizeof it.spent_ns);
        if (!times || !spent)
            give_up("no memory");
        MPI_Gather(it.times_ns, (int)it.rounds, MPI_UINT32_T, times, (int)it.rounds, MPI_UINT32_T, 0, MPI_COMM_WORLD);
        MPI_Gather(it.spent_ns, 2, MPI_UINT64_T, spent, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        for (int of = 0; rank == 0 && of < size; of++) {
            struct measured theirs = it;
            theirs.times_ns = times + (size_t)of * it.rounds;
            theirs.spent_ns[0] = spent[2 * of];
            theirs.spent_ns[1] = spent[2 * of + 1];
            print(&theirs, of);
        }
        free(times);
        free(spent);
        free(it.times_ns);
    }
    MPI_Finalize();
    return 0;
}
