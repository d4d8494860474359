// Matmul: cuBLASLt with an algorithm chosen once per problem shape.
//
// cuBLASLt is column-major. Row-major out [M, N] = x [M, K] W [N, K]^T is column-major out^T [N, M]
// = W^T x^T: W [N, K] row-major is [K, N] column-major and thus has to be transposed, and x [M, K]
// row-major is already [K, M] column-major. The bias runs along the rows of out^T.
//
// Its kernels are launched as ordinary ones: they start when their predecessor has ended, and the
// kernel that follows them may be a dependent launch. LaunchOptions::dependent therefore has no
// effect here.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/common/error.h"
#include "kernels/device/rehearsal.h"
#include "kernels/linear/linear.h"

namespace tokline {
namespace {

void CheckCublas(cublasStatus_t status, const char* expression, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(
        StrCat(__FILE__, ":", line, ": ", expression, ": ", cublasLtGetStatusString(status)));
  }
}
#define TOKLINE_CUBLAS(expression) CheckCublas((expression), #expression, __LINE__)

// Owns a cuBLASLt object that a pair of C functions creates and destroys.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle* Address() { return &handle_; }
  Handle Get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t CudaType(DType dtype) { return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_16F; }

// The largest power of two up to 256 that divides the address: the alignment that cuBLASLt may
// assume.
uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? 256u : 1u << std::min(std::countr_zero(address), 8);
}

Layout MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading) {
  Layout layout;
  TOKLINE_CUBLAS(cublasLtMatrixLayoutCreate(layout.Address(), type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), leading));
  return layout;
}

template <typename Value>
void SetAttribute(const Operation& operation, cublasLtMatmulDescAttributes_t name, Value value) {
  TOKLINE_CUBLAS(cublasLtMatmulDescSetAttribute(operation.Get(), name, &value, sizeof(value)));
}

template <typename Value>
void SetAttribute(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name,
                  Value value) {
  TOKLINE_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference.Get(), name, &value, sizeof(value)));
}

// A problem with its defaults filled in.
struct Resolved {
  const void* addend;
  int64_t x_stride, addend_stride, out_stride;
  cudaDataType_t in_type, out_type;
};

Resolved Resolve(const Matmul::Problem& problem) {
  Resolved resolved;
  // With a single row the stride is unused, so its value need not be a valid leading dimension.
  const bool one_row = problem.num_tokens == 1;
  resolved.x_stride = one_row ? problem.in_features : problem.x_stride;
  resolved.out_stride = one_row ? problem.out_features : problem.out_stride;
  resolved.addend = problem.accumulate && problem.addend ? problem.addend : problem.out;
  resolved.addend_stride =
      resolved.addend == problem.out || one_row ? resolved.out_stride : problem.addend_stride;
  resolved.in_type = CudaType(problem.dtype);
  resolved.out_type = problem.out_f32 ? CUDA_R_32F : resolved.in_type;
  return resolved;
}

void Check(const Matmul::Problem& problem) {
  Require(problem.dtype != DType::kF32, "dtype is f32; Matmul takes bf16 and f16");
  Require(problem.num_tokens >= 0 && problem.in_features >= 1 && problem.out_features >= 1,
          "num_tokens is ", problem.num_tokens, ", in_features ", problem.in_features,
          ", out_features ", problem.out_features, "; they must be >= 0, >= 1 and >= 1");
  if (problem.num_tokens == 0) return;
  Require(problem.x && problem.weight && problem.out && problem.workspace,
          "x, weight, out and workspace must not be null");
  Require(AlignmentOf(problem.workspace) == 256, "workspace is at ", problem.workspace,
          "; it must be 256 B aligned");
}

struct Plan {
  Operation operation;
  Layout weight, x, addend, out;
  cublasLtMatmulAlgo_t algorithm{};
  bool has_run = false;
};

// Everything that the choice of an algorithm depends on.
using Key = std::tuple<DType, bool, bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t,
                       int64_t, uint32_t, uint32_t, uint32_t, uint32_t>;

