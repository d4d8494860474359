// Measures all_reduce_norm on several GPUs of one host, and for comparison ncclAllReduce and the
// custom all-reduce of other engines, each followed by norm. CUDA builds only.
#pragma once

namespace tokline::bench {

// `bench_all_reduce_norm --gpus N [--replays R] [--record FILE]`: prints one row per shape and way,
// and appends them to a record. Every GPU has a host thread and a stream, and replays a graph of
// many launches. A sample is the second of two consecutive replays, timed by events on each GPU.
// Its time is that of the GPU that began last, because the others waited for it. The outputs are
// checked before and after. Rows say what slowed down a GPU meanwhile. NCCL is measured once all of
// our rows are printed, with a warning if it cannot be loaded. Returns the exit code: 0, 1 if an
// output is wrong, a row is refused, or a GPU or NCCL fails, 2 for wrong usage, such as fewer
// replays than a row needs samples.
int PeerRanksMain(int argc, char** argv);

}  // namespace tokline::bench
