#include "trireme/data/column.h"

#include <utility>

namespace trireme {

Column text_column(std::string name, int64_t bytes) {
  return {.name = std::move(name), .dtype = at::kByte, .sizes = {bytes}, .is_text = true};
}

}  // namespace trireme
