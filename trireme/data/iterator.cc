#include "trireme/data/iterator.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/graph/device_scope.h"
#include "trireme/graph/function.h"

namespace trireme {
namespace {

class Placeholder : public internal::ElementSource {
 public:
  Placeholder(const ElementSpec& spec, uint64_t resource)
      : element_(internal::zeros(spec)), resource_(resource) {}

  internal::Element draw() override { return element_; }
  void put_back(internal::Element) override {}
  uint64_t resource() const override { return resource_; }
  std::string name() const override { return absl::StrCat("iterator ", resource_, " on a worker"); }

 private:
  const internal::Element element_;
  const uint64_t resource_;
};

}  // namespace

Iterator Iterator::placeholder(const ElementSpec& spec, uint64_t resource) {
  const internal::OwnWork own;
  return Iterator(std::make_shared<Placeholder>(spec, resource));
}

std::optional<std::vector<at::Tensor>> Iterator::next_optional() {
  if (internal::is_inlined()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "next_optional() in a captured function: whether there is a next element would be "
                "frozen. Use next(), and catch END_OF_DATA where the function is called",
                {"", name()});
  }
  try {
    return draw();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
    return std::nullopt;
  }
}

std::vector<at::Tensor> Iterator::take(size_t tensors) {
  if (source_->resource() != 0) {
    throw Error(ErrorCode::kFailedPrecondition,
                "it can only be passed to functions, which then draw from it there", {"", name()});
  }
  internal::Element element = source_->draw();
  if (element.size() == tensors) return element;
  const std::string message =
      absl::StrCat("its elements are ", to_string(spec_of(element)), ", not ", tensors,
                   " tensors; draw them with next<", element.size(), ">()");
  source_->put_back(std::move(element));
  throw Error(ErrorCode::kInvalidArgument, message, {"", name()});
}

std::vector<at::Tensor> Iterator::draw() {
  if (source_->resource() == 0) return source_->draw();
  throw Error(ErrorCode::kFailedPrecondition,
              "it can only be passed to functions, which then draw from it there", {"", name()});
}

}  // namespace trireme
