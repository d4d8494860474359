// The least work that any implementation of a kernel must do.
#pragma once

namespace tokline {

// Compulsory work: every input byte read once, every output byte written once, and the
// floating-point operations of the definition (a multiply-add is two).
struct Cost {
  double read_bytes = 0;
  double write_bytes = 0;
  double flops = 0;

  double Bytes() const { return read_bytes + write_bytes; }
};

}  // namespace tokline
