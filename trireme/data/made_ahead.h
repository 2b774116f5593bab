#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Makes an element from another one, whose number is given.
using NumberedMap = std::function<absl::StatusOr<Element>(const Element&, uint64_t number)>;

// How elements are made in advance.
struct AheadOptions {
  std::string thread_name;
  int threads = 1;
  int64_t elements = 1;       // elements that are made and not yet taken, at most
  uint64_t first_number = 0;  // number of the first element of the input
};

// Gives the elements of `input`, in order, or what `map` makes of them unless it is null. Threads
// of its own make them in advance, from the first call of next() on. The destructor joins them.
// `map` is called by several threads at the same time.
StreamPtr<Element> open_made_ahead(AheadOptions options, StreamPtr<Element> input, NumberedMap map);

}  // namespace trireme::internal
