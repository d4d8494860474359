// Removes a decoder's sequence at the end of a scope.
#pragma once

#include "harness/engine/decoder.h"

namespace tokline {

class ScopedSequence {
 public:
  ScopedSequence(Decoder& decoder, SequenceId id) : decoder_(decoder), id_(id) {}
  // A sequence that has ended by itself no longer exists.
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