Key KeyOf(const Matmul::Problem& problem) {
  const Resolved resolved = Resolve(problem);
  return {problem.dtype,
          problem.out_f32,
          problem.accumulate,
          problem.bias != nullptr,
          problem.num_tokens,
          problem.in_features,
          problem.out_features,
          resolved.x_stride,
          resolved.addend_stride,
          resolved.out_stride,
          AlignmentOf(problem.weight),
          AlignmentOf(problem.x),
          AlignmentOf(resolved.addend),
          AlignmentOf(problem.out)};
}

Plan MakePlan(const Library& library, const Matmul::Problem& problem) {
  const Resolved resolved = Resolve(problem);
  const int64_t m = problem.num_tokens, n = problem.out_features, k = problem.in_features;
  Plan plan;
  TOKLINE_CUBLAS(
      cublasLtMatmulDescCreate(plan.operation.Address(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
  SetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (problem.bias) {
    SetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    SetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, resolved.in_type);
    SetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.bias);
  }
  plan.weight = MakeLayout(resolved.in_type, k, n, k);
  plan.x = MakeLayout(resolved.in_type, k, m, resolved.x_stride);
  plan.addend = MakeLayout(resolved.out_type, n, m, resolved.addend_stride);
  plan.out = MakeLayout(resolved.out_type, n, m, resolved.out_stride);

  Preference preference;
  TOKLINE_CUBLAS(cublasLtMatmulPreferenceCreate(preference.Address()));
  SetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
               static_cast<uint64_t>(Matmul::kWorkspaceBytes));
  // Split-K sums stay in fp32, so that the result is rounded once.
  SetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                     CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(problem.weight));
  SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(problem.x));
  SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
               AlignmentOf(resolved.addend));
  SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(problem.out));

  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library.Get(), plan.operation.Get(), plan.weight.Get(), plan.x.Get(), plan.addend.Get(),
      plan.out.Get(), preference.Get(), 1, &result, &count);
  Require(status == CUBLAS_STATUS_SUCCESS && count == 1 && result.state == CUBLAS_STATUS_SUCCESS,
          "cuBLASLt has no algorithm for num_tokens ", m, ", in_features ", k, ", out_features ", n,
          ", dtype ", Name(problem.dtype), problem.out_f32 ? ", fp32 out" : "",
          problem.bias ? ", bias" : "", problem.accumulate ? ", accumulating" : "", ": ",
          cublasLtGetStatusString(status));
  plan.algorithm = result.algo;
  return plan;
}

}  // namespace

struct Matmul::Impl {
  Library library;
  std::map<Key, Plan> plans;

  Plan& PlanOf(const Problem& problem) {
    const Key key = KeyOf(problem);
    auto found = plans.find(key);
    if (found == plans.end()) found = plans.emplace(key, MakePlan(library, problem)).first;
    return found->second;
  }
};

Matmul::Matmul() : impl_(std::make_unique<Impl>()) {
  TOKLINE_CUBLAS(cublasLtCreate(impl_->library.Address()));
}

Matmul::~Matmul() = default;

void Matmul::Prepare(const Problem& problem) {
  Check(problem);
  if (problem.num_tokens > 0) impl_->PlanOf(problem);
}

void Matmul::Run(const Problem& problem, const LaunchOptions& options) {
  Check(problem);
  if (problem.num_tokens == 0) return;
  Plan& plan = impl_->PlanOf(problem);
  if (Rehearsal::IsOn() && plan.has_run) return;
  if (problem.bias) {
    SetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.bias);
  }
  const float alpha = 1.0f, beta = problem.accumulate ? 1.0f : 0.0f;
  TOKLINE_CUBLAS(cublasLtMatmul(impl_->library.Get(), plan.operation.Get(), &alpha, problem.weight,
                                plan.weight.Get(), problem.x, plan.x.Get(), &beta,
                                Resolve(problem).addend, plan.addend.Get(), problem.out,
                                plan.out.Get(), &plan.algorithm, problem.workspace,
                                static_cast<size_t>(kWorkspaceBytes), options.stream));
  plan.has_run = true;
}

}  // namespace tokline
