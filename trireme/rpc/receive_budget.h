#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// How many bytes of requests may be arriving at a server at once, of each connection and of all.
// Thread-safe; outlives its shares.
class ReceiveBudget {
 public:
  ReceiveBudget(uint64_t of_connection, uint64_t of_all)
      : of_connection_(of_connection), of_all_(of_all) {}

  // Given back when destroyed.
  class [[nodiscard]] Share {
   public:
    Share() = default;
    Share(ReceiveBudget* budget, std::string connection, uint64_t bytes)
        : budget_(budget), connection_(std::move(connection)), bytes_(bytes) {}
    Share(Share&& other) noexcept { swap(other); }
    Share& operator=(Share&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->give_back(connection_, bytes_);
    }

   private:
    void swap(Share& other) {
      std::swap(budget_, other.budget_);
      std::swap(connection_, other.connection_);
      std::swap(bytes_, other.bytes_);
    }

    ReceiveBudget* budget_ = nullptr;
    std::string connection_;
    uint64_t bytes_ = 0;
  };

  // RESOURCE_EXHAUSTED when it would be too much even if nothing else were arriving.
  absl::Status check_alone(uint64_t bytes) const;
  // RESOURCE_EXHAUSTED when it would be too much.
  absl::StatusOr<Share> take(const std::string& connection, uint64_t bytes);

 private:
  void give_back(const std::string& connection, uint64_t bytes);

  const uint64_t of_connection_;
  const uint64_t of_all_;
  Mutex mutex_;
  uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint64_t> taken_by_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
