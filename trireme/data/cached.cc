#include "trireme/data/cached.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

// The cache has the first elements of the input, without gaps, and grows at its end. skip() makes
// the elements that the cache does not have yet: steps such as shard() skip elements in every
// repetition, and the cache would stay empty. An element that cannot be made is passed over without
// making it, as all streams do; from there on the stream does not add to the cache.
namespace trireme::internal {
namespace {

constexpr int64_t kTensorOverheadBytes = 256;  // memory of a tensor beside its contents

class Cached : public Stream<Element> {
 public:
  Cached(std::shared_ptr<CachedElements> kept, uint64_t key, Opener<Element> open)
      : kept_(std::move(kept)), key_(key), open_(std::move(open)) {}

  Next<Element> next() override {
    const bool is_complete = kept_->is_complete();
    if (std::optional<Element> found = kept_->find(next_)) {
      ++next_;
      return found;
    }
    if (is_complete) return std::nullopt;
    TRIREME_RETURN_IF_ERROR(move_input());
    TRIREME_ASSIGN_OR_RETURN(std::optional<Element> made, input_->next());
    if (!made) {
      kept_->end(next_);
      return std::nullopt;
    }
    ++input_next_;
    TRIREME_RETURN_IF_ERROR(kept_->add(next_++, *made));
    return made;
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    while (skipped < count) {
      const bool is_complete = kept_->is_complete();
      const int64_t size = kept_->size();
      if (next_ < size) {
        const int64_t part = std::min(count - skipped, size - next_);
        next_ += part;
        skipped += part;
        continue;
      }
      if (is_complete) break;
      if (next_ > size) return pass_over(skipped, count);
      const int64_t before = next_;
      const absl::Status made = try_call([&] { throw_if_error(next().status()); });
      if (error_code(made) == ErrorCode::kResourceExhausted) return made;
      if (!made.ok()) {
        next_ = before;
        input_ = nullptr;
        return pass_over(skipped, count);
      }
      if (next_ == before) break;
      ++skipped;
    }
    return skipped;
  }

 private:
  // Opens the input and moves it to the next element, which others may have added in between.
  absl::Status move_input() {
    if (input_ == nullptr) {
      input_ = open_(key_);
      input_next_ = 0;
    }
    if (input_next_ == next_) return absl::OkStatus();
    TRIREME_ASSIGN_OR_RETURN(const int64_t passed, input_->skip(next_ - input_next_));
    input_next_ += passed;
    return absl::OkStatus();
  }
  // Skips the rest of `count` elements in the input. Returns the number of all that are skipped.
  Skipped pass_over(int64_t skipped, int64_t count) {
    TRIREME_RETURN_IF_ERROR(move_input());
    TRIREME_ASSIGN_OR_RETURN(const int64_t passed, input_->skip(count - skipped));
    input_next_ += passed;
    next_ += passed;
    return skipped + passed;
  }

  const std::shared_ptr<CachedElements> kept_;
  const uint64_t key_;
  const Opener<Element> open_;
  int64_t next_ = 0;  // number of the next element
  StreamPtr<Element> input_;
  int64_t input_next_ = 0;  // number of the next element of the input
};

// Returns a copy of an element that holds no other memory, such as the other rows of a block.
Element copy_of(const Element& element) {
  Element copy;
  for (const at::Tensor& tensor : element) {
    const bool is_whole = tensor.is_contiguous() && tensor.storage().nbytes() == tensor.nbytes();
    copy.push_back(is_whole ? tensor : tensor.clone(at::MemoryFormat::Contiguous));
  }
  return copy;
}

}  // namespace

std::optional<Element> CachedElements::find(int64_t number) const {
  MutexLock lock(mutex_);
  if (number >= static_cast<int64_t>(elements_.size())) return std::nullopt;
  return elements_[number];
}

absl::Status CachedElements::add(int64_t number, const Element& element) {
  if (number != size()) return absl::OkStatus();
  Element copy = copy_of(element);
  int64_t bytes = 0;
  for (const at::Tensor& tensor : copy) {
    bytes += static_cast<int64_t>(tensor.nbytes()) + kTensorOverheadBytes;
  }
  MutexLock lock(mutex_);
  if (number != static_cast<int64_t>(elements_.size())) return absl::OkStatus();
  if (bytes > most_bytes_ - bytes_) {
    return make_status(
        ErrorCode::kResourceExhausted,
        absl::StrCat("it keeps ", bytes_, " bytes in ", elements_.size(),
                     " elements, and has no room for the next one of ", bytes, " bytes; at most ",
                     most_bytes_, " are allowed; cache fewer elements, or remove cache()"),
        {"", "dataset step 'cache'"});
  }
  bytes_ += bytes;
  elements_.push_back(std::move(copy));
  return absl::OkStatus();
}

void CachedElements::end(int64_t count) {
  MutexLock lock(mutex_);
  complete_ = complete_ || count == static_cast<int64_t>(elements_.size());
}

int64_t CachedElements::size() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(elements_.size());
}

bool CachedElements::is_complete() const {
  MutexLock lock(mutex_);
  return complete_;
}

StreamPtr<Element> open_cached(std::shared_ptr<CachedElements> kept, uint64_t key,
                               Opener<Element> open) {
  return std::make_unique<Cached>(std::move(kept), key, std::move(open));
}

}  // namespace trireme::internal
