#include "harness/cli/sampling_flags.h"

#include "harness/platform/printable.h"
#include "harness/scheduler/request.h"
#include "kernels/common/error.h"

namespace tokline {

void AddSamplingFlags(SamplingRule& rule, std::vector<Flag>& flags) {
  flags.insert(
      flags.end(),
      {{"--temperature", "X", "temperature; 0: take the most likely token (default: 0)",
        [&rule](auto flag, auto text) {
          const double temperature = ParseReal(flag, text);
          Require(temperature >= 0 && temperature <= kMaxTemperature, flag, " is ", Quoted(text),
                  "; it must be from 0, which is greedy, to ", kMaxTemperature);
          rule.temperature = static_cast<float>(temperature);
        }},
       {"--top-k", "N", "draw from the N most likely tokens; 0: all (default: 0)",
        IntegerInto(rule.top_k, 0)},
       {"--top-p", "X", "draw from the most likely tokens whose probabilities reach X (default: 1)",
        [&rule](auto flag, auto text) {
          rule.top_p = static_cast<float>(ParseReal(flag, text));
          Require(rule.top_p > 0 && rule.top_p <= 1, flag, " is ", Quoted(text),
                  "; it must be more than 0 and at most 1");
        }},
       {"--seed", "N", "seed of the draws (default: 0)", SeedInto(rule.seed)}});
}

}  // namespace tokline
