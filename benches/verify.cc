// Recomputes a sample of the outputs with the reference and compares it with the outputs of
// launches.
#include "benches/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "harness/platform/random_values.h"
#include "kernels/common/error.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

int64_t Mapped(const std::vector<int64_t>& map, int64_t i) {
  return map.empty() ? i : map[static_cast<size_t>(i)];
}

// Generates rows [begin, end) of the sampled part of a random tensor from the seed of the whole.
void FillSampledRows(const TensorSpec& sampled, const TensorSpec& whole, const TensorMap& map,
                     uint64_t seed, int64_t begin, int64_t end, unsigned char* out) {
  const int64_t row_bytes = sampled.cols * SizeOf(sampled.dtype);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = Mapped(map.rows, row) * whole.cols;
    unsigned char* to = out + row * row_bytes;
    if (map.cols.empty()) {
      FillRandom(whole.dtype, to, first, sampled.cols, seed, whole.log2_scale);
      continue;
    }
    for (int64_t col = 0; col < sampled.cols; ++col) {
      FillRandom(whole.dtype, to + col * SizeOf(whole.dtype), first + Mapped(map.cols, col), 1,
                 seed, whole.log2_scale);
    }
  }
}

// Generates all rows. Large tensors, such as the weights of all layers, use all threads.
void FillSampled(const TensorSpec& sampled, const TensorSpec& whole, const TensorMap& map,
                 uint64_t seed, unsigned char* out) {
  constexpr int64_t kBytesPerThread = 16 << 20;
  const int64_t most = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t threads = std::clamp<int64_t>(sampled.Bytes() / kBytesPerThread, 1, most);
  const int64_t rows = (sampled.rows + threads - 1) / threads;
  std::vector<std::jthread> running;
  for (int64_t begin = rows; begin < sampled.rows; begin += rows) {
    running.emplace_back([&, begin] {
      FillSampledRows(sampled, whole, map, seed, begin, std::min(begin + rows, sampled.rows), out);
    });
  }
  FillSampledRows(sampled, whole, map, seed, 0, std::min(rows, sampled.rows), out);
}

// Reads the sampled part of an output of the whole problem. Rows that are close together are read
// at once with everything between them, because a read from the device costs as much as many rows.
std::vector<unsigned char> ReadSampled(const TensorStore& store, int tensor, int copy,
                                       const TensorSpec& sampled, const TensorMap& map) {
  constexpr int64_t kMaxGap = 64;
  const TensorSpec& whole = store.tensors().specs()[static_cast<size_t>(tensor)];
  const int64_t element = SizeOf(whole.dtype);
  const int64_t whole_row = whole.cols * element;
  std::vector<unsigned char> rows(static_cast<size_t>(sampled.rows * whole_row));
  std::vector<unsigned char> span;
  for (int64_t begin = 0; begin < sampled.rows;) {
    const int64_t first = Mapped(map.rows, begin);
    int64_t end = begin + 1;
    for (; end < sampled.rows; ++end) {
      const int64_t step = Mapped(map.rows, end) - Mapped(map.rows, end - 1);
      if (step < 1 || step > kMaxGap) break;
    }
    const int64_t span_rows = Mapped(map.rows, end - 1) - first + 1;
    span.resize(static_cast<size_t>(span_rows * whole_row));
    store.Read(tensor, copy, first * whole_row, span_rows * whole_row, span.data());
    for (; begin < end; ++begin) {
      std::memcpy(rows.data() + begin * whole_row,
                  span.data() + (Mapped(map.rows, begin) - first) * whole_row,
                  static_cast<size_t>(whole_row));
    }
  }
  if (map.cols.empty()) return rows;
  std::vector<unsigned char> picked;
  picked.reserve(static_cast<size_t>(sampled.Bytes()));
  for (int64_t row = 0; row < sampled.rows; ++row) {
    for (int64_t col = 0; col < sampled.cols; ++col) {
      const unsigned char* from = rows.data() + row * whole_row + Mapped(map.cols, col) * element;
      picked.insert(picked.end(), from, from + element);
    }
  }
  return picked;
}

double Ulp(DType dtype, double value) {
  const double smallest_normal = dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
  return Epsilon(dtype) *
         std::exp2(std::floor(std::log2(std::max(std::abs(value), smallest_normal))));
}

double RowRms(DType dtype, const unsigned char* row, int64_t cols) {
  double squares = 0;
  for (int64_t col = 0; col < cols; ++col) {
    const double value = LoadElement(dtype, row, col);
    if (std::isfinite(value)) squares += value * value;
  }
  return std::sqrt(squares / static_cast<double>(std::max<int64_t>(cols, 1)));
}

bool IsPoison(const unsigned char* element, int64_t bytes) {
  return std::all_of(element, element + bytes,
                     [](unsigned char byte) { return byte == TensorStore::kPoison; });
}

