// libFuzzer target: a config.json and, after the first NUL byte, a generation_config.json.
// Accepted numbers are within the bounds on which the rest of the project relies.
// Sources: harness/models model_spec family
// Sources: harness/platform json_file json_node mapped_file printable
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "harness/fuzz/refusal.h"
#include "harness/models/model_spec.h"

namespace {

// A model's folder, in memory if /dev/shm exists. It is removed at exit.
class ModelFolder {
 public:
  ModelFolder() {
    const char* parent = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string path = std::string(parent) + "/tokline-fuzz-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  ~ModelFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  void Write(const char* name, std::string_view text) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file.flush()) std::abort();
  }
  void Remove(const char* name) const {
    std::error_code error;
    std::filesystem::remove(path_ / name, error);
  }
  const std::filesystem::path& Path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokline;
  static const ModelFolder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  folder.Write("config.json", input.substr(0, split));
  if (split == input.npos) {
    folder.Remove("generation_config.json");
  } else {
    folder.Write("generation_config.json", input.substr(split + 1));
  }
  fuzz::AcceptOrRefuse([&] {
    const ModelSpec spec = LoadModelSpec(folder.Path());
    for (const int64_t extent : {spec.hidden_size, spec.intermediate_size, spec.max_positions}) {
      fuzz::Check(extent >= 1 && extent <= int64_t{1} << 24);
    }
    fuzz::Check(spec.num_layers >= 1 && spec.num_layers <= 1024);
    fuzz::Check(spec.vocab_size >= 1 && spec.vocab_size <= INT32_MAX);
    fuzz::Check(spec.num_kv_heads >= 1 && spec.num_q_heads % spec.num_kv_heads == 0);
    fuzz::Check(spec.num_q_heads / spec.num_kv_heads <= 16);
    fuzz::Check(spec.head_dim == 64 || spec.head_dim == 128);
    fuzz::Check(spec.norm_eps >= 0 && spec.norm_eps <= 1);
    const bool rope = spec.position == PositionKind::kRope;
    fuzz::Check(std::isfinite(spec.rope_theta) && spec.rope_theta >= (rope ? 1 : 0));
    for (const int32_t id : spec.eos_token_ids) fuzz::Check(id >= 0 && id < spec.vocab_size);
  });
  return 0;
}
