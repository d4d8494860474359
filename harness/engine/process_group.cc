// Calls MPI, which is loaded at run time, from two threads that take turns.
#include "harness/engine/process_group.h"

#include <unistd.h>

#include <cstdlib>

#include "kernels/common/error.h"

#if TOKLINE_HAS_MPI
#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <thread>

#include "harness/platform/clock.h"
#include "harness/platform/interrupt.h"
#endif

namespace tokline {
namespace {

ProcessGroup* g_group = nullptr;

// As Open MPI's mpirun tells each of its processes; 1 if there is no mpirun.
int64_t ProcessesOfMpirun() {
  const char* const text = std::getenv("OMPI_COMM_WORLD_SIZE");
  return text == nullptr ? 1 : std::atoll(text);
}

// Only rank 0 reports an error that all ranks have in common.
void LeaveItToRankZero(bool wrong) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (wrong && rank != nullptr && std::atoll(rank) != 0) ::_exit(EXIT_SUCCESS);
}

#if TOKLINE_HAS_MPI

using std::chrono::milliseconds;

constexpr milliseconds kForever = std::chrono::years(1);
constexpr milliseconds kPoll{10};        // of the thread that watches
constexpr milliseconds kLastWords{400};  // mpirun kills all a second after one has died

enum Tag : int { kGather = 1, kMessage, kBeat, kFailed, kEnd };

// Open MPI, loaded at run time: programs that mpirun has not started run where it is missing.
struct Mpi {
  decltype(&MPI_Init_thread) init = nullptr;
  decltype(&MPI_Finalize) finalize = nullptr;
  decltype(&MPI_Abort) abort = nullptr;
  decltype(&MPI_Comm_rank) rank = nullptr;
  decltype(&MPI_Comm_size) size = nullptr;
  decltype(&MPI_Isend) isend = nullptr;
  decltype(&MPI_Irecv) irecv = nullptr;
  decltype(&MPI_Recv) recv = nullptr;
  decltype(&MPI_Iprobe) iprobe = nullptr;
  decltype(&MPI_Test) test = nullptr;
  decltype(&MPI_Get_count) get_count = nullptr;
  MPI_Comm world = nullptr;
  MPI_Datatype byte = nullptr;
  MPI_Request no_request = nullptr;

  Mpi() {
    library_ = ::dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    LeaveItToRankZero(library_ == nullptr);
    if (library_ == nullptr)
      throw RuntimeFailure(StrCat("Open MPI cannot be loaded: ", ::dlerror()));
    Load(init, "MPI_Init_thread");
    Load(finalize, "MPI_Finalize");
    Load(abort, "MPI_Abort");
    Load(rank, "MPI_Comm_rank");
    Load(size, "MPI_Comm_size");
    Load(isend, "MPI_Isend");
    Load(irecv, "MPI_Irecv");
    Load(recv, "MPI_Recv");
    Load(iprobe, "MPI_Iprobe");
    Load(test, "MPI_Test");
    Load(get_count, "MPI_Get_count");
    // MPI_COMM_WORLD, MPI_BYTE and MPI_REQUEST_NULL are the addresses of these.
    Load(world, "ompi_mpi_comm_world");
    Load(byte, "ompi_mpi_byte");
    Load(no_request, "ompi_request_null");
  }

 private:
  template <typename Symbol>
  void Load(Symbol& symbol, const char* name) {
    symbol = reinterpret_cast<Symbol>(::dlsym(library_, name));
    if (symbol == nullptr) throw RuntimeFailure(StrCat("libmpi.so.40 has no ", name));
  }

