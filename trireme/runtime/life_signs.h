#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// Asks tasks whether they are there. However many steps wait for a busy task, it is asked by one
// call at a time. Thread-safe.
class LifeSigns : public std::enable_shared_from_this<LifeSigns> {
 public:
  using OnAnswer = absl::AnyInvocable<void(const absl::Status&)>;

  // Whether that incarnation answers before the limit, or before that of who asked first.
  void ask(std::shared_ptr<Channel> channel, uint64_t incarnation, Time limit, OnAnswer done);

 private:
  using Key = std::pair<const Channel*, uint64_t>;
  void on_answer(const Key& key, const absl::Status& status);

  Mutex mutex_;
  std::map<Key, std::vector<OnAnswer>> questions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
