// The ranks of one process: one thread per rank, on which all do the same work at the same time,
// and a place where they meet meanwhile.
//
// Nothing here knows what the ranks do. The first rank that throws ends the group: the others leave
// their meetings, and the caller gets its exception. A rank that falls behind the others by more
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

#include "harness/engine/rank_link.h"

namespace tokline {

class RankGroup : public RankLink {
 public:
  struct Options {
    int32_t ranks = 1;  // 1 to kMaxRanks
    std::chrono::milliseconds limit{60'000};
    // Called with one line if a rank never returns. No exception can end such a rank, only the end
    // of the process can, so this must not return. If it is empty, std::terminate is called.
    std::function<void(const std::string&)> on_hang = {};
  };

  explicit RankGroup(Options options);
  ~RankGroup() override;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int32_t Size() const override { return options_.ranks; }
  std::chrono::milliseconds Limit() const override { return options_.limit; }

  // Calls work(rank) for every rank on its thread, and returns when all have returned. A single
  // rank works on the caller's thread. Throws RuntimeFailure, which names the rank, if one fails.
  // An InvalidArgument (a mistake of the caller) is passed on unchanged, and so is any exception in
  // a group of one rank. Once a group has failed, each call throws the same exception.
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

  using Brought = std::array<const void*, kMaxRanks>;
  // Called by every rank within the same Run. Waits until all have arrived, within the time limit
  // unless they run apart, and returns what each has brought.
  Brought Meet(int32_t rank, const void* brought);
  // Called within the same Run. No rank leaves before all have read.
  void AllGather(int32_t rank, const void* mine, int64_t bytes, void* all) override;

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
  bool together_ = true;  // whether the ranks of this run must not fall behind each other
  uint32_t running_ = 0;  // a bit per rank
  bool ends_ = false;
  std::exception_ptr failure_;
  uint64_t meetings_ = 0;  // that were complete
  uint32_t arrived_ = 0;   // a bit per rank, at the next meeting
  // What ranks brought to the next meeting and to the last one, which slow ranks may still read.
  Brought brought_[2] = {};
  std::vector<std::jthread> threads_;
};

}  // namespace tokline
