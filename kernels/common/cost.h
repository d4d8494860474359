// The minimum work that every implementation of a kernel has to do.
#pragma once

namespace tokline {

// Compulsory work: every input byte is read once, every output byte is written once, and the
// floating-point operations are those of the definition (a multiply-add counts as two).
struct Cost {
  double read_bytes = 0;
  double write_bytes = 0;
  double flops = 0;

  double Bytes() const { return read_bytes + write_bytes; }
};

}  // namespace tokline
