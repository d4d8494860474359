// Checks whether the model would generate given texts, with a decoder without any fused or custom
// op.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "harness/engine/decoder.h"
#include "harness/measure/throughput.h"
#include "harness/models/loaded_model.h"

namespace tokline {

struct Judgement {
  int64_t tokens = 0;  // 0 if it was interrupted or there were no texts
  double mean_regret = 0;
};

class TextJudge {
 public:
  // `options` are those of the decoder whose texts are judged.
  TextJudge(const LoadedModel& model, DecoderOptions options);

  // Judges the last tokens of each text.
  Judgement Judge(std::span<const BenchText> texts, const std::atomic<bool>* interrupted);

 private:
  Decoder plain_;
};

}  // namespace tokline
