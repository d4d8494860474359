// A chunk table without shifts in device memory. CUDA builds only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "harness/platform/device_buffer.h"
#include "kernels/common/chunk_table.h"

namespace tokline::testing {

class DeviceTable {
 public:
  DeviceTable() = default;
  explicit DeviceTable(const ChunkTableView& host)
      : num_seqs_(host.num_seqs),
        num_chunks_(host.num_chunks),
        seq_chunk_indptr_(Room(host.num_seqs + 1)),
        seq_chunks_(Room(host.seq_chunk_indptr[host.num_seqs])),
        chunk_page_indptr_(Room(host.num_chunks + 1)),
        chunk_pages_(Room(host.chunk_page_indptr[host.num_chunks])),
        chunk_lengths_(Room(host.num_chunks)) {
    Upload(host);
  }

  // Replaces the contents by those of a table whose arrays are as long or shorter.
  void Upload(const ChunkTableView& host) {
    num_seqs_ = host.num_seqs;
    num_chunks_ = host.num_chunks;
    const auto copy = [](DeviceBuffer& to, const int32_t* from, int64_t count) {
      to.CopyFrom(from, count * int64_t{sizeof(int32_t)});
    };
    copy(seq_chunk_indptr_, host.seq_chunk_indptr, host.num_seqs + 1);
    copy(seq_chunks_, host.seq_chunks, host.seq_chunk_indptr[host.num_seqs]);
    copy(chunk_page_indptr_, host.chunk_page_indptr, host.num_chunks + 1);
    copy(chunk_pages_, host.chunk_pages, host.chunk_page_indptr[host.num_chunks]);
    copy(chunk_lengths_, host.chunk_lengths, host.num_chunks);
  }

  ChunkTableView View() const {
    return {.num_seqs = num_seqs_,
            .num_chunks = num_chunks_,
            .seq_chunk_indptr = seq_chunk_indptr_.as<int32_t>(),
            .seq_chunks = seq_chunks_.as<int32_t>(),
            .seq_shifts = nullptr,
            .chunk_page_indptr = chunk_page_indptr_.as<int32_t>(),
            .chunk_pages = chunk_pages_.as<int32_t>(),
            .chunk_lengths = chunk_lengths_.as<int32_t>()};
  }

 private:
  // Never null.
  static DeviceBuffer Room(int64_t count) {
    return DeviceBuffer(std::max<int64_t>(count, 1) * int64_t{sizeof(int32_t)});
  }

  int32_t num_seqs_ = 0, num_chunks_ = 0;
  DeviceBuffer seq_chunk_indptr_, seq_chunks_, chunk_page_indptr_, chunk_pages_, chunk_lengths_;
};

}  // namespace tokline::testing
