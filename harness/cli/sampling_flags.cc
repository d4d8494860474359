#include "harness/cli/sampling_flags.h"

#include "harness/platform/printable.h"
#include "harness/scheduler/request.h"
#include "kernels/common/error.h"

namespace tokline {

void AddSamplingFlags(SamplingRule& rule, std::vector<Flag>& flags) {
  flags.push_back({.name = "--temperature",
                   .value = "X",
                   .help = "temperature; 0: take the most likely token (default: 0)",
                   .set = [&rule](std::string_view text) {
                     const double temperature = ParseReal("--temperature", text);
                     Require(temperature >= 0 && temperature <= kMaxTemperature,
                             "--temperature is ", Quoted(text),
                             "; it must be from 0, which is greedy, to ", kMaxTemperature);
                     rule.temperature = static_cast<float>(temperature);
                   }});
  flags.push_back({.name = "--top-k",
                   .value = "N",
                   .help = "draw from the N most likely tokens; 0: all (default: 0)",
                   .set = IntegerInto("--top-k", rule.top_k, 0)});
  flags.push_back(
      {.name = "--top-p",
       .value = "X",
       .help = "draw from the most likely tokens whose probabilities reach X (default: 1)",
       .set = [&rule](std::string_view text) {
         rule.top_p = static_cast<float>(ParseReal("--top-p", text));
         Require(rule.top_p > 0 && rule.top_p <= 1, "--top-p is ", Quoted(text),
                 "; it must be more than 0 and at most 1");
       }});
  flags.push_back(
      {.name = "--seed",
       .value = "N",
       .help = "seed of the draws (default: 0)",
       .set = [&rule](std::string_view text) { rule.seed = ParseSeed("--seed", text); }});
}

}  // namespace tokline
