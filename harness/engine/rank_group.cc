// Runs the ranks of one process as threads, which meet within a time limit.
#include "harness/engine/rank_group.h"

#include <cstring>
#include <utility>

#include "kernels/common/error.h"

namespace tokline {

RankGroup::RankGroup(Options options) : options_(std::move(options)) {
  Require(Size() >= 1 && Size() <= kMaxRanks, "the number of ranks is ", Size(),
          "; it must be 1 to ", kMaxRanks);
  Require(options_.limit.count() >= 1, "the time limit of ranks is ", options_.limit.count(),
          " ms; it must be at least 1");
  if (Size() == 1) return;
  for (int32_t rank = 0; rank < Size(); ++rank) {
    threads_.emplace_back([this, rank] { Serve(rank); });
  }
}

RankGroup::~RankGroup() {
  const std::lock_guard lock(mutex_);
  ends_ = true;
  changed_.notify_all();
}

void RankGroup::RunOnThreads(const std::function<void(int32_t)>& work, bool together) {
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  const uint32_t all = (1u << Size()) - 1;
  work_ = &work;
  together_ = together;
  running_ = all;
  ++runs_;
  changed_.notify_all();
  // The ranks may take any time, but once the first has returned, the others must follow. Ranks
  // that wait at a meeting give up after one limit, so a rank counts as hanging only after two.
  changed_.wait(lock, [&] {
    return running_ == 0 || (running_ != all && (together || failure_ != nullptr));
  });
  if (!changed_.wait_for(lock, 2 * options_.limit, [this] { return running_ == 0; })) {
    if (options_.on_hang) options_.on_hang(MissingText(running_));
    std::terminate();
  }
  if (failure_) std::rethrow_exception(failure_);
}

void RankGroup::Serve(int32_t rank) {
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || runs_ > done; });
    if (ends_) return;
    done = runs_;
    const std::function<void(int32_t)>& work = *work_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work(rank);
    } catch (const Left&) {
    } catch (const InvalidArgument&) {
      failure = std::current_exception();
    } catch (const std::exception& error) {
      failure = std::make_exception_ptr(
          RuntimeFailure(StrCat("rank ", rank, " of ", Size(), ": ", error.what())));
    }
    lock.lock();
    if (failure) Fail(failure);
    running_ &= ~(1u << rank);
    changed_.notify_all();
  }
}

RankGroup::Brought RankGroup::Meet(int32_t rank, const void* brought) {
  std::unique_lock lock(mutex_);
  if (failure_) throw Left();  // some of the awaited ranks have left
  const uint64_t meeting = meetings_;
  Brought& all_brought = brought_[meeting % 2];
  all_brought[static_cast<size_t>(rank)] = brought;
  arrived_ |= 1u << rank;
  const uint32_t all = (1u << Size()) - 1;
  if (arrived_ == all) {
    arrived_ = 0;
    ++meetings_;
    changed_.notify_all();
  } else {
    const auto ends = [&] { return meetings_ > meeting || failure_ != nullptr; };
    if (!together_) {
      changed_.wait(lock, ends);
    } else if (!changed_.wait_for(lock, options_.limit, ends)) {
      Fail(std::make_exception_ptr(RuntimeFailure(MissingText(all & ~arrived_))));
    }
  }
  if (meetings_ == meeting) throw Left();
  return all_brought;
}

void RankGroup::AllGather(int32_t rank, const void* mine, int64_t bytes, void* all) {
  const Brought brought = Meet(rank, mine);
  for (int32_t from = 0; from < Size(); ++from) {
    std::memcpy(static_cast<std::byte*>(all) + from * bytes, brought[static_cast<size_t>(from)],
                static_cast<size_t>(bytes));
  }
  Meet(rank, nullptr);
}

void RankGroup::Fail(std::exception_ptr failure) {
  if (!failure_) failure_ = std::move(failure);
  changed_.notify_all();
}

std::string RankGroup::MissingText(uint32_t ranks) const {
  std::string text = "rank";
  for (int32_t rank = 0; rank < Size(); ++rank) {
    if ((ranks >> rank) & 1u) text += StrCat(text == "rank" ? " " : ", ", rank);
  }
  return StrCat(text, " of ", Size(), " hangs: the others have waited for ",
                static_cast<double>(options_.limit.count()) / 1e3, " s");
}

}  // namespace tokline
