#include "trireme/data/dataset_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/capture.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/function/function.h"

namespace trireme::internal {

DatasetSource::DatasetSource(DatasetStepPtr step, uint64_t seed)
    : name_(absl::StrCat("iterator over ", describe_steps(*step))),
      reader_(std::make_unique<ElementReader>(std::move(step), seed)) {}

// The element of an error counts as used, so that an element that cannot be made does not stop the
// iterator for ever.
NumberedElement DatasetSource::draw() {
  if (is_inlined()) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("function '", captured_function(),
                             "' draws from it without taking it as an argument, and would see "
                             "the same element in every call; give the function an argument of "
                             "type tr::Iterator& and pass the iterator"),
                {"", name_});
  }
  MutexLock lock(mutex_);
  const uint64_t number = used_.first_unused();
  try {
    NumberedElement drawn{reader_->take(number), number};
    used_.use({number, 1});
    return drawn;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) used_.use({number, 1});
    throw;
  }
}

void DatasetSource::put_back(NumberedElement element) {
  MutexLock lock(mutex_);
  used_.put_back({element.number, 1});
  reader_->put_back(element.number, std::move(element.element));
}

std::string DatasetSource::describe() const {
  MutexLock lock(mutex_);
  return describe_steps(*reader_->step());
}

absl::StatusOr<IteratorPosition> DatasetSource::position() const {
  MutexLock lock(mutex_);
  return used_.position(reader_->seed());
}

absl::Status DatasetSource::restore(const IteratorPosition& position) {
  TRIREME_ASSIGN_OR_RETURN(UsedNumbers used, UsedNumbers::create(position));
  MutexLock lock(mutex_);
  TRIREME_RETURN_IF_ERROR(check_skip(*reader_->step(), used.next()));
  reader_ = std::make_unique<ElementReader>(reader_->step(), position.seed);
  used_ = std::move(used);
  ++restores_;
  return absl::OkStatus();
}

uint64_t DatasetSource::restores() const {
  MutexLock lock(mutex_);
  return restores_;
}

}  // namespace trireme::internal
