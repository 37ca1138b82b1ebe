// gloo over loopback TCP, called as torch's ProcessGroupGloo does: gloo FOLDER RANK SIZE CASE...
// Not pinned: a rank has two threads, which on one CPU of its own take 4 ms for what they do in 0.2 ms.
#include "case.h"
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static std::shared_ptr<gloo::rendezvous::Context> context;
static uint32_t tag;

static void allreduce(int64_t *values, size_t width) {
    gloo::AllreduceOptions options(context);
    options.setOutput(values, width);
    void (*minimum)(void *, const void *, const void *, size_t) = &gloo::min<int64_t>;
    options.setReduceFunction(minimum);
    options.setTag(tag++);
    gloo::allreduce(options);
}

int main(int argc, char **argv) {
    if (argc < 4)
        give_up("gloo FOLDER RANK SIZE CASE...");
    int rank = atoi(argv[2]), size = atoi(argv[3]);
    gloo::rendezvous::FileStore store(argv[1]);
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    report(argv + 4, rank, size, allreduce);
    // A rank that ends at once looks to its peers as if it had failed.
    int64_t last = 0;
    allreduce(&last, 1);
    return 0;
}
