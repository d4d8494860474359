// Creates workloads: nano-vllm's benchmark, synthetic ones from a description, and those read from
// a file of JSON lines.
#include "harness/measure/workload.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <span>

#include "harness/measure/fingerprint.h"
#include "harness/platform/json_file.h"
#include "harness/platform/printable.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokens = 1 << 24;                 // per prompt or output
constexpr int64_t kMaxPromptTokens = int64_t{1} << 28;  // of all requests together
constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr double kMaxArrivalS = 7 * 24 * 3600;

// random.seed(n) and random.randint of Python 3: a Mersenne Twister seeded by a key of one word,
// from whose upper bits integers are drawn by rejection.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed) {
    state_[0] = 19650218;
    for (uint32_t i = 1; i < kSize; ++i) {
      state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
    }
    uint32_t at = 1;
    const auto next = [&](uint32_t factor) {
      state_[at] ^= (state_[at - 1] ^ (state_[at - 1] >> 30)) * factor;
    };
    const auto advance = [&] {
      if (++at < kSize) return;
      state_[0] = state_[kSize - 1];
      at = 1;
    };
    for (uint32_t i = 0; i < kSize; ++i) {
      next(1664525);
      state_[at] += seed;
      advance();
    }
    for (uint32_t i = 1; i < kSize; ++i) {
      next(1566083941);
      state_[at] -= at;
      advance();
    }
    state_[0] = 0x80000000;
  }

  int64_t Between(int64_t low, int64_t high) {
    const auto range = static_cast<uint32_t>(high - low + 1);
    const int bits = std::bit_width(range);
    uint32_t drawn = 0;
    do drawn = Next() >> (32 - bits);
    while (drawn >= range);
    return low + drawn;
  }

 private:
  static constexpr uint32_t kSize = 624;

  uint32_t Next() {
    if (at_ == kSize) {
      for (uint32_t i = 0; i < kSize; ++i) {
        const uint32_t joined = (state_[i] & 0x80000000) | (state_[(i + 1) % kSize] & 0x7fffffff);
        state_[i] =
            state_[(i + 397) % kSize] ^ (joined >> 1) ^ ((joined & 1) != 0 ? 0x9908b0df : 0);
      }
      at_ = 0;
    }
    uint32_t drawn = state_[at_++];
    drawn ^= drawn >> 11;
    drawn ^= (drawn << 7) & 0x9d2c5680;
    drawn ^= (drawn << 15) & 0xefc60000;
    return drawn ^ (drawn >> 18);
  }

  std::array<uint32_t, kSize> state_ = {};
  uint32_t at_ = kSize;
};

double ToNumber(std::string_view name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  Require(!text.empty() && *end == '\0' && std::isfinite(value) && value >= 0, "workload: ", name,
          " is \"", text, "\"; it must be a number that is at least 0");
  return value;
}

int64_t ToCount(std::string_view name, const std::string& text, int64_t least, int64_t most) {
  const double value = ToNumber(name, text);
  Require(value == std::floor(value) && value >= static_cast<double>(least) &&
              value <= static_cast<double>(most),
          "workload: ", name, " is ", text, "; it must be a whole number from ", least, " to ",
          most);
  return static_cast<int64_t>(value);
}

std::pair<int64_t, int64_t> ToRange(std::string_view name, const std::string& text) {
  const size_t dash = text.find('-');
  Require(!text.empty() && dash != 0 && dash != text.size() - 1, "workload: ", name, " is ",
          Quoted(text), "; it must be a number of tokens or two, such as 100-1024");
  const int64_t low = ToCount(name, text.substr(0, dash), 1, kMaxTokens);
  const int64_t high =
      dash == text.npos ? low : ToCount(name, text.substr(dash + 1), 1, kMaxTokens);
  Require(low <= high, "workload: ", name, " is ", text, "; its first number exceeds its second");
  return {low, high};
}

