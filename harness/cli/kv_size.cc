// Turns --kv-pages, --kv-bytes and --kv-fraction into a number of pages. If no size is given, a
// workload gets as many pages as it can use and the device can hold.
#include "harness/cli/kv_size.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "harness/cli/model_run.h"
#include "harness/engine/decoder_memory.h"
#include "harness/engine/make_decoder.h"
#include "harness/measure/workload.h"
#include "harness/scheduler/sequence_pages.h"
#include "kernels/common/error.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {
namespace {

// A cache that is as large as possible takes this fraction of the free memory; the rest is for what
// the driver allocates later.
constexpr double kDefaultFraction = 0.9;

int64_t PageBytes(const LoadedModel& model, const DecoderOptions& options) {
  const ModelShard shard = ShardModel(model.spec, options.ranks, 0);  // the ranks have the same
                                                                      // size
  return shard.local.KvBytesPerToken(options.dtype) * options.page_size;
}

DecoderOptions WithOnePage(DecoderOptions options) {
  options.kv_pages = 1;
  options.pinned_pages = 0;
  return options;
}

// Number of pages in the cache that belong to no sequence.
int64_t ScratchPages(const LoadedModel& model, const DecoderOptions& options) {
  return DecoderConfig(model.spec, WithOnePage(options), {}).layout.num_pages - 1;
}

// The most pages that a request can use. With reuse, a cut leaves a page partly empty.
int64_t MostPages(const Workload& workload, const DecoderOptions& options) {
  const SequencePages empty(options.page_size);
  int64_t most = 0;
  for (const WorkloadRequest& one : workload.requests) {
    std::span<const int64_t> cuts;
    if (options.reuse) cuts = one.request.cuts;
    most = std::max(most, empty.PagesFor(one.Context(), cuts));
  }
  return most;
}

// The size as the user gave it, for messages.
std::string Words(const KvSize& size) {
  if (size.pages > 0) return StrCat("--kv-pages is ", size.pages);
  if (size.bytes > 0) return StrCat("--kv-bytes is ", size.bytes);
  return StrCat("--kv-fraction is ", size.fraction);
}

int64_t PagesIn(int64_t bytes, const std::string& words, const LoadedModel& model,
                const DecoderOptions& options) {
  const int64_t page_bytes = PageBytes(model, options);
  const int64_t scratch = ScratchPages(model, options);
  const int64_t pages = bytes / page_bytes - scratch;
  Require(pages >= 1, words, "; a page of the KV cache, ", options.page_size, " tokens, takes ",
          page_bytes, " bytes", scratch > 0 ? ", and this ablation needs one more page" : "");
  return std::min<int64_t>(pages, INT32_MAX / 2);
}

}  // namespace

void KvSize::AddTo(std::vector<Flag>& flags) {
  flags.insert(flags.end(),
               {{"--kv-pages", "N", "size of the KV cache in pages (default: what the run needs)",
                 IntegerInto(pages, 1, INT32_MAX / 2)},
                {"--kv-bytes", "N[K|M|G]", "size of the KV cache in bytes, of each rank",
                 [this](auto flag, auto text) { bytes = ParseBytes(flag, text); }},
                {"--kv-fraction", "X",
                 "size of the KV cache as a share of what is free after weights and warm-up",
                 [this](auto flag, auto text) {
                   fraction = ParseReal(flag, text);
                   Require(fraction > 0 && fraction <= 1, flag, " is ", fraction,
                           "; it must be more than 0 and at most 1");
                 }}});
}

nlohmann::ordered_json KvSize::ToJson() const {
  if (pages > 0) return {{"pages", pages}};
  if (bytes > 0) return {{"bytes", bytes}};
  if (fraction > 0) return {{"fraction", fraction}};
  return nullptr;
}

int64_t FreeForKv(const LoadedModel& model, const DecoderOptions& options) {
  const DecoderOptions one_page = WithOnePage(options);
  const std::unique_ptr<Backend> backend = MakeBackend(options.device);
  const MemoryNeeds needs = MemoryNeedsOf(model.spec, one_page, backend->facts());
  // Ranks on the CPU share its memory.
  const int64_t sharers = options.device == Device::kCpu ? options.ranks : 1;
  const int64_t planned = backend->FreeBytes() / sharers - (needs.Total() - needs.kv_bytes);
  if (planned <= 0) return 0;
  Decoder decoder = MakeDecoder(model, one_page);
  decoder.WarmUp();
  return std::min(planned, backend->FreeBytes() / sharers + needs.kv_bytes);
}

void ApplyKvSize(const KvSize& size, const LoadedModel& model, DecoderOptions& options) {
  Require((size.pages > 0) + (size.bytes > 0) + (size.fraction > 0) <= 1,
          "more than one of --kv-pages, --kv-bytes and --kv-fraction is given; each sets the size "
          "of the KV cache");
  if (size.pages > 0) options.kv_pages = size.pages;
  if (size.bytes > 0) options.kv_pages = PagesIn(size.bytes, Words(size), model, options);
  if (size.fraction > 0) {
    const int64_t free_bytes = FreeForKv(model, options);
    options.kv_pages =
        PagesIn(static_cast<int64_t>(size.fraction * static_cast<double>(free_bytes)),
                StrCat(Words(size), " of ", free_bytes, " free bytes"), model, options);
  }
}

void SizeKvForBatch(const KvSize& size, const LoadedModel& model, DecoderOptions& options) {
  ApplyKvSize(size, model, options);
  if (options.kv_pages == 0) return;
  const int64_t needed =
      options.max_batch * PagesOfSize(options.page_size).PagesFor(options.max_context);
  Require(options.kv_pages >= needed, Words(size),
          size.pages > 0 ? "" : StrCat(", ", options.kv_pages, " pages"), "; ", options.max_batch,
          " sequences of ", options.max_context, " tokens, prompt and new, need ", needed,
          " pages of ", options.page_size, " tokens");
}

void SizeKvForWorkload(const KvSize& size, const LoadedModel& model, const Workload& workload,
                       DecoderOptions& options) {
  ApplyKvSize(size, model, options);
  if (options.kv_pages > 0) return;
  options.kv_pages = options.max_batch * MostPages(workload, options);
  if (options.device == Device::kCpu) return;  // the system allocates pages when they are touched
  const std::unique_ptr<Backend> backend = MakeBackend(options.device);
  const double room = kDefaultFraction * static_cast<double>(backend->FreeBytes());
  const MemoryNeeds needs = MemoryNeedsOf(model.spec, options, backend->facts());
  if (static_cast<double>(needs.Total()) <= room) return;
  KvSize most;
  most.fraction = kDefaultFraction;
  const int64_t wanted = options.kv_pages;
  ApplyKvSize(most, model, options);
  options.kv_pages = std::min(options.kv_pages, wanted);
}

}  // namespace tokline
