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
// `row_rms` times the root mean square of its row, because the error of a sum of random terms is
// proportional to it. If both are 0, the bits must be equal. A bound has room for the rare element
// in which every rounding goes the wrong way; the root mean square of a row's errors, each in units
// of its bound, may be at most `rms_share`. tolerance_test says what that detects.
struct Tolerance {
  double ulps = 0;
  double row_rms = 0;
  double rms_share = 1.0 / 6;
};
inline constexpr Tolerance kExact{};
// For a rounded product n w of a rounded value n. fp32 may round n to its other neighbour, which
// moves the product by ulp(n) |w|. In units u of the expected product that is less than 2. Rounding
// both products adds half of a unit each, or a whole one if the other product lies above a power of
// two: less than 3.5 u in all, and as both are multiples of u, at most 3. Six of all pairs of 8-bit
// significands reach 3 (tolerance_test). Very few n are rounded to the other neighbour.
inline constexpr Tolerance kElementwise{3};
// For sums over operands of this type. Attention has the largest errors: one unit if the sums are
// rounded to different neighbours, and the roundings of the weights p. Each p is off by up to eps p
// / 2, on average by sqrt(1 / 12) of eps p. The sum of p v is thus off by 0.29 eps times its own
// root mean square if the v are random, and 2 eps are seven standard deviations. With the rounding
// on either side, the root mean square of a row's errors is a ninth of the bounds, and a sixth in
// the worst of 4,500 simulated rows.
constexpr Tolerance SumTolerance(DType operands) { return {1, 2 * Epsilon(operands), 0.25}; }
// For such sums with further roundings after them: norm, projection, head norm and rotation, or
// gate, SiLU and product, or a residual. If all values were rounded to the same neighbours, the
// outputs would be equal. One value that is rounded to the other moves those that are computed from
// it by one to three of their units as above; the fourth is the rounding of the output. The error
// of a rotation a cos - b sin is not small in units of an output in which the two terms cancel: if
// both values were rounded to their other neighbours, it is up to eps (|a cos| + |b sin|), which is
// at most eps times the length of (a, b) (tolerance_test). Three eps thus allow for any pair of up
// to three root mean squares of its row. Of normal values one pair in 90 is longer (e^-4.5); it
// exceeds its bound only where its values also lie within the error of the statistics of a
// rounding's midpoint, for one of them 2^-21 of units of 2^-8 or one in 8,000, and the output is so
// small that its own units do not make up for it. So this is no worst case. tolerance_test has
// 400,000 outputs of norm, projection, head norm and rotation with statistics that are off, and all
// are within.
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
  // Does both and restores the workspaces to their initial state, so that nothing remains of
  // earlier launches.
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
