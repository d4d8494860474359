// Makes a decoder from a checkpoint.
#pragma once

#include "harness/engine/decoder.h"
#include "harness/models/loaded_model.h"

namespace tokline {

// Reads the checkpoint ahead, uploads it and releases its mapped pages.
Decoder MakeDecoder(const LoadedModel& model, const DecoderOptions& options);

}  // namespace tokline