void CompareRow(const TensorSpec& spec, int tensor, int64_t row, const unsigned char* actual,
                const unsigned char* expected, Comparison& result) {
  const int64_t element = SizeOf(spec.dtype);
  const int64_t checked_bytes = spec.checked_cols * element;
  if (std::memcmp(actual, expected, static_cast<size_t>(checked_bytes)) == 0) return;
  const double rms = RowRms(spec.dtype, expected, spec.checked_cols);
  double squares = 0;  // of errors in units of their bounds
  for (int64_t col = 0; col < spec.checked_cols; ++col) {
    if (std::memcmp(actual + col * element, expected + col * element,
                    static_cast<size_t>(element)) == 0) {
      continue;
    }
    const double a = LoadElement(spec.dtype, actual, col);
    const double e = LoadElement(spec.dtype, expected, col);
    const double bound = spec.tolerance.ulps * Ulp(spec.dtype, e) + spec.tolerance.row_rms * rms;
    const double error = std::abs(a - e);
    const double over = a == e && bound > 0 ? 0 : error / bound;  // -0 and 0 are equal
    const double ratio = over <= kWrong ? over : kWrong;          // NaN is not <= anything
    result.max_error_over_bound = std::max(result.max_error_over_bound, ratio);
    squares += ratio * ratio;
    if (ratio > 1 && result.first_failure.empty()) {
      const std::string found =
          IsPoison(actual + col * element, element) ? "nan (not written)" : StrCat(a);
      result.first_failure = StrCat("tensor ", tensor, ", sampled row ", row, ", column ", col,
                                    ": ", found, " instead of ", e, ", bound ", bound);
    }
  }
  // Shorter rows may consist of rare elements only.
  constexpr int64_t kLeastCols = 64;
  const double share = std::sqrt(squares / static_cast<double>(spec.checked_cols));
  const double share_over_allowed = share / spec.tolerance.rms_share;
  if (spec.checked_cols < kLeastCols || share_over_allowed <= 1) return;
  result.max_error_over_bound = std::max(result.max_error_over_bound, share_over_allowed);
  if (result.first_failure.empty()) {
    result.first_failure =
        StrCat("tensor ", tensor, ", sampled row ", row, ": the root mean square of its errors is ",
               share, " of their bounds, at most ", spec.tolerance.rms_share, " is allowed");
  }
}

}  // namespace

ExpectedSample::ExpectedSample(const BenchCase& whole, int copy, uint64_t fill_seed,
                               uint64_t sample_seed)
    : copy_(copy),
      fill_seed_(fill_seed),
      sample_(whole.Sample(sample_seed)),
      host_(sample_.problem->tensors(), 1, MakeHostMemory()) {
  const std::vector<TensorSpec>& specs = host_.tensors().specs();
  const TensorSet set = host_.Set(0);
  for (size_t t = 0; t < specs.size(); ++t) {
    if (specs[t].kind != TensorKind::kRandom) continue;
    const int tensor = static_cast<int>(t);
    FillSampled(specs[t], whole.tensors().specs()[t], sample_.maps[t],
                TensorSeed(fill_seed, tensor, copy), set.At<unsigned char>(tensor));
  }
  host_.Poison();
  sample_.problem->RunReference(set);
}

Comparison ExpectedSample::CompareWith(const TensorStore& store) const {
  const std::vector<TensorSpec>& specs = host_.tensors().specs();
  const TensorSet set = host_.Set(0);
  Comparison result;
  int64_t compared = 0;
  for (size_t t = 0; t < specs.size(); ++t) {
    if (specs[t].kind != TensorKind::kOutput) continue;
    const int tensor = static_cast<int>(t);
    const std::vector<unsigned char> actual =
        ReadSampled(store, tensor, copy_, specs[t], sample_.maps[t]);
    const int64_t row_bytes = specs[t].cols * SizeOf(specs[t].dtype);
    for (int64_t row = 0; row < specs[t].rows; ++row, ++compared) {
      CompareRow(specs[t], tensor, row, actual.data() + row * row_bytes,
                 set.At<unsigned char>(tensor) + row * row_bytes, result);
    }
  }
  if (compared == 0) {
    result = {.max_error_over_bound = kWrong, .first_failure = "the sample has no outputs"};
  }
  if (!result.first_failure.empty()) {
    result.first_failure += StrCat(" (buffer set ", copy_, ", seed ", fill_seed_, ")");
  }
  return result;
}

std::vector<int64_t> PickIndices(int64_t n, int64_t count, uint64_t seed) {
  std::vector<int64_t> picked;
  if (n <= count) {
    for (int64_t i = 0; i < n; ++i) picked.push_back(i);
    return picked;
  }
  std::set<int64_t> chosen{n - 1};
  if (count > 1) chosen.insert(0);
  std::mt19937_64 rng(seed);
  std::uniform_int_distribution<int64_t> any(0, n - 1);
  while (static_cast<int64_t>(chosen.size()) < count) chosen.insert(any(rng));
  return {chosen.begin(), chosen.end()};
}

int WeightLog2Scale(int64_t in_features) {
  const auto log2 =
      static_cast<int>(std::lround(-0.5 * std::log2(static_cast<double>(in_features))));
  return std::max(log2, kMinLog2Scale);
}

std::vector<int64_t> ExpandGroups(const std::vector<int64_t>& groups, int64_t size) {
  std::vector<int64_t> rows;
  rows.reserve(groups.size() * static_cast<size_t>(size));
  for (const int64_t group : groups) {
    for (int64_t i = 0; i < size; ++i) rows.push_back(group * size + i);
  }
  return rows;
}

}  // namespace tokline::bench
