#include "trireme/rpc/receive_budget.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

absl::Status refused(uint64_t bytes, uint64_t taken, const char* whose, uint64_t limit) {
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("rejected the request: it declares ", bytes, " bytes while ",
                                  taken, " more are arriving; the limit ", whose, " is ", limit,
                                  ". Send less at a time, or raise the server's limit"));
}

}  // namespace

absl::Status ReceiveBudget::check_alone(uint64_t bytes) const {
  if (bytes > of_connection_) return refused(bytes, 0, "of a connection", of_connection_);
  if (bytes > of_all_) return refused(bytes, 0, "of the server", of_all_);
  return absl::OkStatus();
}

absl::StatusOr<ReceiveBudget::Share> ReceiveBudget::take(const std::string& connection,
                                                         uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto found = taken_by_.find(connection);
  const uint64_t own = found == taken_by_.end() ? 0 : found->second;
  // Compares by subtraction: `bytes` is what the sender declares, and a sum could overflow.
  if (bytes > of_connection_ || own > of_connection_ - bytes) {
    return refused(bytes, own, "of a connection", of_connection_);
  }
  if (bytes > of_all_ || taken_ > of_all_ - bytes) {
    return refused(bytes, taken_, "of the server", of_all_);
  }
  taken_ += bytes;
  taken_by_[connection] = own + bytes;
  return Share(this, connection, bytes);
}

void ReceiveBudget::give_back(const std::string& connection, uint64_t bytes) {
  MutexLock lock(mutex_);
  taken_ -= bytes;
  const auto found = taken_by_.find(connection);
  found->second -= bytes;
  if (found->second == 0) taken_by_.erase(found);
}

}  // namespace trireme::internal
