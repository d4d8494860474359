// Decode steps that run as one kernel (decode_step) instead of a chain of kernels per layer.
#pragma once

#include <string>

#include "harness/engine/decoder_config.h"
#include "harness/engine/device_weights.h"
#include "kernels/decode_step/decode_step.h"

namespace tokline {

// The model as decode_step sees it. Without weights only its shape is filled in.
DecodeStepModel StepModelOf(const ModelSpec& spec, DType dtype, const DeviceWeights* weights);

// Returns why steps of `tokens` tokens are a chain of kernels, or an empty string if they run as
// one kernel.
std::string OneKernelRefusal(const ModelSpec& spec, const DecoderConfig& config, int64_t tokens);

// Says in words which decode steps of a decoder run as one kernel, and why the others do not.
std::string StepPathText(const ModelSpec& spec, const DecoderConfig& config);

}  // namespace tokline
