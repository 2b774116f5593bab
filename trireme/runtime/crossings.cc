#include "trireme/runtime/crossings.h"

#include <utility>

#include "trireme/base/status.h"

namespace trireme::internal {

void append_crossings(std::vector<CrossingValue> values, Crossings& crossings,
                      std::vector<at::Tensor>& message) {
  for (CrossingValue& value : values) {
    Crossing* crossing = crossings.Add();
    crossing->set_edge(value.edge);
    crossing->set_pieces(static_cast<uint32_t>(value.pieces.size()));
    for (at::Tensor& piece : value.pieces) message.push_back(std::move(piece));
  }
}

absl::StatusOr<std::vector<CrossingValue>> read_crossings(const Crossings& crossings,
                                                          TensorReader& reader) {
  std::vector<CrossingValue> values;
  for (const Crossing& crossing : crossings) {
    CrossingValue& value = values.emplace_back();
    value.edge = crossing.edge();
    TRIREME_ASSIGN_OR_RETURN(value.pieces, reader.next(crossing.pieces(), {}));
  }
  return values;
}

}  // namespace trireme::internal
