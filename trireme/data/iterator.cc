#include "trireme/data/iterator.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/capture.h"
#include "trireme/data/dataset_source.h"
#include "trireme/data/element.h"
#include "trireme/function/draws.h"
#include "trireme/function/function.h"

namespace trireme {
namespace {

// Stands for an iterator on a worker. Gives examples, which have the dtypes and shapes of the
// worker's elements, to the preparation of a step. Iterator rejects all other draws.
class Placeholder : public internal::ElementSource {
 public:
  Placeholder(std::vector<internal::Element> examples, uint64_t resource)
      : examples_(std::move(examples)), resource_(resource) {}

  internal::NumberedElement draw() override {
    const size_t number = drawn_++;
    return {examples_[std::min(number, examples_.size() - 1)], number};
  }
  void put_back(internal::NumberedElement) override { --drawn_; }
  uint64_t resource() const override { return resource_; }
  std::string name() const override { return absl::StrCat("iterator ", resource_, " on a worker"); }

 private:
  const std::vector<internal::Element> examples_;
  const uint64_t resource_;
  std::atomic<size_t> drawn_ = 0;
};

}  // namespace

internal::DatasetSource& internal::Access<Iterator>::dataset_source(const Iterator& iterator) {
  auto* const source = dynamic_cast<DatasetSource*>(iterator.source_.get());
  if (source != nullptr) return *source;
  throw Error(ErrorCode::kFailedPrecondition,
              "it has no position of its own; use an iterator of Dataset::iterator()",
              {"", iterator.name()});
}

internal::IteratorPosition internal::Access<Iterator>::position(const Iterator& iterator) {
  return value_or_throw(dataset_source(iterator).position());
}

void internal::Access<Iterator>::restore(const Iterator& iterator,
                                         const IteratorPosition& position) {
  const absl::Status restored = dataset_source(iterator).restore(position);
  throw_if_error(with_origin(restored, {"", iterator.name()}));
}

uint64_t internal::Access<Iterator>::restores(const Iterator& iterator) {
  return dataset_source(iterator).restores();
}

std::string internal::Access<Iterator>::describe(const Iterator& iterator) {
  return dataset_source(iterator).describe();
}

Iterator internal::Access<Iterator>::placeholder(std::vector<Element> examples, uint64_t resource) {
  return make(std::make_shared<Placeholder>(std::move(examples), resource));
}

Iterator::Iterator(std::shared_ptr<internal::ElementSource> source) : source_(std::move(source)) {}

at::Tensor Iterator::next() {
  return take(1)[0];
}

std::optional<std::vector<at::Tensor>> Iterator::next_optional() {
  check_drawable();
  try {
    return source_->draw_optional().element;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
    return std::nullopt;
  }
}

std::string Iterator::name() const {
  return source_->name();
}

std::vector<at::Tensor> Iterator::take(size_t tensors) {
  internal::NumberedElement drawn;
  try {
    drawn = draw();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
    throw Error(
        error.code(),
        absl::StrCat(error.message(), ", or use next_optional(), which returns nullopt at the end"),
        error.origin());
  }
  const internal::Element& element = drawn.element;
  if (element.size() == tensors) return std::move(drawn.element);
  const auto call = [](size_t count) {
    return count == 1 ? std::string("next()") : absl::StrCat("next<", count, ">()");
  };
  const std::string message =
      absl::StrCat("its elements are ", to_string(spec_of(element)), ", which ", call(tensors),
                   " cannot return; use ", call(element.size()));
  source_->put_back(std::move(drawn));
  throw Error(ErrorCode::kInvalidArgument, message, {"", name()});
}

internal::NumberedElement Iterator::draw() {
  check_drawable();
  return source_->draw();
}

void Iterator::check_drawable() const {
  if (source_->resource() == 0) return;
  throw Error(
      ErrorCode::kFailedPrecondition,
      "it cannot be drawn from here; pass it to a function, which draws from it on the worker",
      {"", name()});
}

}  // namespace trireme
