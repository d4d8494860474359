// Collects the fingerprint of a run: CPU, operating system, build, command line and GPU.
#include "harness/measure/fingerprint.h"

#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <string_view>
#include <thread>

#include "harness/engine/process_group.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

std::string UtcNow() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string OsName() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  // without the node's name, which would identify the machine
  return StrCat(names.sysname, " ", names.release, " ", names.machine);
}

}  // namespace

std::vector<std::string> WithoutFolders(std::span<const char* const> arguments) {
  std::vector<std::string> words;
  for (const std::string_view argument : arguments) {
    // A path on the machine stands alone or after a flag's equals sign.
    const size_t equals = argument.find('=');
    const bool flag = argument.starts_with("--") && equals != std::string_view::npos;
    const size_t value = flag ? equals + 1 : 0;
    const std::string_view path = argument.substr(value);
    const size_t end = path.find_last_not_of('/');  // a folder's name may end in a slash
    size_t kept = 0;
    if (path.starts_with('/') && end != std::string_view::npos) {
      const size_t build = path.find("/build/");
      kept = (build != std::string_view::npos ? build : path.find_last_of('/', end)) + 1;
    }
    words.push_back(StrCat(argument.substr(0, value), path.substr(kept)));
  }
  return words;
}

Fingerprint TakeFingerprint(int argc, char** argv, [[maybe_unused]] bool cuda, int32_t ranks) {
  [[maybe_unused]] int32_t ranks_here = ranks;
  std::vector<std::string> hosts;
  if (const ProcessGroup* const processes = ProcessGroup::Get(); processes && ranks > 1) {
    for (const std::string& host : processes->Hosts()) hosts.push_back(HashText(host));
    ranks_here = static_cast<int32_t>(std::ranges::count(hosts, hosts.front()));
    if (ranks_here == ranks) hosts.clear();
  }
  Fingerprint print{
      .time_utc = UtcNow(),
      .command_line = WithoutFolders({argv, static_cast<size_t>(argc)}),
      .build = GetBuildInfo(),
      .cpu = CpuModel(),
      .cpu_threads = static_cast<int>(std::thread::hardware_concurrency()),
      .cpu_governor = FirstLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
      .os = OsName(),
      .gpu = std::nullopt,
      .gpu_before = {},
      .hosts = std::move(hosts)};
#if TOKLINE_HAS_CUDA
  if (cuda) {
    print.gpu = IdentifyGpu();
    print.gpu_before = ReadGpuState(print.gpu->pci_bus_id);
    if (ranks > 1) print.group = IdentifyGpus(ranks_here);
  }
#endif
  return print;
}

std::string HashText(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  }
  std::string digits(16, '0');
  for (size_t i = 0; i < digits.size(); ++i) {
    digits[i] = "0123456789abcdef"[(hash >> (60 - 4 * i)) & 0xf];
  }
  return digits;
}

}  // namespace tokline
