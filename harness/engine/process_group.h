// The processes that mpirun has started together: each is a rank of the model, and rank 0 alone
// runs the command. It tells the others what to do; see rank_server.h.
//
// No process waits for a rank that is gone. A thread of each process tells all others that it is
// alive, and notices which ranks have died or are silent. Then rank 0, or rank 1 if rank 0 is
// missing, reports it in one line and ends, and mpirun ends the rest.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/engine/rank_link.h"

namespace tokline {

class ProcessGroup : public RankLink {
 public:
  // Joins the processes of mpirun; null if there are none. `program` is the text in which all of
  // them must agree: the build and the arguments. `print` prints a last line. Throws RuntimeFailure
  // if this build has no MPI, and InvalidArgument for more processes than kMaxRanks.
  static std::unique_ptr<ProcessGroup> Join(std::string_view program,
                                            std::function<void(const std::string&)> print);
  // The group of this process, or null.
  static ProcessGroup* Get();

  // Throws InvalidArgument, which names the rank, unless all processes run the same program.
  virtual void RequireAlike() const = 0;
  virtual int32_t Rank() const = 0;
  virtual int32_t RankOnHost() const = 0;
  // By rank: the same text for the processes of the same host.
  virtual const std::vector<std::string>& Hosts() const = 0;
  virtual void SetLimit(std::chrono::milliseconds limit) = 0;
  // Same as AllGather, but without a time limit, for work that takes some ranks longer than others,
  // such as loading.
  virtual void AllGatherApart(const void* mine, int64_t bytes, void* all) = 0;

  // Rank 0 sends a message to all others, which receive it. An empty one is received when there are
  // no more.
  virtual void Send(const void* head, int64_t head_bytes, const void* rest, int64_t rest_bytes) = 0;
  virtual std::vector<std::byte> Receive() = 0;

  // All ranks leave. Rank 0 calls it when its command has returned, the others when there are no
  // more messages.
  virtual void Leave() = 0;
  // Rank 0 prints `line` and ends all processes with this exit code; another rank has rank 0 do so
  // with exit code 1.
  [[noreturn]] virtual void Abandon(const std::string& line, int code) = 0;
};

}  // namespace tokline
