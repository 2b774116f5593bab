#include "trireme/graph/variable.h"

#include <ATen/core/grad_mode.h>

#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/graph/capture.h"
#include "trireme/graph/device_scope.h"
#include "trireme/graph/function.h"
#include "trireme/graph/replicas.h"
#include "trireme/graph/variable_home.h"
#include "trireme/graph/variable_registry.h"

namespace trireme {
namespace internal {
namespace {

class Registry {
 public:
  static Registry& instance() {
    static auto* registry = new Registry;
    return *registry;
  }

  std::shared_ptr<VariableRecord> add(NewVariable variable, bool owned_elsewhere, bool* made) {
    Forgotten forgotten;
    MutexLock lock(mutex_);
    std::shared_ptr<VariableRecord> record =
        by_tensor_[variable.tensor.unsafeGetTensorImpl()].lock();
    *made = record == nullptr;
    if (*made) {
      if (!by_name_[variable.name].expired()) forgotten = drop_forgotten();
      record = std::make_shared<VariableRecord>();
      record->name = variable.name;
      for (int i = 1; !by_name_[record->name].expired(); ++i) {
        record->name = absl::StrCat(variable.name, "_", i);
      }
      record->tensor = std::move(variable.tensor);
      record->trainable = variable.trainable;
      record->aggregation = variable.aggregation;
      record->slot_of = std::move(variable.slot_of);
      if (record->slot_of.empty() && !variable.in_program) record->home = current_home();
      // An optimizer's state is where its variable is.
      if (record->slot_of.empty() && record->home == nullptr) {
        const DeviceRequest request = requested_device(
            {.is_variable = true, .name = record->name, .bytes = record->tensor.nbytes()});
        record->device = request.device.to_string();
        record->device_scopes = request.scopes;
      }
      by_name_[record->name] = record;
      by_tensor_[record->tensor.unsafeGetTensorImpl()] = record;
    }
    if (owned_elsewhere) kept_.insert(record);
    return record;
  }

  std::shared_ptr<VariableRecord> find(const at::Tensor& tensor) {
    MutexLock lock(mutex_);
    const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
    return found == by_tensor_.end() ? nullptr : found->second.lock();
  }

  std::vector<std::shared_ptr<VariableRecord>> all() {
    Forgotten forgotten;
    MutexLock lock(mutex_);
    forgotten = drop_forgotten();
    std::vector<std::shared_ptr<VariableRecord>> result;
    for (const auto& [name, weak] : by_name_) {
      if (auto record = weak.lock()) result.push_back(std::move(record));
    }
    return result;
  }

 private:
  // To be destroyed without the lock: with the last of its variables a home ends, which takes time.
  using Forgotten = std::vector<std::shared_ptr<VariableRecord>>;

  // What nobody else holds any more: variables whose handles are gone, modules that are gone.
  Forgotten drop_forgotten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Forgotten forgotten;
    for (const auto& record : kept_) {
      if (record->tensor.use_count() == 1 && record.use_count() == 1) forgotten.push_back(record);
    }
    for (const auto& record : forgotten) {
      kept_.erase(record);
      by_name_.erase(record->name);
      by_tensor_.erase(record->tensor.unsafeGetTensorImpl());
    }
    std::erase_if(by_name_, [](const auto& entry) { return entry.second.expired(); });
    std::erase_if(by_tensor_, [](const auto& entry) { return entry.second.expired(); });
    return forgotten;
  }

