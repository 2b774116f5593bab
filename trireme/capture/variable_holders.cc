#include "trireme/capture/variable_holders.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/variable_backend.h"

namespace trireme::internal {
namespace {

// Returns true if the memory of the tensor can be locked, and read in spite of that.
bool can_be_locked(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg();
}

bool is_same_session(const HeldCopy& a, const HeldCopy& b) {
  return !a.holder.owner_before(b.holder) && !b.holder.owner_before(a.holder);
}

// Returns true if the copies are one variable. Incarnations tell the tasks of one cluster from
// those of another.
bool is_same_copy(const HeldCopy& a, const HeldCopy& b) {
  if (is_same_session(a, b)) return true;
  return !a.container.empty() && a.container == b.container && a.task == b.task &&
         a.incarnation == b.incarnation;
}

std::string place_of(const HeldCopy& copy) {
  return copy.container.empty() ? copy.task
                                : absl::StrCat("container '", copy.container, "' on ", copy.task);
}

std::string describe_copy(const HeldCopy& copy) {
  return copy.open ? absl::StrCat(copy.session, ", on ", place_of(copy)) : place_of(copy);
}

Error cannot_reach(const std::string& name, const std::string& why) {
  return Error(ErrorCode::kFailedPrecondition, why, {"", absl::StrCat("variable '", name, "'")});
}

}  // namespace

void VariableHolders::add(const std::string& name, const at::Tensor& tensor, HeldCopy copy) {
  MutexLock lock(mutex_);
  std::erase_if(copies_, [&](const HeldCopy& known) {
    return is_same_session(known, copy) || (!known.open && is_same_copy(known, copy));
  });
  copies_.push_back(std::move(copy));
  name_ = name;
  if (!storage_ && can_be_locked(tensor)) storage_ = tensor.storage();
  update_lock();
}

void VariableHolders::remove(const VariableHolder& session) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(
      copies_, [&](const HeldCopy& copy) { return copy.holder.lock().get() == &session; });
  if (found == copies_.end()) return;
  HeldCopy left = std::move(*found);
  copies_.erase(found);
  left.open = false;
  const auto is_it = [&](const HeldCopy& other) { return is_same_copy(other, left); };
  if (!left.container.empty() && std::ranges::none_of(copies_, is_it)) {
    copies_.push_back(std::move(left));
  }
  update_lock();
}

std::shared_ptr<VariableHolder> VariableHolders::find() const {
  if (!held_) return nullptr;
  // Declared before the lock: a session that ends meanwhile is destroyed after its release.
  std::vector<std::shared_ptr<VariableHolder>> sessions;
  MutexLock lock(mutex_);
  const HeldCopy* found = nullptr;
  for (const HeldCopy& copy : copies_) {
    if (!copy.open) continue;
    sessions.push_back(copy.holder.lock());
    if (found != nullptr && !is_same_copy(*found, copy)) {
      throw cannot_reach(
          name_, absl::StrCat("several sessions hold a copy of their own: ", describe_copies(),
                              ". Read and write it in a function that one of these "
                              "sessions runs, or close the others"));
    }
    if (found == nullptr) found = &copy;
  }
  if (found != nullptr && sessions.front() != nullptr) return sessions.front();
  if (copies_.empty()) return nullptr;
  throw cannot_reach(
      name_, absl::StrCat("its contents are in ", describe_copies(),
                          ", which no open session of this program uses; open a tr::Session "
                          "with this container, and read and write it in a function that "
                          "the session runs"));
}

std::string VariableHolders::describe() const {
  if (!held_) return "";
  MutexLock lock(mutex_);
  return describe_copies();
}

void VariableHolders::suspend() {
  MutexLock lock(mutex_);
  ++suspended_;
  update_lock();
}

void VariableHolders::resume() {
  MutexLock lock(mutex_);
  --suspended_;
  update_lock();
}

std::string VariableHolders::describe_copies() const {
  return absl::StrJoin(copies_, " and ", [](std::string* out, const HeldCopy& copy) {
    absl::StrAppend(out, describe_copy(copy));
  });
}

// Locks or unlocks the memory as the list of copies asks for, and keeps the message up to date.
void VariableHolders::update_lock() {
  std::string message;
  const bool held = !copies_.empty() && suspended_ == 0;
  if (held) {
    message = absl::StrCat("variable '", name_, "': its contents are held by ", describe_copies(),
                           ", and the tensor in this program is stale; use variable.read(), or a "
                           "captured function that session.run() runs");
  }
  if (storage_ && message != lock_message_) {
    if (held) {
      lock_memory(*storage_.unsafeGetStorageImpl(), message);
    } else {
      unlock_memory(*storage_.unsafeGetStorageImpl());
    }
  }
  if (copies_.empty()) storage_ = c10::Storage();
  lock_message_ = std::move(message);
  held_ = held;
}

at::Tensor program_contents(const at::Tensor& tensor) {
  return can_be_locked(tensor) ? readable_alias(tensor) : tensor.detach();
}

}  // namespace trireme::internal
