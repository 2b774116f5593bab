// Making a dataset from arbitrary data accepts or rejects it, and never crashes, hangs or takes
// unbounded memory. The fuzzer draws no elements, because a valid dataset may ask for a shuffle
// buffer of any size.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <cstdint>

#include "trireme/base/status.h"
#include "trireme/data/dataset_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (size == 0) return 0;
  internal::DatasetData dataset;
  if (!dataset.def.ParseFromArray(data + 1, static_cast<int>(size) - 1)) return 0;
  dataset.def.set_format(1);
  // The first byte chooses the number of tensors.
  for (int i = 0; i < data[0] % 4; ++i) {
    dataset.tensors.push_back(i % 2 == 0 ? at::ones({6, 2}) : at::arange(6));
  }
  const auto made = internal::dataset_from(std::move(dataset));
  if (!made.ok()) {
    describe(made.status());
    return 0;
  }
  made->describe();
  for (const ElementSpec& spec : made->element_specs()) to_string(spec);
  return 0;
}
