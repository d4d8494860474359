// Lays out the tensors of a case in buffer sets, fills and poisons them, and reads them back.
#include "benches/tensors.h"

#include <cstdlib>

#include "harness/platform/random_values.h"
#include "kernels/common/error.h"

namespace tokline::bench {
namespace {

constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class HostMemory : public Memory {
 public:
  ~HostMemory() override {
    for (void* block : blocks_) std::free(block);
  }
  void* Allocate(int64_t bytes) override {
    void* block = std::aligned_alloc(kAlignment, static_cast<size_t>(RoundUp(bytes)));
    if (block == nullptr) throw RuntimeFailure(StrCat("no host memory for ", bytes, " bytes"));
    blocks_.push_back(block);
    return block;
  }
  void SetBytes(void* at, unsigned char byte, int64_t bytes) override {
    std::memset(at, byte, static_cast<size_t>(bytes));
  }
  void Fill(const TensorSpec& spec, void* at, uint64_t seed) override {
    FillRandom(spec.dtype, at, 0, spec.rows * spec.cols, seed, spec.log2_scale);
  }
  void CopyIn(void* to, const void* host, int64_t bytes) override {
    std::memcpy(to, host, static_cast<size_t>(bytes));
  }
  void CopyOut(void* host, const void* from, int64_t bytes) const override {
    std::memcpy(host, from, static_cast<size_t>(bytes));
  }
  void Synchronize() override {}

 private:
  std::vector<void*> blocks_;
};

}  // namespace

int64_t TensorSpec::Bytes() const {
  if (kind == TensorKind::kTable) return static_cast<int64_t>(table.size());
  if (kind == TensorKind::kWorkspace) return rows;
  return rows * cols * SizeOf(dtype);
}

int TensorList::Add(TensorSpec spec) {
  specs_.push_back(std::move(spec));
  return static_cast<int>(specs_.size()) - 1;
}

int TensorList::Random(DType dtype, int64_t rows, int64_t cols, int log2_scale) {
  return Add({.kind = TensorKind::kRandom,
              .dtype = dtype,
              .rows = rows,
              .cols = cols,
              .log2_scale = log2_scale});
}

int TensorList::Output(DType dtype, int64_t rows, int64_t cols, Tolerance tolerance,
                       int64_t checked_cols) {
  return Add({.kind = TensorKind::kOutput,
              .dtype = dtype,
              .rows = rows,
              .cols = cols,
              .tolerance = tolerance,
              .checked_cols = checked_cols < 0 ? cols : checked_cols});
}

int TensorList::OutputIds(int64_t count) { return Output(DType::kF32, count, 1, kExact); }

int TensorList::Workspace(int64_t bytes) {
  return Add({.kind = TensorKind::kWorkspace, .rows = bytes, .cols = 1});
}

int64_t TensorList::RotatingBytes() const {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs_) bytes += spec.Rotates() ? RoundUp(spec.Bytes()) : 0;
  return bytes;
}

int64_t TensorList::SharedBytes() const {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs_) bytes += spec.Rotates() ? 0 : RoundUp(spec.Bytes());
  return bytes;
}

int64_t TensorList::BytesOf(TensorKind kind) const {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs_) bytes += spec.kind == kind ? spec.Bytes() : 0;
  return bytes;
}

TensorSet SymbolicSet(const TensorList& tensors) {
  alignas(kAlignment) static unsigned char nowhere[kAlignment];
  std::vector<void*> addresses;
  for (const TensorSpec& spec : tensors.specs()) {
    addresses.push_back(spec.table.empty() ? nowhere
                                           : const_cast<unsigned char*>(spec.table.data()));
  }
  return TensorSet(std::move(addresses));
}

std::unique_ptr<Memory> MakeHostMemory() { return std::make_unique<HostMemory>(); }

uint64_t TensorSeed(uint64_t seed, int tensor, int copy) {
  return RandomBits(RandomBits(seed, static_cast<uint64_t>(tensor)), static_cast<uint64_t>(copy));
}

TensorStore::TensorStore(const TensorList& tensors, int copies, std::unique_ptr<Memory> memory)
    : tensors_(&tensors), copies_(copies), memory_(std::move(memory)) {
  for (const TensorSpec& spec : tensors.specs()) {
    const int64_t bytes = RoundUp(std::max<int64_t>(spec.Bytes(), 1));
    const int64_t total = spec.Rotates() ? bytes * copies : bytes;
    auto* base = static_cast<unsigned char*>(memory_->Allocate(total));
    bases_.push_back(base);
    if (spec.kind == TensorKind::kTable) memory_->CopyIn(base, spec.table.data(), spec.Bytes());
    if (spec.kind == TensorKind::kWorkspace) memory_->SetBytes(base, 0, total);
  }
}

void* TensorStore::Address(int tensor, int copy) const {
  const TensorSpec& spec = tensors_->specs()[static_cast<size_t>(tensor)];
  const int64_t stride = spec.Rotates() ? RoundUp(spec.Bytes()) : 0;
  return bases_[static_cast<size_t>(tensor)] + stride * copy;
}

TensorSet TensorStore::Set(int copy) const {
  std::vector<void*> addresses;
  for (size_t t = 0; t < bases_.size(); ++t) {
    addresses.push_back(Address(static_cast<int>(t), copy));
  }
  return TensorSet(std::move(addresses));
}

void TensorStore::FillRandom(uint64_t seed) {
  for (size_t t = 0; t < bases_.size(); ++t) {
    const TensorSpec& spec = tensors_->specs()[t];
    if (spec.kind != TensorKind::kRandom) continue;
    for (int copy = 0; copy < copies_; ++copy) {
      const int tensor = static_cast<int>(t);
      memory_->Fill(spec, Address(tensor, copy), TensorSeed(seed, tensor, copy));
    }
  }
  memory_->Synchronize();
}

void TensorStore::Poison() {
  for (size_t t = 0; t < bases_.size(); ++t) {
    const TensorSpec& spec = tensors_->specs()[t];
    if (spec.kind != TensorKind::kOutput) continue;
    memory_->SetBytes(bases_[t], kPoison, RoundUp(spec.Bytes()) * copies_);
  }
  memory_->Synchronize();
}

void TensorStore::Refill(uint64_t seed) {
  for (size_t t = 0; t < bases_.size(); ++t) {
    const TensorSpec& spec = tensors_->specs()[t];
    if (spec.kind == TensorKind::kWorkspace) memory_->SetBytes(bases_[t], 0, spec.Bytes());
  }
  FillRandom(seed);
  Poison();
}

void TensorStore::Read(int tensor, int copy, int64_t begin, int64_t bytes, void* host) const {
  memory_->CopyOut(host, static_cast<unsigned char*>(Address(tensor, copy)) + begin, bytes);
}

}  // namespace tokline::bench