  void* library_ = nullptr;
};

// The data that the processes exchange at the start.
struct Introduction {
  char host[64] = {};       // the same for all processes of a host
  char processes[64] = {};  // likewise, for those that see each other's numbers
  int64_t process = 0;
  uint64_t program = 0;
};

template <size_t kSize>
void Put(std::string_view text, char (&target)[kSize]) {
  text.copy(target, kSize - 1);
}

Introduction Introduce(std::string_view program) {
  Introduction self;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  Put(boot, self.host);
  char space[64] = {};
  if (::readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) space[0] = 0;
  Put(StrCat(boot.substr(0, 30), space), self.processes);
  self.process = ::getpid();
  self.program = std::hash<std::string_view>()(program);
  return self;
}

// Only the command's thread and the watching thread call MPI, one at a time, and no call waits.
class MpiGroup : public ProcessGroup {
 public:
  MpiGroup(std::string_view program, std::function<void(const std::string&)> print)
      : print_(std::move(print)) {
    int provided = MPI_THREAD_SINGLE;
    call_.init(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    call_.rank(call_.world, &rank_);
    call_.size(call_.world, &size_);
    if (provided < MPI_THREAD_SERIALIZED) {
      throw RuntimeFailure("MPI does not take calls of two threads in turn, which the ranks need");
    }
    const Introduction self = Introduce(program);
    all_.resize(static_cast<size_t>(size_));
    heard_.resize(all_.size());
    Exchange(&self, sizeof(self), all_.data(), limit_);
    for (int32_t rank = 0; rank < size_; ++rank) {
      const Introduction& one = all_[static_cast<size_t>(rank)];
      hosts_.emplace_back(one.host);
      if (rank < rank_ && hosts_.back() == self.host) ++rank_on_host_;
    }
    CatchInterrupts();  // mpirun sends SIGTERM when a rank has died; the others can then print a
                        // last line
    watch_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
  }

  int32_t Size() const override { return size_; }
  int32_t Rank() const override { return rank_; }
  int32_t RankOnHost() const override { return rank_on_host_; }
  const std::vector<std::string>& Hosts() const override { return hosts_; }
  milliseconds Limit() const override { return limit_; }
  void SetLimit(milliseconds limit) override { limit_ = limit; }

  void RequireAlike() const override {
    for (int32_t rank = 1; rank < size_; ++rank) {
      Require(all_[static_cast<size_t>(rank)].program == all_[0].program, "rank ", rank, " of ",
              size_, " was started with other arguments than rank 0, or is another build");
    }
  }

  void AllGather(int32_t, const void* mine, int64_t bytes, void* all) override {
    Exchange(mine, bytes, all, limit_);
  }
  void AllGatherApart(const void* mine, int64_t bytes, void* all) override {
    Exchange(mine, bytes, all, kForever);
  }

  void Send(const void* head, int64_t head_bytes, const void* rest, int64_t rest_bytes) override {
    std::vector<std::byte> message(static_cast<size_t>(head_bytes + rest_bytes));
    std::copy_n(static_cast<const std::byte*>(head), head_bytes, message.data());
    std::copy_n(static_cast<const std::byte*>(rest), rest_bytes, message.data() + head_bytes);
    Transfers transfers = NoTransfers();
    for (int32_t to = 1; to < size_; ++to) {
      const std::lock_guard lock(mpi_);
      call_.isend(message.data(), Count(std::ssize(message)), call_.byte, to, kMessage, call_.world,
                  &transfers[static_cast<size_t>(to)]);
    }
    Complete(transfers, limit_);
  }
  std::vector<std::byte> Receive() override {
    std::vector<std::byte> message;
    Poll([&] {
      int there = 0;
      MPI_Status status{};
      call_.iprobe(0, kMessage, call_.world, &there, &status);
      if (there == 0) return false;
      int bytes = 0;
      call_.get_count(&status, call_.byte, &bytes);
      message.resize(static_cast<size_t>(bytes));
      return true;
    });
    Transfers transfers(1, call_.no_request);
    {
      const std::lock_guard lock(mpi_);
      call_.irecv(message.data(), Count(std::ssize(message)), call_.byte, 0, kMessage, call_.world,
                  &transfers[0]);
    }
    Complete(transfers, limit_);
    return message;
  }

  void Leave() override {
    if (rank_ == 0) Send(nullptr, 0, nullptr, 0);
    watch_.request_stop();
    watch_.join();
    call_.finalize();
    g_group = nullptr;
  }

  [[noreturn]] void Abandon(const std::string& line, int code) override {
    if (rank_ != 0 && Failure().empty()) {
      {
        const std::lock_guard lock(mpi_);
        MPI_Request request = call_.no_request;
        call_.isend(line.data(), Count(std::ssize(line)), call_.byte, 0, kFailed, call_.world,
                    &request);
      }
      std::this_thread::sleep_for(limit_.load());  // rank 0 ends all, unless it hangs
    }
    Speak(line);
    EndAll(code);
  }

 private:
  using Transfers = std::vector<MPI_Request>;  // one per rank

  Transfers NoTransfers() const { return Transfers(all_.size(), call_.no_request); }
  bool Done(MPI_Request& transfer) const {
    int done = 0;
    call_.test(&transfer, &done, MPI_STATUS_IGNORE);
    return done != 0;
  }

  static int Count(int64_t bytes) {
    Require(bytes <= INT32_MAX, "ranks exchange ", bytes, " bytes at once; MPI takes up to ",
            INT32_MAX);
    return static_cast<int>(bytes);
  }

  // Calls `done`, each time under the lock of MPI, until it returns true or `limit` has passed.
  // Returns whether it returned true. Throws what ends the group.
  template <typename Done>
  bool Poll(const Done& done, milliseconds limit = kForever) {
    constexpr milliseconds kBusy{1};
    const auto begin = Clock::now();
    while (true) {
      {
        const std::lock_guard lock(mpi_);
        if (done()) return true;
        if (!failure_.empty()) throw RuntimeFailure(failure_);
      }
      const auto waited = Clock::now() - begin;
      if (waited > limit) return false;
      if (waited < kBusy) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  // Waits for the transfers.
  void Complete(Transfers& transfers, milliseconds limit) {
    const auto is_done = [this](MPI_Request& transfer) { return Done(transfer); };
    const bool done = Poll(
        [&] { return std::ranges::count_if(transfers, is_done) == std::ssize(transfers); }, limit);
    if (done) return;
    const auto missing = std::ranges::find_if_not(transfers, is_done);
    Blame(static_cast<int32_t>(missing - transfers.begin()), HangText());
    throw RuntimeFailure(Failure());
  }

  void Exchange(const void* mine, int64_t bytes, void* all, milliseconds limit) {
    Transfers received = NoTransfers(), sent = NoTransfers();
    const auto at = [&](int32_t rank) { return static_cast<std::byte*>(all) + rank * bytes; };
    std::copy_n(static_cast<const std::byte*>(mine), bytes, at(rank_));
    for (int32_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const std::lock_guard lock(mpi_);
      const auto index = static_cast<size_t>(peer);
      call_.irecv(at(peer), Count(bytes), call_.byte, peer, kGather, call_.world, &received[index]);
      call_.isend(mine, Count(bytes), call_.byte, peer, kGather, call_.world, &sent[index]);
    }
    Complete(received, limit);
    Complete(sent, limit);
  }

  void SendToOthers(Tag tag, const void* data, int64_t bytes) {
    const std::lock_guard lock(mpi_);
    for (int32_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      MPI_Request request = call_.no_request;  // for a few bytes, which MPI copies
      call_.isend(data, Count(bytes), call_.byte, peer, tag, call_.world, &request);
      Done(request);
    }
  }

  // Calls take(source, bytes) for every such message that has arrived.
  template <typename Take>
  void TakeAll(Tag tag, const Take& take) {
    const std::lock_guard lock(mpi_);
    while (true) {
      int there = 0, count = 0;
      MPI_Status status{};
      call_.iprobe(MPI_ANY_SOURCE, tag, call_.world, &there, &status);
      if (there == 0) return;
      call_.get_count(&status, call_.byte, &count);
      std::string bytes(static_cast<size_t>(count), 0);
      call_.recv(bytes.data(), count, call_.byte, status.MPI_SOURCE, tag, call_.world,
                 MPI_STATUS_IGNORE);
      take(static_cast<size_t>(status.MPI_SOURCE), bytes);
    }
  }

  void Watch(const std::stop_token& stop) {
    auto last = Clock::now(), sent = last - limit_.load();
    std::ranges::fill(heard_, last);
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(kPoll);
      const auto now = Clock::now();
      const auto limit = limit_.load();
      // Whoever stopped this process may have stopped the others with it.
      if (now - last > limit / 2) std::ranges::fill(heard_, now);
      last = now;
      if (now - sent > limit / 10) {
        SendToOthers(kBeat, nullptr, 0);
        sent = now;
      }
      TakeAll(kBeat, [&](size_t from, const std::string&) { heard_[from] = now; });
      TakeAll(kFailed, [&](size_t, const std::string& line) { failure_ = line; });
      TakeAll(kEnd, [](size_t, const std::string& code) {
        ::_exit(*reinterpret_cast<const int*>(code.data()));
      });
      if (!Failure().empty()) HaveLastWords();
      for (int32_t peer = 0; peer < size_ && !stop.stop_requested(); ++peer) {
        if (peer == rank_) continue;
        if (IsGone(all_[static_cast<size_t>(peer)])) Blame(peer, " has died");
        if (now - heard_[static_cast<size_t>(peer)] > limit) Blame(peer, HangText());
      }
    }
  }

  bool IsGone(const Introduction& peer) const {
    return std::string_view(peer.processes) == all_[static_cast<size_t>(rank_)].processes &&
           ::kill(static_cast<pid_t>(peer.process), 0) != 0 && errno == ESRCH;
  }

  std::string HangText() const {
    return StrCat(" hangs: the others have waited for ",
                  static_cast<double>(limit_.load().count()) / 1e3, " s");
  }

  // Ends the group because a rank is missing. The first of the other ranks reports it.
  void Blame(int32_t missing, const std::string& how) {
    if (rank_ != (missing == 0 ? 1 : 0)) {
      std::this_thread::sleep_for(2 * kLastWords);
      ::_exit(EXIT_FAILURE);
    }
    const std::lock_guard lock(mpi_);
    if (failure_.empty()) failure_ = StrCat("rank ", missing, " of ", size_, how);
  }

  std::string Failure() {
    const std::lock_guard lock(mpi_);
    return failure_;
  }

  // The thread of the command receives the failure when it next waits for a rank, and has a moment
  // to clean up and to print it. If it does not, the failure is printed here.
  [[noreturn]] void HaveLastWords() {
    std::this_thread::sleep_for(kLastWords);
    Speak(Failure());
    EndAll(EXIT_FAILURE);
  }

  // mpirun terminates the processes that do not receive the message.
  [[noreturn]] void EndAll(int code) {
    SendToOthers(kEnd, &code, sizeof(code));
    const std::lock_guard lock(mpi_);
    call_.abort(call_.world, code);
    ::_exit(code);
  }

  // Prints at most one final line.
  void Speak(const std::string& line) {
    static std::once_flag spoken;
    std::call_once(spoken, [&] { print_(line); });
  }

  const Mpi call_;
  std::function<void(const std::string&)> print_;
  int rank_ = 0;
  int size_ = 1;
  int32_t rank_on_host_ = 0;
  std::vector<Introduction> all_;
  std::vector<std::string> hosts_;
  std::atomic<milliseconds> limit_{milliseconds(60'000)};
  std::mutex mpi_;       // for calls of MPI and `failure_`
  std::string failure_;  // why the group ends, if it does
  std::vector<Clock::time_point> heard_;
  std::jthread watch_;
};

#endif

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::Join(
    [[maybe_unused]] std::string_view program,
    [[maybe_unused]] std::function<void(const std::string&)> print) {
  const int64_t processes = ProcessesOfMpirun();
  if (processes == 1) return nullptr;
#if TOKLINE_HAS_MPI
  LeaveItToRankZero(processes > kMaxRanks);
  Require(processes <= kMaxRanks, "mpirun has started ", processes, " processes; at most ",
          kMaxRanks, " can share a model");
  auto group = std::make_unique<MpiGroup>(program, std::move(print));
  g_group = group.get();
  return group;
#else
  LeaveItToRankZero(true);
  throw RuntimeFailure(StrCat("mpirun has started ", processes,
                              " processes, but this build has no MPI, so that they cannot share a "
                              "model; install libopenmpi-dev and build again"));
#endif
}

ProcessGroup* ProcessGroup::Get() { return g_group; }

}  // namespace tokline
