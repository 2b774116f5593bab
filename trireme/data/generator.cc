#include "trireme/data/generator.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/data/file_facts.h"
#include "trireme/data/generated.h"

namespace trireme {

NamedGenerator::NamedGenerator(std::string name, std::vector<Column> columns,
                               std::function<NextElement(uint64_t seed)> start)
    : name_(std::move(name)), columns_(std::move(columns)) {
  internal::register_generator(name_, std::move(start));
}

Dataset NamedGenerator::dataset() const {
  proto::DatasetStep def;
  def.mutable_generator()->set_name(name_);
  for (const Column& column : columns_) {
    *def.mutable_generator()->add_columns() = internal::to_def(column);
  }
  return internal::Access<Dataset>::make(
      value_or_throw(internal::add_step(nullptr, std::move(def), {})));
}

NamedGenerator generator(std::string name, std::vector<Column> columns,
                         std::function<NextElement(uint64_t seed)> start) {
  return {std::move(name), std::move(columns), std::move(start)};
}

}  // namespace trireme
