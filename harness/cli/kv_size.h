// How large the KV cache is: what a run needs, or what the user gives it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "harness/cli/flags.h"
#include "harness/engine/decoder_memory.h"

namespace tokline {

struct LoadedModel;

// At most one is not 0.
struct KvSize {
  int64_t pages = 0;
  int64_t bytes = 0;
  double fraction = 0;  // of what is free beside all else that the run takes

  void AddTo(std::vector<Flag>& flags);
  bool IsGiven() const { return pages > 0 || bytes > 0 || fraction > 0; }
  // Null, {"pages": N}, {"bytes": N} or {"fraction": X}.
  nlohmann::ordered_json ToJson() const;
};

// Bytes of device memory that are free for the KV cache when weights, activations, workspaces,
// tables and graphs have theirs. Measured: a decoder with a cache of one page is made and warmed
// up. Not more than the plan leaves, since on the CPU memory counts only when it is touched.
int64_t FreeForKv(const LoadedModel& model, const DecoderOptions& options);

// Sets options.kv_pages to the size given; without one it stays 0, as many as it takes. Bytes hold
// the scratch page too, where there is one (DecoderPlan::scratch_page); pages are sequences'.
// Throws InvalidArgument if more than one is given or if it is less than a page.
void ApplyKvSize(const KvSize& size, const LoadedModel& model, DecoderOptions& options);

// The same for a run of whole batches: throws InvalidArgument unless max_batch sequences of
// max_context tokens fit.
void SizeKvForBatch(const KvSize& size, const LoadedModel& model, DecoderOptions& options);

// The same for requests that come and go: without a size as many pages as all that may run at a
// time can use, or as the device has room for.
void SizeKvForWorkload(const KvSize& size, const LoadedModel& model, DecoderOptions& options);

}  // namespace tokline
