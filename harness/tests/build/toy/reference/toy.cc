#include "reference/toy.h"

#include "reference/elements.h"

namespace tokline {

void ToyReference(const ToyParams& params) {
  Validate(params);
  for (int64_t i = 0; i < params.size; ++i) {
    StoreElement(params.dtype, params.y, i,
                 double{params.scale} * LoadElement(params.dtype, params.x, i));
  }
}

}  // namespace tokline