  Mutex mutex_;
  // A record holds its tensor, so that an address stands for one tensor while the record lives.
  std::unordered_map<const void*, std::weak_ptr<VariableRecord>> by_tensor_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::weak_ptr<VariableRecord>> by_name_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<std::shared_ptr<VariableRecord>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

bool VariableRecord::is_remote() const {
  return !device.empty() && internal::is_remote(DeviceSpec::parse(device));
}

namespace {

std::shared_ptr<VariableRecord> add(NewVariable variable, bool owned_elsewhere) {
  bool made;
  auto record = Registry::instance().add(std::move(variable), owned_elsewhere, &made);
  if (made && record->home != nullptr) record->home->adopt(record);
  return record;
}

thread_local std::vector<std::shared_ptr<VariableHome>> homes;

}  // namespace

std::shared_ptr<VariableRecord> add_variable(NewVariable variable) {
  return add(std::move(variable), /*owned_elsewhere=*/false);
}

std::shared_ptr<VariableRecord> add_owned_elsewhere(NewVariable variable) {
  return add(std::move(variable), /*owned_elsewhere=*/true);
}

HomeScope::HomeScope(std::shared_ptr<VariableHome> home) {
  homes.push_back(std::move(home));
}

HomeScope::~HomeScope() {
  homes.pop_back();
}

const std::shared_ptr<VariableHome>& current_home() {
  static const std::shared_ptr<VariableHome> program;
  return homes.empty() ? program : homes.back();
}

std::shared_ptr<VariableRecord> find_variable(const at::Tensor& tensor) {
  return Registry::instance().find(tensor);
}

std::vector<std::shared_ptr<VariableRecord>> live_variables() {
  return Registry::instance().all();
}

}  // namespace internal

namespace {

void check_shape(const internal::VariableRecord& record, const at::Tensor& value) {
  if (value.sizes() == record.tensor.sizes()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      absl::StrCat("cannot assign a tensor of another shape (", value.dim(), " dimensions, ",
                   value.numel(), " elements) to it (", record.tensor.dim(), " dimensions, ",
                   record.tensor.numel(), " elements); a variable keeps its shape"),
      {"", absl::StrCat("variable '", record.name, "'")});
}

// What the program holds of a variable that lives elsewhere is what it starts from.
void check_reachable(const internal::VariableRecord& record) {
  if (!record.is_remote() || internal::is_capturing() || runs_eagerly()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("it lives on '", record.device,
                           "', not in this program; read and write it in a function that a "
                           "tr::Session runs"),
              {"", absl::StrCat("variable '", record.name, "'")});
}

using Change = internal::VariableHome::Change;

// A capture works on what the program holds; what it reads and changes is redirected later.
bool lives_elsewhere(const internal::VariableRecord& record) {
  return record.home != nullptr && !internal::is_capturing();
}

using Assign = void (Variable::*)(const at::Tensor&) const;

// In one of several replicas: once for all of them, when they are done.
void assign_later(const Variable& variable, const char* call, const at::Tensor& value,
                  Assign assign) {
  const internal::VariableRecord& record = *variable.record();
  const std::string name = absl::StrCat("variable '", record.name, "'");
  if (record.aggregation == Aggregation::kNone) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat(call, "() in replica ", replica_id(),
                             ", and nothing says what becomes of the values of all replicas; make "
                             "it with VariableOptions::aggregation, or assign outside of "
                             "strategy.run()"),
                {"", name});
  }
  const at::NoGradGuard no_gradients;
  // A copy: the replica may go on to write to it.
  const bool counts = record.aggregation != Aggregation::kOnlyFirstReplica || replica_id() == 0;
  internal::defer({.object = &record,
                   .name = name,
                   .call = call,
                   .aggregation = record.aggregation,
                   .values = {counts ? value.clone() : at::Tensor()},
                   .make = [variable, assign](const std::vector<at::Tensor>& values) {
                     // A mean of whole numbers is none.
                     (variable.*assign)(values[0].to(variable.record()->tensor.scalar_type()));
                   }});
}

at::Tensor own_copy(const at::Tensor& initial, bool trainable) {
  if (!initial.defined()) {
    throw Error(ErrorCode::kInvalidArgument, "a variable needs a defined initial tensor");
  }
  const internal::OwnWork own;
  at::Tensor tensor = initial.detach().clone();
  if (trainable && (tensor.is_floating_point() || tensor.is_complex())) {
    tensor.requires_grad_(true);
  }
  return tensor;
}

}  // namespace

Variable::Variable(std::string name, const at::Tensor& initial, VariableOptions options)
    : record_(internal::add_variable({std::move(name), own_copy(initial, options.trainable),
                                      options.trainable, /*slot_of=*/"", /*in_program=*/false,
                                      options.aggregation})) {}

Variable::Variable(std::shared_ptr<internal::VariableRecord> record) : record_(std::move(record)) {}

const std::string& Variable::name() const {
  return record_->name;
}

bool Variable::trainable() const {
  return record_->trainable;
}

std::string Variable::device() const {
  return shards().front();
}

std::vector<std::string> Variable::shards() const {
  if (record_->home != nullptr) return record_->home->devices(*record_);
  return {record_->device};
}

at::Tensor Variable::read() const {
  check_reachable(*record_);
  if (lives_elsewhere(*record_)) return record_->home->read(*record_);
  return record_->tensor;
}

void Variable::assign(const at::Tensor& value) const {
  check_reachable(*record_);
  check_shape(*record_, value);
  if (internal::in_replica()) return assign_later(*this, "assign", value, &Variable::assign);
  if (lives_elsewhere(*record_)) return record_->home->change(*record_, Change::kAssign, value);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).copy_(value);
}

void Variable::assign_add(const at::Tensor& delta) const {
  check_reachable(*record_);
  check_shape(*record_, delta);
  if (internal::in_replica())
    return assign_later(*this, "assign_add", delta, &Variable::assign_add);
  if (lives_elsewhere(*record_)) return record_->home->change(*record_, Change::kAdd, delta);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).add_(delta);
}

void Variable::assign_sub(const at::Tensor& delta) const {
  check_reachable(*record_);
  check_shape(*record_, delta);
  if (internal::in_replica())
    return assign_later(*this, "assign_sub", delta, &Variable::assign_sub);
  if (lives_elsewhere(*record_)) return record_->home->change(*record_, Change::kAdd, -delta);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).sub_(delta);
}

}  // namespace trireme
