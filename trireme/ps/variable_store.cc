#include "trireme/ps/variable_store.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/buffer_pool.h"

// mutex_ guards only the two maps, since every call of every step looks up handles under it. Memory
// is reserved, allocated and filled before the lock is taken, and released after. Two clients may
// therefore create the same variable at the same time; the one that takes the lock second finds the
// variable of the first, drops its own and returns the other. Bytes are counted in an atomic, and
// reserved before the allocation, so that concurrent creations cannot exceed the limit together.
//
// The generation of a scope is checked under the same lock under which a variable is found or
// added. So when begin_job() returns, no variable of an earlier generation can be added any more,
// whichever calls of it are under way. Pulls and pushes name no scope, and their handles are not
// checked: those of a fresh generation's predecessor are gone, and pushes are fenced by their
// writers. Calls that name a scope may use handles of its job only.
namespace trireme {

using internal::TensorShape;

namespace {

Origin object(const std::string& name) {
  return {"", "variable '" + name + "'"};
}

}  // namespace

absl::Status VariableStore::no_such_handle(uint64_t handle) {
  return make_status(ErrorCode::kNotFound,
                     absl::StrCat("handle ", handle,
                                  " does not refer to a variable of this server: the variable was "
                                  "deleted, or its container was dropped; look it up by name"));
}

absl::Status VariableStore::reserve(const std::string& name, uint64_t bytes, const char* what) {
  uint64_t taken = bytes_.load();
  do {
    // Subtraction cannot overflow here; `taken + bytes` could, since a peer may declare any size.
    const uint64_t limit = options_.memory_limit;
    if (limit != 0 && (bytes > limit || taken > limit - bytes)) {
      return make_status(
          ErrorCode::kResourceExhausted,
          absl::StrCat(what, " needs ", bytes, " bytes, but ", taken, " of the limit of ", limit,
                       " bytes are taken; shard it over more servers or raise the limit"),
          object(name));
    }
  } while (!bytes_.compare_exchange_weak(taken, taken + bytes));
  return absl::OkStatus();
}

absl::Status VariableStore::reserve_copy(uint64_t bytes) {
  uint64_t taken = bytes_.load();
  do {
    const uint64_t limit = options_.memory_limit;
    if (limit != 0 && (bytes > limit || taken > limit - bytes)) {
      return make_status(
          ErrorCode::kResourceExhausted,
          absl::StrCat("a copy of the variables needs ", bytes, " bytes, but ", taken,
                       " of the limit of ", limit,
                       " bytes are taken; save with the mode stream, which needs no copy, or raise "
                       "the limit"));
    }
  } while (!bytes_.compare_exchange_weak(taken, taken + bytes));
  return absl::OkStatus();
}

void VariableStore::release(const std::vector<Variable>& removed) {
  for (const Variable& variable : removed) bytes_ -= variable->retire();
}

absl::Status VariableStore::check_current(const VariableScope& scope) const {
  if (scope.job.empty()) return absl::OkStatus();
  const auto found = jobs_.find(scope.job);
  const uint64_t current = found == jobs_.end() ? 0 : found->second.generation;
  if (current == scope.generation) return absl::OkStatus();
  if (current > scope.generation) {
    return replaced_generation({scope.job, scope.generation}, current);
  }
  return make_status(ErrorCode::kAborted,
                     absl::StrCat("generation ", scope.generation, " of job '", scope.job,
                                  "' has no variables on this server: it has ended, or never began "
                                  "here; start the program again"));
}

absl::Status VariableStore::check(const VariableScope& scope) const {
  ReaderLock lock(mutex_);
  return check_current(scope);
}

absl::Status VariableStore::check_job(const VariableScope& scope, const Entry& entry) {
  if (entry.job == scope.job) return absl::OkStatus();
  return invalid_argument(absl::StrCat("handle ", entry.variable->handle,
                                       " refers to a variable that does not belong to job '",
                                       scope.job, "'; look the variable up by name"));
}

const VariableStore::Entry* VariableStore::find_entry(const VariableScope& scope,
                                                      const std::string& name) const {
  const auto job = jobs_.find(scope.job);
  if (job == jobs_.end()) return nullptr;
  const auto container = job->second.containers.find(scope.container);
  if (container == job->second.containers.end()) return nullptr;
  const auto handle = container->second.find(name);
  return handle == container->second.end() ? nullptr : &by_handle_.find(handle->second)->second;
}

absl::StatusOr<VariableStore::Created> VariableStore::make(
    const VariableScope& scope, const std::string& name, const TensorShape& shape,
    const std::function<void(at::Tensor&)>& fill, uint64_t member, c10::Device device) {
  const auto same = [&](const Variable& found) -> absl::StatusOr<Created> {
    if (TensorShape::of(found->tensor) == shape) return Created{found, false};
    return make_status(ErrorCode::kAlreadyExists,
                       absl::StrCat("container '", scope.container, "' already has it as ",
                                    internal::to_string(TensorShape::of(found->tensor)),
                                    "; it cannot be created again as ", internal::to_string(shape),
                                    ". Use another container or another job, or start the job "
                                    "without resume"),
                       object(name));
  };
  {
    ReaderLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(with_origin(check_current(scope), object(name)));
    if (const Entry* found = find_entry(scope, name)) return same(found->variable);
  }

  // Memory is allocated and filled outside the lock, which the calls of every step need.
  const uint64_t bytes = shape.bytes();
  TRIREME_RETURN_IF_ERROR(reserve(name, bytes, "it"));
  absl::StatusOr<at::Tensor> tensor = try_call([&] {
    at::Tensor made = device.is_cpu()
                          ? BufferPool::shared().empty(shape.sizes, shape.dtype)
                          : at::empty(shape.sizes, at::dtype(shape.dtype).device(device));
    fill(made);
    return made;
  });
  if (!tensor.ok()) {
    bytes_ -= bytes;
    return with_origin(tensor.status(), object(name));
  }
  absl::Status status;
  Variable other;
  {
    WriterLock lock(mutex_);
    status = check_current(scope);
    if (const Entry* found = status.ok() ? find_entry(scope, name) : nullptr) {
      other = found->variable;  // another call has created it in the meantime
    } else if (status.ok()) {
      auto made = std::make_shared<StoredVariable>(scope.container, name, *std::move(tensor),
                                                   ++last_handle_);
      jobs_[scope.job].containers[scope.container][name] = made->handle;
      by_handle_[made->handle] = {made, scope.job, scope.generation, member};
      return Created{std::move(made), true};
    }
  }
  bytes_ -= bytes;
  TRIREME_RETURN_IF_ERROR(with_origin(status, object(name)));
  return same(other);
}

absl::StatusOr<std::shared_ptr<HostedVariable>> VariableStore::create(const VariableScope& scope,
                                                                      const std::string& name,
                                                                      const at::Tensor& initial,
                                                                      c10::Device device) {
  TRIREME_ASSIGN_OR_RETURN(
      const Created created,
      make(
          scope, name, TensorShape::of(initial),
          [&](at::Tensor& made) { made.copy_(initial.detach()); }, /*member=*/0, device));
  return created.variable;
}

absl::StatusOr<VariableStore::Variable> VariableStore::lookup(const VariableScope& scope,
                                                              const std::string& name) {
  ReaderLock lock(mutex_);
  TRIREME_RETURN_IF_ERROR(with_origin(check_current(scope), object(name)));
  if (const Entry* found = find_entry(scope, name)) return found->variable;
  return make_status(ErrorCode::kNotFound,
                     absl::StrCat("container '", scope.container,
                                  "' has no such variable on this server; it was never created, "
                                  "was deleted, or was lost when the server restarted"),
                     object(name));
}

absl::StatusOr<std::vector<VariableStore::Variable>> VariableStore::lookup(
    const VariableScope& scope, const std::vector<uint64_t>& handles) const {
  std::vector<Variable> variables;
  variables.reserve(handles.size());
  ReaderLock lock(mutex_);
  TRIREME_RETURN_IF_ERROR(check_current(scope));
  for (const uint64_t handle : handles) {
    const auto found = by_handle_.find(handle);
    if (found == by_handle_.end()) return no_such_handle(handle);
    TRIREME_RETURN_IF_ERROR(check_job(scope, found->second));
    variables.push_back(found->second.variable);
  }
  return variables;
}

absl::StatusOr<std::vector<VariableStore::Found>> VariableStore::find_all(
    const VariableScope& scope, const std::vector<std::string>& names) const {
  ReaderLock lock(mutex_);
  TRIREME_RETURN_IF_ERROR(check_current(scope));
  std::vector<Found> found;
  found.reserve(names.size());
  for (const std::string& name : names) {
    const Entry* entry = find_entry(scope, name);
    found.push_back(entry == nullptr ? Found()
                                     : Found{entry->variable, entry->generation, entry->member});
  }
  return found;
}

absl::StatusOr<std::shared_ptr<HostedVariable>> VariableStore::find(const VariableScope& scope,
                                                                    const std::string& name) {
  return lookup(scope, name);
}

absl::Status VariableStore::remove(const VariableScope& scope,
                                   const std::vector<uint64_t>& handles) {
  std::vector<Variable> removed;
  {
    WriterLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(check_current(scope));
    for (const uint64_t handle : handles) {
      const auto found = by_handle_.find(handle);
      if (found != by_handle_.end()) TRIREME_RETURN_IF_ERROR(check_job(scope, found->second));
    }
    for (const uint64_t handle : handles) {
      const auto found = by_handle_.find(handle);
      if (found == by_handle_.end()) continue;
      removed.push_back(found->second.variable);
      auto& containers = jobs_.find(found->second.job)->second.containers;
      const auto container = containers.find(removed.back()->container);
      container->second.erase(removed.back()->name);
      if (container->second.empty()) containers.erase(container);
      by_handle_.erase(found);
    }
  }
  release(removed);
  return absl::OkStatus();
}

void VariableStore::take_out(const Container& container, std::vector<Variable>& removed) {
  for (const auto& [name, handle] : container) {
    const auto found = by_handle_.find(handle);
    removed.push_back(std::move(found->second.variable));
    by_handle_.erase(found);
  }
}

void VariableStore::drop_container(const VariableScope& scope) {
  std::vector<Variable> removed;
  {
    WriterLock lock(mutex_);
    const auto job = jobs_.find(scope.job);
    if (job == jobs_.end() || !check_current(scope).ok()) return;
    const auto found = job->second.containers.find(scope.container);
    if (found == job->second.containers.end()) return;
    take_out(found->second, removed);
    job->second.containers.erase(found);
  }
  release(removed);
}

void VariableStore::begin_job(const JobKey& job, bool fresh) {
  std::vector<Variable> removed;
  {
    WriterLock lock(mutex_);
    Job& known = jobs_[job.id];
    known.generation = job.generation;
    if (fresh) {
      for (const auto& [name, container] : known.containers) take_out(container, removed);
      known.containers.clear();
    }
  }
  release(removed);
}

void VariableStore::drop_job(const std::string& job) {
  std::vector<Variable> removed;
  {
    WriterLock lock(mutex_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    for (const auto& [name, container] : found->second.containers) take_out(container, removed);
    jobs_.erase(found);
  }
  release(removed);
}

absl::Status VariableStore::set_optimizer(StoredVariable& variable,
                                          std::shared_ptr<const internal::UpdateRule> rule) {
  const uint64_t bytes = rule->slots().size() * variable.tensor.nbytes();
  TRIREME_RETURN_IF_ERROR(reserve(variable.name, bytes, "its optimizer's state"));
  absl::StatusOr<bool> set = [&]() -> absl::StatusOr<bool> {
    TRIREME_ASSIGN_OR_RETURN(auto state, try_call([&] {
                               return std::make_unique<OptimizerState>(std::move(rule),
                                                                       variable.tensor);
                             }));
    return variable.set_optimizer(std::move(state));
  }();
  if (!set.ok() || !*set) bytes_ -= bytes;  // the new state was not needed
  return set.status();
}

std::vector<VariableStore::Variable> VariableStore::list() const {
  std::vector<Variable> variables;
  ReaderLock lock(mutex_);
  variables.reserve(by_handle_.size());
  for (const auto& [handle, entry] : by_handle_) variables.push_back(entry.variable);
  return variables;
}

std::vector<VariableStore::Listed> VariableStore::list_by_job() const {
  std::vector<Listed> variables;
  {
    ReaderLock lock(mutex_);
    variables.reserve(by_handle_.size());
    for (const auto& [handle, entry] : by_handle_) variables.push_back({entry.job, entry.variable});
  }
  std::sort(variables.begin(), variables.end(), [](const Listed& a, const Listed& b) {
    return std::tie(a.job, a.variable->container, a.variable->name) <
           std::tie(b.job, b.variable->container, b.variable->name);
  });
  return variables;
}

}  // namespace trireme
