#include "trireme/data/iterator.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
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

  internal::Element draw() override { return examples_[std::min(drawn_++, examples_.size() - 1)]; }
  void put_back(internal::Element) override { --drawn_; }
  uint64_t resource() const override { return resource_; }
  std::string name() const override { return absl::StrCat("iterator ", resource_, " on a worker"); }

 private:
  const std::vector<internal::Element> examples_;
  const uint64_t resource_;
  std::atomic<size_t> drawn_ = 0;
};

}  // namespace

Iterator internal::Access<Iterator>::placeholder(std::vector<Element> examples, uint64_t resource) {
  return make(std::make_shared<Placeholder>(std::move(examples), resource));
}

Iterator::Iterator(std::shared_ptr<internal::ElementSource> source) : source_(std::move(source)) {}

at::Tensor Iterator::next() {
  return take(1)[0];
}

std::optional<std::vector<at::Tensor>> Iterator::next_optional() {
  if (internal::is_inlined()) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("next_optional() was called in function '", internal::captured_function(),
                     "', which is captured and cannot depend on whether there is another "
                     "element; use next(), and catch END_OF_DATA where the function is "
                     "called"),
        {"", name()});
  }
  try {
    return draw();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
    return std::nullopt;
  }
}

std::string Iterator::name() const {
  return source_->name();
}

std::vector<at::Tensor> Iterator::take(size_t tensors) {
  internal::Element element;
  try {
    element = draw();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
    throw Error(
        error.code(),
        absl::StrCat(error.message(), ", or use next_optional(), which returns nullopt at the end"),
        error.origin());
  }
  if (element.size() == tensors) return element;
  const auto call = [](size_t count) {
    return count == 1 ? std::string("next()") : absl::StrCat("next<", count, ">()");
  };
  const std::string message =
      absl::StrCat("its elements are ", to_string(spec_of(element)), ", which ", call(tensors),
                   " cannot return; use ", call(element.size()));
  source_->put_back(std::move(element));
  throw Error(ErrorCode::kInvalidArgument, message, {"", name()});
}

std::vector<at::Tensor> Iterator::draw() {
  if (source_->resource() == 0) return source_->draw();
  throw Error(
      ErrorCode::kFailedPrecondition,
      "it cannot be drawn from here; pass it to a function, which draws from it on the worker",
      {"", name()});
}

}  // namespace trireme
