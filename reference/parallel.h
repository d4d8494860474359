// Divides a reference's independent items among the threads of the machine. Results do not depend
// on the number of threads, since an item is computed by one of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tokline {

// Calls work(i) for each i from 0 to count - 1, in any order and at the same time. `products` is
// about how many multiplications all of it takes: a little work stays on this thread. `work` must
// not throw.
template <typename Work>
void ParallelFor(int64_t count, double products, const Work& work) {
  constexpr double kProductsPerThread = 4e6;  // a few ms, a hundred times what a thread costs
  const double most = std::min<double>(std::max(1U, std::thread::hardware_concurrency()),
                                       static_cast<double>(count));
  const auto threads = static_cast<int>(std::min(most, products / kProductsPerThread));
  std::atomic<int64_t> next = 0;
  const auto take = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(take);
  take();
}

}  // namespace tokline
