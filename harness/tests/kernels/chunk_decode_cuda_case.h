// Runs a case of chunk_decode on the device.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "harness/tests/kernels/chunk_decode_case.h"
#include "harness/tests/kernels/cuda_test.h"

namespace tokline::testing {

struct RunOptions {
  ChunkSharing sharing = ChunkSharing::kWhenItPays;
  ChunkDecodeGrid grid = {};
  int64_t page_offset = 0;  // every page id plus this, in a pool that is larger by as much
  int launches = 1;
  bool dependent = false;
  // A launch before writes its output as K of the last token. For one sequence and one head.
  bool writes_last_key = false;
  bool writes_query = false;  // a launch before writes its output as the query
};

// Whether runs that name no grid take the one without clusters, which few short sequences would
// not get.
inline bool takes_full_grid = false;

// Launches what comes before the launch under test so that, where that one is dependent, it starts
// long before what it depends on has ended: the device is busy until all of them are queued, since
// a kernel may take less time than the host needs to launch it, and each waits for the one before.
inline void LaunchBefore(const ChunkDecodeParams& before, bool dependent) {
  static const auto* const held = new DeviceBuffer(int64_t{512} << 20);
  TOKLINE_CUDA(cudaMemsetAsync(held->data(), 0, static_cast<size_t>(held->bytes()), nullptr));
  for (int i = 0; i < 4; ++i) Launch(before, {.stream = nullptr, .dependent = dependent && i > 0});
}

inline DecodeResult RunCuda(DecodeCase& decode, const RunOptions& run = {}) {
  DecodeResult result{HostTensor(decode.options.dtype, decode.q.size()),
                      std::vector<float>(static_cast<size_t>(decode.Rows()), NAN)};
  result.out.FillNan();
  ChunkDecodeParams params = decode.Params(result.out, result.lse);
  const ChunkTableView host = params.table;
  Validate(host, decode.layout);
  const auto runs = SharedRunsOfTable(host, decode.options.group, run.sharing);
  const ChunkDecodeGrid grid = run.grid.num_lanes == 0 && takes_full_grid
                                   ? ChunkDecodeFullGrid(decode.layout, QueryDeviceFacts())
                                   : run.grid;
  // A plan has the numbers of pages, so they must be those that the device will read.
  std::vector<int32_t> pages(host.chunk_pages,
                             host.chunk_pages + host.chunk_page_indptr[host.num_chunks]);
  for (int32_t& page : pages) page += static_cast<int32_t>(run.page_offset);
  pages.push_back(0);  // never empty
  ChunkTableView planned = host;
  planned.chunk_pages = pages.data();
  ChunkDecodeChoice choice{.grid = grid};
  if (grid.num_lanes == 0) {
    choice = ChooseChunkDecodeSharing(planned, runs, decode.layout, decode.num_q_heads,
                                      QueryDeviceFacts(), run.sharing);
  } else if (!grid.ReadsWhole() || grid.run_lanes > 0) {
    choice.runs = runs;
  }
  const ChunkDecodePlan plan =
      PlanChunkDecode(planned, decode.layout, decode.num_q_heads, QueryDeviceFacts(), choice);
  EXPECT_TRUE(!run.grid.takes_parts || plan.num_partials > 0) << "no sequence has parts";
  if (const ChunkDecodeGrid& used = plan.size.grid;
      used.run_lanes > 0 && run.sharing == ChunkSharing::kAlways) {
    EXPECT_LT(plan.LaneTaskIndptr()[static_cast<size_t>(used.num_lanes)],
              plan.LaneTaskIndptr().back())
        << "run lanes read nothing";
  }
  const DeviceBuffer plan_block(plan.block);
  const DeviceBuffer device_pages(pages), q = ToDevice(decode.q), rope(decode.rope);
  DeviceBuffer out = ToDevice(result.out), lse(result.lse);
  const int64_t element = SizeOf(decode.options.dtype);
  const int64_t offset_bytes = run.page_offset * decode.layout.PageStride() * element;
  DeviceBuffer kv(offset_bytes + decode.kv.size() * element);
  kv.CopyFrom(decode.kv.data(), decode.kv.size() * element, offset_bytes);
  DeviceBuffer workspace(ChunkDecodeWorkspaceBytes(host.num_seqs, plan.num_partials,
                                                   decode.num_q_heads, decode.layout));
  const int64_t counter_bytes = ChunkDecodeCounterBytes(host.num_seqs, decode.layout);
  workspace.Fill(0xff);  // NaN wherever nothing was written
  workspace.CopyFrom(std::vector<char>(static_cast<size_t>(counter_bytes), 0).data(),
                     counter_bytes);

  params.layout.num_pages += run.page_offset;
  params.table.chunk_pages = device_pages.as<int32_t>();
  params.q = q.data();
  params.kv = kv.data();
  params.out = out.data();
  params.lse_ln = lse.as<float>();
  params.rope_cos_sin = decode.rope_rows > 0 ? rope.as<float>() : nullptr;
  params.plan = plan.size.View(plan_block.as<std::byte>());
  params.workspace = workspace.data();
  params.workspace_bytes = workspace.bytes();
  params.max_partials = plan.num_partials;
  params.only_last_is_new = run.dependent;
  if (run.writes_last_key) {
    const int32_t last = host.chunk_lengths[0] - 1;
    const int64_t row =
        params.layout.KeyOffset(pages[static_cast<size_t>(params.layout.Pages().PageOf(last))], 0,
                                params.layout.Pages().RowOf(last));
    ChunkDecodeParams before = params;
    before.out = kv.as<std::byte>() + row * element;
    kv.CopyFrom(std::vector<char>(static_cast<size_t>(decode.layout.head_dim * element), 0).data(),
                decode.layout.head_dim * element, row * element);
    LaunchBefore(before, run.dependent);
  }
  DeviceBuffer written_query = ToDevice(decode.q);
  if (run.writes_query) {
    ChunkDecodeParams before = params;
    before.out = written_query.data();
    params.q = written_query.data();
    written_query.Fill(0);
    LaunchBefore(before, run.dependent);
  }
  for (int i = 0; i < run.launches; ++i) {
    Launch(params, {.stream = nullptr, .dependent = run.dependent});
  }
  result.out = ToHost(out, decode.options.dtype);
  result.lse = lse.ToHost<float>();
  std::vector<char> counters(static_cast<size_t>(counter_bytes));
  workspace.CopyTo(counters.data(), counter_bytes);
  EXPECT_EQ(counters, std::vector<char>(counters.size(), 0)) << "counters are not left zero";
  return result;
}

inline void ExpectMatches(const DecodeCaseOptions& options, const RunOptions& run = {}) {
  DecodeCase decode = MakeDecodeCase(options);
  const DecodeResult actual = RunCuda(decode, run);
  EXPECT_TRUE(MatchesReference(actual, RunReference(decode), decode, !options.shifts.empty()));
}

// Checks one launch on a grid, and that launches that follow each other give the same bits.
inline void ExpectMatchesAloneAndInAChain(DecodeCase& decode, const DecodeResult& reference,
                                          const ChunkDecodeGrid& grid,
                                          bool rounded_queries = false) {
  const DecodeResult once = RunCuda(decode, {.grid = grid});
  EXPECT_TRUE(MatchesReference(once, reference, decode, rounded_queries));
  const DecodeResult chain = RunCuda(decode, {.grid = grid, .launches = 3, .dependent = true});
  EXPECT_TRUE(once.out == chain.out);
  EXPECT_EQ(once.lse, chain.lse);
}

// Makes every key a corner of a cube, 8 or -8 in each dimension, so that a query that is one of
// them attends to it alone. For two KV heads of 128.
inline void SetKeysFarApart(DecodeCase& decode, std::mt19937_64& rng) {
  ForEachToken(decode, [&](int32_t, int32_t, int64_t page, int32_t row) {
    for (int32_t i = 0; i < 2 * 128; ++i) {
      decode.kv.Set(decode.layout.KeyOffset(page, i / 128, row) + i % 128, rng() % 2 ? 8 : -8);
    }
  });
}

}  // namespace tokline::testing
