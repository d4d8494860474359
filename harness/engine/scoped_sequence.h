// A sequence of a decoder that is gone with its scope, however that is left.
#pragma once

#include "harness/engine/decoder.h"

namespace tokline {

class ScopedSequence {
 public:
  ScopedSequence(Decoder& decoder, SequenceId id) : decoder_(decoder), id_(id) {}
  // Nothing where it has come to its end by itself.
  ~ScopedSequence() {
    if (decoder_.Has(id_)) decoder_.RemoveSequence(id_);
  }
  ScopedSequence(const ScopedSequence&) = delete;
  ScopedSequence& operator=(const ScopedSequence&) = delete;
  SequenceId id() const { return id_; }

 private:
  Decoder& decoder_;
  SequenceId id_;
};

}  // namespace tokline