template <typename T>
T Value(const Json& object, const char* name, T otherwise, int64_t least, uint64_t most) {
  const auto found = object.find(name);
  if (found == object.end()) return otherwise;
  const bool whole = !std::is_floating_point_v<T>;
  Require(whole ? found->is_number_integer() : found->is_number(), name, " is ", found->dump(),
          "; it must be a ", whole ? "whole number" : "number");
  const double value = found->get<double>();
  Require(value >= static_cast<double>(least) && value <= static_cast<double>(most), name, " is ",
          found->dump(), "; it must be ", least, " to ", most);
  return found->get<T>();
}

std::vector<int32_t> Ids(const Json& object, const char* name) {
  std::vector<int32_t> ids;
  const auto found = object.find(name);
  if (found == object.end()) return ids;
  Require(found->is_array(), name, " is ", found->dump(), "; it must be a list");
  for (const Json& id : *found) {
    Require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX,
            name, " has ", id.dump(), "; ids are whole numbers from 0");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<std::string> StopStringsOf(const Json& object) {
  const auto found = object.find("stop");
  if (found == object.end()) return {};
  std::vector<std::string> stops;
  for (const Json& stop : found->is_array() ? *found : Json::array({*found})) {
    Require(stop.is_string() && !stop.get<std::string>().empty(), "stop is ", found->dump(),
            "; it takes a text or a list of them, and none is empty");
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

// Refuses late arrivals: a run would silently wait for the last request.
void RequireSoon(const std::string& what, double last_arrival_s) {
  Require(last_arrival_s <= kMaxArrivalS, "workload: the last request of ", what, " arrives after ",
          last_arrival_s, " s; at most ", kMaxArrivalS, " are allowed");
}

// Like std::getline, but for a file that may be endless.
bool ReadLine(std::istream& in, const std::filesystem::path& file, std::string& line) {
  line.clear();
  for (char byte = 0; in.get(byte);) {
    if (byte == '\n') return true;
    line.push_back(byte);
    Require(line.size() <= kMaxLineBytes, file.string(), " has a line of more than the ",
            kMaxLineBytes, " bytes that are allowed");
  }
  return !line.empty();
}

WorkloadRequest ReadRequest(const std::string& line, int64_t number) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  Require(object.is_object(), "it is not a JSON object");
  try {
    ParseJson(line, "the line");  // refuses keys that occur twice
  } catch (const RuntimeFailure& error) {
    throw InvalidArgument(error.what());
  }
  constexpr std::array<std::string_view, 11> kNames = {
      "prompt_ids", "prompt_tokens", "ids",  "new_tokens", "temperature", "top_k",
      "top_p",      "stop_ids",      "stop", "seed",       "arrival_s"};
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(kNames, name) != kNames.end()) continue;
    throw InvalidArgument(StrCat("unknown name ", Quoted(name), "; known are ", Joined(kNames)));
  }
  WorkloadRequest one;
  Request& request = one.request;
  request.prompt = Ids(object, "prompt_ids");
  const auto tokens = Value<int64_t>(object, "prompt_tokens", 0, 1, kMaxTokens);
  Require((tokens > 0) != !request.prompt.empty(),
          "it takes either prompt_ids, not empty, or prompt_tokens");
  request.rule.seed = Value<uint64_t>(object, "seed", static_cast<uint64_t>(number), 0, UINT64_MAX);
  const auto ids = Value<int32_t>(object, "ids", 10'000, 1, INT32_MAX);
  std::mt19937_64 rng(request.rule.seed);
  std::uniform_int_distribution<int32_t> id(0, ids - 1);
  for (int64_t i = 0; i < tokens; ++i) request.prompt.push_back(id(rng));
  request.max_new_tokens = Value<int64_t>(object, "new_tokens", 0, 1, kMaxTokens);
  Require(request.max_new_tokens > 0, "new_tokens is missing");
  request.rule.temperature = Value<float>(object, "temperature", 0, 0, kMaxTemperature);
  request.rule.top_k = Value<int32_t>(object, "top_k", 0, 0, INT32_MAX);
  request.rule.top_p = Value<float>(object, "top_p", 1, 0, 1);
  Validate(request.rule);
  request.stop_ids = Ids(object, "stop_ids");
  one.stop = StopStringsOf(object);
  one.arrival_s = Value<double>(object, "arrival_s", 0, 0, 1'000'000'000);
  return one;
}

}  // namespace

void RequireFewTokens(const std::string& what, int64_t prompt_tokens) {
  Require(prompt_tokens <= kMaxPromptTokens, "workload: ", what, " has up to ", prompt_tokens,
          " prompt tokens; at most ", kMaxPromptTokens, " are allowed");
}

int64_t Workload::PromptTokens() const {
  int64_t tokens = 0;
  for (const WorkloadRequest& one : requests) {
    tokens += static_cast<int64_t>(one.request.prompt.size());
  }
  return tokens;
}

int64_t Workload::NewTokens() const {
  int64_t tokens = 0;
  for (const WorkloadRequest& one : requests) tokens += one.request.max_new_tokens;
  return tokens;
}

int64_t Workload::MaxContext() const {
  int64_t most = 0;
  for (const WorkloadRequest& one : requests) {
    most = std::max(most, one.Context());
  }
  return most;
}

std::string Workload::Where(size_t i) const {
  const int64_t line = requests[i].line;
  return line > 0 ? StrCat(name, ":", line) : StrCat("request ", i + 1, " of ", name);
}

bool Workload::HasArrivals() const {
  return std::ranges::any_of(requests,
                             [](const WorkloadRequest& one) { return one.arrival_s > 0; });
}

void Workload::SetRate(double rate, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::exponential_distribution<double> gap(1);
  double arrival = 0;  // at a rate of 1
  for (WorkloadRequest& one : requests) {
    one.arrival_s = arrival / rate;
    arrival += gap(rng);
  }
  RequireSoon(StrCat(name, " at a rate of ", rate), requests.back().arrival_s);
}

bool Workload::HasStopStrings() const {
  return std::ranges::any_of(requests,
                             [](const WorkloadRequest& one) { return !one.stop.empty(); });
}

Workload NanoVllmWorkload() {
  constexpr int kRequests = 256;
  constexpr int64_t kMin = 100, kMax = 1024, kMaxId = 10'000;
  PythonRandom rng(0);
  Workload workload{.name = "nano-vllm", .requests = {}};
  for (int i = 0; i < kRequests; ++i) {
    Request request;
    request.rule = {.temperature = 0.6f, .seed = static_cast<uint64_t>(i)};
    request.prompt.resize(static_cast<size_t>(rng.Between(kMin, kMax)));
    for (int32_t& id : request.prompt) id = static_cast<int32_t>(rng.Between(0, kMaxId));
    workload.requests.push_back({.request = std::move(request)});
  }
  for (WorkloadRequest& one : workload.requests) {
    one.request.max_new_tokens = rng.Between(kMin, kMax);
  }
  return workload;
}

Workload SyntheticWorkload(std::string_view parts) {
  const std::string whole = parts.empty() ? "synthetic" : StrCat("synthetic:", parts);
  int64_t requests = 64, ids = 10'000, seed = 0, shared = 0;
  std::pair<int64_t, int64_t> prompt{100, 1024}, fresh{100, 1024};
  double temperature = 0.6, rate = 0;
  std::set<std::string> given;
  while (!parts.empty()) {
    const std::string part(parts.substr(0, parts.find(',')));
    parts.remove_prefix(std::min(parts.size(), part.size() + 1));
    const size_t equals = part.find('=');
    Require(equals != part.npos, "workload: \"", part, "\" lacks a value; write name=value");
    const std::string name = part.substr(0, equals), value = part.substr(equals + 1);
    Require(given.insert(name).second, "workload: ", Quoted(name), " is given twice");
    if (name == "requests") {
      requests = ToCount(name, value, 1, kMaxRequests);
    } else if (name == "prompt") {
      prompt = ToRange(name, value);
    } else if (name == "new") {
      fresh = ToRange(name, value);
    } else if (name == "shared") {
      shared = ToCount(name, value, 0, kMaxTokens);
    } else if (name == "ids") {
      ids = ToCount(name, value, 1, INT32_MAX);
    } else if (name == "seed") {
      seed = ToCount(name, value, 0, INT32_MAX);
    } else if (name == "temperature") {
      temperature = ToNumber(name, value);
      Require(temperature <= kMaxTemperature, "workload: temperature is ", value,
              "; it must be a number from 0 to ", kMaxTemperature);
    } else if (name == "rate") {
      rate = ToNumber(name, value);
    } else {
      throw InvalidArgument(StrCat("workload: unknown part \"", name,
                                   "\"; known are requests, prompt, new, shared, ids, seed, ",
                                   "temperature and rate"));
    }
  }
  RequireFewTokens(whole, requests * (shared + prompt.second));
  Workload workload{.name = whole, .requests = {}};
  std::mt19937_64 rng(static_cast<uint64_t>(seed));
  const auto between = [&rng](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  const auto draw = [&](std::span<int32_t> into) {
    for (int32_t& id : into) id = static_cast<int32_t>(between(0, ids - 1));
  };
  std::vector<int32_t> begin(static_cast<size_t>(shared));
  draw(begin);
  double arrival_s = 0;
  for (int64_t i = 0; i < requests; ++i) {
    Request request;
    request.rule = {.temperature = static_cast<float>(temperature), .seed = rng()};
    request.prompt = begin;
    request.prompt.resize(static_cast<size_t>(shared + between(prompt.first, prompt.second)));
    draw(std::span(request.prompt).subspan(begin.size()));
    if (shared > 0) request.cuts = {shared};
    request.max_new_tokens = between(fresh.first, fresh.second);
    workload.requests.push_back({.request = std::move(request), .arrival_s = arrival_s});
    if (rate > 0) arrival_s += std::exponential_distribution<double>(rate)(rng);
  }
  RequireSoon(whole, workload.requests.back().arrival_s);
  return workload;
}

Workload ReadWorkload(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) {
    throw RuntimeFailure(StrCat("cannot read the workload ", file.string(), ": ",
                                std::strerror(errno),
                                "; a workload is nano-vllm, synthetic:PARTS or a file"));
  }
  Workload workload{.name = file.filename().string(), .requests = {}};
  std::string line;
  int64_t prompt_tokens = 0;
  for (int64_t number = 1; ReadLine(in, file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    Require(std::ssize(workload.requests) < kMaxRequests, file.string(), " has more than the ",
            kMaxRequests, " requests that are allowed");
    try {
      workload.requests.push_back(ReadRequest(line, number));
      workload.requests.back().line = number;
      prompt_tokens += std::ssize(workload.requests.back().request.prompt);
      RequireFewTokens("it", prompt_tokens);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(StrCat(file.string(), ":", number, ": ", error.what()));
    }
  }
  if (in.bad()) {
    throw RuntimeFailure(
        StrCat("cannot read the workload ", file.string(), ": ", std::strerror(errno)));
  }
  Require(!workload.requests.empty(), file.string(), " has no requests");
  std::ranges::stable_sort(workload.requests, {}, &WorkloadRequest::arrival_s);
  RequireSoon(file.string(), workload.requests.back().arrival_s);
  return workload;
}

Workload MakeWorkload(const std::string& text) {
  constexpr std::string_view kSynthetic = "synthetic";
  if (text == "nano-vllm") return NanoVllmWorkload();
  if (text == kSynthetic) return SyntheticWorkload("");
  if (text.starts_with("synthetic:")) {
    return SyntheticWorkload(std::string_view(text).substr(kSynthetic.size() + 1));
  }
  return ReadWorkload(text);
}

std::string HashOf(const Workload& workload) {
  std::string bytes;
  const auto add = [&bytes](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto add_all = [&](const auto& values) {
    add(values.size());
    for (const auto& value : values) add(value);
  };
  for (const auto& [request, arrival_s, stop, line] : workload.requests) {
    add_all(request.prompt);
    add_all(request.stop_ids);
    add(request.max_new_tokens);
    add(request.rule.temperature);
    add(request.rule.top_k);
    add(request.rule.top_p);
    add(request.rule.seed);
    add(arrival_s);
    for (const std::string& text : stop) add_all(text);
  }
  return HashText(bytes);
}

}  // namespace tokline
