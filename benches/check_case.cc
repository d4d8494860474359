// Implements the checks of a case: its stated work against its tensors, and its inputs against the
// values that they were filled with.
#include "benches/check_case.h"

#include <algorithm>
#include <array>

#include "harness/platform/random_values.h"
#include "kernels/common/error.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

constexpr int64_t kPlaces = 4;    // places checked per tensor
constexpr int64_t kElements = 8;  // elements checked at each place

// Checks elements [first, first + count) of a random tensor in one buffer set. Returns what is
// wrong, or "".
std::string CheckElements(const TensorStore& store, int tensor, int copy, int64_t first,
                          int64_t count, uint64_t seed) {
  const TensorSpec& spec = store.tensors().specs()[static_cast<size_t>(tensor)];
  const int64_t element = SizeOf(spec.dtype);
  alignas(8) std::array<unsigned char, kElements * 8> actual{};
  alignas(8) std::array<unsigned char, kElements * 8> expected{};
  store.Read(tensor, copy, first * element, count * element, actual.data());
  FillRandom(spec.dtype, expected.data(), first, count, TensorSeed(seed, tensor, copy),
             spec.log2_scale);
  for (int64_t i = 0; i < count; ++i) {
    if (std::equal(actual.begin() + i * element, actual.begin() + (i + 1) * element,
                   expected.begin() + i * element)) {
      continue;
    }
    return StrCat("input tensor ", tensor, ", buffer set ", copy, ", element ", first + i, " is ",
                  LoadElement(spec.dtype, actual.data(), i), " instead of the random value ",
                  LoadElement(spec.dtype, expected.data(), i), " that it was filled with");
  }
  return "";
}

}  // namespace

std::string CheckWork(const Cost& cost, const TensorList& tensors) {
  const auto random = static_cast<double>(tensors.BytesOf(TensorKind::kRandom));
  const double inputs = random + static_cast<double>(tensors.BytesOf(TensorKind::kTable));
  const auto outputs = static_cast<double>(tensors.BytesOf(TensorKind::kOutput));
  if (cost.read_bytes > inputs) {
    return StrCat("a launch is said to read ", cost.read_bytes, " bytes, but its inputs have only ",
                  inputs);
  }
  if (cost.write_bytes > outputs) {
    return StrCat("a launch is said to write ", cost.write_bytes,
                  " bytes, but its outputs have only ", outputs);
  }
  if (random < cost.read_bytes / 2) {
    return StrCat("a launch reads ", cost.read_bytes, " bytes, but only ", random,
                  " of its inputs are random; at least half must be");
  }
  return "";
}

std::string CheckInputs(const TensorStore& store, uint64_t seed, std::mt19937_64& rng) {
  const std::vector<TensorSpec>& specs = store.tensors().specs();
  const auto below = [&rng](int64_t end) {
    return std::uniform_int_distribution<int64_t>(0, end - 1)(rng);
  };
  for (size_t t = 0; t < specs.size(); ++t) {
    const int64_t size = specs[t].rows * specs[t].cols;
    if (specs[t].kind != TensorKind::kRandom || size == 0) continue;
    const int64_t count = std::min(kElements, size);
    for (int64_t place = 0; place < kPlaces; ++place) {
      const auto copy = static_cast<int>(below(store.copies()));
      const std::string wrong =
          CheckElements(store, static_cast<int>(t), copy, below(size - count + 1), count, seed);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace tokline::bench
