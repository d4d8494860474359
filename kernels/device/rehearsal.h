// Loads kernels without launching them. CUDA loads a kernel when it is first used, and may then
// wait for everything that the process has enqueued on any of its devices. If kernels of several
// devices wait for each other, that wait would never end, so they are loaded before.
#pragma once

namespace tokline {

// While it lives, every launch of this thread only loads its kernel and returns. Matmul is an
// exception: it cannot know cuBLASLt's kernel, so it runs every problem that is new to it and
// writes its output.
class Rehearsal {
 public:
  Rehearsal() { ++depth_; }
  ~Rehearsal() { --depth_; }
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  static bool IsOn() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace tokline
