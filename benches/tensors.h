// The tensors of a bench case, declared once and held in host or device memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/common/dtype.h"

namespace tokline::bench {

// How far an output element may be from the reference: `ulps` units in its own last place plus
// `row_rms` times the root mean square of its row, to which the error of a sum of random terms is
// proportional. If both are 0, the bits must be equal.
struct Tolerance {
  double ulps = 0;
  double row_rms = 0;
};
inline constexpr Tolerance kExact{};
// For a product with a rounded value. If the value was rounded the other way, the product is off by
// up to two of its units, and rounding each product adds half a unit, or a whole unit above a power
// of two. An omitted rounding causes no larger error; the kernels' own tests detect it.
inline constexpr Tolerance kElementwise{3.5, 0};
// Sums over operands of this type.
constexpr Tolerance SumTolerance(DType operands) { return {1, 2 * Epsilon(operands)}; }
// For such sums that several fused steps round afterwards.
constexpr Tolerance FusedSumTolerance(DType operands) { return {4, 3 * Epsilon(operands)}; }

enum class TensorKind : uint8_t {
  kRandom,     // input; refilled with fresh random values; one copy per buffer set
  kTable,      // input; given contents; shared by all buffer sets
  kOutput,     // poisoned with NaN bytes, then compared; one copy per buffer set
  kWorkspace,  // zeroed once; shared by all buffer sets
};

struct TensorSpec {
  TensorKind kind = TensorKind::kRandom;
  DType dtype = DType::kF32;  // of integers kF32, compared exactly
  int64_t rows = 0;
  int64_t cols = 0;
  int log2_scale = 0;                  // kRandom
  std::vector<unsigned char> table{};  // kTable
  Tolerance tolerance{};               // kOutput
  int64_t checked_cols = 0;            // kOutput: columns from here on are not specified

  int64_t Bytes() const;
  bool Rotates() const { return kind == TensorKind::kRandom || kind == TensorKind::kOutput; }
};

// The tensors of a case; each Add returns the tensor's index.
class TensorList {
 public:
  int Random(DType dtype, int64_t rows, int64_t cols, int log2_scale = 0);
  int Output(DType dtype, int64_t rows, int64_t cols, Tolerance tolerance,
             int64_t checked_cols = -1);
  int OutputIds(int64_t count);  // int32
  int Workspace(int64_t bytes);
  template <typename T>
  int Table(const std::vector<T>& contents) {
    TensorSpec spec{.kind = TensorKind::kTable};
    spec.table.resize(contents.size() * sizeof(T));
    if (!contents.empty()) std::memcpy(spec.table.data(), contents.data(), spec.table.size());
    return Add(std::move(spec));
  }

  const std::vector<TensorSpec>& specs() const { return specs_; }
  // The bytes of one buffer set.
  int64_t RotatingBytes() const;
  int64_t SharedBytes() const;
  // The bytes of the tensors of one kind in one buffer set.
  int64_t BytesOf(TensorKind kind) const;

 private:
  int Add(TensorSpec spec);
  std::vector<TensorSpec> specs_;
};

// Addresses of one buffer set, by tensor index.
class TensorSet {
 public:
  explicit TensorSet(std::vector<void*> addresses) : addresses_(std::move(addresses)) {}
  template <typename T = void>
  T* At(int tensor) const {
    return tensor < 0 ? nullptr : static_cast<T*>(addresses_[static_cast<size_t>(tensor)]);
  }

 private:
  std::vector<void*> addresses_;
};

// Tables have host addresses; all other tensors have an aligned address that must not be read. This
// suffices for CostOf and Validate.
TensorSet SymbolicSet(const TensorList& tensors);

// Where tensors live.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* Allocate(int64_t bytes) = 0;  // 256 B aligned, freed with the Memory
  virtual void SetBytes(void* at, unsigned char byte, int64_t bytes) = 0;
  virtual void Fill(const TensorSpec& spec, void* at, uint64_t seed) = 0;  // random elements
  virtual void CopyIn(void* to, const void* host, int64_t bytes) = 0;
  virtual void CopyOut(void* host, const void* from, int64_t bytes) const = 0;
  virtual void Synchronize() = 0;
};
std::unique_ptr<Memory> MakeHostMemory();

// CUDA builds only. The process keeps what a device memory frees for the next one, up to half of
// the device's memory.
std::unique_ptr<Memory> MakeDeviceMemory();
// Bytes that are kept but not in use.
int64_t KeptDeviceBytes();

// Seed of one tensor in one buffer set.
uint64_t TensorSeed(uint64_t seed, int tensor, int copy);

// `copies` buffer sets of the tensors of a list, which must outlive it.
class TensorStore {
 public:
  static constexpr unsigned char kPoison = 0xff;  // 0xff.. is NaN in every floating-point type

  TensorStore(const TensorList& tensors, int copies, std::unique_ptr<Memory> memory);

  int copies() const { return copies_; }
  const TensorList& tensors() const { return *tensors_; }
  TensorSet Set(int copy) const;
  void FillRandom(uint64_t seed);  // every random tensor, in every set
  void Poison();                   // every output, in every set, with kPoison
  // Does both and restores the workspaces to their initial state, so that nothing of earlier
  // launches remains.
  void Refill(uint64_t seed);
  // Bytes [begin, begin + bytes) of a tensor.
  void Read(int tensor, int copy, int64_t begin, int64_t bytes, void* host) const;

 private:
  void* Address(int tensor, int copy) const;

  const TensorList* tensors_;
  int copies_;
  std::unique_ptr<Memory> memory_;
  std::vector<unsigned char*> bases_;
};

}  // namespace tokline::bench
