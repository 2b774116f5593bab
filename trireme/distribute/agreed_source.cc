#include "trireme/distribute/agreed_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/function/draws.h"

namespace trireme::internal {
namespace {

// Describes an element by numbers: how many tensors it has, and for each of them its dtype, its
// number of dimensions and its sizes.
at::Tensor describe_element(const Element& element) {
  std::vector<int64_t> numbers = {static_cast<int64_t>(element.size())};
  for (const at::Tensor& tensor : element) {
    numbers.push_back(static_cast<int64_t>(tensor.scalar_type()));
    numbers.push_back(tensor.dim());
    numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return at::tensor(numbers, at::kLong);
}

// Reads the numbers of a description, which comes from another worker.
class DescriptionReader {
 public:
  explicit DescriptionReader(const at::Tensor& description)
      : numbers_(description.const_data_ptr<int64_t>(), description.numel()) {}

  // Returns the next number. Throws Error unless there is one from 0 to `largest`.
  int64_t next(int64_t largest) {
    if (!numbers_.empty() && numbers_[0] >= 0 && numbers_[0] <= largest) {
      const int64_t number = numbers_[0];
      numbers_ = numbers_.subspan(1);
      return number;
    }
    throw Error(ErrorCode::kInternal,
                "another worker has described its elements in a way that makes no sense; all "
                "workers must run the same release");
  }
  int64_t left() const { return static_cast<int64_t>(numbers_.size()); }

 private:
  std::span<const int64_t> numbers_;
};

// Returns an element as `description` has it, but without rows. The descriptions of other workers
// may follow.
Element make_empty_element(const at::Tensor& description) {
  DescriptionReader reader(description);
  Element element;
  for (int64_t left = reader.next(reader.left()); left > 0; --left) {
    const auto dtype = static_cast<at::ScalarType>(
        reader.next(static_cast<int64_t>(at::ScalarType::NumOptions) - 1));
    std::vector<int64_t> sizes(reader.next(reader.left()));
    for (int64_t& size : sizes) size = reader.next(std::numeric_limits<int64_t>::max());
    if (!sizes.empty()) sizes[0] = 0;
    element.push_back(at::zeros(sizes, dtype));
  }
  return element;
}

// Set in the numbers of elements without rows, which take the place of elements of this worker.
constexpr uint64_t kWithoutRows = uint64_t{1} << 63;

// An element that is put back goes back to the source of this worker, so that its position counts
// the element as unused. It is drawn again without asking the other workers, since they have drawn
// theirs, unless all have gone to another position in between. Only one thread may draw at a time,
// as one does in training.
class AgreedSource final : public ElementSource {
 public:
  AgreedSource(const Iterator& iterator, WorkerGroup& workers)
      : iterator_(iterator), own_(Access<Iterator>::source(iterator)), workers_(workers) {}

  NumberedElement draw() override { return draw_agreed(false); }
  NumberedElement draw_optional() override { return draw_agreed(true); }

  void put_back(NumberedElement element) override {
    MutexLock lock(mutex_);
    const uint64_t number = element.number;
    if ((number & kWithoutRows) != 0) {
      returned_.emplace(number, std::move(element.element));
    } else {
      own_->put_back(std::move(element));
      returned_.emplace(number, std::nullopt);
    }
  }

  std::string name() const override { return own_->name(); }

 private:
  NumberedElement draw_agreed(bool accepts_end) {
    MutexLock lock(mutex_);
    if (auto returned = draw_returned()) return *std::move(returned);
    const std::string tag = absl::StrCat("element ", drawn_, " of the data");
    std::optional<NumberedElement> element = draw_own();
    const at::Tensor here = at::full({1}, element ? 1 : 0, at::kLong);
    const int64_t workers_with_data = workers_.sum(here, tag).item<int64_t>();
    if (workers_with_data == 0) {
      // The source itself reports the end, in the way that its caller expects.
      return accepts_end ? own_->draw_optional() : own_->draw();
    }
    if (drawn_ == 0 && workers_with_data < workers_.workers()) {
      // A worker without data from the start, as after a restore, learns from the others what
      // elements look like.
      const at::Tensor all = workers_.concatenate(
          element ? describe_element(element->element) : at::empty({0}, at::kLong),
          absl::StrCat(tag, ", description"));
      if (!element) last_ = make_empty_element(all);
    }
    if (!element) element = NumberedElement{empty_like_last(), kWithoutRows | drawn_};
    last_ = element->element;
    ++drawn_;
    return *std::move(element);
  }

  // Returns the first of the elements that were put back; nullopt if there are none.
  std::optional<NumberedElement> draw_returned() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A new epoch, or a restored checkpoint, begins without them.
    const uint64_t restores = Access<Iterator>::restores(iterator_);
    if (std::exchange(restores_, restores) != restores) returned_.clear();
    if (returned_.empty()) return std::nullopt;
    auto first = returned_.extract(returned_.begin());
    if (!first.mapped()) return own_->draw();
    return NumberedElement{*std::move(first.mapped()), first.key()};
  }

  // Returns the next element of this worker; nullopt if there are no more.
  std::optional<NumberedElement> draw_own() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    try {
      return own_->draw();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEndOfData) throw;
      return std::nullopt;
    }
  }

  Element empty_like_last() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Element empty;
    for (const at::Tensor& tensor : *last_) {
      empty.push_back(tensor.dim() == 0 ? tensor : tensor.narrow(0, 0, 0));
    }
    return empty;
  }

  const Iterator iterator_;
  const std::shared_ptr<ElementSource> own_;  // that of the iterator
  WorkerGroup& workers_;
  mutable Mutex mutex_;
  // Elements that were put back, by number: those without rows, and nullopt for those of own_.
  std::map<uint64_t, std::optional<Element>> returned_ ABSL_GUARDED_BY(mutex_);
  uint64_t restores_ ABSL_GUARDED_BY(mutex_) = 0;  // restores of the iterator before the last draw
  std::optional<Element> last_ ABSL_GUARDED_BY(mutex_);
  uint64_t drawn_ ABSL_GUARDED_BY(mutex_) = 0;  // number of elements drawn so far
};

}  // namespace

Iterator agreed_iterator(const Iterator& iterator, WorkerGroup& workers) {
  return Access<Iterator>::make(std::make_shared<AgreedSource>(iterator, workers));
}

}  // namespace trireme::internal
