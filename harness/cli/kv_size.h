// Determines the size of the KV cache: what a run needs, or what the user specifies.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "harness/engine/decoder_config.h"
#include "harness/platform/flags.h"

namespace tokline {

struct LoadedModel;
struct Workload;

// The size that the user specifies. At most one member is not 0.
struct KvSize {
  int64_t pages = 0;
  int64_t bytes = 0;
  double fraction = 0;  // of the memory that is free after everything else that the run needs

  void AddTo(std::vector<Flag>& flags);
  // Returns null, {"pages": N}, {"bytes": N} or {"fraction": X}.
  nlohmann::ordered_json ToJson() const;
};

// Measures how many bytes of device memory are free for the KV cache once weights, activations,
// workspaces, tables and graphs have been allocated, by making and warming up a decoder with a
// cache of one page. The result is at most what the memory plan leaves, because on the CPU memory
// counts as used only once it is touched.
int64_t FreeForKv(const LoadedModel& model, const DecoderOptions& options);

// Sets options.kv_pages to the given size. Without a size it stays 0, which means as many pages as
// the run needs. A size in bytes includes the scratch page, if there is one
// (DecoderConfig::scratch_page); a size in pages counts only pages for sequences. Throws
// InvalidArgument if more than one size is given or if the size is less than one page.
void ApplyKvSize(const KvSize& size, const LoadedModel& model, DecoderOptions& options);

// Same as ApplyKvSize, for a run of whole batches: also throws InvalidArgument unless max_batch
// sequences of max_context tokens fit.
void SizeKvForBatch(const KvSize& size, const LoadedModel& model, DecoderOptions& options);

// Same as ApplyKvSize, for requests that come and go: without a size, uses as many pages as all
// requests that may run at once can use, or as many as fit on the device.
void SizeKvForWorkload(const KvSize& size, const LoadedModel& model, const Workload& workload,
                       DecoderOptions& options);

}  // namespace tokline
