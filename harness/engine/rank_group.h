// The ranks of one process: a thread each, on which all do the same work at the same time, and a
// place where they meet while they do it.
//
// Nothing here knows what the ranks do. The first rank that throws ends the group: the others leave
// their meetings, and the caller gets what it threw. A rank that falls behind the others by more
// than the time limit counts as failed too.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/all_reduce_norm/all_reduce_norm.h"

namespace tokline {

class RankGroup {
 public:
  struct Options {
    int32_t ranks = 1;  // 1 to kMaxRanks
    std::chrono::milliseconds limit{60'000};
    // Is called with one line if a rank never comes back. No exception can end it, only the end of
    // the process can, so this must not return. If empty, std::terminate is called.
    std::function<void(const std::string&)> on_hang = {};
  };

  explicit RankGroup(Options options);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int32_t Size() const { return options_.ranks; }
  const Options& Limits() const { return options_; }

  // Calls work(rank) for every rank on its thread, and returns when all have returned. A single
  // rank works on the caller's thread. Throws RuntimeFailure, which names the rank, if one fails;
  // what a mistake of the caller (InvalidArgument) or a single rank throws is passed on as it is.
  // Once a group has failed, each call throws the same.
  template <typename Work>
  void Run(const Work& work) {
    if (Size() == 1) return work(0);
    RunOnThreads(work, true);
  }
  // The same for work that takes some ranks longer than others, such as loading: no time limit.
  template <typename Work>
  void RunApart(const Work& work) {
    if (Size() == 1) return work(0);
    RunOnThreads(work, false);
  }

  using Brought = std::array<void*, kMaxRanks>;
  // Is called by every rank within the same Run. Waits until all have come and returns what each
  // has brought.
  Brought Meet(int32_t rank, void* brought);

 private:
  struct Left {};  // thrown to end a rank after another one has failed

  void RunOnThreads(const std::function<void(int32_t)>& work, bool together);
  void Serve(int32_t rank);
  void Fail(std::exception_ptr failure);
  // "rank 1 of 2 has been missing for 60 s" for the ranks of a set.
  std::string MissingText(uint32_t ranks) const;

  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int32_t)>* work_ = nullptr;
  uint64_t runs_ = 0;
  uint32_t running_ = 0;  // a bit per rank
  bool ends_ = false;
  std::exception_ptr failure_;
  uint64_t meetings_ = 0;  // that were complete
  uint32_t arrived_ = 0;   // a bit per rank, at the next meeting
  // Of the next meeting and of the last, from which slow ranks may still have to read.
  Brought brought_[2] = {};
  std::vector<std::jthread> threads_;
};

// Where a rank stands in its group, as its backend needs to know it.
struct RankPlace {
  RankGroup* group = nullptr;  // null: there is a single rank
  int32_t rank = 0;
  // The largest sum that is made at once; larger ones are made in pieces of so many rows.
  int64_t max_rows = 0;
  int64_t hidden_size = 0;

  int32_t Ranks() const { return group == nullptr ? 1 : group->Size(); }
};

}  // namespace tokline
