// Turns values known at run time into template arguments of kernels.
#pragma once

#include <string>
#include <type_traits>

#include "kernels/common/dtype.h"
#include "kernels/common/error.h"

namespace tokline {

// Calls call.operator()<kValue>() with the member of kValues that equals `value`. If there is none,
// throws InvalidArgument, which states `name`, the value and the supported values.
template <auto... kValues, typename Value, typename Call>
void Dispatch(const char* name, Value value, const Call& call) {
  const bool found = ((value == kValues && (call.template operator()<kValues>(), true)) || ...);
  if (found) return;
  const auto text = [](auto v) {
    if constexpr (std::is_enum_v<decltype(v)>) {
      return std::string(Name(v));
    } else {
      return std::to_string(v);
    }
  };
  std::string supported;
  ((supported += (supported.empty() ? "" : ", ") + text(kValues)), ...);
  throw InvalidArgument(StrCat(name, " is ", text(value), "; supported on CUDA are ", supported));
}

template <typename Call>
void DispatchDType(DType dtype, const Call& call) {
  Dispatch<DType::kBf16, DType::kF16>("dtype", dtype, call);
}

template <typename Call>
void DispatchHeadDim(int32_t head_dim, const Call& call) {
  Dispatch<64, 128>("head_dim", head_dim, call);
}

}  // namespace tokline
