#include "harness/measure/speed_up.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/error.h"
#include "tokline_rules.h"

namespace tokline {

SpeedUp::SpeedUp(std::span<const double> with, std::span<const double> without) {
  Require(with.size() == without.size(), with.size(), " samples with and ", without.size(),
          " samples without; each round gives one of each");
  std::vector<double> ratios;
  for (size_t i = 0; i < with.size(); ++i) ratios.push_back(without[i] / with[i]);
  rounds = static_cast<int64_t>(ratios.size());
  interval = MedianInterval(ratios);  // throws if there are no samples
  ratio = Median(std::move(ratios));
}

int SpeedUp::Direction(double equal) const {
  if (std::abs(ratio - 1) < kMinEffect || std::abs(ratio - 1) <= equal) return 0;
  if (interval.low > 1) return 1;
  if (interval.high < 1) return -1;
  return 0;
}

bool SpeedUp::Unsure(double equal) const {
  const bool holds_one = interval.low <= 1 && interval.high >= 1;
  return Direction(equal) == 0 && holds_one &&
         std::max(interval.high - 1, 1 - interval.low) > kMaxUncertainty;
}

std::string AblationVerdict(const std::optional<SpeedUp>& alone, const SpeedUp& decoder,
                            double equal_alone, double equal_decoders) {
  const auto choose = [](int direction, const char* slower, const char* neither,
                         const char* faster) {
    return direction < 0 ? slower : direction > 0 ? faster : neither;
  };
  const auto in = [&](const char* slower, const char* neither, const char* faster) {
    return choose(decoder.Direction(equal_decoders), slower, neither, faster);
  };
  if (!decoder.HasInterval()) return "too few rounds to say";
  const std::string in_decoder =
      in("LOSES in the decoder", "gains nothing in the decoder", "wins in the decoder");
  if (decoder.Unsure(equal_decoders)) {
    const std::string noisy = "too noisy to say in the decoder";
    if (!alone || alone->Unsure(equal_alone)) return noisy;
    return StrCat(
        noisy, "; ",
        choose(alone->Direction(equal_alone), "loses alone", "no faster alone", "wins alone"));
  }
  if (!alone) return in_decoder;
  if (alone->Unsure(equal_alone)) return "too noisy to say alone; " + in_decoder;
  switch (alone->Direction(equal_alone)) {
    case 1:
      return in("WINS ALONE, BUT LOSES in the decoder",
                "WINS ALONE, BUT GAINS NOTHING in the decoder", "wins alone and in the decoder");
    case -1:
      return in("loses alone and in the decoder: its plain counterpart is better",
                "loses alone, and gains nothing in the decoder",
                "loses alone, yet wins in the decoder");
    default:
      return in("no faster alone, and LOSES in the decoder",
                "makes no difference, alone or in the decoder",
                "no faster alone, yet wins in the decoder");
  }
}

}  // namespace tokline
