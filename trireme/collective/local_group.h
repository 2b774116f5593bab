#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/collective/group.h"

namespace trireme::internal {

// Groups for tests whose members are threads of one process: the member of each rank is a Group of
// its own. A payload is copied when its parcel is taken and not before, so that a sender that
// changes it too early is noticed. Failing one member fails all.
class LocalGroups {
 public:
  // If `scatter` is true, payloads arrive in pieces that end within elements. `boot_ids` has the
  // boot id of each member; all have the same if it is empty.
  explicit LocalGroups(int size, bool scatter = false,
                       const std::vector<std::string>& boot_ids = {})
      : shared_(std::make_shared<Shared>(size, scatter)) {
    for (size_t rank = 0; rank < boot_ids.size(); ++rank) {
      shared_->members[rank].boot_id = boot_ids[rank];
    }
    for (int rank = 0; rank < size; ++rank) {
      groups_.push_back(std::make_unique<Member>(rank, shared_));
    }
  }

  Group& operator[](int rank) { return *groups_[rank]; }

 private:
  struct Shared {
    Shared(int size, bool scatter) : scatter(scatter), mailboxes(size) {
      for (int rank = 0; rank < size; ++rank) {
        members.push_back({.task = {"worker", rank},
                           .address = "127.0.0.1:0",
                           .incarnation = 1,
                           .pid = getpid()});
      }
    }

    const bool scatter;
    std::vector<GroupMember> members;
    std::vector<Mailbox> mailboxes;
    std::stop_source stop;
    Mutex mutex;
    CondVar changed;
    std::map<std::string, std::map<int, std::string>> exchanged ABSL_GUARDED_BY(mutex);
    absl::Status failure ABSL_GUARDED_BY(mutex);
  };

  class Member final : public Group {
   public:
    Member(int rank, std::shared_ptr<Shared> shared) : rank_(rank), shared_(std::move(shared)) {}

    const std::string& name() const override { return name_; }
    int rank() const override { return rank_; }
    const std::vector<GroupMember>& members() const override { return shared_->members; }

    absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                      const std::string& bytes,
                                                      Time deadline) override {
      MutexLock lock(shared_->mutex);
      auto& given = shared_->exchanged[key];
      given[rank_] = bytes;
      shared_->changed.notify_all();
      while (static_cast<int>(given.size()) < size()) {
        if (!shared_->failure.ok()) return shared_->failure;
        if (!shared_->changed.wait_until(shared_->mutex, deadline)) {
          return make_status(ErrorCode::kDeadlineExceeded, "members are missing");
        }
      }
      std::vector<std::string> all;
      for (const auto& [rank, text] : given) all.push_back(text);
      return all;
    }

    void send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) override {
      parcel.from = rank_;
      const at::Tensor source = parcel.payload;
      const at::Tensor copy = source.defined() ? at::empty_like(source) : at::Tensor();
      parcel.payload = copy;
      if (copy.defined() && shared_->scatter) cut(parcel);
      parcel.on_taken = [source, copy, done = std::move(done)](const absl::Status& status) {
        if (status.ok() && copy.defined()) at::Tensor(copy).copy_(source);
        done(status);
      };
      shared_->mailboxes[to].deliver(std::move(parcel));
    }
    absl::StatusOr<Parcel> receive(uint64_t sequence, Time deadline) override {
      return shared_->mailboxes[rank_].take(sequence, deadline);
    }

    void fail(const absl::Status& cause) override {
      {
        MutexLock lock(shared_->mutex);
        if (!shared_->failure.ok()) return;
        shared_->failure = cause;
      }
      shared_->changed.notify_all();
      for (Mailbox& mailbox : shared_->mailboxes) mailbox.close(cause);
      shared_->stop.request_stop();
    }
    absl::Status failure() const override {
      MutexLock lock(shared_->mutex);
      return shared_->failure;
    }
    std::stop_token stop_token() const override { return shared_->stop.get_token(); }

   private:
    // Replaces the payload by pieces of it.
    static void cut(Parcel& parcel) {
      const auto owner = std::make_shared<at::Tensor>(parcel.payload);
      const auto* data = static_cast<const uint8_t*>(owner->data_ptr());
      const size_t bytes = owner->nbytes();
      const size_t piece = bytes / 5 + 1;
      for (size_t done = 0; done < bytes; done += piece) {
        parcel.scattered.append({data + done, std::min(piece, bytes - done)}, owner);
      }
      parcel.payload = at::empty(owner->sizes(), owner->options().device(at::kMeta));
    }

    const std::string name_ = "test";
    const int rank_;
    const std::shared_ptr<Shared> shared_;
  };

  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Member>> groups_;
};

}  // namespace trireme::internal
