// The texts of the scheduler's model: K, V and the next token as hashes, and the random requests
// that it submits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "harness/scheduler/request.h"
#include "harness/scheduler/scheduler.h"

namespace tokline::testing::model {

inline constexpr int32_t kVocabulary = 3;

inline uint64_t Hash(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}
inline uint64_t Chain(uint64_t before, int32_t token) {
  return Hash(before * 31 + static_cast<uint64_t>(token) + 7);
}
// Returns a key moved by `shift` positions.
inline uint64_t Shifted(uint64_t chain, int64_t shift) {
  return Hash(chain ^ (static_cast<uint64_t>(shift) * 0x9e3779b97f4a7c15ull));
}
// Returns the K and V of the prompt. After a shifted span, the text continues from its last token.
inline std::vector<uint64_t> PromptChain(const Request& request) {
  std::vector<uint64_t> chain;
  for (const int32_t token : request.prompt) {
    chain.push_back(Chain(chain.empty() ? 1 : chain.back(), token));
  }
  const int64_t last = static_cast<int64_t>(request.prompt.size()) - 1;
  for (const ShiftedSpan& span : request.shifted) {
    const int64_t shift = span.begin - request.shifted_after;
    if (shift == 0) continue;
    uint64_t alone =
        request.shifted_after == 0 ? 1 : chain[static_cast<size_t>(request.shifted_after - 1)];
    for (int64_t i = span.begin; i < std::min(span.end, last); ++i) {
      alone = Chain(alone, request.prompt[static_cast<size_t>(i)]);
      chain[static_cast<size_t>(i)] = Shifted(alone, shift);
    }
    for (int64_t i = std::min(span.end, last); i <= last; ++i) {
      const auto at = static_cast<size_t>(i);
      chain[at] = Chain(chain[at - 1], request.prompt[at]);
    }
  }
  return chain;
}
inline int32_t Sampled(uint64_t chain, uint64_t seed, int64_t position) {
  return static_cast<int32_t>(Hash(chain + seed * 1000003 + static_cast<uint64_t>(position)) %
                              kVocabulary);
}

inline SchedulerOptions RandomOptions(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1));
  };
  SchedulerOptions options;
  options.page_size = 1 << pick(0, 2);
  options.num_pages = pick(8, 40) / options.page_size;
  options.max_batch = pick(1, 5);
  options.max_context = pick(10, 30);
  options.token_budget = pick(1, 14);
  options.reuse = pick(0, 3) > 0;
  options.max_runs = pick(1, 4);
  options.max_pinned_pages = pick(0, options.num_pages / 3);
  options.hash_mask = pick(0, 2) == 0 ? 3 : ~0ull;
  return options;
}

inline Request RandomRequest(uint64_t detail, const SchedulerOptions& options) {
  std::mt19937_64 rng(detail);
  Request request;
  // There are few families of prompts, so that many prompts share a prefix.
  const auto family = static_cast<int32_t>(rng() % 3);
  const auto length = static_cast<int64_t>(1 + rng() % 8);
  for (int64_t i = 0; i < length; ++i) {
    const bool own = rng() % 12 == 0;
    request.prompt.push_back(own ? static_cast<int32_t>(rng() % kVocabulary)
                                 : static_cast<int32_t>((i * i + family * (i + 1)) % kVocabulary));
  }
  request.max_new_tokens = static_cast<int64_t>(1 + rng() % 14);
  request.rule.temperature = 1;
  request.rule.seed = rng() % 3;
  if (rng() % 4 == 0) request.stop_ids = {static_cast<int32_t>(rng() % kVocabulary)};
  for (int64_t cut = 1; cut <= length; ++cut) {
    if (rng() % 6 == 0) request.cuts.push_back(cut);
  }
  request.keep = rng() % 2 == 0;
  request.hold = rng() % 10 == 0;
  if (options.reuse && rng() % 2 == 0) {
    request.shifted_after = static_cast<int64_t>(rng() % 3 == 0 ? rng() % 3 : 0);
    for (int64_t end = request.shifted_after; end < length;) {
      const int64_t begin = end + static_cast<int64_t>(rng() % 4);
      end = begin + 1 + static_cast<int64_t>(rng() % 5);
      if (end <= length) request.shifted.push_back({begin, end});
    }
  }
  return request;
}

// Returns the number of pages for a request when it is longest, including the sources of its
// shifted spans.
inline int64_t PagesNeeded(const Request& request, const SchedulerOptions& options) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  const size_t max_cuts = options.reuse ? static_cast<size_t>(options.max_runs - 1) : 0;
  int64_t pages = 0, begin = 0, exact = length;
  for (const ShiftedSpan& span : request.shifted) {
    const int64_t tokens = std::min(span.end, length - 1) - span.begin;
    if (span.begin == request.shifted_after || tokens == 0) continue;
    exact = std::min(exact, span.begin);
    pages += (request.shifted_after + tokens + options.page_size - 1) / options.page_size;
  }
  for (size_t i = 0; i < std::min(max_cuts, request.cuts.size()); ++i) {
    if (request.cuts[i] > exact) break;
    const int64_t end = std::min(request.cuts[i], length + request.max_new_tokens - 1);
    pages += (end - begin + options.page_size - 1) / options.page_size;
    begin = end;
  }
  pages +=
      (length + request.max_new_tokens - 1 - begin + options.page_size - 1) / options.page_size;
  return pages;
}

}  // namespace tokline::testing::model
