// What one bench program adds to the shared framework: its cases. The framework does everything
// else: flags, shapes, timing, cache state, verification and records.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benches/shapes.h"
#include "benches/tensors.h"
#include "kernels/common/cost.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/launch_options.h"

namespace tokline::bench {

// The rows and columns of the whole problem that make up a sampled problem's tensor; empty: all.
struct TensorMap {
  std::vector<int64_t> rows{};
  std::vector<int64_t> cols{};
};

class BenchCase;

// A smaller problem whose outputs equal some of the whole problem's, bit for bit or within
// tolerance. It has the same tensors in the same order; the whole problem may have more at its end.
struct SampledCase {
  explicit SampledCase(std::unique_ptr<BenchCase> sample);

  std::unique_ptr<BenchCase> problem;
  std::vector<TensorMap> maps;  // by tensor of `problem`
};

// One kernel on one shape.
class BenchCase {
 public:
  virtual ~BenchCase() = default;
  virtual Cost GetCost() const = 0;
  virtual void RunReference(const TensorSet& host) const = 0;
  virtual void LaunchCuda(const TensorSet& device, const LaunchOptions& options) const = 0;
  // A part of the problem that the reference computes in well under a second.
  virtual SampledCase Sample(uint64_t seed) const = 0;

  const TensorList& tensors() const { return tensors_; }

 protected:
  TensorList tensors_;
};

inline SampledCase::SampledCase(std::unique_ptr<BenchCase> sample)
    : problem(std::move(sample)), maps(problem->tensors().specs().size()) {}

// A case of the kernel that `Params` belongs to. It needs only Bind, Sample and, in its
// constructor, the tensors.
template <typename Params>
class KernelCase : public BenchCase {
 public:
  using Reference = void (*)(const Params&);
  explicit KernelCase(Reference reference) : reference_(reference) {}

  Cost GetCost() const final { return CostOf(Bind(SymbolicSet(tensors_))); }
  void RunReference(const TensorSet& host) const final { reference_(Bind(host)); }
  void LaunchCuda([[maybe_unused]] const TensorSet& device,
                  [[maybe_unused]] const LaunchOptions& options) const final {
#if TOKLINE_HAS_CUDA
    Launch(Bind(device), options);
#endif
  }

 protected:
  // Params over one buffer set.
  virtual Params Bind(const TensorSet& set) const = 0;

 private:
  Reference reference_;
};

// What a case may depend on besides its shape.
struct CaseContext {
  DType dtype = DType::kBf16;
  std::optional<DeviceFacts> device{};  // none when the reference runs
};

// One row to be measured; on a device two, with plain and with dependent launches.
struct CaseSpec {
  nlohmann::ordered_json shape;         // name and dimensions
  std::string variant;                  // tells cases of one shape apart in benchmark names, or ""
  std::string implementation = "cuda";  // of the rows on a device
  bool chosen = true;                   // whether the kernel takes this variant by itself
  DType dtype = DType::kBf16;
  std::function<std::unique_ptr<BenchCase>(const CaseContext&)> make;
};

struct BenchProgram {
  std::string kernel;
  std::vector<std::string> families;  // of the shapes file
  // Appends the cases of one shape. Throws InvalidArgument for a shape that cannot be run.
  std::function<void(ShapeReader& shape, const CaseContext& context, std::vector<CaseSpec>& cases)>
      add_cases;
};

// The main function of every bench program. Returns its exit code: 0 if all rows were measured and
// verified, 1 for a failure, 2 for wrong usage, 130 if interrupted.
int BenchMain(int argc, char** argv, const BenchProgram& program);

// Returns `count` of the indices below `n` in ascending order, including the first and the last, or
// only the last if `count` is 1; all of them if there are at most `count`.
std::vector<int64_t> PickIndices(int64_t n, int64_t count, uint64_t seed);

// log2 of about 1 / sqrt(in_features): projections with such weights keep the scale of their input.
int WeightLog2Scale(int64_t in_features);

// Rows of groups: row `group * size + i` for each of `groups` and all i.
std::vector<int64_t> ExpandGroups(const std::vector<int64_t>& groups, int64_t size);

}  // namespace tokline::bench
