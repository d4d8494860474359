#include "harness/cli/speed_up.h"

#include <algorithm>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr double kLeastEffect = 0.005;
// An interval that holds 1 and reaches further from it says nothing.
constexpr double kMostUncertainty = 0.02;

}  // namespace

SpeedUp::SpeedUp(std::span<const double> with, std::span<const double> without) {
  Require(with.size() == without.size(), with.size(), " samples with and ", without.size(),
          " samples without; each round gives one of both");
  std::vector<double> ratios;
  for (size_t i = 0; i < with.size(); ++i) ratios.push_back(without[i] / with[i]);
  rounds = static_cast<int64_t>(ratios.size());
  interval = MedianInterval(ratios);  // refuses no samples
  ratio = Median(std::move(ratios));
}

int SpeedUp::Direction() const {
  if (interval.low > 1 && ratio >= 1 + kLeastEffect) return 1;
  if (interval.high < 1 && ratio <= 1 - kLeastEffect) return -1;
  return 0;
}

bool SpeedUp::Unsure() const {
  return Direction() == 0 && std::max(interval.high - 1, 1 - interval.low) > kMostUncertainty;
}

std::string AblationVerdict(const std::optional<SpeedUp>& alone, const SpeedUp& decoder) {
  const auto by = [](const SpeedUp& speed_up, const char* slower, const char* neither,
                     const char* faster) {
    const int direction = speed_up.Direction();
    return direction < 0 ? slower : direction > 0 ? faster : neither;
  };
  if (!decoder.HasInterval()) return "too few rounds to say";
  const std::string in_decoder =
      by(decoder, "LOSES in the decoder", "gains nothing in the decoder", "wins in the decoder");
  if (decoder.Unsure()) {
    const std::string noisy = "too noisy to say in the decoder";
    if (!alone || alone->Unsure()) return noisy;
    return StrCat(noisy, "; ", by(*alone, "loses alone", "no faster alone", "wins alone"));
  }
  if (!alone) return in_decoder;
  if (alone->Unsure()) return "too noisy to say alone; " + in_decoder;
  switch (alone->Direction()) {
    case 1:
      return by(decoder, "WINS ALONE, BUT LOSES in the decoder",
                "WINS ALONE, BUT GAINS NOTHING in the decoder", "wins alone and in the decoder");
    case -1:
      return by(decoder, "loses alone and in the decoder: its plain counterpart is better",
                "loses alone, and gains nothing in the decoder",
                "loses alone, yet wins in the decoder");
    default:
      return by(decoder, "no faster alone, and LOSES in the decoder",
                "makes no difference, alone or in the decoder",
                "no faster alone, yet wins in the decoder");
  }
}

}  // namespace tokline
