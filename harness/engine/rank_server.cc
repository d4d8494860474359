// Sends orders between processes as flat messages, and serves them on the other ranks.
#include "harness/engine/rank_server.h"

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "harness/engine/decoder_config.h"
#include "harness/engine/decoder_rank.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Every message begins with one.
struct MessageHead {
  enum class Kind : uint8_t { kMake, kObey, kDrop };
  Kind kind = Kind::kObey;
  int64_t decoder = 0;
  RankOrder order = {};  // of kObey, whose payload follows
};

// The data from which the rank of another process is made, followed by the path of its model.
struct MakeOrder {
  uint64_t digest = 0;
  bool drawn = false;  // the weights, from this seed
  uint64_t seed = 0;
};

// Appends the options to `bytes`, or reads them from `at` on. Options that only concern rank 0 are
// not sent.
struct OptionBytes {
  std::vector<std::byte>& bytes;
  bool reads;
  size_t at = 0;

  void Pass(DecoderOptions& options) {
    auto& [device, ranks, processes, rank_limit, on_hang, dtype, max_batch, max_context, kv_pages,
           page_size, token_budget, reuse, sharing, keep_logits, pinned_pages, ablate, delayed] =
        options;
    const auto pass = [this](auto&... field) { (PassField(field), ...); };
    pass(device, ranks, rank_limit, dtype, max_batch, max_context, kv_pages, page_size,
         token_budget, reuse, sharing, keep_logits, pinned_pages, ablate);
  }

 private:
  template <typename Field>
  void PassField(Field& field) {
    static_assert(std::is_trivially_copyable_v<Field>);
    if (reads) {
      std::memcpy(&field, bytes.data() + at, sizeof(field));
      at += sizeof(field);
    } else {
      const auto* const from = reinterpret_cast<const std::byte*>(&field);
      bytes.insert(bytes.end(), from, from + sizeof(field));
    }
  }
};

// The rank of one decoder.
class ServedRank {
 public:
  ServedRank(ProcessGroup& processes, std::vector<std::byte>& bytes) {
    MakeOrder make;
    std::memcpy(&make, bytes.data(), sizeof(make));
    OptionBytes passed{.bytes = bytes, .reads = true, .at = sizeof(make)};
    DecoderOptions options;
    passed.Pass(options);
    const std::string path(reinterpret_cast<const char*>(bytes.data()) + passed.at,
                           bytes.size() - passed.at);
    processes.SetLimit(options.rank_limit);
    const LoadedModel model = make.drawn ? LoadedModel(path, make.seed) : LoadedModel(path);
    if (model.Digest() != make.digest) {
      throw RuntimeFailure(StrCat("the model in ", path,
                                  " is not that of rank 0: config.json or the tensors differ"));
    }
    options.processes = &processes;
    rank_ = std::make_unique<DecoderRank>(
        model.spec, model.weights, options, processes.Rank(),
        MakeBackend(options.device, PlaceOf(model.spec, options, nullptr, 0)));
    RequireSameKinds(processes, rank_->config.facts);
  }

  void Obey(RankOrder order, const std::byte* payload) {
    order.payload = payload;
    rank_->Obey(order);
  }

 private:
  std::unique_ptr<DecoderRank> rank_;
};

}  // namespace

void ServeRank(ProcessGroup& processes) {
  std::map<int64_t, std::unique_ptr<ServedRank>> served;
  try {
    while (true) {
      std::vector<std::byte> message = processes.Receive();
      if (message.empty()) return;
      MessageHead head;
      std::memcpy(&head, message.data(), sizeof(head));
      switch (head.kind) {
        case MessageHead::Kind::kMake:
          message.erase(message.begin(), message.begin() + sizeof(head));
          served[head.decoder] = std::make_unique<ServedRank>(processes, message);
          break;
        case MessageHead::Kind::kObey:
          served.at(head.decoder)->Obey(head.order, message.data() + sizeof(head));
          break;
        case MessageHead::Kind::kDrop:
          served.erase(head.decoder);
          break;
      }
    }
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    if (what.starts_with("rank ")) throw;
    throw RuntimeFailure(StrCat("rank ", processes.Rank(), " of ", processes.Size(), ": ", what));
  }
}

RemoteRanks::RemoteRanks(ProcessGroup& processes, const LoadedModel& model,
                         const DecoderOptions& options)
    : processes_(processes) {
  static int64_t made = 0;
  decoder_ = made++;
  const std::optional<uint64_t>& seed = model.weights.random_seed;
  const MakeOrder make{
      .digest = model.Digest(), .drawn = seed.has_value(), .seed = seed.value_or(0)};
  std::vector<std::byte> bytes(sizeof(make));
  std::memcpy(bytes.data(), &make, sizeof(make));
  DecoderOptions passed = options;
  OptionBytes{.bytes = bytes, .reads = false}.Pass(passed);
  const std::string path = model.checkpoint.Dir().string();
  const auto* const text = reinterpret_cast<const std::byte*>(path.data());
  bytes.insert(bytes.end(), text, text + path.size());
  processes_.SetLimit(options.rank_limit);
  const MessageHead head{.kind = MessageHead::Kind::kMake, .decoder = decoder_};
  processes_.Send(&head, sizeof(head), bytes.data(), std::ssize(bytes));
}

RemoteRanks::~RemoteRanks() {
  try {
    const MessageHead head{.kind = MessageHead::Kind::kDrop, .decoder = decoder_};
    processes_.Send(&head, sizeof(head), nullptr, 0);
  } catch (const std::exception&) {  // a rank has failed, which ends the process
  }
}

void RemoteRanks::Tell(const RankOrder& order) {
  const MessageHead head{.kind = MessageHead::Kind::kObey, .decoder = decoder_, .order = order};
  processes_.Send(&head, sizeof(head), order.payload, order.payload_bytes);
}

void RequireSameKinds(ProcessGroup& processes, const DeviceFacts& facts) {
  std::array<DeviceFacts, kMaxRanks> all{};
  processes.AllGatherApart(&facts, sizeof(facts), all.data());
  for (int32_t rank = 0; rank < processes.Size(); ++rank) {
    RequireSameKind(all[0], all[static_cast<size_t>(rank)], rank);
  }
}

}  // namespace tokline
