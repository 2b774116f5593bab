#include "trireme/collective/mailbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

void Mailbox::deliver(Parcel parcel) {
  const Key key(parcel.sequence, parcel.from, parcel.slot);
  absl::Status rejected;
  {
    MutexLock lock(mutex_);
    rejected = closed_;
    if (closed_.ok() && !parcels_.try_emplace(key, std::move(parcel)).second) {
      rejected =
          make_status(ErrorCode::kAlreadyExists,
                      absl::StrCat("rank ", std::get<1>(key), " sent slot ", std::get<2>(key),
                                   " of call ", std::get<0>(key), " twice"));
    }
  }
  if (rejected.ok()) {
    changed_.notify_all();
  } else if (parcel.on_taken) {  // try_emplace() moves only what it inserts.
    parcel.on_taken(rejected);
  }
}

absl::StatusOr<Parcel> Mailbox::take(uint64_t sequence, Time deadline) {
  Parcel parcel;
  {
    MutexLock lock(mutex_);
    for (bool in_time = true;; in_time = changed_.wait_until(mutex_, deadline)) {
      if (!closed_.ok()) return closed_;
      const auto found = parcels_.lower_bound(Key(sequence, 0, 0));
      if (found != parcels_.end() && std::get<0>(found->first) == sequence) {
        parcel = std::move(found->second);
        parcels_.erase(found);
        break;
      }
      if (!in_time) {
        return make_status(ErrorCode::kDeadlineExceeded,
                           absl::StrCat("no parcel of call ", sequence, " arrived in time"));
      }
    }
  }
  if (parcel.on_taken) std::exchange(parcel.on_taken, nullptr)(absl::OkStatus());
  return parcel;
}

void Mailbox::close(const absl::Status& cause) {
  std::map<Key, Parcel> dropped;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = cause;
    dropped.swap(parcels_);
  }
  changed_.notify_all();
  for (auto& [key, parcel] : dropped) {
    if (parcel.on_taken) parcel.on_taken(cause);
  }
}

}  // namespace trireme::internal
