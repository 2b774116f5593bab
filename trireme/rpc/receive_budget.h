#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Limits the bytes of requests that arrive at a server at once, for each connection and for all
// together. Unlike a ByteBudget it rejects a request that does not fit instead of queueing it.
// Thread-safe. Must outlive its shares.
class ReceiveBudget {
 public:
  ReceiveBudget(uint64_t of_connection, uint64_t of_all)
      : of_connection_(of_connection), of_all_(of_all) {}

  // A part of the budget, returned to it when the share is destroyed. Movable.
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

  // Returns RESOURCE_EXHAUSTED if `bytes` exceed a limit even with nothing else arriving.
  absl::Status check_alone(uint64_t bytes) const;
  // Takes `bytes` for a request of this connection (the peer's address and port). Returns
  // RESOURCE_EXHAUSTED if they exceed a limit together with what is arriving now.
  absl::StatusOr<Share> take(const std::string& connection, uint64_t bytes);

 private:
  void give_back(const std::string& connection, uint64_t bytes);

  const uint64_t of_connection_;
  const uint64_t of_all_;
  Mutex mutex_;
  uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of all connections
  // Bytes of each connection; connections without a share have no entry.
  absl::flat_hash_map<std::string, uint64_t> taken_by_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
