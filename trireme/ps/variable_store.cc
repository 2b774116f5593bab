#include "trireme/ps/variable_store.h"

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

void VariableStore::release(StoredVariable& variable) {
  const StoredVariable::Stats stats = variable.stats();
  bytes_ -= stats.bytes + stats.state_bytes;
}

absl::StatusOr<VariableStore::Created> VariableStore::make(
    const std::string& container, const std::string& name, const TensorShape& shape,
    const std::function<void(at::Tensor&)>& fill) {
  const auto same = [&](const std::shared_ptr<StoredVariable>& found) -> absl::StatusOr<Created> {
    if (TensorShape::of(found->tensor) == shape) return Created{found, false};
    return make_status(ErrorCode::kAlreadyExists,
                       absl::StrCat("container '", container, "' already has it as ",
                                    internal::to_string(TensorShape::of(found->tensor)),
                                    "; it cannot be created again as ", internal::to_string(shape),
                                    ". Use another container, or restart the parameter servers to "
                                    "start anew"),
                       object(name));
  };
  if (auto found = lookup(container, name); found.ok()) return same(*found);

  // Memory is allocated and filled outside the lock, which the calls of every step need.
  const uint64_t bytes = shape.bytes();
  TRIREME_RETURN_IF_ERROR(reserve(name, bytes, "it"));
  absl::StatusOr<at::Tensor> tensor = try_call([&] {
    at::Tensor made = BufferPool::shared().empty(shape.sizes, shape.dtype);
    fill(made);
    return made;
  });
  if (!tensor.ok()) {
    bytes_ -= bytes;
    return with_origin(tensor.status(), object(name));
  }
  std::shared_ptr<StoredVariable> other;
  {
    WriterLock lock(mutex_);
    std::shared_ptr<StoredVariable>& slot = containers_[container][name];
    if (!slot) {
      slot = std::make_shared<StoredVariable>(container, name, *std::move(tensor), ++last_handle_);
      by_handle_[slot->handle] = slot;
      return Created{slot, true};
    }
    other = slot;  // another call has created it in the meantime
  }
  bytes_ -= bytes;
  return same(other);
}

absl::StatusOr<std::shared_ptr<HostedVariable>> VariableStore::create(const std::string& container,
                                                                      const std::string& name,
                                                                      const at::Tensor& initial) {
  TRIREME_ASSIGN_OR_RETURN(const Created created,
                           make(container, name, TensorShape::of(initial),
                                [&](at::Tensor& made) { made.copy_(initial.detach()); }));
  return created.variable;
}

absl::StatusOr<std::shared_ptr<StoredVariable>> VariableStore::lookup(const std::string& container,
                                                                      const std::string& name) {
  ReaderLock lock(mutex_);
  if (const auto in = containers_.find(container); in != containers_.end()) {
    if (const auto found = in->second.find(name); found != in->second.end()) return found->second;
  }
  return make_status(ErrorCode::kNotFound,
                     absl::StrCat("container '", container,
                                  "' has no such variable on this server; it was never created, "
                                  "was deleted, or was lost when the server restarted"),
                     object(name));
}

absl::StatusOr<std::shared_ptr<HostedVariable>> VariableStore::find(const std::string& container,
                                                                    const std::string& name) {
  return lookup(container, name);
}

absl::Status VariableStore::remove(const std::string& container, const std::string& name) {
  TRIREME_ASSIGN_OR_RETURN(const std::shared_ptr<StoredVariable> found, lookup(container, name));
  {
    WriterLock lock(mutex_);
    if (by_handle_.erase(found->handle) == 0) return absl::OkStatus();  // removed by another call
    const auto in = containers_.find(container);
    in->second.erase(name);
    if (in->second.empty()) containers_.erase(in);
  }
  release(*found);
  return absl::OkStatus();
}

void VariableStore::drop_container(const std::string& container) {
  Container dropped;
  {
    WriterLock lock(mutex_);
    const auto found = containers_.find(container);
    if (found == containers_.end()) return;
    dropped = std::move(found->second);
    containers_.erase(found);
    for (const auto& [name, variable] : dropped) by_handle_.erase(variable->handle);
  }
  for (const auto& [name, variable] : dropped) release(*variable);
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

std::vector<std::shared_ptr<StoredVariable>> VariableStore::list() const {
  std::vector<std::shared_ptr<StoredVariable>> variables;
  {
    ReaderLock lock(mutex_);
    variables.reserve(by_handle_.size());
    for (const auto& [handle, variable] : by_handle_) variables.push_back(variable);
  }
  std::sort(variables.begin(), variables.end(), [](const auto& a, const auto& b) {
    return std::tie(a->container, a->name) < std::tie(b->container, b->name);
  });
  return variables;
}

}  // namespace trireme
